// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program' | filecheck %s

// The fastest plan of "c" has both rows of the result on cores of their own, so two cores hold each
// column of the weight. Beside "b" there is no room for both copies: the waiting preload steps down
// to half a column a core, and "c" distributes the halves when it starts.
// CHECK: icca.execute "a"
// CHECK: icca.preload @w1
// CHECK-NEXT: icca.preload @w2
// CHECK-NEXT: icca.execute "b"
// CHECK-NOT: icca.preload
// CHECK: icca.execute "c"({{.*}}) plan <grid [m = 2, n = 8, k = 1], operands [exec {} preload {}, exec {} preload {k = 2}]>

te.global weight @w0 : tensor<256x576xf32> = dense<0.5> : tensor<256x576xf32>
te.global weight @w1 : tensor<576x208xf32> = dense<0.5> : tensor<576x208xf32>
te.global weight @w2 : tensor<208x312xf32> = dense<0.5> : tensor<208x312xf32>
func.func @main(%x: tensor<2x256xf32> {onnx.name = "x"}) -> (tensor<2x312xf32> {onnx.name = "y"}) {
  %w0 = te.load @w0 : tensor<256x576xf32>
  %y0 = te.contract(%x, %w0) <(m = 2, n = 576, k = 256 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x256xf32>, tensor<256x576xf32>) -> tensor<2x576xf32> loc("a")
  %w1 = te.load @w1 : tensor<576x208xf32>
  %y1 = te.contract(%y0, %w1) <(m = 2, n = 208, k = 576 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x576xf32>, tensor<576x208xf32>) -> tensor<2x208xf32> loc("b")
  %w2 = te.load @w2 : tensor<208x312xf32>
  %y2 = te.contract(%y1, %w2) <(m = 2, n = 312, k = 208 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x208xf32>, tensor<208x312xf32>) -> tensor<2x312xf32> loc("c")
  func.return %y2 : tensor<2x312xf32>
}
