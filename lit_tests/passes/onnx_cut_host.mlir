// RUN: elk-opt %s -p onnx-cut-host --split-input-file | filecheck %s

// The product stays on the chip; what has a shape that depends on data, and what reads it, does not.
// CHECK:      func.func private @device0(%x: tensor<4x8xf32> {onnx.name = "x"}) -> (tensor<4x8xf32> {onnx.name = "r"}) attributes {elk.place = "device"} {
// CHECK-NEXT:   %w = onnx.Initializer dense<5.000000e-01> : tensor<8x8xf32>
// CHECK-NEXT:   %p = onnx.MatMul(%x, %w)
// CHECK-NEXT:   %r = onnx.Relu(%p)
// CHECK-NEXT:   func.return %r : tensor<4x8xf32>
// CHECK:      func.func private @host0(%r: tensor<4x8xf32> {onnx.name = "r"}) -> (tensor<2x?xi64> {onnx.name = "i"}) attributes {elk.place = "host", elk.host_nodes = [
// CHECK-SAME:   {node = "found", operator = "NonZero", why = "the shape of its result depends on data"},
// CHECK-SAME:   {node = "turned", operator = "Neg", why = "it reads a tensor whose shape depends on data"}]} {
// CHECK-NEXT:   %f = onnx.NonZero(%r)
// CHECK-NEXT:   %i = onnx.Neg(%f)
// CHECK:      func.func @main(%x: tensor<4x8xf32>) -> (tensor<2x?xi64>, tensor<4x8xf32>) {
// CHECK-NEXT:   %r = func.call @device0(%x)
// CHECK-NEXT:   %i = func.call @host0(%r)
// CHECK-NEXT:   func.return %i, %r
func.func @main(%x: tensor<4x8xf32>) -> (tensor<2x?xi64>, tensor<4x8xf32>) {
  %w = onnx.Initializer dense<0.5> : tensor<8x8xf32>
  %p = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("product")
  %r = onnx.Relu(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("relu")
  %f = onnx.NonZero(%r) : (tensor<4x8xf32>) -> tensor<2x?xi64> loc("found")
  %i = onnx.Neg(%f) : (tensor<2x?xi64>) -> tensor<2x?xi64> loc("turned")
  func.return %i, %r : tensor<2x?xi64>, tensor<4x8xf32>
}

// -----

// Behind the host a product is worth another piece for the chip, an addition alone is not. A constant
// is repeated where it is read.
// CHECK-LABEL: @device0(%y
// CHECK:         onnx.Sqrt
// CHECK: @host0(
// CHECK-SAME:    {node = "det", operator = "Det", why = "no lowering for this operator"}]
// CHECK: @device1(
// CHECK:         onnx.Initializer dense<5.000000e-01>
// CHECK:         onnx.MatMul
// CHECK: @host1(
// CHECK-SAME:    {node = "det2", operator = "Det",
// CHECK-SAME:    {node = "sum", operator = "Add", why = "behind the host, and no product"}]
// CHECK:         onnx.Initializer dense<5.000000e-01>
// CHECK-LABEL: @main(%y
// CHECK-NEXT:    func.call @device0
// CHECK-NEXT:    func.call @host0
// CHECK-NEXT:    func.call @device1
// CHECK-NEXT:    func.call @host1
func.func @main(%y: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %w = onnx.Initializer dense<0.5> : tensor<4x4xf32>
  %0 = onnx.Sqrt(%y) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = onnx.Det(%0) : (tensor<4x4xf32>) -> tensor<f32> loc("det")
  %2 = onnx.Mul(%0, %1) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %3 = onnx.MatMul(%2, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = onnx.Det(%3) : (tensor<4x4xf32>) -> tensor<f32> loc("det2")
  %5 = onnx.Add(%4, %w) : (tensor<f32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("sum")
  func.return %5 : tensor<4x4xf32>
}

// -----

// A model without such nodes stays as it is.
// CHECK-NOT:   @device0
// CHECK: func.func @main
// CHECK-NEXT:  onnx.Relu
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
