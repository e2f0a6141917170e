// RUN: elk-opt %s | filecheck %s
// RUN: elk-opt %s | elk-opt | filecheck %s
// RUN: elk-opt %s --print-op-generic | elk-opt | filecheck %s

// CHECK-LABEL: @operands
func.func @operands(%x: tensor<2x4xf32>, %w: tensor<4x8xf32>, %max: tensor<f32>) -> tensor<2x8xf32> {
  // CHECK: onnx.MatMul(%x, %w) : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  %0 = onnx.MatMul(%x, %w) : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  // CHECK: onnx.Clip(%0, none, %max) : (tensor<2x8xf32>, none, tensor<f32>) -> tensor<2x8xf32>
  %1 = onnx.Clip(%0, none, %max) : (tensor<2x8xf32>, none, tensor<f32>) -> tensor<2x8xf32>
  // CHECK: onnx.Concat(%1, %1, %1) {axis = 0 : i64}
  %2 = onnx.Concat(%1, %1, %1) {axis = 0 : i64} : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<6x8xf32>
  // CHECK: onnx.Softmax(%1) {axis = 1 : i64, not.of.onnx = "kept"}
  %3 = onnx.Softmax(%1) {axis = 1 : i64, not.of.onnx = "kept"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %3 : tensor<2x8xf32>
}

// CHECK-LABEL: @results
func.func @results(%x: tensor<8x2x4xf32>, %w: tensor<1x12x4xf32>, %r: tensor<1x12x3xf32>) -> tensor<1x2x3xf32> {
  // CHECK: %y, %h = onnx.LayerNormalization
  // CHECK-SAME: -> (tensor<8x2x4xf32>, none, tensor<8x2x1xf32>)
  %scale = onnx.Initializer dense<1.0> : tensor<f32> -> tensor<4xf32>
  %y, %h = onnx.LayerNormalization(%x, %scale) : (tensor<8x2x4xf32>, tensor<4xf32>) -> (tensor<8x2x4xf32>, none, tensor<8x2x1xf32>)
  // CHECK: onnx.LSTM
  // CHECK-SAME: -> (none, tensor<1x2x3xf32>)
  %last = onnx.LSTM(%y, %w, %r) {hidden_size = 3 : i64} : (tensor<8x2x4xf32>, tensor<1x12x4xf32>, tensor<1x12x3xf32>) -> (none, tensor<1x2x3xf32>)
  func.return %last : tensor<1x2x3xf32>
}

// CHECK-LABEL: @constants
func.func @constants() -> tensor<4x4xf16> {
  // CHECK: onnx.Initializer dense<[1, -1]> : tensor<2xi64>
  %0 = onnx.Initializer dense<[1, -1]> : tensor<2xi64>
  // CHECK: onnx.Initializer dense<0.000000e+00> : tensor<f32> -> tensor<1024x1024xf32>
  %2 = onnx.Initializer dense<0.0> : tensor<f32> -> tensor<1024x1024xf32>
  // CHECK: onnx.Initializer ["a", "b"] -> tensor<2x!onnx.string>
  %3 = onnx.Initializer ["a", "b"] -> tensor<2x!onnx.string>
  // CHECK: onnx.Initializer #te.weight<[<"w" : tensor<2x8xf32>, "w.bin", 64, 64, "">], ["transpose 1 0", "slice 0 0 4 1", "reshape 2 4", "cast f16"]>
  %4 = onnx.Initializer #te.weight<[<"w" : tensor<2x8xf32>, "w.bin", 64, 64, "">], ["transpose 1 0", "slice 0 0 4 1", "reshape 2 4", "cast f16"]>
  // CHECK: onnx.Initializer #te.weight<[<"a" : tensor<4xf16>, "w.bin", 0, 8, "0123456789abcdef">,
  %5 = onnx.Initializer #te.weight<[<"a" : tensor<4xf16>, "w.bin", 0, 8, "0123456789abcdef">, <"b" : tensor<4xf16>, "w.bin", 8, 8, "">, <"c" : tensor<4xf16>, "w.bin", 16, 8, "">, <"d" : tensor<4xf16>, "w.bin", 24, 8, "">], ["stack"]>
  func.return %5 : tensor<4x4xf16>
}

// CHECK-LABEL: @graphs
func.func @graphs(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
  // Graphs may use values of the function around them.
  // CHECK: onnx.If(%c) ({
  // CHECK-NEXT: onnx.Neg(%x)
  // CHECK-NEXT: onnx.Yield
  // CHECK: }, {
  // CHECK: }) : (tensor<i1>) -> tensor<4xf32>
  %0 = onnx.If(%c) ({
    %1 = onnx.Neg(%x) : (tensor<4xf32>) -> tensor<4xf32>
    onnx.Yield %1 : tensor<4xf32>
  }, {
    onnx.Yield %x : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// CHECK-LABEL: @foreign
func.func @foreign(%x: tensor<1x4x8xf16>, %s: tensor<8xf16>) -> tensor<1x4x8xf16> {
  // CHECK: onnx.Custom "" "SimplifiedLayerNormalization"(%x, %s) {epsilon = 1.000000e-05 : f32} :
  %0 = onnx.Custom "" "SimplifiedLayerNormalization"(%x, %s) {epsilon = 1.0e-05 : f32} : (tensor<1x4x8xf16>, tensor<8xf16>) -> tensor<1x4x8xf16>
  // CHECK: onnx.Custom "com.microsoft" "SkipLayerNormalization"(%0, none, %s) : (tensor<1x4x8xf16>, none, tensor<8xf16>) -> (tensor<1x4x8xf16>, none, tensor<1x4x8xf16>)
  %1, %2 = onnx.Custom "com.microsoft" "SkipLayerNormalization"(%0, none, %s) : (tensor<1x4x8xf16>, none, tensor<8xf16>) -> (tensor<1x4x8xf16>, none, tensor<1x4x8xf16>)
  // CHECK: onnx.Custom "my.domain" "Twice" graphs ["body"](%2) ({
  %3 = onnx.Custom "my.domain" "Twice" graphs ["body"](%2) ({
  ^bb0(%a: tensor<1x4x8xf16>):
    onnx.Yield %a : tensor<1x4x8xf16>
  }) : (tensor<1x4x8xf16>) -> tensor<1x4x8xf16>
  func.return %2 : tensor<1x4x8xf16>
}

// CHECK-LABEL: @sequences
func.func @sequences(%x: tensor<4xf32>) -> !onnx.seq<tensor<4xf32>> {
  // CHECK: onnx.SequenceConstruct(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> !onnx.seq<tensor<4xf32>>
  %0 = onnx.SequenceConstruct(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> !onnx.seq<tensor<4xf32>>
  func.return %0 : !onnx.seq<tensor<4xf32>>
}
