"""`com.microsoft:DynamicQuantizeLSTM`: an LSTM whose products are of integers.

W (D, I, 4 H) and R (D, H, 4 H) are 8-bit integers with scales. The inputs of all steps are
quantised together, the hidden state anew at every step, as DynamicQuantizeLinear does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from xdsl.ir import SSAValue

from elk_ir.dialects.te.ops import Combiner
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain
from elk_ir.passes.onnx_lowerings.context import Context, Node, Unsupported, lowers, shape_of
from elk_ir.passes.onnx_lowerings.products import contract
from elk_ir.passes.onnx_lowerings.quantized import less_zero
from elk_ir.passes.onnx_lowerings.recurrent import (
    LSTM_ACTIVATIONS,
    Cell,
    Direction,
    cell_of,
    lstm_step,
    part_of,
    pointwise,
    unroll,
)
from elk_ir.passes.onnx_lowerings.reductions import reduce

LEVELS = 255
"""The largest quantised value; the smallest is 0."""


@dataclass(frozen=True)
class Scaled:
    """Integers (int32, less their zero point) and what they are multiples of: a scalar, or one for
    each column."""

    values: SSAValue
    scale: SSAValue


@dataclass(frozen=True)
class QuantizedDirection(Direction):
    """A direction whose recurrent weights are multiples of `scale`."""

    scale: SSAValue


def quantized(ctx: Context, rows: SSAValue) -> Scaled:
    """A float tensor as integers 0 to LEVELS less their zero point: the range of all elements,
    widened to hold 0."""
    axes = list(range(len(shape_of(rows))))
    low = reduce(ctx, rows, axes, Combiner.MIN, keepdims=False)
    high = reduce(ctx, rows, axes, Combiner.MAX, keepdims=False)

    def step(b: BodyBuilder, low: Scalar, high: Scalar) -> Scalar:
        width = b.apply("max", high, 0.0) - b.apply("min", low, 0.0)
        return b.apply("select", b.apply("gt", width, 0.0), width / float(LEVELS), 1.0)

    scale = ctx.map1(step, low, high)

    def to_integer(b: BodyBuilder, x: Scalar, low: Scalar, scale: Scalar) -> Scalar:
        def within(value: Scalar) -> Scalar:
            return b.apply("min", b.apply("max", value, 0.0), float(LEVELS))

        zero = b.apply("round", within(-b.apply("min", low, 0.0) / scale))
        return b.cast(within(b.apply("round", x / scale) + zero) - zero, "int32")

    return Scaled(ctx.map1(to_integer, rows, low, scale, shape=shape_of(rows)), scale)


def product(
    ctx: Context, rows: SSAValue, weight: Scaled, bias: SSAValue | None, extra: SSAValue | None
) -> SSAValue:
    """rows (N, K), quantised by their range, by a weight (K, M), plus a bias (M) and an addend
    (N, M); float32."""
    left = quantized(ctx, rows)
    (n, k), m = shape_of(rows), shape_of(weight.values)[1]
    domain = Domain()
    i, j, r = domain.add("n", n), domain.add("m", m), domain.reduction("k", k)
    columns = (j,) if shape_of(weight.scale) else ()
    more = [(left.scale, ()), (weight.scale, columns)]
    more += [(v, index) for v, index in ((bias, (j,)), (extra, (i, j))) if v is not None]

    def after(b: BodyBuilder, total: Scalar, *rest: Scalar) -> Scalar:
        value = b.cast(total, "float32") * (rest[0] * rest[1])
        for x in rest[2:]:
            value = value + x
        return value

    factors = [(left.values, (i, r)), (weight.values, (r, j))]
    return contract(ctx, domain, factors, ((n, m), "float32", (i, j)), after, more)


def _weight(ctx: Context, node: Node, position: int, scales: int, index: int) -> Scaled:
    """One direction of W or R (operand `position`; its scale is operand `scales`, its zero point
    the next)."""
    weight, scale = part_of(ctx, node.operand(position), index), _row(ctx, node, scales, index)
    assert weight is not None
    if scale is None:
        raise Unsupported("a scale is absent")
    return Scaled(less_zero(ctx, weight, _row(ctx, node, scales + 1, index), 1), scale)


def _row(ctx: Context, node: Node, position: int, index: int) -> SSAValue | None:
    """One direction of scales or zero points: a scalar of (D), (4 H) of (D, 4 H)."""
    return part_of(ctx, node.get(position), index)


@lowers("com.microsoft:DynamicQuantizeLSTM")
def _dynamic_lstm(ctx: Context, node: Node) -> list[SSAValue | None]:
    if node.get(4) is not None:
        raise Unsupported("sequences of different lengths")
    cell = cell_of(node, 4, LSTM_ACTIVATIONS, shape_of(node.operand(2))[1])
    step = partial(lstm_step, cell, bool(node.attr("input_forget")))

    def direction(ctx: Context, node: Node, cell: Cell, index: int, x: SSAValue) -> Direction:
        bias = part_of(ctx, node.get(3), index)
        size = 4 * cell.hidden
        halves: list[SSAValue | None] = [None, None]
        if bias is not None:
            halves = [moves.slice_axis(ctx, bias, 0, i * size, size) for i in (0, 1)]
        weight = _weight(ctx, node, 2, 10, index)
        given = product(ctx, x, _weight(ctx, node, 1, 8, index), halves[0], None)
        return QuantizedDirection(
            cell,
            cell.activations[index],
            weight.values,
            halves[1],
            part_of(ctx, node.get(7), index),
            given,
            weight.scale,
        )

    def advance(
        ctx: Context, d: Direction, given: SSAValue, states: list[SSAValue]
    ) -> list[SSAValue]:
        assert isinstance(d, QuantizedDirection)
        weight = Scaled(d.recurrent, d.scale)
        gates = product(ctx, states[0], weight, d.recurrent_bias, given)
        return pointwise(ctx, d, partial(step, d), [(gates, 4)], states[1:], "float32", 3)

    return unroll(ctx, node, cell, (5, 6), advance, direction)
