"""What the te passes share: rebuilding operations, composing maps, globals, cleaning up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips.chip import Chip
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import (
    AttentionOp,
    ConcatOp,
    ContractOp,
    GatherOp,
    GlobalOp,
    LoadOp,
    MapOp,
    NormalizeOp,
    ReduceOp,
    RepeatOp,
    SoftmaxOp,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp, domain_attr
from elk_ir.dialects.types import shape_dtype, tensor_type
from elk_ir.passes.te_affine import (
    Solution,
    Split,
    drop_dims,
    merge_dims,
    merge_pair,
    solve,
    split_dim,
    substitute_map,
)
from elk_ir.passes.te_bodies import BodyGraph, is_exact_cast
from elk_ir.plan.domain import AxisExpr, Dim, DimKind

Read = tuple[SSAValue, Map]
"""A tensor and how it is indexed in somebody's dimensions."""

# Kinds whose dimensions may be split and merged freely. The others (a convolution's windows, say)
# may be told apart by position.
FREE_DOMAINS = (
    MapOp,
    ContractOp,
    ReduceOp,
    SoftmaxOp,
    NormalizeOp,
    AttentionOp,
    GatherOp,
    ConcatOp,
)


# ---------------------------------------------------------------------- looking


def owner(value: SSAValue) -> Operation | None:
    """The operation that defines a value; None for a block argument."""
    return value.owner if isinstance(value, OpResult) else None


def producer(value: SSAValue) -> StructuredOp | None:
    """The structured operation with one result that defines a value."""
    op = owner(value)
    return op if isinstance(op, StructuredOp) and len(op.results) == 1 else None


def reductions_are_written(domain: Domain, written: Map) -> bool:
    """Whether a result that is written so has every reduction dimension, those of one point too: a
    norm and a softmax have a result for each point of what they run over."""
    found = {d for axis in written for d, _ in axis.terms}
    return all(d.kind is not DimKind.REDUCTION or i in found for i, d in enumerate(domain.dims))


def users(value: SSAValue) -> list[Operation]:
    """The operations that use a value, each once, in no particular order."""
    return list(dict.fromkeys(use.operation for use in value.uses))


def has_one_use(value: SSAValue) -> bool:
    """Whether exactly one operand reads the value."""
    return value.has_one_use()


def is_move(op: Operation | None) -> bool:
    """Whether an operation only moves data: a map of one operand with the identity as its body."""
    return isinstance(op, MapOp) and len(op.outs) == 1 and op.body.data.is_identity


def scaling_of(op: MapOp) -> float | None:
    """The number that a map of one operand multiplies it with (apart from exact casts); None if it
    does anything else."""
    graph = BodyGraph()
    x = graph.input(0, dtype_of_value(op.ins[0]))
    (i,) = graph.inline(op.body.data, [x])
    factor = 1.0
    while i != x:
        node = graph.nodes[i]
        if node.op == "cast":
            if not is_exact_cast(graph.nodes[node.args[0]].dtype, node.dtype):
                return None
            i = node.args[0]
            continue
        if node.op == "neg":
            factor, i = -factor, node.args[0]
            continue
        if node.op not in ("mul", "div"):
            return None
        pairs = (node.args, node.args[::-1]) if node.op == "mul" else (node.args,)
        for a, b in pairs:
            number = graph.constant(b)
            if number is not None:
                factor = factor * number if node.op == "mul" else factor / number
                i = a
                break
        else:
            return None
    return factor


