// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: func.func @good
func.func @good() {
  func.return
}

// -----

// CHECK: errors_split.mlir:13:8: error: Operation does not verify
// CHECK: errors_split.mlir:13:8: note: see current operation: %z = "arith.addi"
func.func @indented(%a: i32) {
       %z = "arith.addi"(%a, %a) : (i32, i32) -> i64
  func.return
}

// -----

// The name of the node, and the file it came from, win over the place in the text.
// CHECK: model.onnx: error: in node 'Gemm_0': Operation does not verify
func.func @named(%a: i32) {
  %z = "arith.addi"(%a, %a) : (i32, i32) -> i64 loc("Gemm_0"("model.onnx":0:0))
  func.return
}

// -----

// CHECK: errors_split.mlir:32:1
// CHECK: not registered
func.func @unknown() {
  no.such_operation
}
