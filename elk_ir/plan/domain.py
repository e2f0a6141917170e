"""What a structured operator computes, free of IR: iteration domain, accesses, phases.

An operator iterates over named dimensions. Each operand and result is accessed through one affine
expression an axis. Tiling, footprint, FLOPs, cost and numbers all follow from this description.
Operators that are not one body have phases: `local` turns operand tiles into statistics,
`combine` merges the statistics of several tiles of a reduction, `apply` turns them into results.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any


class DimKind(StrEnum):
    """How an iteration dimension may be split over cores."""

    PARALLEL = "parallel"
    REDUCTION = "reduction"
    LOCAL = "local"
    """Iterated inside one core only (a window, the head dimension of attention)."""


class Phase(StrEnum):
    """When an operand is read."""

    LOCAL = "local"
    APPLY = "apply"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Dim:
    """An iteration dimension of `extent` points."""

    name: str
    extent: int
    kind: DimKind = DimKind.PARALLEL


@dataclass(frozen=True, slots=True)
class AxisExpr:
    """Index along one tensor axis: sum of coefficient x dimension, plus `offset`."""

    terms: tuple[tuple[int, int], ...] = ()
    offset: int = 0

    @property
    def simple_dim(self) -> int | None:
        """The dimension, if the axis is exactly that dimension."""
        if self.offset == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def size(self, tile: tuple[int, ...]) -> int:
        """Elements in the image of a tile of `tile` points a dimension."""
        return 1 + sum(abs(k) * (tile[d] - 1) for d, k in self.terms)


@dataclass(frozen=True)
class Access:
    """How a tensor of `shape` is read or written. `dtype` is a numpy (or ml_dtypes) name.

    `neutral` is what elements outside the tensor or the valid tile read as.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[AxisExpr, ...]
    phase: Phase = Phase.LOCAL
    neutral: float | None = 0.0

    @cached_property
    def dims(self) -> frozenset[int]:
        """D(v): the iteration dimensions on which the index depends."""
        return frozenset(d for axis in self.axes for d, _ in axis.terms)

    @cached_property
    def simple(self) -> dict[int, int]:
        """Dimension -> axis, for dimensions that occur exactly once, as a whole axis."""
        counts: dict[int, int] = {}
        for axis in self.axes:
            for d, _ in axis.terms:
                counts[d] = counts.get(d, 0) + 1
        return {
            axis.simple_dim: j
            for j, axis in enumerate(self.axes)
            if axis.simple_dim is not None and counts[axis.simple_dim] == 1
        }

    def block_shape(self, tile: tuple[int, ...]) -> tuple[int, ...]:
        """Elements of the image of a tile, an axis."""
        return tuple(axis.size(tile) for axis in self.axes)

    def read_elements(self, extents: tuple[int, ...]) -> int:
        """Elements of the box that a domain of `extents` reads: the tensor, or a part of it."""
        total = 1
        for axis, extent in zip(self.axes, self.shape, strict=True):
            low = axis.offset + sum(min(k, 0) * (extents[d] - 1) for d, k in axis.terms)
            high = axis.offset + sum(max(k, 0) * (extents[d] - 1) for d, k in axis.terms)
            total *= max(min(high, extent - 1) - max(low, 0) + 1, 0)
        return total


@dataclass(frozen=True, slots=True)
class Stat:
    """A statistic carried from `local` to `apply`: one value per point of `dims`."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    neutral: float


@dataclass(frozen=True)
class Operator:
    """A structured operator. `params` are what its kernel needs beyond the accesses (hashable)."""

    kind: str
    dims: tuple[Dim, ...]
    operands: tuple[Access, ...]
    results: tuple[Access, ...]
    stats: tuple[Stat, ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    flops_per_point: float = 0.0

    @cached_property
    def param(self) -> dict[str, Any]:
        """`params` as a dictionary."""
        return dict(self.params)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Extent of each iteration dimension."""
        return tuple(d.extent for d in self.dims)

    @cached_property
    def reductions(self) -> tuple[int, ...]:
        """The reduction dimensions."""
        return tuple(i for i, d in enumerate(self.dims) if d.kind is DimKind.REDUCTION)

    @cached_property
    def result_dims(self) -> frozenset[int]:
        """Dimensions that occur in some result."""
        return frozenset(d for r in self.results for d in r.dims)

    @property
    def broadcasts_back(self) -> bool:
        """Whether `apply` runs over a reduction dimension (softmax, norms): every core of a
        reduction group then needs the merged statistics."""
        return any(d in self.result_dims for d in self.reductions)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole operator (a multiply-add counts two)."""
        return self.flops_per_point * prod(self.extents)

    def dim(self, name: str) -> int:
        """Position of the dimension called `name`. Raises KeyError."""
        for i, d in enumerate(self.dims):
            if d.name == name:
                return i
        raise KeyError(name)
