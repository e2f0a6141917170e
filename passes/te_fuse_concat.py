"""`te-fuse-concat`: a concat of equal pieces of one tensor becomes a `te.map`.

The halves of a rotary embedding, `concat(-x[8:], x[:8])`, are one affine read of x: element
`8*s + j` of the result is `sign[s] · x[8 - 8*s + j]`. As a map it can then be fused with what is
done to it. `concat(t, t)`, which doubles a table of angles, is a map without a sign.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import dense_from_array
from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import ConcatOp, GlobalKindAttr, LoadOp, MapOp
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.te.interface import domain_attr
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.numerics.body import Body, Instr, dtype_of, is_float
from elk_ir.passes.te_affine import Split, bounds, split_dim, substitute_map
from elk_ir.passes.te_support import (
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
    producer,
    replace_op,
    scaling_of,
    shape_of,
    structured_ops,
)
from elk_ir.plan.domain import AxisExpr


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A concat as one read of one tensor, times a factor a piece."""

    domain: Domain
    read: Read
    factors: tuple[float, ...]
    outer: int
    """The dimension that numbers the pieces."""


def _pieces(op: ConcatOp) -> _Pieces | None:
    """What a concat reads, if it reads equal pieces of one tensor at equal distances."""
    dim = op.dim.value.data
    own = op.domain.data
    count = len(op.ins)
    size = own.dims[dim].extent // count
    if count < 2 or size * count != own.dims[dim].extent or size < 2:
        return None
    domain = split_dim(own, Split(dim, size))
    # Dimension dim + 1 is the position inside a piece.
    inner = {d: AxisExpr(((d + (d > dim), 1),)) for d in range(len(own.dims))}
    reads: list[Read] = []
    factors: list[float] = []
    for i, (value, axes) in enumerate(zip(op.ins, own.operands, strict=True)):
        inner[dim] = AxisExpr(((dim + 1, 1),), i * size)
        read, factor = _source((value, substitute_map(axes, inner)), domain)
        if not _inside(read, domain, dim):
            return None
        reads.append(read)
        factors.append(factor)
    combined = _arithmetic(reads, dim)
    if combined is None:
        return None
    if any(f != 1 for f in factors) and not is_float(dtype_of_value(reads[0][0])):
        return None
    if dtype_of_value(reads[0][0]) != dtype_of_value(op.outs[0]):
        return None
    return _Pieces(domain, (reads[0][0], combined), tuple(factors), dim)


def _source(read: Read, domain: Domain) -> tuple[Read, float]:
    """A piece behind views and scalings, and what it is multiplied with."""
    factor = 1.0
    while True:
        op = producer(read[0])
        if not isinstance(op, MapOp) or len(op.ins) != 1 or not in_bounds(op, 0):
            return read, factor
        scale = scaling_of(op)
        found = compose_read(op, read[1], domain)
        same = dtype_of_value(op.ins[0]) == dtype_of_value(op.outs[0])
        if scale is None or not same or found is None or isinstance(found, Split) or found[1]:
            return read, factor
        read = (op.ins[0], substitute_map(op.domain.data.operands[0], found[0]))
        factor *= scale


def _inside(read: Read, domain: Domain, outer: int) -> bool:
    extents = list(extents_of(domain))
    extents[outer] = 1
    return all(
        low >= 0 and high < extent
        for (low, high), extent in (
            (bounds(a, extents), n) for a, n in zip(read[1], shape_of(read[0]), strict=True)
        )
    )


def _arithmetic(reads: list[Read], outer: int) -> Map | None:
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


def _as_map(module: ModuleOp, op: ConcatOp, pieces: _Pieces) -> MapOp:
    value, axes = pieces.read
    ins, maps = [value], [axes]
    body = Body(1, (), (0,))
    if any(f != 1 for f in pieces.factors):
        factors = np.asarray(pieces.factors).astype(dtype_of(dtype_of_value(value)))
        attr = dense_from_array(factors)
        symbol = ""
        for name, known in globals_of(module).items():
            if known.value == attr and known.stack is None:
                symbol = name
        if not symbol:
            symbol = fresh_symbol("factors", {o.sym_name.data for o in globals_of(module).values()})
            kind = GlobalKindAttr(GlobalKind.WEIGHT)
            add_global(module, new_global(symbol, kind=kind, type=attr.type, value=attr))
        load = LoadOp(symbol, attr.type)
        load.location = op.location
        load.result.name_hint = "factors"
        place = outside_of_loop(op, [])
        block = place.parent
        assert block is not None
        block.insert_op_before(load, place)
        ins.append(load.result)
        maps.append((AxisExpr(((pieces.outer, 1),)),))
        body = Body(2, (Instr("mul", (0, 1)),), (2,))
    domain = domain_attr(pieces.domain.dims, maps, list(pieces.domain.results))
    new = MapOp.of(ins, body, [op.outs[0].type], domain)
    fuse_locations(
        [p for v in op.ins if isinstance(p := producer(v), MapOp)] + [op], new
    )
    return new


@dataclass(frozen=True)
class TeFuseConcatPass(ModulePass):
    """Concats of pieces of one tensor become maps."""

    name = "te-fuse-concat"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for concat in structured_ops(op):
            if isinstance(concat, ConcatOp):
                pieces = _pieces(concat)
                if pieces is not None:
                    replace_op(concat, _as_map(op, concat, pieces), clean=True)
