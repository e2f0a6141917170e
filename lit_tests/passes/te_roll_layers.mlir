// RUN: elk-opt %s -p te-roll-layers --split-input-file | filecheck %s

// Three layers: weights on disk and constants are stacked, states too; what the layers share (%m)
// stays outside, and the last norm behind the loop.
// CHECK: te.global weight @layers.w.kernel stack 3 : tensor<4x4xf32> = #te.weight<[<"w0" : {{.*}}>, <"w1" : {{.*}}>, <"w2" : {{.*}}>], ["transpose 1 0", "stack"]>
// CHECK-NEXT: te.global state @cache.out stack 3 : tensor<3x4xf32> {axis = 0 : i64, length = 2 : i64, inputs = ["i0", "i1", "i2"], outputs = ["o0", "o1", "o2"]}
// CHECK-NEXT: te.global weight @layers.bias stack 3 : tensor<4xf32> = dense<{{\[\[}}1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00], [2.000000e+00, {{.*}}], [3.000000e+00, {{.*}}]]> : tensor<3x4xf32>
// CHECK-LABEL: @main
// CHECK-NEXT: te.load @table
// CHECK-NEXT: %rows = te.gather
// CHECK-NEXT: %m = te.map(%x) {{.*}}exp
// CHECK-NEXT: te.repeat 3 iter(%rows) {
// CHECK-NEXT: ^{{.*}}(%layer: index, %[[H:.*]]: tensor<1x4xf32>):
// CHECK-NEXT: %[[W:.*]] = te.load @layers.w.kernel[%layer] : tensor<4x4xf32>
// CHECK-NEXT: %[[P:.*]] = te.contract(%[[H]], %[[W]])
// CHECK-NEXT: %[[A:.*]] = te.append %[[P]] to @cache.out[%layer]
// CHECK-NEXT: %[[S:.*]] = te.reduce(%[[A]])
// CHECK-NEXT: %[[B:.*]] = te.load @layers.bias[%layer] : tensor<4xf32>
// CHECK-NEXT: %[[R:.*]] = te.map(%[[H]], %[[S]], %[[B]], %m)
// CHECK-NEXT: te.yield %[[R]]
// CHECK-NEXT: }
// CHECK-NEXT: te.map({{.*}}) {{.*}}tanh
// CHECK-NEXT: func.return
te.global weight @table : tensor<8x4xf32> = #te.weight<[<"table" : tensor<8x4xf32>, "none.bin", 0, 128, "">]>
te.global weight @layers.0.w.kernel : tensor<4x4xf32> = #te.weight<[<"w0" : tensor<4x4xf32>, "none.bin", 128, 64, "">], ["transpose 1 0"]>
te.global weight @layers.1.w.kernel : tensor<4x4xf32> = #te.weight<[<"w1" : tensor<4x4xf32>, "none.bin", 192, 64, "">], ["transpose 1 0"]>
te.global weight @layers.2.w.kernel : tensor<4x4xf32> = #te.weight<[<"w2" : tensor<4x4xf32>, "none.bin", 256, 64, "">], ["transpose 1 0"]>
te.global weight @layers.0.bias : tensor<4xf32> = dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
te.global weight @layers.1.bias : tensor<4xf32> = dense<[2.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
te.global weight @layers.2.bias : tensor<4xf32> = dense<[3.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
te.global state @cache.0.out : tensor<3x4xf32> {axis = 0 : i64, length = 2 : i64, inputs = ["i0"], outputs = ["o0"]}
te.global state @cache.1.out : tensor<3x4xf32> {axis = 0 : i64, length = 2 : i64, inputs = ["i1"], outputs = ["o1"]}
te.global state @cache.2.out : tensor<3x4xf32> {axis = 0 : i64, length = 2 : i64, inputs = ["i2"], outputs = ["o2"]}
func.func @main(%ids: tensor<1xi64>, %x: tensor<4xf32>) -> tensor<1x4xf32> {
  %t = te.load @table : tensor<8x4xf32>
  %rows = te.gather(%t, %ids) <(i = 1, d = 4, r = 8 reduce), [(r, d), (i)] -> [(i, d)]> : (tensor<8x4xf32>, tensor<1xi64>) -> tensor<1x4xf32>
  %w0 = te.load @layers.0.w.kernel : tensor<4x4xf32>
  %p0 = te.contract(%rows, %w0) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32>
  %a0 = te.append %p0 to @cache.0.out : tensor<1x4xf32> -> tensor<3x4xf32>
  %s0 = te.reduce(%a0) <(d = 4, r = 3 reduce), [(r, d)] -> [(d)]> {combiner = #te<combiner sum>} : (tensor<3x4xf32>) -> tensor<4xf32>
  %b0 = te.load @layers.0.bias : tensor<4xf32>
  %m = te.map(%x) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
  %h0 = te.map(%rows, %s0, %b0, %m) <(m = 1, d = 4), [(m, d), (d), (d), (d)] -> [(m, d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = add(x0, x1), t1 = add(t0, x2), t2 = mul(t1, x3)} -> (t2)>} : (tensor<1x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4xf32>
  %w1 = te.load @layers.1.w.kernel : tensor<4x4xf32>
  %p1 = te.contract(%h0, %w1) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32>
  %a1 = te.append %p1 to @cache.1.out : tensor<1x4xf32> -> tensor<3x4xf32>
  %s1 = te.reduce(%a1) <(d = 4, r = 3 reduce), [(r, d)] -> [(d)]> {combiner = #te<combiner sum>} : (tensor<3x4xf32>) -> tensor<4xf32>
  %b1 = te.load @layers.1.bias : tensor<4xf32>
  %h1 = te.map(%h0, %s1, %b1, %m) <(m = 1, d = 4), [(m, d), (d), (d), (d)] -> [(m, d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = add(x0, x1), t1 = add(t0, x2), t2 = mul(t1, x3)} -> (t2)>} : (tensor<1x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4xf32>
  %w2 = te.load @layers.2.w.kernel : tensor<4x4xf32>
  %p2 = te.contract(%h1, %w2) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32>
  %a2 = te.append %p2 to @cache.2.out : tensor<1x4xf32> -> tensor<3x4xf32>
  %s2 = te.reduce(%a2) <(d = 4, r = 3 reduce), [(r, d)] -> [(d)]> {combiner = #te<combiner sum>} : (tensor<3x4xf32>) -> tensor<4xf32>
  %b2 = te.load @layers.2.bias : tensor<4xf32>
  %h2 = te.map(%h1, %s2, %b2, %m) <(m = 1, d = 4), [(m, d), (d), (d), (d)] -> [(m, d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = add(x0, x1), t1 = add(t0, x2), t2 = mul(t1, x3)} -> (t2)>} : (tensor<1x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4xf32>
  %y = te.map(%h2) <(m = 1, d = 4), [(m, d)] -> [(m, d)]> {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>} : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
