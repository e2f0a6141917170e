"""Data movement on te values: reshape, transpose, slice, broadcast, concatenate, pad, gather.

Each function emits the `te` operations that move the elements, or nothing where the result is the
operand; constants are moved at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.ops import ConcatOp, GatherOp, MapOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import dtype_of
from elk_ir.passes.onnx_lowerings.axes import ZERO, Domain, broadcast, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    FOLD_ELEMENTS,
    Context,
    Unsupported,
    dtype_of_value,
    filled,
    shape_of,
)
from elk_ir.plan.domain import AxisExpr


def move(
    ctx: Context, source: SSAValue, shape: Sequence[int], domain: Domain, read: Map, write: Map
) -> SSAValue:
    """Element `read` of the source to element `write` of a result of `shape`."""
    type_ = tensor_type(shape, dtype_of_value(source))
    return ctx.emit1(MapOp.move(source, type_, domain.dims, read, write))


def _foldable(ctx: Context, source: SSAValue, target: Sequence[int]) -> np.ndarray | None:
    """The elements of a constant that may be moved here and now: not too many, or all equal."""
    array = ctx.array(source)
    if array is None or (not filled(array) and prod(target) > FOLD_ELEMENTS):
        return None
    return array


def _refilled(ctx: Context, array: np.ndarray, target: Sequence[int]) -> SSAValue | None:
    """A constant of equal elements under another shape; None for other constants."""
    if not filled(array) or 0 in target:
        return None
    return ctx.constant(np.broadcast_to(array[(0,) * array.ndim], tuple(target)))


def reshape(ctx: Context, source: SSAValue, target: Sequence[int]) -> SSAValue:
    """The elements in row-major order under another shape (of as many elements).

    One move over the common refinement of both shapes; where a group of axes has none, such as
    4x6 to 6x4, two moves through the flattened group.
    """
    shape, target = shape_of(source), tuple(target)
    if shape == target:
        return source
    if prod(shape) != prod(target):
        raise Unsupported(f"{prod(shape)} elements can't have shape {list(target)}")
    if (array := _foldable(ctx, source, target)) is not None:
        return _refilled(ctx, array, target) or ctx.constant(array.reshape(target))
    if 0 in shape:
        return ctx.constant(np.zeros(target, dtype=numpy_type(source)))
    middle: list[int] = []
    clean = True
    for before, after in _groups(shape, target):
        if _refinement([shape[j] for j in before], [target[j] for j in after]) is None:
            clean = False
            middle.append(prod(shape[j] for j in before))
        else:
            middle.extend(shape[j] for j in before)
    if not clean:
        return reshape(ctx, reshape(ctx, source, middle), target)
    # Every axis of extent 1 of the result has a dimension of its own, so that the result is indexed
    # plainly whenever no axes merge.
    domain = Domain()
    read: list[AxisExpr] = [ZERO] * len(shape)
    write: list[AxisExpr | None] = [None] * len(target)
    position = 0

    def ones_before(axis: int) -> None:
        nonlocal position
        for j in range(position, axis):
            if target[j] == 1:
                write[j] = domain.add(f"d{len(domain.dims)}", 1)
        position = max(position, axis)

    for before, after in _groups(shape, target):
        extents = _refinement([shape[j] for j in before], [target[j] for j in after])
        assert extents is not None
        volume = prod(extents)
        dims: list[AxisExpr] = []
        for extent in extents:
            # The refined dimension starts a new axis of the result when all before it are done.
            for j in after:
                if prod(target[i] for i in after if i >= j) == volume:
                    ones_before(j)
            dims.append(domain.add(f"d{len(domain.dims)}", extent))
            volume //= extent
        _spread(dims, extents, [shape[j] for j in before], before, read)
        _spread(dims, extents, [target[j] for j in after], after, write)
    ones_before(len(target))
    return move(ctx, source, target, domain, tuple(read), tuple(e or ZERO for e in write))


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest split of both shapes into runs of axes of equal volume, axes of extent 1 of `b`
    left out and those of `a` anywhere in their run."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left: list[int] = []
        right: list[int] = []
        p = q = 1
        while True:
            if p == q and p > 1:
                break
            if p <= q and i < len(a):
                p *= a[i]
                left.append(i)
                i += 1
            elif j < len(b):
                if b[j] != 1:
                    q *= b[j]
                    right.append(j)
                j += 1
            elif i < len(a):
                p *= a[i]
                left.append(i)
                i += 1
            else:
                break
        if right:
            groups.append((left, right))
        elif left and groups:
            groups[-1][0].extend(left)
    return groups


def _refinement(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """Extents (outermost first) into which both factorisations of one volume split, if any."""
    volumes = sorted(
        {*accumulate(reversed(a), int.__mul__), *accumulate(reversed(b), int.__mul__)} - {1}
    )
    extents: list[int] = []
    inner = 1
    for volume in volumes:
        if volume % inner:
            return None
        extents.append(volume // inner)
        inner = volume
    return extents[::-1]


def _spread(
    dims: Sequence[AxisExpr],
    extents: Sequence[int],
    shape: Sequence[int],
    axes: Sequence[int],
    into: list[AxisExpr] | list[AxisExpr | None],
) -> None:
    """Write the expression of each axis over the refined dimensions it consists of."""
    position = len(dims)
    for j in range(len(shape) - 1, -1, -1):
        expr, volume = ZERO, 1
        while volume < shape[j]:
            position -= 1
            expr = total(scaled(dims[position], volume), expr)
            volume *= extents[position]
        into[axes[j]] = expr


def transpose(ctx: Context, source: SSAValue, perm: Sequence[int]) -> SSAValue:
    """Axis i of the result is axis `perm[i]` of the source. Raises Unsupported for a `perm` that is
    no permutation of its axes."""
    if sorted(perm) != list(range(len(shape_of(source)))):
        axes = len(shape_of(source))
        raise Unsupported(f"{list(perm)} is no permutation of the {axes} axes of an operand")
    if list(perm) == list(range(len(perm))):
        return source
    shape = shape_of(source)
    target = [shape[p] for p in perm]
    if (array := _foldable(ctx, source, target)) is not None:
        return _refilled(ctx, array, target) or ctx.constant(array.transpose(perm))
    domain = Domain()
    write = domain.parallel(target)
    read = tuple(write[list(perm).index(j)] for j in range(len(shape)))
    return move(ctx, source, target, domain, read, write)


def slice_axes(
    ctx: Context,
    source: SSAValue,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> SSAValue:
    """`sizes[j]` elements of each axis from `starts[j]` on, `steps[j]` (not zero) apart."""
    shape = shape_of(source)
    steps = [1] * len(shape) if steps is None else list(steps)
    if tuple(sizes) == shape and not any(starts) and all(k == 1 for k in steps):
        return source
    if (array := _foldable(ctx, source, sizes)) is not None:
        if (same := _refilled(ctx, array, sizes)) is not None:
            return same
        index = np.ix_(
            *(s + k * np.arange(n) for s, n, k in zip(starts, sizes, steps, strict=True))
        )
        return ctx.constant(array[index])
    if 0 in sizes:
        return ctx.constant(np.zeros(sizes, dtype=numpy_type(source)))
    domain = Domain()
    write = domain.parallel(sizes)
    read = tuple(
        total(scaled(d, k), offset=s) if n > 1 else AxisExpr((), s) if s else d
        for d, k, s, n in zip(write, steps, starts, sizes, strict=True)
    )
    return move(ctx, source, sizes, domain, read, write)


def slice_axis(ctx: Context, source: SSAValue, axis: int, start: int, size: int) -> SSAValue:
    """`size` elements of one axis from `start` on."""
    sizes = list(shape_of(source))
    starts = [0] * len(sizes)
    starts[axis], sizes[axis] = start, size
    return slice_axes(ctx, source, starts, sizes)


def broadcast_to(ctx: Context, source: SSAValue, target: Sequence[int]) -> SSAValue:
    """Repeat axes of extent 1, as numpy does."""
    shape = shape_of(source)
    if shape == tuple(target):
        return source
    if (array := _foldable(ctx, source, target)) is not None:
        return _refilled(ctx, array, target) or ctx.constant(np.broadcast_to(array, target))
    if 0 in target:
        return ctx.constant(np.zeros(target, dtype=numpy_type(source)))
    domain = Domain()
    write = domain.parallel(target)
    return move(ctx, source, target, domain, broadcast(shape, write, target), write)


def unsqueeze(ctx: Context, source: SSAValue, axis: int) -> SSAValue:
    """A new axis of extent 1 in front of `axis` (not negative)."""
    shape = list(shape_of(source))
    return reshape(ctx, source, [*shape[:axis], 1, *shape[axis:]])


def concatenate(ctx: Context, parts: Sequence[SSAValue], axis: int) -> SSAValue:
    """Values one after another along an axis (not negative); empty ones are left out."""
    solid = [v for v in parts if 0 not in shape_of(v)]
    if not solid:
        shape = list(shape_of(parts[0]))
        shape[axis] = sum(shape_of(v)[axis] for v in parts)
        return full(ctx, shape, 0, dtype_of_value(parts[0]))
    if len(solid) == 1:
        return solid[0]
    arrays = [ctx.array(v) for v in solid]
    volume = sum(prod(shape_of(v)) for v in solid)
    if volume <= FOLD_ELEMENTS and all(a is not None for a in arrays):
        return ctx.constant(np.concatenate([a for a in arrays if a is not None], axis=axis))
    return ctx.emit1(ConcatOp.along(solid, axis))


def full(ctx: Context, shape: Sequence[int], value: float | int | bool, dtype: str) -> SSAValue:
    """A constant filled with one value."""
    return ctx.constant(np.broadcast_to(np.asarray(value).astype(dtype_of(dtype)), shape))


def pad(
    ctx: Context,
    source: SSAValue,
    before: Sequence[int],
    after: Sequence[int],
    value: float | int | bool,
) -> SSAValue:
    """`value` in front of and behind each axis; negative counts cut off."""
    shape = shape_of(source)
    cut_starts = [max(0, -b) for b in before]
    cut_sizes = [n - s - max(0, -a) for n, s, a in zip(shape, cut_starts, after, strict=True)]
    source = slice_axes(ctx, source, cut_starts, cut_sizes)
    before, after = [max(0, b) for b in before], [max(0, a) for a in after]
    if not any(before) and not any(after):
        return source
    target = [b + n + a for b, n, a in zip(before, cut_sizes, after, strict=True)]
    if (array := _foldable(ctx, source, target)) is not None:
        widths = list(zip(before, after, strict=True))
        return ctx.constant(np.pad(array, widths, constant_values=value))
    if 0 in cut_sizes:
        return full(ctx, target, value, dtype_of_value(source))
    dtype = dtype_of_value(source)
    if value == 0:
        domain = Domain()
        write = domain.parallel(target)
        read = tuple(total(d, offset=-b) for d, b in zip(write, before, strict=True))
        return move(ctx, source, target, domain, read, write)
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        extents = list(shape_of(source))
        parts = [source]
        for count, position in ((b, 0), (a, len(parts) + bool(b))):
            if count:
                extents[axis] = count
                parts.insert(position, full(ctx, extents, value, dtype))
        source = concatenate(ctx, parts, axis)
    return source


def gather(ctx: Context, table: SSAValue, index: SSAValue, axis: int, batch: int = 0) -> SSAValue:
    """`table[…, index[…], …]` along `axis` (not negative); the first `batch` axes of both agree.

    Negative indices count from the end. A constant scalar index becomes a slice.
    """
    shape, picks = shape_of(table), shape_of(index)
    target = [*shape[:axis], *picks[batch:], *shape[axis + 1 :]]
    known, data = ctx.array(index), ctx.array(table)
    volume = prod(target)
    if known is not None:
        wrong = known[(known < -shape[axis]) | (known >= shape[axis])]
        if wrong.size and data is not None:
            raise Unsupported(f"index {wrong.flat[0]} of {shape[axis]} elements")
        if wrong.size:
            known = None  # an error when it runs, but one can ask how long it would take
    if known is not None and data is not None and batch == 0 and volume <= FOLD_ELEMENTS:
        return ctx.constant(np.take(data, known, axis=axis))
    if known is not None and known.size == 1 and batch == 0:
        start = int(known.reshape(-1)[0])
        start += shape[axis] if start < 0 else 0
        return reshape(ctx, slice_axis(ctx, table, axis, start, 1), target)
    if 0 in target:
        return ctx.constant(np.zeros(target, dtype=numpy_type(table)))
    domain = Domain()
    outer = domain.parallel(shape[:axis], "b")
    picked = domain.parallel(picks[batch:], "i")
    inner = domain.parallel(shape[axis + 1 :], "d")
    rows = domain.reduction("rows", shape[axis])
    read_table = (*outer, rows, *inner)
    read_index = (*outer[:batch], *picked)
    op = GatherOp.create(
        operands=[table, index],
        result_types=[tensor_type(target, dtype_of_value(table))],
        properties={"domain": domain.attr([read_table, read_index], [(*outer, *picked, *inner)])},
    )
    return ctx.emit1(op)


def numpy_type(value: SSAValue) -> np.dtype:
    """numpy element type of a value."""
    return dtype_of(dtype_of_value(value))
