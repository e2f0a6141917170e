"""Views of operand blocks, batched over cores: what all kernels are written with.

Every array has a leading axis of cores; behind it an operand has the axes of its tensor, holding
one block (the image of a sub-tile), and a statistic has one axis a dimension. The whole tensor is
the case of one core. The machine fills what lies outside a core's valid box with the access's
neutral value before it calls a kernel, and ignores results outside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from elk_ir.numerics.body import cast, dtype_of, evaluate
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


class WithoutStatistics:
    """The phases that a kind without statistics does not have."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        return []

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return []


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
    values: np.ndarray, dims: Sequence[int], access: Access, size: tuple[int, ...]
) -> np.ndarray:
    """Values (cores, dims…), broadcast where the result has more dimensions, as a result block."""
    block = np.zeros((values.shape[0], *access.block_shape(size)), dtype=dtype_of(access.dtype))
    target = sorted(access.dims)
    expand(block, access, size)[...] = align(values, dims, target)
    return block


def contract(
    a: np.ndarray, a_dims: Sequence[int], b: np.ndarray, b_dims: Sequence[int], out: Sequence[int]
) -> np.ndarray:
    """Batched product of (cores, a_dims…) and (cores, b_dims…), summed over what is not in `out`.

    Integers are exact: they are multiplied in float64 when no sum can leave its 53 bits.
    """
    for_a = [d for d in a_dims if d not in b_dims and d not in out]
    if for_a:
        a = a.sum(axis=tuple(a_dims.index(d) + 1 for d in for_a))
        a_dims = [d for d in a_dims if d not in for_a]
    for_b = [d for d in b_dims if d not in a_dims and d not in out]
    if for_b:
        b = b.sum(axis=tuple(b_dims.index(d) + 1 for d in for_b))
        b_dims = [d for d in b_dims if d not in for_b]
    batch = [d for d in out if d in a_dims and d in b_dims]
    rows = [d for d in out if d in a_dims and d not in b_dims]
    cols = [d for d in out if d in b_dims and d not in a_dims]
    inner = [d for d in a_dims if d in b_dims and d not in out]
    sizes = dict(zip(a_dims, a.shape[1:], strict=True)) | dict(
        zip(b_dims, b.shape[1:], strict=True)
    )

    def volume(dims: Sequence[int]) -> int:
        return prod(sizes[d] for d in dims)

    cores = a.shape[0]
    left = a.transpose(0, *(a_dims.index(d) + 1 for d in (*batch, *rows, *inner)))
    right = b.transpose(0, *(b_dims.index(d) + 1 for d in (*batch, *inner, *cols)))
    left = left.reshape(cores, volume(batch), volume(rows), volume(inner))
    right = right.reshape(cores, volume(batch), volume(inner), volume(cols))
    dtype = left.dtype
    if dtype.kind in "iu":
        bound = magnitude(left) * magnitude(right) * max(1, volume(inner))
        if bound < 2**53:
            left, right = left.astype(np.float64), right.astype(np.float64)
    product = np.matmul(left, right).astype(dtype, copy=False)
    order = [*batch, *rows, *cols]
    product = product.reshape(cores, *(sizes[d] for d in order))
    return product.transpose(0, *(order.index(d) + 1 for d in out))


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
    access = tile.op.operands[v]
    array, dims = expanded(tile, v, cast(block, dtype))
    if tile.is_full:
        return array, dims
    for i, d in enumerate(dims):
        if d in tile.op.reductions and d not in access.simple:
            shape = [tile.cores] + [1] * len(dims)
            shape[i + 1] = tile.size[d]
            inside = tile.inside(d).reshape(shape)
            array = np.where(inside, array, np.asarray(neutral).astype(array.dtype))
    return array, dims


def epilogue(
    tile: Tile, stat: np.ndarray, dims: Sequence[int], blocks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """`stat` through the operator's epilogue body (operands read in the apply phase)."""
    op = tile.op
    body = op.param.get("epilogue")
    target = sorted(op.result_dims)
    values = [align(stat, dims, target)]
    for v, access in enumerate(op.operands):
        if access.phase is Phase.APPLY:
            array, own = expanded(tile, v, blocks[v])
            values.append(align(array, own, target))
    outs = values if body is None else evaluate(body, values)
    return [
        pack(cast(fill(o, tile, target), r.dtype), target, r, tile.size)
        for o, r in zip(outs, op.results, strict=True)
    ]


def fill(values: np.ndarray, tile: Tile, dims: Sequence[int]) -> np.ndarray:
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
