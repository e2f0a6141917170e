// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*" grid="n=4"},icca-allocate,icca-verify-program' | filecheck %s
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-allocate' 2>&1 | filecheck %s --check-prefix=NOPLAN
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*"},icca-allocate' 2>&1 | filecheck %s --check-prefix=CAPACITY

// NOPLAN: p has no plan: run icca-schedule or icca-set-plan first
// CAPACITY: p: error: needs {{[0-9,]+}} bytes on each core, which has 61,440
// CAPACITY: largest buffers:
// CAPACITY-NEXT: 76,800 bytes  p.preload1
// CAPACITY: it would fit with one of these changes:
// CAPACITY-NEXT: other plans: the smallest of every operator take {{[0-9,]+}} bytes (icca-schedule chooses plans)

te.global weight @w : tensor<160x120xf32> = dense<1.0> : tensor<160x120xf32>
func.func @main(%x: tensor<1x160xf32> {onnx.name = "x"}) -> (tensor<1x120xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<160x120xf32>
  // Every buffer has an address, in the operation that makes it.
  // CHECK: module attributes {{.*}}icca.sram_peak_bytes = {{[0-9]+}} : i64
  // CHECK: icca.preload @x at {{[0-9]+}} :
  // CHECK: icca.preload @w at {{[0-9]+}} :
  // CHECK: icca.tile({{.*}}) at [{{[0-9]+}}] {
  // CHECK: icca.reduce({{.*}}) at [{{[0-9]+}}] :
  %p = te.contract(%x, %w) <(m = 1, n = 120, k = 160 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x160xf32>, tensor<160x120xf32>) -> tensor<1x120xf32> loc("p")
  func.return %p : tensor<1x120xf32>
}
