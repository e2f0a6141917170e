// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

func.func @f(%x: tensor<4xf32>, %y: tensor<4xi64>) {
  // CHECK: operand B has element type i64, but T is f32
  %0 = onnx.Add(%x, %y) : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // CHECK: operand A cannot have type tensor<4xi1>
  %0 = onnx.Cast(%x) {to = 9 : i64} : (tensor<4xf32>) -> tensor<4xi1>
  %1 = onnx.MatMul(%0, %0) : (tensor<4xi1>, tensor<4xi1>) -> tensor<i1>
  func.return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // CHECK: onnx.MatMul: B is missing
  %0 = onnx.MatMul(%x) : (tensor<4xf32>) -> tensor<f32>
  func.return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // CHECK: onnx.Relu: 2 given, at most 1 expected
  %0 = onnx.Relu(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  func.return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // CHECK: 2 operands but 1 operand types
  %0 = onnx.Add(%x, %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // CHECK: property 'to' expected
  %0 = onnx.Cast(%x) : (tensor<4xf32>) -> tensor<4xf16>
  func.return
}

// -----

func.func @f() {
  // CHECK: the value has type tensor<2xf32>, the result tensor<4xf32>
  %0 = onnx.Initializer dense<1.0> : tensor<2xf32> -> tensor<4xf32>
  func.return
}

// -----

func.func @f() {
  // CHECK: weight recipe step 'transpose 0' does not apply: [0] is no permutation of rank 2
  %0 = onnx.Initializer #te.weight<[<"w" : tensor<2x8xf32>, "w.bin", 64, 64, "">], ["transpose 0"]>
  func.return
}

// -----

func.func @f() {
  // CHECK: weight recipe leaves 2 tensors; expected 1
  %0 = onnx.Initializer #te.weight<[<"a" : tensor<2xf32>, "w.bin", 0, 8, "">, <"b" : tensor<2xf32>, "w.bin", 8, 8, "">]>
  func.return
}
