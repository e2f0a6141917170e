// RUN: elk-opt %s -p 'te-quantize{scheme=w8a8 output=8 calibration=unit}' | filecheck %s

// A weight that the model stores as four bits with a step for each block of 32: each block's
// product is exact, their sum is one of numbers. The last block is cut off: 80 = 32 + 32 + 16.
te.global weight @q : tensor<80x4xi4> = #te.weight<[<"q" : tensor<80x4xi4>, "w.bin", 0, 160, "">]>
te.global weight @s : tensor<3x4xf32> = #te.weight<[<"s" : tensor<3x4xf32>, "w.bin", 160, 48, "">]>

func.func @main(%x: tensor<2x80xf32> {onnx.name = "x"}, %r: tensor<2x4xf32> {onnx.name = "r"}) -> (tensor<2x4xf32> {onnx.name = "y"}) {
  %q = te.load @q : tensor<80x4xi4>
  %s = te.load @s : tensor<3x4xf32>
  %spread = te.map(%s) <(b = 3, i = 32, n = 4), [(b, n)] -> [(32*b + i, n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3x4xf32>) -> tensor<96x4xf32>
  %w = te.map(%q, %spread) <(k = 80, n = 4), [(k, n), (k, n)] -> [(k, n)]> {body = #te.body<(x0, x1) {t0 = cast(x0 : "float32"), t1 = mul(t0, x1)} -> (t1)>} : (tensor<80x4xi4>, tensor<96x4xf32>) -> tensor<80x4xf32>
  // CHECK: %[[X:.*]] = te.quantize(%x) {{.*}} -> tensor<2x80xi8>
  // CHECK: %[[P:.*]] = te.contract(%[[X]], %q, %s) <(m = 2, n = 4, k0 = 3, k1 = 32 reduce), [(m, 32*k0 + k1), (32*k0 + k1, n), (k0, n)] -> [(k0, m, n)]>
  // CHECK-SAME: (tensor<2x80xi8>, tensor<80x4xi4>, tensor<3x4xf32>) -> tensor<3x2x4xf32>
  // CHECK: te.reduce(%[[P]], %r) <(m = 2, n = 4, k0 = 3 reduce), [(k0, m, n), (m, n)] -> [(m, n)]> {combiner = #te<combiner sum>, epilogue = {{.*}}add
  %y = te.contract(%x, %w, %r) <(m = 2, n = 4, k = 80 reduce), [(m, k), (k, n), (m, n)] -> [(m, n)]> {epilogue = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x80xf32>, tensor<80x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}
