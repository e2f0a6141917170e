"""Operators that compute with indices, prepared once for whole tensors (see `compiled`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import numpy as np

from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.indexing_kernels import ScatterKernel
from elk_ir.numerics.views import (
    KEPT_ELEMENTS,
    Array,
    Prepared,
    View,
    aligned,
    once,
    ordered,
    results_of,
    view_of,
)
from elk_ir.plan.domain import Operator


def prepare_scatter(op: Operator, constant: Collection[int]) -> Prepared:
    """Updates put into a copy of the data, or first combined among themselves, in the order of
    `indexing_kernels.ScatterKernel`."""
    data, _, updates = op.operands
    stat = op.stats[0]
    kept = list(stat.dims)
    every, positions = _positions(op)
    data_of = aligned(view_of(data, op.extents, stat.dtype), sorted(data.dims), kept)
    updates_of = aligned(view_of(updates, op.extents, stat.dtype), sorted(updates.dims), every)
    results, dtype = results_of(op, kept), dtype_of(stat.dtype)
    points = tuple(op.extents[d] for d in every)
    if 1 in constant and prod(points) <= KEPT_ELEMENTS:
        positions = once(positions)
    shape = tuple(op.extents[d] for d in kept)
    combine = None if len(op.stats) > 1 else ScatterKernel.FUNCTIONS[op.param["combiner"]]

    def run(tensors: Sequence[Array]) -> list[Array]:
        where, values = positions(tensors[1]), updates_of(tensors[2])
        if values.shape != points:
            values = np.broadcast_to(values, points)
        values = values.reshape(-1)
        legal = where >= 0
        if not legal.all():
            where, values = where[legal], values[legal]
        made = np.empty(shape, dtype)
        row = made.reshape(-1)
        if combine is None:
            made[...] = data_of(tensors[0])
            row[where] = values
            return results([made])
        row[...] = stat.neutral
        combine.at(row, where, values)
        return results([combine(data_of(tensors[0]), made)])

    return run


def _positions(op: Operator) -> tuple[list[int], View]:
    """The dimensions of the updates of a scatter, and a function from its index to the place of
    each of them in a row of the elements of the statistics: -1 for those that are left out."""
    _, index, updates = op.operands
    kept, rows = list(op.stats[0].dims), op.param["rows"]
    every = sorted({*index.dims, *updates.dims})
    points = tuple(op.extents[d] for d in every)
    steps = {d: prod(op.extents[e] for e in kept[i + 1 :]) for i, d in enumerate(kept)}
    beside = [
        ordered([d], every)(np.arange(op.extents[d]) * steps[d]) for d in kept if d != rows
    ] or [np.zeros((), np.int64)]
    if prod(points) <= KEPT_ELEMENTS:
        beside = [np.broadcast_to(sum(beside), points).copy()]
    extent, step = op.extents[rows], steps[rows]
    index_of = aligned(view_of(index, op.extents), sorted(index.dims), every)

    def places(tensor: Array) -> Array:
        named = index_of(tensor).astype(np.int64, copy=False)
        place = named % extent * step
        for offsets in beside:
            place = place + offsets
        out = (named < -extent) | (named >= extent)
        if out.any():
            place = np.where(out, -1, place)
        return np.broadcast_to(place, points).reshape(-1)

    return every, places


def prepare_topk(op: Operator, constant: Collection[int]) -> Prepared:
    """The stable sort of `indexing_kernels.TopKKernel`, of rows."""
    n, k = op.param["n"], op.param["k"]
    (access,) = op.operands
    kept = [d for d in sorted(access.dims) if d != n]
    extent, count, largest = op.extents[n], op.extents[k], op.param["largest"]
    view = view_of(access, op.extents)
    last_of = ordered(sorted(access.dims), [*kept, n])
    outer = tuple(op.extents[d] for d in kept)
    starts = np.arange(prod(outer))[:, None] * extent
    target = sorted(op.result_dims)
    in_order = ordered([*kept, k], target)
    results = results_of(op, target)

    def run(tensors: Sequence[Array]) -> list[Array]:
        rows = last_of(view(tensors[0])).reshape(-1, extent)
        if largest:
            # Equal elements keep the order of their indices: see the kernel.
            order = np.argsort(rows[:, ::-1], axis=-1, kind="stable")[:, ::-1][:, :count]
            order = extent - 1 - order
        else:
            order = np.argsort(rows, axis=-1, kind="stable")[:, :count]
        picked = (rows.take(order + starts), order)
        return results([in_order(a.reshape(*outer, count)) for a in picked])

    return run
