// RUN: elk-opt %s -p te-fold-views --split-input-file | filecheck %s
// RUN: elk-opt %s -p te-fold-views{split-products=false} --split-input-file | filecheck %s --check-prefix=WHOLE

// A reshape and a transpose behind a product: the product is split into heads, and so is the weight.
// CHECK: te.global weight @w : tensor<64x4x16xf32> = #te.weight<[{{.*}}], ["reshape 64 4 16"]>
// CHECK-LABEL: @behind
// CHECK-NEXT: te.load @w : tensor<64x4x16xf32>
// CHECK-NEXT: te.contract(%x, %w) <(b = 2, n0 = 4, n1 = 16, k = 64 reduce), [(b, k), (k, n0, n1)] -> [(n0, b, n1)]>
// CHECK-NEXT: func.return
// WHOLE-LABEL: @behind
// WHOLE: te.contract(%x, %w) <(b = 2, n = 64, k = 64 reduce), [(b, k), (k, n)] -> [(b, n)]>
// WHOLE-NEXT: te.map({{.*}}) <(b = 2, h = 4, d = 16), [(b, 16*h + d)] -> [(h, b, d)]>
te.global weight @w : tensor<64x64xf32> = #te.weight<[<"w" : tensor<64x64xf32>, "none.bin", 0, 16384, "">]>
func.func @behind(%x: tensor<2x64xf32>) -> tensor<4x2x16xf32> {
  %w = te.load @w : tensor<64x64xf32>
  %p = te.contract(%x, %w) <(b = 2, n = 64, k = 64 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32>
  %r = te.map(%p) <(b = 2, h = 4, d = 16), [(b, 16*h + d)] -> [(b, h, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x64xf32>) -> tensor<2x4x16xf32>
  %t = te.map(%r) <(b = 2, h = 4, d = 16), [(b, h, d)] -> [(h, b, d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x4x16xf32>) -> tensor<4x2x16xf32>
  func.return %t : tensor<4x2x16xf32>
}

// -----

// Into the reader where that splits nothing; an exact cast in front of a product goes too.
// CHECK-LABEL: @front
// CHECK-NEXT: te.contract(%x, %y) <(b = 2, n = 3, k = 8 reduce), [(k + 1, b), (k, n)] -> [(b, n)]> : (tensor<10x2xf16>, tensor<8x3xf16>) -> tensor<2x3xf32>
// CHECK-NEXT: func.return
func.func @front(%x: tensor<10x2xf16>, %y: tensor<8x3xf16>) -> tensor<2x3xf32> {
  %s = te.map(%x) <(k = 8, b = 2), [(k + 1, b)] -> [(k, b)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<10x2xf16>) -> tensor<8x2xf16>
  %t = te.map(%s) <(b = 2, k = 8), [(k, b)] -> [(b, k)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<8x2xf16>) -> tensor<2x8xf16>
  %f = te.map(%t) <(b = 2, k = 8), [(b, k)] -> [(b, k)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<2x8xf16>) -> tensor<2x8xf32>
  %g = te.map(%y) <(k = 8, n = 3), [(k, n)] -> [(k, n)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<8x3xf16>) -> tensor<8x3xf32>
  %p = te.contract(%f, %g) <(b = 2, n = 3, k = 8 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
  func.return %p : tensor<2x3xf32>
}

// -----

// A slice is not read through by a concat along it: what lies behind the slice is not outside.
// CHECK-LABEL: @sliced
// CHECK-NEXT: te.map(%x) <(d = 4), [(d)] -> [(d)]>
// CHECK-NEXT: te.concat
func.func @sliced(%x: tensor<8xf32>, %y: tensor<4xf32>) -> tensor<8xf32> {
  %s = te.map(%x) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<8xf32>) -> tensor<4xf32>
  %c = te.concat(%s, %y) <(d = 8), [(d), (d - 4)] -> [(d)]> {dim = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  func.return %c : tensor<8xf32>
}
