// RUN: elk-opt %s -p convert-onnx-to-te --print-debuginfo | filecheck %s

// A weight becomes a global, read in front of its first reader; both keep its name.
// CHECK: te.global weight @wq : tensor<8x4xf32> = #te.weight<{{.*}}> loc("wq")
// CHECK-LABEL: @product
// CHECK-NEXT: %[[W:.*]] = te.load @wq : tensor<8x4xf32> loc("wq")
// CHECK-NEXT: te.contract(%{{.*}}, %[[W]]) <(b0 = 2, m = 3, n = 4, k = 8 reduce), [(b0, m, k), (k, n)] -> [(b0, m, n)]> : (tensor<2x3x8xf32>, tensor<8x4xf32>) -> tensor<2x3x4xf32> loc("q proj")
func.func @product(%x: tensor<2x3x8xf32>) -> tensor<2x3x4xf32> {
  %w = onnx.Initializer #te.weight<[<"wq" : tensor<8x4xf32>, "model.bin", 0, 128, "">]> loc("wq")
  %0 = onnx.MatMul(%x, %w) : (tensor<2x3x8xf32>, tensor<8x4xf32>) -> tensor<2x3x4xf32> loc("q proj")
  func.return %0 : tensor<2x3x4xf32>
}

// Constants become part of the body, broadcasting part of the maps; x² is a product.
// CHECK-LABEL: @elementwise
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 2, d1 = 3), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = mul(x0, x0)} -> (t0)>}
// CHECK-NEXT: te.map(%{{.*}}, %{{.*}}) <(d0 = 2, d1 = 3), [(d0, d1), (d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>}
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 2, d1 = 3), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = const(0.5 : "float32"), t1 = mul(x0, t0)} -> (t1)>}
// CHECK-NEXT: func.return
func.func @elementwise(%x: tensor<2x3xf32>, %b: tensor<3xf32>) -> tensor<2x3xf32> {
  %two = onnx.Initializer dense<2.0> : tensor<f32>
  %half = onnx.Initializer dense<0.5> : tensor<1xf32>
  %0 = onnx.Pow(%x, %two) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %1 = onnx.Add(%0, %b) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %2 = onnx.Mul(%1, %half) : (tensor<2x3xf32>, tensor<1xf32>) -> tensor<2x3xf32>
  func.return %2 : tensor<2x3xf32>
}

// Views are affine maps; a reshape without a common refinement goes through the flat tensor.
// CHECK-LABEL: @views
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 2, d1 = 4, d2 = 16), [(d0, 16*d1 + d2)] -> [(d0, d1, d2)]>
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 4, d1 = 2, d2 = 16), [(d1, d0, d2)] -> [(d0, d1, d2)]>
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 4, d1 = 2, d2 = 8), [(d0, d1, d2 + 8)] -> [(d0, d1, d2)]>
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 4, d1 = 2, d2 = 8), [(d0, d1, d2)] -> [(16*d0 + 8*d1 + d2)]>
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 2, d1 = 32), [(32*d0 + d1)] -> [(d0, d1)]>
func.func @views(%x: tensor<2x64xf32>) -> tensor<2x32xf32> {
  %split = onnx.Initializer dense<[2, 4, 16]> : tensor<3xi64>
  %start = onnx.Initializer dense<8> : tensor<1xi64>
  %end = onnx.Initializer dense<9223372036854775807> : tensor<1xi64>
  %axis = onnx.Initializer dense<-1> : tensor<1xi64>
  %flat = onnx.Initializer dense<[64]> : tensor<1xi64>
  %two = onnx.Initializer dense<[2, -1]> : tensor<2xi64>
  %0 = onnx.Reshape(%x, %split) : (tensor<2x64xf32>, tensor<3xi64>) -> tensor<2x4x16xf32>
  %1 = onnx.Transpose(%0) {perm = array<i64: 1, 0, 2>} : (tensor<2x4x16xf32>) -> tensor<4x2x16xf32>
  %2 = onnx.Slice(%1, %start, %end, %axis) : (tensor<4x2x16xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4x2x8xf32>
  %3 = onnx.Reshape(%2, %flat) : (tensor<4x2x8xf32>, tensor<1xi64>) -> tensor<64xf32>
  %4 = onnx.Reshape(%3, %two) : (tensor<64xf32>, tensor<2xi64>) -> tensor<2x32xf32>
  func.return %4 : tensor<2x32xf32>
}

// CHECK-LABEL: @odd_reshape
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 4, d1 = 6), [(d0, d1)] -> [(6*d0 + d1)]>
// CHECK-NEXT: te.map(%{{.*}}) <(d0 = 6, d1 = 4), [(4*d0 + d1)] -> [(d0, d1)]>
func.func @odd_reshape(%x: tensor<4x6xf32>) -> tensor<6x4xf32> {
  %shape = onnx.Initializer dense<[6, 4]> : tensor<2xi64>
  %0 = onnx.Reshape(%x, %shape) : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<6x4xf32>
  func.return %0 : tensor<6x4xf32>
}

// A grouped convolution; its groups are a parallel dimension, its windows local.
// CHECK-LABEL: @conv
// CHECK-NEXT: te.contract(%{{.*}}) <(n = 1, g = 2, m = 3, o0 = 4, c = 2 reduce, k0 = 3 local), [(n, 2*g + c, 2*o0 + k0 - 1), (3*g + m, c, k0), (3*g + m)] -> [(n, 3*g + m, o0)]>
func.func @conv(%x: tensor<1x4x8xf32>, %w: tensor<6x2x3xf32>, %b: tensor<6xf32>) -> tensor<1x6x4xf32> {
  %0 = onnx.Conv(%x, %w, %b) {group = 2 : i64, strides = array<i64: 2>, pads = array<i64: 1, 1>} : (tensor<1x4x8xf32>, tensor<6x2x3xf32>, tensor<6xf32>) -> tensor<1x6x4xf32>
  func.return %0 : tensor<1x6x4xf32>
}

// Grouped queries share their keys by maps; the present keys are a concatenation.
// CHECK-LABEL: @attention
// CHECK-NEXT: te.concat
// CHECK-NEXT: te.concat
// CHECK-NEXT: te.attention(%{{.*}}) <(b = 1, h = 2, g = 2, s = 1, e = 8 local, d = 8 local, t = 6 reduce), [(b, 2*h + g, s, d), (b, h, t, d), (b, h, t, e)] -> [(b, 2*h + g, s, e)]>
func.func @attention(%q: tensor<1x4x1x8xf32>, %k: tensor<1x2x1x8xf32>, %v: tensor<1x2x1x8xf32>, %pk: tensor<1x2x5x8xf32>, %pv: tensor<1x2x5x8xf32>) -> (tensor<1x4x1x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>) {
  %0, %1, %2 = onnx.Attention(%q, %k, %v, none, %pk, %pv) : (tensor<1x4x1x8xf32>, tensor<1x2x1x8xf32>, tensor<1x2x1x8xf32>, none, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>) -> (tensor<1x4x1x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>)
  func.return %0, %1, %2 : tensor<1x4x1x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>
}

// An operator without a lowering goes through the body that ONNX defines for it.
// CHECK-LABEL: @function
// CHECK: te.reduce{{.*}} loc("mvn")
// CHECK-NOT: onnx.
func.func @function(%x: tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32> {
  %0 = onnx.MeanVarianceNormalization(%x) : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32> loc("mvn")
  func.return %0 : tensor<1x2x3x4xf32>
}
