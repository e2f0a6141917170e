// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=4" exec="0:k=4;1:k=2" preload="0:k=4;1:k=2"},icca-allocate,convert-icca-to-ipu,ipu-verify-program' --print-debuginfo | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=4" preload="1:k=2"},icca-allocate,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=SPREAD
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=4"},convert-icca-to-ipu' 2>&1 | filecheck %s --check-prefix=NOOFFSET
// RUN: not elk-opt %s -p 'convert-icca-to-ipu' 2>&1 | filecheck %s --check-prefix=NOPROGRAM

// NOOFFSET: p: buffer preload0 has no offset: run icca-allocate first
// NOPROGRAM: the module has no icca.program: run convert-te-to-icca first

te.global weight @w : tensor<8x12xf32> = dense<1.0> : tensor<8x12xf32>
func.func @main(%x: tensor<4x8xf32> {onnx.name = "x"}) -> (tensor<4x12xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<8x12xf32>
  // Both operands rotate in lockstep around four blocks of k, of which the weight keeps two: it is
  // read and replaced at slot t mod 2, the activation at slot 0.
  // CHECK: ipu.remote weight @w : tensor<8x12xf32> = dense<1.000000e+00> : tensor<8x12xf32>
  // CHECK: ipu.var @p.preload0 at {{[0-9]+}} bytes 16 : tensor<4x8xf32> <8 cores, [4 at {{.*}} size 2, 8 at {{.*}} size 2]> of "p" loc("p")
  // CHECK: ipu.var @p.preload1 at {{[0-9]+}} bytes 48 : tensor<8x12xf32> <8 cores, [8 at {{.*}} size 2 slots 2, 12 at (((c floordiv 2) mod 4) * 3) size 3]> of "p"
  // CHECK: ipu.codelet @p {
  // CHECK-LABEL: ipu.program @main
  // CHECK: ipu.copy_start @x -> @p.preload0 loc("p")
  // CHECK: ipu.copy_start @w -> @p.preload1
  // CHECK: ipu.copy_wait @p.preload0
  // CHECK: ipu.copy_wait @p.preload1
  // CHECK: ipu.fill @p.partial0, 0.000000e+00 : f64
  // CHECK: ipu.repeat 0 times 3 {
  // CHECK: ipu.execute @p.local local @p iterate {{.*}} ins [#ipu.ref<@p.preload0[0, 0]>, #ipu.ref<@p.preload1[{{.*}} mod 2), 0]>] stats [#ipu.ref<@p.partial0[0, 0, 0]>] outs []
  // CHECK: ipu.exchange <@p.preload0[_, 0]> -> <@p.landing0> from
  // CHECK: ipu.copy <@p.landing0> -> <@p.preload0[_, 0]>
  // CHECK: ipu.exchange <@p.preload1[{{.*}} mod 2), _]> -> <@p.landing1> from
  // CHECK: ipu.copy <@p.landing1> -> <@p.preload1[{{.*}} mod 2), _]>
  // The last step shifts nothing.
  // CHECK: ipu.execute @p.local local @p
  // CHECK-NEXT: ipu.execute @p.apply apply @p
  // CHECK-NEXT: ipu.store_start @p.result0 -> @y loc("y")
  // CHECK-NEXT: ipu.store_wait @p.result0
  //
  // SPREAD: ipu.copy_start @w -> @p.preload1
  // SPREAD: ipu.copy_wait @p.preload1
  // SPREAD-NEXT: ipu.reshard @p.preload1 -> @p.execute1
  %p = te.contract(%x, %w) <(m = 4, n = 12, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<4x8xf32>, tensor<8x12xf32>) -> tensor<4x12xf32> loc("p")
  func.return %p : tensor<4x12xf32>
}
