// RUN: elk-opt %s | elk-opt | filecheck %s

// Attributes by their full names; operations write most of them without.

// ipu.layout: every core holds all, one cut, nested cuts with slots, and cores that hold nothing.
// CHECK:      layouts = [#ipu.layout<4 cores, [2, 3]>, #ipu.layout<4 cores, [8 at ((c mod 4) * 2) size 2, 3]>, #ipu.layout<4 cores, [4 at (((c + s) mod 2) * 2) size 2 at 0 size 1 slots 2]>, #ipu.layout<4 cores, [2], where (c floordiv 2)>]
"test.op"() {layouts = [#ipu.layout<4 cores, [2, 3]>, #ipu.layout<4 cores, [8 at ((c mod 4) * 2) size 2, 3]>, #ipu.layout<4 cores, [4 at (((c + s) mod 2) * 2) size 2 at 0 size 1 slots 2]>, #ipu.layout<4 cores, [2], where (c floordiv 2)>]} : () -> ()

// ipu.phase
// CHECK-NEXT: phases = [#ipu<phase local>, #ipu<phase combine>, #ipu<phase apply>]
"test.op"() {phases = [#ipu<phase local>, #ipu<phase combine>, #ipu<phase apply>]} : () -> ()
