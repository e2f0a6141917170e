// Two images through a convolution of unsigned bytes with a zero point, four bits behind it, and a
// cache of four bits that is written and multiplied.
te.global weight @w : tensor<3x2x3x3xi8> = dense<[[[[1, -2, 3], [4, -5, 6], [7, -8, 9]], [[-1, 2, -3], [-4, 5, -6], [-7, 8, -9]]], [[[9, 8, 7], [6, 5, 4], [3, 2, 1]], [[127, -128, 0], [1, 1, 1], [2, 2, 2]]], [[[0, 0, 0], [0, 1, 0], [0, 0, 0]], [[5, 5, 5], [-5, -5, -5], [3, 0, -3]]]]> : tensor<3x2x3x3xi8>
te.global weight @s : tensor<3xf32> = dense<[0.01, 0.02, 0.005]> : tensor<3xf32>
te.global state @k : tensor<2x5x9xi4> {axis = 1 : i64, length = 4 : i64, inputs = ["past"], outputs = ["present"], steps = dense<0.25> : tensor<1xf32>}

func.func @main(%x: tensor<2x2x5x9xf32> {onnx.name = "x"}, %new: tensor<2x1x9xf32> {onnx.name = "new"}) -> (tensor<2x3x5x9xf32> {onnx.name = "y"}, tensor<2x3x5xf32> {onnx.name = "z"}) {
  %w = te.load @w : tensor<3x2x3x3xi8>
  %s = te.load @s : tensor<3xf32>
  %q = te.quantize(%x) <(n = 2, c = 2, y = 5, x = 9), [(n, c, y, x)] -> [(n, c, y, x)]> {step = 0.02 : f64, zero = 117 : i64} : (tensor<2x2x5x9xf32>) -> tensor<2x2x5x9xui8>
  %y = te.contract(%q, %w, %s) <(n = 2, o = 3, y = 5, x = 9, c = 2 reduce, i = 3 reduce, j = 3 reduce), [(n, c, y + i - 1, x + j - 1), (o, c, i, j), (o)] -> [(n, o, y, x)]> {zeros = array<i64: 117, 0>, epilogue = #te.body<(x0, x1) {t0 = cast(x0 : "float32"), t1 = mul(t0, x1), t2 = const(0.02 : "float32"), t3 = mul(t1, t2)} -> (t3)>} : (tensor<2x2x5x9xui8>, tensor<3x2x3x3xi8>, tensor<3xf32>) -> tensor<2x3x5x9xf32>
  %f = te.quantize(%y) <(n = 2, o = 3, y = 5, x = 9), [(n, o, y, x)] -> [(n, o, y, x)]> {step = 0.5 : f64} : (tensor<2x3x5x9xf32>) -> tensor<2x3x5x9xi4>
  %e = te.quantize(%new) <(n = 2, t = 1, x = 9), [(n, t, x)] -> [(n, t, x)]> {step = 0.25 : f64} : (tensor<2x1x9xf32>) -> tensor<2x1x9xi4>
  %k = te.append %e to @k : tensor<2x1x9xi4> -> tensor<2x5x9xi4>
  %z = te.contract(%f, %k) <(n = 2, o = 3, y = 5, t = 5 reduce, x = 9 reduce), [(n, o, t, x), (n, y, x)] -> [(n, o, y)]> {epilogue = #te.body<(x0) {t0 = cast(x0 : "float32"), t1 = const(0.125 : "float32"), t2 = mul(t0, t1)} -> (t2)>} : (tensor<2x3x5x9xi4>, tensor<2x5x9xi4>) -> tensor<2x3x5xf32>
  func.return %y, %z : tensor<2x3x5x9xf32>, tensor<2x3x5xf32>
}
