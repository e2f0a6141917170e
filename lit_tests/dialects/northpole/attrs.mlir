// RUN: elk-opt %s | elk-opt | filecheck %s

// Attributes by their full names; operations write most of them without. A field that has its
// default is not written.

// northpole.assumptions
// CHECK:      assumptions = [#northpole.assumptions<>, #northpole.assumptions<prefill_utilization = 0.25, host_time_s = 2.0e-05, residual_bits = 8, logit_bits = 32, route = "host", prompt_share = 0.75>]
"test.op"() {assumptions = [#northpole.assumptions<prefill_utilization = 0.5, route = "direct">, #northpole.assumptions<prefill_utilization = 0.25, host_time_s = 2.0e-5, residual_bits = 8, logit_bits = 32, route = "host", prompt_share = 0.75>]} : () -> ()

// northpole.precision
// CHECK-NEXT: precision = #northpole.precision<name = "w4a8", weight_bits = 4, activation_bits = 8, kv_bits = 8, head_bits = 4>
"test.op"() {precision = #northpole.precision<name = "w4a8", weight_bits = 4, activation_bits = 8, kv_bits = 8, head_bits = 4>} : () -> ()

// northpole.task
// CHECK-NEXT: task = #northpole.task<name = "q", kind = "contract", unit = "matrix", phases = 2, macs = 64.0, weight_elements = 64, matrix = [16, 4], heads = 2>
"test.op"() {task = #northpole.task<name = "q", kind = "contract", unit = "matrix", phases = 2, macs = 64.0, weight_elements = 64, matrix = [16, 4], heads = 2>} : () -> ()

// northpole.resident
// CHECK-NEXT: resident = #northpole.resident<weight_bytes = 8, constant_bytes = 2, kv_bytes_per_user = 4, core_fixed_bytes = 1, core_kv_bytes_per_user = 3>
"test.op"() {resident = #northpole.resident<weight_bytes = 8, constant_bytes = 2, kv_bytes_per_user = 4, core_fixed_bytes = 1, core_kv_bytes_per_user = 3>} : () -> ()
