// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program' | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=basic},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=BASIC

// Preloads of this loop have room ahead, but no addresses if each of them has only one: the schedule
// is that of one layer, written out twice. The last two of six layers are peeled off.
// CHECK: icca.hbm weight @a0.0 stack 3
// CHECK-NEXT: icca.hbm weight @a0.1 stack 3
// CHECK: icca.preload @a0.0[%{{.*}}] at [[EVEN:[0-9]+]]
// CHECK: icca.repeat 0 times 2
// The second copy's preload is issued during the first one, to another address.
// CHECK: icca.execute "down0"
// CHECK: icca.preload @a0.1[%{{.*}}] at
// CHECK-NOT: [[EVEN]]
// CHECK: icca.execute "up1"
// CHECK: icca.execute "down0"
// CHECK: icca.preload @a0.0[%{{.*}}] at [[EVEN]]
// CHECK: icca.yield
//
// BASIC: icca.hbm weight @a0 stack 6
// BASIC: icca.repeat 0 times 5
te.global weight @a0 stack 6 : tensor<64x3584xf16> = dense<1.0> : tensor<6x64x3584xf16>
te.global weight @b0 stack 6 : tensor<3584x64xf16> = dense<1.0> : tensor<6x3584x64xf16>
te.global weight @a1 stack 6 : tensor<64x1024xf16> = dense<1.0> : tensor<6x64x1024xf16>
te.global weight @b1 stack 6 : tensor<1024x64xf16> = dense<1.0> : tensor<6x1024x64xf16>
func.func @main(%x: tensor<1x64xf16> {onnx.name = "x"}) -> (tensor<1x64xf16> {onnx.name = "y"}) {
  %y = te.repeat 6 iter(%x) {
  ^bb0(%l: index, %h0: tensor<1x64xf16>):
    %a0 = te.load @a0[%l] : tensor<64x3584xf16>
    %u0 = te.contract(%h0, %a0) <(m = 1, n = 3584, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x64xf16>, tensor<64x3584xf16>) -> tensor<1x3584xf16> loc("up0")
    %b0 = te.load @b0[%l] : tensor<3584x64xf16>
    %d0 = te.contract(%u0, %b0) <(m = 1, n = 64, k = 3584 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x3584xf16>, tensor<3584x64xf16>) -> tensor<1x64xf16> loc("down0")
    %a1 = te.load @a1[%l] : tensor<64x1024xf16>
    %u1 = te.contract(%d0, %a1) <(m = 1, n = 1024, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x64xf16>, tensor<64x1024xf16>) -> tensor<1x1024xf16> loc("up1")
    %b1 = te.load @b1[%l] : tensor<1024x64xf16>
    %d1 = te.contract(%u1, %b1) <(m = 1, n = 64, k = 1024 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x1024xf16>, tensor<1024x64xf16>) -> tensor<1x64xf16> loc("down1")
    te.yield %d1 : tensor<1x64xf16>
  } : (tensor<1x64xf16>) -> tensor<1x64xf16>
  func.return %y : tensor<1x64xf16>
}
