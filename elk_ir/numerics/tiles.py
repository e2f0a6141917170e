"""Views of operand blocks, batched over cores: what all kernels are written with.

Every array has a leading axis of cores; behind it an operand has the axes of its tensor, holding
one block (the image of a sub-tile), and a statistic has one axis a dimension. The whole tensor is
the case of one core. The machine fills what lies outside a core's valid box with the access's
neutral value before it calls a kernel, and ignores results outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from elk_ir.numerics.body import dtype_of, prepared_body
from elk_ir.plan.domain import Access, Operator, Phase


@dataclass(frozen=True)
class Tile:
    """The iteration box of each core: `size` points a dimension (uniform), starting at
    `origin[:, d]`, of which `valid[:, d]` points lie inside the operator's domain and tile.

    hidden: indices below it along the KV dimension of an attention are not filled yet."""

    op: Operator
    size: tuple[int, ...]
    origin: np.ndarray
    valid: np.ndarray
    hidden: int = 0

    @property
    def cores(self) -> int:
        """Cores in the batch."""
        return self.origin.shape[0]

    @cached_property
    def is_full(self) -> bool:
        """Whether every core's box is valid in full."""
        return bool((self.valid >= np.asarray(self.size)).all())

    def inside(self, d: int) -> np.ndarray:
        """bool (cores, size[d]): which points along d are valid."""
        return np.arange(self.size[d]) < self.valid[:, d, None]

    def index(self, d: int) -> np.ndarray:
        """int64 (cores, size[d]): the global index of each point along d."""
        return self.origin[:, d, None] + np.arange(self.size[d])


def whole(op: Operator) -> Tile:
    """The whole iteration domain on one core."""
    extents = np.asarray([op.extents], dtype=np.int64).reshape(1, -1)
    return Tile(op, op.extents, np.zeros_like(extents), extents)


class Kernel(Protocol):
    """How one kind of operator computes. Kinds without statistics only have `apply`."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Statistics of one sub-tile, from the operands read in the local phase."""
        ...

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Statistics of the union of two disjoint sub-tiles of a reduction."""
        ...

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Result blocks, in each result's axes."""
        ...


Values = Callable[[], list[np.ndarray]]


