// One product whose weight fills an SRAM unless it is cut.
te.global weight @w : tensor<128x480xf32> = dense<0.5> : tensor<128x480xf32>

func.func @main(%x: tensor<16x128xf32> {onnx.name = "x"}) -> (tensor<16x480xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<128x480xf32>
  %y = te.contract(%x, %w) <(m = 16, n = 480, k = 128 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<16x128xf32>, tensor<128x480xf32>) -> tensor<16x480xf32> loc("big")
  func.return %y : tensor<16x480xf32>
}