def extents_of(domain: Domain) -> tuple[int, ...]:
    """The extent of each dimension."""
    return tuple(d.extent for d in domain.dims)


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a static tensor."""
    return shape_dtype(value)[0]


def dtype_of_value(value: SSAValue) -> str:
    """The numpy element type of a tensor."""
    return shape_dtype(value)[1]


def compose_read(
    op: StructuredOp, axes: Map, domain: Domain, result: int = 0
) -> tuple[dict[int, AxisExpr], frozenset[int]] | Split | None:
    """The dimensions of `op`, of which a result is read through `axes` in `domain`, as expressions
    of that domain; and those that leave their extent. See `solve`."""
    own = op.domain.data
    shape = shape_of(op.outs[result])
    found = solve(own.results[result], shape, extents_of(own), axes, extents_of(domain))
    return (dict(found.assign), found.loose) if isinstance(found, Solution) else found


def in_bounds(op: StructuredOp, i: int) -> bool:
    """Whether operand i is never read outside its shape."""
    from elk_ir.passes.te_affine import bounds

    domain = op.domain.data
    extents = extents_of(domain)
    for axis, extent in zip(domain.operands[i], shape_of(op.ins[i]), strict=True):
        low, high = bounds(axis, extents)
        if low < 0 or high >= extent:
            return False
    return True


def loose_is_harmless(op: StructuredOp, i: int, loose: Iterable[int]) -> bool:
    """Whether reading operand i of `op` outside the extent of the dimensions `loose` leaves that
    operand too: each is a whole axis of it."""
    domain = op.domain.data
    shape = shape_of(op.ins[i])
    for d in loose:
        axes = [j for j, a in enumerate(domain.operands[i]) if any(t == d for t, _ in a.terms)]
        if len(axes) != 1 or domain.operands[i][axes[0]].simple_dim != d:
            return False
        if shape[axes[0]] != domain.dims[d].extent:
            return False
    return True


# ---------------------------------------------------------------------- rebuilding


def pinned_dims(op: StructuredOp) -> frozenset[int]:
    """Dimensions that must stay as they are: that of a concat, the single reduction of attention
    and gather."""
    if isinstance(op, ConcatOp):
        return frozenset({op.dim.value.data})
    if isinstance(op, AttentionOp | GatherOp):
        dims = op.domain.data.dims
        return frozenset(i for i, d in enumerate(dims) if d.kind is DimKind.REDUCTION)
    return frozenset()


def split_op_domain(op: StructuredOp, domain: Domain, split: Split) -> Domain | None:
    """`domain` of `op` with a dimension split; None where the operation forbids it (it names one by
    position, or has exactly one of its kind).

    Dimensions behind the split one move up."""
    if split.dim in pinned_dims(op) or not isinstance(op, FREE_DOMAINS):
        return None
    if isinstance(op, ConcatOp) and split.dim < op.dim.value.data:
        return None
    return split_dim(domain, split)


def rebuilt(
    op: StructuredOp,
    ins: Sequence[SSAValue],
    domain: Domain,
    result_types: Sequence[Attribute] | None = None,
    properties: dict[str, Attribute] | None = None,
    sources: Sequence[Operation] = (),
) -> StructuredOp:
    """`op` on other operands with another domain, and the locations of `op` and `sources`."""
    new = type(op).create(
        operands=list(ins),
        result_types=list(result_types) if result_types else [r.type for r in op.results],
        properties={**op.properties, **(properties or {}), "domain": DomainAttr(domain)},
        attributes=op.attributes,
    )
    if sources:
        fuse_locations((*sources, op), new)
    else:
        new.location = op.location
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    return new


def replace_op(old: Operation, new: Operation, *, clean: bool = False) -> None:
    """Put `new` in the place of `old`, results for results; `clean` erases what only `old` read."""
    block = old.parent
    assert block is not None
    block.insert_op_before(new, old)
    for before, after in zip(old.results, new.results, strict=True):
        before.replace_all_uses_with(after)
        if after.name_hint is None:
            after.name_hint = before.name_hint
    sources = [owner(v) for v in dict.fromkeys(old.operands)]
    old.detach()
    old.erase()
    if clean:
        for source in sources:
            erase_dead(source)


def replace_value(old: SSAValue, new: SSAValue) -> None:
    """Let all users of one value use another, which inherits its name."""
    if new.name_hint is None and isinstance(new, OpResult):
        new.name_hint = old.name_hint
    old.replace_all_uses_with(new)


def erase_dead(op: Operation | None) -> None:
    """Erase a pure operation without uses, then those that only it used."""
    stack = [op]
    while stack:
        dead = stack.pop()
        if dead is None or dead.parent is None or not is_pure(dead):
            continue
        if any(r.uses for r in dead.results):
            continue
        stack.extend(owner(v) for v in dict.fromkeys(dead.operands))
        dead.detach()
        dead.erase()


def is_pure(op: Operation) -> bool:
    """Whether an operation may be dropped, merged with its equal and moved."""
    return isinstance(op, StructuredOp | LoadOp)


def simplified_domain(op: StructuredOp, domain: Domain) -> tuple[Domain, int | None]:
    """`domain` of `op` without dimensions of one point and with radix pairs merged.

    The second value is the new position of a concat's dimension."""
    if not isinstance(op, ConcatOp):
        return _simplified(type(op), domain), None
    dim = op.dim.value.data
    gone = {i for i, d in enumerate(domain.dims) if d.extent == 1 and i != dim}
    return drop_dims(domain, gone), dim - sum(i < dim for i in gone)


