// RUN: elk-opt %s -p icca-verify-program --split-input-file --verify-diagnostics | filecheck %s

// A handle is not used before its preload is issued.
// CHECK: "a" executes before the preload of @x
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// A preload blocks exactly one execute.
// CHECK: the preload of @x is never consumed by an execute
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %z = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// A preload blocks exactly one execute.
// CHECK: the preload of @x is consumed 2 times ("a", "b")
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %b = icca.execute "b"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// One preload can not serve every iteration.
// CHECK: the preload of @x is issued once but consumed in every iteration of a loop
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %z = icca.preload @x : !icca.handle<tensor<4xf32>>
    %i = icca.execute "i"(%z) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %a = icca.repeat 0 times 2 iter(%i) {
    ^bb0(%l: index, %h: tensor<4xf32>):
    %b = icca.execute "b"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
      icca.yield %b : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// The next preload may not land on the one that is still needed.
// CHECK: the preload of @x for the next iteration is issued before "b" has consumed the last one
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %z = icca.preload @x : !icca.handle<tensor<4xf32>>
    %i = icca.execute "i"(%z) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %a, %q = icca.repeat 0 times 2 iter(%i, %x) {
    ^bb0(%l: index, %h: tensor<4xf32>, %c: !icca.handle<tensor<4xf32>>):
      %n = icca.preload @x : !icca.handle<tensor<4xf32>>
    %b = icca.execute "b"(%c) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
      icca.yield %b, %n : tensor<4xf32>, !icca.handle<tensor<4xf32>>
    } : (tensor<4xf32>, !icca.handle<tensor<4xf32>>) -> (tensor<4xf32>, !icca.handle<tensor<4xf32>>)
    %e = icca.execute "e"(%q) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// What a loop carries has one layout.
// CHECK: the loop carries %i in one layout and yields %b in another
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %i = icca.execute "i"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %a = icca.repeat 0 times 2 iter(%i) {
    ^bb0(%l: index, %h: tensor<4xf32>):
    %b = icca.execute "b"(%h) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %b : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// A carried value is not read after its successor is written.
// CHECK: "c" reads the carried %h after "b" has written its next value there
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %i = icca.execute "i"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    %a = icca.repeat 0 times 2 iter(%i) {
    ^bb0(%l: index, %h: tensor<4xf32>):
    %b = icca.execute "b"(%h) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %c = icca.execute "c"(%h) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %b : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// Plans are legal for the chip.
// CHECK: the plan of "a" is not legal: the grid needs 8 cores, the chip has 4
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<8xf32>
  icca.hbm output @y : tensor<8xf32>
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<8xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 8], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<8xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<8xf32>> -> tensor<8xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<8xf32>):
        %4 = te.map(%3) <(d = 8), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<8xf32>) -> tensor<8xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      icca.yield %2 : tensor<8xf32>
    } : (!icca.handle<tensor<8xf32>>) -> tensor<8xf32>
    icca.store %a to @y : tensor<8xf32>
  }
}

// -----

// HBM holds all tensors.
// CHECK: the tensors in HBM take 2,432 bytes, chip tiny has 2,048
// CHECK: the largest is @big, 2,400 bytes
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.hbm input @big : tensor<600xf32>
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// A chip without HBM has nothing to preload from.
// CHECK: chip bare has no HBM, but the preload of @x moves @x
module attributes {icca.chip = #icca.chip<"bare", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// Layers exist.
// CHECK: the preload of @w reaches layers 3 to 3 of @w, which has 2
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @w stack 2 : tensor<4xf32>
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %l = icca.layer 3
    %x = icca.preload @w[%l] : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// Types agree.
// CHECK: the preload of @x is float32[4], not float32[6]
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<6xf32>
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// Rows are picked by a tensor in HBM.
// CHECK: the rows @ids of the preload of @x are not in HBM
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<9xf32>
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x rows @ids : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// A state has room for what is appended.
// CHECK: appends entries 3 to 6 to the state @s, which has room for 6
// CHECK: give the state a larger capacity
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm state @s : tensor<6xf32> {axis = 0 : i64, length = 3 : i64}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @s from 3 : tensor<4xf32>
  }
}

