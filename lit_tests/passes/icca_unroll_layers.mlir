// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-unroll-layers{factor=2}' | filecheck %s
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-unroll-layers{factor=3}' | filecheck %s --check-prefix=THREE
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-unroll-layers,icca-schedule{policy=elk-dyn},icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*"},icca-unroll-layers,icca-carry-preload{op=a operand=1 before=b},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=CARRY

// Stack k has the layers k, k + 2, …, their names and their values.
// CHECK: icca.hbm weight @w.0 stack 3 : tensor<1x4xf32> = dense<{{\[\[\[}}0.0{{.*}}2.0{{.*}}4.0{{.*}}> : tensor<3x1x4xf32>
// CHECK-NEXT: icca.hbm weight @w.1 stack 2 : tensor<1x4xf32> = dense<{{\[\[\[}}1.0{{.*}}3.0{{.*}}> : tensor<2x1x4xf32>
// CHECK: icca.hbm state @s.0 stack 3 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["p0", "p2", "p4"], outputs = ["n0", "n2", "n4"]}
// CHECK-NEXT: icca.hbm state @s.1 stack 2 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["p1", "p3"], outputs = ["n1", "n3"]}
// THREE: icca.hbm weight @w.0 stack 2 :
// THREE-NEXT: icca.hbm weight @w.1 stack 2 :
// THREE-NEXT: icca.hbm weight @w.2 stack 1 :
te.global weight @w stack 5 : tensor<1x4xf32> = dense<[[[0.0, 0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0, 1.0]], [[2.0, 2.0, 2.0, 2.0]], [[3.0, 3.0, 3.0, 3.0]], [[4.0, 4.0, 4.0, 4.0]]]> : tensor<5x1x4xf32>
te.global state @s stack 5 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["p0", "p1", "p2", "p3", "p4"], outputs = ["n0", "n1", "n2", "n3", "n4"]}
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  // CHECK: %[[OUT:.*]] = icca.repeat 0 times 2 iter(%{{.*}}) {
  // CHECK-NEXT: ^{{.*}}(%[[L:.*]]: index, %{{.*}}: tensor<1x4xf32>):
  // CHECK: icca.preload @w.0[%[[L]]]
  // CHECK: %[[A:.*]] = icca.execute "a"
  // CHECK: icca.store %[[A]] to @s.0[%[[L]]] from 3
  // CHECK: icca.execute "b"
  // CHECK: icca.preload @w.1[%[[L]]]
  // CHECK: %[[B:.*]] = icca.execute "a"
  // CHECK: icca.store %[[B]] to @s.1[%[[L]]] from 3
  // CHECK: icca.execute "b"
  // CHECK: icca.yield
  // The layer that is left over.
  // CHECK: icca.layer 2
  // CHECK: icca.preload @w.0[%{{.*}}]
  // CHECK: icca.execute "a"(%[[OUT]], %{{.*}})
  // CHECK: icca.store %{{.*}} to @s.0[%{{.*}}] from 3
  //
  // THREE: icca.repeat 0 times 1 iter
  // THREE: icca.preload @w.2
  // THREE: icca.yield
  // THREE: icca.layer 1
  // THREE: icca.preload @w.0
  // THREE: icca.preload @w.1
  //
  // IPU: ipu.copy_start @w.0
  // IPU: ipu.copy_start @w.1
  //
  // A preload of the first copy is carried; it is the stack's next layer.
  // CARRY: icca.preload @w.0[%{{.*}}] at [[AT:[0-9]+]]
  // CARRY: icca.repeat 0 times 1
  // CARRY: icca.layer %{{.*}} plus 1
  // CARRY-NEXT: icca.preload @w.0[%{{.*}}] at [[AT]]
  %y = te.repeat 5 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    %w = te.load @w[%l] : tensor<1x4xf32>
    %a = te.map(%h, %w) <(m = 1, n = 4), [(m, n), (m, n)] -> [(m, n)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32> loc("a")
    %s = te.append %a to @s[%l] : tensor<1x4xf32> -> tensor<4x4xf32>
    %b = te.reduce(%s) <(n = 4, m = 4 reduce), [(m, n)] -> [(n)]> {combiner = #te<combiner sum>} : (tensor<4x4xf32>) -> tensor<4xf32> loc("b")
    %c = te.map(%b) <(m = 1, n = 4), [(n)] -> [(m, n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<1x4xf32> loc("c")
    te.yield %c : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
