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
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Fn,
    Node,
    Unsupported,
    dtype_of_value,
    expect,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.elementwise import is_narrow_float, narrow_float
from elk_ir.passes.onnx_lowerings.movement import axis_of
from elk_ir.passes.onnx_lowerings.products import matmul
from elk_ir.passes.onnx_lowerings.windows import convolve
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
    if all(prod(shape_of(v)) == 1 for v in ins[1:]):
        return ctx.map1(fn, x, *(_flat(ctx, v) for v in ins[1:]), shape=shape)
    expect("zero point", zero, *grain)
    axis = axis_of(node.attr("axis"), len(shape))
    if not block:
        expect("scale", scale, shape[axis])
        index = identity_map(len(shape))
        return ctx.map1(fn, *ins, shape=shape, maps=[index, *[(index[axis],)] * (len(ins) - 1)])
    expect("scale", scale, *shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
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
    shape = shape_of(value)
    wide = moves.broadcast_to(
        ctx, moves.unsqueeze(ctx, value, axis + 1), [*shape[: axis + 1], block, *shape[axis + 1 :]]
    )
    flat = moves.reshape(ctx, wide, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
    return moves.slice_axis(ctx, flat, axis, 0, extent)


def _flat(ctx: Context, value: SSAValue) -> SSAValue:
    return moves.reshape(ctx, value, ())


def _optional(node: Node, name: str) -> int:
    try:
        return int(node.attr(name) or 0)
    except KeyError:  # an older version of the operator
        return 0


def less_zero(ctx: Context, value: SSAValue, zero: SSAValue | None, axis: int | None) -> SSAValue:
    """An integer less its zero point, in 32 bits. A zero point that is a list lies along `axis`
    (None: along the last one)."""
    if zero is None:
        return ctx.cast(value, "int32")
    shape, count = shape_of(value), prod(shape_of(zero))
    if count == 1:
        zero = _flat(ctx, zero)
    elif axis is not None and len(shape_of(zero)) == 1:
        zero = moves.reshape(ctx, zero, [count if j == axis else 1 for j in range(len(shape))])
    return ctx.map1(
        lambda body, x, z: body.cast(x, "int32") - body.cast(z, "int32"), value, zero, shape=shape
    )


def _rows(value: SSAValue) -> int | None:
    """The axis of the rows of a matrix product's left factor."""
    return len(shape_of(value)) - 2 if len(shape_of(value)) > 1 else None


@lowers("MatMulInteger")
def _matmul_integer(ctx: Context, node: Node) -> SSAValue:
    """A product of integers less their zero points, exact in 32 bits."""
    a, b = node.operand(0), node.operand(1)
    wide = less_zero(ctx, a, node.get(2), _rows(a)), less_zero(ctx, b, node.get(3), None)
    return matmul(ctx, *wide, node.shape(), node.dtype())


@lowers("ConvInteger")
def _conv_integer(ctx: Context, node: Node) -> SSAValue:
    """A convolution of integers less their zero points; padding is zero after that."""
    x = less_zero(ctx, node.operand(0), node.get(2), None)
    w = less_zero(ctx, node.operand(1), node.get(3), 0)
    return convolve(ctx, node, x, w, None, node.dtype())


def _requantized(
    ctx: Context,
    total: SSAValue,
    scales: tuple[SSAValue, SSAValue, SSAValue],
    zero: SSAValue,
    axes: tuple[int | None, int | None],
    dtype: str,
) -> SSAValue:
    """32-bit sums of products, of factors of two scales, as integers of the third scale. The
    scales of the factors are numbers, or lists along an axis of the result (None: the last)."""
    shape = shape_of(total)

    def shaped(value: SSAValue, axis: int | None) -> SSAValue:
        count = prod(shape_of(value))
        if count == 1:
            return _flat(ctx, value)
        if axis is None or len(shape_of(value)) != 1:
            return value
        return moves.reshape(ctx, value, [count if j == axis else 1 for j in range(len(shape))])

    if is_narrow_float(dtype):
        raise Unsupported(f"quantisation to {dtype}")
    low, high = integer_range(dtype)

    def fn(b: BodyBuilder, t: Scalar, sa: Scalar, sb: Scalar, sy: Scalar, z: Scalar) -> Scalar:
        a, c, y = (b.cast(s, "float32") for s in (sa, sb, sy))
        value = b.apply("round", b.cast(t, "float32") * (a * c / y)) + b.cast(z, "float32")
        return b.cast(b.apply("min", b.apply("max", value, low), high), dtype)

    ins = [shaped(scales[0], axes[0]), shaped(scales[1], axes[1]), shaped(scales[2], axes[0])]
    return ctx.map1(fn, total, *ins, shaped(zero, axes[0]), shape=shape)


@lowers("QLinearMatMul")
def _qlinear_matmul(ctx: Context, node: Node) -> SSAValue:
    """a, its scale and zero point, b, its scale and zero point, those of the result."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.operand(i) for i in range(8))
    wide = less_zero(ctx, a, a_zero, _rows(a)), less_zero(ctx, b, b_zero, None)
    total = matmul(ctx, *wide, node.shape(), "int32")
    scales, axes = (a_scale, b_scale, y_scale), (_rows(a), None)
    return _requantized(ctx, total, scales, y_zero, axes, node.dtype())


@lowers("QLinearConv")
def _qlinear_conv(ctx: Context, node: Node) -> SSAValue:
    """The same for a convolution, with a bias in 32 bits; w's scales may be one a channel."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.operand(i) for i in range(8))
    wide = less_zero(ctx, x, x_zero, None), less_zero(ctx, w, w_zero, 0)
    total = convolve(ctx, node, *wide, node.get(8), "int32")
    scales, axes = (x_scale, w_scale, y_scale), (None, 1)
    return _requantized(ctx, total, scales, y_zero, axes, node.dtype())
