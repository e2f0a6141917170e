// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=basic},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=BASIC
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=static},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=STATIC
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=AHEAD
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=search time-budget-s=0.1 seed=7},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=AHEAD
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=fastest}' 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=basic objective=area}' 2>&1 | filecheck %s --check-prefix=OBJECTIVE
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=basic plans=some}' 2>&1 | filecheck %s --check-prefix=PLANS

// PLANS: plans is choose or keep
// UNKNOWN: no policy is called 'fastest'; there are basic, static, elk-dyn, elk-full, search
// OBJECTIVE: objective is time or energy

// Everything fits, so `elk-dyn` and `search` hoist all preloads above the first execute; `basic` never
// looks further than the next operator.
// BASIC: icca.preload @w1
// BASIC-NEXT: icca.execute "a"
// BASIC: icca.preload @w2
// BASIC-NEXT: icca.execute "b"
// BASIC: icca.execute "c"
//
// `static` has a preload space for two, in which time is not lost.
// STATIC: icca.preload @w1
// STATIC-NEXT: icca.execute "a"
// STATIC: icca.preload @w2
// STATIC-NEXT: icca.execute "b"
//
// AHEAD-DAG: icca.preload @w0
// AHEAD-DAG: icca.preload @w1
// AHEAD-DAG: icca.preload @w2
// AHEAD: icca.execute "a"
// AHEAD-NOT: icca.preload
// AHEAD: icca.store

te.global weight @w0 : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @w1 : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @w2 : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
func.func @main(%x: tensor<2x64xf32> {onnx.name = "x"}) -> (tensor<2x64xf32> {onnx.name = "y"}) {
  %w0 = te.load @w0 : tensor<64x64xf32>
  %y0 = te.contract(%x, %w0) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("a")
  %w1 = te.load @w1 : tensor<64x64xf32>
  %y1 = te.contract(%y0, %w1) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("b")
  %w2 = te.load @w2 : tensor<64x64xf32>
  %y2 = te.contract(%y1, %w2) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("c")
  func.return %y2 : tensor<2x64xf32>
}
