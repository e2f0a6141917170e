// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*"},icca-carry-preload{op=a operand=1 before=b},icca-allocate,icca-verify-program' | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*"},icca-carry-preload{op=a operand=1 before=b},icca-allocate,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=b operand=1 before=a}' 2>&1 | filecheck %s --check-prefix=ORDER
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=a operand=0 before=b}' 2>&1 | filecheck %s --check-prefix=RESIDENT
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=z operand=0 before=b}' 2>&1 | filecheck %s --check-prefix=LABEL
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=a operand=2 before=b}' 2>&1 | filecheck %s --check-prefix=OPERAND
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=a operand=1 before=z}' 2>&1 | filecheck %s --check-prefix=BEFORE

// OPERAND: "a" has operands 0 to 1
// BEFORE: the loop has no execute called 'z'
// ORDER: "a" runs before "b" has consumed the last preload: two would be live at once
// RESIDENT: operand 0 of "a" is not preloaded in this iteration
// LABEL: no execute is called 'z'

te.global weight @w stack 3 : tensor<4x4xf32> = dense<1.0> : tensor<3x4x4xf32>
te.global weight @v stack 3 : tensor<4x4xf32> = dense<1.0> : tensor<3x4x4xf32>
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  // The first layer's preload is issued in front of the loop; all of them go to one address.
  // CHECK: %[[L0:.*]] = icca.layer 0
  // CHECK-NEXT: %[[W0:.*]] = icca.preload @w[%[[L0]]] at [[AT:[0-9]+]] :
  // CHECK-NEXT: %{{.*}}, %[[LAST:.*]] = icca.repeat 0 times 2 iter(%{{.*}}, %[[W0]]) {
  // CHECK-NEXT: ^{{.*}}(%[[L:.*]]: index, %{{.*}}: tensor<1x4xf32>, %[[W:.*]]: !icca.handle<tensor<4x4xf32>>):
  // CHECK-NEXT: icca.execute "a"(%{{.*}}, %[[W]]) plan
  // CHECK: icca.preload @v[%[[L]]]
  // CHECK-NEXT: %[[NEXT:.*]] = icca.layer %[[L]] plus 1
  // CHECK-NEXT: %[[W1:.*]] = icca.preload @w[%[[NEXT]]] at [[AT]] :
  // CHECK-NEXT: icca.execute "b"
  // CHECK: icca.yield %{{.*}}, %[[W1]] : tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>>
  // The last layer has nothing to preload for.
  // CHECK: %[[L2:.*]] = icca.layer 2
  // CHECK-NEXT: icca.execute "a"(%{{.*}}, %[[LAST]]) plan
  // CHECK: icca.preload @v[%[[L2]]]
  // CHECK-NEXT: icca.execute "b"
  //
  // IPU: ipu.copy_start @w[%{{.*}}] -> @[[VAR:a.preload1]]
  // IPU: ipu.repeat 0 times 2 {
  // IPU: ipu.copy_wait @[[VAR]]
  // IPU: ipu.row %{{.*}} plus 1
  // IPU-NEXT: ipu.copy_start @w[%{{.*}}] -> @[[VAR]]
  // IPU: ipu.row 2
  // IPU: ipu.copy_wait @[[VAR]]
  // IPU-NOT: ipu.copy_start @w
  %y = te.repeat 3 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    %w = te.load @w[%l] : tensor<4x4xf32>
    %a = te.contract(%h, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("a")
    %v = te.load @v[%l] : tensor<4x4xf32>
    %b = te.contract(%a, %v) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("b")
    te.yield %b : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
