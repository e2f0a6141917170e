// RUN: elk-opt %s -p te-fuse-attention --split-input-file | filecheck %s

// Scales on both sides, keys transposed by a view, a mask, a guard against NaN.
// CHECK-LABEL: @sdpa
// CHECK-NEXT: te.attention(%q, %k, %v, %m) <(b = 2, h = 4, m = 3, n = 16 local, s = 8 reduce, d = 16 local), [(b, h, m, d), (b, h, s, d), (b, h, s, n), (b, 0, m, s)] -> [(b, h, m, n)]> {scale = 2.500000e-01 : f64}
// CHECK-NEXT: func.return
func.func @sdpa(%q: tensor<2x4x3x16xf32>, %k: tensor<2x4x8x16xf32>, %v: tensor<2x4x8x16xf32>, %m: tensor<2x1x3x8xf32>) -> tensor<2x4x3x16xf32> {
  %kt = te.map(%k) <(b = 2, h = 4, d = 16, s = 8), [(b, h, s, d)] -> [(b, h, d, s)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x4x8x16xf32>) -> tensor<2x4x16x8xf32>
  %ks = te.map(%kt) <(b = 2, h = 4, d = 16, s = 8), [(b, h, d, s)] -> [(b, h, d, s)]> {body = #te.body<(x0) {t0 = const(0.5 : "float32"), t1 = mul(x0, t0)} -> (t1)>} : (tensor<2x4x16x8xf32>) -> tensor<2x4x16x8xf32>
  %qs = te.map(%q) <(b = 2, h = 4, m = 3, d = 16), [(b, h, m, d)] -> [(b, h, m, d)]> {body = #te.body<(x0) {t0 = const(0.5 : "float32"), t1 = mul(x0, t0)} -> (t1)>} : (tensor<2x4x3x16xf32>) -> tensor<2x4x3x16xf32>
  %s = te.contract(%qs, %ks) <(b = 2, h = 4, m = 3, n = 8, k = 16 reduce), [(b, h, m, k), (b, h, k, n)] -> [(b, h, m, n)]> : (tensor<2x4x3x16xf32>, tensor<2x4x16x8xf32>) -> tensor<2x4x3x8xf32>
  %a = te.map(%s, %m) <(b = 2, h = 4, m = 3, n = 8), [(b, h, m, n), (b, 0, m, n)] -> [(b, h, m, n)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x4x3x8xf32>, tensor<2x1x3x8xf32>) -> tensor<2x4x3x8xf32>
  %p = te.softmax(%a) <(b = 2, h = 4, m = 3, n = 8 reduce), [(b, h, m, n)] -> [(b, h, m, n)]> : (tensor<2x4x3x8xf32>) -> tensor<2x4x3x8xf32>
  %t = te.map(%p) <(b = 2, h = 4, m = 3, n = 8), [(b, h, m, n)] -> [(b, h, m, n)]> {body = #te.body<(x0) {t0 = isnan(x0)} -> (t0)>} : (tensor<2x4x3x8xf32>) -> tensor<2x4x3x8xi1>
  %g = te.map(%t, %p) <(b = 2, h = 4, m = 3, n = 8), [(b, h, m, n), (b, h, m, n)] -> [(b, h, m, n)]> {body = #te.body<(x0, x1) {t0 = const(0.0 : "float32"), t1 = select(x0, t0, x1)} -> (t1)>} : (tensor<2x4x3x8xi1>, tensor<2x4x3x8xf32>) -> tensor<2x4x3x8xf32>
  %y = te.contract(%g, %v) <(b = 2, h = 4, m = 3, n = 16, s = 8 reduce), [(b, h, m, s), (b, h, s, n)] -> [(b, h, m, n)]> : (tensor<2x4x3x8xf32>, tensor<2x4x8x16xf32>) -> tensor<2x4x3x16xf32>
  func.return %y : tensor<2x4x3x16xf32>
}

// -----

// Grouped queries: repeated keys and values are read where they are. A soft cap, and a condition.
// CHECK-LABEL: @grouped
// CHECK-NEXT: te.attention(%q, %k, %v, %c) <(h0 = 2, h1 = 3, n = 16 local, s = 8 reduce, d = 16 local), [(3*h0 + h1, d), (h0, s, d), (h0, s, n), (s)] -> [(3*h0 + h1, n)]> {scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64}
// CHECK-SAME: tensor<8xi1>
// CHECK-NEXT: func.return
func.func @grouped(%q: tensor<6x16xf32>, %k: tensor<2x8x16xf32>, %v: tensor<2x8x16xf32>, %c: tensor<8xi1>) -> tensor<6x16xf32> {
  %kr = te.map(%k) <(h = 2, g = 3, s = 8, d = 16), [(h, s, d)] -> [(3*h + g, s, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x8x16xf32>) -> tensor<6x8x16xf32>
  %vr = te.map(%v) <(h = 2, g = 3, s = 8, d = 16), [(h, s, d)] -> [(3*h + g, s, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x8x16xf32>) -> tensor<6x8x16xf32>
  %s = te.contract(%q, %kr) <(h = 6, s = 8, d = 16 reduce), [(h, d), (h, s, d)] -> [(h, s)]> : (tensor<6x16xf32>, tensor<6x8x16xf32>) -> tensor<6x8xf32>
  %a = te.map(%s, %c) <(h = 6, s = 8), [(h, s), (s)] -> [(h, s)]> {body = #te.body<(x0, x1) {t0 = const(4.0 : "float32"), t1 = div(x0, t0), t2 = const(50.0 : "float32"), t3 = div(t1, t2), t4 = tanh(t3), t5 = mul(t2, t4), t6 = const("-inf" : "float32"), t7 = select(x1, t5, t6)} -> (t7)>} : (tensor<6x8xf32>, tensor<8xi1>) -> tensor<6x8xf32>
  %p = te.softmax(%a) <(h = 6, s = 8 reduce), [(h, s)] -> [(h, s)]> : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %y = te.contract(%p, %vr) <(h = 6, n = 16, s = 8 reduce), [(h, s), (h, s, n)] -> [(h, n)]> : (tensor<6x8xf32>, tensor<6x8x16xf32>) -> tensor<6x16xf32>
  func.return %y : tensor<6x16xf32>
}

// -----

// A mask under the soft cap is no attention.
// CHECK-LABEL: @under
// CHECK-NOT: te.attention
func.func @under(%q: tensor<6x16xf32>, %k: tensor<6x8x16xf32>, %v: tensor<6x8x16xf32>, %m: tensor<8xf32>) -> tensor<6x16xf32> {
  %s = te.contract(%q, %k) <(h = 6, s = 8, d = 16 reduce), [(h, d), (h, s, d)] -> [(h, s)]> : (tensor<6x16xf32>, tensor<6x8x16xf32>) -> tensor<6x8xf32>
  %a = te.map(%s, %m) <(h = 6, s = 8), [(h, s), (s)] -> [(h, s)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = const(50.0 : "float32"), t2 = div(t0, t1), t3 = tanh(t2), t4 = mul(t3, t1)} -> (t4)>} : (tensor<6x8xf32>, tensor<8xf32>) -> tensor<6x8xf32>
  %p = te.softmax(%a) <(h = 6, s = 8 reduce), [(h, s)] -> [(h, s)]> : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %y = te.contract(%p, %v) <(h = 6, n = 16, s = 8 reduce), [(h, s), (h, s, n)] -> [(h, n)]> : (tensor<6x8xf32>, tensor<6x8x16xf32>) -> tensor<6x16xf32>
  func.return %y : tensor<6x16xf32>
}
