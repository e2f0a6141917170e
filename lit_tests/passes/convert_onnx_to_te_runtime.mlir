// RUN: elk-opt %s -p convert-onnx-to-te | filecheck %s

// A product of floats that are quantised as they come, with integers: an exact product in 32 bits.
// CHECK-LABEL: func.func @dynamic
// CHECK:         te.reduce(%x) {{.*}}combiner min
// CHECK:         te.reduce(%x) {{.*}}combiner max
// CHECK:         te.contract(%{{.*}}, %{{.*}}) <(m = 2, n = 4, k = 3 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x3xi32>, tensor<3x4xi32>) -> tensor<2x4xi32>
func.func @dynamic(%x: tensor<2x3xf32>, %w: tensor<3x4xi8>, %s: tensor<4xf32>) -> tensor<2x4xf32> {
  %y = onnx.Custom "com.microsoft" "DynamicQuantizeMatMul"(%x, %w, %s) : (tensor<2x3xf32>, tensor<3x4xi8>, tensor<4xf32>) -> tensor<2x4xf32> loc("dynamic")
  func.return %y : tensor<2x4xf32>
}

// Queries, keys and values are one product.
// CHECK-LABEL: func.func @attention
// CHECK:         te.contract(%{{.*}}, %w, %b) <(m0 = 6, n = 24, k = 8 reduce)
// CHECK:         te.attention
func.func @attention(%x: tensor<2x3x8xf32>, %w: tensor<8x24xf32>, %b: tensor<24xf32>) -> tensor<2x3x8xf32> {
  %y = onnx.Custom "com.microsoft" "Attention"(%x, %w, %b) {num_heads = 2 : i64} : (tensor<2x3x8xf32>, tensor<8x24xf32>, tensor<24xf32>) -> tensor<2x3x8xf32> loc("attention")
  func.return %y : tensor<2x3x8xf32>
}
