"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import FloatAttr, StringAttr
from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import accumulator
from elk_ir.dialects.te.ops import Combiner, NormalizeOp, NormForm, NormFormAttr
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, broadcast, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    expect,
    lowers,
    positive,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.movement import axis_of
from elk_ir.passes.onnx_lowerings.reductions import reduce
from elk_ir.plan.domain import DimKind


def normalize(
    ctx: Context,
    source: tuple[SSAValue, Map],
    domain: Domain,
    affine: Sequence[tuple[str, SSAValue, Map]],
    *,
    form: NormForm,
    epsilon: float,
    dtype: str,
    round_to: str | None = None,
) -> SSAValue:
    """A `te.normalize` of the source over the reduction dimensions of `domain`, result like it."""
    value, index = source
    op = NormalizeOp.create(
        operands=[value, *(v for _, v, _ in affine)],
        result_types=[tensor_type(shape_of(value), dtype)],
        properties={
            "domain": domain.attr([index, *(m for _, _, m in affine)], [index]),
            "form": NormFormAttr(form),
            "epsilon": FloatAttr(epsilon, 64),
        },
    )
    if affine:
        op.properties["affine"] = StringAttr(" ".join(word for word, _, _ in affine))
    if round_to is not None:
        op.properties["round_to"] = StringAttr(round_to)
    return ctx.emit1(op)


def last_axes(
    ctx: Context,
    source: SSAValue,
    axis: int,
    affine: Sequence[tuple[str, SSAValue | None]],
    *,
    form: NormForm,
    epsilon: float,
    dtype: str,
    round_to: str | None = None,
) -> SSAValue:
    """Normalise over all axes from `axis` on; scale and bias are broadcast to the source."""
    shape = shape_of(source)
    domain = Domain()
    index = tuple(
        domain.add(f"d{j}", n, DimKind.REDUCTION if j >= axis else DimKind.PARALLEL)
        for j, n in enumerate(shape)
    )
    given = [(w, v, broadcast(shape_of(v), index, shape)) for w, v in affine if v is not None]
    return normalize(
        ctx,
        (source, index),
        domain,
        given,
        form=form,
        epsilon=epsilon,
        dtype=dtype,
        round_to=round_to,
    )


