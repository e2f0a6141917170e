// IR of another compiler in, IR of the chip out: a layer in linalg on tensors, through every stage.
//
// RUN: elk-opt %s -p 'convert-linalg-to-te,te-pipeline' | filecheck %s --check-prefix=TE
// RUN: elk-opt %s -p 'convert-linalg-to-te,te-pipeline,convert-te-to-icca{chip=test-16},icca-schedule{policy=basic},icca-allocate,icca-verify-program' | filecheck %s --check-prefix=ICCA
// RUN: elk-opt %s -p 'convert-linalg-to-te,te-pipeline,convert-te-to-icca{chip=test-16},icca-schedule{policy=basic},icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program' | filecheck %s --check-prefix=IPU

func.func @main(%x: tensor<8x64xf32>, %b: tensor<96xf32>) -> tensor<8xf32> {
  %w = arith.constant dense<0.5> : tensor<64x96xf32>
  %zero = arith.constant 0.0 : f32
  %init = tensor.splat %zero : tensor<8x96xf32>
  %product = linalg.matmul ins(%x, %w : tensor<8x64xf32>, tensor<64x96xf32>) outs(%init : tensor<8x96xf32>) -> tensor<8x96xf32>
  %out = tensor.empty() : tensor<8x96xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%product, %b : tensor<8x96xf32>, tensor<96xf32>) outs(%out : tensor<8x96xf32>) {
  ^bb0(%p: f32, %bias: f32, %o: f32):
    %sum = arith.addf %p, %bias : f32
    %relu = arith.maximumf %sum, %zero : f32
    linalg.yield %relu : f32
  } -> tensor<8x96xf32>
  %low = arith.constant 0xFF800000 : f32
  %lows = tensor.splat %low : tensor<8xf32>
  %top = linalg.reduce ins(%y : tensor<8x96xf32>) outs(%lows : tensor<8xf32>) dimensions = [1]
    (%a: f32, %o: f32) {
      %m = arith.maximumf %a, %o : f32
      linalg.yield %m : f32
    }
  func.return %top : tensor<8xf32>
}

// The elementwise region is fused into the product's epilogue; the constant is a weight.
// TE:       te.global weight @w : tensor<64x96xf32>
// TE-LABEL: func.func @main
// TE:         %[[W:.*]] = te.load @w
// TE-NEXT:    %[[Y:.*]] = te.contract(%{{.*}}, %[[W]], %{{.*}}) <(d0 = 8, d1 = 96, d2 = 64 reduce), [(d0, d2), (d2, d1), (d1)] -> [(d0, d1)]> {epilogue = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = const(0.0 : "float32"), t2 = max(t0, t1)} -> (t2)>}
// TE-NEXT:    %[[T:.*]] = te.reduce(%[[Y]]) {{.*}} {combiner = #te<combiner max>}
// TE-NEXT:    func.return %[[T]]

// Operators are named after linalg's results; the weight and the arguments come from HBM.
// ICCA-DAG:   icca.hbm weight @w : tensor<64x96xf32>
// ICCA-DAG:   icca.hbm input @x : tensor<8x64xf32>
// ICCA-DAG:   icca.hbm output @out0 : tensor<8xf32>
// ICCA-LABEL: icca.program @main
// ICCA:         icca.preload @w at {{[0-9]+}}
// ICCA:         %[[P:.*]] = icca.execute "product"
// ICCA:         %[[R:.*]] = icca.execute "top"(%[[P]]) plan <grid
// ICCA:         icca.store %[[R]] to @out0

// IPU-LABEL: ipu.program @main
// IPU:         ipu.copy_start @w -> @product.preload1
// IPU:         ipu.execute @product.apply apply @product
// IPU:         ipu.reshard @product.result0 -> @top.execute0
// IPU:         ipu.execute @top.apply apply @top
// IPU-NEXT:    ipu.store_start @top.result0 -> @out0
