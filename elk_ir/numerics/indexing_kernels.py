"""Kernels that compute with indices: scatter, arg-reductions, top-k, cumulative scans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elk_ir.numerics.body import cast, dtype_of
from elk_ir.numerics.tiles import (
    Tile,
    WithoutStatistics,
    align,
    expanded,
    fill,
    pack,
    reduction_block,
)
from elk_ir.plan.domain import Operator

NO_INDEX = -(2**31)
"""The neutral value of index operands: no position, even counted from the end."""


class ScatterKernel:
    """Updates written into (or combined with) the rows of a tensor that an index names.

    Operands: data, index, updates. The rows are a parallel dimension, what the index iterates over
    are reductions. Plain updates carry the position of the last writer, so that the merged result
    does not depend on how the updates are split.
    """

    FUNCTIONS: dict[str, np.ufunc] = {
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op = tile.op
        stat, rows = op.stats[0], op.param["rows"]
        index, index_dims = expanded(tile, 1, blocks[1])
        updates, update_dims = expanded(tile, 2, cast(blocks[2], stat.dtype))
        every = sorted({*index_dims, *update_dims})
        sizes = [tile.size[d] for d in every]
        shape = (tile.cores, *sizes)
        core = [-1] + [1] * len(every)
        extent = op.extents[rows]
        where = align(index, index_dims, every).astype(np.int64)
        legal = (where >= -extent) & (where < extent)
        where = np.where(where < 0, where + extent, where) - tile.origin[:, rows].reshape(core)
        legal = legal & (where >= 0) & (where < tile.valid[:, rows].reshape(core))
        for i, d in enumerate(every):
            legal = legal & tile.inside(d).reshape(
                [-1, *(tile.size[d] if j == i else 1 for j in range(len(every)))]
            )
        target = np.arange(tile.cores).reshape(core)
        for d in stat.dims:
            if d == rows:
                position = where
            else:
                i = every.index(d)
                position = np.arange(tile.size[d]).reshape(
                    [1, *(tile.size[d] if j == i else 1 for j in range(len(every)))]
                )
            target = target * tile.size[d] + position
        chosen = np.broadcast_to(legal, shape).reshape(-1)
        flat = np.broadcast_to(target, shape).reshape(-1)[chosen]
        values = np.broadcast_to(align(updates, update_dims, every), shape).reshape(-1)[chosen]
        out_shape = (tile.cores, *(tile.size[d] for d in stat.dims))
        out = np.full(int(np.prod(out_shape)), stat.neutral, dtype=dtype_of(stat.dtype))
        if len(op.stats) == 1:
            self.FUNCTIONS[op.param["combiner"]].at(out, flat, values)
            return [out.reshape(out_shape)]
        out[flat] = values
        order = np.full(out.shape, -1, dtype=np.int64)
        order[flat] = np.broadcast_to(self._order(tile, every), shape).reshape(-1)[chosen]
        return [out.reshape(out_shape), order.reshape(out_shape)]

    @staticmethod
    def _order(tile: Tile, dims: Sequence[int]) -> np.ndarray:
        """The position of every update among all updates of its row."""
        order = np.zeros((tile.cores, *[1] * len(dims)), dtype=np.int64)
        for i, d in enumerate(dims):
            if d in tile.op.reductions:
                position = tile.index(d)
                order = order * tile.op.extents[d] + position.reshape(
                    [tile.cores, *(tile.size[d] if j == i else 1 for j in range(len(dims)))]
                )
        return order

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        if len(op.stats) == 1:
            return [self.FUNCTIONS[op.param["combiner"]](left[0], right[0])]
        later = right[1] > left[1]
        return [np.where(later, r, lhs) for lhs, r in zip(left, right, strict=True)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        stat = op.stats[0]
        data, dims = expanded(tile, 0, cast(blocks[0], stat.dtype))
        data = align(data, dims, stat.dims)
        if len(op.stats) == 1:
            values = self.FUNCTIONS[op.param["combiner"]](data, stats[0])
        else:
            values = np.where(stats[1] >= 0, stats[0], data)
        result = op.results[0]
        return [pack(cast(values, result.dtype), stat.dims, result, tile.size)]


class ArgReduceKernel:
    """The index of the largest (or smallest) element along the reduction dimension; of equal ones
    the first, or the last."""

    def local(self, tile: Tile, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        op, best = tile.op, tile.op.stats[0]
        array, dims = reduction_block(tile, 0, blocks[0], best.dtype, best.neutral)
        (d,) = op.reductions
        array = np.moveaxis(array, dims.index(d) + 1, -1)
        kept = [e for e in dims if e != d]
        inside = tile.inside(d).reshape(tile.cores, *[1] * len(kept), -1)
        fold = np.max if op.param["largest"] else np.min
        worst = np.asarray(best.neutral).astype(array.dtype)
        top = fold(np.where(inside, array, worst), axis=-1)
        candidates = inside & (array == top[..., None])
        if array.dtype.kind not in "iub":
            candidates |= inside & np.isnan(array)
        if op.param["last"]:
            position = array.shape[-1] - 1 - np.argmax(candidates[..., ::-1], axis=-1)
        else:
            position = np.argmax(candidates, axis=-1)
        position = position + tile.origin[:, d].reshape(-1, *[1] * len(kept))
        position = np.where(candidates.any(axis=-1), position, -1).astype(np.int64)
        return [align(a, kept, best.dims) for a in (top, position)]

    def combine(
        self, op: Operator, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        better = right[0] > left[0] if op.param["largest"] else right[0] < left[0]
        if right[0].dtype.kind not in "iub":
            better |= np.isnan(right[0]) & ~np.isnan(left[0])
        worse = left[0] > right[0] if op.param["largest"] else left[0] < right[0]
        if left[0].dtype.kind not in "iub":
            worse |= np.isnan(left[0]) & ~np.isnan(right[0])
        ahead = right[1] > left[1] if op.param["last"] else right[1] < left[1]
        take = (left[1] < 0) | ((right[1] >= 0) & (better | (~worse & ahead)))
        return [np.where(take, r, lhs) for lhs, r in zip(left, right, strict=True)]

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        result, dims = tile.op.results[0], tile.op.stats[1].dims
        return [pack(cast(stats[1], result.dtype), dims, result, tile.size)]


class TopKKernel(WithoutStatistics):
    """The k largest (or smallest) elements along one dimension, in order, and their indices. Equal
    ones come in the order of their indices."""

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        n, k = op.param["n"], op.param["k"]
        array, dims = expanded(tile, 0, blocks[0])
        array = np.moveaxis(array, dims.index(n) + 1, -1)
        count = op.extents[k]
        if op.param["largest"]:
            # A stable ascending sort of the reversed array, read backwards, is a descending sort
            # that keeps the order of equal elements.
            order = np.argsort(array[..., ::-1], axis=-1, kind="stable")[..., ::-1]
            order = array.shape[-1] - 1 - order
        else:
            order = np.argsort(array, axis=-1, kind="stable")
        order = order[..., :count]
        kept = [*(d for d in dims if d != n), k]
        picked = (np.take_along_axis(array, order, axis=-1), order)
        return [
            pack(cast(a, r.dtype), kept, r, tile.size)
            for a, r in zip(picked, op.results, strict=True)
        ]


class ScanKernel(WithoutStatistics):
    """Running sums or products along one dimension."""

    FUNCTIONS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply}

    def apply(
        self, tile: Tile, stats: Sequence[np.ndarray], blocks: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        op = tile.op
        array, dims = expanded(tile, 0, cast(blocks[0], op.param["dtype"]))
        axis = dims.index(op.param["n"]) + 1
        fn = self.FUNCTIONS[op.param["combiner"]]
        if op.param["reverse"]:
            array = np.flip(array, axis)
        values = fn.accumulate(array, axis=axis, dtype=array.dtype)
        if op.param["exclusive"]:
            head = np.full_like(np.take(values, [0], axis=axis), fn.identity)
            values = np.concatenate([head, np.delete(values, -1, axis=axis)], axis=axis)
        if op.param["reverse"]:
            values = np.flip(values, axis)
        result = op.results[0]
        return [pack(cast(fill(values, tile, dims), result.dtype), dims, result, tile.size)]
