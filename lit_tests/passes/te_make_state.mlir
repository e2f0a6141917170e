// RUN: elk-opt %s -p te-make-state --split-input-file | filecheck %s
// RUN: elk-opt %s -p te-make-state{prefill=false} --split-input-file | filecheck %s --check-prefix=DECODE

// A cache that grows: argument and result disappear.
// CHECK: te.global state @present.0.key : tensor<2x13x16xf32> {axis = 1 : i64, length = 12 : i64, inputs = ["past.0.key"], outputs = ["present.0.key"]}
// CHECK: func.func @main(%k: tensor<2x1x16xf32> {onnx.name = "k"}) -> (tensor<2x13x16xf32> {onnx.name = "y"}) {
// CHECK-NEXT: %all = te.append %k to @present.0.key : tensor<2x1x16xf32> -> tensor<2x13x16xf32>
// CHECK-NEXT: te.map(%all)
// CHECK-NEXT: func.return %y : tensor<2x13x16xf32>
// DECODE: te.append
func.func @main(%k: tensor<2x1x16xf32> {onnx.name = "k"}, %past: tensor<2x12x16xf32> {onnx.name = "past.0.key"})
    -> (tensor<2x13x16xf32> {onnx.name = "y"}, tensor<2x13x16xf32> {onnx.name = "present.0.key"}) {
  %all = te.concat(%past, %k) <(b = 2, s = 13, d = 16), [(b, s, d), (b, s - 12, d)] -> [(b, s, d)]> {dim = 1 : i64} : (tensor<2x12x16xf32>, tensor<2x1x16xf32>) -> tensor<2x13x16xf32>
  %y = te.map(%all) <(b = 2, s = 13, d = 16), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x13x16xf32>) -> tensor<2x13x16xf32>
  func.return %y, %all : tensor<2x13x16xf32>, tensor<2x13x16xf32>
}

// -----

// Values of a prefill: a state that is empty at first, along the axis that attention sums over.
// CHECK: te.global state @present.0.value : tensor<2x8x16xf32> {axis = 1 : i64, length = 0 : i64, outputs = ["present.0.value"]}
// CHECK: te.append %v to @present.0.value : tensor<2x8x16xf32> -> tensor<2x8x16xf32>
// CHECK-NEXT: te.softmax
// CHECK-NEXT: te.contract(%p, %v_1)
// CHECK-NEXT: func.return %y : tensor<2x4x16xf32>
// DECODE-NOT: te.append
func.func @main(%s: tensor<2x4x8xf32> {onnx.name = "s"}, %x: tensor<2x8x16xf32> {onnx.name = "x"})
    -> (tensor<2x4x16xf32> {onnx.name = "y"}, tensor<2x8x16xf32> {onnx.name = "present.0.value"}) {
  %v = te.map(%x) <(b = 2, s = 8, d = 16), [(b, s, d)] -> [(b, s, d)]> {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %p = te.softmax(%s) <(b = 2, m = 4, s = 8 reduce), [(b, m, s)] -> [(b, m, s)]> : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %y = te.contract(%p, %v) <(b = 2, m = 4, n = 16, k = 8 reduce), [(b, m, k), (b, k, n)] -> [(b, m, n)]> : (tensor<2x4x8xf32>, tensor<2x8x16xf32>) -> tensor<2x4x16xf32>
  func.return %y, %v : tensor<2x4x16xf32>, tensor<2x8x16xf32>
}
