// RUN: elk-opt %s -p convert-linalg-to-te --print-debuginfo | filecheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
#turned = affine_map<(d0, d1) -> (d1, d0)>

// A product that starts from zeros is a contraction; its constant operand becomes a weight, read in
// front of its reader. What has no location of its own is named after its result.
// CHECK:       te.global weight @w : tensor<32x16xf32> = dense<5.000000e-01>
// CHECK-LABEL: @product
// CHECK-NEXT:    %[[W:.*]] = te.load @w
// CHECK-NEXT:    te.contract(%{{.*}}, %[[W]]) <(d0 = 8, d1 = 16, d2 = 32 reduce), [(d0, d2), (d2, d1)] -> [(d0, d1)]> : {{.*}} loc("p"({{.*}}))
// CHECK-NEXT:    func.return
func.func @product(%x: tensor<8x32xf32>) -> tensor<8x16xf32> {
  %w = arith.constant dense<0.5> : tensor<32x16xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %p = linalg.matmul ins(%x, %w : tensor<8x32xf32>, tensor<32x16xf32>) outs(%z : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %p : tensor<8x16xf32>
}

// One that adds to a tensor has an epilogue.
// CHECK-LABEL: @accumulate
// CHECK-NEXT:    te.contract(%{{.*}}, %{{.*}}, %{{.*}}) <(d0 = 2, d1 = 8, d2 = 16, d3 = 32 reduce), [(d0, d1, d3), (d0, d2, d3), (d0, d1, d2)] -> [(d0, d1, d2)]> {epilogue = #te.body<(x0, x1) {t0 = add(x1, x0)} -> (t0)>}
func.func @accumulate(%a: tensor<2x8x32xf32>, %b: tensor<2x16x32xf32>, %c: tensor<2x8x16xf32>) -> tensor<2x8x16xf32> {
  %p = linalg.batch_matmul_transpose_b ins(%a, %b : tensor<2x8x32xf32>, tensor<2x16x32xf32>) outs(%c : tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  func.return %p : tensor<2x8x16xf32>
}

// Integers are widened by the accumulator.
// CHECK-LABEL: @integers
// CHECK-NEXT:    te.contract(%{{.*}}, %{{.*}}) <(d0 = 4, d1 = 8, d2 = 16 reduce), {{.*}} : (tensor<4x16xi8>, tensor<16x8xi8>) -> tensor<4x8xi32>
func.func @integers(%a: tensor<4x16xi8>, %b: tensor<16x8xi8>) -> tensor<4x8xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<4x8xi32>
  %z = linalg.fill ins(%zero : i32) outs(%e : tensor<4x8xi32>) -> tensor<4x8xi32>
  %p = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<4x16xi8>, tensor<16x8xi8>) outs(%z : tensor<4x8xi32>) {
  ^bb0(%l: i8, %r: i8, %o: i32):
    %wl = arith.extsi %l : i8 to i32
    %wr = arith.extsi %r : i8 to i32
    %m = arith.muli %wl, %wr : i32
    %s = arith.addi %o, %m : i32
    linalg.yield %s : i32
  } -> tensor<4x8xi32>
  func.return %p : tensor<4x8xi32>
}

// Elementwise regions are maps, broadcasting and transposition are affine maps, constants are part
// of the body. A tensor that is read although it is an output is one more operand.
// CHECK-LABEL: @elementwise
// CHECK-NEXT:    te.map(%{{.*}}, %{{.*}}) <(d0 = 8, d1 = 16), [(d0, d1), (d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = const(0.0 : "float32"), t2 = max(t0, t1)} -> (t2)>}
// CHECK-NEXT:    te.map(%{{.*}}) <(d0 = 8, d1 = 16), [(d0, d1)] -> [(d1, d0)]> {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>}
// CHECK-NEXT:    te.map(%{{.*}}, %{{.*}}) <(d0 = 16, d1 = 8), [(d0, d1), (d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>}
// CHECK-NEXT:    te.map(%{{.*}}) {{.*}} {body = #te.body<(x0) {t0 = mul(x0, x0)} -> (t0)>}
// CHECK-NEXT:    func.return
func.func @elementwise(%x: tensor<8x16xf32>, %b: tensor<16xf32>, %y: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %r = linalg.generic {indexing_maps = [#id, #column, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %b : tensor<8x16xf32>, tensor<16xf32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %s = arith.addf %a, %c : f32
    %m = arith.maximumf %s, %zero : f32
    linalg.yield %m : f32
  } -> tensor<8x16xf32>
  %et = tensor.empty() : tensor<16x8xf32>
  %t = linalg.generic {indexing_maps = [#id, #turned], iterator_types = ["parallel", "parallel"]} ins(%r : tensor<8x16xf32>) outs(%et : tensor<16x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = math.tanh %a : f32
    linalg.yield %s : f32
  } -> tensor<16x8xf32>
  %u = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%t : tensor<16x8xf32>) outs(%y : tensor<16x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %o : f32
    linalg.yield %s : f32
  } -> tensor<16x8xf32>
  %q = linalg.square ins(%u : tensor<16x8xf32>) outs(%et : tensor<16x8xf32>) -> tensor<16x8xf32>
  func.return %q : tensor<16x8xf32>
}

// A reduction of something that is computed first; a maximum from -inf, and one from a number.
// CHECK-LABEL: @reductions
// CHECK-NEXT:    %[[E:.*]] = te.map(%{{.*}}) {{.*}} {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>}
// CHECK-NEXT:    te.reduce(%[[E]]) <(d0 = 8, d1 = 16 reduce), [(d0, d1)] -> [(d0)]> {combiner = #te<combiner sum>}
// CHECK-NEXT:    te.reduce(%{{.*}}) <(d0 = 8, d1 = 16 reduce), [(d0, d1)] -> [(d0)]> {combiner = #te<combiner max>}
// CHECK-NEXT:    te.reduce(%{{.*}}) <(d0 = 8 reduce, d1 = 16), [(d0, d1)] -> [(d1)]> {combiner = #te<combiner max>, epilogue = #te.body<(x0) {t0 = const(1.0 : "float32"), t1 = max(t0, x0)} -> (t1)>}
func.func @reductions(%x: tensor<8x16xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<16xf32>) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x16xf32>) outs(%z : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %p = math.exp %a : f32
    %q = arith.addf %p, %o : f32
    linalg.yield %q : f32
  } -> tensor<8xf32>
  %zl = linalg.fill ins(%low : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %m = linalg.reduce ins(%x : tensor<8x16xf32>) outs(%zl : tensor<8xf32>) dimensions = [1]
    (%a: f32, %o: f32) {
      %q = arith.maximumf %a, %o : f32
      linalg.yield %q : f32
    }
  %ec = tensor.empty() : tensor<16xf32>
  %zc = linalg.fill ins(%one : f32) outs(%ec : tensor<16xf32>) -> tensor<16xf32>
  %n = linalg.reduce ins(%x : tensor<8x16xf32>) outs(%zc : tensor<16xf32>) dimensions = [0]
    (%a: f32, %o: f32) {
      %q = arith.maximumf %a, %o : f32
      linalg.yield %q : f32
    }
  func.return %s, %m, %n : tensor<8xf32>, tensor<8xf32>, tensor<16xf32>
}

