// RUN: elk-opt %s -p te-mask-state | filecheck %s

te.global state @k : tensor<2x4x13x16xf32> {axis = 2 : i64, length = 12 : i64}
te.global state @v : tensor<2x4x13x16xf32> {axis = 2 : i64, length = 12 : i64}

// The keys are the state @k: entries that are not filled are masked.
// CHECK-LABEL: @over_state
// CHECK: te.attention{{.*}}state = @k
func.func @over_state(%q: tensor<2x4x16xf32>, %new: tensor<2x4x1x16xf32>) -> tensor<2x4x16xf32> {
  %k = te.append %new to @k : tensor<2x4x1x16xf32> -> tensor<2x4x13x16xf32>
  %v = te.append %new to @v : tensor<2x4x1x16xf32> -> tensor<2x4x13x16xf32>
  %o = te.attention(%q, %k, %v) <(b = 2, h = 4, s = 13 reduce, d = 16 local, e = 16 local), [(b, h, d), (b, h, s, d), (b, h, s, e)] -> [(b, h, e)]> {scale = 0.25 : f64} : (tensor<2x4x16xf32>, tensor<2x4x13x16xf32>, tensor<2x4x13x16xf32>) -> tensor<2x4x16xf32>
  func.return %o : tensor<2x4x16xf32>
}

// Keys from elsewhere have no unfilled entries.
// CHECK-LABEL: @over_values
// CHECK: te.attention
// CHECK-NOT: state =
func.func @over_values(%q: tensor<2x4x16xf32>, %k: tensor<2x4x13x16xf32>) -> tensor<2x4x16xf32> {
  %o = te.attention(%q, %k, %k) <(b = 2, h = 4, s = 13 reduce, d = 16 local, e = 16 local), [(b, h, d), (b, h, s, d), (b, h, s, e)] -> [(b, h, e)]> {scale = 0.25 : f64} : (tensor<2x4x16xf32>, tensor<2x4x13x16xf32>, tensor<2x4x13x16xf32>) -> tensor<2x4x16xf32>
  func.return %o : tensor<2x4x16xf32>
}
