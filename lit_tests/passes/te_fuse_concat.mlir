// RUN: elk-opt %s -p te-fuse-concat --split-input-file | filecheck %s

// The halves of a rotary embedding: one read with a falling index, and a sign a half.
// CHECK: te.global weight @factors : tensor<2xf32> = dense<[-1.000000e+00, 1.000000e+00]>
// CHECK-LABEL: @rotary
// CHECK-NEXT: te.load @factors
// CHECK-NEXT: te.map(%x, %factors) <(b = 3, d0 = 2, d1 = 8), [(b, -8*d0 + d1 + 8), (d0)] -> [(b, 8*d0 + d1)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>}
// CHECK-NEXT: func.return
func.func @rotary(%x: tensor<3x16xf32>) -> tensor<3x16xf32> {
  %a = te.map(%x) <(b = 3, d = 8), [(b, d + 8)] -> [(b, d)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<3x16xf32>) -> tensor<3x8xf32>
  %b = te.map(%x) <(b = 3, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3x16xf32>) -> tensor<3x8xf32>
  %c = te.concat(%a, %b) <(b = 3, d = 16), [(b, d), (b, d - 8)] -> [(b, d)]> {dim = 1 : i64} : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x16xf32>
  func.return %c : tensor<3x16xf32>
}

// -----

// A table read twice.
// CHECK-LABEL: @doubled
// CHECK-NEXT: te.map(%x) <(d0 = 2, d1 = 8), [(d1)] -> [(8*d0 + d1)]> {body = #te.body<(x0) {} -> (x0)>}
// CHECK-NEXT: func.return
func.func @doubled(%x: tensor<8xf32>) -> tensor<16xf32> {
  %c = te.concat(%x, %x) <(d = 16), [(d), (d - 8)] -> [(d)]> {dim = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  func.return %c : tensor<16xf32>
}

// -----

// Halves that are computed apart.
// CHECK-LABEL: @apart
// CHECK-NEXT: te.load @factors
// CHECK-NEXT: te.map(%x, %c, %x, %s, %factors) <(d0 = 2, d1 = 8), [(8*d0 + d1), (d1), (-8*d0 + d1 + 8), (d1), (d0)] -> [(8*d0 + d1)]>
// CHECK-SAME: {t0 = mul(x0, x1), t1 = mul(x2, x3), t2 = mul(t1, x4), t3 = add(t0, t2)}
// CHECK-NEXT: func.return
func.func @apart(%x: tensor<16xf32>, %c: tensor<8xf32>, %s: tensor<8xf32>) -> tensor<16xf32> {
  %a, %b = te.map(%x, %x, %c, %s) <(d = 8), [(d), (d + 8), (d), (d)] -> [(d), (d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = mul(x0, x2), t1 = mul(x1, x3), t2 = sub(t0, t1), t3 = mul(x0, x3), t4 = mul(x1, x2), t5 = add(t3, t4)} -> (t2, t5)>} : (tensor<16xf32>, tensor<16xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  %y = te.concat(%a, %b) <(d = 16), [(d), (d - 8)] -> [(d)]> {dim = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  func.return %y : tensor<16xf32>
}

// -----

// Two tensors stay a concat.
// CHECK-LABEL: @two
// CHECK-NEXT: te.concat
func.func @two(%x: tensor<8xf32>, %z: tensor<8xf32>) -> tensor<16xf32> {
  %c = te.concat(%x, %z) <(d = 16), [(d), (d - 8)] -> [(d)]> {dim = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  func.return %c : tensor<16xf32>
}
