"""Executable semantics of structured operators, batched over cores.

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
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from elk_ir.numerics.body import cast, dtype_of, evaluate
from elk_ir.plan.domain import Access, Operator, Phase


@dataclass(frozen=True)
class Tile:
    """The iteration box of each core: `size` points a dimension (uniform), starting at
    `origin[:, d]`, of which `valid[:, d]` points lie inside the operator's domain and tile."""

    op: Operator
    size: tuple[int, ...]
    origin: np.ndarray
    valid: np.ndarray

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
    return as_strided(base, shape, (array.strides[0], *(strides[d] for d in dims)))


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
        bound = _magnitude(left) * _magnitude(right) * max(1, volume(inner))
        if bound < 2**53:
            left, right = left.astype(np.float64), right.astype(np.float64)
    product = np.matmul(left, right).astype(dtype, copy=False)
    order = [*batch, *rows, *cols]
    product = product.reshape(cores, *(sizes[d] for d in order))
    return product.transpose(0, *(order.index(d) + 1 for d in out))


def _magnitude(array: np.ndarray) -> int:
    if array.size == 0:
        return 0
    return max(abs(int(array.min())), abs(int(array.max())))


# ---------------------------------------------------------------------- kinds


def _expanded(tile: Tile, v: int, block: np.ndarray) -> tuple[np.ndarray, list[int]]:
    access = tile.op.operands[v]
    return expand(block, access, tile.size), sorted(access.dims)