@lru_cache(maxsize=4096)
def _simplified(kind: type[StructuredOp], domain: Domain) -> Domain:
    # Softmax and the others need a dimension to run over, be it one point.
    droppable = issubclass(kind, MapOp | ContractOp | ReduceOp)
    gone = {
        i
        for i, d in enumerate(domain.dims)
        if d.extent == 1 and (droppable or d.kind is not DimKind.REDUCTION)
    }
    if gone:
        domain = drop_dims(domain, gone)
    if not issubclass(kind, AttentionOp | GatherOp):
        while (pair := merge_pair(domain)) is not None:
            domain = merge_dims(domain, *pair)
    return domain


# ---------------------------------------------------------------------- expressions


@dataclass
class Expansion:
    """Maps that lead to a result, read into one graph of scalar operations.

    Inputs are (tensor, index in the dimensions of `domain`). `tensors` says of a node which tensor
    it is an element of, and at which index; `absorbed` are the operations that were read in."""

    domain: Domain
    builder: BodyGraph = field(default_factory=BodyGraph)
    absorbed: dict[Operation, None] = field(default_factory=dict[Operation, None])
    tensors: dict[int, Read] = field(default_factory=dict[int, Read])
    limit: int = 64
    _known: dict[Read, int] = field(default_factory=dict[Read, int])

    def read(self, value: SSAValue, axes: Map, depth: int = 16) -> int | Split:
        """The node for a tensor read through `axes`: maps that produce it are read in where the
        composition is affine. May ask for a dimension of the domain to be split first."""
        node = self._known.get((value, axes))
        if node is not None:
            return node
        node = self._inlined(value, axes, depth)
        if isinstance(node, Split):
            return node
        if node is None:
            node = self.builder.input((value, axes), dtype_of_value(value))
        self._known[value, axes] = node
        self.tensors.setdefault(node, (value, axes))
        return node

    def _inlined(self, value: SSAValue, axes: Map, depth: int) -> int | Split | None:
        op = owner(value)
        if not isinstance(op, MapOp) or not depth or len(self.builder.nodes) > self.limit:
            return None
        assert isinstance(value, OpResult)
        found = compose_read(op, axes, self.domain, value.index)
        if found is None or isinstance(found, Split):
            return found
        assign, loose = found
        if loose or not all(in_bounds(op, i) for i in range(len(op.ins))):
            return None
        args: list[int] = []
        for operand, operand_axes in zip(op.ins, op.domain.data.operands, strict=True):
            node = self.read(operand, substitute_map(operand_axes, assign), depth - 1)
            if isinstance(node, Split):
                return node
            args.append(node)
        self.absorbed[op] = None
        return self.builder.inline(op.body.data, args)[value.index]

    def operand(self, node: int, at: Operation) -> Read:
        """A node as an operand of an operation at `at`: the tensor that it is an element of, or one
        that is made for it."""
        known = self.tensors.get(node)
        if known is not None:
            return known
        made, axes = materialized(self.builder, node, self.domain, at)
        return made.outs[0], axes


def reads(keys: Sequence[Hashable]) -> list[Read]:
    """Keys of an expansion's inputs, typed."""
    return [key for key in keys if isinstance(key, tuple)]  # pyright: ignore[reportReturnType]


def node_dims(builder: BodyGraph, i: int) -> set[int]:
    """Dimensions that the inputs of node i depend on."""
    dims: set[int] = set()
    for n in builder.reached([i]):
        node = builder.nodes[n]
        if node.op == "input" and isinstance(node.value, tuple):
            for axis in node.value[1]:
                dims.update(d for d, _ in axis.terms)
    return dims


