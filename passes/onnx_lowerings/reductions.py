"""Reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import BoolAttr
from xdsl.ir import SSAValue

from elk_ir.dialects.te.interface import accumulator
from elk_ir.dialects.te.ops import Combiner, CombinerAttr, ReduceOp, SoftmaxOp, reduction_neutral
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import ZERO, Domain
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Fn,
    Node,
    dtype_of_value,
    epilogue,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.movement import axis_of
from elk_ir.plan.domain import DimKind


def reduce(
    ctx: Context,
    source: SSAValue,
    axes: Sequence[int],
    combiner: Combiner,
    *,
    keepdims: bool = True,
    dtype: str | None = None,
    after: Fn | None = None,
) -> SSAValue:
    """`source` combined over `axes` (not negative); `after(body, total)` is the epilogue."""
    shape = shape_of(source)
    dtype = dtype or dtype_of_value(source)
    domain = Domain()
    read = tuple(
        domain.reduction(f"r{j}", n) if j in axes else domain.add(f"d{j}", n)
        for j, n in enumerate(shape)
    )
    write = tuple(ZERO if j in axes else d for j, d in enumerate(read) if keepdims or j not in axes)
    target = [1 if j in axes else n for j, n in enumerate(shape) if keepdims or j not in axes]
    if 0 in shape:
        kind = dtype_of_value(source)
        neutral = ctx.constant(
            np.asarray(reduction_neutral(combiner, kind)).astype(moves.numpy_type(source))
        )
        if after is not None:
            neutral = ctx.map1(after, ctx.cast(neutral, accumulator(kind)))
        return moves.broadcast_to(ctx, ctx.cast(neutral, dtype), target)
    op = ReduceOp.create(
        operands=[source],
        result_types=[tensor_type(target, dtype)],
        properties={
            "domain": domain.attr([read], [write]),
            "combiner": CombinerAttr(combiner),
        },
    )
    if after is not None:
        kind = dtype_of_value(source)
        if combiner in (Combiner.SUM, Combiner.PROD):
            kind = accumulator(kind)
        op.properties["epilogue"] = epilogue([kind], after)
    return ctx.emit1(op)


def reduced_axes(ctx: Context, node: Node, rank: int) -> list[int]:
    """The axes a Reduce operator reduces, from its operand or attribute; all by default."""
    axes = ctx.ints(node.get(1), "axes")
    if not axes:
        return [] if node.attr("noop_with_empty_axes") else list(range(rank))
    return sorted({axis_of(a, rank) for a in axes})


_BEFORE: dict[str, Callable[[BodyBuilder, Scalar], Scalar]] = {
    "ReduceL1": lambda b, x: b.apply("abs", x),
    "ReduceL2": lambda b, x: x * x,
    "ReduceSumSquare": lambda b, x: x * x,
}
_COMBINERS = {"ReduceMax": Combiner.MAX, "ReduceMin": Combiner.MIN, "ReduceProd": Combiner.PROD}


@lowers(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(ctx: Context, node: Node) -> SSAValue:
    """One reduction, what is done to each element before it and to the sum after it."""
    source = node.operand(0)
    shape, dtype = shape_of(source), node.dtype()
    axes = reduced_axes(ctx, node, len(shape))
    count = math.prod(shape[a] for a in axes)
    before = _BEFORE.get(node.op_type)
    after: Fn | None = None
    match node.op_type:
        case "ReduceMean" if is_float(dtype):
            after = lambda b, t: t / float(count)  # noqa: E731
        case "ReduceMean":
            after = lambda b, t: b.apply("div", t, count)  # noqa: E731
        case "ReduceL2" if is_float(dtype):
            after = lambda b, t: b.apply("sqrt", t)  # noqa: E731
        case "ReduceL2":
            after = lambda b, t: b.apply("sqrt", b.cast(t, "float64"))  # noqa: E731
        case "ReduceLogSum":
            after = lambda b, t: b.apply("log", t)  # noqa: E731
        case _:
            pass
    if before is not None:
        wide = accumulator(dtype_of_value(source))
        fn = before
        source = ctx.map1(lambda b, x: fn(b, b.cast(x, wide)), source)
    if not axes:
        return source if after is None else ctx.cast(ctx.map1(after, source), dtype)
    return reduce(
        ctx,
        source,
        axes,
        _COMBINERS.get(node.op_type, Combiner.SUM),
        keepdims=bool(node.attr("keepdims")),
        dtype=dtype,
        after=after,
    )


@lowers("ReduceLogSumExp")
def _log_sum_exp(ctx: Context, node: Node) -> SSAValue:
    """log Σ exp(x - max) + max."""
    source = node.operand(0)
    shape, dtype = shape_of(source), node.dtype()
    axes = reduced_axes(ctx, node, len(shape))
    if not axes:
        return source
    wide = ctx.cast(source, accumulator(dtype))
    top = reduce(ctx, wide, axes, Combiner.MAX)
    # An infinite maximum would give inf - inf.
    top = ctx.map1(lambda b, m: b.apply("select", b.apply("isinf", m), 0.0, m), top)
    powers = ctx.map1(lambda b, x, m: b.apply("exp", x - m), wide, top)
    logs = reduce(ctx, powers, axes, Combiner.SUM, after=lambda b, t: b.apply("log", t))
    result = ctx.cast(ctx.map1(lambda b, x, m: x + m, logs, top), dtype)
    return moves.reshape(ctx, result, node.shape())


def softmax(ctx: Context, source: SSAValue, axis: int, *, log: bool = False) -> SSAValue:
    """Softmax over one axis (not negative)."""
    shape = shape_of(source)
    if 0 in shape:
        return source
    domain = Domain()
    index = tuple(
        domain.add(f"d{j}", n, DimKind.REDUCTION if j == axis else DimKind.PARALLEL)
        for j, n in enumerate(shape)
    )
    op = SoftmaxOp.create(
        operands=[source],
        result_types=[source.type],
        properties={"domain": domain.attr([index], [index])},
    )
    if log:
        op.properties["log"] = BoolAttr.from_bool(True)
    return ctx.emit1(op)


@lowers("Softmax", "LogSoftmax")
def _softmax(ctx: Context, node: Node) -> SSAValue:
    """Softmax and its logarithm."""
    source = node.operand(0)
    axis = axis_of(node.attr("axis"), len(shape_of(source)))
    return softmax(ctx, source, axis, log=node.op_type == "LogSoftmax")
