// RUN: elk-opt %s -p convert-onnx-to-te --verify-diagnostics | filecheck %s

// All nodes that can't be lowered, in one message, and none that only depend on them.
// CHECK: 3 nodes can't be lowered to te:
// CHECK-NEXT: first: NonZero: no lowering for this operator
// CHECK-NEXT: sort: TopK: k is not a constant
// CHECK-NEXT: other: my.domain:Odd: no lowering for this operator
// CHECK-NOT: behind
func.func @main(%x: tensor<3x3xf32>, %k: tensor<1xi64>) -> (tensor<2x?xi64>, tensor<3x2xf32>, tensor<3x3xf32>) {
  %0 = onnx.NonZero(%x) : (tensor<3x3xf32>) -> tensor<2x?xi64> loc("first")
  %1, %2 = onnx.TopK(%x, %k) : (tensor<3x3xf32>, tensor<1xi64>) -> (tensor<3x2xf32>, tensor<3x2xi64>) loc("sort")
  %3 = onnx.Abs(%1) : (tensor<3x2xf32>) -> tensor<3x2xf32> loc("behind")
  %4 = onnx.Custom "my.domain" "Odd" (%x) {} : (tensor<3x3xf32>) -> tensor<3x3xf32> loc("other")
  func.return %0, %3, %4 : tensor<2x?xi64>, tensor<3x2xf32>, tensor<3x3xf32>
}
