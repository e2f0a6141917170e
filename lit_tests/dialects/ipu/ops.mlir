// RUN: elk-opt %s | elk-opt | filecheck %s
// RUN: elk-opt %s --print-op-generic | elk-opt | filecheck %s

// CHECK:      ipu.remote weight @w stack 2 : tensor<4x4xf32> = dense<1.000000e+00> : tensor<2x4x4xf32>
ipu.remote weight @w stack 2 : tensor<4x4xf32> = dense<1.0> : tensor<2x4x4xf32>
// CHECK-NEXT: ipu.remote input @ids : tensor<2xi32> {inputs = ["ids"]}
ipu.remote input @ids : tensor<2xi32> {inputs = ["ids"]}
// CHECK-NEXT: ipu.remote state @s : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["a"], outputs = ["b"]}
ipu.remote state @s : tensor<6x4xf32> {axis = 0 : i64, length = 3 : i64, inputs = ["a"], outputs = ["b"]}

// Nested cuts, blocks in slots, and cores that hold nothing.
// CHECK-NEXT: ipu.var @x at 0 bytes 32 : tensor<4x4xf32> <4 cores, [4 at ((c floordiv 2) * 2) size 2, 4 at (((c + s) mod 2) * 2) size 2 at 0 size 1 slots 2]> of "node"
ipu.var @x at 0 bytes 32 : tensor<4x4xf32> <4 cores, [4 at ((c floordiv 2) * 2) size 2, 4 at (((c + s) mod 2) * 2) size 2 at 0 size 1 slots 2]> of "node"
// CHECK-NEXT: ipu.var @y at 64 bytes 64 : tensor<4x4xf32> <2 cores, [4, 4], where (c mod 2)>
ipu.var @y at 64 bytes 64 : tensor<4x4xf32> <2 cores, [4, 4], where (c mod 2)>
ipu.var @landing at 128 bytes 8 : tensor<2xf32> <4 cores, [2]>
ipu.var @t at 160 bytes 16 : tensor<1x4xf32> <4 cores, [1, 4]>

// CHECK: ipu.codelet @sum {
ipu.codelet @sum {
^bb0(%a: tensor<4x4xf32>):
  // CHECK: te.reduce
  %b = te.reduce(%a) <(n = 4, k = 4 reduce), [(n, k)] -> [(n)]> {combiner = #te<combiner sum>} : (tensor<4x4xf32>) -> tensor<4xf32>
}

// CHECK-LABEL: ipu.program @main {
ipu.program @main {
  // CHECK-NEXT: %[[R:.*]] = ipu.row 0
  %r = ipu.row 0
  // CHECK-NEXT: ipu.copy_start @w[%[[R]]] -> @x
  ipu.copy_start @w[%r] -> @x
  // CHECK-NEXT: ipu.copy_start @w[%[[R]]] -> @y rows @ids
  ipu.copy_start @w[%r] -> @y rows @ids
  // CHECK-NEXT: ipu.copy_start @s -> @t axis 0 limit 3
  ipu.copy_start @s -> @t axis 0 limit 3
  // CHECK-NEXT: ipu.copy_wait @x
  ipu.copy_wait @x
  // CHECK-NEXT: ipu.fill @t, 0.000000e+00 : f64
  ipu.fill @t, 0.0 : f64
  // CHECK-NEXT: ipu.reshard @x -> @y
  ipu.reshard @x -> @y
  // CHECK-NEXT: ipu.reshard @t -> @y axis 0 start 3
  ipu.reshard @t -> @y axis 0 start 3
  // CHECK-NEXT: ipu.repeat 1 times 3 {
  ipu.repeat 1 times 3 {
  // CHECK-NEXT: ^{{.*}}(%[[T:.*]]: index):
  ^bb0(%i: index):
    // CHECK-NEXT: ipu.row %[[T]] plus 1
    %next = ipu.row %i plus 1
    // CHECK-NEXT: ipu.execute @sum.local local @sum iterate <4 cores, [4 at ((c floordiv 2) * 2) size 2, 4 at (c mod 2) size 1 slots 2]> at [#ipu.expr<0>, #ipu.expr<(t mod 2)>] ins [#ipu.ref<@x[0, (t mod 2)]>] stats [#ipu.ref<@t>] outs [] step %[[T]]
    ipu.execute @sum.local local @sum iterate <4 cores, [4 at ((c floordiv 2) * 2) size 2, 4 at (c mod 2) size 1 slots 2]> at [#ipu.expr<0>, #ipu.expr<(t mod 2)>] ins [#ipu.ref<@x[0, (t mod 2)]>] stats [#ipu.ref<@t>] outs [] step %i
    // CHECK-NEXT: ipu.exchange <@x[_, (t mod 2)]> -> <@landing> from <((c + 1) mod 4)> step %[[T]]
    ipu.exchange <@x[_, (t mod 2)]> -> <@landing> from <((c + 1) mod 4)> step %i
    // CHECK-NEXT: ipu.copy <@landing> -> <@x[_, (t mod 2)]> step %[[T]]
    ipu.copy <@landing> -> <@x[_, (t mod 2)]> step %i
  }
  // CHECK: ipu.store_start @t -> @s axis 0 start 3
  ipu.store_start @t -> @s axis 0 start 3
  // CHECK-NEXT: ipu.store_start @t -> @s axis 0 rows @p
  ipu.store_start @t -> @s axis 0 rows @p
  // CHECK-NEXT: ipu.store_wait @t
  ipu.store_wait @t
}
