// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn}' | filecheck %s --check-prefix=BEFORE
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-reorder-preloads,icca-allocate,icca-verify-program' | filecheck %s --check-prefix=AFTER
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-full},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=AFTER
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-reorder-preloads' 2>&1 | filecheck %s --check-prefix=PLANS

// PLANS: has no plan: run icca-schedule or icca-set-plan first

// In the order of the executes, the large preload of "b" comes first. It does not fit beside "a",
// so that of "c" has to wait behind it.
// BEFORE: icca.execute "a"
// BEFORE: icca.preload @w1
// BEFORE-NEXT: icca.preload @w2
// BEFORE-NEXT: icca.execute "b"
//
// With the large one delayed (Elk's figure 13), the small one lands while "a" executes.
// AFTER: icca.preload @w2
// AFTER-NEXT: icca.execute "a"
// AFTER: icca.preload @w1
// AFTER-NEXT: icca.execute "b"
// AFTER: icca.execute "c"

te.global weight @w0 : tensor<256x576xf32> = dense<0.5> : tensor<256x576xf32>
te.global weight @w1 : tensor<576x208xf32> = dense<0.5> : tensor<576x208xf32>
te.global weight @w2 : tensor<208x304xf32> = dense<0.5> : tensor<208x304xf32>
func.func @main(%x: tensor<2x256xf32> {onnx.name = "x"}) -> (tensor<2x304xf32> {onnx.name = "y"}) {
  %w0 = te.load @w0 : tensor<256x576xf32>
  %y0 = te.contract(%x, %w0) <(m = 2, n = 576, k = 256 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x256xf32>, tensor<256x576xf32>) -> tensor<2x576xf32> loc("a")
  %w1 = te.load @w1 : tensor<576x208xf32>
  %y1 = te.contract(%y0, %w1) <(m = 2, n = 208, k = 576 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x576xf32>, tensor<576x208xf32>) -> tensor<2x208xf32> loc("b")
  %w2 = te.load @w2 : tensor<208x304xf32>
  %y2 = te.contract(%y1, %w2) <(m = 2, n = 304, k = 208 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x208xf32>, tensor<208x304xf32>) -> tensor<2x304xf32> loc("c")
  func.return %y2 : tensor<2x304xf32>
}
