"""Affine index algebra on iteration domains, free of IR.

A tensor is written through a map that is a bijection onto it: each axis is one dimension, or a
mixed radix of several (`16*h + d` with d of extent 16). `solve` composes a read with such a write:
it expresses the writer's dimensions in those of the reader. Where a reader's dimension spans
several digits of a radix it asks for that dimension to be split first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.plan.domain import AxisExpr, Dim


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension `dim` of the reader must become (dim outer, `inner` points inner)."""

    dim: int
    inner: int


@dataclass(frozen=True, slots=True)
class Solution:
    """The writer's dimensions as expressions over the reader's.

    `loose` are the writer's dimensions whose expression leaves their extent (the read then returns
    a neutral value there)."""

    assign: Mapping[int, AxisExpr]
    loose: frozenset[int] = frozenset()


def bounds(axis: AxisExpr, extents: Sequence[int]) -> tuple[int, int]:
    """Smallest and largest index that an expression takes."""
    low = high = axis.offset
    for d, k in axis.terms:
        reach = k * (extents[d] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def combine(terms: Mapping[int, int], offset: int) -> AxisExpr:
    """The expression with these coefficients; zero ones are left out."""
    return AxisExpr(tuple(sorted((d, k) for d, k in terms.items() if k)), offset)


def substitute(axis: AxisExpr, assign: Mapping[int, AxisExpr]) -> AxisExpr:
    """`axis` with each dimension replaced by its expression. Raises KeyError for a missing one."""
    terms: dict[int, int] = {}
    offset = axis.offset
    for d, k in axis.terms:
        inner = assign[d]
        offset += k * inner.offset
        for e, factor in inner.terms:
            terms[e] = terms.get(e, 0) + k * factor
    return combine(terms, offset)


def substitute_map(axes: Map, assign: Mapping[int, AxisExpr]) -> Map:
    """`substitute` on each axis."""
    return tuple(substitute(axis, assign) for axis in axes)


def digits(axis: AxisExpr, extent: int, extents: Sequence[int]) -> list[int] | None:
    """Dimensions of a mixed radix that covers an axis, innermost first; None if it is not one.

    Dimensions of one point are ignored."""
    if axis.offset:
        return None
    weight = 1
    order: list[int] = []
    for d, k in sorted(axis.terms, key=lambda term: term[1]):
        if extents[d] == 1:
            continue
        if k != weight:
            return None
        order.append(d)
        weight *= extents[d]
    return order if weight == extent else None


def covers(axes: Map, shape: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether a map writes every element of a tensor once."""
    seen: set[int] = set()
    for axis, extent in zip(axes, shape, strict=True):
        order = digits(axis, extent, extents)
        if order is None or seen & set(order):
            return False
        seen.update(order)
    return True


def solve(
    written: Map,
    shape: Sequence[int],
    extents: Sequence[int],
    read: Map,
    read_extents: Sequence[int],
) -> Solution | Split | None:
    """The writer's dimensions (of `extents`) as expressions over the reader's (`read_extents`).

    None when the write is no bijection, or the composition is not affine."""
    assign: dict[int, AxisExpr] = {}
    loose: set[int] = set()
    for axis, extent, target in zip(written, shape, read, strict=True):
        order = digits(axis, extent, extents)
        if order is None:
            return None
        for d, _ in axis.terms:
            if extents[d] == 1:
                assign[d] = AxisExpr()
        rest = target
        for i, d in enumerate(order):
            if d in assign:
                return None
            if i == len(order) - 1:
                digit = rest
            else:
                parts = _divide(rest, extents[d], read_extents)
                if parts is None or isinstance(parts, Split):
                    return parts
                rest, digit = parts
            low, high = bounds(digit, read_extents)
            if low < 0 or high >= extents[d]:
                if len(order) > 1:
                    return None
                loose.add(d)
            assign[d] = digit
        if not order and bounds(target, read_extents) != (0, 0):
            return None
    return Solution(assign, frozenset(loose))


def _divide(
    axis: AxisExpr, radix: int, extents: Sequence[int]
) -> tuple[AxisExpr, AxisExpr] | Split | None:
    """(quotient, remainder) of an expression by `radix`, or the split that makes it possible."""
    outer = {d: k // radix for d, k in axis.terms if k % radix == 0}
    inner = {d: k for d, k in axis.terms if k % radix}
    low, high = bounds(combine(inner, axis.offset), extents)
    quotient = low // radix
    if high - quotient * radix < radix:
        return combine(outer, quotient), combine(inner, axis.offset - quotient * radix)
    for d, k in inner.items():
        size = abs(k)
        if radix % size == 0 and 1 < radix // size < extents[d] and extents[d] * size % radix == 0:
            return Split(d, radix // size)
    return None


def split_dim(domain: Domain, split: Split) -> Domain:
    """`domain` with a dimension d replaced by d0 (outer) and d1 (inner)."""
    dim = domain.dims[split.dim]
    names = {d.name for d in domain.dims}
    outer, inner = (_fresh(f"{dim.name}{i}", names) for i in range(2))
    dims = (
        *domain.dims[: split.dim],
        Dim(outer, dim.extent // split.inner, dim.kind),
        Dim(inner, split.inner, dim.kind),
        *domain.dims[split.dim + 1 :],
    )
    assign = {
        d: AxisExpr(((d + (d > split.dim), 1),)) for d in range(len(domain.dims)) if d != split.dim
    }
    assign[split.dim] = AxisExpr(((split.dim, split.inner), (split.dim + 1, 1)))
    return _rewritten(domain, dims, assign)


def _fresh(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _rewritten(domain: Domain, dims: tuple[Dim, ...], assign: Mapping[int, AxisExpr]) -> Domain:
    return Domain(
        dims,
        tuple(substitute_map(m, assign) for m in domain.operands),
        tuple(substitute_map(m, assign) for m in domain.results),
    )


def drop_dims(domain: Domain, gone: set[int]) -> Domain:
    """`domain` without the given dimensions, which read as index 0."""
    kept = [d for d in range(len(domain.dims)) if d not in gone]
    assign = {d: AxisExpr(((i, 1),)) for i, d in enumerate(kept)}
    assign |= {d: AxisExpr() for d in gone}
    return _rewritten(domain, tuple(domain.dims[d] for d in kept), assign)


def merge_pair(domain: Domain) -> tuple[int, int] | None:
    """A pair (outer, inner) that occurs only together, as one radix, in every map; None without."""
    partner: dict[int, int | None] = {}
    for axes in (*domain.operands, *domain.results):
        for axis in axes:
            if len(axis.terms) == 1:
                partner[axis.terms[0][0]] = None
                continue
            weights = {k: d for d, k in axis.terms}
            for d, k in axis.terms:
                # The dimension just outside d in this axis.
                outer = weights.get(k * domain.dims[d].extent)
                if partner.setdefault(d, outer) != outer:
                    partner[d] = None
    for inner, outer in partner.items():
        if outer is None:
            continue
        if domain.dims[inner].kind is domain.dims[outer].kind and _together(domain, outer, inner):
            return outer, inner
    return None


def _together(domain: Domain, outer: int, inner: int) -> bool:
    extent = domain.dims[inner].extent
    for axes in (*domain.operands, *domain.results):
        for axis in axes:
            terms = dict(axis.terms)
            if terms.get(outer, 0) != extent * terms.get(inner, 0):
                return False
    return True


def merge_dims(domain: Domain, outer: int, inner: int) -> Domain:
    """`domain` with the pair (see `merge_pair`) merged into one dimension."""
    a, b = domain.dims[outer], domain.dims[inner]
    others = {d.name for i, d in enumerate(domain.dims) if i not in (outer, inner)}
    stem = a.name[:-1] if a.name[:-1] and a.name[:-1] == b.name[:-1] else a.name
    dims = list(domain.dims)
    dims[outer] = replace(
        a, name=stem if stem not in others else a.name, extent=a.extent * b.extent
    )
    del dims[inner]

    def moved(d: int) -> int:
        return d - (d > inner)

    assign = {d: AxisExpr(((moved(d), 1),)) for d in range(len(domain.dims)) if d != inner}
    # outer * e_b * k + inner * k becomes merged * k.
    assign[outer] = AxisExpr(())
    assign[inner] = AxisExpr(((moved(outer), 1),))
    return _rewritten(domain, tuple(dims), assign)
