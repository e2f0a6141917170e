"""Who sends how many elements to whom in a change of layout: `plan.moves` without addresses.

The same rule, so the same senders (a test compares the two): a core takes each part of its box
from itself if it can, else the requesters of a box are spread over its holders in order. Only
cores and sizes are needed here, which makes full-size chips several times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from elk_ir.plan.layout import Layout

_TABLE = 1 << 23
"""Entries up to which a table of boxes is direct."""

_PIECE = 1 << 18
"""Transfers that are worked on at a time: what that takes beside them is little."""


def _integers(limit: int) -> type[np.signedinteger]:
    """The type of numbers below `limit`: a large program has many millions of transfers, and what
    is worked out for each of them is most of the memory that a simulation takes."""
    return np.int32 if limit <= 1 << 31 else np.int64


def transfers(
    source: Layout, target: Layout, axis: int | None = None, start: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(source core, target core, elements), integers as narrow as will do, of every transfer of
    `moves` with the same arguments, in the order of target cores; sends of a core to itself
    included."""
    rank = len(target.axes)
    s_core, s_bounds = _held(source)
    t_core, t_bounds = _held(target)
    if axis is not None:
        s_bounds = s_bounds.copy()
        s_bounds[:, axis] += start
    rows = np.arange(t_core.size, dtype=np.int32)
    size = np.ones(t_core.size, dtype=_integers(prod(target.shape) + 1))
    key = np.zeros(t_core.size, dtype=np.int32)
    s_key = np.zeros(s_core.size, dtype=np.int64)
    span = 1
    whole = True
    for j in range(rank):
        intervals, s_id = _intervals(s_bounds[:, j])
        wanted, t_id = _intervals(t_bounds[:, j])
        counts, candidates, lengths = _overlaps(wanted, intervals)
        lengths = lengths.astype(size.dtype)
        s_key = s_key * len(intervals) + s_id
        span *= len(intervals)
        key = key.astype(_integers(span), copy=False)
        candidates = candidates.astype(key.dtype)
        of_row = t_id[rows]
        if whole and counts.size and bool((counts == 1).all()):
            # One candidate for everybody: nothing to expand.
            key = key * len(intervals) + candidates[of_row]
            size = size * lengths[of_row]
        else:
            begin = np.cumsum(counts) - counts
            times = counts[of_row]
            ends = np.cumsum(times)
            total = int(ends[-1]) if ends.size else 0
            at = np.arange(total, dtype=_integers(total + counts.size))
            at += np.repeat((begin[of_row] - (ends - times)).astype(at.dtype), times)
            rows = np.repeat(rows, times)
            key = np.repeat(key * len(intervals), times)
            size = np.repeat(size, times)
            for part in _pieces(total):
                key[part] += candidates[at[part]]
                size[part] *= lengths[at[part]]
            del at
        if span > _TABLE and j + 1 < rank:
            boxes, s_key = np.unique(s_key, return_inverse=True)
            s_key = s_key.reshape(-1)
            key, found = _number(key, boxes, span)
            rows, key, size = rows[found], key[found], size[found]
            span = boxes.size
    boxes, s_key = np.unique(s_key, return_inverse=True)
    key, found = _number(key, boxes, span)
    if not found.all():
        rows, key, size = rows[found], key[found], size[found]
    receiver = t_core.astype(np.min_scalar_type(int(t_core.max(initial=0))))[rows]
    del rows
    return _senders(s_key.reshape(-1), s_core, key, receiver), receiver, size


def _pieces(count: int) -> Iterator[slice]:
    """`count` transfers, `_PIECE` at a time."""
    return (slice(at, min(at + _PIECE, count)) for at in range(0, count, _PIECE))


