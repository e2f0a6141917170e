// RUN: not elk-opt %s 2>&1 | filecheck %s
// RUN: not elk-opt %s --verify-diagnostics --allow-unregistered-dialect -p cse -t nothing 2>&1 | filecheck %s --check-prefix=USAGE
// RUN: elk-opt %s --verify-diagnostics | filecheck %s --check-prefix=DIAGNOSTICS

// CHECK-NOT: Traceback
// CHECK-NOT: builtin.module
// CHECK: {{^.*}}errors_verify.mlir:[[#LINE:]]:3: error: Operation does not verify: result 'result' at position 0
// CHECK: {{^.*}}errors_verify.mlir:[[#LINE]]:3: note: see current operation: %z = "arith.addf"(%a, %a){{.*}} -> tensor<4xf32>
// CHECK-NOT: func.func

// USAGE: invalid choice: 'nothing'

// DIAGNOSTICS: result 'result' at position 0 does not verify
// DIAGNOSTICS: errors_verify.mlir:{{[0-9]+}}:3: error: Operation does not verify
// DIAGNOSTICS-NOT: builtin.module
func.func @f(%a: tensor<8xf32>) {
  %z = "arith.addf"(%a, %a) : (tensor<8xf32>, tensor<8xf32>) -> tensor<4xf32>
  func.return
}
