// RUN: elk-opt %s -p 'te-quantize{scheme=w4a4 calibration=unit}' | filecheck %s
// RUN: elk-opt %s -p 'te-quantize{scheme=w8a8 activations=token calibration=unit}' | filecheck %s --check-prefix=TOKEN
// RUN: elk-opt %s -p 'te-quantize{scheme=w4a16}' | filecheck %s --check-prefix=WEIGHTS
// RUN: elk-opt %s -p 'te-quantize{scheme=w8a16kv8 calibration=unit}' | filecheck %s --check-prefix=STORED
// RUN: elk-opt %s -p 'te-quantize{scheme=wf8a16kvf8}' | filecheck %s --check-prefix=FLOAT
// RUN: elk-opt %s -p 'te-quantize{scheme=w2a8 output=2 kv=4 silu=4 calibration=unit},te-verify-quantized' | filecheck %s --check-prefix=BITS

// A layer: product, SiLU gate, product; attention over a cache; the output layer.

// CHECK-DAG: te.global state @k : tensor<2x2x5x8xi4> {{.*}} steps = dense<0.30{{[0-9]*}}> : tensor<1xf32>
// CHECK-DAG: te.global weight @wq.i4 : tensor<16x16xi4> = #te.weight<[<"wq" : tensor<16x16xf32>, "w.bin", 0, 1024, "">], ["quantize i4 1"]>
// CHECK-DAG: te.global weight @wq.i4.steps : tensor<16xf32> = #te.weight<[<"wq" : tensor<16x16xf32>, "w.bin", 0, 1024, "">], ["steps i4 1"]>
// CHECK-DAG: te.global weight @wo.i8 : tensor<16x32xi8> = #te.weight<{{.*}}, ["transpose 1 0", "quantize i8 1"]>
// Numbers that are only stored narrow: products and attention widen them, their steps go into
// epilogues, the scale of the scores, and the sums of the product that reads the result.
// STORED-DAG: te.global state @k : tensor<2x2x5x8xi8> {{.*}} steps = dense<0.030{{[0-9]*}}> : tensor<1xf32>
// FLOAT-DAG: te.global state @k : tensor<2x2x5x8xf8E4M3FN> {{.*}} steps = dense<1.000000e+00> : tensor<1xf32>
// FLOAT-DAG: te.global weight @wo.f8E4M3FN : tensor<16x32xf8E4M3FN> = #te.weight<{{.*}}, ["transpose 1 0", "quantize f8E4M3FN 1"]>
te.global state @k : tensor<2x2x5x8xf32> {axis = 2 : i64, length = 4 : i64, inputs = ["past"], outputs = ["present"]}
te.global weight @wq : tensor<16x16xf32> = #te.weight<[<"wq" : tensor<16x16xf32>, "w.bin", 0, 1024, "">]>
te.global weight @wg : tensor<16x16xf32> = #te.weight<[<"wg" : tensor<16x16xf32>, "w.bin", 1024, 1024, "">]>
te.global weight @wo : tensor<16x32xf32> = #te.weight<[<"wo" : tensor<32x16xf32>, "w.bin", 2048, 2048, "">], ["transpose 1 0"]>

