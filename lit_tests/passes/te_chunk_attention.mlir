// RUN: elk-opt %s -p te-chunk-attention{chunks=2} --split-input-file | filecheck %s
// RUN: elk-opt %s -p te-chunk-attention{chunks=1} --split-input-file | filecheck %s --check-prefix=WHOLE
// RUN: elk-opt %s -p te-chunk-attention{chip=test-16} --split-input-file | filecheck %s --check-prefix=FITS

// Each chunk reads its part of the batch, in every operand; the mask has no batch. The states are
// appended to once. One layer's keys and values are small for test-16: nothing to gain there.
// CHECK-LABEL: @main
// CHECK: te.append {{.*}} to @k[%l]
// CHECK-NEXT: te.append {{.*}} to @v[%l]
// CHECK-NEXT: %[[A:.*]] = te.attention(%x, %k, %v, %m) <(b = 2, g = 2, h = 2, s = 13 reduce, d = 16 local, e = 16 local), [(b, 32*g + 16*h + d), (b, g, s, d), (b, g, s, e), (s)] -> [(b, 32*g + 16*h + e)]> {scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64, state = @k} : (tensor<3x64xf32>, tensor<3x2x13x16xf32>, tensor<3x2x13x16xf32>, tensor<13xf32>) -> tensor<2x64xf32>
// CHECK-NEXT: %[[B:.*]] = te.attention(%x, %k, %v, %m) <(b = 1, g = 2, h = 2, s = 13 reduce, d = 16 local, e = 16 local), [(b + 2, 32*g + 16*h + d), (b + 2, g, s, d), (b + 2, g, s, e), (s)] -> [(b, 32*g + 16*h + e)]> {{{.*}}} : {{.*}} -> tensor<1x64xf32>
// CHECK-NEXT: %[[O:.*]] = te.concat(%[[A]], %[[B]]) <(d0 = 3, d1 = 64), [(d0, d1), (d0 - 2, d1)] -> [(d0, d1)]> {dim = 0 : i64} : (tensor<2x64xf32>, tensor<1x64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: te.yield %[[O]]
// WHOLE-LABEL: @main
// WHOLE-NOT: te.concat
// FITS-LABEL: @main
// FITS-NOT: te.concat
te.global state @k stack 2 : tensor<3x2x13x16xf32> {axis = 2 : i64, length = 12 : i64}
te.global state @v stack 2 : tensor<3x2x13x16xf32> {axis = 2 : i64, length = 12 : i64}
func.func @main(%q: tensor<3x64xf32>, %new: tensor<3x2x1x16xf32>, %m: tensor<13xf32>) -> tensor<3x64xf32> {
  %y = te.repeat 2 iter(%q) {
  ^bb0(%l: index, %x: tensor<3x64xf32>):
    %k = te.append %new to @k[%l] : tensor<3x2x1x16xf32> -> tensor<3x2x13x16xf32>
    %v = te.append %new to @v[%l] : tensor<3x2x1x16xf32> -> tensor<3x2x13x16xf32>
    %o = te.attention(%x, %k, %v, %m) <(b = 3, g = 2, h = 2, s = 13 reduce, d = 16 local, e = 16 local), [(b, 32*g + 16*h + d), (b, g, s, d), (b, g, s, e), (s)] -> [(b, 32*g + 16*h + e)]> {scale = 0.25 : f64, softcap = 50.0 : f64, state = @k} : (tensor<3x64xf32>, tensor<3x2x13x16xf32>, tensor<3x2x13x16xf32>, tensor<13xf32>) -> tensor<3x64xf32>
    te.yield %o : tensor<3x64xf32>
  } : (tensor<3x64xf32>) -> tensor<3x64xf32>
  func.return %y : tensor<3x64xf32>
}

// -----

// test-16 has 960 KiB. Keys and values of 256 KiB: whole. Of 768 KiB: four chunks of 192 KiB.
// CHECK-LABEL: @large
// FITS-LABEL: @large
// FITS: te.attention{{.*}}(b = 8,
// FITS-COUNT-4: te.attention{{.*}}(b = 2,
// FITS-NEXT: te.concat
// FITS-NOT: te.attention
func.func @large(%q: tensor<8x64xf32>, %k: tensor<8x64x64xf32>, %l: tensor<8x192x64xf32>) -> tensor<8x64xf32> {
  %p = te.attention(%q, %k, %k) <(b = 8, s = 64 reduce, d = 64 local, e = 64 local), [(b, d), (b, s, d), (b, s, e)] -> [(b, e)]> {scale = 0.25 : f64} : (tensor<8x64xf32>, tensor<8x64x64xf32>, tensor<8x64x64xf32>) -> tensor<8x64xf32>
  %o = te.attention(%p, %l, %l) <(b = 8, s = 192 reduce, d = 64 local, e = 64 local), [(b, d), (b, s, d), (b, s, e)] -> [(b, e)]> {scale = 0.25 : f64} : (tensor<8x64xf32>, tensor<8x192x64xf32>, tensor<8x192x64xf32>) -> tensor<8x64xf32>
  func.return %o : tensor<8x64xf32>
}

// -----

// Keys that are computed on chip are not preloaded, and one query has no batch: they stay whole.
// CHECK-LABEL: @on_chip
// CHECK-NOT: te.concat
// WHOLE-LABEL: @on_chip
// FITS-LABEL: @on_chip
te.global state @k : tensor<1x13x16xf32> {axis = 1 : i64, length = 12 : i64}
te.global state @p : tensor<2x13x16xf32> {axis = 1 : i64, length = 0 : i64}
func.func @on_chip(%q: tensor<1x16xf32>, %r: tensor<2x16xf32>, %new: tensor<1x1x16xf32>, %all: tensor<2x13x16xf32>) -> (tensor<1x16xf32>, tensor<2x16xf32>) {
  %k = te.append %new to @k : tensor<1x1x16xf32> -> tensor<1x13x16xf32>
  %o = te.attention(%q, %k, %k) <(b = 1, s = 13 reduce, d = 16 local, e = 16 local), [(b, d), (b, s, d), (b, s, e)] -> [(b, e)]> {scale = 0.25 : f64} : (tensor<1x16xf32>, tensor<1x13x16xf32>, tensor<1x13x16xf32>) -> tensor<1x16xf32>
  %a = te.append %all to @p : tensor<2x13x16xf32> -> tensor<2x13x16xf32>
  %u = te.attention(%r, %a, %a) <(b = 2, s = 13 reduce, d = 16 local, e = 16 local), [(b, d), (b, s, d), (b, s, e)] -> [(b, e)]> {scale = 0.25 : f64} : (tensor<2x16xf32>, tensor<2x13x16xf32>, tensor<2x13x16xf32>) -> tensor<2x16xf32>
  func.return %o, %u : tensor<1x16xf32>, tensor<2x16xf32>
}
