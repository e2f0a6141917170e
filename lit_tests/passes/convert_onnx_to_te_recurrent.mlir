// RUN: elk-opt %s -p convert-onnx-to-te | filecheck %s

// One step of a recurrent network: the inputs' product, the state's, and the activation.
// CHECK-LABEL: func.func @main
// CHECK: te.contract
// CHECK: te.contract
// CHECK: te.map
// CHECK-SAME: tanh
// CHECK-NOT: te.contract
func.func @main(%x: tensor<1x2x4xf32>, %w: tensor<1x5x4xf32>, %r: tensor<1x5x5xf32>) -> tensor<1x2x5xf32> {
  %y, %h = onnx.RNN(%x, %w, %r) {hidden_size = 5 : i64} : (tensor<1x2x4xf32>, tensor<1x5x4xf32>, tensor<1x5x5xf32>) -> (tensor<1x1x2x5xf32>, tensor<1x2x5xf32>) loc("rnn")
  func.return %h : tensor<1x2x5xf32>
}
