// RUN: not elk-opt %s 2>&1 | filecheck %s

// CHECK: {{^.*}}errors_parse.mlir:8:18: error: expected
// CHECK-NEXT: {{^  func.return %a 32$}}
// CHECK-NEXT: {{^ +\^+$}}
func.func @f(%a: i32) -> i32 {

  func.return %a 32
}
