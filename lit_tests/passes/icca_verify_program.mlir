// RUN: elk-opt %s -p 'icca-set-plan{op=p grid="n=2"},icca-allocate,icca-verify-program{allocated=true}' | filecheck %s --check-prefix=GOOD
// RUN: not elk-opt %s -p icca-verify-program 2>&1 | filecheck %s --check-prefix=NOPLAN
// RUN: elk-opt %s -p 'icca-set-plan{op=p grid="n=2"},icca-verify-program' | filecheck %s --check-prefix=GOOD
// RUN: not elk-opt %s -p 'icca-set-plan{op=p grid="n=2"},icca-verify-program{allocated=true}' 2>&1 | filecheck %s --check-prefix=NOOFFSET
// RUN: not elk-opt %s -p 'icca-verify-program{allocated=maybe}' 2>&1 | filecheck %s --check-prefix=OPTION

// GOOD-LABEL: icca.program @main
// NOPLAN: icca_verify_program.mlir:{{[0-9]+}}:{{[0-9]+}}: error: icca-verify-program: "p" has no plan
// NOPLAN: run icca-schedule or icca-set-plan first
// NOOFFSET: error: icca-verify-program: "p": buffer p.preload0 (16 bytes) has no offset
// NOOFFSET: run icca-allocate
// OPTION: icca-verify-program: allocated='maybe' is none of auto, true, false

module attributes {icca.chip = #icca.chip<"test-16", {chips = 1, cores_per_chip = 16, sram_per_core_bytes = 65536, reserved_per_core_bytes = 4096, clock_hz = 1.0e9, local_bytes_per_cycle = 16.0, port_sharing = "shared", landing_steals_sram = false, preload_during_compute = true, exchange_overlaps_compute = false, sync_cycles = 100.0, network = {topology = "all-to-all", port_in_bytes_per_s = 8.0e9, port_out_bytes_per_s = 8.0e9}, hbm = {capacity_bytes = 4096, bandwidth_bytes_per_s = 6.4e10, latency_s = 1.0e-7, pools = "one", controllers_per_chip = 2, controller_placement = "switch", controller_egress_bytes_per_s = 3.2e10, multicast = true}}>} {
  icca.hbm input @x : tensor<1x4xf32> {inputs = ["x"]}
  icca.hbm weight @w : tensor<4x4xf32> = dense<1.0> : tensor<4x4xf32>
  icca.hbm output @y : tensor<1x4xf32> {outputs = ["y"]}
  icca.program @main {
    %x = icca.preload @x : !icca.handle<tensor<1x4xf32>>
    %w = icca.preload @w : !icca.handle<tensor<4x4xf32>>
    %p = icca.execute "p"(%x, %w) {
    ^bb0(%x_1: !icca.handle<tensor<1x4xf32>>, %w_1: !icca.handle<tensor<4x4xf32>>):
      %a = icca.distribute %x_1 : !icca.handle<tensor<1x4xf32>> -> tensor<1x4xf32>
      %b = icca.distribute %w_1 : !icca.handle<tensor<4x4xf32>> -> tensor<4x4xf32>
      %t = icca.tile(%a, %b) {
      ^bb0(%c: tensor<1x4xf32>, %d: tensor<4x4xf32>):
        %f = te.contract(%c, %d) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32>
      } : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x1x4xf32>
      %r = icca.reduce(%t) : (tensor<1x1x4xf32>) -> tensor<1x4xf32>
      icca.yield %r : tensor<1x4xf32>
    } : (!icca.handle<tensor<1x4xf32>>, !icca.handle<tensor<4x4xf32>>) -> tensor<1x4xf32>
    icca.store %p to @y : tensor<1x4xf32>
  }
}
