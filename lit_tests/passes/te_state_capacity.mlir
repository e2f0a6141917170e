// RUN: elk-opt %s -p 'te-state-capacity{entries=32}' | filecheck %s
// RUN: not elk-opt %s -p 'te-state-capacity{entries=8}' 2>&1 | filecheck %s --check-prefix=SMALL
// RUN: not elk-opt %s -p 'te-state-capacity{entries=0}' 2>&1 | filecheck %s --check-prefix=NONE

// NONE: a capacity of 0 entries holds nothing
// HBM reserves 32 entries; the run still appends to 12 and reads 13.
// CHECK: te.global state @k : tensor<2x4x32x16xf32>
// CHECK: te.global state @fixed : tensor<2x16x4xf32>
// CHECK: te.append {{.*}} -> tensor<2x4x13x16xf32>
// One of fixed size, of which rows are replaced, stays what it is.
// CHECK: te.update
// SMALL: state @k needs 13 entries in this run, the capacity is 8
te.global state @k : tensor<2x4x13x16xf32> {axis = 2 : i64, length = 12 : i64, inputs = ["past"], outputs = ["present"]}
te.global state @fixed : tensor<2x16x4xf32> {axis = 1 : i64, length = 16 : i64, inputs = ["old"], outputs = ["fixed"]}

func.func @main(%new: tensor<2x4x1x16xf32> {onnx.name = "new"}, %row: tensor<2x1x4xf32> {onnx.name = "row"}, %p: tensor<1xi64> {onnx.name = "p"}) -> (tensor<2x4x13x16xf32> {onnx.name = "y"}) {
  %k = te.append %new to @k : tensor<2x4x1x16xf32> -> tensor<2x4x13x16xf32>
  te.update %row to @fixed rows %p : tensor<2x1x4xf32>, tensor<1xi64>
  func.return %k : tensor<2x4x13x16xf32>
}
