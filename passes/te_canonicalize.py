"""`te-canonicalize`: shorter domains and bodies, one of each equal operation, nothing dead.

- dimensions of one point go, dimensions that only occur as one radix (`16*h + d`) merge;
- bodies are folded and numbered, operands read twice are read once, filled constants are numbers;
- moves that move nothing, equal pure operations and equal globals are merged;
- pure operations that read nothing of a loop's body leave the loop;
- small computations on weights become new constants, or steps of a weight's recipe.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import (
    array_from_dense,
    dense_from_array,
    element_type_name,
)
from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import (
    BodyAttr,
    ConcatOp,
    ContractOp,
    GlobalKindAttr,
    GlobalOp,
    LoadOp,
    MapOp,
    ReduceOp,
    RepeatOp,
    WeightAttr,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.numerics.kernels import run_whole
from elk_ir.passes.te_affine import bounds, covers
from elk_ir.passes.te_bodies import BodyGraph, python_number
from elk_ir.passes.te_support import (
    FREE_DOMAINS,
    add_global,
    dtype_of_value,
    erase_dead,
    extents_of,
    fresh_symbol,
    functions,
    globals_of,
    is_inside,
    is_pure,
    new_global,
    owner,
    rebuilt,
    replace_op,
    replace_value,
    retarget,
    shape_of,
    simplified_domain,
    symbol_of,
    tensor_of,
)

FOLD_ELEMENTS = 1 << 16
"""Computations on constants are done here up to this many elements."""


@dataclass
class _Interned:
    """A number for each attribute: hashing an attribute costs more than building an operation."""

    numbers: dict[Attribute, int] = field(default_factory=dict[Attribute, int])

    def __call__(self, attribute: Attribute) -> int:
        return self.numbers.setdefault(attribute, len(self.numbers))

    def key(self, op: Operation) -> Hashable:
        """Equal for operations that compute the same."""
        return (
            type(op),
            tuple(op.operands),
            tuple(sorted((k, self(v)) for k, v in op.properties.items())),
            tuple(self(r.type) for r in op.results),
        )


@dataclass
class _Constants:
    """What is known of the globals of a module."""

    module: ModuleOp
    table: dict[str, GlobalOp]

    def dense(self, value: SSAValue) -> DenseIntOrFPElementsAttr | None:
        """The constant (of all layers, if it is stacked) that a value is loaded from."""
        op = owner(value)
        if not isinstance(op, LoadOp):
            return None
        source = self.table.get(symbol_of(op))
        stored = None if source is None else source.value
        return stored if isinstance(stored, DenseIntOrFPElementsAttr) else None

    def number(self, value: SSAValue) -> float | int | bool | None:
        """The number that a value is filled with."""
        attr = self.dense(value)
        if attr is None or not prod(attr.get_shape()):
            return None
        if not (attr.is_splat() or prod(attr.get_shape()) == 1):
            return None
        dtype = dtype_of_value(value)
        return python_number(array_from_dense(attr).reshape(-1)[0], dtype)

    def add(self, name: str, value: Attribute, type_: Attribute, layers: int) -> str:
        """A new weight; its symbol is `name` or like it."""
        symbol = fresh_symbol(name, self.table)
        op = new_global(
            symbol,
            kind=GlobalKindAttr(GlobalKind.WEIGHT),
            type=type_,
            stack=IntegerAttr(layers, i64) if layers > 1 else None,
            value=value,
        )
        add_global(self.module, op)
        self.table[symbol] = op
        return symbol


def _merge_globals(module: ModuleOp, intern: _Interned) -> None:
    """Let loads of equal weights read the first of them."""
    first: dict[Hashable, str] = {}
    same: dict[str, str] = {}
    for symbol, op in globals_of(module).items():
        if op.kind.data is GlobalKind.WEIGHT and op.value is not None:
            key = (intern(op.value), intern(op.type), op.layers)
            if (known := first.setdefault(key, symbol)) != symbol:
                same[symbol] = known
    if same:
        for op in module.walk():
            if isinstance(op, LoadOp) and symbol_of(op) in same:
                retarget(op, same[symbol_of(op)])


# ---------------------------------------------------------------------- one operation


def _simplified(op: StructuredOp, constants: _Constants) -> StructuredOp | SSAValue:
    """A simpler operation that computes the same, the value that it yields, or `op` itself, of
    which the domain may have changed."""
    if not isinstance(op, FREE_DOMAINS):
        return op
    domain, dim = simplified_domain(op, op.domain.data)
    ins = list(op.ins)
    properties: dict[str, Attribute] = {}
    if dim is not None and isinstance(op, ConcatOp) and dim != op.dim.value.data:
        op.properties["dim"] = IntegerAttr(dim, i64)
    if domain != op.domain.data:
        op.properties["domain"] = DomainAttr(domain)
    if isinstance(op, MapOp):
        body = op.body.data
        numbers = [constants.number(v) for v in ins]
        repeated = len(set(zip(ins, domain.operands, strict=True))) < len(ins)
        if len(body.instrs) > 1 or repeated or any(n is not None for n in numbers):
            graph = BodyGraph()
            args: list[int] = []
            for v, axes, number in zip(ins, domain.operands, numbers, strict=True):
                dtype = dtype_of_value(v)
                if number is not None and _reads_inside(v, axes, domain):
                    args.append(graph.const(number, dtype))
                else:
                    args.append(graph.input((v, axes), dtype))
            new, keys = graph.build(graph.inline(body, args))
            ins = [k[0] for k in keys]  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]
            operands = tuple(k[1] for k in keys)  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]
            domain = Domain(domain.dims, operands, domain.results)
            if new != body:
                properties["body"] = BodyAttr(new)
                body = new
        if body.is_identity and _moves_nothing(ins[0], op.outs[0], domain):
            return ins[0]
    elif isinstance(op, ContractOp | ReduceOp) and op.epilogue is not None:
        if op.epilogue.data.is_identity:
            del op.properties["epilogue"]
    if len(ins) != len(op.ins):
        return rebuilt(op, ins, domain, properties=properties)
    op.properties.update(properties)
    return op


def _reads_inside(value: SSAValue, axes: Map, domain: Domain) -> bool:
    extents = extents_of(domain)
    for axis, extent in zip(axes, shape_of(value), strict=True):
        low, high = bounds(axis, extents)
        if low < 0 or high >= extent:
            return False
    return True


def _moves_nothing(source: SSAValue, result: SSAValue, domain: Domain) -> bool:
    return (
        source.type == result.type
        and domain.operands[0] == domain.results[0]
        and covers(domain.results[0], shape_of(result), extents_of(domain))
    )


def _folded(op: StructuredOp, constants: _Constants) -> LoadOp | None:
    """A load of the result, if `op` only reads constants and is small."""
    loads = [owner(v) for v in op.ins]
    if not loads or len(op.results) != 1 or prod(shape_of(op.results[0])) > FOLD_ELEMENTS:
        return None
    layer: SSAValue | None = None
    layers = 1
    name = ""
    for load in loads:
        if not isinstance(load, LoadOp) or symbol_of(load) not in constants.table:
            return None
        if load.layer is not None:
            layer, layers = load.layer, constants.table[symbol_of(load)].layers
        name = name or symbol_of(load)
    type_ = tensor_of(op.results[0])
    attrs = [constants.dense(v) for v in op.ins]
    if all(a is not None for a in attrs):
        if layers > 1 and any(
            isinstance(load, LoadOp) and load.layer is not None for load in loads
        ):
            rows = [
                run_whole(
                    op.operator(), [_layer(v, a, i) for v, a in zip(op.ins, attrs, strict=True)]
                )[0]
                for i in range(layers)
            ]
            array = np.stack(rows)
        else:
            known = [array_from_dense(a) for a in attrs if a is not None]
            array = run_whole(op.operator(), known)[0]
        value: Attribute | None = dense_from_array(array)
    else:
        value = _recipe(op, constants)
    if value is None:
        return None
    new = LoadOp(constants.add(name, value, type_, layers), type_, layer)
    fuse_locations([load for load in loads if load is not None] + [op], new)
    return new


def _layer(value: SSAValue, attr: DenseIntOrFPElementsAttr | None, layer: int) -> np.ndarray:
    assert attr is not None
    array = array_from_dense(attr)
    load = owner(value)
    return array[layer] if isinstance(load, LoadOp) and load.layer is not None else array


def _recipe(op: StructuredOp, constants: _Constants) -> WeightAttr | None:
    """The weight that results from casts, additions and products with a number, as a recipe."""
    if not isinstance(op, MapOp) or len(op.ins) != 1:
        return None
    domain = op.domain.data
    load = owner(op.ins[0])
    assert isinstance(load, LoadOp)
    stored = constants.table[symbol_of(load)].value
    body = op.body.data
    if (
        not isinstance(stored, WeightAttr)
        or domain.operands[0] != domain.results[0]
        or shape_of(op.ins[0]) != shape_of(op.outs[0])
        or not covers(domain.results[0], shape_of(op.outs[0]), extents_of(domain))
    ):
        return None
    steps: list[str] = []
    current = 0
    numbers: dict[int, object] = {}
    for i, instr in enumerate(body.instrs, start=1):
        if instr.op == "const":
            numbers[i] = instr.value
            continue
        if current not in instr.args:
            return None
        if instr.op == "cast":
            type_ = tensor_of(op.outs[0]).element_type
            if i != len(body.instrs) and instr.dtype != "float32":
                return None
            steps.append(f"cast {'f32' if instr.dtype == 'float32' else element_type_name(type_)}")
        elif instr.op in ("add", "mul"):
            other = instr.args[1] if instr.args[0] == current else instr.args[0]
            if other not in numbers:
                return None
            steps.append(f"{instr.op} {numbers[other]!r}")
        else:
            return None
        current = i
    if body.results != (current,) or not steps:
        return None
    return WeightAttr.get(stored.to_ref().then(*steps))


# ---------------------------------------------------------------------- blocks


def _process(
    block: Block,
    known: dict[Hashable, Operation],
    constants: _Constants | None,
    intern: _Interned,
) -> None:
    """Clean up a block; without `constants` operations are only merged and moved."""
    for op in list(block.ops):
        if isinstance(op, RepeatOp):
            _process(op.body.block, dict(known), constants, intern)
            continue
        if not is_pure(op):
            continue
        if isinstance(op, StructuredOp) and constants is not None:
            new = _simplified(op, constants)
            if isinstance(new, SSAValue):
                replace_value(op.results[0], new)
                erase_dead(op)
                continue
            folded = _folded(new, constants)
            if folded is not None or new is not op:
                final = new if folded is None else folded
                replace_op(op, final)
                op = final
        place = _outside(op, block)
        if place is not None:
            op.detach()
            assert place.parent is not None
            place.parent.insert_op_before(op, place)
        key = intern.key(op)
        first = known.get(key)
        if first is not None and place is None:
            fuse_locations((first, op), first)
            for old, same in zip(op.results, first.results, strict=True):
                replace_value(old, same)
            erase_dead(op)
        else:
            known[key] = op


def _outside(op: Operation, block: Block) -> Operation | None:
    """The loop that `op` can leave, if it reads nothing that is defined in it."""
    loop = block.parent_op()
    if not isinstance(loop, RepeatOp) or any(is_inside(v, block) for v in op.operands):
        return None
    return loop


def erase_dead_code(module: ModuleOp) -> None:
    """Erase pure operations without uses, and weights that nothing loads."""
    for op in reversed(list(module.walk())):
        if is_pure(op):
            erase_dead(op)
    used = {symbol_of(op) for op in module.walk() if isinstance(op, LoadOp)}
    for symbol, op in globals_of(module).items():
        if op.kind.data is GlobalKind.WEIGHT and symbol not in used:
            op.detach()
            op.erase()


@dataclass(frozen=True)
class TeCanonicalizePass(ModulePass):
    """Simplify domains, bodies and constants; merge equal operations; drop what is dead.

    `simplify=false` only merges and drops, which is all that an unrolled graph needs before its
    layers are rolled."""

    name = "te-canonicalize"

    simplify: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        intern = _Interned()
        _merge_globals(op, intern)
        constants = _Constants(op, globals_of(op)) if self.simplify else None
        for function in functions(op):
            _process(function.body.block, {}, constants, intern)
        erase_dead_code(op)
