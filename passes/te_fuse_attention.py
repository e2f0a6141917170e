"""`te-fuse-attention`: decomposed scaled-dot-product attention becomes one `te.attention`.

The pattern starts from the product of a softmax with the values and is matched on maps, not on how
exporters spell it: everything between the two products and the softmax is read as one scalar
expression in the dimensions of that last product. Views, casts and repeated heads (`repeat_kv`) on
the way become part of the maps. Recognised are

    softmax(softcap(scale · Q Kᵀ) + masks) V

with scales on Q, on K, on their product, or on several of them; a soft cap `c · tanh(s / c)`; any
number of additive masks and of `where(mask, s, fill)`; and a guard `where(isnan(p), 0, p)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import AttentionOp, ContractOp, MapOp, SoftmaxOp
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.te.interface import domain_attr
from elk_ir.passes.te_affine import Split, split_dim, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    Expansion,
    Read,
    compose_read,
    dtype_of_value,
    in_bounds,
    owner,
    producer,
    replace_op,
    scaling_of,
    structured_ops,
)
from elk_ir.plan.domain import AxisExpr, Dim, DimKind

# At and below this a fill keeps a score from having any weight.
NEVER = -1e4


@dataclass
class _Scores:
    """Scores before softmax: masks + softcap(scale · product)."""

    product: Read | None = None
    scale: float = 1.0
    softcap: float | None = None
    masks: list[int] = field(default_factory=list[int])
    """Nodes that are added."""
    filters: list[tuple[int, bool, float]] = field(default_factory=list[tuple[int, bool, float]])
    """(condition, whether true keeps the score, what it is otherwise)."""


class _Unmatched(Exception):
    """The pattern does not match."""


class _Resplit(Exception):
    """A dimension of the last product must be split first."""

    def __init__(self, split: Split) -> None:
        self.split = split


def _read(expansion: Expansion, value: SSAValue, axes: Map) -> int:
    node = expansion.read(value, axes)
    if isinstance(node, Split):
        raise _Resplit(node)
    return node


_Op = TypeVar("_Op", SoftmaxOp, ContractOp)


def _source(
    op_type: type[_Op], value: SSAValue, axes: Map, domain: Domain
) -> tuple[_Op, dict[int, AxisExpr]]:
    """The operation of `op_type` that yields `value`, and its dimensions in those of `domain`."""
    op = producer(value)
    if not isinstance(op, op_type):
        raise _Unmatched
    found = compose_read(op, axes, domain)
    if isinstance(found, Split):
        raise _Resplit(found)
    if found is None or found[1]:
        raise _Unmatched
    return op, found[0]


def _strip(graph: BodyGraph, i: int) -> int:
    while graph.nodes[i].op == "cast":
        i = graph.nodes[i].args[0]
    return i


def _weights(expansion: Expansion, i: int) -> Read:
    """The softmax result that node i is, apart from casts and a guard against NaN."""
    graph = expansion.builder
    i = _strip(graph, i)
    node = graph.nodes[i]
    if node.op == "select":
        test, zero, value = node.args
        guard = graph.nodes[test]
        if (
            guard.op != "isnan"
            or graph.constant(zero) != 0
            or _strip(graph, guard.args[0]) != _strip(graph, value)
        ):
            raise _Unmatched
        i = _strip(graph, value)
    if graph.nodes[i].op != "input" or i not in expansion.tensors:
        raise _Unmatched
    return expansion.tensors[i]


def _parse_scores(expansion: Expansion, root: int) -> _Scores:
    """Take the expression of the scores apart, from softmax's operand inwards."""
    graph = expansion.builder
    scores = _Scores()

    def is_product(i: int) -> bool:
        """Whether node i contains a product of two operands over a dimension of its own."""
        return any(
            node.op == "input"
            and isinstance(node.value, tuple)
            and isinstance(owner(node.value[0]), ContractOp)
            for node in (graph.nodes[n] for n in graph.reached([i]))
        )

    def constant(i: int) -> float:
        value = graph.constant(_strip(graph, i))
        if value is None:
            raise _Unmatched
        return float(value)

    i = root
    while True:
        i = _strip(graph, i)
        node = graph.nodes[i]
        inner = [a for a in node.args if is_product(a)]
        if node.op == "input":
            if not is_product(i):
                raise _Unmatched
            scores.product = expansion.tensors[i]
            return scores
        if len(set(inner)) != 1:
            raise _Unmatched
        (following,) = set(inner)
        outside = scores.softcap is None and scores.scale == 1.0
        match node.op:
            case "add" if outside:
                scores.masks.append(node.args[1] if node.args[0] == following else node.args[0])
            case "sub" if outside and node.args[0] == following:
                scores.masks.append(graph.emit("neg", (node.args[1],)))
            case "select" if outside and node.args[0] != following:
                keeps = node.args[1] == following
                fill = constant(node.args[2] if keeps else node.args[1])
                if fill > NEVER:
                    raise _Unmatched
                scores.filters.append((node.args[0], keeps, fill))
            case "mul":
                other = node.args[1] if node.args[0] == following else node.args[0]
                tanh = graph.nodes[_strip(graph, following)]
                if tanh.op == "tanh" and scores.scale == 1.0 and scores.softcap is None:
                    scores.softcap = constant(other)
                    following = tanh.args[0]
                    # tanh(s / c): the division by the cap is part of it.
                    scores.scale = scores.softcap
                else:
                    scores.scale *= constant(other)
            case "div" if node.args[0] == following:
                scores.scale /= constant(node.args[1])
            case _:
                raise _Unmatched
        i = following


