// RUN: elk-opt %s -p 'northpole-map-stages{precision=w4a4 users=4}' | elk-opt | filecheck %s
// RUN: elk-opt %s -p 'northpole-map-stages{chip=northpole users=3}' | filecheck %s --check-prefix=ONE

builtin.module attributes {onnx.model = "two-layers.onnx"} {
  te.global weight @table : tensor<32x16xf16> = dense<0.0> : tensor<32x16xf16>
  te.global weight @g stack 2 : tensor<16xf16> = dense<1.0> : tensor<2x16xf16>
  te.global weight @wq stack 2 : tensor<16x2x8xf16> = dense<0.0> : tensor<2x16x2x8xf16>
  te.global weight @wk stack 2 : tensor<16x2x8xf16> = dense<0.0> : tensor<2x16x2x8xf16>
  te.global weight @wo stack 2 : tensor<16x16xf16> = dense<0.0> : tensor<2x16x16xf16>
  te.global weight @wu stack 2 : tensor<16x64xf16> = dense<0.0> : tensor<2x16x64xf16>
  te.global weight @wd stack 2 : tensor<64x16xf16> = dense<0.0> : tensor<2x64x16xf16>
  te.global weight @head : tensor<16x32xf16> = dense<0.0> : tensor<16x32xf16>
  te.global state @k stack 2 : tensor<2x2x8x8xf16> {axis = 2 : i64, length = 7 : i64, inputs = ["k0", "k1"], outputs = ["K0", "K1"]}
  te.global state @v stack 2 : tensor<2x2x8x8xf16> {axis = 2 : i64, length = 7 : i64, inputs = ["v0", "v1"], outputs = ["V0", "V1"]}
  func.func @main(%ids: tensor<2xi64> {onnx.name = "ids"}) -> (tensor<2x32xf16> {onnx.name = "logits"}) {
    %t = te.load @table : tensor<32x16xf16>
    %h = te.gather(%t, %ids) <(i = 2, d = 16, rows = 32 reduce), [(rows, d), (i)] -> [(i, d)]> : (tensor<32x16xf16>, tensor<2xi64>) -> tensor<2x16xf16>
    %y = te.repeat 2 iter(%h) {
    ^bb0(%l: index, %x: tensor<2x16xf16>):
      %g = te.load @g[%l] : tensor<16xf16>
      %n = te.normalize(%x, %g) <(b = 2, d = 16 reduce), [(b, d), (d)] -> [(b, d)]> {form = #te<norm_form rms>, epsilon = 1.0e-06 : f64, affine = "scale"} : (tensor<2x16xf16>, tensor<16xf16>) -> tensor<2x16xf16>
      %wq = te.load @wq[%l] : tensor<16x2x8xf16>
      %q = te.contract(%n, %wq) <(b = 2, h = 2, n = 8, k = 16 reduce), [(b, k), (k, h, n)] -> [(b, h, 0, n)]> : (tensor<2x16xf16>, tensor<16x2x8xf16>) -> tensor<2x2x1x8xf16>
      %wk = te.load @wk[%l] : tensor<16x2x8xf16>
      %kn = te.contract(%n, %wk) <(b = 2, h = 2, n = 8, k = 16 reduce), [(b, k), (k, h, n)] -> [(b, h, 0, n)]> : (tensor<2x16xf16>, tensor<16x2x8xf16>) -> tensor<2x2x1x8xf16>
      %k = te.append %kn to @k[%l] : tensor<2x2x1x8xf16> -> tensor<2x2x8x8xf16>
      %v = te.append %kn to @v[%l] : tensor<2x2x1x8xf16> -> tensor<2x2x8x8xf16>
      %a = te.attention(%q, %k, %v) <(b = 2, h = 2, n = 8 local, p = 8 reduce, d = 8 local), [(b, h, 0, d), (b, h, p, d), (b, h, p, n)] -> [(b, 8*h + n)]> {scale = 1.0 : f64} : (tensor<2x2x1x8xf16>, tensor<2x2x8x8xf16>, tensor<2x2x8x8xf16>) -> tensor<2x16xf16>
      %wo = te.load @wo[%l] : tensor<16x16xf16>
      %r = te.contract(%a, %wo, %x) <(b = 2, n = 16, k = 16 reduce), [(b, k), (k, n), (b, n)] -> [(b, n)]> {epilogue = #te.body<(x0, x1) {t0 = cast(x0 : "float16"), t1 = add(x1, t0)} -> (t1)>} : (tensor<2x16xf16>, tensor<16x16xf16>, tensor<2x16xf16>) -> tensor<2x16xf16>
      %wu = te.load @wu[%l] : tensor<16x64xf16>
      %u = te.contract(%r, %wu) <(b = 2, n = 64, k = 16 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x16xf16>, tensor<16x64xf16>) -> tensor<2x64xf16>
      %wd = te.load @wd[%l] : tensor<64x16xf16>
      %o = te.contract(%u, %wd, %r) <(b = 2, n = 16, k = 64 reduce), [(b, k), (k, n), (b, n)] -> [(b, n)]> {epilogue = #te.body<(x0, x1) {t0 = cast(x0 : "float16"), t1 = add(x1, t0)} -> (t1)>} : (tensor<2x64xf16>, tensor<64x16xf16>, tensor<2x16xf16>) -> tensor<2x16xf16>
      te.yield %o : tensor<2x16xf16>
    } : (tensor<2x16xf16>) -> tensor<2x16xf16>
    %w = te.load @head : tensor<16x32xf16>
    %logits = te.contract(%y, %w) <(b = 2, n = 32, k = 16 reduce), [(b, k), (k, n)] -> [(b, n)]> : (tensor<2x16xf16>, tensor<16x32xf16>) -> tensor<2x32xf16>
    func.return %logits : tensor<2x32xf16>
  }
}

// The function stays; a layer is two blocks, the residual crosses between them.
// CHECK:       te.repeat 2
// CHECK:       northpole.block @block_0 "block 0" in 16 out 16 phases 6 ways 1 {
// CHECK-NEXT:    northpole.place <name = "n", kind = "normalize", unit = "vector", phases = 2, vector_ops = 80.0, constant_elements = 16, working_elements = 32> grid [1, 256]
// CHECK-NEXT:    northpole.place <name = "q", kind = "contract", unit = "matrix", macs = 256.0, weight_elements = 256, step_count = 16, matrix = [16, 16], working_elements = 32> grid [16, 16]
// CHECK-NEXT:    northpole.place <name = "kn"
// CHECK-NEXT:    northpole.place <name = "a", kind = "attention", unit = "matrix", phases = 2, kv_macs = 32.0, kv_elements = 32, kv_vector_ops = 10.0, heads = 2, working_elements = 32> grid [2, 8]
// CHECK-NEXT:    northpole.place <name = "r"
// CHECK-NEXT:  }
// CHECK-NEXT:  northpole.block @block_1 "block 1" in 16 out 16 phases 2 ways 1 {
// CHECK:       northpole.block head @block_2 "head" in 16 out 32 phases 1 ways 1 {
// CHECK:       northpole.program @appliance "two-layers.onnx" <name = "w4a4", weight_bits = 4, activation_bits = 4, kv_bits = 4> <> users 4 fit 93748 micro_batches 2 context 8 batch 2 limit "{{.*}}4 asked for" {
// CHECK-NEXT:    northpole.host @host {
// CHECK-NEXT:      northpole.place <name = "h", kind = "gather", unit = "host", phases = 0, constant_elements = 512> grid [1, 256]
// CHECK-NEXT:    }
// CHECK-NEXT:    northpole.stage @stage_0 "layer 0" cards [0] blocks [@block_0, @block_1] of [0, 0] <weight_bytes = 1408, constant_bytes = 288, kv_bytes_per_user = 128, core_fixed_bytes = 13, core_kv_bytes_per_user = 8>
// CHECK-NEXT:    northpole.stage @stage_1 "layer 1" cards [1] blocks [@block_0, @block_1] of [1, 1]
// CHECK-NEXT:    northpole.stage @stage_2 "output layer" cards [2] blocks [@block_2] of [-1]
// CHECK-NEXT:    northpole.send @host -> @stage_0 bytes 64
// CHECK-NEXT:    northpole.send @stage_0 -> @stage_1 bytes 64
// CHECK-NEXT:    northpole.send @stage_1 -> @stage_2 bytes 64
// CHECK-NEXT:    northpole.send @stage_2 -> @host bytes 128

// One card holds everything, the output layer too.
// ONE:         users 3 fit 46873 micro_batches 1
// ONE:         northpole.stage @stage_0 "all layers" cards [0] blocks [@block_0, @block_1, @block_0, @block_1, @block_2] of [0, 0, 1, 1, -1]
