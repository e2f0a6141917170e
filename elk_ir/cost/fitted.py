"""Fitted tiles and transfers over a base model: measured where it was measured, flagged elsewhere.

A tile is priced by a fit if the fit covers its shape, its type and the chip's rate. Otherwise the
base's closed form prices it, and `flags` says so. A fitted kind is never cheaper than the roofline
of the chip's rates, which is also its floor: blocks of a tile have at least its multiply-adds and
bytes, so no cut goes below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elk_ir.cost.device import IpuFormulas, Roofline
from elk_ir.cost.fit_files import FitSet
from elk_ir.cost.linear_tree import Fit
from elk_ir.cost.shapes import itemsize, product_of, volume
from elk_ir.plan.domain import DimKind, Operator


@dataclass(frozen=True, slots=True)
class TileShape:
    """How an operator's sub-tiles read as rows of a fit: one group of dimensions a column.
    `repeats` are dimensions over which the tile is computed anew (groups of a convolution)."""

    kind: str
    columns: tuple[tuple[int, ...], ...]
    repeats: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def tile_shape(op: Operator) -> TileShape | None:
    """The kind of tile that the local phase of `op` is; None if no fit can describe it."""
    match op.kind:
        case "contract":
            return _product_shape(op)
        case "reduce":
            return _reduction_shape(op)
        case _:
            return None


def _windowed(op: Operator, operand: int) -> frozenset[int]:
    """Dimensions in axes of an operand that are read through windows or strides; not those that
    only number the channels of groups."""
    found: set[int] = set()
    for axis in op.operands[operand].axes:
        dims = [d for d, _ in axis.terms]
        window = any(op.dims[d].kind is DimKind.LOCAL for d in dims)
        if axis.simple_dim is None and (window or len(dims) == 1):
            found.update(dims)
    return frozenset(found)


def _product_shape(op: Operator) -> TileShape | None:
    product = product_of(op)
    if product is None:
        return None
    left = tuple(d for d in product.rows if d in _windowed(op, product.left))
    right = tuple(d for d in product.cols if d in _windowed(op, product.right))
    if left and right:
        return None
    if not left and not right:
        if any(_windowed(op, v) for v in (product.left, product.right)):
            return None
        return TileShape("product", (product.batch, product.rows, product.cols, product.inner))
    pixels, rows, cols = (
        (left, product.rows, product.cols) if left else (right, product.cols, product.rows)
    )
    batch = tuple(d for d in rows if d not in pixels)
    window = tuple(d for d in product.inner if op.dims[d].kind is DimKind.LOCAL)
    channels = tuple(d for d in product.inner if d not in window)
    return TileShape("conv", (batch, channels, cols, pixels, window), product.batch)


def _reduction_shape(op: Operator) -> TileShape | None:
    out = op.stats[0].dims
    inner = tuple(sorted(op.operands[0].dims - frozenset(out)))
    windowed = _windowed(op, 0)
    if not windowed:
        return TileShape("reduction", (out, inner))
    if any(op.dims[d].kind is not DimKind.LOCAL for d in inner):
        return None
    pixels = tuple(d for d in out if d in windowed)
    return TileShape("pool", (tuple(d for d in out if d not in pixels), pixels, inner))


@dataclass(frozen=True)
class FittedRoofline(Roofline):
    """Fits over the roofline of the chip's rates."""

    fits: FitSet

    @property
    def name(self) -> str:
        """How reports name the model."""
        return self.fits.name

    def _fit(self, op: Operator) -> tuple[Fit, TileShape] | None:
        shape = tile_shape(op)
        fit = None if shape is None else self.fits.of(shape.kind)
        return None if fit is None or shape is None else (fit, shape)

    def _covered(
        self, op: Operator, tiles: np.ndarray, fit: Fit, shape: TileShape
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of `tiles` as the fit sees them, and which of them it covers."""
        shapes = np.column_stack([volume(tiles, dims) for dims in shape.columns])
        dtype = op.operands[0].dtype
        measured = itemsize(dtype) == fit.element_bytes and (
            fit.macs_per_cycle in (0.0, self.mac_rate(dtype))
        )
        return shapes, fit.covers(shapes) if measured else np.zeros(tiles.shape[0], dtype=bool)

    def tile_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The local phase on one sub-tile each, in cycles: the fit's where it was measured."""
        found = self._fit(op)
        if found is None:
            return super().tile_cycles(op, tiles)
        fit, shape = found
        shapes, inside = self._covered(op, tiles, fit, shape)
        cycles = np.zeros(tiles.shape[0])
        if inside.any():
            cycles[inside] = fit.predict(shapes[inside])
            cycles *= volume(tiles, shape.repeats)
        if not inside.all():
            cycles[~inside] = super().tile_cycles(op, tiles[~inside])
        return np.maximum(cycles, Roofline.tile_cycles(self, op, tiles))

    def floor_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The roofline for fitted kinds, which `tile_cycles` never goes below."""
        if self._fit(op) is None:
            return super().floor_cycles(op, tiles)
        return Roofline.tile_cycles(self, op, tiles)

    def flags(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """bool (n,): sub-tiles that their fit does not cover; without a fit, what the base says."""
        found = self._fit(op)
        if found is None:
            return super().flags(op, tiles)
        return ~self._covered(op, tiles, *found)[1]

    def shift_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """One ring shift, by the fitted line if there is one."""
        line = self.fits.of("shift")
        return super().shift_cycles(size_bytes) if line is None else _along(line, size_bytes)

    def exchange_cycles(self, bytes_in: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
        """One exchange; a fitted line counts the larger of what a core receives and sends."""
        line = self.fits.of("exchange")
        if line is None:
            return super().exchange_cycles(bytes_in, bytes_out)
        return _along(line, np.maximum(bytes_in, bytes_out))

    def copy_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """Copying within a core, by the fitted line if there is one."""
        line = self.fits.of("copy")
        return super().copy_cycles(size_bytes) if line is None else _along(line, size_bytes)

    def fill_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """Filling memory, by the fitted line if there is one."""
        line = self.fits.of("fill")
        return super().fill_cycles(size_bytes) if line is None else _along(line, size_bytes)


@dataclass(frozen=True)
class FittedIpu(FittedRoofline, IpuFormulas):
    """Fits over the published tile formulas of the IPU MK2."""


def _along(line: Fit, size_bytes: np.ndarray) -> np.ndarray:
    """Cycles of transfers on a fitted line; nothing takes no time."""
    size = np.asarray(size_bytes, dtype=np.float64)
    return np.where(size > 0, line.intercept + line.slope * size, 0.0)
