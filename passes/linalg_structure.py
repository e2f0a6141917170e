"""Loops and maps of upstream's structured operations, as te has them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from elk_ir.dialects.te.attrs import Map
from elk_ir.passes.onnx_lowerings.axes import scaled, total
from elk_ir.passes.onnx_lowerings.context import Unsupported, static_type
from elk_ir.plan.domain import AxisExpr, Dim, DimKind


@dataclass(frozen=True)
class Structure:
    """A structured operation: extents and kinds of its loops, and a map per operand and output."""

    extents: tuple[int, ...]
    reductions: frozenset[int]
    reads: tuple[Map, ...]
    writes: tuple[Map, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions; a reduction that shares an axis with another loop is a window, which
        stays inside a core."""
        windows = {d for m in self.reads for a in m if len(a.terms) > 1 for d, _ in a.terms}
        return tuple(
            Dim(f"d{i}", n, _kind(i in self.reductions, i in windows))
            for i, n in enumerate(self.extents)
        )


def _kind(reduced: bool, window: bool) -> DimKind:
    if not reduced:
        return DimKind.PARALLEL
    return DimKind.LOCAL if window else DimKind.REDUCTION


def identity(rank: int) -> Map:
    """Loop d at axis d."""
    return tuple(AxisExpr(((d, 1),)) for d in range(rank))


def structure_of(op: LinalgStructuredOperation) -> Structure:
    """Loops and maps of an operation. Raises Unsupported for maps that te does not have."""
    kinds = [a.data for a in op.get_iterator_types()]
    if IteratorType.WINDOW in kinds:
        raise Unsupported("a window iterator")
    maps = [_map(a.data) for a in op.get_indexing_maps()]
    reductions = frozenset(d for d, kind in enumerate(kinds) if kind is IteratorType.REDUCTION)
    extents: list[int | None] = [None] * len(kinds)
    for value, axes in zip(op.operands, maps, strict=True):
        if not isinstance(value.type, TensorType):
            continue
        shape, _ = static_type(value.type)
        for axis, extent in zip(axes, shape, strict=True):
            if axis.simple_dim is not None:
                extents[axis.simple_dim] = extent
    known = tuple(n for n in extents if n is not None)
    if len(known) != len(extents):
        raise Unsupported("a loop whose extent no operand tells")
    writes = maps[len(op.inputs) :]
    parallel = frozenset(range(len(kinds))) - reductions
    for axes in writes:
        written = [axis.simple_dim for axis in axes if axis.terms]
        if None in written or set(written) != parallel or len(written) != len(parallel):
            raise Unsupported("an output that is not indexed once by each parallel loop")
    return Structure(known, reductions, tuple(maps[: len(op.inputs)]), tuple(writes))


def _map(map_: AffineMap) -> Map:
    return tuple(_axis(e) for e in map_.results)


def _axis(expr: AffineExpr) -> AxisExpr:
    """An affine expression as a sum of multiples of loops. Raises Unsupported for others."""
    match expr:
        case AffineDimExpr():
            return AxisExpr(((expr.position, 1),))
        case AffineConstantExpr():
            return AxisExpr((), expr.value)
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add):
            return total(_axis(expr.lhs), _axis(expr.rhs))
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul):
            left, right = _axis(expr.lhs), _axis(expr.rhs)
            if left.terms and right.terms:
                raise Unsupported(f"the index {expr} is not a sum of multiples of loops")
            return scaled(left, right.offset) if left.terms else scaled(right, left.offset)
        case _:
            raise Unsupported(f"the index {expr} is not a sum of multiples of loops")
