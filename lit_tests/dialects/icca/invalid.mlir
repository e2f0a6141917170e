// RUN: elk-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: weight @w has no value
icca.hbm weight @w : tensor<4xf32>

// -----

// CHECK: state @s needs an axis and a length
icca.hbm state @s : tensor<4xf32>

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: copy: grid factor 3 of d (extent 4) leaves cores without work: its normal form is 2
  %y = icca.execute "copy"(%x) plan <grid [d = 3], operands [exec {} preload {}]> {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: the plan speaks of ('e',), the operator of ('d',)
  %y = icca.execute "copy"(%x) plan <grid [e = 2], operands [exec {} preload {}]> {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: the body yields the results of the execute
  %y = icca.execute "copy"(%x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.program @main {
  %x = "test.op"() : () -> tensor<4xf32>
  // CHECK: the first argument of the body is the layer, an index
  %y = icca.repeat 0 times 2 iter(%x) {
  ^bb0(%a: tensor<4xf32>):
    icca.yield %a : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

icca.program @main {
  %x = "test.op"() : () -> tensor<4xf32>
  // CHECK: the yields of icca.repeat differ in type from its operands
  %y = icca.repeat 0 times 2 iter(%x) {
  ^bb0(%l: index, %a: tensor<4xf32>):
    icca.yield
  } : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

// CHECK: unknown dimension n
"test.op"() {plan = #icca.plan<grid [m = 2], operands [exec {n = 2} preload {}]>} : () -> ()

// -----

// CHECK: the store to @k names both a first entry and rows
func.func @store(%x: tensor<2x1x4xf32>) {
  icca.store %x to @k from 3 rows @p : tensor<2x1x4xf32>
  func.return
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: the region of icca.tile holds exactly one structured operation
  %y = icca.execute "copy"(%x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
      %4 = te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: the operation reads the arguments of the region, in order
  %y = icca.execute "copy"(%x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0, %0) {
    ^bb0(%2: tensor<4xf32>, %3: tensor<4xf32>):
      %4 = te.map(%3, %2) <(d = 4), [(d), (d)] -> [(d)]> {body = #te.body<(x0, x1) {} -> (x0)>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: icca.execute has no icca.tile
  %y = icca.execute "copy"(%x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    icca.yield %0 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: 2 operands for an operator of 1
  %y = icca.execute "copy"(%x, %x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>, %x_2: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>, !icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %z = "test.op"() : () -> tensor<5xf32>
  // CHECK: operand 0 is tensor<5xf32>, the tile reads tensor<4xf32>
  %y = icca.execute "copy"(%z) {
  ^bb0(%z_1: tensor<5xf32>):
    %0 = "test.op"() : () -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.map(%2) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>} : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (tensor<5xf32>) -> tensor<4xf32>
}

// -----

icca.hbm input @x : tensor<4xf32>
icca.program @main {
  %x = icca.preload @x : !icca.handle<tensor<4xf32>>
  // CHECK: softmax: icca.reduce goes with statistics
  %y = icca.execute "copy"(%x) {
  ^bb0(%x_1: !icca.handle<tensor<4xf32>>):
    %0 = icca.distribute %x_1 : !icca.handle<tensor<4xf32>> -> tensor<4xf32>
    %1 = icca.tile(%0) {
    ^bb0(%2: tensor<4xf32>):
      %3 = te.softmax(%2) <(d = 4 reduce), [(d)] -> [(d)]> : (tensor<4xf32>) -> tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    icca.yield %1 : tensor<4xf32>
  } : (!icca.handle<tensor<4xf32>>) -> tensor<4xf32>
}
