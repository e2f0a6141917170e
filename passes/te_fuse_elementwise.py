"""`te-fuse-elementwise`: maps merge with each other, and become epilogues of products.

- A map is read into the map that reads it: always if that is its only reader; if there are more,
  only where it is cheap and no larger to read than what it yields.
- A map that is the only reader of a `te.contract` or `te.reduce` becomes its epilogue: activations,
  scales, biases, residual additions, and the product with a second branch. Scales and biases behind
  a `te.normalize` become operands of it.
- A cast behind an operator that computes in f32 becomes the type of its result.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import (
    AttentionOp,
    BodyAttr,
    ContractOp,
    MapOp,
    NormalizeOp,
    ReduceOp,
    SoftmaxOp,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp, accumulator
from elk_ir.numerics.body import Body
from elk_ir.passes.te_affine import Solution, Split, covers, solve, split_dim, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    Read,
    compose_read,
    dtype_of_value,
    extents_of,
    in_bounds,
    producer,
    reads,
    rebuilt,
    reductions_are_written,
    replace_op,
    shape_of,
    simplified_domain,
    split_op_domain,
    structured_ops,
    tensor_of,
    users,
)
from elk_ir.plan.domain import AxisExpr

MAX_OPERANDS = 8
MAX_INSTRUCTIONS = 64
CHEAP_FLOPS = 2
_COSTLY = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "div", "erf", "exp", "log",
     "mod", "pow", "recip", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"}
)  # fmt: skip


def _points(op: StructuredOp) -> int:
    return prod(extents_of(op.domain.data))


def _is_cheap(body: Body) -> bool:
    return body.flops <= CHEAP_FLOPS and not any(i.op in _COSTLY for i in body.instrs)


def _may_read_in(producer_op: MapOp, op: MapOp) -> bool:
    """Whether reading a producer into `op` saves more than it costs."""
    value = producer_op.outs[0]
    body = producer_op.body.data
    if producer_op.parent is not op.parent or len(producer_op.outs) != 1:
        return False
    free = body.flops == 0
    maps = {axes for v, axes in zip(op.ins, op.domain.data.operands, strict=True) if v is value}
    # Read at several places, or broadcast, it would be computed again and again.
    if not free and (len(maps) > 1 or _points(op) > _points(producer_op)):
        return False
    readers = users(value)
    if len(readers) == 1:
        return True
    size = sum(prod(shape_of(v)) for v in producer_op.ins)
    return (
        (free or _is_cheap(body))
        and size <= prod(shape_of(value))
        and all(isinstance(r, MapOp) and r.parent is op.parent for r in readers)
    )


def _merged(op: MapOp, source: MapOp) -> MapOp | None:
    """`op` with a map that produces some of its operands read in."""
    domain = op.domain.data
    while True:
        graph = BodyGraph()
        args: list[int] = []
        split: Split | None = None
        for value, axes in zip(op.ins, domain.operands, strict=True):
            if value is not source.outs[0]:
                args.append(graph.input((value, axes), dtype_of_value(value)))
                continue
            found = compose_read(source, axes, domain)
            if isinstance(found, Split):
                split = found
                break
            if found is None or found[1]:
                return None
            inner = [
                graph.input((v, substitute_map(m, found[0])), dtype_of_value(v))
                for v, m in zip(source.ins, source.domain.data.operands, strict=True)
            ]
            args.append(graph.inline(source.body.data, inner)[0])
        if split is None:
            break
        domain = split_dim(domain, split)
    body, keys = graph.build(graph.inline(op.body.data, args))
    operands = reads(keys)
    if len(operands) > MAX_OPERANDS or len(body.instrs) > MAX_INSTRUCTIONS:
        return None
    whole = Domain(domain.dims, tuple(m for _, m in operands), domain.results)
    simple, _ = simplified_domain(op, whole)
    types = [r.type for r in op.outs]
    new = MapOp.of([v for v, _ in operands], body, types, DomainAttr(simple))
    fuse_locations((source, op), new)
    return new


def _merge_producers(op: MapOp) -> MapOp:
    """Read producers into `op` until none is left that should be."""
    while True:
        for value in dict.fromkeys(op.ins):
            source = producer(value)
            if isinstance(source, MapOp) and _may_read_in(source, op):
                new = _merged(op, source)
                if new is not None:
                    replace_op(op, new, clean=True)
                    op = new
                    break
        else:
            return op


# ---------------------------------------------------------------------- epilogues


Target = ContractOp | ReduceOp | NormalizeOp


def _epilogue_source(op: MapOp) -> tuple[Target, int] | None:
    """The operator that can take `op` over, and which operand it is; the one with most work, the
    last of equals."""
    best: tuple[float, int, Target] | None = None
    for i, value in enumerate(op.ins):
        source = producer(value)
        if isinstance(source, Target) and source.parent is op.parent and value.has_one_use():
            work = float(_points(source))
            if best is None or work >= best[0]:
                best = (work, i, source)
    return None if best is None else (best[2], best[1])


@dataclass(frozen=True, slots=True)
class _Aligned:
    """A map that reads an operator's result, in the dimensions of that operator."""

    domain: Domain
    assign: Mapping[int, AxisExpr]
    """The map's dimensions in those of `domain`."""
    written: Map


