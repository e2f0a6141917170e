"""Convolutions and pooling: products and reductions whose operands are read through windows.

Along a spatial axis output o reads input s·o + d·k - p at window position k. What lies in the
padding reads as the operation's neutral value. Window dimensions are local to a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import accumulator
from elk_ir.dialects.te.ops import Combiner, CombinerAttr, ReduceOp, reduction_neutral
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import ZERO, Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Fn,
    Node,
    Unsupported,
    dtype_of_value,
    epilogue,
    expect,
    lowers,
    positive,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.indexing import arg_reduce
from elk_ir.passes.onnx_lowerings.products import contract
from elk_ir.passes.onnx_lowerings.reductions import reduce
from elk_ir.plan.domain import AxisExpr


@dataclass(frozen=True)
class Window:
    """Kernel, stride, dilation and padding of each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def reads(self, outputs: Sequence[AxisExpr], domain: Domain) -> tuple[Map, Map]:
        """How the input's spatial axes are read at `outputs`, and the window dimensions added."""
        reads: list[AxisExpr] = []
        windows: list[AxisExpr] = []
        for i, o in enumerate(outputs):
            k = domain.local(f"k{i}", self.kernel[i]) if self.kernel[i] > 1 else ZERO
            reads.append(
                total(
                    scaled(o, self.strides[i]), scaled(k, self.dilations[i]), offset=-self.before[i]
                )
            )
            windows.append(k)
        return tuple(reads), tuple(windows)


def window_of(
    node: Node, spatial: Sequence[int], kernel: Sequence[int], target: Sequence[int]
) -> Window:
    """The window attributes of a convolution or pooling over `spatial` that yields `target`.

    Raises Unsupported for other numbers of spatial axes in the kernel, the result or attributes.
    """
    rank = len(spatial)
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    pads: list[int] = list(node.attr("pads") or (0,) * 2 * rank)
    if {len(kernel), len(target), len(strides), len(dilations), len(pads) / 2} != {rank}:
        raise Unsupported(
            f"{rank} spatial axes with a kernel of {len(kernel)}, a result of {len(target)},"
            f" {len(strides)} strides, {len(dilations)} dilations and {len(pads)} pads"
        )
    before: list[int] = list(pads[:rank])
    after: list[int] = list(pads[rank:])
    auto = node.attr("auto_pad")
    if auto not in (None, "NOTSET"):
        for i in range(rank):
            reach = (target[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
            needed = 0 if auto == "VALID" else max(0, reach - spatial[i])
            before[i] = needed // 2 if auto == "SAME_UPPER" else needed - needed // 2
            after[i] = needed - before[i]
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after))


