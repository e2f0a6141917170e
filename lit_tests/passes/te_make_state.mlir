// RUN: elk-opt %s -p te-make-state --split-input-file | filecheck %s
// RUN: elk-opt %s -p te-make-state{prefill=false} --split-input-file | filecheck %s --check-prefix=DECODE
// RUN: elk-opt %s -p te-make-state{static=false} --split-input-file | filecheck %s --check-prefix=KEPT

// A cache that grows: argument and result disappear.
// CHECK: te.global state @present.0.key : tensor<2x13x16xf32> {axis = 1 : i64, length = 12 : i64, inputs = ["past.0.key"], outputs = ["present.0.key"]}
// CHECK: func.func @main(%k: tensor<2x1x16xf32> {onnx.name = "k"}) -> (tensor<2x13x16xf32> {onnx.name = "y"}) {
// CHECK-NEXT: %all = te.append %k to @present.0.key : tensor<2x1x16xf32> -> tensor<2x13x16xf32>
// CHECK-NEXT: te.map(%all)
// CHECK-NEXT: func.return %y : tensor<2x13x16xf32>
// DECODE: te.append
func.func @main(%k: tensor<2x1x16xf32> {onnx.name = "k"}, %past: tensor<2x12x16xf32> {onnx.name = "past.0.key"})
    -> (tensor<2x13x16xf32> {onnx.name = "y"}, tensor<2x13x16xf32> {onnx.name = "present.0.key"}) {
  %all = te.concat(%past, %k) <(b = 2, s = 13, d = 16), [(b, s, d), (b, s - 12, d)] -> [(b, s, d)]> {dim = 1 : i64} : (tensor<2x12x16xf32>, tensor<2x1x16xf32>) -> tensor<2x13x16xf32>
  %y = te.map(%all) <(b = 2, s = 13, d = 16), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x13x16xf32>) -> tensor<2x13x16xf32>
  func.return %y, %all : tensor<2x13x16xf32>, tensor<2x13x16xf32>
}

// -----

// Values of a prefill: a state that is empty at first, along the axis that attention sums over.
// CHECK: te.global state @present.0.value : tensor<2x8x16xf32> {axis = 1 : i64, length = 0 : i64, outputs = ["present.0.value"]}
// CHECK: te.append %v to @present.0.value : tensor<2x8x16xf32> -> tensor<2x8x16xf32>
// CHECK-NEXT: te.softmax
// CHECK-NEXT: te.contract(%p, %v_1)
// CHECK-NEXT: func.return %y : tensor<2x4x16xf32>
// DECODE-NOT: te.append
func.func @main(%s: tensor<2x4x8xf32> {onnx.name = "s"}, %x: tensor<2x8x16xf32> {onnx.name = "x"})
    -> (tensor<2x4x16xf32> {onnx.name = "y"}, tensor<2x8x16xf32> {onnx.name = "present.0.value"}) {
  %v = te.map(%x) <(b = 2, s = 8, d = 16), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %p = te.softmax(%s) <(b = 2, m = 4, s = 8 reduce), [(b, m, s)] -> [(b, m, s)]> : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %y = te.contract(%p, %v) <(b = 2, m = 4, n = 16, k = 8 reduce), [(b, m, k), (b, k, n)] -> [(b, m, n)]> : (tensor<2x4x8xf32>, tensor<2x8x16xf32>) -> tensor<2x4x16xf32>
  func.return %y, %v : tensor<2x4x16xf32>, tensor<2x8x16xf32>
}

// -----

