"""Operators that only move data."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    FOLD_ELEMENTS,
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    iota,
    lowers,
    positive,
    shape_of,
)


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(ctx: Context, node: Node) -> SSAValue:
    """The inferred result shape says it all."""
    return moves.reshape(ctx, node.operand(0), node.shape())


@lowers("Transpose")
def _transpose(ctx: Context, node: Node) -> SSAValue:
    """Permuted axes; reversed ones by default."""
    rank = len(shape_of(node.operand(0)))
    perm = node.attr("perm") or tuple(range(rank))[::-1]
    return moves.transpose(ctx, node.operand(0), perm)


@lowers("Expand")
def _expand(ctx: Context, node: Node) -> SSAValue:
    """Broadcast to the result's shape."""
    return moves.broadcast_to(ctx, node.operand(0), node.shape())


@lowers("Tile")
def _tile(ctx: Context, node: Node) -> SSAValue:
    """Whole copies side by side: repeat r of element d is element D r + d."""
    source = node.operand(0)
    shape, target = shape_of(source), node.shape()
    if 0 in target:
        return ctx.constant(np.zeros(target, dtype=moves.numpy_type(source)))
    if (array := ctx.array(source)) is not None and prod(target) <= FOLD_ELEMENTS:
        return ctx.constant(np.tile(array, [t // n for t, n in zip(target, shape, strict=True)]))
    domain = Domain()
    read, write = [], []
    for j, (extent, wanted) in enumerate(zip(shape, target, strict=True)):
        repeats = wanted // extent
        if extent == 1:
            read.append(total())
            write.append(domain.add(f"r{j}", repeats))
            continue
        if repeats > 1:
            r = domain.add(f"r{j}", repeats)
            d = domain.add(f"d{j}", extent)
            write.append(total(scaled(r, extent), d))
        else:
            d = domain.add(f"d{j}", extent)
            write.append(d)
        read.append(d)
    return moves.move(ctx, source, target, domain, tuple(read), tuple(write))


@lowers("Slice")
def _slice(ctx: Context, node: Node) -> SSAValue:
    """Constant bounds become an affine move; computed starts a gather along the axis."""
    source = node.operand(0)
    shape, target = shape_of(source), node.shape()
    axes = ctx.ints(node.get(3), "axes")
    steps = ctx.ints(node.get(4), "steps")
    starts = ctx.array(node.operand(1))
    count = shape_of(node.operand(1))[0]
    axes = [axis_of(a, len(shape)) for a in (range(count) if axes is None else axes)]
    steps = [1] * count if steps is None else steps
    if starts is None:
        return _gather_slice(ctx, node, axes, steps)
    full_starts, full_steps = [0] * len(shape), [1] * len(shape)
    for axis, start, step in zip(axes, starts.reshape(-1), steps, strict=True):
        extent = shape[axis]
        start = int(start) + (extent if start < 0 else 0)
        full_starts[axis] = min(max(start, 0), extent if step > 0 else extent - 1)
        full_steps[axis] = step
    return moves.slice_axes(ctx, source, full_starts, target, full_steps)


def _gather_slice(ctx: Context, node: Node, axes: list[int], steps: list[int]) -> SSAValue:
    value, starts = node.operand(0), node.operand(1)
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        extent, size = shape_of(value)[axis], node.shape()[axis]
        if size == extent and step == 1:
            continue
        dtype = dtype_of_value(starts)
        offsets = ctx.constant((step * np.arange(size)).astype(dtype))
        start = moves.slice_axis(ctx, starts, 0, i, 1)
        top = extent if step > 0 else extent - 1
        index = ctx.map1(
            lambda b, s, k, extent=extent, top=top: (
                k
                + b.apply(
                    "min",
                    b.apply("max", b.apply("select", b.apply("lt", s, 0), s + extent, s), 0),
                    top,
                )
            ),
            start,
            offsets,
        )
        value = moves.gather(ctx, value, index, axis)
    return value


@lowers("Split")
def _split(ctx: Context, node: Node) -> list[SSAValue]:
    """One slice a result; none of them is absent (the onnx dialect's verifier)."""
    source = node.operand(0)
    axis = axis_of(node.attr("axis"), len(shape_of(source)))
    results: list[SSAValue] = []
    start = 0
    for i in range(len(node.results)):
        size = node.shape(i)[axis]
        results.append(moves.slice_axis(ctx, source, axis, start, size))
        start += size
    return results


@lowers("Concat")
def _concat(ctx: Context, node: Node) -> SSAValue:
    """Operands one after another."""
    parts = [node.operand(i) for i in range(len(node.operands))]
    return moves.concatenate(ctx, parts, axis_of(node.attr("axis"), len(node.shape())))


@lowers("Pad")
def _pad(ctx: Context, node: Node) -> SSAValue:
    """A constant outside, or slices of the data (edge, reflect, wrap) put around it."""
    source = node.operand(0)
    rank = len(shape_of(source))
    pads = ctx.ints(node.operand(1), "pads")
    axes = ctx.ints(node.get(3), "axes")
    assert pads is not None
    axes = list(range(rank)) if axes is None else [axis_of(a, rank) for a in axes]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[len(axes) + i]
    mode = node.attr("mode")
    if mode == "constant":
        value: float | int | bool | None = 0
        if (fill := node.get(2)) is not None:
            value = ctx.need(fill, "constant_value").reshape(-1)[0].item()
        assert value is not None
        return moves.pad(ctx, source, before, after, value)
    crop = [min(0, b) for b in before], [min(0, a) for a in after]
    source = moves.pad(ctx, source, *crop, 0)
    for axis in range(rank):
        b, a = max(0, before[axis]), max(0, after[axis])
        if b or a:
            source = _surround(ctx, source, axis, b, a, mode)
    return source


def _surround(
    ctx: Context, source: SSAValue, axis: int, before: int, after: int, mode: str
) -> SSAValue:
    """`before` and `after` elements around an axis, taken from the data itself."""
    extent = shape_of(source)[axis]
    if (mode == "reflect" and max(before, after) >= extent > 1) or (
        mode == "wrap" and max(before, after) > extent
    ):
        # Further out than one reflection reaches: pick every element by its index.
        index = np.pad(np.arange(extent), (before, after), mode=mode)
        return moves.gather(ctx, source, ctx.constant(index), axis)

    def piece(start: int, size: int, step: int) -> SSAValue:
        sizes = list(shape_of(source))
        starts, steps = [0] * len(sizes), [1] * len(sizes)
        starts[axis], sizes[axis], steps[axis] = start, size, step
        if step == 0:
            sizes[axis] = 1
            steps[axis] = 1
            edge = moves.slice_axes(ctx, source, starts, sizes, steps)
            sizes[axis] = size
            return moves.broadcast_to(ctx, edge, sizes)
        return moves.slice_axes(ctx, source, starts, sizes, steps)

    parts = [source]
    if before:
        head = {"edge": (0, before, 0), "reflect": (before, before, -1)}.get(
            mode, (extent - before, before, 1)
        )
        parts.insert(0, piece(*head))
    if after:
        tail = {"edge": (extent - 1, after, 0), "reflect": (extent - 2, after, -1)}.get(
            mode, (0, after, 1)
        )
        parts.append(piece(*tail))
    return moves.concatenate(ctx, parts, axis)


@lowers("DepthToSpace")
def _depth_to_space(ctx: Context, node: Node) -> SSAValue:
    """Blocks of channels spread over pixels."""
    n, c, h, w = shape_of(node.operand(0))
    s = positive(node, "blocksize")
    if c % (s * s):
        raise Unsupported(f"{c} channels for blocks of {s} x {s}")
    inner = c // (s * s)
    domain = Domain()
    dn, dc = domain.add("n", n), domain.add("c", inner)
    dh, bh = domain.add("h", h), domain.add("bh", s)
    dw, bw = domain.add("w", w), domain.add("bw", s)
    block = total(scaled(bh, s), bw)
    if node.attr("mode") == "DCR":
        channel = total(scaled(block, inner), dc)
    else:
        channel = total(scaled(dc, s * s), block)
    write = (dn, dc, total(scaled(dh, s), bh), total(scaled(dw, s), bw))
    return moves.move(ctx, node.operand(0), node.shape(), domain, (dn, channel, dh, dw), write)


def _attr(node: Node, name: str) -> object:
    """An attribute that older versions of the operator do not have; None there."""
    try:
        return node.attr(name)
    except KeyError:
        return None


@lowers("SpaceToDepth")
def _space_to_depth(ctx: Context, node: Node) -> SSAValue:
    """Blocks of pixels stacked into channels."""
    n, c, h, w = shape_of(node.operand(0))
    s = positive(node, "blocksize")
    if h % s or w % s:
        raise Unsupported(f"blocks of {s} x {s} in {h} x {w} pixels")
    domain = Domain()
    dn = domain.add("n", n)
    crd = _attr(node, "mode") == "CRD"
    dc = domain.add("c", c) if crd else None
    bh, bw = domain.add("bh", s), domain.add("bw", s)
    dc = domain.add("c", c) if dc is None else dc
    dh, dw = domain.add("h", h // s), domain.add("w", w // s)
    read = (dn, dc, total(scaled(dh, s), bh), total(scaled(dw, s), bw))
    if crd:
        channel = total(scaled(dc, s * s), scaled(bh, s), bw)
    else:
        channel = total(scaled(bh, s * c), scaled(bw, c), dc)
    write = (dn, channel, dh, dw)
    return moves.move(ctx, node.operand(0), node.shape(), domain, read, write)


@lowers("Shape")
def _shape(ctx: Context, node: Node) -> SSAValue:
    """The shape is known."""
    shape = shape_of(node.operand(0))
    start, end = node.attr("start"), node.attr("end")
    return ctx.constant(np.asarray(shape[slice(start, end)], dtype=np.int64))


@lowers("Size")
def _size(ctx: Context, node: Node) -> SSAValue:
    """The number of elements is known."""
    return ctx.constant(np.asarray(prod(shape_of(node.operand(0))), dtype=np.int64))


@lowers("ConstantOfShape")
def _constant_of_shape(ctx: Context, node: Node) -> SSAValue:
    """A filled tensor."""
    from xdsl.dialects.builtin import DenseIntOrFPElementsAttr

    from elk_ir.dialects.element_types import array_from_dense

    value = node.attr("value")
    fill = 0
    if isinstance(value, DenseIntOrFPElementsAttr):
        fill = array_from_dense(value).reshape(-1)[0]
    return moves.full(ctx, node.shape(), fill, node.dtype())


@lowers("Range")
def _range(ctx: Context, node: Node) -> SSAValue:
    """start + delta · i; the number of elements must be known."""
    start, delta = node.operand(0), node.operand(2)
    steps = ctx.constant(iota(node.shape()[0], moves.numpy_type(start)))
    return ctx.map1(lambda b, s, i, d: s + i * d, start, steps, delta)


@lowers("Trilu")
def _trilu(ctx: Context, node: Node) -> SSAValue:
    """Zero on one side of a diagonal."""
    source, diagonal = node.operand(0), node.get(1)
    shape = shape_of(source)
    if 0 in shape:
        return source
    rows = ctx.constant(np.arange(shape[-2]).reshape(-1, 1))
    cols = ctx.constant(np.arange(shape[-1]))
    op = "ge" if node.attr("upper") else "le"

    def fn(b: BodyBuilder, x: Scalar, i: Scalar, j: Scalar, *k: Scalar) -> Scalar:
        return b.apply("select", b.apply(op, j, i + k[0] if k else i), x, 0)

    ks = () if diagonal is None else (moves.reshape(ctx, diagonal, ()),)
    return ctx.map1(fn, source, rows, cols, *ks, shape=shape)
