"""What the passes of quantisation share: integer products, and numbers that are integers times a
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.ir import Attribute, OpResult, SSAValue

from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.te import (
    BodyAttr,
    ContractOp,
    DequantizeOp,
    LoadOp,
    MapOp,
    QuantizeOp,
    ReduceOp,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp, accumulator
from elk_ir.dialects.te.quantization import Step
from elk_ir.numerics.body import Body, is_float
from elk_ir.passes.te_affine import Split, bounds, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    compose_read,
    dtype_of_value,
    extents_of,
    globals_of,
    is_move,
    loose_is_harmless,
    owner,
    shape_of,
    symbol_of,
)
from elk_ir.quant.integers import NARROW

Number = Callable[[SSAValue], float | int | bool | None]
"""The number that a tensor is filled with, None where it is not one number."""


@dataclass(frozen=True)
class Factor:
    """A factor of a product: integers `value`, read through `axes`, that stand for
    (q - zero) · step; the map of a step is in the same dimensions."""

    value: SSAValue
    axes: Map
    step: Step
    zero: int = 0


def constants_of(module: ModuleOp) -> Number:
    """Tells the number of tensors that are loaded from constants of one number."""
    table = globals_of(module)

    def number(value: SSAValue) -> float | int | bool | None:
        op = owner(value)
        if not isinstance(op, LoadOp):
            return None
        stored = table.get(symbol_of(op))
        dense = None if stored is None else stored.value
        if dense is None or not hasattr(dense, "is_splat"):
            return None
        array = array_from_dense(dense).reshape(-1)  # pyright: ignore[reportArgumentType]
        if array.size == 0 or not (array == array[0]).all():
            return None
        return array[0].item()

    return number


# ---------------------------------------------------------------------- reading integers


@dataclass(frozen=True)
class _Stepped:
    """A body (q - zero) · step: the operands that are q and the step (or its number)."""

    q: int
    step: int | float
    zero: int


def stepped_body(op: StructuredOp, number: Number) -> _Stepped | None:
    """What `op` is, if it makes numbers of narrow integers by subtracting a zero point and
    multiplying with a step."""
    if isinstance(op, DequantizeOp):
        step = 1 if op.step is None else op.step.value.data
        return _Stepped(0, step, op.zero_point)
    if not isinstance(op, MapOp) or len(op.outs) != 1 or not is_float(dtype_of_value(op.outs[0])):
        return None
    graph = BodyGraph()
    args: list[int] = []
    for i, v in enumerate(op.ins):
        dtype = dtype_of_value(v)
        # A weight may be one integer all over, too: steps and zero points have fewer elements.
        small = prod(shape_of(v)) < prod(shape_of(op.outs[0]))
        known = number(v) if small or is_float(dtype) else None
        args.append(graph.input(i, dtype) if known is None else graph.const(known, dtype))
    (result,) = graph.inline(op.body.data, args)
    result = _through_casts(graph, result)
    if graph.nodes[result].op != "mul":
        return None
    for one, other in (graph.nodes[result].args, graph.nodes[result].args[::-1]):
        found = _integers(graph, one)
        step = _through_casts(graph, other)
        if found is None or not is_float(graph.nodes[step].dtype):
            continue
        node = graph.nodes[step]
        value = graph.constant(step)
        if value is None and node.op == "input" and isinstance(node.value, int):
            return _Stepped(found[0], node.value, found[1])
        if value is not None:
            return _Stepped(found[0], float(value), found[1])
    return None


def _through_casts(graph: BodyGraph, i: int) -> int:
    while graph.nodes[i].op == "cast":
        source = graph.nodes[i].args[0]
        if not is_float(graph.nodes[source].dtype):
            break
        i = source
    return i


def _integers(graph: BodyGraph, i: int) -> tuple[int, int] | None:
    """(input, zero point) of cast(q) - zero."""
    zero = 0
    node = graph.nodes[i]
    if node.op == "sub":
        known = graph.constant(node.args[1])
        if known is None or float(known) != int(known):
            return None
        zero, node = int(known), graph.nodes[node.args[0]]
    if node.op != "cast" or node.dtype != "float32":
        return None
    source = graph.nodes[node.args[0]]
    if source.op != "input" or source.dtype not in NARROW or not isinstance(source.value, int):
        return None
    return source.value, zero


def read_integers(
    value: SSAValue, axes: Map, domain: Domain, number: Number
) -> Factor | Split | None:
    """The integers behind `value`, read through `axes` in `domain`; a dimension may have to be
    split first. None where it is not an integer times a step."""
    op = owner(value)
    if not isinstance(op, StructuredOp) or not isinstance(value, OpResult):
        return None
    found = stepped_body(op, number)
    if found is None:
        return None
    composed = compose_read(op, axes, domain)
    if composed is None or isinstance(composed, Split):
        return composed
    assign, loose = composed
    if not loose_is_harmless(op, found.q, loose):
        return None
    maps = op.domain.data.operands
    step: Step = float(found.step)
    if isinstance(found.step, int):
        steps, read = op.ins[found.step], substitute_map(maps[found.step], assign)
        if not _inside(steps, read, domain):
            return None
        step = _behind_moves(steps, read, domain)
    return Factor(op.ins[found.q], substitute_map(maps[found.q], assign), step, found.zero)


def _inside(value: SSAValue, axes: Map, domain: Domain) -> bool:
    """Whether a tensor is never read outside its shape."""
    ends = [bounds(axis, extents_of(domain)) for axis in axes]
    return all(0 <= a and b < n for (a, b), n in zip(ends, shape_of(value), strict=True))


def _behind_moves(value: SSAValue, axes: Map, domain: Domain) -> tuple[SSAValue, Map]:
    """The tensor that a tensor of moved elements is read from, and how."""
    while isinstance(op := owner(value), MapOp) and is_move(op):
        found = compose_read(op, axes, domain)
        if found is None or isinstance(found, Split) or found[1]:
            break
        value, axes = op.ins[0], substitute_map(op.domain.data.operands[0], found[0])
    return value, axes


def step_dims(factor: Factor) -> set[int]:
    """The dimensions that a factor's step depends on."""
    if not isinstance(factor.step, tuple):
        return set()
    return {d for axis in factor.step[1] for d, _ in axis.terms}


