"""Iteration domains under construction, and arithmetic on axis expressions."""

from __future__ import annotations

from collections.abc import Sequence

from elk_ir.dialects.te.attrs import DomainAttr, Map
from elk_ir.dialects.te.interface import domain_attr
from elk_ir.plan.domain import AxisExpr, Dim, DimKind

ZERO = AxisExpr()
"""Index 0."""


class Unsupported(Exception):
    """A node that can't be lowered, and why (in a few words, without the node's name)."""


def total(*exprs: AxisExpr, offset: int = 0) -> AxisExpr:
    """The sum of expressions and a constant."""
    terms: dict[int, int] = {}
    for expr in exprs:
        offset += expr.offset
        for d, k in expr.terms:
            terms[d] = terms.get(d, 0) + k
    return AxisExpr(tuple(sorted((d, k) for d, k in terms.items() if k)), offset)


def scaled(expr: AxisExpr, factor: int) -> AxisExpr:
    """`factor` times an expression."""
    if factor == 0:
        return ZERO
    return AxisExpr(tuple((d, k * factor) for d, k in expr.terms), expr.offset * factor)


def substitute(expr: AxisExpr, values: Sequence[AxisExpr]) -> AxisExpr:
    """`expr` with dimension d replaced by `values[d]`."""
    return total(*(scaled(values[d], k) for d, k in expr.terms), offset=expr.offset)


class Domain:
    """Dimensions added one by one; each is returned as the axis expression that indexes by it."""

    def __init__(self) -> None:
        self.dims: list[Dim] = []

    def add(self, name: str, extent: int, kind: DimKind = DimKind.PARALLEL) -> AxisExpr:
        """A new dimension; a name in use gets a number behind it."""
        names = {d.name for d in self.dims}
        unique, i = name, 1
        while unique in names:
            unique, i = f"{name}{i}", i + 1
        self.dims.append(Dim(unique, extent, kind))
        return AxisExpr(((len(self.dims) - 1, 1),))

    def parallel(self, shape: Sequence[int], prefix: str = "d") -> Map:
        """One parallel dimension an axis of `shape`."""
        return tuple(self.add(f"{prefix}{i}", extent) for i, extent in enumerate(shape))

    def reduction(self, name: str, extent: int) -> AxisExpr:
        """A new dimension to be reduced, which may be split over cores."""
        return self.add(name, extent, DimKind.REDUCTION)

    def local(self, name: str, extent: int) -> AxisExpr:
        """A new dimension that every core iterates in full."""
        return self.add(name, extent, DimKind.LOCAL)

    def attr(self, operands: Sequence[Map], results: Sequence[Map]) -> DomainAttr:
        """The attribute with one map an operand and result."""
        return domain_attr(self.dims, operands, results)


def broadcast(shape: Sequence[int], axes: Map, extents: Sequence[int]) -> Map:
    """How an operand of `shape` is read where the result, of `extents`, is indexed by `axes`
    (numpy broadcasting: aligned at the end, extent 1 repeated).

    Raises Unsupported for a shape that can't be broadcast: ONNX's inference does not compare all.
    """
    lead = len(axes) - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, extents[lead:], strict=True)):
        raise Unsupported(f"an operand of shape {list(shape)} beside {list(extents)}")
    return tuple(
        ZERO if extent == 1 and extents[lead + j] != 1 else axes[lead + j]
        for j, extent in enumerate(shape)
    )
