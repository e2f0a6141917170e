// RUN: elk-opt %s | elk-opt | filecheck %s

// Rows of a table replaced, and rows added to; the updates may be split over cores.
// CHECK-LABEL: @scatter
// CHECK: te.scatter(%{{.*}}, %{{.*}}, %{{.*}}) <(r = 8, d = 4, u = 3 reduce), [(r, d), (u), (u, d)] -> [(r, d)]> {rows = 0 : i64, update = #te<update set>}
// CHECK: te.scatter(%{{.*}}) <(r = 8, d = 4, u = 3 reduce), [(r, d), (u), (u, d)] -> [(r, d)]> {rows = 0 : i64, update = #te<update add>}
func.func @scatter(%x: tensor<8x4xf32>, %i: tensor<3xi64>, %u: tensor<3x4xf32>) -> tensor<8x4xf32> {
  %0 = te.scatter(%x, %i, %u) <(r = 8, d = 4, u = 3 reduce), [(r, d), (u), (u, d)] -> [(r, d)]> {rows = 0 : i64, update = #te<update set>} : (tensor<8x4xf32>, tensor<3xi64>, tensor<3x4xf32>) -> tensor<8x4xf32>
  %1 = te.scatter(%0, %i, %u) <(r = 8, d = 4, u = 3 reduce), [(r, d), (u), (u, d)] -> [(r, d)]> {rows = 0 : i64, update = #te<update add>} : (tensor<8x4xf32>, tensor<3xi64>, tensor<3x4xf32>) -> tensor<8x4xf32>
  func.return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: @extremes
// CHECK: te.argreduce(%{{.*}}) <(m = 4, n = 9 reduce), [(m, n)] -> [(m)]> {last = true}
// CHECK: te.topk(%{{.*}}) <(m = 4, n = 9 local, k = 2 local), [(m, n)] -> [(m, k), (m, k)]> {n = 1 : i64, k = 2 : i64, smallest = true}
func.func @extremes(%x: tensor<4x9xf32>) -> (tensor<4xi64>, tensor<4x2xf32>, tensor<4x2xi64>) {
  %0 = te.argreduce(%x) <(m = 4, n = 9 reduce), [(m, n)] -> [(m)]> {last = true} : (tensor<4x9xf32>) -> tensor<4xi64>
  %1, %2 = te.topk(%x) <(m = 4, n = 9 local, k = 2 local), [(m, n)] -> [(m, k), (m, k)]> {n = 1 : i64, k = 2 : i64, smallest = true} : (tensor<4x9xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
  func.return %0, %1, %2 : tensor<4xi64>, tensor<4x2xf32>, tensor<4x2xi64>
}

// CHECK-LABEL: @scan
// CHECK: te.scan(%{{.*}}) <(m = 4, n = 9 local), [(m, n)] -> [(m, n)]> {n = 1 : i64, combiner = #te<combiner sum>, exclusive = true, reverse = true}
func.func @scan(%x: tensor<4x9xf32>) -> tensor<4x9xf32> {
  %0 = te.scan(%x) <(m = 4, n = 9 local), [(m, n)] -> [(m, n)]> {n = 1 : i64, combiner = #te<combiner sum>, exclusive = true, reverse = true} : (tensor<4x9xf32>) -> tensor<4x9xf32>
  func.return %0 : tensor<4x9xf32>
}