class WithoutStatistics:
    """The phases that a kind without statistics does not have."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        return []

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return []


class BoundApply:
    """A kernel whose `apply` can be bound to its arrays: what depends on them alone is worked out
    once, and the function that is left runs as often as their elements change."""

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        """The values of the results, (cores, dims…), and those dimensions. The function must be
        called under `numpy.errstate(all="ignore")`; it may give the same arrays each time."""
        raise NotImplementedError

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            run, dims = self.bind_apply(tile, stats, blocks)
            return [
                pack(values, dims, result, tile.size, tile.cores)
                for values, result in zip(run(), tile.op.results, strict=True)
            ]


class BoundLocal:
    """The same for `local`."""

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        """The statistics, as `BoundApply.bind_apply` says."""
        raise NotImplementedError

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return self.bind_local(tile, blocks)()


# ---------------------------------------------------------------------- views


def expand(array: np.ndarray, access: Access, size: tuple[int, ...]) -> np.ndarray:
    """A view (cores, one axis a dimension in D(v), ascending) of an operand's or result's block.

    Composite axes (windows, merged dimensions) become strided views; nothing is copied.
    """
    dims = sorted(access.dims)
    strides = dict.fromkeys(dims, 0)
    base = array
    for j, axis in enumerate(access.axes):
        for d, k in axis.terms:
            strides[d] += array.strides[j + 1] * k
            if k < 0 and size[d] > 1:
                # A falling index: start from the far end of the axis.
                start = [slice(None)] * base.ndim
                start[j + 1] = slice((size[d] - 1) * -k, None)
                base = base[tuple(start)]
    shape = (array.shape[0], *(size[d] for d in dims))
    if 0 in shape:
        return np.zeros(shape, dtype=array.dtype)
    steps = (array.strides[0], *(strides[d] for d in dims))
    if array.dtype.itemsize == 1:
        # numpy builds no strided view of the one-byte floats of ml_dtypes.
        return as_strided(base.view(np.uint8), shape, steps).view(array.dtype)
    return as_strided(base, shape, steps)


def align(array: np.ndarray, dims: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """`array` (cores, dims…) with axes in the order of `target`, size one where it lacks one."""
    order = [dims.index(d) for d in target if d in dims]
    array = array.transpose(0, *(i + 1 for i in order))
    shape = iter(array.shape[1:])
    return array.reshape(array.shape[0], *(next(shape) if d in dims else 1 for d in target))


def pack(
    values: np.ndarray,
    dims: Sequence[int],
    access: Access,
    size: tuple[int, ...],
    cores: int | None = None,
) -> np.ndarray:
    """Values (cores, dims…), broadcast where the result has more dimensions, as a result block."""
    lead = values.shape[0] if cores is None else cores
    block = np.zeros((lead, *access.block_shape(size)), dtype=dtype_of(access.dtype))
    place(expand(block, access, size), values, dims, sorted(access.dims))
    return block


def place(into: np.ndarray, values: np.ndarray, dims: Sequence[int], target: Sequence[int]) -> None:
    """Write values over `dims` (or scalars) to points over `target`, cast as `body.cast` does."""
    if values.ndim:
        values = align(values, dims, target)
    if into.dtype == np.bool_ and values.dtype != np.bool_:
        values = values != 0
    np.copyto(into, values, casting="unsafe")


# ---------------------------------------------------------------------- bound views


Step = Callable[[], object]

LONG_RUN = 16
"""From this many elements in a row on, numpy copies windows faster than it picks elements."""


@dataclass(frozen=True)
class Points:
    """An array (cores, dims…) that holds its elements once its `steps` are done."""

    view: np.ndarray
    dims: list[int]
    steps: tuple[Step, ...] = ()
    picks: tuple[np.ndarray, np.ndarray] | None = None
    """Of windows: the block that they are of, (cores, elements), and the element of it (the same on
    every core) that lies at each point, (dims…)."""

    def now(self) -> np.ndarray:
        """The array, after its steps."""
        for step in self.steps:
            step()
        return self.view

    def aligned(self, target: Sequence[int]) -> Points:
        """The axes in the order of `target`, of size one where it lacks a dimension."""
        if self.dims == list(target):
            return self
        return Points(align(self.view, self.dims, target), list(target), self.steps)

    def then(self, made: np.ndarray, step: Step) -> Points:
        """Another array of the same dimensions, which one more step writes."""
        return Points(made, self.dims, (*self.steps, step))


def steps_of(*bound: Points) -> tuple[Step, ...]:
    """The steps of all."""
    return tuple(step for p in bound for step in p.steps)


def points(tile: Tile, v: int, block: np.ndarray, dtype: str | None = None) -> Points:
    """The block of operand v, one axis a dimension, as `dtype`."""
    access = tile.op.operands[v]
    dims = sorted(access.dims)
    made = block
    steps: tuple[Step, ...] = ()
    if dtype is not None and block.dtype != dtype_of(dtype):
        made = np.empty(block.shape, dtype_of(dtype))
        steps = (partial(_cast_into, made, block),)
    picks = None
    if any(len(a.terms) > 1 for a in access.axes) and 0 not in block.shape:
        numbers = np.arange(prod(block.shape[1:])).reshape(1, *block.shape[1:])
        index = expand(numbers, access, tile.size)[0]
        picks = (made.reshape(len(made), -1), index)
    return Points(expand(made, access, tile.size), dims, steps, picks)


def _cast_into(made: np.ndarray, block: np.ndarray) -> None:
    if made.dtype == np.bool_:
        np.not_equal(block, 0, out=made)
    else:
        np.copyto(made, block, casting="unsafe")


def reduction_points(
    tile: Tile, v: int, block: np.ndarray, dtype: str, neutral: float | None
) -> Points:
    """As `reduction_block`."""
    access = tile.op.operands[v]
    found = points(tile, v, block, dtype)
    inside: np.ndarray | None = None
    for i, d in enumerate(found.dims):
        if d in tile.op.reductions and d not in access.simple and not tile.is_full:
            shape = [tile.cores] + [1] * len(found.dims)
            shape[i + 1] = tile.size[d]
            own = tile.inside(d).reshape(shape)
            inside = own if inside is None else inside & own
    if inside is None or inside.all():
        return found
    mask, view = inside, found.view
    made = np.empty(view.shape, view.dtype)
    rest = np.asarray(neutral).astype(view.dtype)

    def step() -> None:
        np.copyto(made, rest)
        np.copyto(made, view, where=mask)

    return found.then(made, step)


def _merged(bound: Points, order: Sequence[int], shape: tuple[int, ...], wide: bool) -> Points:
    """The axes behind the cores in `order`, merged to `shape`; `wide`: as float64."""
    moved = bound.view.transpose(0, *(i + 1 for i in order))
    if not wide:
        merged = moved.reshape(shape)
        if merged.size == 0 or np.may_share_memory(merged, moved):
            return Points(merged, [], bound.steps)
    made = np.empty(moved.shape, np.float64 if wide else moved.dtype)
    if bound.picks is not None and moved.shape[-1] < LONG_RUN:
        block, index = bound.picks
        wanted, flat = index.transpose(order).reshape(-1), made.reshape(len(made), -1)
        if wide:
            step = partial(_take_wide, flat, block, wanted)
        else:
            step = partial(block.take, wanted, axis=1, out=flat, mode="clip")
    else:
        step = partial(np.copyto, made, moved)
    return Points(made.reshape(shape), [], (*bound.steps, step))


def _take_wide(made: np.ndarray, block: np.ndarray, index: np.ndarray) -> None:
    np.copyto(made, block.take(index, axis=1))


def _summed(bound: Points, gone: Sequence[int]) -> Points:
    """The sum over some dimensions."""
    if not gone:
        return bound
    view, axes = bound.view, tuple(bound.dims.index(d) + 1 for d in gone)
    made = np.empty_like(view.sum(axis=axes))
    kept = [d for d in bound.dims if d not in gone]
    return Points(made, kept, (*bound.steps, lambda: np.sum(view, axis=axes, out=made)))


def bound_product(
    a: Points, b: Points, out: Sequence[int], largest: tuple[int, int] | None = None
) -> Points:
    """`contract` of what two arrays will hold. `largest`: bounds on the magnitudes of integers."""
    a = _summed(a, [d for d in a.dims if d not in b.dims and d not in out])
    b = _summed(b, [d for d in b.dims if d not in a.dims and d not in out])
    batch = [d for d in out if d in a.dims and d in b.dims]
    rows = [d for d in out if d in a.dims and d not in b.dims]
    cols = [d for d in out if d in b.dims and d not in a.dims]
    inner = [d for d in a.dims if d in b.dims and d not in out]
    sizes = dict(zip(a.dims, a.view.shape[1:], strict=True)) | dict(
        zip(b.dims, b.view.shape[1:], strict=True)
    )
    nb, nr, ni, nc = (prod(sizes[d] for d in dims) for dims in (batch, rows, inner, cols))
    cores, dtype = a.view.shape[0], a.view.dtype
    integer = dtype.kind in "iu"
    narrow = integer and largest is not None and prod(largest) * max(1, ni) < 2**53
    left = _merged(
        a, [a.dims.index(d) for d in (*batch, *rows, *inner)], (cores, nb, nr, ni), narrow
    )
    right = _merged(
        b, [b.dims.index(d) for d in (*batch, *inner, *cols)], (cores, nb, ni, nc), narrow
    )
    made = np.empty((cores, nb, nr, nc), dtype)
    x, y = left.view, right.view

    def step() -> None:
        if not integer:
            np.matmul(x, y, out=made)
        elif not narrow and magnitude(x) * magnitude(y) * max(1, ni) < 2**53:
            np.copyto(made, np.matmul(x.astype(np.float64), y.astype(np.float64)), casting="unsafe")
        else:
            np.copyto(made, np.matmul(x, y), casting="unsafe")

    order = [*batch, *rows, *cols]
    found = Points(
        made.reshape(cores, *(sizes[d] for d in order)),
        order,
        (*left.steps, *right.steps, step),
    )
    return found.aligned(out)


def contract(
    a: np.ndarray, a_dims: Sequence[int], b: np.ndarray, b_dims: Sequence[int], out: Sequence[int]
) -> np.ndarray:
    """Batched product of (cores, a_dims…) and (cores, b_dims…), summed over what is not in `out`.

    Integers are exact: they are multiplied in float64 when no sum can leave its 53 bits.
    """
    product = bound_product(Points(a, list(a_dims)), Points(b, list(b_dims)), out)
    return product.now()


def magnitude(array: np.ndarray) -> int:
    if array.size == 0:
        return 0
    return max(abs(int(array.min())), abs(int(array.max())))


def expanded(tile: Tile, v: int, block: np.ndarray) -> tuple[np.ndarray, list[int]]:
    access = tile.op.operands[v]
    return expand(block, access, tile.size), sorted(access.dims)


def reduction_block(
    tile: Tile, v: int, block: np.ndarray, dtype: str, neutral: float | None
) -> tuple[np.ndarray, list[int]]:
    """The expanded block of operand v as `dtype`, `neutral` at points outside the valid box.

    Along a reduction dimension that is an axis of its own the machine has filled these already;
    under a composite index they are elements of the tensor that belong to another tile.
    """
    bound = reduction_points(tile, v, block, dtype, neutral)
    return bound.now(), bound.dims


def bound_epilogue(
    tile: Tile, stat: Points, blocks: Sequence[np.ndarray]
) -> tuple[Values, list[int]]:
    """`stat` through the operator's epilogue body (operands read in the apply phase), over the
    dimensions of the results."""
    op = tile.op
    target = sorted(op.result_dims)
    values = [stat.aligned(target)]
    for v, access in enumerate(op.operands):
        if access.phase is Phase.APPLY:
            values.append(points(tile, v, blocks[v]).aligned(target))
    body, steps = prepared_body(op.param.get("epilogue")), steps_of(*values)
    views = [p.view for p in values]

    def run() -> list[np.ndarray]:
        for step in steps:
            step()
        return body(views)

    return run, target


def epilogue(
    tile: Tile, stat: np.ndarray, dims: Sequence[int], blocks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Result blocks: `bound_epilogue` done once, for kernels whose `apply` is not bound."""
    with np.errstate(all="ignore"):
        run, target = bound_epilogue(tile, Points(stat, list(dims)), blocks)
        return [
            pack(values, target, result, tile.size, tile.cores)
            for values, result in zip(run(), tile.op.results, strict=True)
        ]


