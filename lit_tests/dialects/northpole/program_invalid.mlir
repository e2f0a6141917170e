// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: state @s needs an axis and a length
northpole.tensor state @s : tensor<1x3x4xi8>

// -----

// CHECK: weight @w has no value
northpole.tensor weight @w : tensor<4x4xi8>

// -----

// CHECK: y has no plan
northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
^bb0(%layer: index, %x: tensor<4xi8>):
  %y = northpole.execute <name = "y", kind = "map", unit = "vector">(%x) {
  ^bb1(%a: tensor<4xi8>):
    %z = te.map(%a) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xi8>) -> tensor<4xi8>
  } : (tensor<4xi8>) -> tensor<4xi8>
  northpole.yield %y : tensor<4xi8>
}

// -----

// CHECK: y: a grid of 3 along the divided dimension is not for 2 cards
northpole.block @b "b" in 4 out 4 phases 1 ways 2 {
^bb0(%layer: index, %x: tensor<3xi8>):
  %y = northpole.execute <name = "y", kind = "map", unit = "vector"> plan <grid [d = 3], operands [exec {} preload {}]> cards "d"(%x) {
  ^bb1(%a: tensor<3xi8>):
    %z = te.map(%a) <(d = 3), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3xi8>) -> tensor<3xi8>
  } : (tensor<3xi8>) -> tensor<3xi8>
  northpole.yield %y : tensor<3xi8>
}

// -----

// CHECK: y has no dimension q
%x = "test.op"() : () -> tensor<3xi8>
%y = northpole.execute <name = "y", kind = "map", unit = "vector"> plan <grid [d = 3], operands [exec {} preload {}]> cards "q"(%x) {
^bb1(%a: tensor<3xi8>):
  %z = te.map(%a) <(d = 3), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3xi8>) -> tensor<3xi8>
} : (tensor<3xi8>) -> tensor<3xi8>

// -----

// CHECK: the plan speaks of ('m',), the operator of ('d',)
%x = "test.op"() : () -> tensor<3xi8>
%y = northpole.execute <name = "y", kind = "map", unit = "vector"> plan <grid [m = 3], operands [exec {} preload {}]>(%x) {
^bb1(%a: tensor<3xi8>):
  %z = te.map(%a) <(d = 3), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3xi8>) -> tensor<3xi8>
} : (tensor<3xi8>) -> tensor<3xi8>

// -----

// CHECK: y: grid factor 2 of d is outside 1..1
%x = "test.op"() : () -> tensor<1xi8>
%y = northpole.execute <name = "y", kind = "map", unit = "vector"> plan <grid [d = 2], operands [exec {} preload {}]>(%x) {
^bb1(%a: tensor<1xi8>):
  %z = te.map(%a) <(d = 1), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<1xi8>) -> tensor<1xi8>
} : (tensor<1xi8>) -> tensor<1xi8>

// -----

// CHECK: host @host yields 0 values for 1 results
%h = northpole.host @host {
} : tensor<1xi8>

// -----

// CHECK: stage @st has other blocks than it calls
northpole.stage @st "st" cards [0] blocks [@b] of [0] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0> do {
  northpole.yield
}

// -----

// CHECK: what is sent arrives as it is
%x = "test.op"() : () -> tensor<1xi8>
%y = northpole.send @a -> @b bytes 1(%x : tensor<1xi8>) : tensor<2xi8>

// -----

// CHECK: a block holds no northpole.host
northpole.block @b "b" in 4 out 4 phases 1 ways 1 {
  northpole.host @host {
  }
}

// -----

// CHECK: the region of northpole.execute holds exactly one structured operation
%x = "test.op"() : () -> tensor<3xi8>
%y = northpole.execute <name = "y", kind = "map", unit = "vector">(%x) {
^bb1(%a: tensor<3xi8>):
  "test.op"() : () -> ()
} : (tensor<3xi8>) -> tensor<3xi8>

// -----

// CHECK: y: the operation reads the operands, in order
%x, %w = "test.op"() : () -> (tensor<3xi8>, tensor<3xi8>)
%y = northpole.execute <name = "y", kind = "map", unit = "vector">(%x, %w) {
^bb1(%a: tensor<3xi8>, %b: tensor<3xi8>):
  %z = te.map(%b, %a) <(d = 3), [(d), (d)] -> [(d)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<3xi8>, tensor<3xi8>) -> tensor<3xi8>
} : (tensor<3xi8>, tensor<3xi8>) -> tensor<3xi8>

// -----

// CHECK: y: the results are those of the operation
%x = "test.op"() : () -> tensor<3xi8>
%y = northpole.execute <name = "y", kind = "map", unit = "vector">(%x) {
^bb1(%a: tensor<3xi8>):
  %z = te.map(%a) <(d = 3), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<3xi8>) -> tensor<3xi8>
} : (tensor<3xi8>) -> tensor<1x3xi8>

// -----

// CHECK: stage @st: the region takes what was sent, in order
%x = "test.op"() : () -> tensor<3xi8>
%y = northpole.stage @st "st" cards [0] blocks [] of [] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>(%x : tensor<3xi8>) do {
^bb0(%a: tensor<4xi8>):
  northpole.yield %a : tensor<4xi8>
} : tensor<4xi8>

// -----

// CHECK: @st: 1 blocks of 2 layers
northpole.stage @st "st" cards [0] blocks [@b] of [0, 1] <weight_bytes = 8, constant_bytes = 0, kv_bytes_per_user = 0, core_fixed_bytes = 1, core_kv_bytes_per_user = 0>
