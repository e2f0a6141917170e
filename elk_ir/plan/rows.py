"""Distinct rows of an integer table."""

from __future__ import annotations

import numpy as np

_LARGEST = 1 << 62


def unique_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`np.unique(table, axis=0, return_inverse=True)` of integers (n, …): the distinct rows, in
    lexicographic order, and for each row the one that it equals.

    A row is packed into one integer where the ranges of the columns allow it, which sorts some
    hundred times faster than rows do.
    """
    if table.size:
        flat = table.reshape(len(table), -1)
        low = flat.min(axis=0)
        spans = [int(n) for n in flat.max(axis=0) - low + 1]
        strides, stride = [0] * len(spans), 1
        for j in reversed(range(len(spans))):
            strides[j] = stride
            stride *= spans[j]
        if stride < _LARGEST:
            packed = (flat - low) @ np.asarray(strides, dtype=np.int64)
            _, first, which = np.unique(packed, return_index=True, return_inverse=True)
            return table[first], which.reshape(-1)
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    return distinct, which.reshape(-1)
