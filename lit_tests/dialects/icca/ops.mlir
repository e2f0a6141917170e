// RUN: elk-opt %s | elk-opt | filecheck %s
// RUN: elk-opt %s --print-op-generic | elk-opt | filecheck %s

// CHECK:      icca.hbm weight @w stack 2 : tensor<4x4xf32> = dense<1.000000e+00> : tensor<2x4x4xf32>
icca.hbm weight @w stack 2 : tensor<4x4xf32> = dense<1.0> : tensor<2x4x4xf32>
// CHECK-NEXT: icca.hbm weight @table : tensor<9x4xf32>
icca.hbm weight @table : tensor<9x4xf32> = dense<1.0> : tensor<9x4xf32>
// CHECK-NEXT: icca.hbm input @ids : tensor<1xi64> {inputs = ["ids"]}
icca.hbm input @ids : tensor<1xi64> {inputs = ["ids"]}
// CHECK-NEXT: icca.hbm state @s stack 2 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["a", "b"], outputs = ["c", "d"]}
icca.hbm state @s stack 2 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["a", "b"], outputs = ["c", "d"]}
// CHECK-NEXT: icca.hbm output @y : tensor<1x4xf32> {outputs = ["y"]}
icca.hbm output @y : tensor<1x4xf32> {outputs = ["y"]}

// CHECK-LABEL: icca.program @main {
icca.program @main {
  // CHECK-NEXT: %x = icca.preload @table rows @ids at 64 : !icca.handle<tensor<1x4xf32>>
  %x = icca.preload @table rows @ids at 64 : !icca.handle<tensor<1x4xf32>>
  // CHECK-NEXT: %e = icca.execute "embed"(%x) plan <grid [m = 1, n = 2], operands [exec {} preload {}]> {
  %e = icca.execute "embed"(%x) plan <grid [m = 1, n = 2], operands [exec {} preload {}]> {
  ^bb0(%x_1: !icca.handle<tensor<1x4xf32>>):
    // CHECK: %{{.*}} = icca.distribute %{{.*}} : !icca.handle<tensor<1x4xf32>> -> tensor<1x4xf32>
    %0 = icca.distribute %x_1 : !icca.handle<tensor<1x4xf32>> -> tensor<1x4xf32>
    // CHECK-NEXT: icca.tile(%{{.*}}) at [0] {
    %1 = icca.tile(%0) at [0] {
    ^bb0(%2: tensor<1x4xf32>):
      %3 = te.map(%2) <(m = 1, n = 4), [(m, n)] -> [(m, n)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<1x4xf32>) -> tensor<1x4xf32>
    } : (tensor<1x4xf32>) -> tensor<1x4xf32>
    icca.yield %1 : tensor<1x4xf32>
  } : (!icca.handle<tensor<1x4xf32>>) -> tensor<1x4xf32>
  // CHECK: %{{.*}} = icca.layer 0
  %l0 = icca.layer 0
  %w0 = icca.preload @w[%l0] at 128 : !icca.handle<tensor<4x4xf32>>
  // CHECK: %out, %w1 = icca.repeat 0 times 1 iter(%e, %w0) {
  %out, %w1 = icca.repeat 0 times 1 iter(%e, %w0) {
  ^bb0(%l: index, %h: tensor<1x4xf32>, %w: !icca.handle<tensor<4x4xf32>>):
    // CHECK: icca.store %h to @s[%l] from 3 : tensor<1x4xf32>
    icca.store %h to @s[%l] from 3 : tensor<1x4xf32>
    // CHECK: icca.store %h to @s[%l] rows @p : tensor<1x4xf32>
    icca.store %h to @s[%l] rows @p : tensor<1x4xf32>
    %s = icca.preload @s[%l] at 192 : !icca.handle<tensor<4x4xf32>>
    // CHECK: icca.execute "p"(%s, %w) entries(%h : tensor<1x4xf32>) plan <grid [m = 2, n = 1, k = 2], operands [exec {} preload {}, exec {k = 2} preload {k = 2}], root, rings [k]> {
    %p = icca.execute "p"(%s, %w) entries(%h : tensor<1x4xf32>) plan <grid [m = 2, n = 1, k = 2], operands [exec {} preload {}, exec {k = 2} preload {k = 2}], root, rings [k]> {
    ^bb0(%s_1: !icca.handle<tensor<4x4xf32>>, %w_1: !icca.handle<tensor<4x4xf32>>, %h_1: tensor<1x4xf32>):
      // CHECK: %{{.*}} = icca.insert %{{.*}} into %{{.*}} axis 0 from 3 : tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>> -> !icca.handle<tensor<4x4xf32>>
      %i = icca.insert %h_1 into %s_1 axis 0 from 3 : tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>> -> !icca.handle<tensor<4x4xf32>>
      // CHECK: icca.distribute %{{.*}} at 256 :
      %a = icca.distribute %i at 256 : !icca.handle<tensor<4x4xf32>> -> tensor<4x4xf32>
      %b = icca.distribute %w_1 : !icca.handle<tensor<4x4xf32>> -> tensor<4x4xf32>
      // CHECK: icca.tile(%{{.*}}, %{{.*}}) at [320] landing [-1, 384] {
      %t = icca.tile(%a, %b) at [320] landing [-1, 384] {
      ^bb0(%c: tensor<4x4xf32>, %d: tensor<4x4xf32>):
        %f = te.contract(%c, %d) <(m = 4, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<2x4x4xf32>
      // CHECK: icca.reduce(%{{.*}}) gathered [400] merged [416] at [432] : (tensor<2x4x4xf32>) -> tensor<4x4xf32>
      %r = icca.reduce(%t) gathered [400] merged [416] at [432] : (tensor<2x4x4xf32>) -> tensor<4x4xf32>
      icca.yield %r : tensor<4x4xf32>
    } : (!icca.handle<tensor<4x4xf32>>, !icca.handle<tensor<4x4xf32>>) -> tensor<4x4xf32>
    // CHECK: icca.execute "sum"
    %n = icca.execute "sum"(%p) {
    ^bb0(%p_1: tensor<4x4xf32>):
      // CHECK: icca.relayout %{{.*}} at 0 : tensor<4x4xf32> -> tensor<4x4xf32>
      %a = icca.relayout %p_1 at 0 : tensor<4x4xf32> -> tensor<4x4xf32>
      %t = icca.tile(%a) {
      ^bb0(%c: tensor<4x4xf32>):
        %f = te.reduce(%c) <(o = 1, n = 4, k = 4 reduce), [(k, n)] -> [(o, n)]> {combiner = #te<combiner sum>} : (tensor<4x4xf32>) -> tensor<1x4xf32>
      } : (tensor<4x4xf32>) -> tensor<1x1x4xf32>
      %r = icca.reduce(%t) : (tensor<1x1x4xf32>) -> tensor<1x4xf32>
      icca.yield %r : tensor<1x4xf32>
    } : (tensor<4x4xf32>) -> tensor<1x4xf32>
    // CHECK: %{{.*}} = icca.layer %l plus 1
    %l1 = icca.layer %l plus 1
    %w2 = icca.preload @w[%l1] at 128 : !icca.handle<tensor<4x4xf32>>
    // CHECK: icca.yield %n, %w2 : tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>>
    icca.yield %n, %w2 : tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>>
  } : (tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>>) -> (tensor<1x4xf32>, !icca.handle<tensor<4x4xf32>>)
  // CHECK: icca.store %out to @y : tensor<1x4xf32>
  icca.store %out to @y : tensor<1x4xf32>
}
