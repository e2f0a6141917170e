"""Operators that compute with indices: gathers, scatters, top-k, arg-reductions, scans, one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import BoolAttr, IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue

from elk_ir.dialects.te.indexing import (
    ArgReduceOp,
    ScanOp,
    ScatterOp,
    TopkOp,
    Update,
    UpdateAttr,
)
from elk_ir.dialects.te.ops import Combiner, CombinerAttr, GatherOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import ZERO, Domain
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    expect,
    iota,
    lowers,
    made,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.movement import axis_of


@lowers("Gather")
def _gather(ctx: Context, node: Node) -> SSAValue:
    """Slices of the data picked by index along one axis."""
    data = node.operand(0)
    axis = axis_of(node.attr("axis"), len(shape_of(data)))
    return moves.gather(ctx, data, node.operand(1), axis)


def _check_rank(shape: tuple[int, ...], picks: tuple[int, ...]) -> None:
    """Raises Unsupported for an index of another rank than the data's, which ONNX's inference lets
    pass."""
    if len(shape) != len(picks):
        raise Unsupported(f"an index with {len(picks)} axes for data with {len(shape)}")


@lowers("GatherElements")
def _gather_elements(ctx: Context, node: Node) -> SSAValue:
    """One element of the data for each index, at the index's own position on the other axes."""
    data, index = node.operand(0), node.operand(1)
    shape, picks = shape_of(data), shape_of(index)
    _check_rank(shape, picks)
    axis = axis_of(node.attr("axis"), len(shape))
    if any(j != axis and m > n for j, (n, m) in enumerate(zip(shape, picks, strict=True))):
        raise Unsupported(f"an index of shape {list(picks)} for data of shape {list(shape)}")
    if 0 in picks:
        return ctx.constant(np.zeros(picks, dtype=moves.numpy_type(data)))
    # Where the index is smaller than the data only the front of the data is read.
    front = [n if j == axis else m for j, (n, m) in enumerate(zip(shape, picks, strict=True))]
    data = moves.slice_axes(ctx, data, [0] * len(shape), front)
    domain = Domain()
    write = domain.parallel(picks)
    rows = domain.reduction("rows", shape[axis])
    read = (*write[:axis], rows, *write[axis + 1 :])
    op = GatherOp.create(
        operands=[data, index],
        result_types=[tensor_type(picks, dtype_of_value(data))],
        properties={"domain": domain.attr([read, write], [write])},
    )
    return ctx.emit1(op)


@lowers("GatherND")
def _gather_nd(ctx: Context, node: Node) -> SSAValue:
    """Slices named by tuples of indices: the tuple becomes one index into the flattened axes."""
    data, index = node.operand(0), node.operand(1)
    batch = node.attr("batch_dims")
    shape = shape_of(data)
    width = shape_of(index)[-1]
    flat = linear_index(ctx, index, shape[batch : batch + width])
    rows = prod(shape[batch : batch + width])
    table = moves.reshape(ctx, data, [*shape[:batch], rows, *shape[batch + width :]])
    return moves.gather(ctx, table, flat, batch, batch)


def linear_index(ctx: Context, index: SSAValue, extents: Sequence[int]) -> SSAValue:
    """Index tuples (the last axis of `index`) into axes of `extents` as one index into those axes
    flattened; each may count from the end."""
    picks = shape_of(index)[:-1]
    width = shape_of(index)[-1]
    if width == 0 or width != len(extents):
        raise Unsupported(f"index tuples of {width} numbers for {len(extents)} axes")
    parts = [
        moves.reshape(ctx, moves.slice_axis(ctx, index, len(picks), i, 1), picks)
        for i in range(width)
    ]
    if width == 1:
        return parts[0]

    def fn(b: BodyBuilder, *xs: Scalar) -> Scalar:
        total: Scalar | None = None
        for x, extent in zip(xs, extents, strict=True):
            x = b.apply("select", b.apply("lt", x, 0), x + extent, x)
            total = x if total is None else total * extent + x
        assert total is not None
        return total

    return ctx.map1(fn, *parts)


_UPDATES = {
    "none": Update.SET,
    "add": Update.ADD,
    "mul": Update.MUL,
    "max": Update.MAX,
    "min": Update.MIN,
}


def _scatter(
    ctx: Context, ins: tuple[SSAValue, SSAValue, SSAValue], rows: int, update: str, attr: Attribute
) -> SSAValue:
    if update not in _UPDATES:
        raise Unsupported(f"reduction {update!r}")
    op = ScatterOp.create(
        operands=list(ins),
        result_types=[ins[0].type],
        properties={
            "domain": attr,
            "rows": IntegerAttr(rows, i64),
            "update": UpdateAttr(_UPDATES[update]),
        },
    )
    return ctx.emit1(op)