def _aligned(source: Target, op: MapOp, at: int) -> _Aligned | None:
    """`op` in the dimensions of `source`, whose result its operand `at` is; None if it reads only
    a part of it, or broadcasts it."""
    if len(op.outs) != 1 or not all(in_bounds(op, i) for i in range(len(op.ins))):
        return None
    own = op.domain.data
    domain = source.domain.data
    shape = shape_of(source.outs[0])
    while True:
        found = solve(
            own.operands[at], shape, extents_of(own), domain.results[0], extents_of(domain)
        )
        if not isinstance(found, Split):
            break
        split = None if isinstance(source, NormalizeOp) else split_op_domain(source, domain, found)
        if split is None:
            return None
        domain = split
    whole = set(range(len(own.dims)))
    if not isinstance(found, Solution) or found.loose or set(found.assign) != whole:
        return None
    written = substitute_map(own.results[0], found.assign)
    if not covers(written, shape_of(op.outs[0]), extents_of(domain)):
        return None
    return _Aligned(domain, found.assign, written)


def _with_epilogue(source: ContractOp | ReduceOp, op: MapOp, at: int) -> StructuredOp | None:
    """`source` with the map that reads it as its epilogue."""
    aligned = _aligned(source, op, at)
    if aligned is None:
        return None
    domain = aligned.domain
    factors = 1
    if isinstance(source, ContractOp):
        factors = 2 if source.factors is None else source.factors.value.data
    graph = BodyGraph()
    total = graph.input("total", source.operator().stats[0].dtype)
    value = total
    extra = list(zip(source.ins[factors:], domain.operands[factors:], strict=True))
    if source.epilogue is not None:
        inner = [graph.input(key, dtype_of_value(key[0])) for key in extra]
        value = graph.inline(source.epilogue.data, [total, *inner])[0]
    value = graph.emit("cast", (value,), dtype_of_value(source.outs[0]))
    args: list[int] = []
    for i, (v, m) in enumerate(zip(op.ins, op.domain.data.operands, strict=True)):
        if i == at:
            args.append(value)
        else:
            key = (v, substitute_map(m, aligned.assign))
            args.append(graph.input(key, dtype_of_value(v)))
    first: list[Hashable] = ["total"]
    body, keys = graph.build(graph.inline(op.body.data, args), first)
    operands = reads(keys)
    if len(operands) + factors > MAX_OPERANDS or len(body.instrs) > MAX_INSTRUCTIONS:
        return None
    maps = (*domain.operands[:factors], *(m for _, m in operands))
    simple, _ = simplified_domain(source, Domain(domain.dims, maps, (aligned.written,)))
    ins = [*source.ins[:factors], *(v for v, _ in operands)]
    new = rebuilt(source, ins, simple, [op.outs[0].type], {"epilogue": BodyAttr(body)})
    fuse_locations((source, op), new)
    return new


