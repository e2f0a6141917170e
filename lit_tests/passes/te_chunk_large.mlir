// RUN: elk-opt %s -p 'te-chunk-large{chunks=2 large=2048}' | filecheck %s
// RUN: elk-opt %s -p 'te-chunk-large{chip=test-16}' | filecheck %s --check-prefix=WHOLE
// RUN: not elk-opt %s -p 'te-chunk-large' 2>&1 | filecheck %s --check-prefix=CHIP
// RUN: not elk-opt %s -p 'te-chunk-large{chunks=0}' 2>&1 | filecheck %s --check-prefix=NONE

// CHIP: te-chunk-large: name a chip with chip=NAME, or give chunks=N and large=BYTES
// NONE: te-chunk-large: 0 chunks are no operator

// The scores are 2 x 4 x 8 x 8, and 8 x 8 x 8 to the last product: both are cut into halves that are
// gone through one after the other. Queries and keys are read where they lie, the results joined.
// CHECK-LABEL: @scores
// CHECK: %[[S0:.*]] = te.contract(%q, %k) <(b = 1, h = 4, m = 8, n = 8, k = 4 reduce), [(4*b + h, m, k), (4*b + h, k, n)] -> [(b, h, m, n)]>{{.*}}-> tensor<1x4x8x8xf32>
// CHECK-NEXT: %[[P0:.*]] = te.softmax(%[[S0]])
// CHECK-NEXT: %[[D0:.*]] = te.map(%[[P0]], %[[S0]]) <(b = 1, h = 4, m = 8, n = 8), [(b, h, m, n), (b, h, m, n)] -> [(4*b + h, m, n)]>{{.*}}-> tensor<4x8x8xf32>
// CHECK-NEXT: %[[Y0:.*]] = te.contract(%[[D0]], %q) <(g = 4, m = 8, n = 4, k = 8 reduce), [(g, m, k), (g, k, n)] -> [(g, m, n)]>
// CHECK-NEXT: %[[S1:.*]] = te.contract(%q, %k) {{.*}}[(4*b + h + 4, m, k), (4*b + h + 4, k, n)] -> [(b, h, m, n)]>
// CHECK-NEXT: te.softmax(%[[S1]])
// CHECK-NEXT: te.map
// CHECK-NEXT: %[[Y1:.*]] = te.contract({{.*}}, %q) {{.*}}[(g, m, k), (g + 4, k, n)] -> [(g, m, n)]>
// CHECK-NEXT: %[[Y:.*]] = te.concat(%[[Y0]], %[[Y1]])
// CHECK-NEXT: func.return %[[Y]]
// WHOLE-LABEL: @scores
// WHOLE-NOT: te.concat
func.func @scores(%q: tensor<8x8x4xf32>, %k: tensor<8x4x8xf32>) -> tensor<8x8x4xf32> {
  %s = te.contract(%q, %k) <(b = 2, h = 4, m = 8, n = 8, k = 4 reduce), [(4*b + h, m, k), (4*b + h, k, n)] -> [(b, h, m, n)]> : (tensor<8x8x4xf32>, tensor<8x4x8xf32>) -> tensor<2x4x8x8xf32>
  %p = te.softmax(%s) <(b = 2, h = 4, m = 8, n = 8 reduce), [(b, h, m, n)] -> [(b, h, m, n)]> : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %d = te.map(%p, %s) <(b = 2, h = 4, m = 8, n = 8), [(b, h, m, n), (b, h, m, n)] -> [(4*b + h, m, n)]> {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<8x8x8xf32>
  %y = te.contract(%d, %q) <(g = 8, m = 8, n = 4, k = 8 reduce), [(g, m, k), (g, k, n)] -> [(g, m, n)]> : (tensor<8x8x8xf32>, tensor<8x8x4xf32>) -> tensor<8x8x4xf32>
  func.return %y : tensor<8x8x4xf32>
}

// A sum over the outermost axis needs all of it, and so does what counts positions along it.
// CHECK-LABEL: @summed
// CHECK-NOT: te.concat
func.func @summed(%x: tensor<2x4x8x8xf32>) -> tensor<4x8x8xf32> {
  %a = te.map(%x) <(b = 2, h = 4, m = 8, n = 8), [(b, h, m, n)] -> [(b, h, m, n)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %y = te.reduce(%a) <(b = 2 reduce, h = 4, m = 8, n = 8), [(b, h, m, n)] -> [(h, m, n)]> {combiner = #te<combiner sum>} : (tensor<2x4x8x8xf32>) -> tensor<4x8x8xf32>
  func.return %y : tensor<4x8x8xf32>
}

// An operator that would need 512 parts is cut into the 64 that there may be.
// CHECK-LABEL: @many
// WHOLE-LABEL: @many
// WHOLE: te.map(%x) <(i = 16384, j = 32), [(i, j)] -> [(i, j)]>
// WHOLE: te.map(%x) <(i = 16384, j = 32), [(i + 1032192, j)] -> [(i, j)]>
// WHOLE-NEXT: te.concat
func.func @many(%x: tensor<1048576x32xf32>) -> tensor<1048576x32xf32> {
  %y = te.map(%x) <(i = 1048576, j = 32), [(i, j)] -> [(i, j)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<1048576x32xf32>) -> tensor<1048576x32xf32>
  func.return %y : tensor<1048576x32xf32>
}
