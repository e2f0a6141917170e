"""Quantisation: to and from scaled integers, and products of integers."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import identity_map
from elk_ir.dialects.te.ops import MapOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings.axes import Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Fn,
    Node,
    Unsupported,
    dtype_of_value,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.elementwise import is_narrow_float, narrow_float
from elk_ir.passes.onnx_lowerings.movement import axis_of
from elk_ir.passes.onnx_lowerings.products import matmul
from elk_ir.plan.domain import AxisExpr
from elk_ir.quant.integers import integer_range


@lowers("DequantizeLinear")
def _dequantize(ctx: Context, node: Node) -> SSAValue:
    """(x - zero point) · scale, by tensor, by axis or by block."""
    dtype = node.dtype()

    def fn(b: BodyBuilder, x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        value = b.cast(x, "float32")
        for z in zero:
            value = value - b.cast(z, "float32")
        return b.cast(value * b.cast(scale, "float32"), dtype)

    return _by_scale(ctx, node, fn)


@lowers("QuantizeLinear")
def _quantize(ctx: Context, node: Node) -> SSAValue:
    """round(x / scale) + zero point, saturated, by tensor, by axis or by block."""
    dtype = node.dtype()
    if is_narrow_float(dtype):
        saturate = dtype.startswith("float4") or bool(_optional(node, "saturate"))

        def round_to(b: BodyBuilder, x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
            value = b.cast(x, "float32") / b.cast(scale, "float32")
            for z in zero:
                value = value + b.cast(z, "float32")
            return narrow_float(b, value, dtype, saturate=saturate)

        return _by_scale(ctx, node, round_to)
    if is_float(dtype):
        raise Unsupported(f"quantisation to {dtype}")
    low, high = integer_range(dtype)

    def fn(b: BodyBuilder, x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        value = b.apply("round", b.cast(x, "float32") / b.cast(scale, "float32"))
        for z in zero:
            value = value + b.cast(z, "float32")
        return b.cast(b.apply("min", b.apply("max", value, low), high), dtype)

    return _by_scale(ctx, node, fn)


def _by_scale(ctx: Context, node: Node, fn: Fn) -> SSAValue:
    """`fn(body, x, scale, zero point)` at every element of operand 0."""
    x, scale, zero = node.operand(0), node.operand(1), node.get(2)
    ins = [x, scale] if zero is None else [x, scale, zero]
    shape, grain = shape_of(x), shape_of(scale)
    block = _optional(node, "block_size")
    if prod(grain) == 1:
        return ctx.map1(fn, x, *(_flat(ctx, v) for v in ins[1:]), shape=shape)
    axis = axis_of(node.attr("axis"), len(shape))
    if not block:
        index = identity_map(len(shape))
        return ctx.map1(fn, *ins, shape=shape, maps=[index, *[(index[axis],)] * (len(ins) - 1)])
    if shape[axis] % block:
        # The last block is cut off, which no affine index says: spread scales over the elements.
        spread = [_spread(ctx, v, axis, block, shape[axis]) for v in ins[1:]]
        return ctx.map1(fn, x, *spread, shape=shape)
    domain = Domain()
    read: list[AxisExpr] = []
    coarse: list[AxisExpr] = []
    for j, extent in enumerate(shape):
        if j != axis:
            coarse.append(domain.add(f"d{j}", extent))
            read.append(coarse[-1])
            continue
        coarse.append(domain.add("b", extent // block))
        read.append(total(scaled(coarse[-1], block), domain.add("r", block)))
    builder = BodyBuilder([dtype_of_value(v) for v in ins])
    out = fn(builder, *builder.inputs)
    assert isinstance(out, Scalar)
    maps: list[Map] = [tuple(read), *[tuple(coarse)] * (len(ins) - 1)]
    attr = domain.attr(maps, [tuple(read)])
    return ctx.emit1(MapOp.of(ins, builder.finish(out), [tensor_type(shape, out.dtype)], attr))


def _spread(ctx: Context, value: SSAValue, axis: int, block: int, extent: int) -> SSAValue:
    """Each element `block` times along an axis, of which the first `extent` stay."""
    from elk_ir.passes.onnx_lowerings import moves

    shape = shape_of(value)
    wide = moves.broadcast_to(
        ctx, moves.unsqueeze(ctx, value, axis + 1), [*shape[: axis + 1], block, *shape[axis + 1 :]]
    )
    flat = moves.reshape(ctx, wide, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
    return moves.slice_axis(ctx, flat, axis, 0, extent)


def _flat(ctx: Context, value: SSAValue) -> SSAValue:
    from elk_ir.passes.onnx_lowerings import moves

    return moves.reshape(ctx, value, ())


def _optional(node: Node, name: str) -> int:
    try:
        return int(node.attr(name) or 0)
    except KeyError:  # an older version of the operator
        return 0


@lowers("MatMulInteger")
def _matmul_integer(ctx: Context, node: Node) -> SSAValue:
    """A product of integers less their zero points, exact in 32 bits."""
    a, b = node.operand(0), node.operand(1)
    zeros = node.get(2), node.get(3)
    wide: list[SSAValue] = []
    for i, (value, zero) in enumerate(zip((a, b), zeros, strict=True)):
        if zero is None:
            wide.append(ctx.cast(value, "int32"))
            continue
        shape, rank = shape_of(zero), len(shape_of(value))
        if i == 0 and len(shape) == 1 and shape[0] > 1 and rank > 1:
            # One zero point a row of the left factor.
            from elk_ir.passes.onnx_lowerings import moves

            zero = moves.reshape(ctx, zero, [shape[0], 1])
        wide.append(
            ctx.map1(
                lambda body, x, z: body.cast(x, "int32") - body.cast(z, "int32"),
                value,
                zero,
                shape=shape_of(value),
            )
        )
    return matmul(ctx, wide[0], wide[1], node.shape(), node.dtype())