// -----

// Weights are not written.
// CHECK: @w is weight and may not be stored to
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.hbm weight @w : tensor<4xf32> = dense<1.0> : tensor<4xf32>
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
    icca.store %a to @w : tensor<4xf32>
  }
}

// -----

// Outputs are written.
// CHECK: the output @y is never stored
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
  }
}

// -----

// Live bytes fit.
// CHECK: 1,120 bytes are live on each core during "a", it has 1,024
// CHECK: 560 bytes  a.preload0
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<140xf32>
  icca.hbm output @y : tensor<140xf32>
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<140xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<140xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<140xf32>> -> tensor<140xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<140xf32>):
        %4 = te.map(%3) <(d = 140), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<140xf32>) -> tensor<140xf32>
      } : (tensor<140xf32>) -> tensor<140xf32>
      icca.yield %2 : tensor<140xf32>
    } : (!icca.handle<tensor<140xf32>>) -> tensor<140xf32>
    icca.store %a to @y : tensor<140xf32>
  }
}

// -----

// No two live buffers share a byte.
// CHECK: "a": a.preload0 and a.result0 share bytes [8, 16) while both are live
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x at 8 : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) at [8] {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// Buffers lie inside of the SRAM.
// CHECK: "a": a.result0 occupies bytes [1024, 1032) but the memory has only 1024 bytes
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x at 8 : !icca.handle<tensor<4xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<4xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
      %2 = icca.tile(%1) at [1024] {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
    icca.store %a to @y : tensor<4xf32>
  }
}

// -----

// What the program keeps in HBM is stored before it is read.
// CHECK: the preload of @t reads @picks before it is stored
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm scratch @picks : tensor<2xi64>
  icca.hbm input @i : tensor<2xi64> {inputs = ["i"]}
  icca.hbm input @t : tensor<8xf32> {inputs = ["t"]}
  icca.hbm output @y : tensor<2xf32> {outputs = ["y"]}
  icca.program @main {
    %i = icca.preload @i : !icca.handle<tensor<2xi64>>
    %x = icca.preload @t rows @picks : !icca.handle<tensor<2xf32>>
    %a = icca.execute "a"(%i) plan <grid [d = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2xi64>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2xi64>> -> tensor<2xi64>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2xi64>):
        %4 = te.map(%3) <(d = 2), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xi64>) -> tensor<2xi64>
      } : (tensor<2xi64>) -> tensor<2xi64>
      icca.yield %2 : tensor<2xi64>
    } : (!icca.handle<tensor<2xi64>>) -> tensor<2xi64>
    icca.store %a to @picks : tensor<2xi64>
    %b = icca.execute "b"(%x) plan <grid [d = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2xf32>> -> tensor<2xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2xf32>):
        %4 = te.map(%3) <(d = 2), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2xf32>) -> tensor<2xf32>
      } : (tensor<2xf32>) -> tensor<2xf32>
      icca.yield %2 : tensor<2xf32>
    } : (!icca.handle<tensor<2xf32>>) -> tensor<2xf32>
    icca.store %b to @y : tensor<2xf32>
  }
}

// -----

// The rows of a store are named by a tensor in HBM.
// CHECK: the rows @p of the store to @k are not in HBM
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<2x1xf32> {inputs = ["x"]}
  icca.hbm state @k : tensor<2x5xf32> {axis = 1 : i64, length = 5 : i64}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<2x1xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2, e = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2x1xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2x1xf32>> -> tensor<2x1xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2x1xf32>):
        %4 = te.map(%3) <(d = 2, e = 1), [(d, e)] -> [(d, e)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
      } : (tensor<2x1xf32>) -> tensor<2x1xf32>
      icca.yield %2 : tensor<2x1xf32>
    } : (!icca.handle<tensor<2x1xf32>>) -> tensor<2x1xf32>
    icca.store %a to @k rows @p : tensor<2x1xf32>
  }
}

