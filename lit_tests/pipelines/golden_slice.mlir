// One slice of the Llama decode graph at each level: a norm, a product with a weight from HBM that
// is split over m, n and k with the weight rotating and preload-state unlike execute-state, a
// re-layout, the next product.
//
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=q grid="m=2,n=2,k=2" exec="1:k=2" preload="1:k=2" reduce=scatter scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-set-plan{op=norm grid="m=2,k=4"},icca-schedule{policy=basic plans=keep},icca-allocate' | filecheck %s --check-prefix=ICCA
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=q grid="m=2,n=2,k=2" exec="1:k=2" preload="1:k=2" reduce=scatter scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-set-plan{op=norm grid="m=2,k=4"},icca-schedule{policy=basic plans=keep},icca-allocate,icca-verify-program,convert-icca-to-ipu' | filecheck %s --check-prefix=IPU

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

// The weights and the graph's inputs and outputs become tensors in HBM.
// ICCA-DAG: icca.hbm weight @wq : tensor<64x64xf32>
// ICCA-DAG: icca.hbm input @h : tensor<2x64xf32>
// ICCA-DAG: icca.hbm output @y : tensor<2x32xf32>
// ICCA-LABEL: icca.program @main
// Preloads of the next operator are issued in front of the execute they overlap with.
// ICCA: %[[WQ:.*]] = icca.preload @wq at {{[0-9]+}} : !icca.handle<tensor<64x64xf32>>
// ICCA: %[[N:.*]] = icca.execute "norm"
// ICCA: %[[WO:.*]] = icca.preload @wo at {{[0-9]+}} : !icca.handle<tensor<64x32xf32>>
// ICCA: %[[Q:.*]] = icca.execute "q"(%[[N]], %[[WQ]]) plan <grid [m = 2, n = 2, k = 2], operands [exec {} preload {}, exec {k = 2} preload {k = 2}], scatter n>
// ICCA: icca.relayout %{{.*}} at {{[0-9]+}}
// ICCA: icca.distribute
// ICCA: icca.tile({{.*}}) at array<i64: {{[0-9]+}}> landing array<i64: -1, {{[0-9]+}}>
// ICCA: te.contract
// ICCA: icca.reduce({{.*}}) gathered array<i64: {{[0-9]+}}> merged array<i64: {{[0-9]+}}> at array<i64: {{[0-9]+}}>
// ICCA: %[[O:.*]] = icca.execute "o"(%[[Q]], %[[WO]])
// ICCA: icca.store %[[O]] to @y

// IPU-LABEL: ipu.program @main
// IPU: ipu.copy_start @wq -> @q.preload1
// IPU: ipu.copy_start @wo -> @o.preload1
// IPU: ipu.copy_wait @q.preload1
// IPU: ipu.reshard @norm.result0 -> @q.execute0
// IPU: ipu.fill @q.partial0
// Two ring steps: compute, shift the weight by one core of its ring, compute.
// IPU: ipu.repeat 0 times 1
// IPU: ipu.execute @q.local local @q
// IPU: ipu.exchange <@q.preload1[(t mod 1), 0]> -> <@q.landing1> from
// IPU: ipu.copy <@q.landing1> -> <@q.preload1
// IPU: ipu.execute @q.local local @q
// IPU: ipu.reshard @q.partial0 -> @q.gathered0
// IPU: ipu.execute @q.combine combine @q
// IPU: ipu.execute @q.apply apply @q
// IPU: ipu.copy_wait @o.preload1
// IPU: ipu.reshard @q.result0 -> @o.execute0
// IPU: ipu.store_start @o.result0 -> @y
