// RUN: elk-opt %s -p convert-onnx-to-te | filecheck %s

// The inputs of all steps are quantised by their range, widened to hold 0 …
// CHECK-LABEL: func.func @main(%x
// CHECK:         %[[LOW:.*]] = te.reduce(%[[X:.*]]) <(r0 = 2 reduce, r1 = 3 reduce), {{.*}}combiner min
// CHECK:         %[[HIGH:.*]] = te.reduce(%[[X]]) <(r0 = 2 reduce, r1 = 3 reduce), {{.*}}combiner max
// CHECK:         %[[STEP:.*]] = te.map(%[[LOW]], %[[HIGH]]) {{.*}}const(255.0 : "float32"), t6 = div(t3, t5)
// CHECK:         %[[Q:.*]] = te.map(%[[X]], %[[LOW]], %[[STEP]]) {{.*}}-> tensor<2x3xi32>
// … multiplied as integers, and scaled by both steps.
// CHECK:         %[[GIVEN:.*]] = te.contract(%[[Q]], %{{.*}}, %[[STEP]], %{{.*}}) <(n = 2, m = 4, k = 3 reduce), [(n, k), (k, m), (), ()] -> [(n, m)]> {epilogue = #te.body<(x0, x1, x2) {t0 = cast(x0 : "float32"), t1 = mul(x1, x2), t2 = mul(t0, t1)} -> (t2)>}
// The state is quantised anew; its weights have a step a column. The inputs' share is added.
// CHECK:         %[[GATES:.*]] = te.contract({{.*}}, %[[GIVEN]]) <(n = 2, m = 4, k = 1 reduce), [(n, k), (k, m), (), (m), (n, m)] -> [(n, m)]>
// CHECK:         te.map(%[[GATES]], %[[GATES]], %[[GATES]], %[[GATES]])
// CHECK-SAME:    tanh
func.func @main(%x: tensor<1x2x3xf32>) -> tensor<1x1x2x1xf32> {
  %w = onnx.Initializer dense<[[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]]> : tensor<1x3x4xi8>
  %r = onnx.Initializer dense<[[[1, 2, 3, 4]]]> : tensor<1x1x4xi8>
  %ws = onnx.Initializer dense<0.5> : tensor<1xf32>
  %rs = onnx.Initializer dense<[[0.5, 0.25, 0.125, 1.0]]> : tensor<1x4xf32>
  %0 = onnx.Custom "com.microsoft" "DynamicQuantizeLSTM"(%x, %w, %r, none, none, none, none, none, %ws, none, %rs) {hidden_size = 1 : i64} : (tensor<1x2x3xf32>, tensor<1x3x4xi8>, tensor<1x1x4xi8>, none, none, none, none, none, tensor<1xf32>, none, tensor<1x4xf32>) -> tensor<1x1x2x1xf32> loc("lstm")
  func.return %0 : tensor<1x1x2x1xf32>
}
