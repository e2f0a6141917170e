// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-unroll-layers{factor=1}' 2>&1 | filecheck %s --check-prefix=ONE
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-unroll-layers{factor=4}' 2>&1 | filecheck %s --check-prefix=FEW
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=".*"},icca-carry-preload{op=a operand=1 before=b},icca-unroll-layers' 2>&1 | filecheck %s --check-prefix=CARRIED

// ONE: icca-unroll-layers: factor is 2 or more, not 1
// FEW: icca-unroll-layers: no loop has 4 layers or more and carries no preloads yet: unroll before preloads are carried
// CARRIED: icca-unroll-layers: no loop has 2 layers or more and carries no preloads yet
te.global weight @w stack 3 : tensor<4x4xf32> = dense<1.0> : tensor<3x4x4xf32>
te.global weight @v stack 3 : tensor<4x4xf32> = dense<1.0> : tensor<3x4x4xf32>
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"}) -> (tensor<1x4xf32> {onnx.name = "y"}) {
  %y = te.repeat 3 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    %w = te.load @w[%l] : tensor<4x4xf32>
    %a = te.contract(%h, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("a")
    %v = te.load @v[%l] : tensor<4x4xf32>
    %b = te.contract(%a, %v) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32> loc("b")
    te.yield %b : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
