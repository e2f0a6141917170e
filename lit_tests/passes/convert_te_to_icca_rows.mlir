// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16}' --print-debuginfo | filecheck %s

// Rows of a state are stored where an index in HBM says; one that is computed goes there first.

te.global state @k stack 2 : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64, inputs = ["k0", "k1"], outputs = ["l0", "l1"]}
te.global state @v : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64, inputs = ["v"], outputs = ["w"]}

// CHECK: icca.hbm scratch @v_rows.rows : tensor<1xi64>
func.func @main(%x: tensor<2x1x3xf32> {onnx.name = "x"}, %p: tensor<1xi64> {onnx.name = "p"}) -> (tensor<2x1x3xf32> {onnx.name = "y"}) {
  // CHECK: %[[Q:.*]] = icca.execute "next"
  %q = te.map(%p) <(d = 1), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = const(1 : "int64"), t1 = add(x0, t0)} -> (t1)>} : (tensor<1xi64>) -> tensor<1xi64> loc("next")
  // CHECK: icca.repeat 0 times 2
  %o = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<2x1x3xf32>):
    // CHECK: %[[K:.*]] = icca.preload @k[%l]
    // CHECK: icca.execute "k_new"(%[[K]]
    %old = te.load @k[%l] : tensor<2x4x3xf32>
    %y = te.map(%old, %h) <(b = 2, d = 3), [(b, 0, d), (b, 0, d)] -> [(b, 0, d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x4x3xf32>, tensor<2x1x3xf32>) -> tensor<2x1x3xf32> loc("k_new")
    // CHECK: icca.store %h to @k[%l] rows @p : tensor<2x1x3xf32> loc("k_rows")
    te.update %h to @k[%l] rows %p : tensor<2x1x3xf32>, tensor<1xi64> loc("k_rows")
    te.yield %y : tensor<2x1x3xf32>
  } : (tensor<2x1x3xf32>) -> tensor<2x1x3xf32>
  // CHECK: icca.store %[[Q]] to @v_rows.rows : tensor<1xi64> loc("v_rows")
  // CHECK-NEXT: icca.store %{{.*}} to @v rows @v_rows.rows : tensor<2x1x3xf32> loc("v_rows")
  te.update %o to @v rows %q : tensor<2x1x3xf32>, tensor<1xi64> loc("v_rows")
  func.return %o : tensor<2x1x3xf32>
}
