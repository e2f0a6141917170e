// RUN: elk-opt %s -p onnx-fold-constants --print-debuginfo | filecheck %s

// Shapes are constants; a chain of them that feeds Reshape and Expand disappears.
// CHECK-LABEL: @shapes
// CHECK-NEXT: onnx.Initializer dense<[1, 12]> : tensor<2xi64>
// CHECK-NEXT: onnx.Reshape({{.*}}) -> tensor<1x12xf32> loc("flat")
// CHECK-NEXT: func.return
func.func @shapes(%x: tensor<3x4xf32>) -> tensor<1x12xf32> {
  %zero = onnx.Initializer dense<0> : tensor<i64>
  %one = onnx.Initializer dense<1> : tensor<i64>
  %axis = onnx.Initializer dense<0> : tensor<1xi64>
  %unit = onnx.Initializer dense<1> : tensor<1xi64>
  %shape = onnx.Shape(%x) : (tensor<3x4xf32>) -> tensor<2xi64>
  %rows = onnx.Gather(%shape, %zero) : (tensor<2xi64>, tensor<i64>) -> tensor<i64>
  %columns = onnx.Gather(%shape, %one) : (tensor<2xi64>, tensor<i64>) -> tensor<i64>
  %count = onnx.Mul(%rows, %columns) : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %counts = onnx.Unsqueeze(%count, %axis) : (tensor<i64>, tensor<1xi64>) -> tensor<1xi64>
  %flat = onnx.Concat(%unit, %counts) {axis = 0 : i64} : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
  %0 = onnx.Reshape(%x, %flat) : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<?x?xf32> loc("flat")
  %same = onnx.Identity(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %all = onnx.Expand(%same, %flat) : (tensor<?x?xf32>, tensor<2xi64>) -> tensor<1x12xf32>
  func.return %all : tensor<1x12xf32>
}

// Views of a weight become its recipe; the weight need not exist.
// CHECK-LABEL: @weights
// CHECK-NEXT: onnx.Initializer #te.weight<[<"w" : tensor<8x4xf32>, "none.bin", 0, 128, "">], ["transpose 1 0", "slice 1 2 6 1", "cast f16", "add 1.0"]>
// CHECK-NEXT: onnx.MatMul({{.*}}) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16> loc("product")
func.func @weights(%x: tensor<2x4xf16>) -> tensor<2x4xf16> {
  %w = onnx.Initializer #te.weight<[<"w" : tensor<8x4xf32>, "none.bin", 0, 128, "">]>
  %start = onnx.Initializer dense<2> : tensor<1xi64>
  %end = onnx.Initializer dense<-2> : tensor<1xi64>
  %axis = onnx.Initializer dense<-1> : tensor<1xi64>
  %one = onnx.Initializer dense<1.0> : tensor<f16>
  %t = onnx.Transpose(%w) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %s = onnx.Slice(%t, %start, %end, %axis) : (tensor<4x8xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4x4xf32>
  %c = onnx.Cast(%s) {to = 10 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf16>
  %a = onnx.Add(%one, %c) : (tensor<f16>, tensor<4x4xf16>) -> tensor<4x4xf16>
  %y = onnx.MatMul(%x, %a) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16> loc("product")
  func.return %y : tensor<2x4xf16>
}

// A branch on a constant is inlined, and what nothing needs goes.
// CHECK-LABEL: @branch
// CHECK-NEXT: onnx.Neg(%x)
// CHECK-NEXT: func.return
func.func @branch(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = onnx.Initializer dense<true> : tensor<i1>
  %unused = onnx.Exp(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %0 = onnx.If(%c) ({
    %1 = onnx.Neg(%x) : (tensor<4xf32>) -> tensor<4xf32>
    onnx.Yield %1 : tensor<4xf32>
  }, {
    onnx.Yield %x : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// Quantised numbers stay quantised, random ones random; a fill of any size is one number.
// CHECK-LABEL: @kept
// CHECK: onnx.DequantizeLinear
// CHECK: onnx.RandomNormal
// CHECK: onnx.Initializer dense<7> : tensor<i64> -> tensor<4096x4096xi64>
func.func @kept() -> (tensor<2xf32>, tensor<2xf32>, tensor<4096x4096xi64>) {
  %q = onnx.Initializer dense<[1, 2]> : tensor<2xi8>
  %scale = onnx.Initializer dense<0.5> : tensor<f32>
  %d = onnx.DequantizeLinear(%q, %scale) : (tensor<2xi8>, tensor<f32>) -> tensor<2xf32>
  %r = onnx.RandomNormal() {shape = array<i64: 2>} : () -> tensor<2xf32>
  %shape = onnx.Initializer dense<4096> : tensor<2xi64>
  %fill = onnx.ConstantOfShape(%shape) {value = dense<7> : tensor<1xi64>} : (tensor<2xi64>) -> tensor<4096x4096xi64>
  func.return %d, %r, %fill : tensor<2xf32>, tensor<2xf32>, tensor<4096x4096xi64>
}
