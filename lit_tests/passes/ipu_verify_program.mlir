// RUN: elk-opt %s -p ipu-verify-program --split-input-file --verify-diagnostics | filecheck %s

// A program without faults comes out as it went in.
// CHECK: ipu.program @main
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
    ipu.store_start @r -> @y
    ipu.store_wait @r
  }
}

// -----

// Addresses are inside of the SRAM.
// CHECK: @a of node (bytes 1020 to 1027): address out of range, a core of tiny has 1024 usable bytes
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 1020 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
  }
}

// -----

// Variables hold their blocks.
// CHECK: @a of node (bytes 0 to 3): its blocks take 8 bytes
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 4 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
  }
}

// -----

// Cores exist.
// CHECK: spread over 8 cores, tiny has 4
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <8 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
  }
}

// -----

// Symbols are unique.
// CHECK: Redefinition of symbol "a"
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
  }
}

// -----

// Symbols exist.
// CHECK: no variable is called @z
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @z
  }
}

// -----

// Symbols exist.
// CHECK: no remote buffer is called @z
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @z -> @a
  }
}

// -----

// Symbols exist.
// CHECK: no codelet is called @z
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @z iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// Each copy is waited for.
// CHECK: a copy into @a of node (bytes 0 to 7) is never waited for
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
  }
}

// -----

// Each wait has a copy.
// CHECK: waits for a copy into @a of node (bytes 0 to 7) that was not started
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_wait @a
  }
}

// -----

// On every iteration.
// CHECK: waits for a copy into @a of node (bytes 0 to 7) that was not started
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.repeat 0 times 2 {
    ^bb0(%i: index):
      ipu.copy_wait @a
    }
  }
}

// -----

// Nothing is read before it has landed.
// CHECK: the reshard to @b reads @a of node (bytes 0 to 7) before the preload has landed
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 8 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.reshard @a -> @b
    ipu.copy_wait @a
  }
}

// -----

// Nothing is read that was not written.
// CHECK: the reshard to @b reads @a of node (bytes 0 to 7) that was never written
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 8 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.program @main {
    ipu.reshard @a -> @b
  }
}

// -----

// Nothing is read that was overwritten.
// CHECK: the reshard to @b reads @a of node (bytes 0 to 7) that the fill of @r has overwritten
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 8 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.var @r at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.fill @r, 0.0 : f64
    ipu.reshard @a -> @b
  }
}

// -----

// Nothing is written where a preload lands.
// CHECK: the fill of @r writes @r of node (bytes 0 to 7) while a preload is on its way into @a of node (bytes 0 to 7)
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.fill @r, 0.0 : f64
    ipu.copy_wait @a
  }
}

// -----

// Nothing is written that is being stored.
// CHECK: the fill of @r writes @r of node (bytes 0 to 7) while @a of node (bytes 0 to 7) is still being stored
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.store_start @a -> @y
    ipu.fill @r, 0.0 : f64
    ipu.store_wait @a
  }
}

// -----

// A vertex does not overwrite what it reads.
// CHECK: @v writes @r of node (bytes 0 to 7) over its operand @a of node (bytes 0 to 7)
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// Blocks have the shape that the vertex takes.
// CHECK: @v expects a block of (2,) as operand, @b of node (bytes 8 to 23) has (4,)
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @b at 8 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @b
    ipu.copy_wait @b
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@b[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// And lie where the iteration box is.
// CHECK: operand @a of node (bytes 0 to 7) holds elements from 2 of axis 0 on core 1, the vertex takes them for those from 0
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at 0 size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// Slots exist at every step.
// CHECK: the exchange to @l: slot t reaches 2, there are 2
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @s at 64 bytes 16 : tensor<4xf32> <2 cores, [4 at (((c + s) mod 2) * 2) size 2 slots 2]> of "node"
  ipu.var @l at 96 bytes 8 : tensor<2xf32> <2 cores, [2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @s
    ipu.copy_wait @s
    ipu.repeat 0 times 3 {
    ^bb0(%i: index):
      ipu.exchange <@s[t]> -> <@l> from <((c + 1) mod 2)> step %i
    }
  }
}

