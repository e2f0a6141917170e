"""IR of another compiler in, IR of the chip out: a layer in linalg becomes an ipu program.

Run: python examples/linalg_layer.py
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

import elk_ir
from elk_ir.compiler import context

LAYER = """
func.func @main(%x: tensor<8x64xf32>, %w: tensor<64x96xf32>, %b: tensor<96xf32>) -> tensor<8x96xf32> {
  %zero = arith.constant 0.0 : f32
  %init = tensor.splat %zero : tensor<8x96xf32>
  %product = linalg.matmul ins(%x, %w : tensor<8x64xf32>, tensor<64x96xf32>)
      outs(%init : tensor<8x96xf32>) -> tensor<8x96xf32>
  %out = tensor.empty() : tensor<8x96xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%product, %b : tensor<8x96xf32>, tensor<96xf32>) outs(%out : tensor<8x96xf32>) {
  ^bb0(%p: f32, %bias: f32, %o: f32):
    %sum = arith.addf %p, %bias : f32
    %relu = arith.maximumf %sum, %zero : f32
    linalg.yield %relu : f32
  } -> tensor<8x96xf32>
  func.return %y : tensor<8x96xf32>
}
"""  # noqa: E501


def compiled() -> elk_ir.Program:
    """The layer for sixteen cores."""
    module: ModuleOp = Parser(context(), LAYER).parse_module()
    return elk_ir.compile(module, chip="test-16", policy="basic")


def main() -> None:
    """Compile, run, compare with numpy, and show what comes out."""
    program = compiled()
    rng = np.random.default_rng(0)
    inputs = {
        spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
        for spec in program.signature.inputs
    }
    (got,) = program.run(inputs).values()
    want = np.maximum(inputs["x"] @ inputs["w"] + inputs["b"], 0)
    print(f"largest error {np.abs(got - want).max():.1e}")
    print(f"time {program.simulate().time_s * 1e6:.2f} µs on {program.chip.name}")
    for op in program.module("ipu").body.block.ops:
        print(str(op).split("\n")[0][:100])


if __name__ == "__main__":
    main()