// A static cache, ScatterElements with one position for all sequences: the old cache is loaded, the
// new row is chosen element by element on chip, and only that row is written to the state.
// CHECK: te.global state @k_out : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64, inputs = ["k_cache"], outputs = ["k_out"]}
// CHECK-NEXT: te.global weight @k_out.rows : tensor<4xi64> = dense<[0, 1, 2, 3]>
// CHECK-NEXT: func.func @main(%new: tensor<2x1x3xf32> {onnx.name = "new"}, %pos: tensor<1xi64> {onnx.name = "pos"}) -> (tensor<2x4x3xf32> {onnx.name = "y"})
// CHECK: %[[OLD:.*]] = te.load @k_out : tensor<2x4x3xf32>
// CHECK-NEXT: %[[N:.*]] = te.load @k_out.rows
// CHECK-NEXT: %[[K:.*]] = te.map(%[[OLD]], %new, %pos, %[[N]]) <(d0 = 2, d1 = 4, d2 = 3), [(d0, d1, d2), (d0, 0, d2), (0), (d1)] -> [(d0, d1, d2)]>
// CHECK-NEXT: te.update %new to @k_out rows %pos : tensor<2x1x3xf32>, tensor<1xi64>
// CHECK-NEXT: te.map(%[[K]])
// CHECK-NEXT: func.return %y : tensor<2x4x3xf32>
// KEPT: te.scatter
// KEPT: func.return %y, %k_out
func.func @main(%new: tensor<2x1x3xf32> {onnx.name = "new"}, %pos: tensor<1xi64> {onnx.name = "pos"}, %cache: tensor<2x4x3xf32> {onnx.name = "k_cache"})
    -> (tensor<2x4x3xf32> {onnx.name = "y"}, tensor<2x4x3xf32> {onnx.name = "k_out"}) {
  %index = te.map(%pos) <(b = 2, u = 1, d = 3), [(u)] -> [(b, u, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<1xi64>) -> tensor<2x1x3xi64>
  %k_out = te.scatter(%cache, %index, %new) <(b = 2, rows = 4, d = 3, u = 1 reduce), [(b, rows, d), (b, u, d), (b, u, d)] -> [(b, rows, d)]> {rows = 1 : i64, update = #te<update set>} : (tensor<2x4x3xf32>, tensor<2x1x3xi64>, tensor<2x1x3xf32>) -> tensor<2x4x3xf32>
  %y = te.map(%k_out) <(b = 2, s = 4, d = 3), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
  func.return %y, %k_out : tensor<2x4x3xf32>, tensor<2x4x3xf32>
}

// -----

// index_copy of two rows: a scatter between two transpositions. It stays what it is, the rows are
// brought into the cache's order.
// CHECK: te.global state @k_out : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64
// CHECK: te.load @k_out
// CHECK: %[[E:.*]] = te.map(%new) <(d0 = 2, d1 = 2, d2 = 3), [(d1, d0, d2)] -> [(d0, d1, d2)]>
// CHECK: te.scatter
// CHECK-NEXT: te.update %[[E]] to @k_out rows %pos : tensor<2x2x3xf32>, tensor<2xi64>
// CHECK: func.return %y : tensor<4x2x3xf32>
func.func @main(%new: tensor<2x2x3xf32> {onnx.name = "new"}, %pos: tensor<2xi64> {onnx.name = "pos"}, %cache: tensor<2x4x3xf32> {onnx.name = "k_cache"})
    -> (tensor<4x2x3xf32> {onnx.name = "y"}, tensor<2x4x3xf32> {onnx.name = "k_out"}) {
  %t = te.map(%cache) <(s = 4, b = 2, d = 3), [(b, s, d)] -> [(s, b, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x4x3xf32>) -> tensor<4x2x3xf32>
  %n = te.scatter(%t, %pos, %new) <(rows = 4, b = 2, d = 3, u = 2 reduce), [(rows, b, d), (u), (u, b, d)] -> [(rows, b, d)]> {rows = 0 : i64, update = #te<update set>} : (tensor<4x2x3xf32>, tensor<2xi64>, tensor<2x2x3xf32>) -> tensor<4x2x3xf32>
  %k_out = te.map(%n) <(b = 2, s = 4, d = 3), [(s, b, d)] -> [(b, s, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4x2x3xf32>) -> tensor<2x4x3xf32>
  %y = te.map(%n) <(s = 4, b = 2, d = 3), [(s, b, d)] -> [(s, b, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4x2x3xf32>) -> tensor<4x2x3xf32>
  func.return %y, %k_out : tensor<4x2x3xf32>, tensor<2x4x3xf32>
}

// -----

// where(0, 1, 2, … == position, new, old).
// CHECK: te.global state @k_out : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64
// CHECK: %[[OLD:.*]] = te.load @k_out
// CHECK: te.map(%mask, %new, %[[OLD]])
// CHECK-NEXT: te.update %new to @k_out rows %pos : tensor<2x1x3xf32>, tensor<1xi64>
te.global weight @arange : tensor<4xi64> = dense<[0, 1, 2, 3]> : tensor<4xi64>
func.func @main(%new: tensor<2x1x3xf32> {onnx.name = "new"}, %pos: tensor<1xi64> {onnx.name = "pos"}, %cache: tensor<2x4x3xf32> {onnx.name = "k_cache"})
    -> (tensor<2x4x3xf32> {onnx.name = "y"}, tensor<2x4x3xf32> {onnx.name = "k_out"}) {
  %n = te.load @arange : tensor<4xi64>
  %mask = te.map(%n, %pos) <(s = 4), [(s), (0)] -> [(s)]> {body = #te.body<(x0, x1) {t0 = eq(x0, x1)} -> (t0)>} : (tensor<4xi64>, tensor<1xi64>) -> tensor<4xi1>
  %k_out = te.map(%mask, %new, %cache) <(b = 2, s = 4, d = 3), [(s), (b, 0, d), (b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0, x1, x2) {t0 = select(x0, x1, x2)} -> (t0)>} : (tensor<4xi1>, tensor<2x1x3xf32>, tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
  %y = te.map(%k_out) <(b = 2, s = 4, d = 3), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
  func.return %y, %k_out : tensor<2x4x3xf32>, tensor<2x4x3xf32>
}

// -----

// Another order of numbers is no position, and a position for each sequence no row of the cache.
// CHECK-NOT: te.global state
// CHECK: func.return %a, %b
te.global weight @arange : tensor<4xi64> = dense<[0, 2, 1, 3]> : tensor<4xi64>
func.func @main(%new: tensor<2x1x3xf32> {onnx.name = "new"}, %pos: tensor<1xi64> {onnx.name = "pos"}, %each: tensor<2xi64> {onnx.name = "each"}, %c0: tensor<2x4x3xf32> {onnx.name = "c0"}, %c1: tensor<2x4x3xf32> {onnx.name = "c1"})
    -> (tensor<2x4x3xf32> {onnx.name = "a"}, tensor<2x4x3xf32> {onnx.name = "b"}) {
  %n = te.load @arange : tensor<4xi64>
  %a = te.map(%n, %pos, %new, %c0) <(b = 2, s = 4, d = 3), [(s), (0), (b, 0, d), (b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = eq(x0, x1), t1 = select(t0, x2, x3)} -> (t1)>} : (tensor<4xi64>, tensor<1xi64>, tensor<2x1x3xf32>, tensor<2x4x3xf32>) -> tensor<2x4x3xf32>
  %index = te.map(%each) <(b = 2, u = 1, d = 3), [(b)] -> [(b, u, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xi64>) -> tensor<2x1x3xi64>
  %b = te.scatter(%c1, %index, %new) <(b = 2, rows = 4, d = 3, u = 1 reduce), [(b, rows, d), (b, u, d), (b, u, d)] -> [(b, rows, d)]> {rows = 1 : i64, update = #te<update set>} : (tensor<2x4x3xf32>, tensor<2x1x3xi64>, tensor<2x1x3xf32>) -> tensor<2x4x3xf32>
  func.return %a, %b : tensor<2x4x3xf32>, tensor<2x4x3xf32>
}
