"""Executable semantics of structured operators: the kernels, by kind (see `tiles` for the arrays).

`local` turns operand blocks into statistics, `combine` merges the statistics of disjoint parts of
a reduction, `apply` turns them into result blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import cast, dtype_of, prepared_body
from elk_ir.numerics.indexing_kernels import ArgReduceKernel, ScanKernel, ScatterKernel, TopKKernel
from elk_ir.numerics.tiles import (
    BoundApply,
    BoundLocal,
    Kernel,
    Points,
    Tile,
    Values,
    WithoutStatistics,
    align,
    bound_epilogue,
    bound_product,
    contract,
    expand,
    expanded,
    fill,
    pack,
    points,
    reduction_points,
    steps_of,
    whole,
)
from elk_ir.plan.domain import Access, Operator, Phase

__all__ = ["KERNELS", "Kernel", "Tile", "align", "contract", "expand", "pack", "run_whole", "whole"]


class Sums:
    """Kinds of which the only statistic is a sum."""

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [left[0] + right[0]]


class OnlyEpilogue(BoundApply):
    """Kinds that apply their epilogue to their only statistic."""

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        return bound_epilogue(tile, Points(stats[0], list(tile.op.stats[0].dims)), blocks)


class ContractKernel(BoundLocal, Sums, OnlyEpilogue):
    """Sum of products of the operands of the local phase (te.contract, te.conv)."""

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        op, stat = tile.op, tile.op.stats[0]
        local = [v for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL]
        zeros = op.param.get("zeros") or (None,) * len(local)
        factors = [
            _less(reduction_points(tile, v, blocks[v], stat.dtype, op.operands[v].neutral), z)
            for v, z in zip(local, zeros, strict=True)
        ]
        bounds = [_largest(op.operands[v].dtype, z) for v, z in zip(local, zeros, strict=True)]
        found = factors[0]
        for i, other in enumerate(factors[1:]):
            later = {d for f in factors[i + 2 :] for d in f.dims}
            keep = [d for d in sorted({*found.dims, *other.dims}) if d in stat.dims or d in later]
            largest = (bounds[0], bounds[1]) if len(factors) == 2 else None
            found = bound_product(found, other, keep, largest)
        view, dtype, steps = found.view, dtype_of(stat.dtype), found.steps
        gone = tuple(i + 1 for i, d in enumerate(found.dims) if d not in stat.dims)
        kept = [d for d in found.dims if d in stat.dims]

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            array = view.sum(axis=gone) if len(factors) == 1 else view
            values = align(array, kept, stat.dims).astype(dtype, copy=False)
            return [fill(values, tile, stat.dims)]

        return run


def _less(bound: Points, zero: float | None) -> Points:
    """The elements less a zero point."""
    if zero is None:
        return bound
    view, shift = bound.view, bound.view.dtype.type(zero)
    made = np.empty(view.shape, view.dtype)
    return bound.then(made, lambda: np.subtract(view, shift, out=made))


def _largest(dtype: str, zero: float | None) -> int:
    """A bound on the magnitude of the integers of a type, less `zero`."""
    kind = dtype_of(dtype)
    if kind.kind not in "iu":
        return 2**64
    return 2 ** (8 * kind.itemsize) + abs(int(zero or 0))


class MapKernel(WithoutStatistics, BoundApply):
    """A scalar body at every point (te.map and everything that only moves data)."""

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        op = tile.op
        target = sorted(op.result_dims)
        values = [points(tile, v, blocks[v]).aligned(target) for v in range(len(op.operands))]
        body, steps = prepared_body(op.param["body"]), steps_of(*values)
        views = [p.view for p in values]

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            return body(views)

        return run, target


class ReduceKernel(BoundLocal, OnlyEpilogue):
    """One associative reduction (sum, prod, max, min) of a single operand, then an epilogue."""

    FUNCTIONS: dict[str, np.ufunc] = {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        op, stat = tile.op, tile.op.stats[0]
        found = reduction_points(tile, 0, blocks[0], stat.dtype, stat.neutral)
        gone = tuple(i + 1 for i, d in enumerate(found.dims) if d not in stat.dims)
        fn, dtype = self.FUNCTIONS[op.param["combiner"]], dtype_of(stat.dtype)
        kept = [d for d in found.dims if d in stat.dims]
        view, steps = found.view, found.steps

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            values = fn.reduce(view, axis=gone, initial=stat.neutral) if gone else view
            return [align(values.astype(dtype, copy=False), kept, stat.dims)]

        return run

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return [self.FUNCTIONS[op.param["combiner"]](left[0], right[0])]


def _rescale(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """exp(old - new), zero where both are -inf."""
    low = np.isneginf(new)
    if not low.any():
        return np.exp(old - new)  # exp(-inf) is the zero of a row that sees nothing yet
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(old), 0, np.exp(old - np.where(low, 0, new)))


def _reached(tile: Tile, bound: Points) -> Points:
    """-inf in front of the filled entries of the state that a softmax runs over."""
    if not tile.hidden:
        return bound
    (kv,) = tile.op.reductions
    filled = (tile.index(kv) >= tile.hidden).reshape(
        tile.cores, *(-1 if d == kv else 1 for d in bound.dims)
    )
    view = bound.view
    made = np.empty(view.shape, view.dtype)

    def step() -> None:
        np.copyto(made, -np.inf)
        np.copyto(made, view, where=filled)

    return bound.then(made, step)


class SoftmaxKernel(BoundLocal, BoundApply):
    """Softmax over the reduction dimensions: statistics are the maximum and the sum of
    exponentials; `log` gives log-softmax."""

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        stat = tile.op.stats[0]
        found = _reached(tile, reduction_points(tile, 0, blocks[0], stat.dtype, stat.neutral))
        gone = tuple(i + 1 for i, d in enumerate(found.dims) if d not in stat.dims)
        view, steps = found.view, found.steps

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            top = view.max(axis=gone, keepdims=True)
            total = _rescale(view, top).sum(axis=gone)
            return [top.reshape(total.shape), total.astype(top.dtype, copy=False)]

        return run

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        top = np.maximum(left[0], right[0])
        total = left[1] * _rescale(left[0], top) + right[1] * _rescale(right[0], top)
        return [top, total.astype(top.dtype)]

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        op, stat = tile.op, tile.op.stats[0]
        found = _reached(tile, points(tile, 0, blocks[0], stat.dtype))
        view, steps = found.view, found.steps
        top, total = (align(s, stat.dims, found.dims) for s in stats)
        log = bool(op.param.get("log"))

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            if log:
                return [view - top - np.log(total)]
            return [np.exp(view - top) / total]

        return run, found.dims


class NormalizeKernel(BoundLocal, BoundApply):
    """RMS and layer normalisation. Statistics: count, mean and sum of squared deviations, merged
    by Chan's formula; for RMS the sum of squares alone."""

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        op, stat = tile.op, tile.op.stats[0]
        found = points(tile, 0, blocks[0], stat.dtype)
        dims, view, steps = found.dims, found.view, found.steps
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        inside = np.ones((tile.cores, *[1] * len(dims)), dtype=bool)
        for i, d in enumerate(dims):
            if d not in stat.dims:
                shape = [tile.cores] + [1] * len(dims)
                shape[i + 1] = tile.size[d]
                inside = inside & tile.inside(d).reshape(shape)
        weight = np.broadcast_to(inside, view.shape)
        kept = (tile.cores, *(tile.size[d] for d in stat.dims))
        rms = op.param["form"] == "rms"
        count = weight.sum(axis=gone, keepdims=True).astype(view.dtype)
        safe = np.maximum(count, 1)

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            if rms:
                squares = np.where(weight, view**2, 0).sum(axis=gone)
                return [squares.reshape(kept).astype(view.dtype, copy=False)]
            total = np.where(weight, view, 0).sum(axis=gone, keepdims=True, dtype=view.dtype)
            mean = total / safe
            squares = np.where(weight, (view - mean) ** 2, 0).sum(axis=gone, keepdims=True)
            return [s.reshape(kept).astype(view.dtype, copy=False) for s in (count, mean, squares)]

        return run

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

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        op, stat = tile.op, tile.op.stats[0]
        found = points(tile, 0, blocks[0], stat.dtype)
        dims, view = found.dims, found.view
        epsilon = np.asarray(op.param["epsilon"], dtype=view.dtype)
        moments = [align(s, stat.dims, dims) for s in stats]
        rms, round_to = op.param["form"] == "rms", op.param.get("round_to")
        points_count = prod(op.extents[d] for d in op.reductions)
        whole_count = np.maximum(np.asarray(points_count, dtype=view.dtype), 1)
        affine = [
            (points(tile, v, blocks[v]).aligned(dims), op.param["affine"][v - 1] == "scale")
            for v in range(1, len(op.operands))
        ]
        steps = steps_of(found, *(p for p, _ in affine))

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            if rms:
                values = view * (1 / np.sqrt(moments[0] / whole_count + epsilon))
            else:
                count, mean, squares = moments
                values = (view - mean) * (1 / np.sqrt(squares / np.maximum(count, 1) + epsilon))
            if round_to is not None:
                values = cast(values, round_to)
            for other, scales in affine:
                values = values * other.view if scales else values + other.view
            return [values]

        return run, dims


