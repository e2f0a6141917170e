// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16}' --split-input-file --verify-diagnostics | filecheck %s

// CHECK: convert-te-to-icca: a tensor of 4,611,686,018,427,387,904 elements fits no machine (at most 281,474,976,710,656)
func.func @main(%a: tensor<2147483648x2147483648xf32> {onnx.name = "a"})
    -> (tensor<2147483648x2147483648xf32> {onnx.name = "r"}) {
  func.return %a : tensor<2147483648x2147483648xf32>
}

// -----

// CHECK: convert-te-to-icca: expected one function, found 2
func.func @a() {
  func.return
}
func.func @b() {
  func.return
}

// -----

// CHECK: convert-te-to-icca: a tensor of 33 dimensions (at most 32)
func.func @rank(%a: tensor<1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1xf32> {onnx.name = "a"}) {
  func.return
}
