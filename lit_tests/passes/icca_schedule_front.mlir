// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program' | filecheck %s

// The fastest plan of "b" gives every core whole columns of its weight, and so all of its input
// (a plan of 16 columns, as "a" has). Beside the preload of "c" there is no room for that: "b" steps
// down its front to half columns, which need half of the input and a reduction.
// CHECK: icca.execute "a"({{.*}}) plan <grid [m = 1, n = 16, k = 1]
// CHECK: icca.preload @w1
// CHECK-NEXT: icca.preload @w2
// CHECK-NEXT: icca.execute "b"({{.*}}) plan <grid [m = 1, n = 8, k = 2], operands [exec {} preload {}, exec {} preload {}], scatter m>
// CHECK-NOT: icca.preload
// CHECK: icca.execute "c"

te.global weight @w0 : tensor<256x576xf32> = dense<0.5> : tensor<256x576xf32>
te.global weight @w1 : tensor<576x192xf32> = dense<0.5> : tensor<576x192xf32>
te.global weight @w2 : tensor<192x312xf32> = dense<0.5> : tensor<192x312xf32>
func.func @main(%x: tensor<2x256xf32> {onnx.name = "x"}) -> (tensor<2x312xf32> {onnx.name = "y"}) {
  %w0 = te.load @w0 : tensor<256x576xf32>
  %y0 = te.contract(%x, %w0) <(m = 2, n = 576, k = 256 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x256xf32>, tensor<256x576xf32>) -> tensor<2x576xf32> loc("a")
  %w1 = te.load @w1 : tensor<576x192xf32>
  %y1 = te.contract(%y0, %w1) <(m = 2, n = 192, k = 576 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x576xf32>, tensor<576x192xf32>) -> tensor<2x192xf32> loc("b")
  %w2 = te.load @w2 : tensor<192x312xf32>
  %y2 = te.contract(%y1, %w2) <(m = 2, n = 312, k = 192 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x192xf32>, tensor<192x312xf32>) -> tensor<2x312xf32> loc("c")
  func.return %y2 : tensor<2x312xf32>
}
