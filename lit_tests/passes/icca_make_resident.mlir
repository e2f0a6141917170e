// RUN: elk-opt %s -p 'convert-te-to-icca{chip=ipu-mk2},icca-make-resident,icca-allocate,icca-verify-program' | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=ipu-mk2},icca-make-resident,icca-allocate,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU

te.global weight @w0 : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @w1 : tensor<64x32xf32> = dense<0.25> : tensor<64x32xf32>

func.func @main(%x: tensor<2x64xf32> {onnx.name = "x"}) -> (tensor<2x32xf32> {onnx.name = "y"}) {
  %w0 = te.load @w0 : tensor<64x64xf32>
  %a = te.contract(%x, %w0) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("first")
  %w1 = te.load @w1 : tensor<64x32xf32>
  %b = te.contract(%a, %w1) <(m = 2, n = 32, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x32xf32>) -> tensor<2x32xf32> loc("second")
  func.return %b : tensor<2x32xf32>
}

// Every preload is done by the host, before the first execute; results are fetched afterwards.
// CHECK-LABEL: icca.program @main
// CHECK-DAG: icca.preload init @x at
// CHECK-DAG: icca.preload init @w0 at
// CHECK-DAG: icca.preload init @w1 at
// CHECK: icca.execute "first"
// CHECK-NOT: icca.preload
// CHECK: icca.execute "second"
// CHECK: icca.store

// IPU: ipu.copy_start init @w1 -> @second.preload1