def materialized(builder: BodyGraph, i: int, domain: Domain, at: Operation) -> tuple[MapOp, Map]:
    """An operation before `at` (before its loop, if everything it reads is) that computes node i
    over the dimensions it depends on, and the map by which `domain` reads the result."""
    kept = sorted(node_dims(builder, i))
    body, keys = builder.build([i])
    assign = {d: AxisExpr(((n, 1),)) for n, d in enumerate(kept)}
    dims = [Dim(domain.dims[d].name, domain.dims[d].extent) for d in kept]
    ins = [value for value, _ in reads(keys)]
    maps = [substitute_map(axes, assign) for _, axes in reads(keys)]
    result = tuple(AxisExpr(((n, 1),)) for n in range(len(kept)))
    type_ = tensor_type([d.extent for d in dims], builder.nodes[i].dtype)
    op = MapOp.of(ins, body, [type_], domain_attr(dims, maps, [result]))
    op.location = at.location
    place = outside_of_loop(at, ins)
    block = place.parent
    assert block is not None
    block.insert_op_before(op, place)
    return op, tuple(AxisExpr(((d, 1),)) for d in kept)


def outside_of_loop(at: Operation, ins: Sequence[SSAValue]) -> Operation:
    """`at`, or the outermost loop around it in which none of `ins` is defined."""
    place = at
    while isinstance(parent := place.parent_op(), RepeatOp):
        inside = parent.body.block
        if any(is_inside(v, inside) for v in ins):
            break
        place = parent
    return place


def is_inside(value: SSAValue, block: Block) -> bool:
    """Whether a value is defined in a block or a region below it."""
    where = value.owner if isinstance(value.owner, Block) else value.owner.parent
    while where is not None:
        if where is block:
            return True
        where = where.parent_block()
    return False


# ---------------------------------------------------------------------- module


def structured_ops(module: ModuleOp) -> Iterator[StructuredOp]:
    """All structured operations that are still in place, in program order."""
    for op in list(module.walk()):
        if isinstance(op, StructuredOp) and op.parent is not None:
            yield op


def functions(module: ModuleOp) -> list[FuncOp]:
    """The functions with a body."""
    return [
        op for op in module.ops if isinstance(op, FuncOp) and op.body.blocks and op.body.block.ops
    ]


def globals_of(module: ModuleOp) -> dict[str, GlobalOp]:
    """The globals of a module by symbol."""
    return {op.sym_name.data: op for op in module.ops if isinstance(op, GlobalOp)}


def fresh_symbol(name: str, taken: Iterable[str]) -> str:
    """`name`, or `name_1`, … if it is taken."""
    used = taken if isinstance(taken, set | dict) else set(taken)
    candidate, n = name, 0
    while candidate in used:
        n += 1
        candidate = f"{name}_{n}"
    return candidate


def add_global(module: ModuleOp, op: GlobalOp) -> None:
    """Insert a global behind the module's other globals."""
    block = module.body.block
    last = None
    for other in block.ops:
        if isinstance(other, GlobalOp):
            last = other
    if last is not None:
        block.insert_op_after(op, last)
    elif block.first_op is not None:
        block.insert_op_before(op, block.first_op)
    else:
        block.add_op(op)


def chip_for(module: ModuleOp, name: str | None, missing: str) -> Chip:
    """The chip that a pass was given by name, or else the module's. Raises PassFailedException
    (`missing`) where there is neither."""
    if name is not None:
        from elk_ir.chips import load_chip

        return load_chip(name)
    attr = module.attributes.get("icca.chip")
    if not isinstance(attr, ChipAttr):
        raise PassFailedException(missing)
    return attr.to_chip()


def symbol_of(op: LoadOp) -> str:
    """The symbol that a load reads."""
    return op.source.root_reference.data


def new_global(symbol: str, **properties: Attribute | None) -> GlobalOp:
    """A global with the given properties (None leaves one out)."""
    return GlobalOp.create(
        properties={
            "sym_name": StringAttr(symbol),
            **{key: value for key, value in properties.items() if value is not None},
        }
    )


def retarget(op: LoadOp, symbol: str) -> None:
    """Let a load read another global of the same type."""
    op.properties["source"] = SymbolRefAttr(symbol)


def tensor_of(value: SSAValue) -> TensorType[Attribute]:
    """The type of a tensor value."""
    assert isinstance(value.type, TensorType)
    return value.type
