// RUN: elk-opt %s -p te-merge-products --split-input-file | filecheck %s
// RUN: elk-opt %s -p te-merge-products,te-fold-views --split-input-file | filecheck %s --check-prefix=FOLDED

// Two weights of different width, stacked over layers: joined layer by layer.
// CHECK: te.global weight @a.merged stack 2 : tensor<4x5xf32> = #te.weight<[<"a0" : {{.*}}>, <"b0" : {{.*}}>, <"a1" : {{.*}}>, <"b1" : {{.*}}>], ["concat 1 2", "stack"]>
// CHECK-LABEL: @main
// CHECK: te.load @a.merged[%l] : tensor<4x5xf32>
// CHECK-NEXT: %[[P:.*]] = te.contract(%h, {{.*}}) <(m = 2, n = 5, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]>
// CHECK-NEXT: te.map(%[[P]]) <(d0 = 2, d1 = 3), [(d0, d1)] -> [(d0, d1)]>
// CHECK-NEXT: te.map(%[[P]]) <(d0 = 2, d1 = 2), [(d0, d1 + 3)] -> [(d0, d1)]>
// CHECK-NEXT: te.contract
// FOLDED: %[[P:.*]] = te.contract
// FOLDED-NEXT: te.contract(%[[P]], %[[P]], {{.*}}) {{.*}} [(m, i), (m, j + 3), (i, j, n)]
te.global weight @a stack 2 : tensor<4x3xf32> = #te.weight<[<"a0" : tensor<4x3xf32>, "none.bin", 0, 48, "">, <"a1" : tensor<4x3xf32>, "none.bin", 48, 48, "">], ["stack"]>
te.global weight @b stack 2 : tensor<4x2xf32> = #te.weight<[<"b0" : tensor<4x2xf32>, "none.bin", 96, 32, "">, <"b1" : tensor<4x2xf32>, "none.bin", 128, 32, "">], ["stack"]>
func.func @main(%x: tensor<2x4xf32>, %z: tensor<3x2x4xf32>) -> tensor<2x4xf32> {
  %y = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<2x4xf32>):
    %a = te.load @a[%l] : tensor<4x3xf32>
    %b = te.load @b[%l] : tensor<4x2xf32>
    %p = te.contract(%h, %a) <(m = 2, n = 3, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %q = te.contract(%h, %b) <(m = 2, n = 2, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x4xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
    %r = te.contract(%p, %q, %z) <(m = 2, n = 4, i = 3 reduce, j = 2 reduce), [(m, i), (m, j), (i, j, n)] -> [(m, n)]> {factors = 3 : i64} : (tensor<2x3xf32>, tensor<2x2xf32>, tensor<3x2x4xf32>) -> tensor<2x4xf32>
    te.yield %r : tensor<2x4xf32>
  } : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// -----

// Weights that are read in different ways stay apart.
// CHECK-LABEL: @apart
// CHECK: te.contract
// CHECK: te.contract
// FOLDED-LABEL: @apart
te.global weight @a : tensor<4x4xf32> = #te.weight<[<"a" : tensor<4x4xf32>, "none.bin", 0, 64, "">]>
te.global weight @b : tensor<4x4xf32> = #te.weight<[<"b" : tensor<4x4xf32>, "none.bin", 64, 64, "">]>
func.func @apart(%x: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %a = te.load @a : tensor<4x4xf32>
  %b = te.load @b : tensor<4x4xf32>
  %p = te.contract(%x, %a) <(m = 2, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %q = te.contract(%x, %b) <(m = 2, n = 4, k = 4 reduce), [(m, k), (n, k)] -> [(m, n)]> : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  func.return %p, %q : tensor<2x4xf32>, tensor<2x4xf32>
}
