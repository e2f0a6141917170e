// RUN: elk-opt %s -p 'te-fold-quantization' | filecheck %s

te.global weight @w : tensor<3x2x3x3xi8> = dense<1> : tensor<3x2x3x3xi8>
te.global weight @s : tensor<3xf32> = dense<[0.5, 0.25, 0.125]> : tensor<3xf32>
te.global weight @zero : tensor<3xi8> = dense<0> : tensor<3xi8>
te.global weight @table : tensor<16x8xui8> = dense<7> : tensor<16x8xui8>

// A convolution: its padding reads the zero point, steps by channel go to the epilogue.
// CHECK-LABEL: func.func @conv
func.func @conv(%q: tensor<1x2x8x8xui8>) -> tensor<1x3x8x8xf32> {
  %w = te.load @w : tensor<3x2x3x3xi8>
  %s = te.load @s : tensor<3xf32>
  %zero = te.load @zero : tensor<3xi8>
  %x = te.map(%q) <(d0 = 1, d1 = 2, d2 = 8, d3 = 8), [(d0, d1, d2, d3)] -> [(d0, d1, d2, d3)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32"), t1 = const(133.0 : "float32"), t2 = sub(t0, t1), t3 = const(0.5 : "float32"), t4 = mul(t2, t3)} -> (t4)>} : (tensor<1x2x8x8xui8>) -> tensor<1x2x8x8xf32>
  %v = te.map(%w, %s, %zero) <(d0 = 3, d1 = 2, d2 = 3, d3 = 3), [(d0, d1, d2, d3), (d0), (d0)] -> [(d0, d1, d2, d3)]> {body = #te.body<(x0, x1, x2) {t0 = cast(x0 : "float32"), t1 = cast(x2 : "float32"), t2 = sub(t0, t1), t3 = mul(t2, x1)} -> (t3)>} : (tensor<3x2x3x3xi8>, tensor<3xf32>, tensor<3xi8>) -> tensor<3x2x3x3xf32>
  // CHECK: te.contract(%q, %w, %s) <(o = 3, y = 8, x = 8, c = 2 reduce, i = 3 reduce, j = 3 reduce), [(0, c, y + i - 1, x + j - 1), (o, c, i, j), (o)] -> [(0, o, y, x)]>
  // CHECK-SAME: epilogue = #te.body<(x0, x1) {t0 = const(0.5 : "float32"), t1 = cast(x0 : "float32"), t2 = mul(t0, x1), t3 = mul(t1, t2)} -> (t3)>, zeros = array<i64: 133, 0>
  // CHECK-SAME: (tensor<1x2x8x8xui8>, tensor<3x2x3x3xi8>, tensor<3xf32>) -> tensor<1x3x8x8xf32>
  %y = te.contract(%x, %v) <(o = 3, y = 8, x = 8, c = 2 reduce, i = 3 reduce, j = 3 reduce), [(0, c, y + i - 1, x + j - 1), (o, c, i, j)] -> [(0, o, y, x)]> : (tensor<1x2x8x8xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x8x8xf32>
  func.return %y : tensor<1x3x8x8xf32>
}

// Rows are picked as integers; one number behind the table stands for each.
// CHECK-LABEL: func.func @rows
func.func @rows(%i: tensor<4xi64>) -> tensor<4x8xf32> {
  %t = te.load @table : tensor<16x8xui8>
  %d = te.map(%t) <(d0 = 16, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32"), t1 = const(0.25 : "float32"), t2 = mul(t0, t1)} -> (t2)>} : (tensor<16x8xui8>) -> tensor<16x8xf32>
  // CHECK: %[[R:.*]] = te.gather(%t, %i) {{.*}} : (tensor<16x8xui8>, tensor<4xi64>) -> tensor<4x8xui8>
  // CHECK: te.map(%[[R]]) {{.*}} : (tensor<4x8xui8>) -> tensor<4x8xf32>
  %r = te.gather(%d, %i) <(n = 4, c = 8, rows = 16 reduce), [(rows, c), (n)] -> [(n, c)]> : (tensor<16x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// Weights only: the product stays one of numbers.
// CHECK-LABEL: func.func @weights_only
func.func @weights_only(%x: tensor<2x8xf32>, %q: tensor<8x4xi4>) -> tensor<2x4xf32> {
  %w = te.dequantize(%q) <(d0 = 8, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {step = 0.5 : f64} : (tensor<8x4xi4>) -> tensor<8x4xf32>
  // CHECK: te.contract(%x, {{.*}}) {{.*}} : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %y = te.contract(%x, %w) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}
