// RUN: elk-opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @no_step(%x: tensor<8xf32>) {
  // CHECK: te.quantize takes a tensor and a step
  %q = te.quantize(%x) <(d0 = 8), [(d0)] -> [(d0)]> : (tensor<8xf32>) -> tensor<8xi4>
  func.return
}

// -----

func.func @zero(%x: tensor<8xf32>) {
  // CHECK: zero point 9 is not in int4
  %q = te.quantize(%x) <(d0 = 8), [(d0)] -> [(d0)]> {step = 0.5 : f64, zero = 9 : i64} : (tensor<8xf32>) -> tensor<8xi4>
  func.return
}

// -----

func.func @step(%x: tensor<8xf32>) {
  // CHECK: a step of -0.5 is not positive
  %q = te.quantize(%x) <(d0 = 8), [(d0)] -> [(d0)]> {step = -0.5 : f64} : (tensor<8xf32>) -> tensor<8xi4>
  func.return
}

// -----

func.func @types(%x: tensor<8xi4>) {
  // CHECK: te.dequantize from int4 to int8
  %q = te.dequantize(%x) <(d0 = 8), [(d0)] -> [(d0)]> {step = 0.5 : f64} : (tensor<8xi4>) -> tensor<8xi8>
  func.return
}

// -----

func.func @zeros(%x: tensor<2x8xf32>, %w: tensor<8x3xf32>) {
  // CHECK: 2 zero points for 2 factors of float32
  %y = te.contract(%x, %w) <(m = 2, n = 3, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> {zeros = array<i64: 5, 0>} : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  func.return
}

// -----

// CHECK: @k has 2 layers, its steps are of shape [3]
te.global state @k stack 2 : tensor<4x8xi4> {axis = 0 : i64, length = 3 : i64, steps = dense<1.0> : tensor<3xf32>}
