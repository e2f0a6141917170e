// RUN: elk-opt %s -p te-make-state,te-roll-layers | filecheck %s

// Layers with static caches: one loop over stacked states, of which each iteration loads a layer and
// writes a row of it. The row numbers are not stacked.
// CHECK-DAG: te.global state @k{{.*}} stack 2 : tensor<2x5x4xf32> {axis = 1 : i64, length = 5 : i64, inputs = ["c0", "c1"], outputs = ["k0", "k1"]}
// CHECK-DAG: te.global weight @k0.rows : tensor<5xi64> = dense<[0, 1, 2, 3, 4]>
// CHECK-DAG: te.global weight @layers.0.w{{.*}} stack 2 : tensor<4x4xf32>
// CHECK: te.repeat 2 iter(%x) {
// CHECK: %[[P:.*]] = te.contract
// CHECK: %[[OLD:.*]] = te.load @k{{.*}}[%layer] : tensor<2x5x4xf32>
// CHECK: te.map(%[[OLD]], %[[P]], %pos,
// CHECK: te.update %[[P]] to @k{{.*}}[%layer] rows %pos : tensor<2x1x4xf32>, tensor<1xi64>
// CHECK: te.yield
// CHECK: func.return {{.*}} : tensor<2x4xf32>
te.global weight @layers.0.w : tensor<4x4xf32> = #te.weight<[<"w0" : tensor<4x4xf32>, "none.bin", 0, 64, "">]>
te.global weight @layers.1.w : tensor<4x4xf32> = #te.weight<[<"w1" : tensor<4x4xf32>, "none.bin", 64, 64, "">]>
func.func @main(%x: tensor<2x4xf32> {onnx.name = "x"}, %pos: tensor<1xi64> {onnx.name = "pos"}, %c0: tensor<2x5x4xf32> {onnx.name = "c0"}, %c1: tensor<2x5x4xf32> {onnx.name = "c1"})
    -> (tensor<2x4xf32> {onnx.name = "y"}, tensor<2x5x4xf32> {onnx.name = "k0"}, tensor<2x5x4xf32> {onnx.name = "k1"}) {
  %index = te.map(%pos) <(b = 2, u = 1, d = 4), [(u)] -> [(b, u, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<1xi64>) -> tensor<2x1x4xi64>
  %w0 = te.load @layers.0.w : tensor<4x4xf32>
  %p0 = te.contract(%x, %w0) <(m = 2, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, 0, n)]> : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x1x4xf32>
  %k0 = te.scatter(%c0, %index, %p0) <(b = 2, rows = 5, d = 4, u = 1 reduce), [(b, rows, d), (b, u, d), (b, u, d)] -> [(b, rows, d)]> {rows = 1 : i64, update = #te<update set>} : (tensor<2x5x4xf32>, tensor<2x1x4xi64>, tensor<2x1x4xf32>) -> tensor<2x5x4xf32>
  %s0 = te.reduce(%k0) <(b = 2, d = 4, r = 5 reduce), [(b, r, d)] -> [(b, d)]> {combiner = #te<combiner sum>} : (tensor<2x5x4xf32>) -> tensor<2x4xf32>
  %h0 = te.map(%x, %s0) <(m = 2, d = 4), [(m, d), (m, d)] -> [(m, d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %w1 = te.load @layers.1.w : tensor<4x4xf32>
  %p1 = te.contract(%h0, %w1) <(m = 2, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, 0, n)]> : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x1x4xf32>
  %k1 = te.scatter(%c1, %index, %p1) <(b = 2, rows = 5, d = 4, u = 1 reduce), [(b, rows, d), (b, u, d), (b, u, d)] -> [(b, rows, d)]> {rows = 1 : i64, update = #te<update set>} : (tensor<2x5x4xf32>, tensor<2x1x4xi64>, tensor<2x1x4xf32>) -> tensor<2x5x4xf32>
  %s1 = te.reduce(%k1) <(b = 2, d = 4, r = 5 reduce), [(b, r, d)] -> [(b, d)]> {combiner = #te<combiner sum>} : (tensor<2x5x4xf32>) -> tensor<2x4xf32>
  %h1 = te.map(%h0, %s1) <(m = 2, d = 4), [(m, d), (m, d)] -> [(m, d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %h1, %k0, %k1 : tensor<2x4xf32>, tensor<2x5x4xf32>, tensor<2x5x4xf32>
}
