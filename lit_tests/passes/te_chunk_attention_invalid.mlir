// RUN: elk-opt %s -p te-chunk-attention --verify-diagnostics | filecheck %s
// RUN: elk-opt %s -p te-chunk-attention{chunks=0} --verify-diagnostics | filecheck %s --check-prefix=NONE

// CHECK: te-chunk-attention: name a chip with chip=NAME, or how many with chunks=N
// NONE: te-chunk-attention: 0 chunks are no attention; 1 leaves it whole
func.func @main(%q: tensor<2x16xf32>) -> tensor<2x16xf32> {
  func.return %q : tensor<2x16xf32>
}
