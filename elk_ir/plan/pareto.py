"""Non-dominated rows of a cost table, fast for a million rows and up to five costs.

A row dominates another when it is nowhere larger and somewhere smaller; of equal rows the first
one stays. The answer is a function of the rows and their order only.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 512


def pareto_mask(costs: np.ndarray) -> np.ndarray:
    """Which rows of `costs` (n, k), all to be minimised, no other row dominates: bool (n,)."""
    n, k = costs.shape
    mask = np.zeros(n, dtype=bool)
    if n == 0:
        return mask
    if k == 0:
        mask[0] = True
        return mask
    # Lexicographic order, row number last: no row is dominated by a later one.
    order = np.lexsort((np.arange(n), *(costs[:, j] for j in range(k - 1, -1, -1))))
    rest = np.ascontiguousarray(costs[order].T)
    index = order
    # A few rows with a small sum dominate most others: drop those first.
    if n > 4 * _BLOCK:
        keep = _not_covered_by_strong(rest)
        rest, index = np.ascontiguousarray(rest[:, keep]), index[keep]
    kept: list[int] = []
    while index.size:
        block, ids = rest[:, :_BLOCK], index[:_BLOCK]
        alive = _block_front(block)
        front = block[:, alive]
        kept.extend(ids[alive].tolist())
        rest, index = rest[:, _BLOCK:], index[_BLOCK:]
        if index.size:
            keep = ~covered(front, rest)
            rest, index = np.ascontiguousarray(rest[:, keep]), index[keep]
    mask[np.asarray(kept, dtype=np.int64)] = True
    return mask


def covered(front: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Which columns of `costs` (k, n) some column of `front` (k, f) is nowhere larger than.

    The few columns of `front` that cover most of a sample go over all of `costs`; what is left is
    compared block by block with those that can matter.
    """
    n, f = costs.shape[1], front.shape[1]
    result = np.zeros(n, dtype=bool)
    if not n or not f:
        return result
    alive = np.arange(n)
    if n > 4 * _BLOCK:
        for j in _strongest(front, costs[:, :: n // _BLOCK]):
            hit = _at_least(costs, front[:, j])
            result[alive[hit]] = True
            keep = np.flatnonzero(~hit)
            alive, costs = alive[keep], costs[:, keep]
    order = np.argsort(costs[0], kind="stable")
    alive, costs = alive[order], costs[:, order]
    front = front[:, np.argsort(front[0], kind="stable")]
    for start in range(0, alive.size, _BLOCK):
        block = costs[:, start : start + _BLOCK]
        near = front[:, : int(np.searchsorted(front[0], block[0, -1], side="right"))]
        near = near[:, (near <= block.max(axis=1, keepdims=True)).all(axis=0)]
        if near.shape[1]:
            hit = near[0][:, None] <= block[0]
            for low, row in zip(near[1:], block[1:], strict=True):
                hit &= low[:, None] <= row
            result[alive[start : start + _BLOCK]] = hit.any(axis=0)
    return result


def _at_least(costs: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Columns of `costs` that are nowhere smaller than `point`."""
    hit = np.ones(costs.shape[1], dtype=bool)
    for row, low in zip(costs, point, strict=True):
        hit &= row >= low
    return hit


def _strongest(front: np.ndarray, sample: np.ndarray) -> list[int]:
    """Columns of `front` that together cover most of `sample`, greedily, at most 16."""
    hit = np.ones((front.shape[1], sample.shape[1]), dtype=bool)
    for low, row in zip(front, sample, strict=True):
        hit &= low[:, None] <= row
    chosen: list[int] = []
    while len(chosen) < 16:
        counts = hit.sum(axis=1)
        best = int(counts.argmax())
        if counts[best] < max(2, sample.shape[1] // 64):
            break
        chosen.append(best)
        hit = hit[:, ~hit[best]]
    return chosen


def _block_front(block: np.ndarray) -> np.ndarray:
    """Non-dominated columns of a block (k, b) in lexicographic order, first of equals."""
    b = block.shape[1]
    worse = np.ones((b, b), dtype=bool)
    for row in block:
        worse &= row[:, None] <= row[None, :]
    # worse[i, j]: column i is nowhere larger than column j; only earlier ones count.
    return np.logical_not(np.triu(worse, 1).any(axis=0))


def _not_covered_by_strong(rest: np.ndarray) -> np.ndarray:
    """Columns that a few strong columns do not dominate (or that are the strong ones)."""
    low = rest.min(axis=1, keepdims=True)
    span = np.maximum(rest.max(axis=1, keepdims=True) - low, 1e-300)
    scaled = np.sqrt((rest - low) / span)
    alive = np.arange(rest.shape[1])
    weights = np.full((rest.shape[0] + 1, rest.shape[0]), 0.15)
    weights[0] = 1.0
    np.fill_diagonal(weights[1:], 1.0)
    for weight in np.repeat(weights, 4, axis=0):
        score = weight @ scaled[:, alive]
        best = rest[:, alive[int(score.argmin())]]
        columns = rest[:, alive]
        hit = (columns >= best[:, None]).all(axis=0) & (columns > best[:, None]).any(axis=0)
        alive = alive[~hit]
    return alive


def spread(table: np.ndarray, keep: int) -> np.ndarray:
    """At most `keep` columns of `table` (k, n), ascending: the least of each row, then again and
    again the column farthest (in the logarithms of the rows) from those chosen."""
    n = table.shape[1]
    if n <= keep:
        return np.arange(n)
    scaled = np.log1p(table)
    scaled -= scaled.min(axis=1, keepdims=True)
    scaled /= np.maximum(scaled.max(axis=1, keepdims=True), 1e-300)
    chosen = list(dict.fromkeys(int(i) for i in table.argmin(axis=1)))[:keep]
    distance = np.full(n, np.inf)
    for i in chosen:
        distance = np.minimum(distance, np.abs(scaled - scaled[:, i : i + 1]).max(axis=0))
    while len(chosen) < keep:
        best = int(distance.argmax())
        chosen.append(best)
        distance = np.minimum(distance, np.abs(scaled - scaled[:, best : best + 1]).max(axis=0))
    return np.asarray(sorted(chosen), dtype=np.int64)
