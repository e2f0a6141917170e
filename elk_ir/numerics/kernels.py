"""Executable semantics of structured operators: the kernels, by kind (see `tiles` for the arrays).

`local` turns operand blocks into statistics, `combine` merges the statistics of disjoint parts of
a reduction, `apply` turns them into result blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from elk_ir.numerics.body import cast, dtype_of, evaluate
from elk_ir.numerics.indexing_kernels import ArgReduceKernel, ScanKernel, ScatterKernel, TopKKernel
from elk_ir.numerics.tiles import (
    Kernel,
    Tile,
    WithoutStatistics,
    align,
    contract,
    epilogue,
    expand,
    expanded,
    fill,
    pack,
    reduction_block,
    whole,
)
from elk_ir.plan.domain import Access, Operator, Phase

__all__ = ["KERNELS", "Kernel", "Tile", "align", "contract", "expand", "pack", "run_whole", "whole"]


class ContractKernel:
    """Sum of products of the operands of the local phase (te.contract, te.conv)."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op = tile.op
        stat = op.stats[0]
        factors = [
            reduction_block(tile, v, blocks[v], stat.dtype, a.neutral)
            for v, a in enumerate(op.operands)
            if a.phase is Phase.LOCAL
        ]
        if (zeros := op.param.get("zeros")) is not None:
            factors = [(a - a.dtype.type(z), d) for (a, d), z in zip(factors, zeros, strict=True)]
        array, dims = factors[0]
        for i, (other, other_dims) in enumerate(factors[1:]):
            later = {d for _, ds in factors[i + 2 :] for d in ds}
            keep = [d for d in sorted({*dims, *other_dims}) if d in stat.dims or d in later]
            array, dims = contract(array, dims, other, other_dims, keep), keep
        if len(factors) == 1:
            gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
            array, dims = array.sum(axis=gone), [d for d in dims if d in stat.dims]
        values = align(array, dims, stat.dims).astype(dtype_of(stat.dtype), copy=False)
        return [fill(values, tile, stat.dims)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [a + b for a, b in zip(left, right, strict=True)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


class MapKernel(WithoutStatistics):
    """A scalar body at every point (te.map and everything that only moves data)."""

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        target = sorted(op.result_dims)
        values: list[np.ndarray] = []
        for v in range(len(op.operands)):
            array, own = expanded(tile, v, blocks[v])
            values.append(align(array, own, target))
        outs = evaluate(op.param["body"], values)
        return [
            pack(fill(cast(o, r.dtype), tile, target), target, r, tile.size)
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
        array, dims = reduction_block(tile, 0, blocks[0], stat.dtype, stat.neutral)
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
        return epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


def _rescale(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """exp(old - new), zero where both are -inf."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(old), 0, np.exp(old - np.where(np.isneginf(new), 0, new)))


def _reached(tile: Tile, array: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """`array` with -inf in front of the filled entries of the state that a softmax runs over."""
    if not tile.hidden:
        return array
    (kv,) = tile.op.reductions
    filled = (tile.index(kv) >= tile.hidden).reshape(
        tile.cores, *(-1 if d == kv else 1 for d in dims)
    )
    return np.where(filled, array, array.dtype.type(-np.inf))


class SoftmaxKernel:
    """Softmax over the reduction dimensions: statistics are the maximum and the sum of
    exponentials; `log` gives log-softmax."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        stat = tile.op.stats[0]
        array, dims = reduction_block(tile, 0, blocks[0], stat.dtype, stat.neutral)
        array = _reached(tile, array, dims)
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
        array, dims = expanded(tile, 0, cast(blocks[0], stat.dtype))
        array = _reached(tile, array, dims)
        top, total = (align(s, stat.dims, dims) for s in stats)
        with np.errstate(divide="ignore", invalid="ignore"):
            if op.param.get("log"):
                values = array - top - np.log(total)
            else:
                values = np.exp(array - top) / total
        return [pack(cast(values, op.results[0].dtype), dims, op.results[0], tile.size)]


class NormalizeKernel:
    """RMS and layer normalisation. Statistics: count, mean and sum of squared deviations, merged
    by Chan's formula; for RMS the sum of squares alone."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        array, dims = expanded(tile, 0, cast(blocks[0], stat.dtype))
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        inside = np.ones((tile.cores, *[1] * len(dims)), dtype=bool)
        for i, d in enumerate(dims):
            if d not in stat.dims:
                shape = [tile.cores] + [1] * len(dims)
                shape[i + 1] = tile.size[d]
                inside = inside & tile.inside(d).reshape(shape)
        weight = np.broadcast_to(inside, array.shape)
        kept = (tile.cores, *(tile.size[d] for d in stat.dims))
        if op.param["form"] == "rms":
            squares = np.where(weight, array**2, 0).sum(axis=gone)
            return [squares.reshape(kept).astype(array.dtype)]
        count = weight.sum(axis=gone, keepdims=True).astype(array.dtype)
        total = np.where(weight, array, 0).sum(axis=gone, keepdims=True, dtype=array.dtype)
        mean = total / np.maximum(count, 1)
        squares = np.where(weight, (array - mean) ** 2, 0).sum(axis=gone, keepdims=True)
        return [s.reshape(kept).astype(array.dtype) for s in (count, mean, squares)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        if op.param["form"] == "rms":
            return [(left[0] + right[0]).astype(left[0].dtype)]
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
        array, dims = expanded(tile, 0, cast(blocks[0], stat.dtype))
        epsilon = np.asarray(op.param["epsilon"], dtype=array.dtype)
        moments = [align(s, stat.dims, dims) for s in stats]
        if op.param["form"] == "rms":
            count = np.asarray(prod(op.extents[d] for d in op.reductions), dtype=array.dtype)
            values = array * (1 / np.sqrt(moments[0] / np.maximum(count, 1) + epsilon))
        else:
            count, mean, squares = moments
            values = (array - mean) * (1 / np.sqrt(squares / np.maximum(count, 1) + epsilon))
        if (cast_to := op.param.get("round_to")) is not None:
            values = cast(values, cast_to)
        for v in range(1, len(op.operands)):
            other, own = expanded(tile, v, blocks[v])
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
        q, q_dims = expanded(tile, 0, cast(blocks[0], dtype))
        k, k_dims = expanded(tile, 1, cast(blocks[1], dtype))
        v, v_dims = expanded(tile, 2, cast(blocks[2], dtype))
        kv = op.reductions[0]
        score_dims = [*top_stat.dims, kv]
        shape = (tile.cores, *(tile.size[d] for d in score_dims))
        reached = [d for d in score_dims if d in q_dims or d in k_dims]
        scores = align(contract(q, q_dims, k, k_dims, reached), reached, score_dims)
        scores = scores * np.asarray(op.param["scale"], dtype=scores.dtype)
        if (cap := op.param.get("softcap")) is not None:
            scores = np.tanh(scores / cap) * np.asarray(cap, dtype=scores.dtype)
        if len(op.operands) > 3:
            mask, mask_dims = expanded(tile, 3, blocks[3])
            mask = align(mask, mask_dims, score_dims)
            if mask.dtype == np.bool_:
                scores = np.where(mask, scores, -np.inf).astype(scores.dtype)
            else:
                scores = scores + mask.astype(scores.dtype)
        inside = tile.inside(kv) & (tile.index(kv) >= tile.hidden)
        inside = inside.reshape(tile.cores, *[1] * len(top_stat.dims), -1)
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
        return epilogue(tile, values, out_stat.dims, blocks)


class GatherKernel:
    """Rows of a table by index. The table dimension is a reduction: a core contributes the rows
    that lie in its part of the table and zero for the others; the sum has exactly one term."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        table, table_dims = expanded(tile, 0, blocks[0])
        index, index_dims = expanded(tile, 1, blocks[1])
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
        return epilogue(tile, stats[0], tile.op.stats[0].dims, blocks)


class ConcatKernel(WithoutStatistics):
    """Operands laid one after another along one dimension; each access is shifted by where its
    operand starts, and points outside an operand read as its neutral value."""

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        d = op.param["dim"]
        target = list(range(len(op.dims)))
        position = tile.index(d).reshape(tile.cores, *(-1 if i == d else 1 for i in target))
        out: np.ndarray | None = None
        for v, access in enumerate(op.operands):
            array, own = expanded(tile, v, blocks[v])
            values = align(array, own, target)
            start = -next(a.offset for a in access.axes if any(t == d for t, _ in a.terms))
            out = values if out is None else np.where(position >= start, values, out)
        assert out is not None
        return [
            pack(
                cast(fill(out, tile, target), op.results[0].dtype),
                target,
                op.results[0],
                tile.size,
            )
        ]


class _Kernels(dict[str, Kernel]):
    """Kernels by kind of operator: ours, and those of extensions."""

    def __missing__(self, kind: str) -> Kernel:
        from elk_ir.extensions import operators

        return operators().kernels[kind]


KERNELS: dict[str, Kernel] = _Kernels(
    {
        "argreduce": ArgReduceKernel(),
        "attention": AttentionKernel(),
        "concat": ConcatKernel(),
        "contract": ContractKernel(),
        "gather": GatherKernel(),
        "map": MapKernel(),
        "normalize": NormalizeKernel(),
        "reduce": ReduceKernel(),
        "scan": ScanKernel(),
        "scatter": ScatterKernel(),
        "softmax": SoftmaxKernel(),
        "topk": TopKKernel(),
    }
)


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
