// RUN: elk-opt %s -p canonicalize,cse,dce --print-ir-before=cse --print-ir-after=canonicalize,dce 2> %t.err | filecheck %s --check-prefix=OUT
// RUN: filecheck %s --check-prefix=SOME < %t.err
// RUN: elk-opt %s -p canonicalize,cse --print-ir-before-all --print-ir-after-all > %t.out 2> %t.all
// RUN: filecheck %s --check-prefix=ALL < %t.all
// RUN: elk-opt %s --print-ir-before-all --print-ir-after-all > %t.out 2> %t.none
// RUN: filecheck %s --check-prefix=NONE --allow-empty < %t.none
// RUN: not elk-opt %s -p cse --print-ir-after=csee 2>&1 | filecheck %s --check-prefix=UNKNOWN

// OUT-NOT: IR Dump
// OUT: func.func @f
// OUT-NOT: IR Dump

// SOME: // -----// IR Dump After canonicalize //----- //
// SOME: arith.addi
// SOME: arith.addi
// SOME: // -----// IR Dump Before cse //----- //
// SOME: arith.addi
// SOME: arith.addi
// SOME: // -----// IR Dump After dce //----- //
// SOME-COUNT-1: arith.addi
// SOME-NOT: arith.addi
// SOME-NOT: IR Dump

// ALL: IR Dump Before canonicalize
// ALL: IR Dump After canonicalize
// ALL: IR Dump Before cse
// ALL: IR Dump After cse

// NONE-NOT: IR Dump

// UNKNOWN: --print-ir-after: error: unknown pass 'csee'
// UNKNOWN-NEXT: hint: did you mean cse
func.func @f(%a: i32) -> (i32, i32) {
  %x = arith.addi %a, %a : i32
  %y = arith.addi %a, %a : i32
  func.return %x, %y : i32, i32
}
