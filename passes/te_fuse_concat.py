"""`te-fuse-concat`: a concat of equal pieces of the same tensors becomes a `te.map`.

The halves of a rotary embedding, `concat(-x[8:], x[:8])`, are one affine read of x: element
`8*s + j` of the result is `sign[s] · x[8 - 8*s + j]`. As a map it can then be fused with what is
done to it. `concat(t, t)`, which doubles a table of angles, is a map without a sign. So is the form
in which the halves are computed apart, `concat(a·cos - b·sin, b·cos + a·sin)`: two sums of products
that differ in offsets and signs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import dense_from_array
from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import ConcatOp, GlobalKindAttr, LoadOp, MapOp
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.te.interface import domain_attr
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.passes.te_affine import Split, bounds, split_dim, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    Expansion,
    Read,
    add_global,
    compose_read,
    dtype_of_value,
    extents_of,
    fresh_symbol,
    globals_of,
    in_bounds,
    new_global,
    outside_of_loop,
    owner,
    producer,
    reads,
    replace_op,
    scaling_of,
    shape_of,
    structured_ops,
)
from elk_ir.plan.domain import AxisExpr

MAX_TERMS = 3


Factors = tuple[float, ...]
"""What each piece is multiplied with."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A product of tensors, in every piece of the concat, times a factor a piece."""

    reads: tuple[Read, ...]
    factors: Factors


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of tensors, in one piece, times a number."""

    reads: tuple[Read, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A concat as a sum of products over a domain in which `outer` numbers the pieces."""

    domain: Domain
    outer: int
    terms: tuple[_Term, ...]


def _pieces(op: ConcatOp) -> _Pieces | None:
    """The sum of products that every (equally large) piece of a concat is."""
    dim = op.dim.value.data
    own = op.domain.data
    count = len(op.ins)
    size = own.dims[dim].extent // count
    if count < 2 or size * count != own.dims[dim].extent or size < 2:
        return None
    domain = split_dim(own, Split(dim, size))
    # Dimension dim + 1 is the position inside a piece.
    inner = {d: AxisExpr(((d + (d > dim), 1),)) for d in range(len(own.dims))}
    parts_read: list[Read] = []
    for i, (value, axes) in enumerate(zip(op.ins, own.operands, strict=True)):
        inner[dim] = AxisExpr(((dim + 1, 1),), i * size)
        read = (value, substitute_map(axes, inner))
        if not _inside(read, domain, dim):
            return None
        parts_read.append(read)
    # What the pieces are views of, times a number; else what computes them.
    for parts in (
        [[_scaled(read, domain)] for read in parts_read],
        [_sum_of_products(read, domain) for read in parts_read] if count == 2 else [],
    ):
        terms = _common_terms(parts, dim) if parts and all(parts) else None
        if terms and all(_fits(term, op) for term in terms):
            return _Pieces(domain, dim, terms)
    return None


def _fits(term: _Term, op: ConcatOp) -> bool:
    """Whether a term is of the concat's type, and a float if it has a factor."""
    dtype = dtype_of_value(op.outs[0])
    return all(dtype_of_value(v) == dtype for v, _ in term.reads) and (
        is_float(dtype) or all(f == 1 for f in term.factors)
    )


def _scaled(read: Read, domain: Domain) -> _Product:
    """A piece behind views and scalings, and what it is multiplied with."""
    factor = 1.0
    while True:
        op = producer(read[0])
        if not isinstance(op, MapOp) or len(op.ins) != 1 or not in_bounds(op, 0):
            break
        scale = scaling_of(op)
        found = compose_read(op, read[1], domain)
        same = dtype_of_value(op.ins[0]) == dtype_of_value(op.outs[0])
        if scale is None or not same or found is None or isinstance(found, Split) or found[1]:
            break
        read = (op.ins[0], substitute_map(op.domain.data.operands[0], found[0]))
        factor *= scale
    return _Product((read,), factor)


def _sum_of_products(read: Read, domain: Domain) -> list[_Product]:
    """The products that a piece is the sum of; none if it is something else."""
    expansion = Expansion(domain)
    root = expansion.read(*read)
    if isinstance(root, Split):
        return []
    graph, tensors = expansion.builder, expansion.tensors

    def total(i: int, sign: float) -> list[_Product] | None:
        node = graph.nodes[i]
        if node.op == "neg":
            return total(node.args[0], -sign)
        if node.op in ("add", "sub"):
            left = total(node.args[0], sign)
            right = total(node.args[1], sign if node.op == "add" else -sign)
            return None if left is None or right is None else left + right
        found = product(i, inside=node.op != "mul")
        return None if found is None else [_Product(found[0], sign * found[1])]

    def product(i: int, inside: bool = True) -> tuple[tuple[Read, ...], float] | None:
        node = graph.nodes[i]
        if inside and i in tensors:
            return (tensors[i],), 1.0
        if node.op == "neg":
            found = product(node.args[0])
            return None if found is None else (found[0], -found[1])
        if node.op != "mul":
            return None
        left, right = product(node.args[0]), product(node.args[1])
        if left is None or right is None:
            return None
        return (*left[0], *right[0]), left[1] * right[1]

    return (total(root, 1.0) or [])[: MAX_TERMS + 1]


