// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program' | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-reorder-preloads,icca-allocate,icca-verify-program' | filecheck %s --check-prefix=AGAIN

te.global weight @w stack 4 : tensor<64x64xf32> = dense<1.0> : tensor<4x64x64xf32>
te.global weight @v stack 4 : tensor<64x64xf32> = dense<1.0> : tensor<4x64x64xf32>
func.func @main(%x: tensor<1x64xf32> {onnx.name = "x"}) -> (tensor<1x64xf32> {onnx.name = "y"}) {
  // The preload of the body's first operator is issued an iteration ahead; one in front of the loop
  // fills the handle of the first iteration, and the last layer is peeled off behind the loop.
  // CHECK: %[[W0:.*]] = icca.preload @w[%{{.*}}] at [[AT:[0-9]+]] :
  // CHECK: %{{.*}}, %[[LAST:.*]] = icca.repeat 0 times 3 iter(%{{.*}}, %[[W0]]) {
  // CHECK: icca.preload @v[%{{.*}}]
  // CHECK-NEXT: icca.execute "a"
  // CHECK: %[[W1:.*]] = icca.preload @w[%{{.*}}] at [[AT]] :
  // CHECK-NEXT: icca.execute "b"
  // CHECK: icca.yield %{{.*}}, %[[W1]] :
  // CHECK: icca.preload @v
  // CHECK-NEXT: icca.execute "a"(%{{.*}}, %[[LAST]])
  // CHECK-NOT: icca.preload
  // CHECK: icca.store
  //
  // What a loop carries already can be moved again, and more can join it.
  // AGAIN: icca.repeat 0 times 2 iter(
  // AGAIN: icca.preload @w
  // AGAIN: icca.yield
  //
  // IPU: ipu.repeat 0 times 3 {
  // IPU: ipu.copy_wait @[[VAR:a.preload1]]
  // IPU: ipu.copy_start @w[%{{.*}}] -> @[[VAR]]
  %y = te.repeat 4 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x64xf32>):
    %w = te.load @w[%l] : tensor<64x64xf32>
    %a = te.contract(%h, %w) <(m = 1, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32> loc("a")
    %v = te.load @v[%l] : tensor<64x64xf32>
    %b = te.contract(%a, %v) <(m = 1, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32> loc("b")
    te.yield %b : tensor<1x64xf32>
  } : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}
