// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: card 1 is on stage @a and on @b
northpole.block @m "m" in 1 out 1 phases 1 ways 1 {
}
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 8 batch 1 limit "" {
  northpole.stage @a "a" cards [1] blocks [@m] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
  northpole.stage @b "b" cards [1] blocks [@m] of [1] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
}

// -----

// CHECK: no stage or host @nowhere here
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 8 batch 1 limit "" {
  northpole.host @host {
  }
  northpole.send @host -> @nowhere bytes 4
}

// -----

// CHECK: 2 users do not make 3 micro-batches
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 2 fit 2 micro_batches 3 context 8 batch 1 limit "" {
}

// -----

// CHECK: stage @a has 2 cards, block @m is placed for 1
northpole.block @m "m" in 1 out 1 phases 1 ways 1 {
}
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 8 batch 1 limit "" {
  northpole.stage @a "a" cards [0, 1] blocks [@m] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
}

// -----

// CHECK: stage @a: no block @missing
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 8 batch 1 limit "" {
  northpole.stage @a "a" cards [0] blocks [@missing] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
}

// -----

// CHECK: a grid has two extents of at least 1, not [4]
northpole.place <name = "x", kind = "map", unit = "vector"> grid [4]

// -----

// CHECK: 'speed' is no field here, or is there twice
northpole.place <name = "x", kind = "map", unit = "vector", speed = 3> grid [4, 4]

// -----

// CHECK: unknown route 'air'
northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <route = "air"> users 1 fit 1 micro_batches 1 context 8 batch 1 limit "" {
}
