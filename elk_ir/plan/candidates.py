"""Grids and factors to choose from: the raw space of plans, as numpy columns (docs/plans.md)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from elk_ir.plan.domain import DimKind, Operator, Phase
from elk_ir.plan.plan import normal_form


@lru_cache(maxsize=4096)
def grid_factors(extent: int, limit: int) -> np.ndarray:
    """All grid factors of a dimension in normal form up to `limit`, ascending: int64.

    They are ⌈L / t⌉ over tiles t; there are about 2 √L of them.
    """
    factors = {1}
    if extent > 1:
        root = int(extent**0.5) + 1
        factors.update(normal_form(extent, f) for f in range(1, min(limit, root) + 1))
        factors.update(-(-extent // t) for t in range(1, root + 1))
    result = np.asarray(sorted(f for f in factors if f <= limit), dtype=np.int64)
    result.flags.writeable = False
    return result


def grids(op: Operator, cores: int) -> tuple[np.ndarray, bool]:
    """All legal grids on `cores` cores: int64 (dims, n), in lexicographic order; and True."""
    columns = np.ones((len(op.dims), 1), dtype=np.int64)
    used = np.ones(1, dtype=np.int64)
    for d, dim in enumerate(op.dims):
        if dim.kind is DimKind.LOCAL:
            continue
        factors = grid_factors(dim.extent, cores)
        count = np.searchsorted(factors, cores // used, side="right")
        rows, picks = ragged(count)
        columns = columns[:, rows]
        columns[d] = factors[picks]
        used = used[rows] * columns[d]
    return columns[:, _exact_results(op, columns)], True


def _exact_results(op: Operator, columns: np.ndarray) -> np.ndarray:
    """Which grids leave every result contiguous where an axis merges dimensions: an inner
    dimension may be split only if the tile of each outer one is a single point."""
    legal = np.ones(columns.shape[1], dtype=bool)
    for r in op.results:
        for axis in r.axes:
            if len(axis.terms) < 2:
                continue
            partial = np.zeros(columns.shape[1], dtype=bool)
            for d, _ in sorted(axis.terms, key=lambda term: -term[1]):
                tile = -(-op.extents[d] // columns[d])
                legal &= ~(partial & (tile != op.extents[d]))
                partial |= tile > 1
    return legal


def ragged(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, position) of every element of a ragged table with `count` elements a row."""
    rows = np.repeat(np.arange(count.size), count)
    starts = np.cumsum(count) - count
    return rows, np.arange(rows.size) - np.repeat(starts, count)


@lru_cache(maxsize=65536)
def factorisations(number: int, parts: int) -> np.ndarray:
    """All `parts`-tuples of positive integers whose product divides `number`: int64 (n, parts), in
    lexicographic order."""
    if parts == 0:
        return np.ones((1, 0), dtype=np.int64)
    rows: list[np.ndarray] = []
    for first in divisors(number):
        rest = factorisations(number // first, parts - 1)
        rows.append(np.hstack([np.full((rest.shape[0], 1), first, dtype=np.int64), rest]))
    result = np.vstack(rows)
    result.flags.writeable = False
    return result


@lru_cache(maxsize=65536)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors in ascending order."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(sorted({*small, *(number // i for i in small)}))


def factorisation_count(numbers: np.ndarray, parts: int) -> np.ndarray:
    """How many rows `factorisations` has for each number: int64."""
    values, inverse = np.unique(numbers, return_inverse=True)
    lengths = [factorisations(int(v), parts).shape[0] for v in values]
    return np.asarray(lengths, dtype=np.int64)[inverse]


def expand_factors(
    shared: np.ndarray, caps: list[np.ndarray | int], parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Every row with every tuple of `parts` factors whose product divides shared[row], the i-th
    factor at most caps[i][row]: (row numbers, int64 (parts, n))."""
    values, inverse = np.unique(shared, return_inverse=True)
    tables = [factorisations(int(s), parts) for s in values]
    length = np.asarray([t.shape[0] for t in tables], dtype=np.int64)
    start = np.cumsum(length) - length
    table = np.vstack(tables)
    rows, position = ragged(length[inverse])
    picked = table[start[inverse][rows] + position].T
    fits = np.ones(rows.size, dtype=bool)
    for factor, cap in zip(picked, caps, strict=True):
        fits &= factor <= (cap if isinstance(cap, int) else cap[rows])
    return rows[fits], picked[:, fits]


def rotatable(op: Operator) -> list[tuple[int, int]]:
    """(operand, dimension) pairs along which a ring may run, by the rules of `plan_errors`."""
    if not op.stats or op.broadcasts_back:
        return []
    accesses = (*op.operands, *op.results)
    pairs: list[tuple[int, int]] = []
    for d, dim in enumerate(op.dims):
        if dim.kind is DimKind.LOCAL:
            continue
        if any(d in a.dims and d not in a.simple for a in accesses):
            continue
        in_stats = [d in s.dims for s in op.stats]
        if dim.kind is DimKind.REDUCTION:
            if any(in_stats) and any(d not in r.simple for r in op.results):
                continue
        elif not all(in_stats) or any(d not in r.simple for r in op.results):
            # A dimension that some statistic lacks would be merged once a step.
            continue
        pairs += [
            (v, d) for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL and d in a.simple
        ]
    return sorted(pairs)


def cuttable(op: Operator, v: int) -> list[int]:
    """Dimensions along which a preload of operand v may be cut."""
    return sorted(op.operands[v].simple)