def _epilogue(
    tile: Tile, stat: np.ndarray, dims: Sequence[int], blocks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """`stat` through the operator's epilogue body (operands read in the apply phase)."""
    op = tile.op
    body = op.param.get("epilogue")
    target = sorted(op.result_dims)
    values = [align(stat, dims, target)]
    for v, access in enumerate(op.operands):
        if access.phase is Phase.APPLY:
            array, own = _expanded(tile, v, blocks[v])
            values.append(align(array, own, target))
    outs = values if body is None else evaluate(body, values)
    return [
        pack(cast(_fill(o, tile, target), r.dtype), target, r, tile.size)
        for o, r in zip(outs, op.results, strict=True)
    ]


def _fill(values: np.ndarray, tile: Tile, dims: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(values, (tile.cores, *(tile.size[d] for d in dims)))


class ContractKernel:
    """Sum of products of the operands of the local phase (te.contract, te.conv)."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op = tile.op
        stat = op.stats[0]
        factors = [
            (_expanded(tile, v, cast(blocks[v], stat.dtype)))
            for v, a in enumerate(op.operands)
            if a.phase is Phase.LOCAL
        ]
        array, dims = factors[0]
        for i, (other, other_dims) in enumerate(factors[1:]):
            later = {d for _, ds in factors[i + 2 :] for d in ds}
            keep = [d for d in sorted({*dims, *other_dims}) if d in stat.dims or d in later]
            array, dims = contract(array, dims, other, other_dims, keep), keep
        if len(factors) == 1:
            gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
            array, dims = array.sum(axis=gone), [d for d in dims if d in stat.dims]
        values = align(array, dims, stat.dims).astype(dtype_of(stat.dtype), copy=False)
        return [_fill(values, tile, stat.dims)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [a + b for a, b in zip(left, right, strict=True)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return _epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


class MapKernel:
    """A scalar body at every point (te.map and everything that only moves data)."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        return []

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return []

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        target = sorted(op.result_dims)
        values: list[np.ndarray] = []
        for v in range(len(op.operands)):
            array, own = _expanded(tile, v, blocks[v])
            values.append(align(array, own, target))
        outs = evaluate(op.param["body"], values)
        return [
            pack(_fill(cast(o, r.dtype), tile, target), target, r, tile.size)
            for o, r in zip(outs, op.results, strict=True)
        ]


class ReduceKernel:
    """One associative reduction (sum, prod, max, min) of a single operand, then an epilogue."""

    FUNCTIONS: dict[str, np.ufunc] = {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        array, dims = _expanded(tile, 0, cast(blocks[0], stat.dtype))
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        fn = self.FUNCTIONS[op.param["combiner"]]
        values = fn.reduce(array, axis=gone, initial=stat.neutral) if gone else array
        kept = [d for d in dims if d in stat.dims]
        return [align(values.astype(dtype_of(stat.dtype), copy=False), kept, stat.dims)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [self.FUNCTIONS[op.param["combiner"]](left[0], right[0])]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return _epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


def _rescale(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """exp(old - new), zero where both are -inf."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(old), 0, np.exp(old - np.where(np.isneginf(new), 0, new)))


class SoftmaxKernel:
    """Softmax over the reduction dimensions: statistics are the maximum and the sum of
    exponentials; `log` gives log-softmax."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        stat = tile.op.stats[0]
        array, dims = _expanded(tile, 0, cast(blocks[0], stat.dtype))
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        top = array.max(axis=gone, keepdims=True)
        total = _rescale(array, top).sum(axis=gone)
        return [top.reshape(total.shape), total.astype(top.dtype)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        top = np.maximum(left[0], right[0])
        total = left[1] * _rescale(left[0], top) + right[1] * _rescale(right[0], top)
        return [top, total.astype(top.dtype)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        array, dims = _expanded(tile, 0, cast(blocks[0], stat.dtype))
        top, total = (align(s, stat.dims, dims) for s in stats)
        with np.errstate(divide="ignore", invalid="ignore"):
            if op.param.get("log"):
                values = array - top - np.log(total)
            else:
                values = np.exp(array - top) / total
        return [pack(cast(values, op.results[0].dtype), dims, op.results[0], tile.size)]


class NormalizeKernel:
    """RMS and layer normalisation. Statistics: count, mean and sum of squared deviations, merged
    by Chan's formula; for RMS the mean is taken as zero."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        array, dims = _expanded(tile, 0, cast(blocks[0], stat.dtype))
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        inside = np.ones((tile.cores, *[1] * len(dims)), dtype=bool)
        for i, d in enumerate(dims):
            if d not in stat.dims:
                shape = [tile.cores] + [1] * len(dims)
                shape[i + 1] = tile.size[d]
                inside = inside & tile.inside(d).reshape(shape)
        weight = np.broadcast_to(inside, array.shape)
        count = weight.sum(axis=gone, keepdims=True).astype(array.dtype)
        if op.param["form"] == "rms":
            mean = np.zeros_like(count)
        else:
            total = np.where(weight, array, 0).sum(axis=gone, keepdims=True, dtype=array.dtype)
            mean = total / np.maximum(count, 1)
        squares = np.where(weight, (array - mean) ** 2, 0).sum(axis=gone, keepdims=True)
        kept = (tile.cores, *(tile.size[d] for d in stat.dims))
        return [s.reshape(kept).astype(array.dtype) for s in (count, mean, squares)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        count = left[0] + right[0]
        safe = np.maximum(count, 1)
        delta = right[1] - left[1]
        mean = left[1] + delta * right[0] / safe
        squares = left[2] + right[2] + delta * delta * left[0] * right[0] / safe
        return [a.astype(left[0].dtype) for a in (count, mean, squares)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        array, dims = _expanded(tile, 0, cast(blocks[0], stat.dtype))
        count, mean, squares = (align(s, stat.dims, dims) for s in stats)
        variance = squares / np.maximum(count, 1)
        scale = 1 / np.sqrt(variance + np.asarray(op.param["epsilon"], dtype=array.dtype))
        values = (array - mean) * scale
        if (cast_to := op.param.get("round_to")) is not None:
            values = cast(values, cast_to)
        for v, access in enumerate(op.operands[1:], start=1):
            other, own = _expanded(tile, v, blocks[v])
            other = align(other, own, dims)
            values = values * other if op.param["affine"][v - 1] == "scale" else values + other
        return [pack(cast(values, op.results[0].dtype), dims, op.results[0], tile.size)]


class AttentionKernel:
    """softmax(scale · Q Kᵀ + mask) V over the KV dimension, as partial results (running maximum,
    sum, weighted values) merged by their log-sum-exp. Operands: query, key, value, then the
    additive mask if there is one. A row whose every score is -inf gives zero."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op = tile.op
        top_stat, _, out_stat = op.stats
        dtype = top_stat.dtype
        q, q_dims = _expanded(tile, 0, cast(blocks[0], dtype))
        k, k_dims = _expanded(tile, 1, cast(blocks[1], dtype))
        v, v_dims = _expanded(tile, 2, cast(blocks[2], dtype))
        kv = op.reductions[0]
        score_dims = [*top_stat.dims, kv]
        shape = (tile.cores, *(tile.size[d] for d in score_dims))
        reached = [d for d in score_dims if d in q_dims or d in k_dims]
        scores = align(contract(q, q_dims, k, k_dims, reached), reached, score_dims)
        scores = scores * np.asarray(op.param["scale"], dtype=scores.dtype)
        if (cap := op.param.get("softcap")) is not None:
            scores = np.tanh(scores / cap) * np.asarray(cap, dtype=scores.dtype)
        if len(op.operands) > 3:
            mask, mask_dims = _expanded(tile, 3, blocks[3])
            mask = align(mask, mask_dims, score_dims)
            if mask.dtype == np.bool_:
                scores = np.where(mask, scores, -np.inf).astype(scores.dtype)
            else:
                scores = scores + mask.astype(scores.dtype)
        inside = tile.inside(kv).reshape(tile.cores, *[1] * len(top_stat.dims), -1)
        scores = np.where(inside, np.broadcast_to(scores, shape), -np.inf).astype(scores.dtype)
        top = scores.max(axis=-1)
        weights = _rescale(scores, top[..., None]).astype(scores.dtype)
        total = weights.sum(axis=-1)
        weighted = contract(weights, score_dims, v, v_dims, list(out_stat.dims))
        return [top, total, weighted]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        top_stat, _, out_stat = op.stats
        top = np.maximum(left[0], right[0])
        a, b = _rescale(left[0], top), _rescale(right[0], top)
        total = left[1] * a + right[1] * b
        wide = [align(x, top_stat.dims, out_stat.dims) for x in (a, b)]
        weighted = left[2] * wide[0] + right[2] * wide[1]
        return [top, total.astype(top.dtype), weighted.astype(left[2].dtype)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        top_stat, _, out_stat = op.stats
        total = align(stats[1], top_stat.dims, out_stat.dims)
        values = np.where(total == 0, 0, stats[2] / np.where(total == 0, 1, total))
        return _epilogue(tile, values, out_stat.dims, blocks)


class GatherKernel:
    """Rows of a table by index. The table dimension is a reduction: a core contributes the rows
    that lie in its part of the table and zero for the others; the sum has exactly one term."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        table, table_dims = _expanded(tile, 0, blocks[0])
        index, index_dims = _expanded(tile, 1, blocks[1])
        rows = op.reductions[0]
        extent = op.extents[rows]
        where = np.where(index < 0, index + extent, index) - tile.origin[:, rows].reshape(
            -1, *[1] * (index.ndim - 1)
        )
        found = (where >= 0) & (where < tile.valid[:, rows].reshape(-1, *[1] * (index.ndim - 1)))
        others = [d for d in table_dims if d != rows]
        shared = [d for d in others if d in index_dims]
        # Bring the table to (cores, shared…, rows, others…) and pick with broadcast indices.
        free = [d for d in others if d not in shared]
        table = align(table, table_dims, [*shared, rows, *free])
        picked = np.where(found, where, 0)
        lead = [np.arange(tile.cores).reshape(-1, *[1] * len(index_dims))]
        for d in shared:
            shape = [1] * (len(index_dims) + 1)
            shape[index_dims.index(d) + 1] = tile.size[d]
            lead.append(np.arange(tile.size[d]).reshape(shape))
        values = table[(*lead, picked)]
        dims = [*index_dims, *free]
        mask = found.reshape(*found.shape, *[1] * len(free))
        values = np.where(mask, values, np.zeros((), dtype=values.dtype))
        return [align(values, dims, stat.dims)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [np.where(left[0] != 0, left[0], right[0]).astype(left[0].dtype)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return _epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


class ConcatKernel:
    """Operands laid one after another along one dimension; each access is shifted by where its
    operand starts, and points outside an operand read as its neutral value."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        return []

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return []

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        d = op.param["dim"]
        target = list(range(len(op.dims)))
        position = tile.index(d).reshape(tile.cores, *(-1 if i == d else 1 for i in target))
        out: np.ndarray | None = None
        for v, access in enumerate(op.operands):
            array, own = _expanded(tile, v, blocks[v])
            values = align(array, own, target)
            start = -next(a.offset for a in access.axes if any(t == d for t, _ in a.terms))
            out = values if out is None else np.where(position >= start, values, out)
        assert out is not None
        return [
            pack(
                cast(_fill(out, tile, target), op.results[0].dtype),
                target,
                op.results[0],
                tile.size,
            )
        ]


KERNELS: dict[str, Kernel] = {
    "attention": AttentionKernel(),
    "concat": ConcatKernel(),
    "contract": ContractKernel(),
    "gather": GatherKernel(),
    "map": MapKernel(),
    "normalize": NormalizeKernel(),
    "reduce": ReduceKernel(),
    "softmax": SoftmaxKernel(),
}


def run_whole(op: Operator, tensors: Sequence[np.ndarray]) -> list[Any]:
    """The operator on whole tensors: its definition, against which every plan is compared."""
    tile = whole(op)
    blocks = [_whole_block(t, a, tile) for t, a in zip(tensors, op.operands, strict=True)]
    kernel = KERNELS[op.kind]
    stats = kernel.local(tile, blocks) if op.stats else []
    results = kernel.apply(tile, stats, blocks)
    return [
        block[0][tuple(slice(0, n) for n in access.shape)]
        for block, access in zip(results, op.results, strict=True)
    ]


def _whole_block(tensor: np.ndarray, access: Access, tile: Tile) -> np.ndarray:
    """The image of the whole domain, padded with the neutral value outside the tensor."""
    origin = [
        a.offset + sum(k * (tile.size[d] - 1) for d, k in a.terms if k < 0) for a in access.axes
    ]
    shape = access.block_shape(tile.size)
    if tuple(shape) == tensor.shape and not any(origin):
        return tensor[None]
    neutral = 0 if access.neutral is None else access.neutral
    block = np.full(shape, neutral, dtype=tensor.dtype)
    source, target = [], []
    for start, size, extent in zip(origin, shape, tensor.shape, strict=True):
        lo, hi = max(0, start), max(max(0, start), min(extent, start + size))
        source.append(slice(lo, hi))
        target.append(slice(lo - start, hi - start))
    block[tuple(target)] = tensor[tuple(source)]
    return block[None]
