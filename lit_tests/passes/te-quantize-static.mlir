// RUN: elk-opt %s -p 'te-quantize{scheme=w8a16kv8 calibration=unit}' | filecheck %s

// A static cache that is stored narrow: what puts the new row into it reads the integers, and only
// integers are stored.
// CHECK: te.global state @k : tensor<2x4x3xi8> {axis = 1 : i64, length = 4 : i64, inputs = ["old"], outputs = ["k"], steps = dense<0.030{{[0-9]*}}> : tensor<1xf32>}
te.global state @k : tensor<2x4x3xf32> {axis = 1 : i64, length = 4 : i64, inputs = ["old"], outputs = ["k"]}
te.global weight @w : tensor<3x3xf32> = #te.weight<[<"w" : tensor<3x3xf32>, "w.bin", 0, 36, "">]>
te.global weight @numbers : tensor<4xi64> = dense<[0, 1, 2, 3]> : tensor<4xi64>

func.func @main(%x: tensor<2x3xf32> {onnx.name = "x"}, %p: tensor<1xi64> {onnx.name = "p"}) -> (tensor<2x4x3xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<3x3xf32>
  %n = te.contract(%x, %w) <(b = 2, d = 3, k = 3 reduce), [(b, k), (k, d)] -> [(b, 0, d)]> : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x1x3xf32>
  // CHECK: %[[OLD:.*]] = te.load @k : tensor<2x4x3xi8>
  %old = te.load @k : tensor<2x4x3xf32>
  %i = te.load @numbers : tensor<4xi64>
  // CHECK-NOT: te.dequantize
  // CHECK: te.map(%[[OLD]], %{{.*}}, %p, %{{.*}}) {{.*}}const(0.030{{[0-9]*}} : "float32"){{.*}} : (tensor<2x4x3xi8>, tensor<2x1x3xf32>, tensor<1xi64>, tensor<4xi64>) -> tensor<2x4x3xf32>
  %y = te.map(%old, %n, %p, %i) <(b = 2, s = 4, d = 3), [(b, s, d), (b, 0, d), (0), (s)] -> [(b, s, d)]> {body = #te.body<(x0, x1, x2, x3) {t0 = eq(x3, x2), t1 = select(t0, x1, x0)} -> (t1)>} : (tensor<2x4x3xf32>, tensor<2x1x3xf32>, tensor<1xi64>, tensor<4xi64>) -> tensor<2x4x3xf32>
  // CHECK: %[[ROW:.*]] = te.quantize({{.*}}) {{.*}} -> tensor<2x1x3xi8>
  // CHECK: te.update %[[ROW]] to @k rows %p : tensor<2x1x3xi8>, tensor<1xi64>
  te.update %n to @k rows %p : tensor<2x1x3xf32>, tensor<1xi64>
  func.return %y : tensor<2x4x3xf32>
}