# ---------------------------------------------------------------------- integer products


def integer_contract(
    op: ContractOp,
    factors: Sequence[Factor],
    domain: Domain,
    *,
    plain: Attribute | None = None,
) -> ContractOp:
    """`op` as a product of integers, or of numbers and narrow ones that are widened, in `domain`
    (of which the maps of the two factors are not looked at). `plain`: leave the epilogue out and
    yield numbers of this type."""
    graph = BodyGraph()
    types = [dtype_of_value(f.value) for f in factors]
    acc = graph.input("acc", accumulator(next((t for t in types if is_float(t)), types[0])))
    steps = [
        graph.emit("cast", (graph.input(f.step, dtype_of_value(f.step[0])),), "float32")
        if isinstance(f.step, tuple)
        else graph.const(float(np.float32(f.step)), "float32")
        for f in factors
    ]
    number = graph.emit("cast", (acc,), "float32")
    number = graph.emit("mul", (number, graph.emit("mul", steps)))
    if op.epilogue is None or plain is not None:
        to = dtype_of_value(op.outs[0]) if plain is None else "float32"
        results = [graph.emit("cast", (number,), to)]
    else:
        wide = graph.emit("cast", (number,), accumulator(dtype_of_value(op.ins[0])))
        extra = [
            graph.input((v, m), dtype_of_value(v))
            for v, m in zip(op.ins[2:], domain.operands[2:], strict=True)
        ]
        results = graph.inline(op.epilogue.data, [wide, *extra])
    body, keys = graph.build(results, first=["acc"])
    reads = [k for k in keys[1:] if isinstance(k, tuple)]
    properties: dict[str, Attribute] = {
        "domain": DomainAttr(
            Domain(
                domain.dims,
                (*(f.axes for f in factors), *(k[1] for k in reads)),  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                domain.results,
            )
        ),
        "epilogue": BodyAttr(body),
    }
    if any(f.zero for f in factors):
        properties["zeros"] = DenseArrayBase.from_list(i64, [f.zero for f in factors])
    new = ContractOp.create(
        operands=[*(f.value for f in factors), *(k[0] for k in reads)],  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType, reportUnknownVariableType]
        result_types=[r.type for r in op.results] if plain is None else [plain],
        properties=properties,
    )
    new.location = op.location
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    return new


