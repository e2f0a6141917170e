// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn}' 2>&1 | filecheck %s
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{policy=most}' 2>&1 | filecheck %s --check-prefix=POLICY
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{plans=some}' 2>&1 | filecheck %s --check-prefix=PLANS
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-schedule{objective=space}' 2>&1 | filecheck %s --check-prefix=OBJECTIVE

// What does not fit is said with the operator, the bytes, and the smallest changes with which it
// would: they are computed, and tried where it says so.
// CHECK: p: error: needs {{[0-9,]+}} bytes on each core, which has 61,440 ({{[0-9,]+}} too many)
// CHECK-NEXT: largest buffers:
// CHECK-NEXT: 131,072 bytes  p.preload1
// CHECK: it would fit with one of these changes:
// CHECK-NEXT: more SRAM: sram_per_core_bytes = {{[0-9,]+}} instead of 65,536 ({{[0-9,]+}} usable; tried)
// CHECK-NEXT: more cores: {{[0-9]+}} instead of 16 (tried)

// POLICY: icca-schedule: no policy is called 'most'; there are basic, static, elk-dyn, elk-full, search
// PLANS: icca-schedule: plans is choose or keep
// OBJECTIVE: icca-schedule: objective is time or energy

te.global weight @w : tensor<1024x512xf32> = dense<1.0> : tensor<1024x512xf32>
func.func @main(%x: tensor<1x1024xf32> {onnx.name = "x"}) -> (tensor<1x512xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<1024x512xf32>
  %p = te.contract(%x, %w) <(m = 1, n = 512, k = 1024 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x1024xf32>, tensor<1024x512xf32>) -> tensor<1x512xf32> loc("p")
  func.return %p : tensor<1x512xf32>
}
