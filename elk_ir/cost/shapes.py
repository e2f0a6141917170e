"""What a cost formula needs to know of a sub-tile: products, volumes and bytes, batched.

Sub-tiles are int64 arrays (n, dims). Pure functions; everything about an operator that does not
depend on the sub-tile is derived once and cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elk_ir.numerics.body import Body, dtype_of
from elk_ir.plan.domain import Access, Operator, Phase


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction as batched matrix products: which dimensions make up b, m, n and k."""

    left: int
    right: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    inner: tuple[int, ...]


@lru_cache(maxsize=4096)
def product_of(op: Operator) -> Product | None:
    """The two-operand product that `op` computes in its local phase; None if it is none.

    Dimensions in both operands and in the statistic are batch, in one of them only rows or
    columns, in none of the statistic's the inner product (windows of a convolution included:
    its im2col form).
    """
    local = [v for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL]
    if len(local) != 2 or len(op.stats) != 1:
        return None
    a, b = (op.operands[v].dims for v in local)
    out = frozenset(op.stats[0].dims)
    every = range(len(op.dims))
    return Product(
        local[0],
        local[1],
        tuple(d for d in every if d in a and d in b and d in out),
        tuple(d for d in every if d in a and d not in b and d in out),
        tuple(d for d in every if d in b and d not in a and d in out),
        tuple(d for d in every if d in a | b and d not in out),
    )


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Which dimensions of attention make up its two products: for each of `batch`, `rows` queries
    against `keys` of length `head`, then weights (rows x keys) times values (keys x columns)."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    head: tuple[int, ...]
    columns: tuple[int, ...]


@lru_cache(maxsize=1024)
def attention_of(op: Operator) -> AttentionShape:
    """The products of an attention operator (operands query, key, value, optionally a mask).
    Queries that share keys and values (grouped heads) are rows."""
    query, key = op.operands[0].dims, op.operands[1].dims
    rows = frozenset(op.stats[0].dims)
    out = frozenset(op.stats[2].dims)
    return AttentionShape(
        batch=tuple(sorted(rows & key)),
        rows=tuple(sorted(rows - key)),
        keys=op.reductions,
        head=tuple(sorted((query & key) - rows)),
        columns=tuple(sorted(out - rows)),
    )


def multiply_adds(op: Operator, tiles: np.ndarray) -> np.ndarray:
    """Multiply-adds (or their equal in scalar operations) of the local phase: float64 (n,)."""
    if op.kind == "attention":
        s = attention_of(op)
        scores = volume(tiles, s.batch) * volume(tiles, s.rows) * volume(tiles, s.keys)
        return scores * (volume(tiles, s.head) + volume(tiles, s.columns))
    points = volume(tiles, tuple(range(len(op.dims))))
    return points * max(1.0, op.flops_per_point / 2.0)


def volume(tiles: np.ndarray, dims: tuple[int, ...] | frozenset[int]) -> np.ndarray:
    """Points of the sub-tiles along `dims`: float64 (n,)."""
    result = np.ones(tiles.shape[0], dtype=np.float64)
    for d in sorted(dims):
        result *= tiles[:, d]
    return result


def block_elements(access: Access, tiles: np.ndarray) -> np.ndarray:
    """Elements of the image of each sub-tile under an access: float64 (n,)."""
    result = np.ones(tiles.shape[0], dtype=np.float64)
    for axis in access.axes:
        size = np.ones(tiles.shape[0], dtype=np.float64)
        for d, k in axis.terms:
            size += abs(k) * (tiles[:, d] - 1.0)
        result *= np.maximum(size, 0.0)
    return result


def itemsize(dtype: str) -> int:
    """Bytes of one element as stored on a core."""
    return dtype_of(dtype).itemsize


def body_flops(body: Body | None) -> float:
    """Scalar operations a point of a body; 0 for none."""
    return 0.0 if body is None else body.flops