// An offset may be a constant in front of it.
// CHECK-LABEL: @offset
// CHECK:         te.map(%{{.*}}) <(d0 = 2, d1 = 16), [(d0 + 3, d1)] -> [(d0, d1)]>
func.func @offset(%x: tensor<8x16xf32>) -> tensor<2x16xf32> {
  %c = arith.constant 3 : index
  %s = tensor.extract_slice %x[%c, 0] [2, 16] [1, 1] : tensor<8x16xf32> to tensor<2x16xf32>
  func.return %s : tensor<2x16xf32>
}

// Shapes and boxes are moves; loop indices become a constant operand.
// CHECK-LABEL: @moves
// CHECK-NEXT:    te.map(%{{.*}}) <(d0 = 8, d1 = 4, d2 = 4), [(d0, 4*d1 + d2)] -> [(d0, d1, d2)]>
// CHECK-NEXT:    te.map(%{{.*}}) <(d0 = 4, d1 = 4, d2 = 2), [(d0 + 2, d1, 2*d2)] -> [(d0, d1, d2)]>
// CHECK:         te.map(%{{.*}}, %{{.*}}) <(d0 = 8, d1 = 16), [(d0, d1), (d1)] -> [(d0, d1)]> {body = #te.body<(x0, x1) {t0 = cast(x1 : "float32"), t1 = mul(x0, t0)} -> (t1)>}
func.func @moves(%x: tensor<8x16xf32>) -> (tensor<4x4x2xf32>, tensor<8x16xf32>) {
  %v = tensor.expand_shape %x [[0], [1, 2]] output_shape [8, 4, 4] : tensor<8x16xf32> into tensor<8x4x4xf32>
  %s = tensor.extract_slice %v[2, 0, 0] [4, 4, 2] [1, 1, 2] : tensor<8x4x4xf32> to tensor<4x4x2xf32>
  %e = tensor.empty() : tensor<8x16xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = arith.index_cast %i : index to i64
    %f = arith.sitofp %j : i64 to f32
    %m = arith.mulf %a, %f : f32
    linalg.yield %m : f32
  } -> tensor<8x16xf32>
  func.return %s, %r : tensor<4x4x2xf32>, tensor<8x16xf32>
}

// A convolution: its windows are local dimensions, read through strided maps.
// CHECK-LABEL: @convolution
// CHECK-NEXT:    te.contract(%{{.*}}, %{{.*}}) <(d0 = 1, d1 = 4, d2 = 3, d3 = 3, d4 = 2 reduce, d5 = 3 local, d6 = 3 local), [(d0, d4, 2*d2 + d5, 2*d3 + d6), (d1, d4, d5, d6)] -> [(d0, d1, d2, d3)]>
func.func @convolution(%x: tensor<1x2x7x7xf32>, %f: tensor<4x2x3x3xf32>) -> tensor<1x4x3x3xf32> {
  %zero = arith.constant 0.0 : f32
  %z = tensor.splat %zero : tensor<1x4x3x3xf32>
  %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%x, %f : tensor<1x2x7x7xf32>, tensor<4x2x3x3xf32>) outs(%z : tensor<1x4x3x3xf32>) -> tensor<1x4x3x3xf32>
  func.return %c : tensor<1x4x3x3xf32>
}

// Operations of te stay.
// CHECK-LABEL: @mixed
// CHECK-NEXT:    te.softmax
// CHECK-NEXT:    te.map
func.func @mixed(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %s = te.softmax(%x) <(d0 = 8, d1 = 16 reduce), [(d0, d1)] -> [(d0, d1)]> : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %n = arith.negf %s : tensor<8x16xf32>
  func.return %n : tensor<8x16xf32>
}
