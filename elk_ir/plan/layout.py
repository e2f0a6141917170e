"""Which box of a tensor each core holds, and where its elements lie in the core's memory.

A `Layout` cuts every axis of a tensor by a chain of nested cuts. `Cut(start, size)` narrows the
interval [lo, hi) to [lo + start, min(lo + start + size, hi)), where `start` is an expression over
the core number (and the slot number, in a slotted cut). A cut with slots keeps several blocks of
one axis in one core: the blocks of a ring, in the order in which the core consumes them.

Memory: row-major over (slots of axis 0, …, slots of the last axis, block axis 0, …). A ragged
block is laid out with the strides of a full one, so an address does not depend on the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from elk_ir.plan.expr import CORE, Expr, const
from elk_ir.plan.kept import kept


@dataclass(frozen=True, slots=True)
class Cut:
    """One nested subdivision of an axis, in elements. `clip` is False for a halo or padded image,
    whose block may start before the axis or end after it; it is clipped to the axis at the end."""

    start: Expr
    size: int


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """The chain of cuts of one tensor axis of `extent` elements; `slots` blocks are kept."""

    extent: int
    cuts: tuple[Cut, ...] = ()
    slots: int = 1

    @property
    def block(self) -> int:
        """Elements of one full block along this axis."""
        return self.cuts[-1].size if self.cuts else self.extent


@dataclass(frozen=True)
class Layout:
    """The distribution of a tensor over the first `cores` cores; the others hold nothing.

    Where `guard` is given only the cores on which it evaluates to zero hold their box.
    """

    cores: int
    axes: tuple[AxisLayout, ...]
    guard: Expr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the whole tensor, in elements."""
        return tuple(a.extent for a in self.axes)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Blocks kept along each axis."""
        return tuple(a.slots for a in self.axes)

    @cached_property
    def block_shape(self) -> tuple[int, ...]:
        """Elements of a full block along each axis."""
        return tuple(a.block for a in self.axes)

    @property
    def elements(self) -> int:
        """Elements that every core reserves: slots x block, padding included."""
        return prod(self.slots) * prod(self.block_shape)

    @property
    def _boxes(self) -> tuple[np.ndarray, np.ndarray]:
        known = self.__dict__.get("small")
        if known is None:
            known = _evaluate_boxes(self)
            if known[1].nbytes <= SMALL_BYTES:
                self.__dict__["small"] = known
        return known

    @property
    def origins(self) -> np.ndarray:
        """Tensor index of each block's first element: int64 (cores, slots…, rank).

        It may be negative or past the end where the image of a tile reaches into padding.
        """
        return self._boxes[0]

    @property
    def bounds(self) -> np.ndarray:
        """The valid box of each block in tensor indices: int64 (cores, slots…, rank, 2) as
        [lo, hi), clipped to the tensor and to every enclosing cut; empty where hi <= lo."""
        return self._boxes[1]

    def intervals(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Where blocks begin and end on axis j, which depends on the core and the slot there alone:
        int64 (cores, slots of the axis); the end is clipped to the tensor, the beginning is not."""
        axis = self.axes[j]
        core, slot = np.arange(self.cores).reshape(-1, 1), np.arange(axis.slots).reshape(1, -1)
        lo = np.zeros((self.cores, axis.slots), dtype=np.int64)
        hi = np.full((self.cores, axis.slots), axis.extent, dtype=np.int64)
        for cut in axis.cuts:
            lo = lo + cut.start.evaluate(c=core, s=slot)
            hi = np.minimum(lo + cut.size, hi)
        return lo, hi

    @cached_property
    def away(self) -> np.ndarray:
        """The cores that the guard lets hold nothing: bool (cores,)."""
        if self.guard is None:
            return np.zeros(self.cores, dtype=bool)
        core = np.arange(self.cores)
        return np.broadcast_to(self.guard.evaluate(c=core, s=0) != 0, (self.cores,))

    @cached_property
    def largest(self) -> np.ndarray:
        """The largest extent of a core's blocks along each axis, 0 without any: int64 (cores,
        rank). As from `bounds`, without the product of all axes' slots."""
        found = np.zeros((self.cores, len(self.axes)), dtype=np.int64)
        for j in range(len(self.axes)):
            lo, hi = self.intervals(j)
            found[:, j] = np.maximum(hi - np.maximum(lo, 0), 0).max(axis=1)
        found[(found <= 0).any(axis=1) | self.away] = 0
        return found

    @cached_property
    def held(self) -> np.ndarray:
        """Which blocks have elements: bool (cores, slots…). A tensor without axes has one element
        on every core that the guard lets hold it."""
        held = np.asarray((self.bounds[..., 1] > self.bounds[..., 0]).all(axis=-1))
        if self.guard is not None:
            held = np.asarray(held & ~self.away.reshape(-1, *[1] * len(self.axes)))
        return held

    @cached_property
    def is_full(self) -> bool:
        """Whether every block of every core is valid in full (no ragged or padded block)."""
        extent = self.bounds[..., 1] - self.bounds[..., 0]
        return bool((extent == np.asarray(self.block_shape, dtype=np.int64)).all())


SMALL_BYTES = 1 << 16
"""Bounds that a layout keeps itself. Those of two rings on thousands of cores have 200 MB."""


def _nbytes(boxes: tuple[np.ndarray, np.ndarray]) -> int:
    return boxes[0].nbytes + boxes[1].nbytes


@kept(1 << 26, _nbytes)
def _evaluate_boxes(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    rank = len(layout.axes)
    shape = (layout.cores, *layout.slots)
    origins = np.zeros((*shape, rank), dtype=np.int64)
    bounds = np.zeros((*shape, rank, 2), dtype=np.int64)
    # An empty axis empties the box: made explicit, so that callers may test any one axis.
    empty = np.zeros(shape, dtype=bool)
    for j, axis in enumerate(layout.axes):
        wide = (layout.cores, *(axis.slots if i == j else 1 for i in range(rank)))
        lo, hi = (a.reshape(wide) for a in layout.intervals(j))
        origins[..., j] = lo
        bounds[..., j, 0] = np.maximum(lo, 0)
        bounds[..., j, 1] = hi
        empty |= hi <= np.maximum(lo, 0)
    if layout.guard is not None:
        empty |= layout.away.reshape(-1, *[1] * rank)
    np.copyto(bounds[..., 1], bounds[..., 0], where=empty[..., None])
    origins.flags.writeable = False
    bounds.flags.writeable = False
    return origins, bounds


def replicated(shape: tuple[int, ...], cores: int = 1) -> Layout:
    """Every one of `cores` cores holds the whole tensor."""
    return Layout(cores, tuple(AxisLayout(extent) for extent in shape))


def linear(shape: tuple[int, ...], axis: int, cores: int) -> Layout:
    """`axis` cut into `cores` equal blocks, core i holding block i."""
    size = -(-shape[axis] // cores)
    axes = [AxisLayout(extent) for extent in shape]
    axes[axis] = AxisLayout(shape[axis], (Cut(CORE * size + const(0), size),))
    return Layout(cores, tuple(axes))
