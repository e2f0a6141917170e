// RUN: elk-opt %s -p te-fuse-elementwise --split-input-file --print-debuginfo | filecheck %s
// RUN: elk-opt %s -p te-fuse-elementwise{epilogue=false} --split-input-file | filecheck %s --check-prefix=MAPS

// SiLU(gate) · up: the whole of it behind the second product, which keeps every node's name.
// CHECK-LABEL: @swiglu
// CHECK: %[[G:.*]] = te.contract(%x, %g)
// CHECK-NEXT: te.contract(%x, %u, %[[G]]) <(b = 2, n = 8, k = 4 reduce), [(b, k), (k, n), (b, n)] -> [(b, n)]> {epilogue = #te.body<(x0, x1) {t0 = sigmoid(x1), t1 = mul(x1, t0), t2 = mul(t1, x0)} -> (t2)>}
// CHECK-SAME: loc(fused["up", "sigmoid", "silu", "mul"])
// CHECK-NEXT: func.return
// MAPS-LABEL: @swiglu
// MAPS: te.contract
// MAPS-NEXT: te.contract
// MAPS-NEXT: te.map({{.*}}, {{.*}}) {{.*}} {t0 = sigmoid(x0), t1 = mul(x0, t0), t2 = mul(t1, x1)}
func.func @swiglu(%x: tensor<2x4xf32>, %g: tensor<4x8xf32>, %u: tensor<4x8xf32>) -> tensor<2x8xf32> {
  %a = te.contract(%x, %g) <(b = 2, n = 8, k = 4 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32> loc("gate")
  %s = te.map(%a) <(b = 2, n = 8), [(b, n)] -> [(b, n)]> {body = #te.body<(x0) {t0 = sigmoid(x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32> loc("sigmoid")
  %t = te.map(%a, %s) <(b = 2, n = 8), [(b, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32> loc("silu")
  %b = te.contract(%x, %u) <(b = 2, n = 8, k = 4 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32> loc("up")
  %y = te.map(%t, %b) <(b = 2, n = 8), [(b, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32> loc("mul")
  func.return %y : tensor<2x8xf32>
}

// -----

// A residual addition in f16: the sum is rounded before it, as it was.
// CHECK-LABEL: @residual
// CHECK-NEXT: te.contract(%x, %w, %h) {{.*}} {epilogue = #te.body<(x0, x1) {t0 = cast(x0 : "float16"), t1 = add(x1, t0)} -> (t1)>}
// CHECK-NEXT: func.return
func.func @residual(%x: tensor<2x4xf16>, %w: tensor<4x8xf16>, %h: tensor<2x8xf16>) -> tensor<2x8xf16> {
  %p = te.contract(%x, %w) <(b = 2, n = 8, k = 4 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x4xf16>, tensor<4x8xf16>) -> tensor<2x8xf16>
  %y = te.map(%h, %p) <(b = 2, n = 8), [(b, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return %y : tensor<2x8xf16>
}

// -----

// What is broadcast, or read by several, is computed once, unless it is cheap.
// CHECK-LABEL: @kept
// CHECK-NEXT: %[[E:.*]] = te.map(%x) {{.*}}exp
// CHECK-NEXT: %[[A:.*]] = te.map(%[[E]], %y) {{.*}}mul
// CHECK-NEXT: %[[B:.*]] = te.map(%y) {{.*}}{t0 = neg(x0), t1 = exp(t0)}
// CHECK-NEXT: %[[C:.*]] = te.map(%y) {{.*}}{t0 = neg(x0), t1 = tanh(t0)}
// CHECK-NEXT: func.return %[[A]], %[[B]], %[[C]]
func.func @kept(%x: tensor<1x8xf32>, %y: tensor<2x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>) {
  %e = te.map(%x) <(n = 8), [(0, n)] -> [(0, n)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<1x8xf32>) -> tensor<1x8xf32>
  %a = te.map(%e, %y) <(b = 2, n = 8), [(0, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<1x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %m = te.map(%y) <(b = 2, n = 8), [(b, n)] -> [(b, n)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %c = te.map(%m) <(b = 2, n = 8), [(b, n)] -> [(b, n)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %d = te.map(%m) <(b = 2, n = 8), [(b, n)] -> [(b, n)]> {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %a, %c, %d : tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>
}

// -----

// Modulation and residual addition behind a normalisation are operands of it.
// CHECK-LABEL: @modulated
// CHECK-NEXT: te.normalize(%x, %w, %s, %h) <(b = 2, n = 8 reduce), [(b, n), (n), (b, n), (b, n)] -> [(b, n)]> {form = #te<norm_form rms>, epsilon = 1.000000e-05 : f64, affine = "scale scale bias"}
// CHECK-NEXT: func.return
func.func @modulated(%x: tensor<2x8xf32>, %w: tensor<8xf32>, %s: tensor<2x8xf32>, %h: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %n = te.normalize(%x, %w) <(b = 2, n = 8 reduce), [(b, n), (n)] -> [(b, n)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %m = te.map(%n, %s) <(b = 2, n = 8), [(b, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %y = te.map(%h, %m) <(b = 2, n = 8), [(b, n), (b, n)] -> [(b, n)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}
