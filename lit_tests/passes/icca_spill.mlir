// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-spill{share=0}' --print-debuginfo | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-spill' | filecheck %s --check-prefix=FITS
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-spill{share=0},icca-schedule{policy=basic},icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=DOWN

// %early is made first and read last. With nothing allowed to stay, it goes to HBM as soon as it
// is there, and its reader far away fetches it; the reader next to it takes it from the chip. %mid
// is read by the next operator only, and stays. The output that is there early is stored early.

// CHECK: icca.hbm scratch @early.spill : tensor<2x64xf32> loc("early")
// CHECK: %[[E:.*]] = icca.execute "early"
// CHECK: icca.store %[[E]] to @early.spill : tensor<2x64xf32> loc("early")
// CHECK: icca.execute "mid"(%[[E]])
// CHECK-NOT: icca.store
// CHECK: %[[A:.*]] = icca.execute "also"
// CHECK: icca.store %[[A]] to @z
// CHECK: icca.execute "more"
// CHECK: %[[P:.*]] = icca.preload @early.spill : !icca.handle<tensor<2x64xf32>> loc("late")
// CHECK: icca.execute "late"(%{{.*}}, %[[P]])
// CHECK: icca.distribute
// CHECK: icca.store {{.*}} to @y

// FITS-NOT: scratch
// FITS-NOT: spill

// DOWN: ipu.remote scratch @early.spill
func.func @main(%x: tensor<2x64xf32> {onnx.name = "x"}) -> (tensor<2x64xf32> {onnx.name = "y"}, tensor<2x64xf32> {onnx.name = "z"}) {
  %early = te.map(%x) <(d0 = 2, d1 = 64), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x64xf32>) -> tensor<2x64xf32> loc("early")
  %mid = te.map(%early) <(d0 = 2, d1 = 64), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<2x64xf32>) -> tensor<2x64xf32> loc("mid")
  %also = te.map(%mid) <(d0 = 2, d1 = 64), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<2x64xf32>) -> tensor<2x64xf32> loc("also")
  %more = te.map(%also) <(d0 = 2, d1 = 64), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<2x64xf32>) -> tensor<2x64xf32> loc("more")
  %late = te.map(%more, %early) <(d0 = 2, d1 = 64), [(d0, d1), (d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32> loc("late")
  func.return %late, %also : tensor<2x64xf32>, tensor<2x64xf32>
}
