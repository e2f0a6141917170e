"""Closed-form tile costs of one IPU MK2 core, from published fits (docs/cost-model.md).

The fits were measured at 1.325 GHz and published in the research code of Elk (MICRO'25); all are
cycles for one core with operands in its own memory. Functions take float64 or int64 arrays of
equal shape and give float64 arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def matmul_cycles(
    b: np.ndarray, m: np.ndarray, n: np.ndarray, k: np.ndarray, element_bytes: float
) -> np.ndarray:
    """b products of (m x k) by (k x n), operands of `element_bytes` (2: fp16, 4: fp32).

    b · (12 e ⌈m/6⌉⌈k/(32/e)⌉⌈n/16⌉ + 514 ⌈k/(32/e)⌉⌈n/16⌉ + 113 ⌈n/16⌉ + 173) with m >= n: the
    larger of the two streams through the matrix unit, unless it is 16 or less.
    Source: Elk's research code.
    """
    # The published rule: order so that m >= n, then swap back where m <= 16.
    swap = (m < n) & (n > 16)
    streamed, stationary = np.where(swap, n, m), np.where(swap, m, n)
    back = (m > n) & (m <= 16)
    streamed, stationary = np.where(back, n, streamed), np.where(back, m, stationary)
    return b * _oriented(streamed, stationary, k, element_bytes)


def matmul_floor_cycles(
    b: np.ndarray, m: np.ndarray, n: np.ndarray, k: np.ndarray, element_bytes: float
) -> np.ndarray:
    """The cheaper orientation of `matmul_cycles`, which no cutting into equal blocks can beat:
    every term is a product of ceilings, or a constant."""
    return b * np.minimum(_oriented(m, n, k, element_bytes), _oriented(n, m, k, element_bytes))


def _oriented(streamed: np.ndarray, stationary: np.ndarray, k: np.ndarray, e: float) -> np.ndarray:
    columns = np.ceil(stationary / 16.0)
    inner = np.ceil(k * (e / 32.0)) * columns
    return inner * (np.ceil(streamed / 6.0) * (12.0 * e) + 514.0) + (113.0 * columns + 173.0)


def dot_cycles(macs: np.ndarray, rows: np.ndarray, rate: float) -> np.ndarray:
    """Matrix-vector work as dot products: `macs` multiply-adds in `rows` dot products.

    The vector pipeline multiplies what two 64-bit loads a cycle bring: rate = local bytes a cycle
    / (2 e) multiply-adds a cycle, plus 200 cycles a call and 8 a row for its loop and the final
    sum. Source: the two loads are the machine's; the overheads are ours, chosen like the
    intercept of the unary fit.
    """
    return macs / rate + 8.0 * rows + 200.0


def binary_cycles(p: np.ndarray) -> np.ndarray:
    """Two fp16 operands to one result, p elements: min(8517, 0.75 p + 290) up to p = 16,432, else
    0.5 p + 300. Source: Elk's research code."""
    return np.where(p <= 16432, np.minimum(8517.0, 0.75 * p + 290.0), 0.5 * p + 300.0)


def unary_cycles(p: np.ndarray) -> np.ndarray:
    """One fp16 operand to one result, p elements: 0.5 p + 200. Source: Elk's research code."""
    return 0.5 * p + 200.0


def aligned_outputs(outputs: np.ndarray) -> np.ndarray:
    """Outputs of a reduction rounded up to 1, 2, 4, 8, 12, 16, 24, then to multiples of 48.

    Source: Elk's research code."""
    steps = np.asarray([1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0])
    index = np.searchsorted(steps, outputs, side="left")
    small = steps[np.minimum(index, len(steps) - 1)]
    return np.where(outputs <= 24, small, 48.0 * np.ceil(outputs / 48.0))


def reduction_cycles(outputs: np.ndarray, length: np.ndarray) -> np.ndarray:
    """`outputs` sums of `length` elements; w = aligned outputs x length:
    min(295.25, 1.5 w + 175) up to w = 480, else 0.25 w + 175. Source: Elk's research code."""
    w = aligned_outputs(outputs) * length
    return np.where(w <= 480, np.minimum(295.25, 1.5 * w + 175.0), 0.25 * w + 175.0)


def reduction_floor_cycles(outputs: np.ndarray, length: np.ndarray) -> np.ndarray:
    """0.25 w + 175 without alignment: below `reduction_cycles`, and cutting never gains."""
    return 0.25 * outputs * length + 175.0


def gather_cycles(total: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """`indices` rows of total / indices fp16 elements: 300 + ⌈total/indices/2⌉ · indices +
    indices. Source: Elk's research code."""
    count = np.maximum(indices, 1.0)
    return 300.0 + np.ceil(total / count / 2.0) * indices + indices


def slice_cycles(size_bytes: np.ndarray) -> np.ndarray:
    """A copy of n fp16 elements within a core: 0.56 n cycles, so 0.28 a byte.

    Source: Elk's research code (which adds one sync of 118 cycles; here the plan adds syncs).
    """
    return 0.28 * np.asarray(size_bytes, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Fits:
    """A set of formulas: as measured, or floors that are additive over blocks."""

    matmul: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]
    reduction: Callable[[np.ndarray, np.ndarray], np.ndarray]


MEASURED = Fits(matmul_cycles, reduction_cycles)
FLOORS = Fits(matmul_floor_cycles, reduction_floor_cycles)