@lowers("ScatterND")
def _scatter_nd(ctx: Context, node: Node) -> SSAValue:
    """Slices named by tuples of indices are replaced or combined with updates."""
    data, index, updates = node.operand(0), node.operand(1), node.operand(2)
    shape = shape_of(data)
    expect("updates", updates, *shape_of(index)[:-1], *shape[shape_of(index)[-1] :])
    if 0 in shape_of(updates) or 0 in shape:
        return data
    width = shape_of(index)[-1]
    flat = linear_index(ctx, index, shape[:width])
    inner = shape[width:]
    table = moves.reshape(ctx, data, [prod(shape[:width]), *inner])
    domain = Domain()
    rows = domain.add("rows", prod(shape[:width]))
    rest = domain.parallel(inner)
    picks = tuple(domain.reduction(f"u{i}", n) for i, n in enumerate(shape_of(flat)))
    whole = (rows, *rest)
    attr = domain.attr([whole, picks, (*picks, *rest)], [whole])
    result = _scatter(ctx, (table, flat, updates), 0, node.attr("reduction"), attr)
    return moves.reshape(ctx, result, shape)


@lowers("ScatterElements")
def _scatter_elements(ctx: Context, node: Node) -> SSAValue:
    """Single elements are replaced or combined, at the index's own position on the other axes."""
    data, index, updates = node.operand(0), node.operand(1), node.operand(2)
    shape, picks = shape_of(data), shape_of(index)
    _check_rank(shape, picks)
    axis = axis_of(node.attr("axis"), len(shape))
    expect("updates", updates, *picks)
    if any(j != axis and m > n for j, (n, m) in enumerate(zip(shape, picks, strict=True))):
        raise Unsupported(f"an index of shape {list(picks)} for data of shape {list(shape)}")
    if 0 in picks or 0 in shape:
        return data
    domain = Domain()
    whole = domain.parallel(shape)
    update = domain.reduction("u", picks[axis])
    # Past the end of a smaller index its neutral value is read, which names no row.
    picked = (*whole[:axis], update, *whole[axis + 1 :])
    attr = domain.attr([whole, picked, picked], [whole])
    return _scatter(ctx, (data, index, updates), axis, node.attr("reduction"), attr)


def arg_reduce(
    ctx: Context, source: SSAValue, axis: int, *, smallest: bool, last: bool, keepdims: bool = False
) -> SSAValue:
    """The position (int64) of the largest or smallest element along `axis` (not negative): of
    equal ones the first or the last."""
    shape = shape_of(source)
    domain = Domain()
    read = tuple(
        domain.reduction("n", n) if j == axis else domain.add(f"d{j}", n)
        for j, n in enumerate(shape)
    )
    write = tuple(ZERO if j == axis else d for j, d in enumerate(read) if keepdims or j != axis)
    target = [1 if j == axis else n for j, n in enumerate(shape) if keepdims or j != axis]
    op = ArgReduceOp.create(
        operands=[source],
        result_types=[tensor_type(target, "int64")],
        properties={"domain": domain.attr([read], [write])},
    )
    if smallest:
        op.properties["smallest"] = BoolAttr.from_bool(True)
    if last:
        op.properties["last"] = BoolAttr.from_bool(True)
    return ctx.emit1(op)


@lowers("ArgMax", "ArgMin")
def _arg_reduce(ctx: Context, node: Node) -> SSAValue:
    """The position of the largest or smallest element."""
    source = node.operand(0)
    return arg_reduce(
        ctx,
        source,
        axis_of(node.attr("axis"), len(shape_of(source))),
        smallest=node.op_type == "ArgMin",
        last=bool(node.attr("select_last_index")),
        keepdims=bool(node.attr("keepdims")),
    )


@lowers("TopK")
def _top_k(ctx: Context, node: Node) -> list[SSAValue]:
    """The largest or smallest elements of an axis, in order."""
    source = node.operand(0)
    shape = shape_of(source)
    axis = axis_of(node.attr("axis"), len(shape))
    target = list(shape)
    target[axis] = int(ctx.need(node.operand(1), "k").reshape(-1)[0])
    if not 0 <= target[axis] <= shape[axis]:
        raise Unsupported(f"the top {target[axis]} of {shape[axis]} elements")
    if 0 in target:
        dtype = moves.numpy_type(source)
        return [ctx.constant(np.zeros(target, dtype=d)) for d in (dtype, np.dtype(np.int64))]
    domain = Domain()
    read, write = [], []
    for j, n in enumerate(shape):
        if j == axis:
            read.append(domain.local("n", n))
            write.append(domain.local("k", target[axis]))
        else:
            read.append(domain.add(f"d{j}", n))
            write.append(read[-1])
    n, k = read[axis].terms[0][0], write[axis].terms[0][0]
    op = TopkOp.create(
        operands=[source],
        result_types=[tensor_type(target, dtype_of_value(source)), tensor_type(target, "int64")],
        properties={
            "domain": domain.attr([tuple(read)], [tuple(write)] * 2),
            "n": IntegerAttr(n, i64),
            "k": IntegerAttr(k, i64),
        },
    )
    if not node.attr("largest"):
        op.properties["smallest"] = BoolAttr.from_bool(True)
    return list(ctx.emit(op).results)