def _peel(value: SSAValue, axes: Map, domain: Domain) -> tuple[Read, float, list[Operation]]:
    """A factor of a product: the tensor behind views, exact casts and scalings by a number."""
    factor = 1.0
    passed: list[Operation] = []
    while True:
        op = producer(value)
        if not isinstance(op, MapOp) or len(op.ins) != 1 or not in_bounds(op, 0):
            return (value, axes), factor, passed
        scale = scaling_of(op)
        if scale is None:
            return (value, axes), factor, passed
        found = compose_read(op, axes, domain)
        if isinstance(found, Split):
            raise _Resplit(found)
        if found is None or found[1]:
            return (value, axes), factor, passed
        value, axes = op.ins[0], substitute_map(op.domain.data.operands[0], found[0])
        factor *= scale
        passed.append(op)


def _mask(expansion: Expansion, scores: _Scores, dtype: str, at: Operation) -> Read | None:
    """One mask for all that is added to or put in place of the scores."""
    graph = expansion.builder
    if not scores.masks and not scores.filters:
        return None
    infinite = all(fill == float("-inf") for _, _, fill in scores.filters)
    if not scores.masks and infinite:
        kept: int | None = None
        for condition, keeps, _ in scores.filters:
            node = condition if keeps else graph.emit("not", (condition,))
            kept = node if kept is None else graph.emit("and", (kept, node))
        assert kept is not None
        return expansion.operand(kept, at)
    total: int | None = None
    for node in scores.masks:
        total = node if total is None else graph.emit("add", (total, node))
    # The innermost condition was applied last in the list, the outermost first.
    for condition, keeps, fill in reversed(scores.filters):
        wide = graph.nodes[total].dtype if total is not None else dtype
        inner = total if total is not None else graph.const(0.0, wide)
        other = graph.const(fill, wide)
        pair = (inner, other) if keeps else (other, inner)
        total = graph.emit("select", (condition, *pair))
    assert total is not None
    plain = total
    while graph.nodes[plain].op == "cast" and graph.nodes[plain].dtype == "float32":
        plain = graph.nodes[plain].args[0]
    if (
        graph.nodes[plain].dtype in ("float16", "float32", "bfloat16")
        and plain in expansion.tensors
    ):
        return expansion.tensors[plain]
    return expansion.operand(total, at)