// -----

// Senders exist.
// CHECK: the exchange to @l: receives from core 2, @s of node (bytes 64 to 79) is on 2 cores
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @s at 64 bytes 16 : tensor<4xf32> <2 cores, [4 at (((c + s) mod 2) * 2) size 2 slots 2]> of "node"
  ipu.var @l at 96 bytes 8 : tensor<2xf32> <2 cores, [2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @s
    ipu.copy_wait @s
    ipu.exchange <@s[0]> -> <@l> from <(c + 1)>
  }
}

// -----

// Every element arrives.
// CHECK: the reshard to @b: core 0 receives 2 elements of 4 that @b of node (bytes 8 to 23) has there
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <1 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 8 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.reshard @a -> @b
  }
}

// -----

// Rows exist.
// CHECK: reaches rows 1 to 2 of @w, it has 2
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @w stack 2 : tensor<4xf32>
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.repeat 1 times 2 {
    ^bb0(%i: index):
      ipu.copy_start @w[%i] -> @a
      ipu.copy_wait @a
    }
  }
}

// -----

// Types agree.
// CHECK: @a of node (bytes 0 to 7) holds float32[4], @w gives float32[6]
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @w : tensor<6xf32>
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @w -> @a
    ipu.copy_wait @a
  }
}

// -----

// A ring brings every core the block that it takes it for: here each core gets its own again.
// CHECK: @v: operand @a of node (bytes 0 to 7) holds elements from 0 of axis 0 on core 0, the vertex takes them for those from 2 at step 1
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @p at 32 bytes 4 : tensor<2xf32> <2 cores, [2 at c size 1]> of "node"
  ipu.var @l at 64 bytes 8 : tensor<2xf32> <2 cores, [2]> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.reduce(%0) <(k = 4 reduce), [(k)] -> [()]> {combiner = #te<combiner sum>} : (tensor<4xf32>) -> tensor<f32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.fill @p, 0.0 : f64
    ipu.repeat 0 times 2 {
    ^bb0(%i: index):
      ipu.execute @v local @c iterate <2 cores, [4 at (((c + s) mod 2) * 2) size 2 slots 2]> at [#ipu.expr<t>] ins [#ipu.ref<@a[0]>] stats [#ipu.ref<@p[0]>] outs [] step %i
      ipu.exchange <@a[0]> -> <@l> from <c> step %i
      ipu.copy <@l> -> <@a[0]> step %i
    }
  }
}

// -----

// A sum covers its reduction when it is applied.
// CHECK: @w: @p of node (bytes 32 to 35) covers 2 of 4 points of k on core 0
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @p at 32 bytes 4 : tensor<2xf32> <2 cores, [2 at c size 1]> of "node"
  ipu.var @r at 64 bytes 4 : tensor<f32> <2 cores, []> of "node"
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.reduce(%0) <(k = 4 reduce), [(k)] -> [()]> {combiner = #te<combiner sum>} : (tensor<4xf32>) -> tensor<f32>
  }
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.fill @p, 0.0 : f64
    ipu.execute @v local @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [#ipu.ref<@p[0]>] outs []
    ipu.execute @w apply @c iterate <2 cores, [4]> at [#ipu.expr<0>] ins [] stats [#ipu.ref<@p[0]>] outs [#ipu.ref<@r>]
  }
}

// -----

// Each entry that is stored over a row has an index.
// CHECK: the store to @k stores 1 rows of @a of node (bytes 0 to 7); @p names them as int64[3]
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  ipu.remote input @x : tensor<4x1xf32> {inputs = ["x"]}
  ipu.remote input @p : tensor<3xi64> {inputs = ["p"]}
  ipu.remote state @k : tensor<4x5xf32> {axis = 1 : i64, length = 5 : i64}
  ipu.var @a at 0 bytes 8 : tensor<4x1xf32> <2 cores, [4 at (c * 2) size 2, 1]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.store_start @a -> @k axis 1 rows @p
    ipu.store_wait @a
  }
}