def checked_window(
    node: Node,
    spatial: Sequence[int],
    kernel: Sequence[int],
    target: Sequence[int],
    round_up: bool = False,
) -> Window:
    """`window_of` a convolution or pooling that reads its data window by window.

    Raises Unsupported where there is no room for a window and ONNX's shape inference, which rounds
    towards zero, gives one all the same.
    """
    w = window_of(node, spatial, kernel, target)
    for i, extent in enumerate(spatial):
        room = extent + w.before[i] + w.after[i] - (w.kernel[i] - 1) * w.dilations[i] - 1
        up = w.strides[i] - 1 if round_up else 0
        if target[i] > max(0, (room + up) // w.strides[i] + 1) == 0:
            raise Unsupported(f"its window is larger than spatial axis {i} with its padding")
    return w


def pooling_window(node: Node, spatial: Sequence[int], target: Sequence[int]) -> Window:
    """`checked_window` of a pooling."""
    kernel, up = node.attr("kernel_shape"), bool(node.attr("ceil_mode"))
    return checked_window(node, spatial, kernel, target, up)


def _add_bias(b: BodyBuilder, value: Scalar, bias: Scalar) -> Scalar:
    return value + b.cast(bias, value.dtype)


@lowers("Conv")
def _conv(ctx: Context, node: Node) -> SSAValue:
    """A contraction over input channels and the window; groups are a dimension of their own."""
    return convolve(ctx, node, node.operand(0), node.operand(1), node.get(2), node.dtype())


def convolve(
    ctx: Context, node: Node, x: SSAValue, w: SSAValue, bias: SSAValue | None, dtype: str
) -> SSAValue:
    """The convolution that the attributes of `node` describe, of `x` with `w`."""
    shape, weights, target = shape_of(x), shape_of(w), node.shape()
    groups = positive(node, "group")
    expect("filter", w, weights[0] // groups * groups, shape[1] // groups, *_kernel(node, weights))
    expect("bias", bias, weights[0])
    window = checked_window(node, shape[2:], weights[2:], target[2:])
    domain = Domain()
    n = domain.add("n", target[0])
    out_channel, in_channel, inner = _channels(domain, groups, weights[0], weights[1])
    outputs = tuple(domain.add(f"o{i}", e) for i, e in enumerate(target[2:]))
    if weights[1] > 1 or groups == 1:
        in_channel, inner = _reduced(domain, in_channel, weights[1])
    reads, windows = window.reads(outputs, domain)
    factors = [(x, (n, in_channel, *reads)), (w, (out_channel, inner, *windows))]
    extra = [] if bias is None else [(bias, (out_channel,))]
    result = (target, dtype, (n, out_channel, *outputs))
    return contract(ctx, domain, factors, result, _add_bias if extra else None, extra)


def _kernel(node: Node, weights: Sequence[int]) -> Sequence[int]:
    """The spatial extents of a filter, as the attribute says them if it is there."""
    return tuple(node.attr("kernel_shape") or weights[2:])


def _channels(
    domain: Domain, groups: int, outputs: int, inputs: int
) -> tuple[AxisExpr, AxisExpr, AxisExpr]:
    """Output channel, the first input channel of its group, and the channel within the group."""
    if groups == 1:
        return domain.add("m", outputs), ZERO, ZERO
    each = outputs // groups
    g = domain.add("g", groups)
    out = g if each == 1 else total(scaled(g, each), domain.add("m", each))
    return out, scaled(g, inputs), ZERO


def _reduced(domain: Domain, first: AxisExpr, inputs: int) -> tuple[AxisExpr, AxisExpr]:
    c = domain.reduction("c", inputs)
    return total(first, c), c


@lowers("ConvTranspose")
def _conv_transpose(ctx: Context, node: Node) -> SSAValue:
    """The transposed convolution: output o takes input (o + p - d·k) / s where that is whole.

    When windows neither overlap nor leave gaps (kernel equal to stride) each output has one term;
    otherwise the input is first spread out with zeros between its elements.
    """
    x, w, bias = node.operand(0), node.operand(1), node.get(2)
    shape, weights, target = shape_of(x), shape_of(w), node.shape()
    groups, spatial = positive(node, "group"), shape[2:]
    rank = len(spatial)
    expect("filter", w, shape[1] // groups * groups, weights[1], *_kernel(node, weights))
    expect("bias", bias, weights[1] * groups)
    before = _transposed_padding(node, spatial, weights[2:], target[2:])
    window = window_of(node, spatial, weights[2:], target[2:])
    domain = Domain()
    n = domain.add("n", target[0])
    each = weights[1]
    inputs = weights[0] // groups
    out_channel, in_channel, _ = _channels(domain, groups, each * groups, inputs)
    m = AxisExpr() if each == 1 else AxisExpr(((len(domain.dims) - 1, 1),))
    exact = (
        window.kernel == window.strides
        and not any(before)
        and all(t == s * e for t, s, e in zip(target[2:], window.strides, spatial, strict=True))
    )
    write: list[AxisExpr] = []
    reads: list[AxisExpr] = []
    windows: list[AxisExpr] = []
    if exact:
        for i in range(rank):
            o = domain.add(f"o{i}", spatial[i])
            k = domain.add(f"k{i}", window.kernel[i])
            write.append(total(scaled(o, window.strides[i]), k))
            reads.append(o)
            windows.append(k)
    else:
        x = _spread_out(ctx, x, window.strides)
        for i in range(rank):
            o = domain.add(f"o{i}", target[2 + i])
            k = domain.local(f"k{i}", window.kernel[i]) if window.kernel[i] > 1 else ZERO
            write.append(o)
            reads.append(total(o, scaled(k, -window.dilations[i]), offset=before[i]))
            windows.append(k)
    if groups == 1 or inputs > 1:
        in_channel, _ = _reduced(domain, in_channel, inputs)
    factors = [(x, (n, in_channel, *reads)), (w, (in_channel, m, *windows))]
    extra = [] if bias is None else [(bias, (out_channel,))]
    result = (target, node.dtype(), (n, out_channel, *write))
    return contract(ctx, domain, factors, result, _add_bias if extra else None, extra)


def _transposed_padding(
    node: Node, spatial: Sequence[int], kernel: Sequence[int], target: Sequence[int]
) -> list[int]:
    """How far the front of the full output is cut off, an axis."""
    rank = len(spatial)
    auto = node.attr("auto_pad")
    if auto in (None, "NOTSET") and not node.attr("output_shape"):
        return list((node.attr("pads") or (0,) * rank)[:rank])
    strides = node.attr("strides") or (1,) * rank
    dilations = node.attr("dilations") or (1,) * rank
    extra = node.attr("output_padding") or (0,) * rank
    before: list[int] = []
    for i in range(rank):
        reach = strides[i] * (spatial[i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1
        cut = max(0, reach - target[i])
        front = cut // 2 if auto == "SAME_UPPER" else cut - cut // 2
        before.append(0 if auto == "VALID" else front)
    return before


def _spread_out(ctx: Context, x: SSAValue, strides: Sequence[int]) -> SSAValue:
    """`strides[i] - 1` zeros behind every element of spatial axis i."""
    if all(s == 1 for s in strides):
        return x
    shape = shape_of(x)
    split = [*shape[:2]]
    for extent in shape[2:]:
        split += [extent, 1]
    # Element r of the second axis of each pair lies past its one element, in the padding, if r > 0.
    x = moves.reshape(ctx, x, split)
    domain = Domain()
    read = list(domain.parallel(shape[:2]))
    write = list(read)
    for i, (extent, stride) in enumerate(zip(shape[2:], strides, strict=True)):
        o, r = domain.add(f"o{i}", extent), domain.add(f"r{i}", stride)
        read += [o, r]
        write.append(total(scaled(o, stride), r))
    target = [*shape[:2], *(e * s for e, s in zip(shape[2:], strides, strict=True))]
    return moves.move(ctx, x, target, domain, tuple(read), tuple(write))


def _pool(
    ctx: Context,
    source: SSAValue,
    window: Window,
    result: tuple[Sequence[int], str],
    combiner: Combiner,
    after: Fn | None = None,
    extra: Sequence[tuple[SSAValue, int]] = (),
) -> SSAValue:
    """A reduction over windows. `extra` pairs operands of the epilogue with their spatial axis."""
    target, dtype = result
    domain = Domain()
    n, c = domain.add("n", target[0]), domain.add("c", target[1])
    outputs = tuple(domain.add(f"o{i}", e) for i, e in enumerate(target[2:]))
    reads, _ = window.reads(outputs, domain)
    kind = dtype_of_value(source)
    op = ReduceOp.create(
        operands=[source, *(v for v, _ in extra)],
        result_types=[tensor_type(target, dtype)],
        properties={
            "domain": domain.attr(
                [(n, c, *reads), *((outputs[i],) for _, i in extra)], [(n, c, *outputs)]
            ),
            "combiner": CombinerAttr(combiner),
        },
    )
    if after is not None:
        op.properties["epilogue"] = epilogue(
            [accumulator(kind), *(dtype_of_value(v) for v, _ in extra)], after
        )
    return ctx.emit1(op)


@lowers("MaxPool")
def _max_pool(ctx: Context, node: Node) -> list[SSAValue | None]:
    """The largest element of each window, and where it lies."""
    x = node.operand(0)
    spatial, target = shape_of(x)[2:], node.shape()
    window = pooling_window(node, spatial, target[2:])
    largest = _pool(ctx, x, window, (target, node.dtype()), Combiner.MAX)
    if not node.wants(1):
        return [largest]
    return [largest, _max_positions(ctx, x, window, target, bool(node.attr("storage_order")))]


def _max_positions(
    ctx: Context, x: SSAValue, window: Window, target: Sequence[int], column_major: bool
) -> SSAValue:
    """The flat index (in all of the data) of the first largest element of each window."""
    spatial, dtype = shape_of(x)[2:], dtype_of_value(x)
    rank = len(spatial)
    # Every window in a row of its own: what lies outside the data must never be the largest.
    lowest = reduction_neutral(Combiner.MAX, dtype)
    padded = moves.pad(ctx, x, [0, 0, *window.before], [0, 0, *window.after], lowest)
    domain = Domain()
    outer = domain.parallel(target, "o")
    inner = domain.parallel(window.kernel, "k")
    reads = (
        total(scaled(o, s), scaled(k, d))
        for o, k, s, d in zip(outer[2:], inner, window.strides, window.dilations, strict=True)
    )
    rows = [*target, *window.kernel]
    windows = moves.move(ctx, padded, rows, domain, (*outer[:2], *reads), (*outer, *inner))
    flat = moves.reshape(ctx, windows, [*target, prod(window.kernel)])
    first = arg_reduce(ctx, flat, len(target), smallest=False, last=False)
    # Axis by axis, the position in the window becomes one in the data: slowest axis first.
    strides = [prod(spatial[i + 1 :]) for i in range(rank)]
    if column_major:
        strides = [prod(spatial[:i]) for i in range(rank)]
    origins = [
        ctx.constant(
            (np.arange(target[2 + i]) * window.strides[i] - window.before[i]).reshape(
                -1, *[1] * (rank - 1 - i)
            )
        )
        for i in range(rank)
    ]
    plane = np.arange(prod(target[:2])).reshape(*target[:2], *[1] * rank) * prod(spatial)

    def fn(b: BodyBuilder, position: Scalar, base: Scalar, *starts: Scalar) -> Scalar:
        index = base
        for i in range(rank):
            k = b.apply("div", position, prod(window.kernel[i + 1 :]))
            k = b.apply("mod", k, window.kernel[i])
            index = index + (starts[i] + k * window.dilations[i]) * strides[i]
        return index

    return ctx.map1(fn, first, ctx.constant(plane), *origins, shape=target)


@lowers("AveragePool")
def _average_pool(ctx: Context, node: Node) -> SSAValue:
    """The mean of each window; what counts of it is a constant for each axis."""
    x = node.operand(0)
    spatial, target = shape_of(x)[2:], node.shape()
    window = pooling_window(node, spatial, target[2:])
    counts = [
        _counts(window, i, extent, outputs, bool(node.attr("count_include_pad")))
        for i, (extent, outputs) in enumerate(zip(spatial, target[2:], strict=True))
    ]
    fixed = float(prod(int(c[0]) for c in counts if (c == c[0]).all()))
    extra = [
        (ctx.constant(c.astype(np.float32)), i)
        for i, c in enumerate(counts)
        if not (c == c[0]).all()
    ]

    def after(b: BodyBuilder, value: Scalar, *varying: Scalar) -> Scalar:
        value = value / fixed if fixed != 1 else value
        for v in varying:
            value = value / b.cast(v, value.dtype)
        return value

    return _pool(ctx, x, window, (target, node.dtype()), Combiner.SUM, after, extra)


def _counts(window: Window, i: int, extent: int, outputs: int, padding: bool) -> np.ndarray:
    """How many positions of each window along axis i count: those inside the data, or inside the
    data and its explicit padding. Of one window where the data has room for none."""
    low = -window.before[i] if padding else 0
    high = extent + (window.after[i] if padding else 0)
    start = np.arange(max(1, outputs)) * window.strides[i] - window.before[i]
    positions = start[:, None] + np.arange(window.kernel[i]) * window.dilations[i]
    return np.maximum(((positions >= low) & (positions < high)).sum(axis=1), 1)


@lowers("LpPool")
def _lp_pool(ctx: Context, node: Node) -> SSAValue:
    """The p-norm of each window."""
    x = node.operand(0)
    spatial, target = shape_of(x)[2:], node.shape()
    window = pooling_window(node, spatial, target[2:])
    before, after = _norm(positive(node, "p"), dtype_of_value(x))
    return _pool(ctx, ctx.map1(before, x), window, (target, node.dtype()), Combiner.SUM, after)


def _norm(order: int, dtype: str) -> tuple[Fn, Fn]:
    wide = accumulator(dtype)

    def before(b: BodyBuilder, x: Scalar) -> Scalar:
        x = b.apply("abs", b.cast(x, wide))
        return x if order == 1 else x * x if order == 2 else b.apply("pow", x, float(order))

    def after(b: BodyBuilder, t: Scalar) -> Scalar:
        if order == 1:
            return t
        return b.apply("sqrt", t) if order == 2 else b.apply("pow", t, 1.0 / order)

    return before, after


@lowers("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(ctx: Context, node: Node) -> SSAValue:
    """A reduction over all spatial axes, which may be split over cores."""
    x = node.operand(0)
    shape = shape_of(x)
    axes = list(range(2, len(shape)))
    if node.op_type == "GlobalMaxPool":
        return reduce(ctx, x, axes, Combiner.MAX)
    if node.op_type == "GlobalAveragePool":
        count = float(prod(shape[2:]))
        return reduce(ctx, x, axes, Combiner.SUM, after=lambda b, t: t / count)
    before, after = _norm(positive(node, "p"), dtype_of_value(x))
    return reduce(ctx, ctx.map1(before, x), axes, Combiner.SUM, dtype=node.dtype(), after=after)
