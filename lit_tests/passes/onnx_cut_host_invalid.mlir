// RUN: elk-opt %s -p onnx-cut-host --verify-diagnostics --split-input-file | filecheck %s

// All nodes that can run nowhere are named, and no others.
// CHECK:      3 nodes can be neither lowered to te nor run on the host:
// CHECK-NEXT: dice: RandomNormalLike: no lowering for this operator; the host: random numbers can't be reproduced
// CHECK-NEXT: who: some.domain:Unheard: no lowering for this operator; the host: no ONNX runtime takes it (
// CHECK-NEXT: both: If: its condition is computed, and the branches yield tensors of different shapes; the host: random numbers can't be reproduced
func.func @main(%x: tensor<4x4xf32>, %c: tensor<i1>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<?xf32>) {
  %0 = onnx.RandomNormalLike(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32> loc("dice")
  %1 = onnx.Custom "some.domain" "Unheard"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32> loc("who")
  %2 = onnx.Det(%x) : (tensor<4x4xf32>) -> tensor<f32> loc("fine")
  %3 = onnx.If(%c) ({
    %a = onnx.RandomNormal() {shape = array<i64: 3>} : () -> tensor<3xf32>
    onnx.Yield %a : tensor<3xf32>
  }, {
    %b = onnx.RandomNormal() {shape = array<i64: 4>} : () -> tensor<4xf32>
    onnx.Yield %b : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<?xf32> loc("both")
  func.return %0, %1, %2, %3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<?xf32>
}
