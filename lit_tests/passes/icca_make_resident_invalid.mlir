// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=ipu-mk2},icca-make-resident' 2>&1 | filecheck %s

te.global weight @w stack 4 : tensor<64x64xf32> = dense<0.5> : tensor<4x64x64xf32>

// CHECK: a chip without HBM has no layer to fetch in a loop
func.func @main(%x: tensor<2x64xf32> {onnx.name = "x"}) -> (tensor<2x64xf32> {onnx.name = "y"}) {
  %r = te.repeat 4 iter(%x) {
  ^bb0(%l: index, %h: tensor<2x64xf32>):
    %w = te.load @w[%l] : tensor<64x64xf32>
    %a = te.contract(%h, %w) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32>
    te.yield %a : tensor<2x64xf32>
  } : (tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %r : tensor<2x64xf32>
}