class AttentionKernel(BoundLocal, BoundApply):
    """softmax(scale · Q Kᵀ + mask) V over the KV dimension, as partial results (running maximum,
    sum, weighted values) merged by their log-sum-exp. Operands: query, key, value, then the
    additive mask if there is one. A row whose every score is -inf gives zero."""

    def bind_local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> Values:
        op = tile.op
        top_stat, _, out_stat = op.stats
        q, k, v = (points(tile, i, blocks[i], top_stat.dtype) for i in range(3))
        kv = op.reductions[0]
        score_dims = [*top_stat.dims, kv]
        shape = (tile.cores, *(tile.size[d] for d in score_dims))
        reached = [d for d in score_dims if d in q.dims or d in k.dims]
        product = bound_product(q, k, reached).aligned(score_dims)
        mask = points(tile, 3, blocks[3]).aligned(score_dims) if len(op.operands) > 3 else None
        inside = tile.inside(kv) & (tile.index(kv) >= tile.hidden)
        inside = inside.reshape(tile.cores, *[1] * len(top_stat.dims), -1)
        every = bool(inside.all())
        scale = np.asarray(op.param["scale"], dtype=product.view.dtype)
        cap = op.param.get("softcap")
        made = np.empty(shape, product.view.dtype)
        weighted = bound_product(Points(made, score_dims), v, list(out_stat.dims))
        first = steps_of(product) if mask is None else steps_of(product, mask)

        def run() -> list[np.ndarray]:
            for step in first:
                step()
            scores = product.view * scale
            if cap is not None:
                scores = np.tanh(scores / cap) * np.asarray(cap, dtype=scores.dtype)
            if mask is not None and mask.view.dtype == np.bool_:
                scores = np.where(mask.view, scores, -np.inf).astype(scores.dtype)
            elif mask is not None:
                scores = scores + mask.view.astype(scores.dtype, copy=False)
            scores = np.broadcast_to(scores, shape)
            if not every:
                scores = np.where(inside, scores, -np.inf).astype(scores.dtype)
            top = scores.max(axis=-1)
            np.copyto(made, _rescale(scores, top[..., None]), casting="unsafe")
            return [top, made.sum(axis=-1), weighted.now()]

        return run

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

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        top_stat, _, out_stat = tile.op.stats
        total = align(stats[1], top_stat.dims, out_stat.dims)
        weighted = stats[2]
        made = np.empty(weighted.shape, weighted.dtype)

        def divide() -> None:
            empty = total == 0
            if empty.any():
                np.copyto(made, np.where(empty, 0, weighted / np.where(empty, 1, total)))
            else:
                np.divide(weighted, total, out=made)

        return bound_epilogue(tile, Points(made, list(out_stat.dims), (divide,)), blocks)


