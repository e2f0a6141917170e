"""Views of whole operands and results for operators that are prepared once (`compiled`).

A `View` is a function from a tensor to its elements at every point of an iteration domain; what it
needs beyond the tensor is worked out when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from elk_ir.numerics.body import cast, dtype_of
from elk_ir.numerics.tiles import LONG_RUN
from elk_ir.plan.domain import Access, Operator

Array = np.ndarray
View = Callable[[Array], Array]

Prepared = Callable[[Sequence[Array]], list[Array]]
"""A whole operator, from operands to results."""

KEPT_ELEMENTS = 1 << 16
"""What is made of constant operands is kept up to this size."""


class NoShortWayError(Exception):
    """Raised while preparing, where only the general kernel will do."""


def view_of(access: Access, extents: tuple[int, ...], dtype: str | None = None) -> View:
    """From a tensor to its elements at every point: one axis a dimension in D(v), ascending. The
    tensor is first cast to `dtype`, if that is given."""
    if dtype is not None and dtype != access.dtype:
        inner = view_of(replace(access, dtype=dtype), extents)
        return lambda tensor: inner(cast(tensor, dtype))
    dims = sorted(access.dims)
    shape = access.block_shape(extents)
    origin = _origin(access, extents)
    plain = tuple(shape) == access.shape and not any(origin)
    axes = [a.simple_dim for a in access.axes]
    if plain and None not in axes and len(set(axes)) == len(axes):
        order = tuple(axes.index(d) for d in dims)
        if order == tuple(range(len(order))):
            return lambda tensor: tensor
        return lambda tensor: tensor.transpose(order)
    if 0 in access.shape:
        raise NoShortWayError
    inner, outer = _overlap(access, shape, origin)
    inside = all(t == slice(0, n) for t, n in zip(outer, shape, strict=True))
    if inside and (part := _part(access, inner)) is not None:
        return part
    windows = windows_of(access, shape, extents)
    if plain:
        return windows
    if inside:
        return lambda tensor: windows(tensor[inner])
    neutral = 0 if access.neutral is None else access.neutral
    element = dtype_of(access.dtype)

    def padded(tensor: Array) -> Array:
        block = np.full(shape, neutral, element)
        block[outer] = tensor[inner]
        return windows(block)

    return padded


def _origin(access: Access, extents: tuple[int, ...]) -> list[int]:
    """Where the image of the domain begins on each axis, which may be outside of the tensor."""
    return [a.offset + sum(k * (extents[d] - 1) for d, k in a.terms if k < 0) for a in access.axes]


def _part(access: Access, inner: tuple[slice, ...]) -> View | None:
    """The view of a box of the tensor, if each axis is one dimension from there on, or one place;
    None for other accesses."""
    terms = [axis.terms for axis in access.axes]
    found = [d for t in terms for d, _ in t]
    steps = {k for t in terms for _, k in t}
    if any(len(t) > 1 for t in terms) or steps - {1} or len(set(found)) != len(found):
        return None
    box = tuple(s if t else s.start for s, t in zip(inner, terms, strict=True))
    order = tuple(found.index(d) for d in sorted(found))
    if order == tuple(range(len(order))):
        return lambda tensor: tensor[box]
    return lambda tensor: tensor[box].transpose(order)


def _overlap(
    access: Access, shape: Sequence[int], origin: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What the tensor and a block of `shape` at `origin` have in common: where it lies in each."""
    source, target = [], []
    for start, size, extent in zip(origin, shape, access.shape, strict=True):
        lo, hi = max(0, start), max(max(0, start), min(extent, start + size))
        source.append(slice(lo, hi))
        target.append(slice(lo - start, hi - start))
    return tuple(source), tuple(target)


def windows_of(access: Access, shape: Sequence[int], extents: tuple[int, ...]) -> View:
    """From a block of an operand or a result to its elements at every point, as a strided view."""
    dims = sorted(access.dims)
    size = tuple(extents[d] for d in dims)
    dtype = dtype_of(access.dtype)
    # The types of ml_dtypes can't be views of a buffer: integers as wide stand for them.
    carrier = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else None
    strides = [prod(shape[j + 1 :]) * dtype.itemsize for j in range(len(shape))]
    steps, first = [0] * len(size), 0
    for j, axis in enumerate(access.axes):
        for d, k in axis.terms:
            steps[dims.index(d)] += strides[j] * k
            first += strides[j] * (extents[d] - 1) * -k if k < 0 else 0

    def view(block: Array) -> Array:
        if not block.flags.c_contiguous:
            block = np.ascontiguousarray(block)
        if carrier is None:
            return np.ndarray(size, block.dtype, block, first, steps)
        return np.ndarray(size, carrier, block.view(carrier), first, steps).view(dtype)

    return view


GATHERED_ELEMENTS = 1 << 18
"""Matrices of windows up to this size have a buffer, and an index of 8 bytes an element."""


@dataclass(frozen=True)
class Matrix:
    """How a tensor is read: its elements at every point as `dtype`, less `zero` where there is one,
    the axes (a dimension each, ascending) in `order` and merged to `shape`."""

    access: Access
    extents: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    shape: tuple[int, ...]
    zero: float | None = None


def matrix_of(matrix: Matrix) -> View:
    """From a tensor to its matrix. Of windows it is a buffer that the next call writes again."""
    if (windows := gathered(matrix)) is not None:
        return windows
    dtype, order, shape = matrix.dtype, matrix.order, matrix.shape
    view = view_of(matrix.access, matrix.extents, dtype)
    if not matrix.zero:
        return lambda tensor: view(tensor).transpose(order).reshape(shape)
    shift = dtype_of(dtype).type(matrix.zero)
    return lambda tensor: (view(tensor) - shift).transpose(order).reshape(shape)


