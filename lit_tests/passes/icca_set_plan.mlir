// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=2,k=2"}' | filecheck %s --check-prefix=GRID
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=4" exec="0:k=2;1:n=2" preload="1:n=2,k=1" rings="n,k"}' | filecheck %s --check-prefix=RINGS
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="k=4" reduce=root}' | filecheck %s --check-prefix=ROOT
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=q grid="k=4"}' 2>&1 | filecheck %s --check-prefix=LABEL
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="j=4"}' 2>&1 | filecheck %s --check-prefix=DIM
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="m=2,n=5,k=2"}' 2>&1 | filecheck %s --check-prefix=CORES
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="n=4" exec="1:n=2"}' 2>&1 | filecheck %s --check-prefix=SHARE
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="k=4" reduce=most}' 2>&1 | filecheck %s --check-prefix=REDUCE
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p exec="k=2"}' 2>&1 | filecheck %s --check-prefix=SYNTAX
// RUN: not elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op=p grid="k"}' 2>&1 | filecheck %s --check-prefix=FACTOR
// RUN: not elk-opt %s -p 'icca-set-plan{op=p}' 2>&1 | filecheck %s --check-prefix=PROGRAM

// FACTOR: icca-set-plan: expected DIM=NUMBER, got 'k' in 'k'
// PROGRAM: the module names no chip (attribute icca.chip)
// A split reduction is scattered along the longest axis of the result, and its statistic has one
// entry for each part.
// GRID: icca.execute "p"{{.*}} plan <grid [m = 2, n = 2, k = 2], operands [exec {} preload {}, exec {} preload {}], scatter n> {
// GRID: icca.tile({{.*}}) {
// GRID: } : (tensor<4x8xf32>, tensor<8x10xf32>) -> tensor<2x4x10xf32>

// RINGS: plan <grid [m = 2, n = 4, k = 1], operands [exec {k = 2} preload {k = 2}, exec {n = 2} preload {n = 2}], rings [n, k]>
// ROOT: plan <grid [m = 1, n = 1, k = 4], operands [exec {} preload {}, exec {} preload {}], root>

// LABEL: icca-set-plan: no execute is called 'q'; there are p
// DIM: icca-set-plan: p has no dimension 'j' (it has m, n, k)
// CORES: error: in node 'p': icca-set-plan: p: the grid needs 20 cores, the chip has 16
// SHARE: operand 1: 2 preload pieces do not divide 1 sharing cores
// REDUCE: icca-set-plan: reduce='most' is none of scatter, root, all
// SYNTAX: icca-set-plan: expected OPERAND:DIM=NUMBER,…, got 'k=2'

te.global weight @w : tensor<8x10xf32> = dense<1.0> : tensor<8x10xf32>
func.func @main(%x: tensor<4x8xf32> {onnx.name = "x"}) -> (tensor<4x10xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<8x10xf32>
  %p = te.contract(%x, %w) <(m = 4, n = 10, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<4x8xf32>, tensor<8x10xf32>) -> tensor<4x10xf32> loc("p")
  func.return %p : tensor<4x10xf32>
}
