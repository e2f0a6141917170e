// RUN: elk-opt %s | elk-opt | filecheck %s
// RUN: elk-opt %s --print-op-generic | elk-opt | filecheck %s

// CHECK:      northpole.tensor weight @w stack 2 : tensor<4x4xi8> = dense<1> : tensor<2x4x4xi8>
northpole.tensor weight @w stack 2 : tensor<4x4xi8> = dense<1> : tensor<2x4x4xi8>
// CHECK-NEXT: northpole.tensor state @s : tensor<1x3x4xi8> {axis = 1 : i64, length = 2 : i64, steps = dense<5.000000e-01> : tensor<1xf32>}
northpole.tensor state @s : tensor<1x3x4xi8> {axis = 1 : i64, length = 2 : i64, steps = dense<0.5> : tensor<1xf32>}
northpole.tensor input @i : tensor<1x4xi8> {inputs = ["i"]}
northpole.tensor output @o : tensor<1x4xi32> {outputs = ["o"]}
// CHECK:      northpole.block @b "b" in 4 out 4 phases 1 ways 2 {
northpole.block @b "b" in 4 out 4 phases 1 ways 2 {
^bb0(%layer: index, %x: tensor<1x4xi8>):
  // CHECK: %w = northpole.resident @w[%layer] : tensor<4x4xi8>
  %w = northpole.resident @w[%layer] : tensor<4x4xi8>
  // CHECK-NEXT: %y = northpole.execute <name = "y", kind = "contract", unit = "matrix"> plan <grid [m = 1, n = 4, k = 1], operands [exec {} preload {}, exec {} preload {}]> cards "n"(%x, %w) {
  %y = northpole.execute <name = "y", kind = "contract", unit = "matrix"> plan <grid [m = 1, n = 4, k = 1], operands [exec {} preload {}, exec {} preload {}]> cards "n"(%x, %w) {
  ^bb1(%a: tensor<1x4xi8>, %c: tensor<4x4xi8>):
    %z = te.contract(%a, %c) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xi8>, tensor<4x4xi8>) -> tensor<1x4xi32>
  } : (tensor<1x4xi8>, tensor<4x4xi8>) -> tensor<1x4xi32>
  %e = northpole.execute <name = "e", kind = "map", unit = "vector"> plan <grid [d = 1, k = 4], operands [exec {} preload {}]>(%x) {
  ^bb1(%a: tensor<1x4xi8>):
    %z = te.map(%a) <(d = 1, k = 4), [(d, k)] -> [(d, 0, k)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<1x4xi8>) -> tensor<1x1x4xi8>
  } : (tensor<1x4xi8>) -> tensor<1x1x4xi8>
  // CHECK: northpole.append %e to @s from 2 : tensor<1x1x4xi8> -> tensor<1x3x4xi8>
  %s = northpole.append %e to @s from 2 : tensor<1x1x4xi8> -> tensor<1x3x4xi8>
  // CHECK-NEXT: northpole.yield %y : tensor<1x4xi32>
  northpole.yield %y : tensor<1x4xi32>
}
// CHECK: northpole.program @p
northpole.program @p "m" <name = "w8a8", weight_bits = 8, activation_bits = 8, kv_bits = 8> <> users 1 fit 1 micro_batches 1 context 3 batch 1 limit "" {
  // CHECK-NEXT: %h = northpole.host @host {
  %h = northpole.host @host {
    %i = northpole.resident @i : tensor<1x4xi8>
    northpole.yield %i : tensor<1x4xi8>
  } : tensor<1x4xi8>
  // CHECK: %r = northpole.send @host -> @st bytes 4(%h : tensor<1x4xi8>) : tensor<1x4xi8>
  %r = northpole.send @host -> @st bytes 4(%h : tensor<1x4xi8>) : tensor<1x4xi8>
  // CHECK-NEXT: %t = northpole.stage @st "st" cards [0, 1] blocks [@b] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>(%r : tensor<1x4xi8>) do {
  %t = northpole.stage @st "st" cards [0, 1] blocks [@b] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>(%r : tensor<1x4xi8>) do {
  ^bb0(%x: tensor<1x4xi8>):
    // CHECK: northpole.call @b layer 1(%x{{.*}}) : (tensor<1x4xi8>) -> tensor<1x4xi32>
    %y = northpole.call @b layer 1(%x) : (tensor<1x4xi8>) -> tensor<1x4xi32>
    northpole.yield %y : tensor<1x4xi32>
  } : tensor<1x4xi32>
  %u = northpole.send @st -> @host bytes 16(%t : tensor<1x4xi32>) : tensor<1x4xi32>
  // CHECK: northpole.output %u to @o : tensor<1x4xi32>
  northpole.output %u to @o : tensor<1x4xi32>
}
