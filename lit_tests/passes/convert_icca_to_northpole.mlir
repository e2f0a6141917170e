// RUN: elk-opt %S/northpole_map_stages.mlir -p 'northpole-map-stages{users=4},convert-te-to-icca,northpole-place,convert-icca-to-northpole,northpole-verify-program' | elk-opt | filecheck %s
// RUN: elk-opt %S/northpole_map_stages.mlir -p 'northpole-map-stages{chip=northpole users=3},convert-te-to-icca,northpole-place,convert-icca-to-northpole,northpole-verify-program' | filecheck %s --check-prefix=ONE
// RUN: elk-opt %S/northpole_map_stages.mlir -p 'northpole-map-stages{users=4},convert-te-to-icca,convert-icca-to-northpole' --split-input-file --verify-diagnostics | filecheck %s --check-prefix=UNPLANNED

// Weights and caches stay where they are used; the loop is gone, its body is two blocks.
// CHECK:      northpole.tensor weight @wq stack 2 : tensor<16x2x8xf16>
// CHECK:      northpole.tensor state @k stack 2 : tensor<2x2x8x8xf16> {axis = 2 : i64, length = 7 : i64, inputs = ["k0", "k1"], outputs = ["K0", "K1"]}
// CHECK:      northpole.tensor input @ids
// CHECK:      northpole.tensor output @logits
// CHECK-NEXT: northpole.block @block_0 "block 0" in 16 out 16 phases 6 ways 1 {
// CHECK-NEXT: ^bb0(%layer: index, %x: tensor<2x16xf16>):
// CHECK-NEXT:   %g = northpole.resident @g[%layer] : tensor<16xf16>
// CHECK-NEXT:   %n = northpole.execute <name = "n", kind = "normalize", unit = "vector",
// CHECK:        %wq = northpole.resident @wq[%layer] : tensor<16x2x8xf16>
// CHECK-NEXT:   %q = northpole.execute <name = "q", kind = "contract", unit = "matrix", {{.*}}> plan <grid [b = 1, h = 2, n = 8, k = 16], {{.*}}>(%n, %wq) {
// CHECK:        %k = northpole.append %kn to @k[%layer] from 7 : tensor<2x2x1x8xf16> -> tensor<2x2x8x8xf16>
// CHECK-NEXT:   %v = northpole.append %kn to @v[%layer] from 7
// CHECK-NEXT:   %a = northpole.execute <name = "a", kind = "attention", {{.*}}>(%q, %k, %v) {
// CHECK:        northpole.yield %r : tensor<2x16xf16>
// CHECK:      northpole.block @block_1 "block 1" in 16 out 16 phases 2 ways 1 {
// CHECK:      northpole.block head @block_2 "head" in 16 out 32 phases 1 ways 1 {

// The host embeds; every value that crosses is sent; each stage calls its blocks.
// CHECK:      northpole.program @appliance
// CHECK-NEXT:   [[E:%.*]] = northpole.host @host {
// CHECK-NEXT:     %table = northpole.resident @table rows @ids : tensor<2x16xf16>
// CHECK:        [[S:%.*]] = northpole.send @host -> @stage_0 bytes 64([[E]] : tensor<2x16xf16>) : tensor<2x16xf16>
// CHECK-NEXT:   [[O:%.*]] = northpole.stage @stage_0 "layer 0" cards [0] blocks [@block_0, @block_1] of [0, 0] <{{.*}}>([[S]] : tensor<2x16xf16>) do {
// CHECK-NEXT:   ^bb0([[A:%.*]]: tensor<2x16xf16>):
// CHECK-NEXT:     [[R:%.*]] = northpole.call @block_0 layer 0([[A]])
// CHECK-NEXT:     [[B:%.*]] = northpole.call @block_1 layer 0([[R]])
// CHECK-NEXT:     northpole.yield [[B]]
// CHECK:        northpole.send @stage_0 -> @stage_1 bytes 64([[O]] : tensor<2x16xf16>)
// CHECK:        northpole.call @block_0 layer 1
// CHECK:        northpole.call @block_2 layer 0
// CHECK:        [[L:%.*]] = northpole.send @stage_2 -> @host bytes 128
// CHECK-NEXT:   northpole.output [[L]] to @logits : tensor<2x32xf16>

// One card calls everything, and only the host is sent to.
// ONE:         northpole.send @host -> @stage_0
// ONE:         northpole.call @block_0 layer 0
// ONE:         northpole.call @block_1 layer 0
// ONE:         northpole.call @block_0 layer 1
// ONE:         northpole.call @block_1 layer 1
// ONE:         northpole.call @block_2 layer 0
// ONE:         northpole.send @stage_0 -> @host bytes 128

// UNPLANNED: northpole_map_stages.mlir:21:7 has no plan: run northpole-place first