def gathered(matrix: Matrix) -> View | None:
    """`matrix_of` of windows and padded tensors up to some size; None for others."""
    access, extents, dtype = matrix.access, matrix.extents, matrix.dtype
    order, shape, zero = matrix.order, matrix.shape, matrix.zero
    element = dtype_of(dtype)
    simple = all(a.simple_dim is not None for a in access.axes)
    if simple or 0 in access.shape or element.kind not in "fiu":
        return None
    if prod(shape) > GATHERED_ELEMENTS:
        return None
    extent = access.block_shape(extents)
    inner, outer = _overlap(access, extent, _origin(access, extents))
    neutral = 0 if access.neutral is None else access.neutral
    shift = element.type(zero or 0)
    block = np.full(extent, neutral, element) - shift
    hole, made = block[outer], np.empty(shape, element)
    windows = windows_of(replace(access, dtype=dtype), extent, extents)

    def fill(tensor: Array) -> None:
        hole[...] = tensor[inner]
        if zero:
            np.subtract(hole, shift, out=hole)

    points = windows(block).transpose(order)
    merged = points.reshape(shape)
    if np.may_share_memory(merged, block):  # a view of the block, or of the tensor itself
        if hole.shape == block.shape:
            return None

        def padded(tensor: Array) -> Array:
            fill(tensor)
            return merged

        return padded
    if extents[sorted(access.dims)[order[-1]]] >= LONG_RUN:
        wide = made.reshape(points.shape)

        def copied(tensor: Array) -> Array:
            fill(tensor)
            np.copyto(wide, points)
            return made

        return copied
    # Elements are picked from the tensor in a row, with one more behind it for those outside.
    count = prod(access.shape)
    numbers = np.full(extent, count)
    numbers[outer] = np.arange(count).reshape(access.shape)[inner]
    counted = windows_of(replace(access, dtype="int64"), extent, extents)
    index = counted(numbers).transpose(order).reshape(shape)
    row = np.full(count + 1, neutral, element) - shift
    tail = row[:count].reshape(access.shape)

    def picked(tensor: Array) -> Array:
        tail[...] = tensor
        if zero:
            np.subtract(tail, shift, out=tail)
        return row.take(index, out=made, mode="clip")

    return picked


def aligned(view: View, dims: Sequence[int], target: Sequence[int]) -> View:
    """The view with an axis of one where `target` has a dimension that `dims` lacks."""
    if list(dims) == list(target):
        return view
    if not set(dims) <= set(target):
        raise NoShortWayError
    index = tuple(slice(None) if d in dims else None for d in target)
    return lambda tensor: view(tensor)[index]


def ordered(dims: Sequence[int], target: Sequence[int]) -> View:
    """From an array over `dims` (in any order) to one over `target`, of which they are a part."""
    if not set(dims) <= set(target):
        raise NoShortWayError
    order = tuple(dims.index(d) for d in target if d in dims)
    straight = order == tuple(range(len(order)))
    moved: View = (lambda array: array) if straight else (lambda array: array.transpose(order))
    return aligned(moved, [d for d in target if d in dims], target)


def once(view: View, then: View = lambda array: array) -> View:
    """The view of what is constant, and what `then` makes of it: worked out in the first call."""
    found: list[Array] = []

    def run(tensor: Array) -> Array:
        if not found:
            found.append(then(view(tensor)))
        return found[0]

    return run


# ---------------------------------------------------------------------- results


def results_of(op: Operator, target: Sequence[int]) -> Callable[[list[Array]], list[Array]]:
    """From arrays over `target` (broadcasting) to the result tensors."""
    shape = tuple(op.extents[d] for d in target)
    makers = [_result(op, result, list(target)) for result in op.results]
    types = [(dtype_of(r.dtype), r.dtype) for r in op.results]

    def run(outs: list[Array]) -> list[Array]:
        found = []
        for out, (dtype, name), make in zip(outs, types, makers, strict=True):
            array = out if out.dtype == dtype else cast(out, name)
            if array.shape != shape:
                array = np.broadcast_to(array, shape)
            found.append(make(array))
        return found

    return run


def _result(op: Operator, result: Access, target: list[int]) -> View:
    """From an array over `target` to a result: its dimensions in another order and merged, or
    written to where the access says."""
    shape = tuple(result.shape)
    if sorted(result.dims) != target or result.block_shape(op.extents) != shape:
        raise NoShortWayError
    if any(a.offset or any(k < 0 for _, k in a.terms) for a in result.axes):
        raise NoShortWayError
    order: list[int] = []
    merged = True
    for axis in result.axes:
        inner = 1
        digits = sorted(axis.terms, key=lambda term: term[1])
        for d, k in digits:
            merged &= k == inner
            inner *= op.extents[d]
        order += [target.index(d) for d, _ in reversed(digits)]
    if merged and len(order) == len(target):
        axes = tuple(order)
        if axes == tuple(range(len(axes))):
            return lambda array: array.reshape(shape)
        return lambda array: array.transpose(axes).reshape(shape)
    dtype, windows = dtype_of(result.dtype), windows_of(result, shape, op.extents)

    def scatter(array: Array) -> Array:
        made = np.zeros(shape, dtype)
        windows(made)[...] = array
        return made

    return scatter
