// Grouped-query attention over a state that grows by one entry, and a product with an epilogue.
te.global weight @wo : tensor<16x10xf32> = dense<0.5> : tensor<16x10xf32>
te.global state @keys : tensor<2x7x4xf32> {axis = 1 : i64, length = 5 : i64, inputs = ["past"], outputs = ["present"]}

func.func @main(%q: tensor<2x2x4xf32> {onnx.name = "q"}, %k: tensor<2x1x4xf32> {onnx.name = "k"}, %ids: tensor<3xi32> {onnx.name = "ids"}, %v: tensor<2x6x4xf32> {onnx.name = "v"}) -> (tensor<10xf32> {onnx.name = "y"}) {
  %kv = te.append %k to @keys : tensor<2x1x4xf32> -> tensor<2x6x4xf32>
  %a = te.attention(%q, %kv, %v) <(h = 2, g = 2, kv = 6 reduce, e = 4 local, d = 4), [(h, g, e), (h, kv, e), (h, kv, d)] -> [(h, g, d)]> {scale = 0.5 : f64} : (tensor<2x2x4xf32>, tensor<2x6x4xf32>, tensor<2x6x4xf32>) -> tensor<2x2x4xf32> loc("attention")
  %f = te.map(%a) <(h = 2, g = 2, d = 4), [(h, g, d)] -> [(8*h + 4*g + d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x2x4xf32>) -> tensor<16xf32> loc("merge")
  %wo = te.load @wo : tensor<16x10xf32>
  %i = te.reduce(%ids) <(j = 3 reduce), [(j)] -> [()]> {combiner = #te<combiner max>} : (tensor<3xi32>) -> tensor<i32> loc("longest")
  %y = te.contract(%f, %wo, %i) <(n = 10, k = 16 reduce), [(k), (k, n), ()] -> [(n)]> {epilogue = #te.body<(x0, x1) {t0 = cast(x1 : "float32"), t1 = add(x0, t0)} -> (t1)>} : (tensor<16xf32>, tensor<16x10xf32>, tensor<i32>) -> tensor<10xf32> loc("out")
  func.return %y : tensor<10xf32>
}
