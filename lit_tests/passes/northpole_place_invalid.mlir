// RUN: elk-opt %s -p northpole-place --split-input-file --verify-diagnostics | filecheck %s

// CHECK: u: block @b has no place for it
module attributes {icca.chip = #icca.chip<"tiny", {chips = 2, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, macs_per_cycle_int4 = 8.0, macs_per_cycle_int8 = 4.0, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = false, exchange_overlaps_compute = true, sync_cycles = 0.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, northpole = {framebuffer_bytes = 64, vector_slices = 1, vector_ways = 1, activation_slices = 1, pcie_bytes_per_s = 1.0e9, pcie_latency_s = 1.0e-6, host_bytes_per_s = 1.0e9, phase_overhead_s = 1.0e-6, measured_power_per_card_w = 1.0}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
    northpole.place <name = "y", kind = "map", unit = "vector"> grid [1, 4]
  }
  northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 0 batch 1 limit "" {
    northpole.host @host {
    }
    northpole.stage @s "s" cards [0] blocks [@b] of [0] <weight_bytes = 0, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 0, core_kv_bytes_per_user = 0>
  }
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %h = icca.execute "h"(%x) {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %y = icca.execute "y"(%h) {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %u = icca.execute "u"(%y) {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %u to @y : tensor<4xf32>
  }
}

// -----

// CHECK: block @b: nothing executes v
module attributes {icca.chip = #icca.chip<"tiny", {chips = 2, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, macs_per_cycle_int4 = 8.0, macs_per_cycle_int8 = 4.0, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = false, exchange_overlaps_compute = true, sync_cycles = 0.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, northpole = {framebuffer_bytes = 64, vector_slices = 1, vector_ways = 1, activation_slices = 1, pcie_bytes_per_s = 1.0e9, pcie_latency_s = 1.0e-6, host_bytes_per_s = 1.0e9, phase_overhead_s = 1.0e-6, measured_power_per_card_w = 1.0}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
    northpole.place <name = "y", kind = "map", unit = "vector"> grid [1, 4]
    northpole.place <name = "v", kind = "map", unit = "vector"> grid [1, 4]
  }
  northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 0 batch 1 limit "" {
    northpole.host @host {
    }
    northpole.stage @s "s" cards [0] blocks [@b] of [0] <weight_bytes = 0, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 0, core_kv_bytes_per_user = 0>
  }
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %h = icca.execute "h"(%x) {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %y = icca.execute "y"(%h) {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %y to @y : tensor<4xf32>
  }
}