def two_float_factors(op: ContractOp) -> bool:
    """Whether `op` multiplies two tensors of floats."""
    factors = 2 if op.factors is None else op.factors.value.data
    return factors == 2 and all(is_float(dtype_of_value(v)) for v in op.ins[:2])


# ---------------------------------------------------------------------- epilogues that quantise


def absorbed(op: QuantizeOp) -> StructuredOp | None:
    """The producer of what `op` quantises, quantising in its own body; None where something else
    reads its result, or it has no body."""
    producer = owner(op.ins[0])
    if not isinstance(producer, MapOp | ContractOp | ReduceOp) or len(producer.outs) != 1:
        return None
    if not op.ins[0].has_one_use() or producer.parent is not op.parent:
        return None
    domain, own = producer.domain.data, op.domain.data
    if own.operands[0] != own.results[0]:
        return None
    reads = list(zip(op.ins[1:], own.operands[1:], strict=True))
    assign = {
        axis.terms[0][0]: e for axis, e in zip(own.results[0], domain.results[0], strict=True)
    }
    if any(isinstance(owner(v), StructuredOp) for v, _ in reads):
        # The steps are computed from what is quantised, or at least later than it.
        return None
    first = 0 if isinstance(producer, MapOp) else _reduced(producer)
    graph = BodyGraph()
    values = [
        graph.input((v, m, i), dtype_of_value(v))
        for i, (v, m) in enumerate(zip(producer.ins, domain.operands, strict=True))
    ][first:]
    if first:
        stat = producer.operator().stats[0].dtype
        values = [graph.input("acc", stat), *values]
    body = _body(producer)
    if body is None:
        (value,) = (graph.emit("cast", values[:1], dtype_of_value(producer.outs[0])),)
    else:
        (value,) = graph.inline(body, values)
    steps = [graph.input((v, substitute_map(m, assign), -1), dtype_of_value(v)) for v, m in reads]
    types = [dtype_of_value(v) for v in op.ins]
    (result,) = graph.inline(op.scalar_body(types, dtype_of_value(op.outs[0])), [value, *steps])
    new, keys = graph.build([result], first=["acc"] if first else ())
    others = [k for k in keys if isinstance(k, tuple)]
    ins = [*producer.ins[:first], *(k[0] for k in others)]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    maps = (*domain.operands[:first], *(k[1] for k in others))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    name = "body" if isinstance(producer, MapOp) else "epilogue"
    made = type(producer).create(
        operands=ins,  # pyright: ignore[reportUnknownArgumentType]
        result_types=[op.outs[0].type],
        properties={
            **producer.properties,
            "domain": DomainAttr(Domain(domain.dims, maps, domain.results)),  # pyright: ignore[reportUnknownArgumentType]
            name: BodyAttr(new),
        },
        attributes=producer.attributes,
    )
    made.location = producer.location
    made.outs[0].name_hint = producer.outs[0].name_hint
    return made


def _reduced(op: ContractOp | ReduceOp) -> int:
    """How many operands are read before the epilogue."""
    if isinstance(op, ReduceOp):
        return 1
    return 2 if op.factors is None else op.factors.value.data


def _body(op: StructuredOp) -> Body | None:
    if isinstance(op, MapOp):
        return op.body.data
    assert isinstance(op, ContractOp | ReduceOp)
    return None if op.epilogue is None else op.epilogue.data
