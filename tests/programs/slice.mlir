// A norm and two products with weights in HBM; extents that few grids divide.
te.global weight @g : tensor<64xf32> = dense<1.0> : tensor<64xf32>
te.global weight @wq : tensor<64x60xf32> = dense<0.5> : tensor<64x60xf32>
te.global weight @wo : tensor<60x44xf32> = dense<0.25> : tensor<60x44xf32>

func.func @main(%h: tensor<6x64xf32> {onnx.name = "h"}) -> (tensor<6x44xf32> {onnx.name = "y"}) {
  %g = te.load @g : tensor<64xf32>
  %n = te.normalize(%h, %g) <(m = 6, k = 64 reduce), [(m, k), (k)] -> [(m, k)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<6x64xf32>, tensor<64xf32>) -> tensor<6x64xf32> loc("norm")
  %wq = te.load @wq : tensor<64x60xf32>
  %q = te.contract(%n, %wq) <(m = 6, n = 60, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<6x64xf32>, tensor<64x60xf32>) -> tensor<6x60xf32> loc("q")
  %wo = te.load @wo : tensor<60x44xf32>
  %o = te.contract(%q, %wo) <(m = 6, n = 44, k = 60 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<6x60xf32>, tensor<60x44xf32>) -> tensor<6x44xf32> loc("o")
  func.return %o : tensor<6x44xf32>
}