def _held(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Core and bounds (n, rank, 2) of every block that is not empty, core by core."""
    rank = len(layout.axes)
    slots = prod(layout.slots)
    bounds = layout.bounds.reshape(layout.cores * slots, rank, 2)
    cores = np.repeat(np.arange(layout.cores, dtype=np.int32), slots)
    kept = layout.held.reshape(-1)
    return (cores, bounds) if kept.all() else (cores[kept], bounds[kept])


def _intervals(bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct (lo, hi) rows, ordered, and the number of each row's."""
    width = int(bounds[:, 1].max(initial=0)) + 1
    values, number = np.unique(bounds[:, 0] * width + bounds[:, 1], return_inverse=True)
    return np.stack(np.divmod(values, width), axis=1), number.reshape(-1)


def _overlaps(
    wanted: np.ndarray, intervals: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each wanted interval, how many others overlap it; all of these in order, and by how
    much. Where one is exactly the wanted interval only that counts. Both come ordered by lo."""
    lo, hi = intervals[:, 0], intervals[:, 1]
    if (hi[1:] < hi[:-1]).any():
        return _nested_overlaps(wanted, intervals)
    # Ordered by both ends: what overlaps is one range.
    first = np.searchsorted(hi, wanted[:, 0], side="right")
    last = np.searchsorted(lo, wanted[:, 1], side="left")
    width = int(max(hi.max(initial=0), wanted.max(initial=0))) + 1
    codes, code = lo * width + hi, wanted[:, 0] * width + wanted[:, 1]
    at = np.minimum(np.searchsorted(codes, code), max(codes.size - 1, 0))
    exact = codes[at] == code if codes.size else np.zeros(code.size, dtype=bool)
    first, last = np.where(exact, at, first), np.where(exact, at + 1, last)
    counts = np.maximum(last - first, 0)
    ends = np.cumsum(counts)
    candidates = np.arange(int(ends[-1]) if ends.size else 0)
    candidates += np.repeat(first - (ends - counts), counts)
    which = np.repeat(np.arange(counts.size), counts)
    length = np.minimum(hi[candidates], wanted[which, 1])
    return counts, candidates, length - np.maximum(lo[candidates], wanted[which, 0])


def _nested_overlaps(
    wanted: np.ndarray, intervals: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for intervals that contain one another, pair by pair."""
    length = np.minimum(wanted[:, None, 1], intervals[None, :, 1])
    length -= np.maximum(wanted[:, None, 0], intervals[None, :, 0])
    overlap = length > 0
    same = (wanted[:, None, 0] == intervals[None, :, 0]) & (
        wanted[:, None, 1] == intervals[None, :, 1]
    )
    exact = same.any(axis=1)
    overlap[exact] = same[exact]
    which, candidates = np.nonzero(overlap)
    return overlap.sum(axis=1), candidates, length[which, candidates]


def _number(key: np.ndarray, boxes: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray]:
    """Position of each key among `boxes` (ordered, below span), and whether it is there."""
    if span <= _TABLE:
        table = np.full(span, -1, dtype=np.int32)
        table[boxes] = np.arange(boxes.size)
        number = table[key]
        return number, number >= 0
    number = np.minimum(np.searchsorted(boxes, key), max(boxes.size - 1, 0))
    return number, boxes[number] == key if boxes.size else key < 0


def _senders(
    s_key: np.ndarray, s_core: np.ndarray, key: np.ndarray, core: np.ndarray
) -> np.ndarray:
    """The core that sends box `key` to each requester `core`."""
    if key.size == 0:
        return key
    boxes = int(s_key.max()) + 1
    order = np.argsort(s_key, kind="stable")
    held, count = s_core[order].astype(np.int32), np.bincount(s_key, minlength=boxes)
    first = np.cumsum(count) - count
    among, seen = np.zeros(boxes, dtype=np.int64), np.zeros(boxes, dtype=np.int64)
    for part in _pieces(key.size):
        among += np.bincount(key[part], minlength=boxes)
    own = _holders(s_key, s_core, int(core.max()))
    sender = np.empty(key.size, dtype=np.min_scalar_type(int(max(held.max(), core.max()))))
    for part in _pieces(key.size):
        box = key[part]
        # Rank of each requester among those of the same box: they come in order of their cores.
        by = np.argsort(box.astype(np.uint16) if boxes <= 1 << 16 else box, kind="stable")
        ordered = box[by]
        begin = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        run = np.diff(np.append(begin, ordered.size))
        rank = np.empty(box.size, dtype=np.int64)
        rank[by] = np.arange(box.size) - np.repeat(begin - seen[ordered[begin]], run)
        seen[ordered[begin]] += run
        other = held[first[box] + rank * count[box] // among[box]]
        sender[part] = np.where(own(box, core[part]), core[part], other)
    return sender


def _holders(
    s_key: np.ndarray, s_core: np.ndarray, last: int
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Whether each core (at most `last`) of a row holds the box beside it in another row itself."""
    cores = max(int(s_core.max()), last) + 1
    if s_core.size == np.unique(s_core).size:
        own = np.full(cores, -1, dtype=np.int64)
        own[s_core] = s_key
        return lambda box, core: own[core] == box
    pairs = np.unique(s_key * cores + s_core)

    def found(box: np.ndarray, core: np.ndarray) -> np.ndarray:
        wanted = box.astype(np.int64) * cores + core
        at = np.minimum(np.searchsorted(pairs, wanted), pairs.size - 1)
        return pairs[at] == wanted

    return found
