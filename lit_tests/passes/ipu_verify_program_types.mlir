// RUN: elk-opt %s -p ipu-verify-program --split-input-file --verify-diagnostics | filecheck %s

// Addresses are multiples of the element.
// CHECK: @a of node (bytes 2 to 9): byte 2 is no address of float32
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 2 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
  }
}

// -----

// Each store is waited for.
// CHECK: a store from @a of node (bytes 0 to 7) is never waited for
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.store_start @a -> @y
  }
}

// -----

// Each wait has a store.
// CHECK: waits for a store from @a of node (bytes 0 to 7) that was not started
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.store_wait @a
  }
}

// -----

// A copy out of a landing buffer fills its slot.
// CHECK: copies 4 elements of float32 out of 2 of float32
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 16 : tensor<4xf32> <2 cores, [4]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.copy <@a[0]> -> <@b[0]>
  }
}

// -----

// A state has the entries that are read.
// CHECK: reaches entry 4 of @x, which has 4
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a axis 0 limit 5
    ipu.copy_wait @a
  }
}

// -----

// Layouts change, types do not.
// CHECK: moves float32 into float16
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 4 : tensor<4xf16> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.reshard @a -> @b
  }
}

// -----

// Nor shapes.
// CHECK: moves a tensor of [4] into one of [6]
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 12 : tensor<6xf32> <2 cores, [6 at (c * 3) size 3]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.reshard @a -> @b
  }
}

// -----

// What is exchanged fits where it lands.
// CHECK: 2 elements of float32 do not fit 2 of float16 in @b of node
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 4 : tensor<4xf16> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.exchange <@a[0]> -> <@b> from <c>
  }
}

// -----

// One slot an axis.
// CHECK: 2 slots for 1 axes
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.exchange <@a[0, 0]> -> <@b> from <c>
  }
}

// -----

// Slots do not depend on the core.
// CHECK: depends on more than the step
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.exchange <@a[c]> -> <@b> from <c>
  }
}

// -----

// A vertex iterates over the dimensions of its codelet.
// CHECK: @c iterates over 1 dimensions
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2, 3]> at [#ipu.expr<0>, #ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// It has its operands.
// CHECK: takes 1 operands and 1 results, is given 2 and 1
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>, #ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// And its statistics.
// CHECK: @c has 0 statistics
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [#ipu.ref<@a[0]>] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// Of its types.
// CHECK: operand @b of node (bytes 64 to 67) is float16, not float32
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @b at 64 bytes 4 : tensor<4xf16> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.fill @b, 0.0 : f64
    ipu.execute @v apply @c iterate <2 cores, [4 at (c * 2) size 2]> at [#ipu.expr<0>] ins [#ipu.ref<@b[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// On its cores.
// CHECK: runs on 4 cores, @a of node (bytes 0 to 7) is on 2
module {
  ipu.remote input @x : tensor<4xf32> {inputs = ["x"]}
  ipu.remote output @y : tensor<4xf32> {outputs = ["y"]}
  ipu.codelet @c {
  ^bb0(%0: tensor<4xf32>):
    %1 = te.map(%0) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
  }
  ipu.var @a at 0 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.var @r at 32 bytes 8 : tensor<4xf32> <2 cores, [4 at (c * 2) size 2]> of "node"
  ipu.program @main {
    ipu.copy_start @x -> @a
    ipu.copy_wait @a
    ipu.execute @v apply @c iterate <4 cores, [4 at c size 1]> at [#ipu.expr<0>] ins [#ipu.ref<@a[0]>] stats [] outs [#ipu.ref<@r[0]>]
  }
}

// -----

// There is a program.
// CHECK: the module has no ipu.program: lower it with convert-icca-to-ipu first
module {
}
