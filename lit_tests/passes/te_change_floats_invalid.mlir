// RUN: not elk-opt %s -p 'te-change-floats{to=f8}' 2>&1 | filecheck %s
// RUN: not elk-opt %s -p te-change-floats 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK: float32 can't become 'f8', but one of: f16, bf16
// MISSING: requires argument "to"
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  func.return %x : tensor<2x8xf32>
}
