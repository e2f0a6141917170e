// RUN: elk-opt %s -p northpole-verify-program --split-input-file --verify-diagnostics | filecheck %s

// CHECK: the stages hold no calls: run convert-icca-to-northpole first
module attributes {icca.chip = #icca.chip<"tiny", {chips = 2, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, macs_per_cycle_int4 = 8.0, macs_per_cycle_int8 = 4.0, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = false, exchange_overlaps_compute = true, sync_cycles = 0.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, northpole = {framebuffer_bytes = 64, vector_slices = 1, vector_ways = 1, activation_slices = 1, pcie_bytes_per_s = 1.0e9, pcie_latency_s = 1.0e-6, host_bytes_per_s = 1.0e9, phase_overhead_s = 1.0e-6, measured_power_per_card_w = 1.0}}>} {
  northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
  }
  northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 0 batch 1 limit "" {
    northpole.host @host {
    }
    northpole.stage @s "s" cards [0] blocks [@b] of [0] <weight_bytes = 0, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 0, core_kv_bytes_per_user = 0>
  }
}
