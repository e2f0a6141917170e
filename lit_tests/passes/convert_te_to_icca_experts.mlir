// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16}' --print-debuginfo | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=ipu-mk2}' | filecheck %s --check-prefix=RESIDENT

// Without HBM there is nowhere to send an index to: all experts are on chip.
// RESIDENT-NOT: icca.hbm scratch
// RESIDENT-NOT: icca.store {{.*}}rows

// A router picks experts on chip: their numbers go to HBM, and only those experts are preloaded.
// Both gathers share one stored index; a table that is smaller than what is gathered is preloaded.

te.global weight @up : tensor<8x6x4xf32> = dense<1.0> : tensor<8x6x4xf32>
te.global weight @down : tensor<8x4x6xf32> = dense<1.0> : tensor<8x4x6xf32>
te.global weight @small : tensor<2x4xf32> = dense<1.0> : tensor<2x4xf32>

// CHECK: icca.hbm scratch @up_rows.rows : tensor<4xi64>

func.func @main(%s: tensor<2x8xf32> {onnx.name = "s"}, %x: tensor<2x4xf32> {onnx.name = "x"}) -> (tensor<4x4xf32> {onnx.name = "y"}, tensor<2x2x4xf32> {onnx.name = "z"}) {
  %up = te.load @up : tensor<8x6x4xf32>
  %down = te.load @down : tensor<8x4x6xf32>
  %small = te.load @small : tensor<2x4xf32>
  // CHECK: %[[P:.*]], %[[I:.*]] = icca.execute "pick"
  %p, %i = te.topk(%s) <(d0 = 2, n = 8 local, k = 2 local), [(d0, n)] -> [(d0, k), (d0, k)]> {n = 1 : i64, k = 2 : i64} : (tensor<2x8xf32>) -> (tensor<2x2xf32>, tensor<2x2xi64>) loc("pick")
  // CHECK: %[[F:.*]] = icca.execute "up_rows"(%[[I]])
  // CHECK: icca.store %[[F]] to @up_rows.rows : tensor<4xi64> loc("up_rows")
  // CHECK-NEXT: %[[U:.*]] = icca.preload @up rows @up_rows.rows : !icca.handle<tensor<4x6x4xf32>> loc("up_rows")
  %u = te.gather(%up, %i) <(i0 = 2, i1 = 2, d0 = 6, d1 = 4, rows = 8 reduce), [(rows, d0, d1), (i0, i1)] -> [(2*i0 + i1, d0, d1)]> : (tensor<8x6x4xf32>, tensor<2x2xi64>) -> tensor<4x6x4xf32> loc("up_rows")
  // CHECK: icca.execute "up"(%[[U]],
  %h = te.contract(%u, %x) <(b0 = 2, b1 = 2, m = 6, k = 4 reduce), [(2*b0 + b1, m, k), (b0, k)] -> [(2*b0 + b1, m)]> : (tensor<4x6x4xf32>, tensor<2x4xf32>) -> tensor<4x6xf32> loc("up")
  // CHECK: %[[D:.*]] = icca.preload @down rows @up_rows.rows : !icca.handle<tensor<4x4x6xf32>> loc("down_rows")
  %d = te.gather(%down, %i) <(i0 = 2, i1 = 2, d0 = 4, d1 = 6, rows = 8 reduce), [(rows, d0, d1), (i0, i1)] -> [(2*i0 + i1, d0, d1)]> : (tensor<8x4x6xf32>, tensor<2x2xi64>) -> tensor<4x4x6xf32> loc("down_rows")
  // CHECK: icca.execute "down"(%[[D]],
  %y = te.contract(%d, %h) <(b0 = 4, m = 4, k = 6 reduce), [(b0, m, k), (b0, k)] -> [(b0, m)]> : (tensor<4x4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32> loc("down")
  // CHECK: %[[S:.*]] = icca.preload @small : !icca.handle<tensor<2x4xf32>> loc("small_rows")
  // CHECK: icca.execute "small_rows"(%[[S]], %[[I]])
  %z = te.gather(%small, %i) <(i0 = 2, i1 = 2, d0 = 4, rows = 2 reduce), [(rows, d0), (i0, i1)] -> [(i0, i1, d0)]> : (tensor<2x4xf32>, tensor<2x2xi64>) -> tensor<2x2x4xf32> loc("small_rows")
  func.return %y, %z : tensor<4x4xf32>, tensor<2x2x4xf32>
}
