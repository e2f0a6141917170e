"""Carry out the box transfers of a change of layout: in long runs, a bounded number at a time.

A transfer of `elk_ir.plan.moves` is a box; what is contiguous in both memories is moved as one
element of a wider type, so that the index arrays stay small next to the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np

from elk_ir.plan.layout import Layout
from elk_ir.plan.moves import Moves, moves
from elk_ir.plan.rows import unique_rows

BATCH_ELEMENTS = 1 << 22
"""Elements that one batch moves at most (a single transfer may be larger)."""

KEPT_ELEMENTS = 1 << 18
"""Elements of the changes of layout whose batches are kept for the next time."""

Index = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """Some transfers of one shape. `source` and `target` are (core (n, 1), run (n, k)): where the
    k runs of each of n transfers lie, counted in runs of `run` elements from a core's first."""

    run: int
    source: Index
    target: Index


def batches_between(
    source: Layout, target: Layout, axis: int | None = None, start: int = 0
) -> Iterable[Batch]:
    """The transfers of a change of layout (as `moves` has it), in batches."""
    if target.cores * target.elements > KEPT_ELEMENTS:
        plan = moves(source, target, axis, start)
        return batches(plan, source.elements, target.elements)
    return _kept(source, target, axis, start)


@lru_cache(maxsize=1024)
def _kept(source: Layout, target: Layout, axis: int | None, start: int) -> tuple[Batch, ...]:
    plan = moves(source, target, axis, start)
    return tuple(batches(plan, source.elements, target.elements))


def batches(plan: Moves, source_row: int, target_row: int) -> Iterator[Batch]:
    """The transfers of a plan between memories of so many elements a core."""
    shapes, which = unique_rows(plan.shape)
    for i, extents in enumerate(shapes):
        shape = tuple(int(n) for n in extents)
        chosen = np.flatnonzero(which == i)
        s_first, t_first = plan.source_element[chosen], plan.target_element[chosen]
        s_offset = _offsets(shape, plan.source_strides)
        t_offset = _offsets(shape, plan.target_strides)
        run = _contiguous(shape, plan.source_strides, plan.target_strides)
        run = gcd(run, source_row, target_row)
        for first in (s_first, t_first, s_offset[::run], t_offset[::run]):
            run = gcd(run, int(np.gcd.reduce(first, initial=0)))
        run = max(run, 1)
        s_offset, t_offset = s_offset[::run] // run, t_offset[::run] // run
        step = max(1, BATCH_ELEMENTS // max(1, prod(shape)))
        for at in range(0, chosen.size, step):
            part = slice(at, at + step)
            yield Batch(
                run,
                (plan.source_core[chosen[part], None], s_first[part, None] // run + s_offset),
                (plan.target_core[chosen[part], None], t_first[part, None] // run + t_offset),
            )


def as_runs(memory: np.ndarray, run: int) -> np.ndarray:
    """Memory (cores, elements) as (cores, elements / run), each element `run` of the old ones."""
    if run == 1:
        return memory
    return memory.view(np.dtype((np.void, run * memory.dtype.itemsize)))


def _contiguous(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Elements at the end of a box that follow each other in both memories."""
    run = 1
    for extent, s, t in zip(reversed(shape), reversed(source), reversed(target), strict=True):
        if extent > 1 and not s == t == run:
            break
        run *= extent
    return run


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Offset in elements of every element of a box, row-major."""
    offsets = np.zeros(1, dtype=np.int64)
    for extent, stride in zip(shape, strides, strict=True):
        offsets = (offsets[:, None] + np.arange(extent) * stride).reshape(-1)
    return offsets
