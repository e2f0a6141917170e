"""`te-fuse-normalize`: decomposed RMS and layer normalisations become `te.normalize`.

A sum of squares is followed forward through the maps that read it. Each of them is read, with all
maps that lead to it, as one scalar expression of x, the statistics and the weights; the last one
that has the form

    x · rsqrt(mean(x²) + ε)   or   (x - mean(x)) · rsqrt(mean((x - mean(x))²) + ε)

with any casts, a scale and a bias behind it is replaced. How the expression is spread over
operations, and on which side of a product the weight stands, does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isclose, prod

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, StringAttr, f64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import (
    CombinerAttr,
    LoadOp,
    MapOp,
    NormalizeOp,
    NormFormAttr,
    ReduceOp,
)
from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import accumulator, domain_attr
from elk_ir.dialects.te.ops import Combiner, NormForm
from elk_ir.passes.te_affine import Split, split_dim, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    Expansion,
    compose_read,
    dtype_of_value,
    node_dims,
    owner,
    replace_op,
    structured_ops,
    users,
)
from elk_ir.plan.domain import AxisExpr, DimKind

MAX_STEPS = 12
_SUM = CombinerAttr(Combiner.SUM)


@dataclass
class _Norm:
    """What an expression was found to be: x normalised over `dims`, scaled and shifted."""

    x: tuple[SSAValue, Map]
    dims: frozenset[int]
    form: NormForm
    epsilon: float
    round_to: str | None = None
    affine: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """("scale" or "bias", node), in the order in which they apply."""
    reduces: list[Operation] = field(default_factory=list[Operation])


class _Matcher:
    """Matches one expression. Failure is None throughout."""

    def __init__(self, expansion: Expansion, result_dims: set[int]) -> None:
        self.expansion = expansion
        self.graph: BodyGraph = expansion.builder
        self.domain = expansion.domain
        self.result_dims = result_dims
        self.reduces: list[Operation] = []

    def strip(self, i: int) -> int:
        """Node i without casts between floats."""
        while self.graph.nodes[i].op == "cast":
            i = self.graph.nodes[i].args[0]
        return i

    def norm(self, i: int) -> _Norm | None:
        """The normalisation that node i computes."""
        node = self.graph.nodes[i]
        if node.op == "cast":
            found = self.norm(node.args[0])
            # Rounding in front of a scale or bias is kept; the last one is the result's type.
            if found is None or found.affine:
                return found
            return replace(found, round_to=node.dtype)
        core = self.core(i)
        if core is not None:
            return core
        if node.op in ("mul", "add", "sub"):
            for a, b in (node.args, node.args[::-1]):
                if node.op == "sub" and a != node.args[0]:
                    continue
                if node.op == "sub" or not self.is_small(b):
                    continue
                found = self.norm(a)
                if found is not None:
                    kind = "scale" if node.op == "mul" else "bias"
                    return replace(found, affine=[*found.affine, (kind, b)])
        return None

    def is_small(self, i: int) -> bool:
        """Whether a node varies over fewer dimensions than the result, or is made of weights."""
        if not self.result_dims <= node_dims(self.graph, i):
            return True
        values = [self.graph.nodes[n].value for n in self.graph.reached([i])]
        return all(
            isinstance(owner(v[0]), LoadOp)
            for v in values
            if isinstance(v, tuple) and isinstance(v[0], SSAValue)
        )

    def core(self, i: int) -> _Norm | None:
        """x · r or x / s with r or s from the statistics of x."""
        node = self.graph.nodes[i]
        if node.op == "mul":
            for a, b in (node.args, node.args[::-1]):
                variance = self.inverse_root(self.strip(b))
                if variance is not None:
                    return self.normalised(self.strip(a), *variance)
        if node.op == "div":
            variance = self.root(self.strip(node.args[1]))
            if variance is not None:
                return self.normalised(self.strip(node.args[0]), *variance)
        return None

    def inverse_root(self, i: int) -> tuple[int, float] | None:
        """(v, ε) of 1 / sqrt(v + ε)."""
        node = self.graph.nodes[i]
        if node.op == "rsqrt":
            return self.shifted(self.strip(node.args[0]))
        if node.op == "recip":
            return self.root(self.strip(node.args[0]))
        if node.op == "pow" and self.graph.constant(node.args[1]) == -0.5:
            return self.shifted(self.strip(node.args[0]))
        return None

    def root(self, i: int) -> tuple[int, float] | None:
        """(v, ε) of sqrt(v + ε)."""
        node = self.graph.nodes[i]
        return self.shifted(self.strip(node.args[0])) if node.op == "sqrt" else None

    def shifted(self, i: int) -> tuple[int, float] | None:
        """(v, ε) of v + ε."""
        node = self.graph.nodes[i]
        if node.op == "add":
            for a, b in (node.args, node.args[::-1]):
                epsilon = self.graph.constant(self.strip(b))
                if epsilon is not None:
                    return self.strip(a), float(epsilon)
        return i, 0.0

    def normalised(self, x: int, variance: int, epsilon: float) -> _Norm | None:
        """The normalisation of numerator node `x` by the mean of its squares."""
        mean = self.mean(variance)
        if mean is None:
            return None
        inner, dims = mean
        square = self.graph.nodes[self.strip(inner)]
        if square.op != "mul" or self.strip(square.args[0]) != self.strip(square.args[1]):
            return None
        # The statistic's operand is indexed by the reduced dimensions, as the numerator is.
        if self.strip(square.args[0]) != x:
            return None
        form = NormForm.RMS
        node = self.graph.nodes[x]
        if node.op == "sub":
            centre = self.mean(self.strip(node.args[1]))
            value = self.strip(node.args[0])
            if centre is None or self.strip(centre[0]) != value or centre[1] != dims:
                return None
            form = NormForm.LAYER
            x = value
        tensor = self.expansion.tensors.get(x)
        # A norm has statistics of its own at every point: none that a broadcast repeats.
        if tensor is None or {d for a in tensor[1] for d, _ in a.terms} != set(
            range(len(self.domain.dims))
        ):
            return None
        return _Norm(tensor, dims, form, epsilon, reduces=self.reduces)

    def mean(self, i: int) -> tuple[int, frozenset[int]] | None:
        """(element node, reduced dimensions) of a mean over whole dimensions of the domain."""
        node = self.graph.nodes[self.strip(i)]
        factor = 1.0
        while node.op in ("mul", "div"):
            number = self.graph.constant(node.args[1])
            if number is None:
                return None
            factor = factor * number if node.op == "mul" else factor / number
            node = self.graph.nodes[self.strip(node.args[0])]
        if node.op != "input" or not isinstance(node.value, tuple):
            return None
        value, axes = node.value
        op = owner(value)
        if not isinstance(op, ReduceOp) or op.combiner != _SUM or len(op.ins) != 1:
            return None
        found = self._element(op, axes)
        if found is None:
            return None
        element, dims = found
        if op.epilogue is not None:
            scale = _scale_of(op)
            if scale is None:
                return None
            factor *= scale
        count = prod(self.domain.dims[d].extent for d in dims)
        self.reduces.append(op)
        return (element, dims) if isclose(factor * count, 1.0, rel_tol=1e-6) else None

    def _element(self, op: ReduceOp, axes: Map) -> tuple[int, frozenset[int]] | None:
        """The node of what `op` sums, its reduction dimensions being those of the domain that the
        statistic is constant over."""
        composed = compose_read(op, axes, self.domain)
        if composed is None or isinstance(composed, Split) or composed[1]:
            return None
        assign, _ = composed
        own = op.domain.data
        reduced = [d for d, dim in enumerate(own.dims) if dim.kind is DimKind.REDUCTION]
        used = {d for a in assign.values() for d, _ in a.terms}
        free = [d for d in sorted(self.result_dims) if d not in used]
        if [own.dims[d].extent for d in reduced] != [self.domain.dims[d].extent for d in free]:
            return None
        assign |= {r: AxisExpr(((d, 1),)) for r, d in zip(reduced, free, strict=True)}
        node = self.expansion.read(op.ins[0], substitute_map(own.operands[0], assign))
        return None if isinstance(node, Split) else (node, frozenset(free))


def _scale_of(op: ReduceOp) -> float | None:
    """The factor that an epilogue multiplies a sum with, if that is all it does."""
    assert op.epilogue is not None
    graph = BodyGraph()
    total = graph.input("sum", accumulator(dtype_of_value(op.ins[0])))
    (i,) = graph.inline(op.epilogue.data, [total])
    factor = 1.0
    while i != total:
        node = graph.nodes[i]
        number = graph.constant(node.args[1]) if node.op in ("mul", "div") else None
        if node.op == "cast":
            i = node.args[0]
            continue
        if number is None:
            return None
        factor = factor * number if node.op == "mul" else factor / number
        i = node.args[0]
    return factor


def _expanded(op: MapOp) -> tuple[Expansion, int] | None:
    """The expression that a map computes, with every map that leads to it."""
    domain = op.domain.data
    while True:
        expansion = Expansion(domain)
        args: list[int] = []
        for value, axes in zip(op.ins, domain.operands, strict=True):
            node = expansion.read(value, axes)
            if isinstance(node, Split):
                domain = split_dim(domain, node)
                break
            args.append(node)
        else:
            return expansion, expansion.builder.inline(op.body.data, args)[0]


def _match(op: MapOp) -> tuple[_Norm, Expansion] | None:
    found = _expanded(op)
    if found is None:
        return None
    expansion, root = found
    result_dims = {d for axis in expansion.domain.results[0] for d, _ in axis.terms} or set(
        range(len(expansion.domain.dims))
    )
    expansion.domain = replace(expansion.domain, results=expansion.domain.results)
    norm = _Matcher(expansion, result_dims).norm(root)
    return None if norm is None else (norm, expansion)


def _candidates(op: ReduceOp) -> list[MapOp]:
    """Maps that read a reduction's result, directly or behind one another."""
    found: list[MapOp] = []
    current: SSAValue = op.outs[0]
    for _ in range(MAX_STEPS):
        maps = [u for u in users(current) if isinstance(u, MapOp) and len(u.outs) == 1]
        if len(maps) != 1 or len(users(current)) != 1:
            break
        found.append(maps[0])
        current = maps[0].outs[0]
    return found


