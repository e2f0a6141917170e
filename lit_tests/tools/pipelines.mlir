// RUN: elk-opt --list-pipelines | filecheck %s --check-prefix=LIST
// RUN: elk-opt %s -p cleanup | filecheck %s
// RUN: elk-opt %s -p cse,cleanup --print-ir-before-all 2>&1 | filecheck %s --check-prefix=ORDER
// RUN: not elk-opt %s -p 'cse,cleanup{a=1}' 2>&1 | filecheck %s --check-prefix=OPTIONS

// LIST: {{^cleanup +canonicalize,cse,dce$}}

// ORDER: IR Dump Before cse
// ORDER: IR Dump Before canonicalize
// ORDER: IR Dump Before cse
// ORDER: IR Dump Before dce

// OPTIONS: pass-pipeline:1:5: error: pipeline 'cleanup' takes no options

// CHECK: func.func @f
// CHECK-NEXT: %[[X:.*]] = arith.addi %a, %a : i32
// CHECK-NEXT: func.return %[[X]], %[[X]]
func.func @f(%a: i32) -> (i32, i32) {
  %x = arith.addi %a, %a : i32
  %y = arith.addi %a, %a : i32
  %unused = arith.muli %a, %a : i32
  func.return %x, %y : i32, i32
}
