// RUN: elk-opt %s | elk-opt | filecheck %s

// CHECK: te.global state @k stack 2 : tensor<4x8xi4> {{.*}} steps = dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>}
te.global state @k stack 2 : tensor<4x8xi4> {axis = 0 : i64, length = 3 : i64, inputs = ["a", "b"], outputs = ["c", "d"], steps = dense<[1.0, 2.0]> : tensor<2xf32>}

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<2x8xf32>, %s: tensor<2xf32>, %w: tensor<8x3xi4>) -> tensor<2x3xi32> {
  // CHECK: te.quantize(%x) {{.*}} {step = 1.000000e-01 : f64, zero = 5 : i64} : (tensor<2x8xf32>) -> tensor<2x8xui4>
  %q = te.quantize(%x) <(d0 = 2, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {step = 0.1 : f64, zero = 5 : i64} : (tensor<2x8xf32>) -> tensor<2x8xui4>
  // CHECK: te.quantize(%x, %s) <(d0 = 2, d1 = 8), [(d0, d1), (d0)] -> [(d0, d1)]>
  %t = te.quantize(%x, %s) <(d0 = 2, d1 = 8), [(d0, d1), (d0)] -> [(d0, d1)]> : (tensor<2x8xf32>, tensor<2xf32>) -> tensor<2x8xi8>
  // CHECK: te.dequantize
  %d = te.dequantize(%t, %s) <(d0 = 2, d1 = 8), [(d0, d1), (d0)] -> [(d0, d1)]> : (tensor<2x8xi8>, tensor<2xf32>) -> tensor<2x8xf32>
  // CHECK: zeros = array<i64: 5, 0>
  %y = te.contract(%q, %w) <(m = 2, n = 3, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> {zeros = array<i64: 5, 0>} : (tensor<2x8xui4>, tensor<8x3xi4>) -> tensor<2x3xi32>
  func.return %y : tensor<2x3xi32>
}
