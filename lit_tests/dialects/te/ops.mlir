// RUN: elk-opt %s | elk-opt | filecheck %s

// CHECK: te.global weight @w : tensor<8x4xf32> = dense<5.000000e-01> : tensor<8x4xf32>
te.global weight @w : tensor<8x4xf32> = dense<5.000000e-01> : tensor<8x4xf32>
// CHECK: te.global state @cache stack 2 : tensor<1x6x4xf32> {axis = 1 : i64, length = 5 : i64, inputs = ["past.0", "past.1"], outputs = ["present.0", "present.1"]}
te.global state @cache stack 2 : tensor<1x6x4xf32> {axis = 1 : i64, length = 5 : i64, inputs = ["past.0", "past.1"], outputs = ["present.0", "present.1"]}

// CHECK-LABEL: @products
// CHECK: te.contract(%{{.*}}, %{{.*}}) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> :
// CHECK: te.contract(%{{.*}}) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n), (n)] -> [(n, m)]> {epilogue = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = cast(t0 : "float16")} -> (t1)>}
func.func @products(%x: tensor<2x8xf32>, %b: tensor<4xf32>) -> (tensor<2x4xf32>, tensor<4x2xf16>) {
  %w = te.load @w : tensor<8x4xf32>
  %0 = te.contract(%x, %w) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = te.contract(%x, %w, %b) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n), (n)] -> [(n, m)]> {epilogue = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = cast(t0 : "float16")} -> (t1)>} : (tensor<2x8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> tensor<4x2xf16>
  func.return %0, %1 : tensor<2x4xf32>, tensor<4x2xf16>
}

// A window with stride and padding; a slice; a merge of two axes; constants that no literal spells.
// CHECK-LABEL: @maps
// CHECK: te.contract(%{{.*}}, %{{.*}}) <(o = 3, f = 2, c = 4 reduce, k = 3 local), [(c, 2*o + k - 1), (f, c, k)] -> [(f, o)]>
// CHECK: te.map(%{{.*}}) <(h = 2, d = 3), [(-3*h - d + 6)] -> [(3*h + d)]> {body = #te.body<(x0) {t0 = const("-inf" : "float32"), t1 = max(x0, t0)} -> (t1)>}
func.func @maps(%x: tensor<4x6xf32>, %w: tensor<2x4x3xf32>, %y: tensor<7xf32>) -> (tensor<2x3xf32>, tensor<6xf32>) {
  %0 = te.contract(%x, %w) <(o = 3, f = 2, c = 4 reduce, k = 3 local), [(c, 2*o + k - 1), (f, c, k)] -> [(f, o)]> : (tensor<4x6xf32>, tensor<2x4x3xf32>) -> tensor<2x3xf32>
  %1 = te.map(%y) <(h = 2, d = 3), [(6 - 3*h - d)] -> [(3*h + d)]> {body = #te.body<(x0) {t0 = const("-inf" : "float32"), t1 = max(x0, t0)} -> (t1)>} : (tensor<7xf32>) -> tensor<6xf32>
  func.return %0, %1 : tensor<2x3xf32>, tensor<6xf32>
}

// CHECK-LABEL: @phases
// CHECK: te.softmax(%{{.*}}) <(m = 2, n = 8 reduce), [(m, n)] -> [(m, n)]> {log = true}
// CHECK: te.normalize(%{{.*}}, %{{.*}}) <(m = 2, n = 8 reduce), [(m, n), (n)] -> [(m, n)]> {form = #te<norm_form rms>, epsilon = 1.000000e-05 : f64, affine = "scale"}
// CHECK: te.reduce(%{{.*}}) <(m = 2, n = 8 reduce), [(m, n)] -> [(m)]> {combiner = #te<combiner max>}
func.func @phases(%x: tensor<2x8xf32>, %g: tensor<8xf32>) -> tensor<2xf32> {
  %0 = te.softmax(%x) <(m = 2, n = 8 reduce), [(m, n)] -> [(m, n)]> {log = true} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = te.normalize(%0, %g) <(m = 2, n = 8 reduce), [(m, n), (n)] -> [(m, n)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %2 = te.reduce(%1) <(m = 2, n = 8 reduce), [(m, n)] -> [(m)]> {combiner = #te<combiner max>} : (tensor<2x8xf32>) -> tensor<2xf32>
  func.return %2 : tensor<2xf32>
}

// CHECK-LABEL: @attend
// CHECK: te.attention(%{{.*}}, %{{.*}}, %{{.*}}) <(h = 2, g = 2, s = 1, e = 4 local, d = 4 local, t = 6 reduce), [(2*h + g, s, d), (h, t, d), (h, t, e)] -> [(2*h + g, s, e)]> {scale = 5.000000e-01 : f64}
func.func @attend(%q: tensor<4x1x4xf32>, %k: tensor<2x6x4xf32>, %v: tensor<2x6x4xf32>) -> tensor<4x1x4xf32> {
  %0 = te.attention(%q, %k, %v) <(h = 2, g = 2, s = 1, e = 4 local, d = 4 local, t = 6 reduce), [(2*h + g, s, d), (h, t, d), (h, t, e)] -> [(2*h + g, s, e)]> {scale = 0.5 : f64} : (tensor<4x1x4xf32>, tensor<2x6x4xf32>, tensor<2x6x4xf32>) -> tensor<4x1x4xf32>
  func.return %0 : tensor<4x1x4xf32>
}

// CHECK-LABEL: @layers
// CHECK: te.repeat 2 iter(%{{.*}}) {
// CHECK: te.append %{{.*}} to @cache[%{{.*}}] : tensor<1x1x4xf32> -> tensor<1x6x4xf32>
// CHECK: te.yield %{{.*}} : tensor<1x1x4xf32>
func.func @layers(%x: tensor<1x1x4xf32>) -> tensor<1x1x4xf32> {
  %0 = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x1x4xf32>):
    %full = te.append %h to @cache[%l] : tensor<1x1x4xf32> -> tensor<1x6x4xf32>
    %s = te.reduce(%full) <(b = 1, d = 4, t = 6 reduce), [(b, t, d)] -> [(b, 0, d)]> {combiner = #te<combiner sum>} : (tensor<1x6x4xf32>) -> tensor<1x1x4xf32>
    te.yield %s : tensor<1x1x4xf32>
  } : (tensor<1x1x4xf32>) -> tensor<1x1x4xf32>
  func.return %0 : tensor<1x1x4xf32>
}
