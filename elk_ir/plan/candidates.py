"""Grids and factors to choose from: the raw space of plans, as numpy columns (docs/plans.md)."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np

from elk_ir.plan.domain import DimKind, Operator, Phase
from elk_ir.plan.plan import normal_form


@lru_cache(maxsize=4096)
def grid_factors(extent: int, limit: int) -> np.ndarray:
    """All grid factors of a dimension in normal form up to `limit`, ascending: int64.

    They are ⌈L / t⌉ over tiles t; there are about 2 √L of them. Those above √L are found by their
    tiles, which are below it.
    """
    factors = {1}
    if extent > 1:
        root = isqrt(extent) + 1
        factors.update(normal_form(extent, f) for f in range(1, min(limit, root) + 1))
        if limit > root:
            factors.update(-(-extent // t) for t in range(1, root + 1))
    result = np.asarray(sorted(f for f in factors if f <= limit), dtype=np.int64)
    result.flags.writeable = False
    return result


def grids(op: Operator, cores: int) -> np.ndarray:
    """All legal grids on `cores` cores: int64 (dims, n), in lexicographic order."""
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
    return columns[:, _exact_results(op, columns)]


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
def divisors(number: int) -> tuple[int, ...]:
    """Divisors in ascending order."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(sorted({*small, *(number // i for i in small)}))


@lru_cache(maxsize=65536)
def factorisation_count(number: int, parts: int) -> int:
    """How many `parts`-tuples of positive integers have a product that divides `number`."""
    if parts <= 1:
        return len(divisors(number)) if parts else 1
    return sum(factorisation_count(number // d, parts - 1) for d in divisors(number))


class DivisorTable:
    """The divisors of each of a column of numbers, up to a cap for each row."""

    def __init__(self, numbers: np.ndarray) -> None:
        values, self._group = np.unique(numbers, return_inverse=True)
        lists = [divisors(int(v)) for v in values]
        lengths = np.asarray([len(d) for d in lists], dtype=np.int64)
        self._start = np.cumsum(lengths) - lengths
        self._flat = np.asarray([d for ds in lists for d in ds], dtype=np.int64)
        self._stride = int(self._flat.max(initial=1)) + 1
        # Ascending over groups and, within one, over divisors: a cap is found by bisection.
        self._keys = np.repeat(np.arange(values.size), lengths) * self._stride + self._flat

    def up_to(self, caps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every row with every divisor of at most its cap: (row numbers, divisors)."""
        bound = self._group * self._stride + np.minimum(caps, self._stride - 1)
        count = np.searchsorted(self._keys, bound, side="right") - self._start[self._group]
        rows, position = ragged(count)
        return rows, self._flat[self._start[self._group][rows] + position]


def expand_factors(shared: np.ndarray, caps: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Every row with every tuple of factors, one a cap, the i-th at most caps[i][row], whose
    product divides shared[row]: (row numbers, int64 (len(caps), n))."""
    rows = np.arange(shared.size)
    rest = shared
    factors = np.ones((0, shared.size), dtype=np.int64)
    for cap in caps:
        picked, factor = DivisorTable(rest).up_to(cap[rows])
        rows = rows[picked]
        rest = rest[picked] // factor
        factors = np.vstack([factors[:, picked], factor])
    return rows, factors


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
