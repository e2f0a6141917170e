// RUN: elk-opt %s -p convert-linalg-to-te | filecheck %s

// Named operations that are another spelling of a product or of a scalar operation at each element.

// CHECK-LABEL: @batch_matmul_transpose_a(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 2, d1 = 3, d2 = 4, d3 = 5 reduce), [(d0, d3, d1), (d0, d3, d2)] -> [(d0, d1, d2)]>
func.func @batch_matmul_transpose_a(%a: tensor<2x5x3xf32>, %b: tensor<2x5x4xf32>) -> tensor<2x3x4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %y = linalg.batch_matmul_transpose_a ins(%a, %b : tensor<2x5x3xf32>, tensor<2x5x4xf32>) outs(%z : tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  func.return %y : tensor<2x3x4xf32>
}

// CHECK-LABEL: @batch_matvec(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 2, d1 = 3, d2 = 5 reduce), [(d0, d1, d2), (d0, d2)] -> [(d0, d1)]>
func.func @batch_matvec(%a: tensor<2x3x5xf32>, %b: tensor<2x5xf32>) -> tensor<2x3xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %y = linalg.batch_matvec ins(%a, %b : tensor<2x3x5xf32>, tensor<2x5xf32>) outs(%z : tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}

// CHECK-LABEL: @dot(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 5 reduce), [(d0), (d0)] -> [()]>
func.func @dot(%a: tensor<5xf32>, %b: tensor<5xf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %y = linalg.dot ins(%a, %b : tensor<5xf32>, tensor<5xf32>) outs(%z : tensor<f32>) -> tensor<f32>
  func.return %y : tensor<f32>
}

// CHECK-LABEL: @matmul_transpose_a(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 3, d1 = 4, d2 = 5 reduce), [(d2, d0), (d2, d1)] -> [(d0, d1)]>
func.func @matmul_transpose_a(%a: tensor<5x3xf32>, %b: tensor<5x4xf32>) -> tensor<3x4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  %y = linalg.matmul_transpose_a ins(%a, %b : tensor<5x3xf32>, tensor<5x4xf32>) outs(%z : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @matmul_transpose_b(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 3, d1 = 4, d2 = 5 reduce), [(d0, d2), (d1, d2)] -> [(d0, d1)]>
func.func @matmul_transpose_b(%a: tensor<3x5xf32>, %b: tensor<4x5xf32>) -> tensor<3x4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  %y = linalg.matmul_transpose_b ins(%a, %b : tensor<3x5xf32>, tensor<4x5xf32>) outs(%z : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @matvec(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 3, d1 = 5 reduce), [(d0, d1), (d1)] -> [(d0)]>
func.func @matvec(%a: tensor<3x5xf32>, %b: tensor<5xf32>) -> tensor<3xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %y = linalg.matvec ins(%a, %b : tensor<3x5xf32>, tensor<5xf32>) outs(%z : tensor<3xf32>) -> tensor<3xf32>
  func.return %y : tensor<3xf32>
}

// CHECK-LABEL: @vecmat(
// CHECK-NEXT:    %{{.*}} = te.contract(%{{.*}}, %{{.*}}) <(d0 = 4, d1 = 5 reduce), [(d1), (d1, d0)] -> [(d0)]>
func.func @vecmat(%a: tensor<5xf32>, %b: tensor<5x4xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %y = linalg.vecmat ins(%a, %b : tensor<5xf32>, tensor<5x4xf32>) outs(%z : tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: @abs(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = abs(x0)} -> (t0)>}
func.func @abs(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.abs ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @ceil(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = ceil(x0)} -> (t0)>}
func.func @ceil(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.ceil ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @erf(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = erf(x0)} -> (t0)>}
func.func @erf(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.erf ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @floor(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = floor(x0)} -> (t0)>}
func.func @floor(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.floor ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @negf(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}
func.func @negf(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.negf ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @round(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = sign(x0), t1 = abs(x0), t2 = const(0.5 : "float32"), t3 = add(t1, t2), t4 = floor(t3), t5 = mul(t0, t4)} -> (t5)>}
func.func @round(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.round ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @rsqrt(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = rsqrt(x0)} -> (t0)>}
func.func @rsqrt(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.rsqrt ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @tanh(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>}
func.func @tanh(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.tanh ins(%a : tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @div(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}, %{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1), (d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = div(x0, x1)} -> (t0)>}
func.func @div(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.div ins(%a, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// CHECK-LABEL: @powf(
// CHECK-NEXT:    %{{.*}} = te.map(%{{.*}}, %{{.*}}) <(d0 = 3, d1 = 4), [(d0, d1), (d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = pow(x0, x1)} -> (t0)>}
func.func @powf(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.powf ins(%a, %b : tensor<3x4xf32>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}
