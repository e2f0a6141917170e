// RUN: not elk-opt %s -p 'cse,apply-individual-rewrite{matched-operation-index=99 operation-name="arith.addi" pattern-name="none"},dce' --crash-reproducer-dir %t.d 2>&1 | filecheck %s
// RUN: filecheck %s --check-prefix=FILE < %t.d/elk-opt-crash-apply-individual-rewrite.mlir
// RUN: not elk-opt %t.d/elk-opt-crash-apply-individual-rewrite.mlir -p 'apply-individual-rewrite{matched_operation_index=99 operation_name="arith.addi" pattern_name="none"}' --crash-reproducer-dir %t.d 2>&1 | filecheck %s

// CHECK-NOT: Traceback
// CHECK: {{^}}elk-opt: error: pass 'apply-individual-rewrite' crashed: IndexError: {{.*}}out of range
// CHECK-NEXT: {{^}}elk-opt: note: replay with: elk-opt {{.*}}elk-opt-crash-apply-individual-rewrite.mlir -p 'apply-individual-rewrite{matched_operation_index=99 operation_name="arith.addi" pattern_name="none"}'
// CHECK-NOT: func

// The input of the pass that crashed: cse has run.
// FILE: // Pass 'apply-individual-rewrite' of elk-opt crashed on the module below. Replay with:
// FILE-NEXT: //   elk-opt {{.*}}elk-opt-crash-apply-individual-rewrite.mlir -p 'apply-individual-rewrite{
// FILE: // Traceback
// FILE: // IndexError: {{.*}}
// FILE-NEXT: "builtin.module"() ({
// FILE: %x = "arith.addi"{{.*}} loc("{{.*}}crash.mlir":{{[0-9]+}}:3)
// FILE-NEXT: "func.return"(%x, %x)
func.func @f(%a: i32) -> (i32, i32) {
  %x = arith.addi %a, %a : i32
  %y = arith.addi %a, %a : i32
  func.return %x, %y : i32, i32
}
