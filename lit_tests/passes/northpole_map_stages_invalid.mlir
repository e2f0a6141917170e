// RUN: elk-opt %s -p northpole-map-stages --split-input-file --verify-diagnostics | filecheck %s
// RUN: elk-opt %s -p 'northpole-map-stages{precision=graph}' --split-input-file --verify-diagnostics | filecheck %s --check-prefix=GRAPH
// RUN: elk-opt %s -p 'northpole-map-stages{precision=w4a16}' --split-input-file --verify-diagnostics | filecheck %s --check-prefix=WIDE

// One product too large for all the cards together.
// CHECK: block 0: needs 3,145,920 bytes on each core, which has 750,000 (2,395,920 too many)
// CHECK: weights on each of 16 cards
// GRAPH: 1 of 1 products are of float16, the vector-matrix units take int8, int4 and int2
// WIDE: w4a16: activations of 16 bits, but the vector-matrix units take 2, 4 or 8
builtin.module {
  te.global weight @w : tensor<65536x393216xf16> = #te.weight<[<"w" : tensor<65536x393216xf16>, "w.bin", 0, 51539607552, "">]>
  func.func @main(%x: tensor<1x65536xf16>) -> tensor<1x393216xf16> {
    %w = te.load @w : tensor<65536x393216xf16>
    %y = te.contract(%x, %w) <(b = 1, n = 393216, k = 65536 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<1x65536xf16>, tensor<65536x393216xf16>) -> tensor<1x393216xf16>
    func.return %y : tensor<1x393216xf16>
  }
}

// -----

// CHECK: no unit of a NorthPole core runs 'gather' (0 operations on
builtin.module {
  te.global weight @w : tensor<8x8xi8> = dense<0> : tensor<8x8xi8>
  func.func @main(%x: tensor<1x8xi8>, %ids: tensor<1xi64>) -> tensor<1x8xi32> {
    %w = te.load @w : tensor<8x8xi8>
    %g = te.gather(%x, %ids) <(i = 1, d = 8, rows = 1 reduce), [(rows, d), (i)] -> [(i, d)]> : (tensor<1x8xi8>, tensor<1xi64>) -> tensor<1x8xi8>
    %y = te.contract(%g, %w) <(b = 1, n = 8, k = 8 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<1x8xi8>, tensor<8x8xi8>) -> tensor<1x8xi32>
    func.return %y : tensor<1x8xi32>
  }
}

// -----

// CHECK: no unit of a NorthPole core runs 'topk' ({{.*}} operations on
builtin.module {
  te.global weight @w : tensor<8x8xf32> = dense<0.0> : tensor<8x8xf32>
  func.func @main(%x: tensor<1x8xf32>) -> (tensor<1x2xf32>, tensor<1x2xi64>) {
    %w = te.load @w : tensor<8x8xf32>
    %y = te.contract(%x, %w) <(b = 1, n = 8, k = 8 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<1x8xf32>, tensor<8x8xf32>) -> tensor<1x8xf32>
    %t, %i = te.topk(%y) <(m = 1, n = 8 local, k = 2 local), [(m, n)] -> [(m, k), (m, k)]> {n = 1 : i64, k = 2 : i64} : (tensor<1x8xf32>) -> (tensor<1x2xf32>, tensor<1x2xi64>)
    func.return %t, %i : tensor<1x2xf32>, tensor<1x2xi64>
  }
}

// -----

// CHECK: has no product with weights: nothing to put on cards
builtin.module {
  func.func @main(%x: tensor<1x8xf16>) -> tensor<1x8xf16> {
    func.return %x : tensor<1x8xf16>
  }
}

// -----

// CHECK: a module with one function is mapped, this one has 0
builtin.module {
}
