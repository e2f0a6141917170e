"""Products of integers whose results are floats, from onnxruntime's domain."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.context import Context, Node, Unsupported, lowers, shape_of
from elk_ir.passes.onnx_lowerings.dynamic_lstm import quantized
from elk_ir.passes.onnx_lowerings.products import matmul
from elk_ir.passes.onnx_lowerings.quantized import less_zero


@lowers("com.microsoft:DynamicQuantizeMatMul")
def _dynamic(ctx: Context, node: Node) -> SSAValue:
    """A product of floats, quantised by the range of all their elements, with integers."""
    left = quantized(ctx, node.operand(0))
    right = less_zero(ctx, node.operand(1), node.get(3), None)
    return _scaled(ctx, node, left.values, right, left.scale, node.operand(2), node.get(4))


@lowers("com.microsoft:MatMulIntegerToFloat")
def _integer_to_float(ctx: Context, node: Node) -> SSAValue:
    """A product of integers of two scales."""
    rows = len(shape_of(node.operand(0))) - 2
    left = less_zero(ctx, node.operand(0), node.get(4), rows)
    right = less_zero(ctx, node.operand(1), node.get(5), None)
    return _scaled(ctx, node, left, right, node.operand(2), node.operand(3), node.get(6))


def _scaled(
    ctx: Context,
    node: Node,
    left: SSAValue,
    right: SSAValue,
    left_scale: SSAValue,
    right_scale: SSAValue,
    bias: SSAValue | None,
) -> SSAValue:
    """left · right, times both scales (of right: one, or one a column), plus a bias a column."""
    if _count(left_scale) != 1:
        raise Unsupported("a scale for each row")
    total = matmul(ctx, left, right, node.shape(), "int32")
    ins = [moves.reshape(ctx, left_scale, ())]
    ins.append(right_scale if _count(right_scale) > 1 else moves.reshape(ctx, right_scale, ()))
    ins += [] if bias is None else [bias]

    def fn(b: BodyBuilder, total: Scalar, *rest: Scalar) -> Scalar:
        value = b.cast(total, "float32") * (rest[0] * rest[1])
        return value + rest[2] if bias is not None else value

    return ctx.map1(fn, total, *ins, shape=node.shape())


def _count(value: SSAValue) -> int:
    return prod(shape_of(value))