// -----

// Rows are picked by integers along one axis.
// CHECK: @p picks rows of @k but is float32[1]
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<2x1xf32> {inputs = ["x"]}
  icca.hbm state @k : tensor<2x5xf32> {axis = 1 : i64, length = 5 : i64}
  icca.hbm input @p : tensor<1xf32> {inputs = ["p"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<2x1xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2, e = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2x1xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2x1xf32>> -> tensor<2x1xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2x1xf32>):
        %4 = te.map(%3) <(d = 2, e = 1), [(d, e)] -> [(d, e)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
      } : (tensor<2x1xf32>) -> tensor<2x1xf32>
      icca.yield %2 : tensor<2x1xf32>
    } : (!icca.handle<tensor<2x1xf32>>) -> tensor<2x1xf32>
    icca.store %a to @k rows @p : tensor<2x1xf32>
  }
}

// -----

// Each entry has an index.
// CHECK: the store to @k is float32[2, 1], not float32[2, 3]
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<2x1xf32> {inputs = ["x"]}
  icca.hbm state @k : tensor<2x5xf32> {axis = 1 : i64, length = 5 : i64}
  icca.hbm input @p : tensor<3xi64> {inputs = ["p"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<2x1xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2, e = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2x1xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2x1xf32>> -> tensor<2x1xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2x1xf32>):
        %4 = te.map(%3) <(d = 2, e = 1), [(d, e)] -> [(d, e)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
      } : (tensor<2x1xf32>) -> tensor<2x1xf32>
      icca.yield %2 : tensor<2x1xf32>
    } : (!icca.handle<tensor<2x1xf32>>) -> tensor<2x1xf32>
    icca.store %a to @k rows @p : tensor<2x1xf32>
  }
}

// -----

// Only a state has rows that can be replaced.
// CHECK: @k is no state: rows of it cannot be stored
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<2x1xf32> {inputs = ["x"]}
  icca.hbm output @k : tensor<2x5xf32> {outputs = ["k"]}
  icca.hbm input @p : tensor<1xi64> {inputs = ["p"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<2x1xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2, e = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2x1xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2x1xf32>> -> tensor<2x1xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2x1xf32>):
        %4 = te.map(%3) <(d = 2, e = 1), [(d, e)] -> [(d, e)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
      } : (tensor<2x1xf32>) -> tensor<2x1xf32>
      icca.yield %2 : tensor<2x1xf32>
    } : (!icca.handle<tensor<2x1xf32>>) -> tensor<2x1xf32>
    icca.store %a to @k rows @p : tensor<2x1xf32>
  }
}

// -----

// The index is there before the store's turn comes.
// CHECK: the store to @k reads @p before it is stored
module attributes {icca.chip = #icca.chip<"tiny", {chips = 1, cores_per_chip = 4, sram_per_core_bytes = 2048, reserved_per_core_bytes = 1024, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 2048, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<2x1xf32> {inputs = ["x"]}
  icca.hbm state @k : tensor<2x5xf32> {axis = 1 : i64, length = 5 : i64}
  icca.hbm scratch @p : tensor<1xi64>
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<2x1xf32>>
    %a = icca.execute "a"(%x) plan <grid [d = 2, e = 1], operands [exec {} preload {}]> {
    ^bb0(%0: !icca.handle<tensor<2x1xf32>>):
      %1 = icca.distribute %0 : !icca.handle<tensor<2x1xf32>> -> tensor<2x1xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<2x1xf32>):
        %4 = te.map(%3) <(d = 2, e = 1), [(d, e)] -> [(d, e)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x1xf32>) -> tensor<2x1xf32>
      } : (tensor<2x1xf32>) -> tensor<2x1xf32>
      icca.yield %2 : tensor<2x1xf32>
    } : (!icca.handle<tensor<2x1xf32>>) -> tensor<2x1xf32>
    icca.store %a to @k rows @p : tensor<2x1xf32>
  }
}