def fill(values: np.ndarray, tile: Tile, dims: Sequence[int]) -> np.ndarray:
    """Values broadcast over the dimensions that they lack."""
    return np.broadcast_to(values, (tile.cores, *(tile.size[d] for d in dims)))


def image_mask(tile: Tile, access: Access) -> np.ndarray | None:
    """bool (cores, block…): elements of an operand's block that lie inside the tensor and in the
    image of the tile's valid points; None when all of them do."""
    if tile.is_full and _image_inside(tile, access):
        return None
    shape = access.block_shape(tile.size)
    mask = np.ones((tile.cores, *shape), dtype=bool)
    for j, axis in enumerate(access.axes):
        nominal = np.full(tile.cores, axis.offset, dtype=np.int64)
        lo, hi = nominal.copy(), nominal + 1
        for d, k in axis.terms:
            first, points, far = tile.origin[:, d], tile.valid[:, d], tile.size[d] - 1
            nominal = nominal + k * (first if k > 0 else first + far)
            lo = lo + k * (first if k > 0 else first + points - 1)
            hi = hi + k * (first + points - 1 if k > 0 else first)
        lo, hi = np.maximum(lo, 0), np.minimum(hi, access.shape[j])
        index = nominal[:, None] + np.arange(shape[j])
        inside = (index >= lo[:, None]) & (index < hi[:, None])
        mask &= inside.reshape(tile.cores, *(-1 if i == j else 1 for i in range(len(shape))))
    mask &= (tile.valid > 0).all(axis=1).reshape(tile.cores, *[1] * len(shape))
    return None if mask.all() else mask


def _image_inside(tile: Tile, access: Access) -> bool:
    for j, axis in enumerate(access.axes):
        lo = np.full(tile.cores, axis.offset, dtype=np.int64)
        for d, k in axis.terms:
            first = tile.origin[:, d]
            lo = lo + k * (first if k > 0 else first + tile.size[d] - 1)
        if lo.min(initial=0) < 0 or lo.max(initial=0) + axis.size(tile.size) > access.shape[j]:
            return False
    return True
