// RUN: elk-opt %s -p te-fuse-normalize --split-input-file | filecheck %s

// RMSNorm of f16 data: computed in f32, rounded before the weight is applied.
// CHECK-LABEL: @rms
// CHECK-NEXT: te.normalize(%x, %w) <(b = 2, d = 8 reduce), [(b, d), (d)] -> [(b, d)]>
// CHECK-SAME: {form = #te<norm_form rms>, epsilon = 1.000000e-05 : f64, affine = "scale", round_to = "float16"} : (tensor<2x8xf16>, tensor<8xf16>) -> tensor<2x8xf16>
// CHECK-NEXT: func.return
func.func @rms(%x: tensor<2x8xf16>, %w: tensor<8xf16>) -> tensor<2x8xf16> {
  %f = te.map(%x) <(b = 2, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<2x8xf16>) -> tensor<2x8xf32>
  %s = te.map(%f) <(b = 2, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = const(2.0 : "float32"), t1 = pow(x0, t0)} -> (t1)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %m = te.reduce(%s) <(b = 2, r = 8 reduce), [(b, r)] -> [(b, 0)]> {combiner = #te<combiner sum>, epilogue = #te.body<(x0) {t0 = const(8.0 : "float32"), t1 = div(x0, t0)} -> (t1)>} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %e = te.map(%m) <(b = 2), [(b, 0)] -> [(b, 0)]> {body = #te.body<(x0) {t0 = const(1.0e-5 : "float32"), t1 = add(x0, t0)} -> (t1)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %q = te.map(%e) <(b = 2), [(b, 0)] -> [(b, 0)]> {body = #te.body<(x0) {t0 = sqrt(x0)} -> (t0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %i = te.map(%q) <(b = 2), [(b, 0)] -> [(b, 0)]> {body = #te.body<(x0) {t0 = recip(x0)} -> (t0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %n = te.map(%f, %i) <(b = 2, d = 8), [(b, d), (b, 0)] -> [(b, d)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %h = te.map(%n) <(b = 2, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = cast(x0 : "float16")} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf16>
  %y = te.map(%w, %h) <(b = 2, d = 8), [(d), (b, d)] -> [(b, d)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return %y : tensor<2x8xf16>
}

// -----

// LayerNorm as division by the deviation, with weight and bias in one map.
// CHECK-LABEL: @layer
// CHECK-NEXT: te.normalize(%x, %w, %c) <(b = 2, d = 8 reduce), [(b, d), (d), (d)] -> [(b, d)]>
// CHECK-SAME: {form = #te<norm_form layer>, epsilon = 1.000000e-03 : f64, affine = "scale bias"}
// CHECK-NEXT: func.return
func.func @layer(%x: tensor<2x8xf32>, %w: tensor<8xf32>, %c: tensor<8xf32>) -> tensor<2x8xf32> {
  %u = te.reduce(%x) <(b = 2, r = 8 reduce), [(b, r)] -> [(b, 0)]> {combiner = #te<combiner sum>, epilogue = #te.body<(x0) {t0 = const(0.125 : "float32"), t1 = mul(x0, t0)} -> (t1)>} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %z = te.map(%x, %u) <(b = 2, d = 8), [(b, d), (b, 0)] -> [(b, d)]> {body = #te.body<(x0, x1) {t0 = sub(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %s = te.map(%z) <(b = 2, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = mul(x0, x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %m = te.reduce(%s) <(b = 2, r = 8 reduce), [(b, r)] -> [(b, 0)]> {combiner = #te<combiner sum>, epilogue = #te.body<(x0) {t0 = const(8.0 : "float32"), t1 = div(x0, t0)} -> (t1)>} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %q = te.map(%m) <(b = 2), [(b, 0)] -> [(b, 0)]> {body = #te.body<(x0) {t0 = const(0.001 : "float32"), t1 = add(x0, t0), t2 = sqrt(t1)} -> (t2)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %n = te.map(%z, %q) <(b = 2, d = 8), [(b, d), (b, 0)] -> [(b, d)]> {body = #te.body<(x0, x1) {t0 = div(x0, x1)} -> (t0)>} : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %y = te.map(%n, %w, %c) <(b = 2, d = 8), [(b, d), (d), (d)] -> [(b, d)]> {body = #te.body<(x0, x1, x2) {t0 = mul(x0, x1), t1 = add(t0, x2)} -> (t1)>} : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}

// -----

// The squares of one tensor say nothing about another.
// CHECK-LABEL: @other
// CHECK-NOT: te.normalize
func.func @other(%x: tensor<2x8xf32>, %z: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %s = te.map(%z) <(b = 2, d = 8), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = mul(x0, x0)} -> (t0)>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %m = te.reduce(%s) <(b = 2, r = 8 reduce), [(b, r)] -> [(b, 0)]> {combiner = #te<combiner sum>, epilogue = #te.body<(x0) {t0 = const(8.0 : "float32"), t1 = div(x0, t0)} -> (t1)>} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %y = te.map(%x, %m) <(b = 2, d = 8), [(b, d), (b, 0)] -> [(b, d)]> {body = #te.body<(x0, x1) {t0 = sqrt(x1), t1 = div(x0, t0)} -> (t1)>} : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}