@lowers("LayerNormalization")
def _layer_norm(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Layer normalisation, and its mean and inverse deviation where they are wanted."""
    source = node.operand(0)
    shape = shape_of(source)
    axis = axis_of(node.attr("axis"), len(shape))
    epsilon = node.attr("epsilon")
    affine = [("scale", node.get(1)), ("bias", node.get(2))]
    results: list[SSAValue | None] = [
        last_axes(
            ctx, source, axis, affine, form=NormForm.LAYER, epsilon=epsilon, dtype=node.dtype()
        )
    ]
    if node.wants(1) or node.wants(2):
        wide = ctx.cast(source, accumulator(dtype_of_value(source)))
        axes = list(range(axis, len(shape)))
        count = float(prod(shape[axis:]))
        mean = reduce(ctx, wide, axes, Combiner.SUM, after=lambda b, t: t / count)
        squares = ctx.map1(lambda b, x, m: (x - m) * (x - m), wide, mean)
        deviation = reduce(
            ctx,
            squares,
            axes,
            Combiner.SUM,
            after=lambda b, t: b.apply("recip", b.apply("sqrt", t / count + epsilon)),
        )
        for i, value in ((1, mean), (2, deviation)):
            results.append(ctx.cast(value, node.dtype(i)) if node.wants(i) else None)
    return results


@lowers("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(ctx: Context, node: Node) -> SSAValue:
    """RMS normalisation, rounded to the data's type before it is scaled."""
    source = node.operand(0)
    axis, epsilon = node.attr("axis"), node.attr("epsilon")
    axis = axis_of(-1 if axis is None else axis, len(shape_of(source)))
    dtype = dtype_of_value(source)
    rounded = dtype if dtype == node.dtype() and dtype not in ("float32", "float64") else None
    return last_axes(
        ctx,
        source,
        axis,
        [("scale", node.get(1))],
        form=NormForm.RMS,
        epsilon=1e-5 if epsilon is None else epsilon,
        dtype=node.dtype(),
        round_to=rounded,
    )


@lowers("InstanceNormalization")
def _instance_norm(ctx: Context, node: Node) -> SSAValue:
    """Each channel of each sample on its own."""
    return _grouped(ctx, node, shape_of(node.operand(0))[1])


@lowers("GroupNormalization")
def _group_norm(ctx: Context, node: Node) -> SSAValue:
    """Groups of channels, scaled by channel."""
    return _grouped(ctx, node, positive(node, "num_groups"))


def _grouped(ctx: Context, node: Node, groups: int) -> SSAValue:
    source, scale, bias = (node.operand(i) for i in range(3))
    n, c, *spatial = shape_of(source)
    if c % groups:
        raise Unsupported(f"{c} channels in {groups} groups")
    expect("scale", scale, c)
    expect("bias", bias, c)
    inner = c // groups
    domain = Domain()
    dn, dg = domain.add("n", n), domain.add("g", groups)
    channel = total(scaled(dg, inner), domain.reduction("c", inner)) if inner > 1 else dg
    pixels = tuple(domain.reduction(f"p{i}", e) for i, e in enumerate(spatial))
    if inner == 1 and not pixels:
        domain.reduction("one", 1)
    affine = [("scale", scale, (channel,)), ("bias", bias, (channel,))]
    return normalize(
        ctx,
        (source, (dn, channel, *pixels)),
        domain,
        affine,
        form=NormForm.LAYER,
        epsilon=node.attr("epsilon"),
        dtype=node.dtype(),
    )


@lowers("BatchNormalization")
def _batch_norm(ctx: Context, node: Node) -> list[SSAValue | None]:
    """A scale and a shift for each channel: folded where the statistics are known here. In
    training mode the statistics are those of the batch, and running ones are results as well."""
    source, scale, bias, mean, variance = (node.operand(i) for i in range(5))
    shape, dtype = shape_of(source), dtype_of_value(source)
    # The data's axis 1 of (n, c, …); the axis of rank-1 data is its channel.
    axis = min(1, len(shape) - 1)
    spread = [shape[axis] if j == axis else 1 for j in range(len(shape))]
    for what, value in zip(("scale", "bias", "mean", "variance"), node.operands[1:], strict=True):
        expect(what, value, shape[axis])
    epsilon = node.attr("epsilon")
    wide = accumulator(dtype)
    extra: list[SSAValue | None] = []
    if node.attr("training_mode"):
        axes = [j for j in range(len(shape)) if j != axis]
        count = float(prod(shape[j] for j in axes))
        data = ctx.cast(source, wide)
        channel = [shape[axis]]
        batch_mean = reduce(
            ctx, data, axes, Combiner.SUM, keepdims=False, after=lambda b, t: t / count
        )
        squares = ctx.map1(
            lambda b, x, m: (x - m) * (x - m), data, moves.reshape(ctx, batch_mean, spread)
        )
        batch_variance = reduce(
            ctx, squares, axes, Combiner.SUM, keepdims=False, after=lambda b, t: t / count
        )
        momentum = node.attr("momentum")
        for i, (old, new) in enumerate(((mean, batch_mean), (variance, batch_variance)), 1):
            if not node.wants(i):
                extra.append(None)
                continue
            kind = node.dtype(i)
            extra.append(
                ctx.map1(
                    lambda b, o, x, kind=kind: b.cast(
                        b.cast(o, x.dtype) * momentum + x * (1 - momentum), kind
                    ),
                    old,
                    new,
                    shape=channel,
                )
            )
        mean, variance = batch_mean, batch_variance
    known = [ctx.array(v) for v in (scale, bias, mean, variance)]
    if all(a is not None for a in known):
        s, t, m, v = (np.asarray(a, dtype=np.float64) for a in known if a is not None)
        factor = s / np.sqrt(v + epsilon)
        offset = t - m * factor
        kind = np.dtype(np.float64 if wide == "float64" else np.float32)
        ins = [ctx.constant(a.astype(kind).reshape(spread)) for a in (factor, offset)]
        result = ctx.map1(lambda b, x, f, o: b.cast(b.cast(x, wide) * f + o, dtype), source, *ins)
        return [result, *extra]

    def fn(b: BodyBuilder, x: Scalar, *rest: Scalar) -> Scalar:
        s, t, m, v = (b.cast(r, wide) for r in rest)
        centred = b.cast(x, wide) - m
        return b.cast(centred / b.apply("sqrt", v + epsilon) * s + t, dtype)

    ins = [moves.reshape(ctx, v, spread) for v in (scale, bias, mean, variance)]
    return [ctx.map1(fn, source, *ins), *extra]


@lowers("LpNormalization")
def _lp_normalization(ctx: Context, node: Node) -> SSAValue:
    """Division by the 1- or 2-norm along an axis; a zero vector stays zero."""
    source = node.operand(0)
    shape, dtype = shape_of(source), dtype_of_value(source)
    wide = accumulator(dtype)
    order = node.attr("p")

    def before(b: BodyBuilder, x: Scalar) -> Scalar:
        x = b.cast(x, wide)
        return x * x if order == 2 else b.apply("abs", x)

    norm = reduce(
        ctx,
        ctx.map1(before, source),
        [axis_of(node.attr("axis"), len(shape))],
        Combiner.SUM,
        after=(lambda b, t: b.apply("sqrt", t)) if order == 2 else None,
    )

    def after(b: BodyBuilder, x: Scalar, n: Scalar) -> Scalar:
        safe = b.apply("select", b.apply("eq", n, 0.0), 1.0, n)
        return b.cast(b.cast(x, wide) / safe, dtype)

    assert is_float(dtype)
    return ctx.map1(after, source, norm)


@lowers("LRN")
def _lrn(ctx: Context, node: Node) -> SSAValue:
    """Local response normalisation: a sum of squares over a window of channels."""
    from elk_ir.dialects.te.ops import CombinerAttr, ReduceOp
    from elk_ir.passes.onnx_lowerings.context import epilogue

    source = node.operand(0)
    shape, dtype = shape_of(source), dtype_of_value(source)
    size = positive(node, "size")
    alpha, beta, bias = (node.attr(a) for a in ("alpha", "beta", "bias"))
    wide = accumulator(dtype)
    squares = ctx.map1(lambda b, x: b.cast(x, wide) * b.cast(x, wide), source)
    domain = Domain()
    index = domain.parallel(shape)
    window = domain.local("k", size)
    read = (index[0], total(index[1], window, offset=-((size - 1) // 2)), *index[2:])

    def after(b: BodyBuilder, t: Scalar, x: Scalar) -> Scalar:
        scale = b.apply("pow", t * (alpha / size) + bias, beta)
        return b.cast(b.cast(x, wide) / scale, dtype)

    op = ReduceOp.create(
        operands=[squares, source],
        result_types=[source.type],
        properties={
            "domain": domain.attr([read, index], [index]),
            "combiner": CombinerAttr(Combiner.SUM),
            "epilogue": epilogue([wide, dtype], after),
        },
    )
    return ctx.emit1(op)
