"""Which elements move where when a tensor changes its layout.

Every core takes each part of its box from a core that holds it: from itself if it can, otherwise
requesters are spread over the holders in order, so that neighbours read from neighbours. The
result is derived by intersecting boxes axis by axis, on the distinct intervals of each axis, so
that its cost follows the size of the result and not the square of the number of cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from elk_ir.plan.layout import Layout
from elk_ir.plan.rows import unique_rows


@dataclass(frozen=True)
class Moves:
    """Box transfers: core and first element (in the core's memory) of source and destination,
    and the box `shape`; element strides of both memories follow from the layouts' blocks."""

    source_core: np.ndarray
    source_element: np.ndarray
    target_core: np.ndarray
    target_element: np.ndarray
    shape: np.ndarray
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    @property
    def elements(self) -> np.ndarray:
        """Elements of each transfer."""
        return self.shape.prod(axis=1)

    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Source core, source element, target core and target element of every single element."""
        parts: list[tuple[np.ndarray, ...]] = []
        shapes, which = unique_rows(self.shape)
        for i, shape in enumerate(shapes):
            chosen = np.flatnonzero(which == i)
            source, target = (
                _offsets(tuple(shape), strides)
                for strides in (self.source_strides, self.target_strides)
            )
            n = source.size
            parts.append(
                (
                    np.repeat(self.source_core[chosen], n),
                    (self.source_element[chosen, None] + source).reshape(-1),
                    np.repeat(self.target_core[chosen], n),
                    (self.target_element[chosen, None] + target).reshape(-1),
                )
            )
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty, empty
        a, b, c, d = (np.concatenate(column) for column in zip(*parts, strict=True))
        return a, b, c, d


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    out = np.zeros(1, dtype=np.int64)
    for extent, stride in zip(shape, strides, strict=True):
        out = (out[:, None] + np.arange(extent) * stride).reshape(-1)
    return out


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def _blocks(layout: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per block of every core that holds something: core, first element of its memory, origin
    (n, rank) and bounds (n, rank, 2)."""
    rank = len(layout.axes)
    per_core = prod(layout.slots)
    origins = layout.origins.reshape(layout.cores * per_core, rank)
    bounds = layout.bounds.reshape(layout.cores * per_core, rank, 2)
    cores = np.repeat(np.arange(layout.cores), per_core)
    first = np.tile(np.arange(per_core) * prod(layout.block_shape), layout.cores)
    kept = layout.held.reshape(-1)
    return cores[kept], first[kept], origins[kept], bounds[kept]


@lru_cache(maxsize=1024)
def moves(source: Layout, target: Layout, axis: int | None = None, start: int = 0) -> Moves:
    """The transfers that give every core its box of `target`. With `axis`, the source tensor is
    the part of the target tensor that begins at `start` along it; the rest does not move."""
    rank = len(target.axes)
    s_core, s_first, s_origin, s_bounds = _blocks(source)
    t_core, t_first, t_origin, t_bounds = _blocks(target)
    shift = np.zeros(rank, dtype=np.int64)
    if axis is not None:
        shift[axis] = start
    s_origin, s_bounds = s_origin + shift, s_bounds + shift[:, None]
    # Rows: pairs of a target block and a combination of distinct source intervals.
    rows = np.arange(t_core.size)
    key = np.zeros(t_core.size, dtype=np.int64)
    s_key = np.zeros(s_core.size, dtype=np.int64)
    for j in range(rank):
        intervals, s_id = unique_rows(s_bounds[:, j])
        wanted, t_id = unique_rows(t_bounds[:, j])
        overlap = (wanted[:, None, 0] < intervals[None, :, 1]) & (
            wanted[:, None, 1] > intervals[None, :, 0]
        )
        # Where a source has exactly the wanted interval, overlapping others would move it twice.
        same = (wanted[:, None] == intervals[None]).all(axis=-1)
        overlap = np.where(same.any(axis=1, keepdims=True), same, overlap)
        counts = overlap.sum(axis=1)
        candidates = np.nonzero(overlap)[1]
        begin = np.concatenate([[0], np.cumsum(counts)[:-1]]) if counts.size else counts
        of_row = t_id[rows]
        times = counts[of_row]
        repeat = np.repeat(np.arange(rows.size), times)
        within = np.arange(repeat.size) - np.repeat(np.cumsum(times) - times, times)
        picked = candidates[begin[of_row][repeat] + within] if repeat.size else repeat
        # Keys number the distinct boxes so far; combinations that no source has are dropped.
        size = len(intervals)
        boxes, s_key = np.unique(s_key * size + s_id, return_inverse=True)
        s_key = s_key.reshape(-1)
        wanted_key = key[repeat] * size + picked
        key = np.minimum(np.searchsorted(boxes, wanted_key), max(len(boxes) - 1, 0))
        exists = boxes[key] == wanted_key if len(boxes) else key.astype(bool)
        rows, key = rows[repeat][exists], key[exists]
    chosen = _choose(s_key, s_core, s_first, key, t_core[rows])
    lo = np.maximum(s_bounds[chosen, :, 0], t_bounds[rows, :, 0])
    hi = np.minimum(s_bounds[chosen, :, 1], t_bounds[rows, :, 1])
    s_strides, t_strides = row_major(source.block_shape), row_major(target.block_shape)
    return Moves(
        s_core[chosen],
        s_first[chosen] + ((lo - s_origin[chosen]) * np.asarray(s_strides, dtype=np.int64)).sum(1),
        t_core[rows],
        t_first[rows] + ((lo - t_origin[rows]) * np.asarray(t_strides, dtype=np.int64)).sum(1),
        hi - lo,
        s_strides,
        t_strides,
    )


def _choose(
    s_key: np.ndarray, s_core: np.ndarray, s_first: np.ndarray, key: np.ndarray, core: np.ndarray
) -> np.ndarray:
    """For each requester (box `key`, wanted by `core`) the source block to read: its own core's
    if it has it, else the holders in turn, requesters in the order of their numbers."""
    if key.size == 0:
        return key
    order = np.lexsort((s_first, s_core, s_key))
    cores = int(max(s_core.max(), core.max())) + 1
    held = s_key[order] * cores + s_core[order]
    low = np.searchsorted(s_key[order], key, "left")
    count = np.searchsorted(s_key[order], key, "right") - low
    own = np.minimum(np.searchsorted(held, key * cores + core), held.size - 1)
    mine = held[own] == key * cores + core
    # Rank of each requester among those that want the same box, by core number.
    by = np.lexsort((core, key))
    first = np.searchsorted(key[by], key[by], "left")
    rank, among = np.empty_like(by), np.empty_like(by)
    rank[by] = np.arange(by.size) - first
    among[by] = np.searchsorted(key[by], key[by], "right") - first
    pick = low + rank * count // among
    return order[np.where(mine, own, pick)]