func.func @main(%x: tensor<2x16xf32> {onnx.name = "x"}, %new: tensor<2x2x1x8xf32> {onnx.name = "new"}) -> (tensor<2x32xf32> {onnx.name = "y"}) {
  %wq = te.load @wq : tensor<16x16xf32>
  %wg = te.load @wg : tensor<16x16xf32>
  %wo = te.load @wo : tensor<16x32xf32>
  // One quantised tensor for both products; the sum is a number again in the epilogue, and then
  // the eight bits that the SiLU behind it reads.
  // CHECK: %[[X:.*]] = te.quantize(%x) {{.*}} {step = 0.30{{[0-9]*}} : f64} : (tensor<2x16xf32>) -> tensor<2x16xi4>
  // CHECK: %[[G:.*]] = te.contract(%[[X]], %wg_i4, %wg_i4_steps) {{.*}}cast(x0 : "float32"){{.*}}round{{.*}}cast({{.*}} : "int8")
  // CHECK-SAME: (tensor<2x16xi4>, tensor<16x16xi4>, tensor<16xf32>) -> tensor<2x16xi8>
  // TOKEN: te.map(%x) {{.*}}abs
  // TOKEN: %[[STEP:.*]] = te.reduce({{.*}}) {{.*}}combiner max{{.*}}-> tensor<2xf32>
  // TOKEN: te.quantize(%x, %[[STEP]]) {{.*}}[(d0, d1), (d0)] -> [(d0, d1)]{{.*}} -> tensor<2x16xi8>
  // WEIGHTS: te.contract(%x, %wg_i4, %wg_i4_steps) {{.*}}[(m, k), (k, n), (n)] -> [(m, n)]{{.*}}{t0 = mul(x0, x1)} -> (t0)>} : (tensor<2x16xf32>, tensor<16x16xi4>, tensor<16xf32>) -> tensor<2x16xf32>
  // FLOAT: te.contract(%x, %wg_f8E4M3FN, %wg_f8E4M3FN_steps)
  // BITS: te.contract({{.*}}) {{.*}} : (tensor<2x16xi8>, tensor<16x16xi2>, tensor<16xf32>) -> tensor<2x16xi4>
  %g = te.contract(%x, %wg) <(m = 2, n = 16, k = 16 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x16xf32>, tensor<16x16xf32>) -> tensor<2x16xf32>
  // CHECK: te.contract(%[[X]], %wq_i4, %wq_i4_steps, %[[G]]) {{.*}}sigmoid
  %q = te.contract(%x, %wq, %g) <(m = 2, n = 16, k = 16 reduce), [(m, k), (k, n), (m, n)] -> [(m, n)]> {epilogue = #te.body<(x0, x1) {t0 = sigmoid(x1), t1 = mul(x1, t0), t2 = mul(t1, x0)} -> (t2)>} : (tensor<2x16xf32>, tensor<16x16xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
  // CHECK: %[[NEW:.*]] = te.quantize(%new) {{.*}} -> tensor<2x2x1x8xi4>
  // CHECK: %[[K:.*]] = te.append %[[NEW]] to @k : tensor<2x2x1x8xi4> -> tensor<2x2x5x8xi4>
  %k = te.append %new to @k : tensor<2x2x1x8xf32> -> tensor<2x2x5x8xf32>
  // CHECK: %[[S:.*]] = te.contract({{.*}}, %[[K]]) {{.*}}-> [(b, h, t)]{{.*}} : (tensor<2x16xi4>, tensor<2x2x5x8xi4>) -> tensor<2x2x5xf32>
  // CHECK: %[[P:.*]] = te.softmax(%[[S]]) {{.*}} {state = @k}
  // CHECK: %[[PQ:.*]] = te.quantize(%[[P]]) {{.*}} -> tensor<2x2x5xui4>
  // CHECK: te.contract(%[[PQ]], %[[K]]) {{.*}}[(b, h, t), (b, h, t, n)] -> [(b, 8*h + n)]{{.*}} -> tensor<2x16xi8>
  // WEIGHTS: te.attention
  // STORED: %[[NEW:.*]] = te.quantize(%new) {{.*}} -> tensor<2x2x1x8xi8>
  // STORED: %[[K:.*]] = te.append %[[NEW]] to @k
  // STORED: te.attention({{.*}}, %[[K]], %[[K]]) {{.*}} {scale = 0.0106{{[0-9]*}} : f64, state = @k} : (tensor<2x16xf32>, tensor<2x2x5x8xi8>, tensor<2x2x5x8xi8>) -> tensor<2x16xf32>
  // FLOAT: te.append {{.*}} -> tensor<2x2x5x8xf8E4M3FN>
  // FLOAT: te.attention({{.*}}) {{.*}}scale = 3.500000e-01
  // BITS: te.quantize({{.*}}) {{.*}} -> tensor<2x2x5xui4>
  %a = te.attention(%q, %k, %k) <(b = 2, h = 2, n = 8 local, t = 5 reduce, d = 8 local), [(b, 8*h + d), (b, h, t, d), (b, h, t, n)] -> [(b, 8*h + n)]> {scale = 0.35 : f64, state = @k} : (tensor<2x16xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>) -> tensor<2x16xf32>
  // CHECK: te.contract({{.*}}, %wo_i8, %wo_i8_steps) {{.*}} : (tensor<2x16xi8>, tensor<16x32xi8>, tensor<32xf32>) -> tensor<2x32xf32>
  // BITS: te.contract({{.*}}, %wo_i2, %wo_i2_steps)
  // STORED: te.contract({{.*}}, %wo_i8, %wo_i8_steps) {{.*}}const(0.030{{[0-9]*}} : "float32"){{.*}} : (tensor<2x16xf32>, tensor<16x32xi8>, tensor<32xf32>) -> tensor<2x32xf32>
  %y = te.contract(%a, %wo) <(m = 2, n = 32, k = 16 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x16xf32>, tensor<16x32xf32>) -> tensor<2x32xf32>
  func.return %y : tensor<2x32xf32>
}
