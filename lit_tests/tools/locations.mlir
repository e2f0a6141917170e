// RUN: elk-opt %s --print-debuginfo | filecheck %s
// RUN: elk-opt %s --print-debuginfo --print-op-generic -o %t
// RUN: elk-opt %t -f mlir --print-debuginfo | filecheck %s

// An operation without a location gets the place of its first token, as in mlir-opt.
// CHECK: "test.op"() : () -> () loc("{{.*}}locations.mlir":11:1)
// CHECK: %x = "test.op"() : () -> i32 loc("{{.*}}locations.mlir":12:3)
// CHECK: "test.op"() : () -> () loc("node"("model.onnx":0:0))
// CHECK: "test.op"() : () -> () loc(unknown)

"test.op"() : () -> ()
  %x = "test.op"() : () -> i32
"test.op"() : () -> () loc("node"("model.onnx":0:0))
"test.op"() : () -> () loc(unknown)
