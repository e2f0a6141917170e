"""Step sizes that minimise the squared error of quantisation.

The step s of a set of numbers x minimises |x - s·q|², q = clip(round(x / s), low, high). For fixed
integers q the best step is <x, q> / <q, q> (the point where the gradient that LSQ descends is zero
for this loss), so the two are computed in turn, from several starts, and the best pair is kept.
The first start is that of LSQ (Esser et al., 2020), 2 mean|x| / √high; the others are fractions of
the step that covers the largest number.
"""

from __future__ import annotations

import numpy as np

from elk_ir.quant.integers import FLOAT8, integer_range

ROUNDS = 4
"""Alternations from each start; more change the error by less than a thousandth."""

FRACTIONS = (1.0, 0.8, 0.6, 0.4)
"""Starts, as shares of the step that saturates nothing."""

CHUNK_ELEMENTS = 1 << 20
"""Numbers that are worked on at a time: bounds the memory of fitting a large weight."""

MAX_SAMPLES = 1 << 16
"""Numbers of one tensor that a step is fitted on, evenly spaced if there are more."""


def fit_steps(rows: np.ndarray, dtype: str) -> np.ndarray:
    """The step of each row of `rows` (sets, elements) for a narrow type: float32 (sets,).

    A row of zeros has step 1. Each row's step depends on that row alone. The precision of a float
    type is relative, so its step only has to bring the largest number into its range.
    """
    if dtype in FLOAT8:
        size = np.abs(rows).max(axis=1, initial=0).astype(np.float32)
        return np.where(size > 0, size / np.float32(FLOAT8[dtype]), 1).astype(np.float32)
    low, high = integer_range(dtype)
    high = max(high, 1)
    sets, elements = rows.shape
    steps = np.ones(sets, np.float32)
    if not elements:
        return steps
    chunk = max(1, CHUNK_ELEMENTS // elements)
    for start in range(0, sets, chunk):
        part = np.asarray(rows[start : start + chunk], np.float32)
        # Starts that overflow are never the best ones.
        with np.errstate(over="ignore", invalid="ignore"):
            steps[start : start + chunk] = _fit(part, low, high)
    return steps


def _fit(x: np.ndarray, low: int, high: int) -> np.ndarray:
    size = np.abs(x)
    top, mean = size.max(axis=1), size.mean(axis=1, dtype=np.float64)
    # A step below float32's smallest normal number would divide to infinity.
    alive = top > high * np.finfo(np.float32).tiny
    best = np.where(alive, top / high, 1).astype(np.float32)
    if -low > high:
        # Where the far end is negative the range's extra value may be what covers it.
        best = np.where(alive, np.maximum(x.max(axis=1) / high, x.min(axis=1) / low), 1)
        best = best.astype(np.float32)
    starts = [2 * mean / np.sqrt(high), *(f * best.astype(np.float64) for f in FRACTIONS)]
    error = np.full(len(x), np.inf)
    for start in starts:
        step = np.where(alive, start, 1).astype(np.float32)
        for _ in range(ROUNDS):
            q = np.clip(np.rint(x / step[:, None]), low, high)
            squares = np.einsum("ij,ij->i", q, q)
            products = np.einsum("ij,ij->i", x, q)
            good = alive & (squares > 0) & (products > 0)
            step = np.where(good, products / np.where(good, squares, 1), step).astype(np.float32)
        q = np.clip(np.rint(x / step[:, None]), low, high)
        rest = x - q * step[:, None]
        now = np.einsum("ij,ij->i", rest, rest).astype(np.float64)
        better = alive & (now < error)
        best, error = np.where(better, step, best), np.where(better, now, error)
    return best


def fit_step(sample: np.ndarray, dtype: str) -> float:
    """One step for all numbers of an array (of which `MAX_SAMPLES` are looked at)."""
    flat = np.asarray(sample).reshape(-1)
    if flat.size > MAX_SAMPLES:
        flat = flat[np.linspace(0, flat.size - 1, MAX_SAMPLES).astype(np.int64)]
    return float(fit_steps(flat.astype(np.float32)[None], dtype)[0])


def channel_rows(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """`array` as (channels, elements): one row for each index of the axes `axes`, in order."""
    rest = [a for a in range(array.ndim) if a not in axes]
    moved = array.transpose(*axes, *rest)
    count = int(np.prod([array.shape[a] for a in axes], dtype=np.int64))
    return moved.reshape(count, -1)


def channel_steps(array: np.ndarray, dtype: str, axes: tuple[int, ...]) -> np.ndarray:
    """Steps of each channel: float32, of the extents of `axes` (of shape (1,) without axes)."""
    shape = tuple(array.shape[a] for a in axes) or (1,)
    return fit_steps(channel_rows(array, axes), dtype).reshape(shape)


def quantize_channels(array: np.ndarray, dtype: str, axes: tuple[int, ...]) -> np.ndarray:
    """The array's integers with the steps of `channel_steps`."""
    from elk_ir.quant.integers import quantize_array

    steps = channel_steps(array, dtype, axes)
    shape = tuple(n if a in axes else 1 for a, n in enumerate(array.shape))
    ordered = steps.reshape(tuple(array.shape[a] for a in axes) or (1,) * array.ndim)
    if axes:
        # `axes` ascend, so that the steps only need axes of one element between them.
        ordered = ordered.reshape(shape)
    return quantize_array(array, ordered, dtype)
