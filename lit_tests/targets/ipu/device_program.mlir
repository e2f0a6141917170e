// The abstract device program: operators with what each core holds, and the order of issue.
//
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op="/model/q:0" grid="m=2,n=2,k=2" exec="1:k=2" preload="1:k=2" scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-set-plan{op=norm grid="m=2,k=4"},icca-schedule{policy=basic plans=keep},icca-allocate' -t device-program | filecheck %s
// RUN: not elk-opt %s -t device-program 2>&1 | filecheck %s --check-prefix=ERROR

te.global weight @g : tensor<64xf32> = dense<1.0> : tensor<64xf32>
te.global weight @wq : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @wo : tensor<64x32xf32> = dense<0.25> : tensor<64x32xf32>

func.func @main(%h: tensor<2x64xf32> {onnx.name = "h"}) -> (tensor<2x32xf32> {onnx.name = "y"}) {
  %g = te.load @g : tensor<64xf32>
  %n = te.normalize(%h, %g) <(m = 2, k = 64 reduce), [(m, k), (k)] -> [(m, k)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32> loc("norm")
  %wq = te.load @wq : tensor<64x64xf32>
  %q = te.contract(%n, %wq) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("/model/q:0")
  %wo = te.load @wo : tensor<64x32xf32>
  %o = te.contract(%q, %wo) <(m = 2, n = 32, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x32xf32>) -> tensor<2x32xf32> loc("o")
  func.return %o : tensor<2x32xf32>
}

// CHECK: device_program @main chip "test-16" {
// CHECK-NEXT: // 1. Preloads run one after another, in the order in which they are issued.
// CHECK-NEXT: // 2. An execute blocks every preload and every execute issued after it.
// CHECK-NEXT: // 3. A preload blocks only the execute of its own operator.
// CHECK: hbm @g weight : tensor<64xf32>
// CHECK: hbm @h input : tensor<2x64xf32> inputs ["h"]
// CHECK: op 0 "norm" normalize cores 8 grid [m = 2 / 2, k = 64 / 4] reduce 4 ways all {
// CHECK: op 1 "/model/q:0" contract cores 8 grid [m = 2 / 2, n = 64 / 2, k = 64 / 2] rings [k = 2] reduce 2 ways scatter over n {
// CHECK-NEXT: operand 0 resident op 0.0 : tensor<2x64xf32>
// CHECK-NEXT: operand 1 hbm @wq : tensor<64x64xf32>
// CHECK-NEXT: execute0 128 bytes at {{[0-9]+}} <8 cores, [2 at (c mod 2) size 1,
// CHECK-NEXT: preload1 2048 bytes at {{[0-9]+}} <8 cores,
// CHECK-NEXT: landing1 2048 bytes at {{[0-9]+}}
// CHECK: result0 64 bytes at {{[0-9]+}} <8 cores,
// CHECK: issue {
// CHECK-NEXT: preload_async(op = 0)
// CHECK-NEXT: preload_async(op = 1)
// CHECK-NEXT: execute(op = 0)
// CHECK-NEXT: preload_async(op = 2)
// CHECK-NEXT: execute(op = 1)
// CHECK-NEXT: execute(op = 2)
// CHECK-NEXT: store_async(value = op 2.0, to = @y)
// CHECK-NEXT: }

// ERROR: the module has no icca.program