@lowers("CumSum", "CumProd")
def _scan(ctx: Context, node: Node) -> SSAValue:
    """Running sums or products along a constant axis."""
    source = node.operand(0)
    shape = shape_of(source)
    axis = axis_of(int(ctx.need(node.operand(1), "axis").reshape(-1)[0]), len(shape))
    if 0 in shape:
        return source
    domain = Domain()
    index = tuple(
        domain.local("n", n) if j == axis else domain.add(f"d{j}", n) for j, n in enumerate(shape)
    )
    op = ScanOp.create(
        operands=[source],
        result_types=[source.type],
        properties={
            "domain": domain.attr([index], [index]),
            "n": IntegerAttr(axis, i64),
            "combiner": CombinerAttr(Combiner.SUM if node.op_type == "CumSum" else Combiner.PROD),
        },
    )
    for flag in ("exclusive", "reverse"):
        if node.attr(flag):
            op.properties[flag] = BoolAttr.from_bool(True)
    return ctx.emit1(op)


@lowers("OneHot")
def _one_hot(ctx: Context, node: Node) -> SSAValue:
    """`values[1]` where the index names the position, `values[0]` elsewhere."""
    index, values = node.operand(0), node.operand(2)
    target = node.shape()
    axis = axis_of(node.attr("axis"), len(target))
    depth = target[axis]
    index = moves.unsqueeze(ctx, index, axis)
    dtype = moves.numpy_type(index)
    along = [-1 if j == axis else 1 for j in range(len(target))]
    positions = ctx.constant(iota(depth, dtype).reshape(along))
    off, on = (moves.slice_axis(ctx, values, 0, i, 1) for i in range(2))

    def fn(b: BodyBuilder, x: Scalar, i: Scalar, lo: Scalar, hi: Scalar) -> Scalar:
        x = b.apply("select", b.apply("lt", x, 0), x + depth, x)
        return b.apply("select", b.apply("eq", x, i), hi, lo)

    return ctx.map1(fn, index, positions, off, on, shape=target)


@lowers("EyeLike")
def _eye_like(ctx: Context, node: Node) -> SSAValue:
    """Ones on a diagonal: a constant."""
    rows, cols = node.shape()
    made(rows * cols, dtype_of(node.dtype()).itemsize)
    return ctx.constant(np.eye(rows, cols, node.attr("k"), dtype=dtype_of(node.dtype())))


@lowers("Hardmax")
def _hardmax(ctx: Context, node: Node) -> SSAValue:
    """One at the first largest element of an axis, zero elsewhere."""
    source = node.operand(0)
    shape = shape_of(source)
    axis = axis_of(node.attr("axis"), len(shape))
    best = arg_reduce(ctx, source, axis, smallest=False, last=False, keepdims=True)
    places = ctx.constant(
        np.arange(shape[axis]).reshape([-1 if j == axis else 1 for j in range(len(shape))])
    )
    dtype = dtype_of_value(source)
    return ctx.map1(lambda b, i, p: b.cast(b.apply("eq", i, p), dtype), best, places, shape=shape)


@lowers("ReverseSequence")
def _reverse_sequence(ctx: Context, node: Node) -> SSAValue:
    """The first `lengths[b]` entries of each sequence in reverse: a gather along time."""
    data, lengths = node.operand(0), node.operand(1)
    shape = shape_of(data)
    time, batch = node.attr("time_axis"), node.attr("batch_axis")
    if sorted((time, batch)) != [0, 1]:
        raise Unsupported(f"time axis {time} and batch axis {batch}")
    expect("lengths", lengths, shape[batch])
    position = ctx.constant(np.arange(shape[time]).reshape(1, -1))
    index = ctx.map1(
        lambda b, n, t: b.apply("select", b.apply("lt", t, n), n - 1 - t, t),
        moves.reshape(ctx, lengths, [shape[batch], 1]),
        position,
    )
    perm = [batch, time, *range(2, len(shape))]
    swapped = moves.transpose(ctx, data, perm)
    return moves.transpose(ctx, moves.gather(ctx, swapped, index, 1, 1), perm)