def _match(root: ContractOp, domain: Domain, weights_at: int) -> AttentionOp:
    """The attention that ends in the product `root`, over `domain`. Raises _Unmatched, _Resplit."""
    reductions = [i for i, d in enumerate(domain.dims) if d.kind is DimKind.REDUCTION]
    if len(reductions) != 1:
        raise _Unmatched
    (kv,) = reductions
    expansion = Expansion(domain)
    node = _read(expansion, root.ins[weights_at], domain.operands[weights_at])
    value, axes = _weights(expansion, node)
    softmax, assign = _source(SoftmaxOp, value, axes, domain)
    assert isinstance(softmax, SoftmaxOp)
    own = softmax.domain.data
    summed = [i for i, d in enumerate(own.dims) if d.kind is DimKind.REDUCTION]
    if len(summed) != 1 or assign[summed[0]] != AxisExpr(((kv, 1),)) or softmax.log is not None:
        raise _Unmatched
    if own.dims[summed[0]].extent != domain.dims[kv].extent:
        raise _Unmatched
    before = _read(expansion, softmax.ins[0], substitute_map(own.operands[0], assign))
    scores = _parse_scores(expansion, before)
    assert scores.product is not None
    product, assign = _source(ContractOp, *scores.product, domain)
    assert isinstance(product, ContractOp)
    if product.epilogue is not None or len(product.ins) != 2:
        raise _Unmatched
    # The dimensions that Q and K are summed over are new, and stay inside a core.
    inner = product.domain.data
    dims = list(domain.dims)
    names = {d.name for d in dims}
    for d, dim in enumerate(inner.dims):
        if dim.kind is DimKind.REDUCTION:
            name = "d"
            while name in names:
                name += "_"
            names.add(name)
            assign[d] = AxisExpr(((len(dims), 1),))
            dims.append(Dim(name, dim.extent, DimKind.LOCAL))
    whole = Domain(tuple(dims), domain.operands, domain.results)
    factors = [substitute_map(m, assign) for m in inner.operands]
    passed: list[Operation] = []
    sides: list[Read] = []
    scale = scores.scale
    for v, m in zip(product.ins, factors, strict=True):
        # Splits of the new dimensions can't be asked of the last product.
        try:
            side, factor, on_way = _peel(v, m, whole)
        except _Resplit as again:
            if again.split.dim >= len(domain.dims):
                side, factor, on_way = (v, m), 1.0, []
            else:
                raise
        sides.append(side)
        scale *= factor
        passed += on_way
    on_kv = [any(d == kv for a in m for d, _ in a.terms) for _, m in sides]
    if sorted(on_kv) != [False, True]:
        raise _Unmatched
    query, key = (sides[on_kv.index(False)], sides[on_kv.index(True)])
    other = 1 - weights_at
    values, factor, on_way = _peel(root.ins[other], domain.operands[other], domain)
    if factor != 1.0:
        values, on_way = (root.ins[other], domain.operands[other]), []
    passed += on_way
    return _build(
        root, whole, (query, key, values), scores, scale, expansion, passed, softmax, product
    )


def _build(
    root: ContractOp,
    domain: Domain,
    operands: tuple[Read, Read, Read],
    scores: _Scores,
    scale: float,
    expansion: Expansion,
    passed: list[Operation],
    softmax: SoftmaxOp,
    product: ContractOp,
) -> AttentionOp:
    query, key, values = operands
    used = [{d for a in m for d, _ in a.terms} for _, m in operands]
    out = {d for a in domain.results[0] for d, _ in a.terms}
    # What only the values have in the result is their head dimension.
    if used[0] & (out - used[0]) or not out & used[2]:
        raise _Unmatched
    dims = [
        replace(d, kind=DimKind.LOCAL)
        if d.kind is DimKind.PARALLEL and i in used[2] and i not in used[0] | used[1]
        else d
        for i, d in enumerate(domain.dims)
    ]
    mask = _mask(expansion, scores, dtype_of_value(product.outs[0]), root)
    if mask is not None and not {d for a in mask[1] for d, _ in a.terms} <= used[0] | used[1]:
        raise _Unmatched
    reads = [query, key, values, *([mask] if mask is not None else [])]
    properties: dict[str, Attribute] = {
        "domain": domain_attr(dims, [m for _, m in reads], list(domain.results)),
        "scale": FloatAttr(scale, f64),
    }
    if scores.softcap is not None:
        properties["softcap"] = FloatAttr(scores.softcap, f64)
    new = AttentionOp.create(
        operands=[v for v, _ in reads], result_types=[root.outs[0].type], properties=properties
    )
    fuse_locations((product, *passed, *expansion.absorbed, softmax, root), new)
    return new


def _fused(root: ContractOp) -> AttentionOp | None:
    if len(root.ins) != 2 or root.epilogue is not None:
        return None
    for weights_at in (0, 1):
        domain = root.domain.data
        while True:
            try:
                return _match(root, domain, weights_at)
            except _Resplit as again:
                if domain.dims[again.split.dim].kind is DimKind.REDUCTION:
                    break
                domain = split_dim(domain, again.split)
            except _Unmatched:
                break
    return None


@dataclass(frozen=True)
class TeFuseAttentionPass(ModulePass):
    """Recognise scaled-dot-product attention."""

    name = "te-fuse-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for root in structured_ops(op):
            if isinstance(root, ContractOp):
                new = _fused(root)
                if new is not None:
                    replace_op(root, new, clean=True)
