// RUN: not elk-opt %s -p 'te-verify-quantized' 2>&1 | filecheck %s
// RUN: not elk-opt %s -p 'te-verify-quantized{bits=4}' 2>&1 | filecheck %s --check-prefix=NARROW

// CHECK: 1 of 2 products are not of integers of at most 8 bits:
// CHECK-NEXT: float{{.*}}: float32 x float32
// CHECK: te-quantize{scheme=w4a4
// NARROW: 2 of 2 products are not of integers of at most 4 bits:
// NARROW: int8 x int8
func.func @main(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %p: tensor<2x8xi8>, %q: tensor<8x4xi8>) -> (tensor<2x4xf32>, tensor<2x4xi32>, tensor<2x8xf32>) {
  %a = te.contract(%x, %w) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("float")
  %b = te.contract(%p, %q) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xi8>, tensor<8x4xi8>) -> tensor<2x4xi32>
  // A product that sums over nothing is work for a vector unit.
  %c = te.contract(%x, %x) <(m = 2, k = 8), [(m, k), (m, k)] -> [(m, k)]> : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %a, %b, %c : tensor<2x4xf32>, tensor<2x4xi32>, tensor<2x8xf32>
}
