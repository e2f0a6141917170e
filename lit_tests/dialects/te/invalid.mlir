// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: operand 0 has rank 2, its map 1 axes
func.func @rank(%x: tensor<2x3xf32>) -> tensor<2xf32> {
  %0 = te.map(%x) <(m = 2), [(m)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x3xf32>) -> tensor<2xf32>
  func.return %0 : tensor<2xf32>
}

// -----

// CHECK: result 0, axis 0: extent 3, but m has 2
func.func @extent(%x: tensor<2xf32>) -> tensor<3xf32> {
  %0 = te.map(%x) <(m = 2), [(m)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xf32>) -> tensor<3xf32>
  func.return %0 : tensor<3xf32>
}

// -----

// CHECK: the body yields float16 for result 0, float32
func.func @body(%x: tensor<2xf16>) -> tensor<2xf32> {
  %0 = te.map(%x) <(m = 2), [(m)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xf16>) -> tensor<2xf32>
  func.return %0 : tensor<2xf32>
}

// -----

// CHECK: unknown iteration dimension n
func.func @name(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = te.map(%x) <(m = 2), [(n)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xf32>) -> tensor<2xf32>
  func.return %0 : tensor<2xf32>
}

// -----

// CHECK: attention has exactly one reduction dimension, the KV length
func.func @kv(%q: tensor<1x4xf32>, %k: tensor<6x4xf32>) -> tensor<1x4xf32> {
  %0 = te.attention(%q, %k, %k) <(s = 1, e = 4, d = 4 local, t = 6), [(s, d), (t, d), (t, e)] -> [(s, e)]> {scale = 0.5 : f64} : (tensor<1x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<1x4xf32>
  func.return %0 : tensor<1x4xf32>
}

// -----

// CHECK: the sorted dimensions are local to a core
func.func @topk(%x: tensor<9xf32>) -> (tensor<2xf32>, tensor<2xi64>) {
  %0, %1 = te.topk(%x) <(n = 9, k = 2 local), [(n)] -> [(k), (k)]> {n = 0 : i64, k = 1 : i64} : (tensor<9xf32>) -> (tensor<2xf32>, tensor<2xi64>)
  func.return %0, %1 : tensor<2xf32>, tensor<2xi64>
}

// -----

// CHECK: u is in the result or reduced, not both
func.func @scatter(%x: tensor<8xf32>, %i: tensor<3xi64>, %u: tensor<3xf32>) -> tensor<8xf32> {
  %0 = te.scatter(%x, %i, %u) <(r = 8, u = 3), [(r), (u), (u)] -> [(r)]> {rows = 0 : i64, update = #te<update set>} : (tensor<8xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<8xf32>
  func.return %0 : tensor<8xf32>
}

// -----

// CHECK: weight @w has no value
te.global weight @w : tensor<8x4xf32>

// -----

// CHECK: the arguments of te.repeat differ in type from its operands
func.func @repeat(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<5xf32>):
    te.yield %x : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

// CHECK: the rows of @k are one axis of integers, not tensor<1xf32>
func.func @update(%x: tensor<2x1x4xf32>, %p: tensor<1xf32>) {
  te.update %x to @k rows %p : tensor<2x1x4xf32>, tensor<1xf32>
  func.return
}

// -----

// CHECK: 5 rows of @k are named, the entries are tensor<2x3x4xf32>
func.func @update(%x: tensor<2x3x4xf32>, %p: tensor<5xi64>) {
  te.update %x to @k rows %p : tensor<2x3x4xf32>, tensor<5xi64>
  func.return
}
