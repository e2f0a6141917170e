// RUN: elk-opt %s -p canonicalize,cse,canonicalize --timing > %t.out 2> %t.err
// RUN: filecheck %s --check-prefix=OUT < %t.out
// RUN: filecheck %s < %t.err

// OUT-NOT: CPU s
// OUT: func.func @f
// OUT-NOT: CPU s

// CHECK: phase {{ *}} CPU s {{ *}} %
// CHECK-NEXT: {{^-+$}}
// CHECK-NEXT: {{^parse +[0-9]+\.[0-9]+ +[0-9.]+$}}
// CHECK-NEXT: {{^verify +[0-9]+\.[0-9]+ +[0-9.]+$}}
// CHECK-NEXT: {{^pass canonicalize +[0-9]+\.[0-9]+ +[0-9.]+$}}
// CHECK-NEXT: {{^pass cse +[0-9]+\.[0-9]+ +[0-9.]+$}}
// CHECK-NEXT: {{^print +[0-9]+\.[0-9]+ +[0-9.]+$}}
// CHECK-NEXT: {{^-+$}}
// CHECK-NEXT: {{^total +[0-9]+\.[0-9]+ +100\.0$}}
func.func @f() {
  func.return
}
