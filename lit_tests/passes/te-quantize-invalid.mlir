// RUN: not elk-opt %s -p 'te-quantize{scheme=w4a4}' 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not elk-opt %s -p 'te-quantize{scheme=w4}' 2>&1 | filecheck %s --check-prefix=SCHEME
// RUN: not elk-opt %s -p 'te-quantize{scheme=w3a4 calibration=unit}' 2>&1 | filecheck %s --check-prefix=BITS
// RUN: not elk-opt %s -p 'te-quantize{scheme=w4a4 calibration=unit activations=row}' 2>&1 | filecheck %s --check-prefix=GRAIN
// RUN: not elk-opt %s -p 'te-quantize{scheme=w4a4 calibration=unit kv=3}' 2>&1 | filecheck %s --check-prefix=KV
// RUN: not elk-opt %s -p 'te-quantize{scheme=w4a4 calibration="no-such-file.npz"}' 2>&1 | filecheck %s --check-prefix=FILE
// RUN: not elk-opt %s -p 'te-quantize{scheme=w8a8 calibration=unit},te-quantize{scheme=w8a8 calibration=unit}' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not elk-opt %s -p 'te-quantize{scheme=wf8a8}' 2>&1 | filecheck %s --check-prefix=FLOAT
// RUN: not elk-opt %s -p 'te-quantize{scheme=w8a16kv3}' 2>&1 | filecheck %s --check-prefix=CACHE
// RUN: not elk-opt %s -p 'te-quantize{scheme=w8a16kv8 kv=4}' 2>&1 | filecheck %s --check-prefix=BOTH

// FLOAT: wf8a8: products of 8-bit activations are of integers
// CACHE: unknown quantisation scheme 'w8a16kv3'
// BOTH: w8a16kv8, but kv of 4 bits
// MISSING: w4a4 needs calibration inputs: the steps of 1 tensors are fitted on them
// MISSING: calibration="in.npz"
// SCHEME: unknown quantisation scheme 'w4'
// SCHEME: w4a4, w8a8, w2a8, w4a16
// BITS: unknown quantisation scheme 'w3a4'
// GRAIN: unknown grain of steps 'row'
// GRAIN: one of tensor, token
// KV: kv of 3 bits
// FILE: no-such-file.npz: no such file
// TWICE: there is nothing to quantise
func.func @main(%x: tensor<2x8xf32> {onnx.name = "x"}) -> (tensor<2x4xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<8x4xf32>
  %y = te.contract(%x, %w) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

te.global weight @w : tensor<8x4xf32> = dense<0.5> : tensor<8x4xf32>
