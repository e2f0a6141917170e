// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16}' --print-debuginfo | filecheck %s
// RUN: not elk-opt %s -p convert-te-to-icca 2>&1 | filecheck %s --check-prefix=NOCHIP
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-17}' 2>&1 | filecheck %s --check-prefix=BADCHIP

// NOCHIP: convert-te-to-icca: name a chip with chip=NAME
// BADCHIP: test-17

te.global weight @w stack 2 : tensor<4x4xf32> = dense<1.0> : tensor<2x4x4xf32>
te.global weight @table : tensor<9x4xf32> = dense<1.0> : tensor<9x4xf32>
te.global state @s stack 2 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["p0", "p1"], outputs = ["n0", "n1"]}

// CHECK: builtin.module attributes {icca.chip = #icca.chip<"test-16"
// CHECK: icca.hbm weight @w stack 2 : tensor<4x4xf32>
// CHECK: icca.hbm weight @table : tensor<9x4xf32>
// CHECK: icca.hbm state @s stack 2 : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["p0", "p1"], outputs = ["n0", "n1"]}
// CHECK: icca.hbm input @ids : tensor<1xi64> {inputs = ["ids"]} loc("ids")
// CHECK: icca.hbm output @y : tensor<1x4xf32> {outputs = ["y"]} loc("y")

func.func @main(%ids: tensor<1xi64> {onnx.name = "ids"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  %t = te.load @table : tensor<9x4xf32>
  // A table in HBM gives only the rows that are asked for.
  // CHECK: %[[ROWS:.*]] = icca.preload @table rows @ids : !icca.handle<tensor<1x4xf32>> loc("embed")
  // CHECK-NEXT: %[[E:.*]] = icca.execute "embed"(%[[ROWS]]) {
  %e = te.gather(%t, %ids) <(m = 1, d = 4, r = 9 reduce), [(r, d), (m)] -> [(m, d)]> : (tensor<9x4xf32>, tensor<1xi64>) -> tensor<1x4xf32> loc("embed")
  // What a loop carries enters it, and goes around, through a copy.
  // CHECK: %[[IN:.*]] = icca.execute "layers"(%[[E]]) {
  // CHECK: %[[OUT:.*]] = icca.repeat 0 times 2 iter(%[[IN]]) {
  // CHECK-NEXT: ^{{.*}}(%[[L:[^ :]*]]: index{{.*}}, %[[H:[^ :]*]]: tensor<1x4xf32>{{.*}}):
  %y = te.repeat 2 iter(%e) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    // New entries of a state are stored; readers insert them behind what is filled.
    // CHECK-NEXT: icca.store %[[H]] to @s[%[[L]]] from 3 : tensor<1x4xf32> loc("cache")
    %s = te.append %h to @s[%l] : tensor<1x4xf32> -> tensor<4x4xf32> loc("cache")
    // CHECK-NEXT: %[[S:.*]] = icca.preload @s[%[[L]]] : !icca.handle<tensor<4x4xf32>>
    // CHECK-NEXT: %[[M:.*]] = icca.execute "sum"(%[[S]]) entries(%[[H]] : tensor<1x4xf32>) {
    // CHECK: icca.insert %{{.*}} into %{{.*}} axis 0 from 3
    %m = te.reduce(%s) <(o = 1, n = 4, k = 4 reduce), [(k, n)] -> [(o, n)]> {combiner = #te<combiner sum>} : (tensor<4x4xf32>) -> tensor<1x4xf32> loc("sum")
    %w = te.load @w[%l] : tensor<4x4xf32>
    // CHECK: %[[W:.*]] = icca.preload @w[%[[L]]] : !icca.handle<tensor<4x4xf32>> loc("project")
    // CHECK-NEXT: %[[P:.*]] = icca.execute "project"(%[[M]], %[[W]]) {
    %p = te.contract(%m, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("project")
    // CHECK: %[[NEXT:.*]] = icca.execute "layers#1"(%[[P]]) {
    // CHECK: icca.yield %[[NEXT]] : tensor<1x4xf32>
    te.yield %p : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32> loc("layers")
  // CHECK: icca.store %[[OUT]] to @y : tensor<1x4xf32> loc("y")
  func.return %y : tensor<1x4xf32>
}
