// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// What the verifiers of single operators refuse.

// CHECK: scatter takes data, index and updates, and has one result
func.func @scatter_operands(%x: tensor<8xf32>, %i: tensor<3xi64>) {
  %0 = te.scatter(%x, %i) <(r = 8, u = 3 reduce), [(r), (u)] -> [(r)]> {rows = 0 : i64, update = #te<update set>} : (tensor<8xf32>, tensor<3xi64>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: the rows are a whole axis of the data and of the result
func.func @scatter_rows(%x: tensor<9xf32>, %i: tensor<3xi64>, %u: tensor<3xf32>) {
  %0 = te.scatter(%x, %i, %u) <(r = 8, u = 3 reduce), [(r + 1), (u), (u)] -> [(r)]> {rows = 0 : i64, update = #te<update set>} : (tensor<9xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: the rows index neither the index nor the updates
func.func @scatter_index(%x: tensor<8xf32>, %i: tensor<8xi64>, %u: tensor<3xf32>) {
  %0 = te.scatter(%x, %i, %u) <(r = 8, u = 3 reduce), [(r), (r), (u)] -> [(r)]> {rows = 0 : i64, update = #te<update set>} : (tensor<8xf32>, tensor<8xi64>, tensor<3xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: every dimension of the result but the rows is one of updates
func.func @scatter_updates(%x: tensor<8x2xf32>, %i: tensor<3xi64>, %u: tensor<3xf32>) {
  %0 = te.scatter(%x, %i, %u) <(r = 8, n = 2, u = 3 reduce), [(r, n), (u), (u)] -> [(r, n)]> {rows = 0 : i64, update = #te<update set>} : (tensor<8x2xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<8x2xf32>
  func.return
}

// -----

// CHECK: argreduce takes one operand and has one reduction dimension
func.func @argreduce(%x: tensor<8xf32>) {
  %0 = te.argreduce(%x) <(n = 8), [(n)] -> [(n)]> : (tensor<8xf32>) -> tensor<8xi64>
  func.return
}

// -----

// CHECK: the result does not have the reduction dimension
func.func @argreduce_result(%x: tensor<8xf32>) {
  %0 = te.argreduce(%x) <(n = 8 reduce), [(n)] -> [(n)]> : (tensor<8xf32>) -> tensor<8xi64>
  func.return
}

// -----

// CHECK: topk takes one operand and yields values and indices
func.func @topk_results(%x: tensor<8xf32>) {
  %0 = te.topk(%x) <(n = 8 local, k = 2 local), [(n)] -> [(k)]> {n = 0 : i64, k = 1 : i64} : (tensor<8xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: the top 9 of 8 elements
func.func @topk_many(%x: tensor<8xf32>) {
  %0, %1 = te.topk(%x) <(n = 8 local, k = 9 local), [(n)] -> [(k), (k)]> {n = 0 : i64, k = 1 : i64} : (tensor<8xf32>) -> (tensor<9xf32>, tensor<9xi64>)
  func.return
}

// -----

// CHECK: scan takes one operand and has one result
func.func @scan_operands(%x: tensor<8xf32>) {
  %0 = te.scan(%x, %x) <(n = 8 local), [(n), (n)] -> [(n)]> {n = 0 : i64, combiner = #te<combiner sum>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: the scanned dimension is local to a core
func.func @scan_parallel(%x: tensor<8xf32>) {
  %0 = te.scan(%x) <(n = 8), [(n)] -> [(n)]> {n = 0 : i64, combiner = #te<combiner sum>} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: scan computes sums or products
func.func @scan_max(%x: tensor<8xf32>) {
  %0 = te.scan(%x) <(n = 8 local), [(n)] -> [(n)]> {n = 0 : i64, combiner = #te<combiner max>} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: operand 0: expected a static shape
func.func @dynamic(%x: tensor<?xf32>) {
  %0 = te.map(%x) <(n = 8), [(n)] -> [(n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<?xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: result 0, axis 0: the map reaches past extent 8
func.func @past(%x: tensor<2x5xf32>) {
  %0 = te.map(%x) <(m = 2, n = 5), [(m, n)] -> [(5*m + n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x5xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: 1 operands are left for an epilogue that is absent
func.func @epilogue(%x: tensor<2x8xf32>, %w: tensor<8xf32>, %b: tensor<2xf32>) {
  %0 = te.contract(%x, %w, %b) <(m = 2, k = 8 reduce), [(m, k), (k), (m)] -> [(m)]> : (tensor<2x8xf32>, tensor<8xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: the epilogue takes 1 values and yields 1; it is given the reduced value and 1 operands, for 1 results
func.func @epilogue_values(%x: tensor<2x8xf32>, %w: tensor<8xf32>, %b: tensor<2xf32>) {
  %0 = te.contract(%x, %w, %b) <(m = 2, k = 8 reduce), [(m, k), (k), (m)] -> [(m)]> {epilogue = #te.body<(x0) {} -> (x0)>} : (tensor<2x8xf32>, tensor<8xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: 3 factors, but 2 operands
func.func @factors(%x: tensor<2x8xf32>, %w: tensor<8xf32>) {
  %0 = te.contract(%x, %w) <(m = 2, k = 8 reduce), [(m, k), (k)] -> [(m)]> {factors = 3 : i64} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: the body takes 1 values and yields 1; the operation has 2 operands and 1 results
func.func @map_body(%x: tensor<8xf32>) {
  %0 = te.map(%x, %x) <(n = 8), [(n), (n)] -> [(n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: a map has no reduction dimensions
func.func @map_reduces(%x: tensor<2x8xf32>) {
  %0 = te.map(%x) <(m = 2, n = 8 reduce), [(m, n)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x8xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: softmax over a state has one reduction dimension
func.func @softmax_state(%x: tensor<2x8xf32>) {
  %0 = te.softmax(%x) <(m = 2 reduce, n = 8 reduce), [(m, n)] -> [(m, n)]> {state = @s} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: affine ('scale',) does not name the 0 operands
func.func @affine(%x: tensor<2x8xf32>) {
  %0 = te.normalize(%x) <(m = 2, n = 8 reduce), [(m, n)] -> [(m, n)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: attention takes query, key, value, optionally a mask
func.func @attention_operands(%q: tensor<1x4xf32>, %k: tensor<6x4xf32>) {
  %0 = te.attention(%q, %k) <(s = 1, d = 4 local, t = 6 reduce), [(s, d), (t, d)] -> [(s, d)]> {scale = 0.5 : f64} : (tensor<1x4xf32>, tensor<6x4xf32>) -> tensor<1x4xf32>
  func.return
}

// -----

// CHECK: the KV dimension indexes key and value, not the query
func.func @attention_kv(%q: tensor<6x4xf32>, %k: tensor<6x4xf32>) {
  %0 = te.attention(%q, %k, %k) <(s = 1, e = 4, d = 4 local, t = 6 reduce), [(t, d), (t, d), (t, e)] -> [(s, e)]> {scale = 0.5 : f64} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<1x4xf32>
  func.return
}

// -----

// CHECK: gather takes a table and an index tensor
func.func @gather(%x: tensor<8xf32>) {
  %0 = te.gather(%x) <(m = 3, n = 8 reduce), [(n)] -> [(m)]> : (tensor<8xf32>) -> tensor<3xf32>
  func.return
}

// -----

// CHECK: gather has exactly one reduction dimension, the table's rows
func.func @gather_rows(%x: tensor<8xf32>, %i: tensor<3xi64>) {
  %0 = te.gather(%x, %i) <(m = 3, n = 8 local), [(n), (m)] -> [(m)]> : (tensor<8xf32>, tensor<3xi64>) -> tensor<3xf32>
  func.return
}

// -----

// CHECK: operand 0 is not indexed once by dimension 0
func.func @concat(%x: tensor<4xf32>) {
  %0 = te.concat(%x) <(n = 8), [(2*n)] -> [(n)]> {dim = 0 : i64} : (tensor<4xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: te.map terminates block in single-block region but is not a terminator
func.func @unfinished(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<4xf32>):
    %1 = te.map(%h) <(n = 4), [(n)] -> [(n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

// CHECK: the first argument of the body is the layer, an index
func.func @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = te.repeat 2 iter(%x) {
  ^bb0(%h: tensor<4xf32>):
    te.yield %h : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

// CHECK: softmax has a result for every point of m
func.func @softmax_result(%x: tensor<1x8xf32>) {
  %0 = te.softmax(%x) <(m = 1 reduce, n = 8), [(m, n)] -> [(0, n)]> : (tensor<1x8xf32>) -> tensor<1x8xf32>
  func.return
}

// -----

// CHECK: a norm has a result for every point of m
func.func @norm_result(%x: tensor<1x8xf32>) {
  %0 = te.normalize(%x) <(m = 1 reduce, n = 8), [(m, n)] -> [(0, n)]> {form = #te<norm_form rms>, epsilon = 1.000000e-05 : f32} : (tensor<1x8xf32>) -> tensor<1x8xf32>
  func.return
}

// -----

// CHECK: softmax reads another element for every point of m
func.func @softmax_operand(%x: tensor<8xf32>) {
  %0 = te.softmax(%x) <(m = 4, n = 8 reduce), [(n)] -> [(m, n)]> : (tensor<8xf32>) -> tensor<4x8xf32>
  func.return
}

// -----

// CHECK: a norm reads another element for every point of m
func.func @norm_operand(%x: tensor<8xf32>) {
  %0 = te.normalize(%x) <(m = 4, n = 8 reduce), [(n)] -> [(m, n)]> {form = #te<norm_form rms>, epsilon = 1.000000e-05 : f32} : (tensor<8xf32>) -> tensor<4x8xf32>
  func.return
}
