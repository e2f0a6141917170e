// RUN: elk-opt %s -p convert-onnx-to-te --verify-diagnostics | filecheck %s

// Control flow that the importer left: each says why.
// CHECK: 1 node can't be lowered to te:
// CHECK-NEXT: while: Loop: its trip count depends on data
func.func @main(%x: tensor<3xf32>, %on: tensor<i1>) -> tensor<3xf32> {
  %y = onnx.Loop(none, %on, %x) ({
  ^bb0(%i: tensor<i64>, %c: tensor<i1>, %v: tensor<3xf32>):
    %w = onnx.Add(%v, %v) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    onnx.Yield %c, %w : tensor<i1>, tensor<3xf32>
  }) : (none, tensor<i1>, tensor<3xf32>) -> tensor<3xf32> loc("while")
  func.return %y : tensor<3xf32>
}
