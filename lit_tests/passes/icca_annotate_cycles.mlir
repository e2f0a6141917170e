// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=q grid="n=16"},icca-annotate-cycles' | filecheck %s

te.global weight @wq : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>

// Estimates are annotations: the plan and everything else stay as they are.
// CHECK: icca.preload @wq
// CHECK: icca.execute "q"
// CHECK: icca.estimate =
func.func @main(%h: tensor<2x64xf32> {onnx.name = "h"}) -> (tensor<2x64xf32> {onnx.name = "y"}) {
  %wq = te.load @wq : tensor<64x64xf32>
  %q = te.contract(%h, %wq) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("q")
  func.return %q : tensor<2x64xf32>
}
