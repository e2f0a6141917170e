// RUN: elk-opt %s -p te-canonicalize --split-input-file | filecheck %s

// Dimensions of one point go; a radix that never comes apart is one dimension; what is read twice is
// read once.
// CHECK-LABEL: @domains
// CHECK-NEXT: te.map(%x) <(d = 12), [(0, d)] -> [(0, d)]> {body = #te.body<(x0) {t0 = mul(x0, x0)} -> (t0)>}
// CHECK-NEXT: func.return
func.func @domains(%x: tensor<1x12xf32>) -> tensor<1x12xf32> {
  %y = te.map(%x, %x) <(b = 1, d0 = 3, d1 = 4), [(b, 4*d0 + d1), (b, 4*d0 + d1)] -> [(b, 4*d0 + d1)]>
    {body = #te.body<(x0, x1) {t0 = mul(x0, x1)} -> (t0)>} : (tensor<1x12xf32>, tensor<1x12xf32>) -> tensor<1x12xf32>
  func.return %y : tensor<1x12xf32>
}

// -----

// Equal operations, moves that move nothing, casts there and back, and dead operations go.
// CHECK-LABEL: @equal
// CHECK-NEXT: %[[E:.*]] = te.map(%x) {{.*}}exp
// CHECK-NEXT: te.map(%[[E]]) {{.*}} {body = #te.body<(x0) {t0 = add(x0, x0)} -> (t0)>}
// CHECK-NEXT: func.return
func.func @equal(%x: tensor<4xf16>) -> tensor<4xf16> {
  %a = te.map(%x) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4xf16>) -> tensor<4xf16>
  %b = te.map(%x) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4xf16>) -> tensor<4xf16>
  %dead = te.map(%x) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = log(x0)} -> (t0)>} : (tensor<4xf16>) -> tensor<4xf16>
  %same = te.map(%b) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32"), t1 = cast(t0 : "float16")} -> (t1)>} : (tensor<4xf16>) -> tensor<4xf16>
  %y = te.map(%a, %same) <(d = 4), [(d), (d)] -> [(d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xf16>
  func.return %y : tensor<4xf16>
}

// -----

// Small constants are computed; `1 + w` on a weight on disk becomes a step of its recipe.
// CHECK: te.global weight @w_1 : tensor<4xf32> = #te.weight<[{{.*}}], ["cast f32", "add 1.0"]>
// CHECK-NEXT: te.global weight @c_1 : tensor<3xf32> = dense<[2.000000e+00, 4.000000e+00, 6.000000e+00]>
// CHECK-LABEL: @constants
// CHECK-NEXT: te.load @w_1
// CHECK-NEXT: te.load @c_1
// CHECK-NEXT: func.return
te.global weight @w : tensor<4xf16> = #te.weight<[<"w" : tensor<4xf16>, "none.bin", 0, 8, "">]>
te.global weight @c : tensor<3xf32> = dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
func.func @constants() -> (tensor<4xf32>, tensor<3xf32>) {
  %w = te.load @w : tensor<4xf16>
  %c = te.load @c : tensor<3xf32>
  %a = te.map(%w) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32"), t1 = const(1.0 : "float32"), t2 = add(t1, t0)} -> (t2)>} : (tensor<4xf16>) -> tensor<4xf32>
  %b = te.map(%c) <(d = 3), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = add(x0, x0)} -> (t0)>} : (tensor<3xf32>) -> tensor<3xf32>
  func.return %a, %b : tensor<4xf32>, tensor<3xf32>
}

// -----

// What does not depend on the layer leaves the loop.
// CHECK-LABEL: @invariant
// CHECK-NEXT: te.map(%y) {{.*}}exp
// CHECK-NEXT: te.repeat 4
// CHECK-NEXT: ^
// CHECK-NEXT: te.map(%h, %e)
func.func @invariant(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %z = te.repeat 4 iter(%x) {
  ^bb0(%l : index, %h : tensor<4xf32>):
    %e = te.map(%y) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
    %s = te.map(%h, %e) <(d = 4), [(d), (d)] -> [(d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    te.yield %s : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %z : tensor<4xf32>
}
