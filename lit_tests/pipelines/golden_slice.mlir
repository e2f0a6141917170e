// One slice of the Llama decode graph at each level: a norm, a product with a weight from HBM that
// is split over m, n and k with the activation rotating and the weight's preload-state unlike its
// execute-state, a re-layout, the next product.
//
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16}' | filecheck %s --check-prefix=UNPLANNED
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=norm grid="m=2,k=4"},icca-set-plan{op=q grid="m=2,n=2,k=2" exec="0:k=2" preload="1:k=2" reduce=scatter scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-schedule{policy=basic plans=keep},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=ICCA
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=norm grid="m=2,k=4"},icca-set-plan{op=q grid="m=2,n=2,k=2" exec="0:k=2" preload="1:k=2" reduce=scatter scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-schedule{policy=basic plans=keep},icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU

te.global weight @g : tensor<64xf32> = dense<1.0> : tensor<64xf32>
te.global weight @wq : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @wo : tensor<64x32xf32> = dense<0.25> : tensor<64x32xf32>

func.func @main(%h: tensor<2x64xf32> {onnx.name = "h"}) -> (tensor<2x32xf32> {onnx.name = "y"}) {
  %g = te.load @g : tensor<64xf32>
  %n = te.normalize(%h, %g) <(m = 2, k = 64 reduce), [(m, k), (k)] -> [(m, k)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32> loc("norm")
  %wq = te.load @wq : tensor<64x64xf32>
  %q = te.contract(%n, %wq) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("q")
  %wo = te.load @wo : tensor<64x32xf32>
  %o = te.contract(%q, %wo) <(m = 2, n = 32, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x32xf32>) -> tensor<2x32xf32> loc("o")
  func.return %o : tensor<2x32xf32>
}

// Weights, inputs and outputs of the graph become tensors in HBM. Program order is a schedule: each
// operator is preceded by the preloads of what it needs.
// UNPLANNED-DAG:   icca.hbm weight @wq : tensor<64x64xf32>
// UNPLANNED-DAG:   icca.hbm input @h : tensor<2x64xf32>
// UNPLANNED-DAG:   icca.hbm output @y : tensor<2x32xf32>
// UNPLANNED-LABEL: icca.program @main
// UNPLANNED:         icca.execute "norm"
// UNPLANNED:         %[[WQ:.*]] = icca.preload @wq : !icca.handle<tensor<64x64xf32>>
// UNPLANNED-NEXT:    icca.execute "q"(%{{.*}}, %[[WQ]]) {
// UNPLANNED:         %[[WO:.*]] = icca.preload @wo : !icca.handle<tensor<64x32xf32>>
// UNPLANNED-NEXT:    %[[O:.*]] = icca.execute "o"(%{{.*}}, %[[WO]]) {
// UNPLANNED:         icca.store %[[O]] to @y

// Planned, scheduled, allocated: each preload is issued one operator ahead.
// ICCA-LABEL: icca.program @main
// ICCA:         %[[WQ:.*]] = icca.preload @wq at {{[0-9]+}} : !icca.handle<tensor<64x64xf32>>
// ICCA:         %[[N:.*]] = icca.execute "norm"
// ICCA:           icca.reduce
// ICCA:         %[[WO:.*]] = icca.preload @wo at {{[0-9]+}} : !icca.handle<tensor<64x32xf32>>
// ICCA-NEXT:    %[[Q:.*]] = icca.execute "q"(%[[N]], %[[WQ]]) plan <grid [m = 2, n = 2, k = 2], operands [exec {k = 2} preload {k = 2}, exec {} preload {k = 2}], scatter n> {
// The activation comes from the norm's layout; half of each weight tile from a neighbour.
// ICCA:           %[[X:.*]] = icca.relayout %{{.*}} at {{[0-9]+}}
// ICCA-NEXT:      %[[W:.*]] = icca.distribute %{{.*}} at {{[0-9]+}}
// ICCA-NEXT:      icca.tile(%[[X]], %[[W]]) at [{{[0-9]+}}] landing [{{[0-9]+}}, -1] {
// ICCA:             te.contract
// ICCA:           icca.reduce({{.*}}) gathered [{{[0-9]+}}] merged [{{[0-9]+}}] at [{{[0-9]+}}]
// The second weight has one state: its distribution moves nothing and has no address.
// ICCA:         %[[O:.*]] = icca.execute "o"(%[[Q]], %[[WO]]) plan <grid [m = 1, n = 8, k = 2]
// ICCA:           icca.relayout %{{.*}} at {{[0-9]+}}
// ICCA-NEXT:      icca.distribute %{{[^ ]*}} :
// ICCA:         icca.store %[[O]] to @y

// One variable a buffer: preload-state and execute-state of the weight lie apart, and differ in the
// last cut, a half of each of the two ring blocks.
// IPU:       ipu.var @q.preload1 at {{[0-9]+}} bytes 2048 : tensor<64x64xf32> <8 cores, {{.*}} size 16 at (((c mod 2) mod 2) * 8) size 8 slots 2,
// IPU:       ipu.var @q.execute1 at {{[0-9]+}} bytes 4096 : tensor<64x64xf32> <8 cores, {{.*}} size 16 slots 2,
// IPU-LABEL: ipu.program @main
// IPU:         ipu.copy_start @wq -> @q.preload1
// IPU:         ipu.execute @norm.apply apply @norm
// IPU-NEXT:    ipu.copy_start @wo -> @o.preload1
// IPU-NEXT:    ipu.reshard @norm.result0 -> @q.execute0
// IPU-NEXT:    ipu.copy_wait @q.preload1
// IPU-NEXT:    ipu.reshard @q.preload1 -> @q.execute1
// IPU-NEXT:    ipu.fill @q.partial0
// Two ring steps: compute, pass the activation to the neighbour, compute with the other half of k.
// IPU-NEXT:    ipu.repeat 0 times 1 {
// IPU:           ipu.execute @q.local local @q iterate {{.*}} ins [#ipu.ref<@q.execute0[0, 0]>, #ipu.ref<@q.execute1[{{.*}}t{{.*}}, 0]>]
// IPU-NEXT:      ipu.exchange <@q.execute0[_, 0]> -> <@q.landing0> from
// IPU-NEXT:      ipu.copy <@q.landing0> -> <@q.execute0[_, 0]>
// IPU:         ipu.execute @q.local local @q iterate {{.*}} ins [#ipu.ref<@q.execute0[0, 0]>, #ipu.ref<@q.execute1[1, 0]>]
// The reduction over k is scattered along n.
// IPU-NEXT:    ipu.reshard @q.partial0 -> @q.gathered0
// IPU-NEXT:    ipu.execute @q.combine combine @q
// IPU-NEXT:    ipu.execute @q.apply apply @q
// IPU-NEXT:    ipu.reshard @q.result0 -> @o.execute0
// IPU-NEXT:    ipu.copy_wait @o.preload1
// IPU:         ipu.store_start @o.result0 -> @y
// IPU-NEXT:    ipu.store_wait @o.result0