def _with_affine(source: NormalizeOp, op: MapOp, at: int) -> StructuredOp | None:
    """A normalisation with further scales and biases (a modulation, a residual addition)."""
    aligned = _aligned(source, op, at)
    if aligned is None:
        return None
    graph = BodyGraph()
    args = [
        graph.input((v, substitute_map(m, aligned.assign)) if i != at else "x", dtype_of_value(v))
        for i, (v, m) in enumerate(zip(op.ins, op.domain.data.operands, strict=True))
    ]
    (node,) = graph.inline(op.body.data, args)
    behind: list[tuple[str, Read]] = []
    while node != args[at]:
        inner = graph.nodes[node]
        if inner.op not in ("mul", "add"):
            return None
        left, right = inner.args
        node, other = (left, right) if graph.depends(left, args[at]) else (right, left)
        operand = graph.nodes[other].value
        if graph.nodes[other].op != "input" or not isinstance(operand, tuple):
            return None
        behind.insert(0, ("scale" if inner.op == "mul" else "bias", operand))  # pyright: ignore[reportArgumentType]
    if not behind or len(source.ins) + len(behind) > MAX_OPERANDS:
        return None
    affine = source.affine.data.split() if source.affine is not None else []
    properties: dict[str, Attribute] = {
        "affine": StringAttr(" ".join([*affine, *(kind for kind, _ in behind)]))
    }
    dtype = dtype_of_value(source.outs[0])
    if not affine and dtype != accumulator(dtype_of_value(source.ins[0])):
        properties["round_to"] = StringAttr(dtype)
    if not reductions_are_written(aligned.domain, aligned.written):
        return None  # the map reads the one element of a row of one as a scalar
    maps = (*aligned.domain.operands, *(m for _, (_, m) in behind))
    domain = Domain(aligned.domain.dims, maps, (aligned.written,))
    ins = [*source.ins, *(v for _, (v, _) in behind)]
    new = rebuilt(source, ins, domain, [op.outs[0].type], properties)
    fuse_locations((source, op), new)
    return new


def _absorb_cast(op: MapOp) -> StructuredOp | None:
    """The operator in front of a cast, yielding what is cast to."""
    body = op.body.data
    source = producer(op.ins[0]) if len(op.ins) == 1 else None
    if (
        not isinstance(source, SoftmaxOp | NormalizeOp | AttentionOp)
        or len(body.instrs) != 1
        or body.instrs[0].op != "cast"
        or not op.ins[0].has_one_use()
        or source.parent is not op.parent
        or op.domain.data.operands[0] != op.domain.data.results[0]
        or shape_of(op.ins[0]) != shape_of(op.outs[0])
        or not covers(op.domain.data.results[0], shape_of(op.outs[0]), extents_of(op.domain.data))
    ):
        return None
    # Rounding once instead of twice is only the same if the first is none.
    if dtype_of_value(source.outs[0]) != accumulator(dtype_of_value(source.ins[0])):
        return None
    return rebuilt(
        source, list(source.ins), source.domain.data, [tensor_of(op.outs[0])], sources=(op,)
    )


@dataclass(frozen=True)
class TeFuseElementwisePass(ModulePass):
    """Merge maps. `epilogue=false` leaves products alone, `maps=false` maps among each other."""

    name = "te-fuse-elementwise"

    maps: bool = True
    epilogue: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        if self.maps:
            for m in structured_ops(op):
                if isinstance(m, MapOp):
                    _merge_producers(m)
        for m in structured_ops(op):
            if not isinstance(m, MapOp):
                continue
            new: StructuredOp | None = None
            if self.epilogue and (found := _epilogue_source(m)) is not None:
                source, at = found
                if isinstance(source, NormalizeOp):
                    new = _with_affine(source, m, at)
                else:
                    new = _with_epilogue(source, m, at)
            if new is None:
                new = _absorb_cast(m)
            if new is not None:
                replace_op(m, new, clean=True)
