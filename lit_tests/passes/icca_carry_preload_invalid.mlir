// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-carry-preload{op=a operand=1 before=b}' --split-input-file --verify-diagnostics | filecheck %s

// CHECK: icca-carry-preload: "a" is not in a layer loop
te.global weight @w : tensor<4x4xf32> = dense<1.0> : tensor<4x4xf32>
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<4x4xf32>
  %a = te.contract(%x, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("a")
  func.return %a : tensor<1x4xf32>
}

// -----

// CHECK: icca-carry-preload: a loop of one iteration has no next one to preload for
te.global weight @w stack 1 : tensor<4x4xf32> = dense<1.0> : tensor<1x4x4xf32>
te.global weight @v stack 1 : tensor<4x4xf32> = dense<1.0> : tensor<1x4x4xf32>
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  %y = te.repeat 1 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    %w = te.load @w[%l] : tensor<4x4xf32>
    %a = te.contract(%h, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("a")
    %v = te.load @v[%l] : tensor<4x4xf32>
    %b = te.contract(%a, %v) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("b")
    te.yield %b : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