def _common_terms(parts: Sequence[Sequence[_Product]], outer: int) -> tuple[_Term, ...] | None:
    """Products that are one affine read each over all pieces, whatever their order."""
    first = parts[0]
    if len(first) > MAX_TERMS or any(len(p) != len(first) for p in parts):
        return None
    if all(len(p) == 1 and len(p[0].reads) == 1 for p in parts):
        axes = _arithmetic([p[0].reads[0] for p in parts], outer)
        factors = tuple(p[0].factor for p in parts)
        return None if axes is None else (_Term(((first[0].reads[0][0], axes),), factors),)
    if len(parts) != 2:
        return None
    for order in permutations(parts[1]):
        terms: list[_Term] = []
        for a, b in zip(first, order, strict=True):
            reads = _paired(a, b, outer)
            if reads is None:
                break
            terms.append(_Term(reads, (a.factor, b.factor)))
        else:
            return tuple(terms)
    return None


def _paired(a: _Product, b: _Product, outer: int) -> tuple[Read, ...] | None:
    if len(a.reads) != len(b.reads) or len(a.reads) > MAX_TERMS:
        return None
    for order in permutations(b.reads):
        pairs = list(zip(a.reads, order, strict=True))
        maps = [_arithmetic(pair, outer) for pair in pairs]
        if all(m is not None for m in maps):
            return tuple(
                (pair[0][0], m) for pair, m in zip(pairs, maps, strict=True) if m is not None
            )
    return None


def _inside(read: Read, domain: Domain, outer: int) -> bool:
    extents = list(extents_of(domain))
    extents[outer] = 1
    return all(
        low >= 0 and high < extent
        for (low, high), extent in (
            (bounds(a, extents), n) for a, n in zip(read[1], shape_of(read[0]), strict=True)
        )
    )


def _arithmetic(reads: Sequence[Read], outer: int) -> Map | None:
    """One map whose value at `outer` = i is read i; None without one."""
    value, first = reads[0]
    if any(v is not value for v, _ in reads):
        return None
    axes: list[AxisExpr] = []
    for j, axis in enumerate(first):
        step = reads[1][1][j].offset - axis.offset
        for i, (_, other) in enumerate(reads):
            if other[j] != replace(axis, offset=axis.offset + i * step):
                return None
        terms = dict(axis.terms)
        if outer in terms:
            return None
        if step:
            terms[outer] = step
        axes.append(AxisExpr(tuple(sorted(terms.items())), axis.offset))
    return tuple(axes)


def _factors(module: ModuleOp, op: ConcatOp, factors: Factors) -> SSAValue:
    """A small constant tensor, loaded in front of the loop that `op` is in."""
    dtype = dtype_of_value(op.outs[0])
    attr = dense_from_array(np.asarray(factors).astype(dtype_of(dtype)))
    table = globals_of(module)
    symbol = next((n for n, g in table.items() if g.value == attr and g.stack is None), None)
    if symbol is None:
        symbol = fresh_symbol("factors", table)
        kind = GlobalKindAttr(GlobalKind.WEIGHT)
        add_global(module, new_global(symbol, kind=kind, type=attr.type, value=attr))
    load = LoadOp(symbol, attr.type)
    load.location = op.location
    load.result.name_hint = "factors"
    place = outside_of_loop(op, [])
    block = place.parent
    assert block is not None
    block.insert_op_before(load, place)
    return load.result


def _as_map(module: ModuleOp, op: ConcatOp, pieces: _Pieces) -> MapOp:
    dtype = dtype_of_value(op.outs[0])
    graph = BodyGraph()
    total: int | None = None
    for term in pieces.terms:
        node: int | None = None
        for read in term.reads:
            factor = graph.input(read, dtype)
            node = factor if node is None else graph.emit("mul", (node, factor))
        assert node is not None
        if set(term.factors) == {-1.0}:
            node = graph.emit("neg", (node,))
        elif set(term.factors) != {1.0}:
            by_piece = (AxisExpr(((pieces.outer, 1),)),)
            sign = graph.input((_factors(module, op, term.factors), by_piece), dtype)
            node = graph.emit("mul", (node, sign))
        total = node if total is None else graph.emit("add", (total, node))
    assert total is not None
    body, keys = graph.build([total])
    operands = reads(keys)
    domain = domain_attr(pieces.domain.dims, [m for _, m in operands], list(pieces.domain.results))
    new = MapOp.of([v for v, _ in operands], body, [op.outs[0].type], domain)
    sources = dict.fromkeys(p for v in op.ins if isinstance(p := owner(v), MapOp))
    fuse_locations((*sources, op), new)
    return new


@dataclass(frozen=True)
class TeFuseConcatPass(ModulePass):
    """Concats of pieces of the same tensors become maps."""

    name = "te-fuse-concat"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for concat in structured_ops(op):
            if isinstance(concat, ConcatOp):
                pieces = _pieces(concat)
                if pieces is not None:
                    replace_op(concat, _as_map(op, concat, pieces), clean=True)