class GatherKernel(OnlyEpilogue):
    """Rows of a table by index. The table dimension is a reduction: a core contributes the rows
    that lie in its part of the table and zero for the others; the sum has exactly one term. Raises
    ElkError for an index that names no row of the whole table."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, stat = tile.op, tile.op.stats[0]
        table, table_dims = expanded(tile, 0, blocks[0])
        index, index_dims = expanded(tile, 1, blocks[1])
        rows = op.reductions[0]
        extent = op.extents[rows]
        wrong = (index < -extent) | (index >= extent)
        if wrong.any():
            raise ElkError(f"it asks for row {index[wrong][0]}, outside of 0..{extent - 1}")
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


class ConcatKernel(WithoutStatistics, BoundApply):
    """Operands laid one after another along one dimension; each access is shifted by where its
    operand starts, and points outside an operand read as its neutral value."""

    def bind_apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> tuple[Values, list[int]]:
        op = tile.op
        d = op.param["dim"]
        target = list(range(len(op.dims)))
        position = tile.index(d).reshape(tile.cores, *(-1 if i == d else 1 for i in target))
        parts = [points(tile, v, blocks[v]).aligned(target) for v in range(len(op.operands))]
        starts = [
            -next(a.offset for a in access.axes if any(t == d for t, _ in a.terms))
            for access in op.operands
        ]
        views, steps = [p.view for p in parts], steps_of(*parts)
        later = [
            np.broadcast_to(position >= start, (tile.cores, *tile.size)) for start in starts[1:]
        ]
        made = np.empty((tile.cores, *tile.size), views[0].dtype)

        def run() -> list[np.ndarray]:
            for step in steps:
                step()
            np.copyto(made, views[0])
            for view, where in zip(views[1:], later, strict=True):
                np.copyto(made, view, where=where, casting="unsafe")
            return [made]

        return run, target


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
