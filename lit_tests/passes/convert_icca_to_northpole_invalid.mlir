// RUN: elk-opt %s -p convert-icca-to-northpole --split-input-file --verify-diagnostics | filecheck %s

// CHECK: there are 0 northpole.program: run northpole-map-stages first
module {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
    northpole.place <name = "y", kind = "map", unit = "vector"> grid [1, 4]
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
  }
}

// -----

// CHECK: icca.layer is a scheduler's: nothing is fetched on cards
module {
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
    %l = icca.layer 0
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
  }
}

// -----

// CHECK: y: there is no northpole.block @nope
module {
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
    %y = icca.execute "y"(%h) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "nope", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %y to @y : tensor<4xf32>
  }
}

// -----

// CHECK: y has no plan: run northpole-place first
module {
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
    icca.store %y to @y : tensor<4xf32>
  }
}

// -----

// CHECK: y: the host runs nothing between layers
module {
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
    %r = icca.repeat 0 times 2 iter(%h) {
    ^bb0(%l: index, %c: tensor<4xf32>):
    %y = icca.execute "y"(%c) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %y : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %r to @y : tensor<4xf32>
  }
}

// -----

// CHECK: output @y is written in a loop
module {
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
    %r = icca.repeat 0 times 2 iter(%h) {
    ^bb0(%l: index, %c: tensor<4xf32>):
    %y = icca.execute "y"(%c) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %y to @y : tensor<4xf32>
      icca.yield %y : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %r to @y : tensor<4xf32>
  }
}

// -----

// CHECK: the entries that @s gets are not computed on a card
module {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.hbm state @s : tensor<4xf32> {axis = 0 : i64, length = 0 : i64}
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
    %y = icca.execute "y"(%h) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %h to @s from 0 : tensor<4xf32>
    icca.store %y to @y : tensor<4xf32>
  }
}

// -----

// CHECK: the stages hold 1 blocks in another order than the 2 that the program runs
module {
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
    %r = icca.repeat 0 times 2 iter(%h) {
    ^bb0(%l: index, %c: tensor<4xf32>):
    %y = icca.execute "y"(%c) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %y : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %r to @y : tensor<4xf32>
  }
}

// -----

// CHECK: a loop inside a loop: layers are rolled once
module {
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
    %r = icca.repeat 0 times 2 iter(%h) {
    ^bb0(%l: index, %c: tensor<4xf32>):
      %q = icca.repeat 0 times 2 iter(%c) {
      ^bb1(%m: index, %e: tensor<4xf32>):
        %y = icca.execute "y"(%e) plan <grid [d = 4], operands [exec {} preload {}]> {
        ^bb0(%0: tensor<4xf32>):
          %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
          %2 = icca.tile(%1) {
          ^bb0(%3: tensor<4xf32>):
            %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
          } : (tensor<4xf32>) -> tensor<4xf32>
          icca.yield %2 : tensor<4xf32>
        } : (tensor<4xf32>) -> tensor<4xf32>
        icca.yield %y : tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %q : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %r to @y : tensor<4xf32>
  }
}

// -----

// CHECK: block @a reads u that a later block makes
module {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  northpole.block @a "a" in 4 out 4 phases 1 ways 1 {
    northpole.place <name = "y", kind = "map", unit = "vector"> grid [1, 4]
    northpole.place <name = "v", kind = "map", unit = "vector"> grid [1, 4]
  }
  northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
    northpole.place <name = "u", kind = "map", unit = "vector"> grid [1, 4]
  }
  northpole.program @p "m" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 1 fit 1 micro_batches 1 context 0 batch 1 limit "" {
    northpole.host @host {
    }
    northpole.stage @s "s" cards [0] blocks [@a, @b] of [0, 0] <weight_bytes = 0, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 0, core_kv_bytes_per_user = 0>
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
    %y = icca.execute "y"(%h) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "a", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %u = icca.execute "u"(%y) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    %v = icca.execute "v"(%u) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "a", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %v to @y : tensor<4xf32>
  }
}

// -----

// CHECK: rows of @s are stored where an index says, which cards cannot: leave static caches
module {
  icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}
  icca.hbm output @y : tensor<4xf32> {outputs = ["y"]}
  icca.hbm input @i : tensor<4xi64> {inputs = ["i"]}
  icca.hbm state @s : tensor<8xf32> {axis = 0 : i64, length = 0 : i64}
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
    %y = icca.execute "y"(%h) plan <grid [d = 4], operands [exec {} preload {}]> {
    ^bb0(%0: tensor<4xf32>):
      %1 = icca.relayout %0 : tensor<4xf32> -> tensor<4xf32>
      %2 = icca.tile(%1) {
      ^bb0(%3: tensor<4xf32>):
        %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {northpole.block = "b", body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>} : (tensor<4xf32>) -> tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>
      icca.yield %2 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.store %y to @s rows @i : tensor<4xf32>
    icca.store %y to @y : tensor<4xf32>
  }
}
