// RUN: elk-opt %s -p convert-linalg-to-te --verify-diagnostics --split-input-file | filecheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#wrap = affine_map<(d0, d1) -> (d0 mod 4)>

// All operations that can't be lowered, in one message, and none that only depend on them.
// CHECK: 10 operations can't be lowered to te:
// CHECK-NEXT: argument 3: expected a ranked tensor, got f32
// CHECK-NEXT: filled: linalg.fill: operand 0 is f32: neither a tensor nor a scalar constant
// CHECK-NEXT: unwritten: linalg.generic: it reads a tensor that was never written (tensor.empty)
// CHECK-NEXT: unsigned: arith.divui: arith.divui: unsigned arithmetic on signless integers
// CHECK-NEXT: bits: linalg.generic: math.ctpop has no counterpart in a te body
// CHECK-NEXT: difference: linalg.generic: its region yields arith.subf, not a sum, product, maximum or minimum with the output's element
// CHECK-NEXT: twice: linalg.generic: its region uses the output's element more than once
// CHECK-NEXT: wrapped: linalg.generic: the index (d0 mod 4) is not a sum of multiples of loops
// CHECK-NEXT: call: func.call: no lowering for this operation: not linalg on tensors, nor te
// CHECK-NEXT: quantized: linalg.quantized_matmul: no lowering for this operation
// CHECK-NOT: behind
func.func private @other(tensor<8x8xf32>) -> tensor<8x8xf32>
func.func @main(%x: tensor<8x8xf32>, %n: tensor<8x8xi32>, %v: tensor<4xf32>, %s: f32, %b: tensor<8x8xi8>) -> tensor<8x8xf32> {
  %zero = arith.constant 0.0 : f32
  %none = arith.constant 0 : i32
  %e = tensor.empty() : tensor<8x8xf32>
  %en = tensor.empty() : tensor<8x8xi32>
  %z = tensor.splat %zero : tensor<8xf32>
  %zn = tensor.splat %none : tensor<8x8xi32>
  %filled = linalg.fill ins(%s : f32) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
  %behind = arith.negf %filled : tensor<8x8xf32>
  %unwritten = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.addf %a, %o : f32
    linalg.yield %q : f32
  } -> tensor<8x8xf32>
  %unsigned = arith.divui %n, %n : tensor<8x8xi32>
  %bits = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%n : tensor<8x8xi32>) outs(%en : tensor<8x8xi32>) {
  ^bb0(%a: i32, %o: i32):
    %q = math.ctpop %a : i32
    linalg.yield %q : i32
  } -> tensor<8x8xi32>
  %difference = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x8xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.subf %o, %a : f32
    linalg.yield %q : f32
  } -> tensor<8xf32>
  %twice = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x8xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %p = arith.mulf %o, %a : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8xf32>
  %wrapped = linalg.generic {indexing_maps = [#id, #wrap, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %v : tensor<8x8xf32>, tensor<4xf32>) outs(%e : tensor<8x8xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %q = arith.addf %a, %c : f32
    linalg.yield %q : f32
  } -> tensor<8x8xf32>
  %call = func.call @other(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %quantized = linalg.quantized_matmul ins(%b, %b, %none, %none : tensor<8x8xi8>, tensor<8x8xi8>, i32, i32) outs(%zn : tensor<8x8xi32>) -> tensor<8x8xi32>
  func.return %behind : tensor<8x8xf32>
}

// -----

// CHECK: buffer: linalg.fill: operand 1 is memref<4xf32>: neither a tensor nor a scalar constant
func.func @buffers(%m: memref<4xf32>) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%m : memref<4xf32>) loc("buffer")
  func.return
}

// -----

// CHECK: open: linalg.exp: expected a static shape, got tensor<?xf32>
func.func @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
  %open = linalg.exp ins(%x : tensor<?xf32>) outs(%x : tensor<?xf32>) -> tensor<?xf32>
  func.return %open : tensor<?xf32>
}

// -----

// CHECK: bounds: tensor.extract_slice: operand 1 is an index that is not a constant
func.func @bounds(%x: tensor<8xf32>, %i: index) -> tensor<4xf32> {
  %bounds = tensor.extract_slice %x[%i] [4] [1] : tensor<8xf32> to tensor<4xf32>
  func.return %bounds : tensor<4xf32>
}

// -----

// CHECK: outside: tensor.extract_slice: elements 6 to 9 of an axis of 8
func.func @outside(%x: tensor<8xf32>) -> tensor<4xf32> {
  %c = arith.constant 6 : index
  %outside = tensor.extract_slice %x[%c] [4] [1] : tensor<8xf32> to tensor<4xf32>
  func.return %outside : tensor<4xf32>
}

// -----

// CHECK: axes: tensor.extract_slice: its bounds are not those of 2 axes
func.func @axes(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
  %axes = "tensor.extract_slice"(%x) <{static_offsets = array<i64: 0>, static_sizes = array<i64: 2>, static_strides = array<i64: 1>, operandSegmentSizes = array<i32: 1, 0, 0, 0>}> : (tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %axes : tensor<2x4xf32>
}

// -----

// CHECK: nothing: linalg.generic: it has no result; hand in linalg on tensors
func.func @nothing(%x: tensor<4xf32>) {
  linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) {
  ^bb0(%a: f32):
    linalg.yield
  } loc("nothing")
  func.return
}

// -----

// CHECK: two: linalg.generic: a reduction with 2 results
func.func @two(%x: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = arith.constant 0.0 : f32
  %z = tensor.splat %zero : tensor<8xf32>
  %two, %more = "linalg.generic"(%x, %z, %z) <{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0)>], iterator_types = [#linalg.iterator_type<parallel>, #linalg.iterator_type<reduction>], operandSegmentSizes = array<i32: 1, 2>}> ({
  ^bb0(%a: f32, %o: f32, %p: f32):
    %q = arith.addf %o, %a : f32
    %r = arith.mulf %p, %a : f32
    linalg.yield %q, %r : f32, f32
  }) : (tensor<8x8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  func.return %two, %more : tensor<8xf32>, tensor<8xf32>
}

// -----

// CHECK: diagonal: linalg.generic: an output that is not indexed once by each parallel loop
func.func @diagonal(%x: tensor<4xf32>, %y: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %diagonal = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0, d0)>], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%y : tensor<4x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  } -> tensor<4x4xf32>
  func.return %diagonal : tensor<4x4xf32>
}

// -----

// CHECK: either: linalg.reduce: arith.ori over integers
func.func @either(%x: tensor<8x8xi32>) -> tensor<8xi32> {
  %none = arith.constant 0 : i32
  %z = tensor.splat %none : tensor<8xi32>
  %either = linalg.reduce ins(%x : tensor<8x8xi32>) outs(%z : tensor<8xi32>) dimensions = [1]
    (%a: i32, %o: i32) {
      %q = arith.ori %a, %o : i32
      linalg.yield %q : i32
    }
  func.return %either : tensor<8xi32>
}

// -----

// CHECK: picked: tensor.from_elements: operand 0 is f32: neither a tensor nor a scalar constant
// CHECK-NEXT: sum: arith.addf: arithmetic on scalars (fold constants first)
func.func @scalars(%s: f32) -> tensor<1xf32> {
  %one = arith.constant 1.0 : f32
  %picked = tensor.from_elements %s : tensor<1xf32>
  %sum = arith.addf %one, %one : f32
  func.return %picked : tensor<1xf32>
}