def _replace(op: MapOp, norm: _Norm, expansion: Expansion) -> NormalizeOp:
    domain = expansion.domain
    ins, maps = [norm.x[0]], [norm.x[1]]
    for _, node in norm.affine:
        # The kernel widens by itself.
        while (cast := expansion.builder.nodes[node]).op == "cast" and cast.dtype == "float32":
            node = cast.args[0]
        read = expansion.operand(node, op)
        ins.append(read[0])
        maps.append(read[1])
    dims = [
        replace(d, kind=DimKind.REDUCTION) if i in norm.dims else d
        for i, d in enumerate(domain.dims)
    ]
    properties: dict[str, Attribute] = {
        "domain": domain_attr(dims, maps, list(domain.results)),
        "form": NormFormAttr(norm.form),
        "epsilon": FloatAttr(norm.epsilon, f64),
    }
    if norm.affine:
        properties["affine"] = StringAttr(" ".join(kind for kind, _ in norm.affine))
    dtype = accumulator(dtype_of_value(norm.x[0]))
    if norm.round_to is not None and norm.round_to != dtype and norm.affine:
        properties["round_to"] = StringAttr(norm.round_to)
    new = NormalizeOp.create(operands=ins, result_types=[op.outs[0].type], properties=properties)
    fuse_locations((*norm.reduces, *expansion.absorbed, op), new)
    replace_op(op, new, clean=True)
    return new


@dataclass(frozen=True)
class TeFuseNormalizePass(ModulePass):
    """Recognise RMS and layer normalisations."""

    name = "te-fuse-normalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for reduce in structured_ops(op):
            if not isinstance(reduce, ReduceOp) or reduce.combiner != _SUM or not reduce.parent:
                continue
            best: tuple[MapOp, _Norm, Expansion] | None = None
            for candidate in _candidates(reduce):
                found = _match(candidate)
                if found is not None and reduce in found[0].reduces:
                    best = (candidate, *found)
                elif best is not None:
                    break
            if best is not None:
                _replace(*best)
