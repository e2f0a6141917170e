// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-spill{share=1.5}' 2>&1 | filecheck %s --check-prefix=SHARE
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=ipu-mk2},icca-spill' 2>&1 | filecheck %s --check-prefix=HBM

// SHARE: share is a part of the free SRAM, 0 to 1, not 1.5
// HBM: chip ipu-mk2 has no HBM to spill to
func.func @main(%x: tensor<2x64xf32> {onnx.name = "x"}) -> (tensor<2x64xf32> {onnx.name = "y"}) {
  %y = te.map(%x) <(d0 = 2, d1 = 64), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x64xf32>) -> tensor<2x64xf32> loc("y")
  func.return %y : tensor<2x64xf32>
}
