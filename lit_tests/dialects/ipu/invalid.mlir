// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: @x: the tile mapping is of (8,), the tensor of (4,)
ipu.var @x at 0 bytes 16 : tensor<4xf32> <1 cores, [8]>

// -----

// CHECK: a codelet holds exactly one structured operation
ipu.codelet @c {
^bb0(%x: tensor<4xf32>):
  "test.op"(%x) : (tensor<4xf32>) -> ()
}

// -----

// CHECK: expected c, s or t, got d
ipu.var @x at 0 bytes 16 : tensor<4xf32> <2 cores, [4 at (d mod 2) size 1]>

// -----

// CHECK: the store to @k: rows lie along an axis, and come instead of a first entry
ipu.program @main {
  ipu.store_start @x -> @k rows @p
}

// -----

// CHECK: the store to @k: rows lie along an axis, and come instead of a first entry
ipu.program @main {
  ipu.store_start @x -> @k axis 1 start 3 rows @p
}
