// RUN: elk-opt %s | elk-opt | filecheck %s
// RUN: elk-opt %s --print-op-generic | elk-opt | filecheck %s

// CHECK:      northpole.block @mlp "mlp" in 16 out 16 phases 2 ways 2 {
northpole.block @mlp "mlp" in 16 out 16 phases 2 ways 2 {
  // CHECK-NEXT: northpole.place <name = "up \"x\"", kind = "contract", unit = "matrix", macs = 1024.0, weight_elements = 1024, matrix = [16, 64]> grid [16, 16]
  northpole.place <name = "up \"x\"", kind = "contract", unit = "matrix", macs = 1024.0, weight_elements = 1024, matrix = [16, 64]> grid [16, 16]
  // CHECK-NEXT: northpole.place <name = "silu", kind = "map", unit = "activation", activation_ops = 64.0> grid [1, 256]
  northpole.place <name = "silu", kind = "map", unit = "activation", activation_ops = 64.0> grid [1, 256]
}
northpole.block head @head "head" in 16 out 32 phases 1 ways 1 {
}
// CHECK: northpole.program @p "m.onnx" <name = "w4a8", weight_bits = 4, activation_bits = 8, kv_bits = 8> <host_time_s = 2.0e-05, route = "host"> users 4 fit 9 micro_batches 2 context 8 batch 1 limit "asked for" {
northpole.program @p "m.onnx" <name = "w4a8", weight_bits = 4, activation_bits = 8, kv_bits = 8> <host_time_s = 2.0e-05, route = "host"> users 4 fit 9 micro_batches 2 context 8 batch 1 limit "asked for" {
  // CHECK-NEXT: northpole.host @host {
  northpole.host @host {
  }
  // CHECK: northpole.stage @s0 "layer 0" cards [0, 1] blocks [@mlp] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 4, core_fixed_bytes = 1, core_kv_bytes_per_user = 1>
  northpole.stage @s0 "layer 0" cards [0, 1] blocks [@mlp] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 4, core_fixed_bytes = 1, core_kv_bytes_per_user = 1>
  northpole.stage @s1 "output layer" cards [2] blocks [@head] of [-1] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
  // CHECK: northpole.send @s0 -> @s1 bytes 64
  northpole.send @s0 -> @s1 bytes 64
}
