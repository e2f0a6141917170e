// RUN: elk-opt %s | filecheck %s --check-prefix=FULL
// RUN: elk-opt %s --elide-large-constants=4 | filecheck %s
// RUN: elk-opt --elide-large-constants %s | filecheck %s --check-prefix=DEFAULT
// RUN: elk-opt %s -p cse --elide-large-constants=4 --print-ir-before-all 2>&1 | filecheck %s
// RUN: elk-opt %s --elide-large-constants=4 -o %t
// RUN: not elk-opt %t -f mlir 2>&1 | filecheck %s --check-prefix=REPARSE
// RUN: not elk-opt --elide-large-constants=few %s 2>&1 | filecheck %s --check-prefix=BAD

// FULL: dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
// DEFAULT: dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
// DEFAULT: dense<...elided 17 elements...> : tensor<17xi8>

// CHECK: %short = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi32>
// CHECK-NEXT: %long = arith.constant dense<...elided 5 elements...> : tensor<5xi32>
// CHECK-NEXT: %bytes = arith.constant dense<...elided 17 elements...> : tensor<17xi8>
// CHECK-NEXT: %splat = arith.constant dense<7> : tensor<64xi32>
// CHECK-NEXT: "test.op"() {a = array<i64: ...elided 6 elements...>, b = array<i64: 1, 2>} : () -> ()

// REPARSE: {{tmp:[0-9]+:[0-9]+: error:}}

// BAD: error: argument --elide-large-constants: 'few' is not a number of elements
%short = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi32>
%long = arith.constant dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
%bytes = arith.constant dense<[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]> : tensor<17xi8>
%splat = arith.constant dense<7> : tensor<64xi32>
"test.op"() {a = array<i64: 1, 2, 3, 4, 5, 6>, b = array<i64: 1, 2>} : () -> ()
