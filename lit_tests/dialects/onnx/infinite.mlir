// RUN: elk-opt %s | filecheck %s
// RUN: elk-opt %s | elk-opt | filecheck %s

// xDSL prints a number without a short decimal form as its bits, but reads those inside a list as an
// integer's value; the dialect prints such lists as one string of bytes, which is read back right.
// CHECK: onnx.Initializer dense<"0x00000000000080FF"> : tensor<2xf32>
// CHECK: onnx.Initializer dense<"0x000080FF"> : tensor<f32> -> tensor<128x128xf32>
// CHECK: onnx.ConstantOfShape(%s) {value = dense<"0x0000C07F"> : tensor<1xf32>}
// CHECK: onnx.Initializer dense<"0x0000804B0000003F"> : tensor<2xf32>
func.func @f(%s: tensor<1xi64>) -> tensor<?xf32> {
  %0 = onnx.Initializer dense<"0x00000000000080FF"> : tensor<2xf32>
  %1 = onnx.Initializer dense<"0x000080FF"> : tensor<f32> -> tensor<128x128xf32>
  %2 = onnx.ConstantOfShape(%s) {value = dense<"0x0000C07F"> : tensor<1xf32>} : (tensor<1xi64>) -> tensor<?xf32>
  %3 = onnx.Initializer dense<[16777216.0, 0.5]> : tensor<2xf32>
  func.return %2 : tensor<?xf32>
}
