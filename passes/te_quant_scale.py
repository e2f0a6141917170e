"""Attention over caches that are kept narrow: their steps go into what is read beside them.

With one step for all keys and one for all values, attention(q, s·K, t·V) is t · attention(s·q, K,
V). Keys and values stay narrow until a core multiplies them, and nothing of their size is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, TensorType
from xdsl.ir import SSAValue

from elk_ir.dialects.te import AttentionOp, ContractOp, DequantizeOp, MapOp
from elk_ir.dialects.te.interface import dims_of, domain_attr, identity_map
from elk_ir.dialects.te.quantization import Step
from elk_ir.numerics.body import is_float
from elk_ir.passes.te_affine import substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_quant_support import Factor, integer_contract
from elk_ir.passes.te_support import dtype_of_value, owner, replace_op, shape_of
from elk_ir.plan.domain import AxisExpr

KEYS, VALUES = 1, 2
ONE = (AxisExpr(),)
"""How a step of one element is read."""


def scale_attention(widened: Sequence[tuple[AttentionOp, int, Step]]) -> None:
    """Scale queries (for narrow keys) and results (for narrow values) of attentions by the steps of
    their caches: (operation, operand, step)."""
    for op, operand, step in widened:
        if operand == KEYS:
            _scale_queries(op, step)
    for op, operand, step in widened:
        if operand == VALUES:
            _scale_result(op, step)


def _scale_queries(op: AttentionOp, step: Step) -> None:
    """A step that is one number goes into the scale, others into what makes the queries."""
    if isinstance(step, float):
        op.properties["scale"] = FloatAttr(op.scale.value.data * step, 64)
        return
    query = op.ins[0]
    made = _times(query, step)
    source = owner(query)
    if isinstance(source, MapOp) and query.has_one_use() and source.parent is op.parent:
        made = _merged(source, made)
    assert op.parent is not None
    made.location = op.location if source is None else source.location
    made.outs[0].name_hint = query.name_hint
    op.parent.insert_op_before(made, op)
    op.operands[0] = made.outs[0]
    if isinstance(source, MapOp) and not query.uses:
        source.detach()
        source.erase()


def _scale_result(op: AttentionOp, step: Step) -> None:
    """Products that read the result scale their sums; everything else a scaled copy."""
    result = op.outs[0]
    for use in list(result.uses):
        user = use.operation
        if isinstance(user, ContractOp) and use.index < 2 and _two_factors(user):
            factors = [
                Factor(v, axes, step if v is result else 1.0)
                for v, axes in zip(user.ins[:2], user.domain.data.operands, strict=False)
            ]
            replace_op(user, integer_contract(user, factors, user.domain.data))
            continue
        made = _times(result, step)
        made.location = op.location
        made.outs[0].name_hint = result.name_hint
        assert user.parent is not None
        user.parent.insert_op_before(made, user)
        user.operands[use.index] = made.outs[0]


def read_widened(op: DequantizeOp) -> None:
    """Let the maps that read the numbers of a narrow tensor read the tensor itself, and make
    numbers of it element by element."""
    for use in list(op.outs[0].uses):
        user = use.operation
        if not isinstance(user, MapOp) or list(user.ins).count(op.outs[0]) != 1:
            continue
        own = user.domain.data
        graph = BodyGraph()
        args = [graph.input(i, dtype_of_value(v)) for i, v in enumerate(user.ins)]
        args[use.index] = graph.input(use.index, dtype_of_value(op.ins[0]))
        steps = [graph.input(len(args), dtype_of_value(v)) for v in op.ins[1:]]
        types = [dtype_of_value(v) for v in op.ins]
        body = op.scalar_body(types, dtype_of_value(op.outs[0]))
        (args[use.index],) = graph.inline(body, [args[use.index], *steps])
        made, _ = graph.build(graph.inline(user.body.data, args), range(len(args) + len(steps)))
        ins, maps = list(user.ins), list(own.operands)
        ins[use.index] = op.ins[0]
        if steps:
            if any(axis.terms for axis in op.domain.data.operands[1]):
                continue  # a step for each channel: not one number
            ins.append(op.ins[1])
            maps.append(op.domain.data.operands[1])
        new = MapOp.of(
            ins,
            made,
            [r.type for r in user.results],
            domain_attr(own.dims, maps, list(own.results)),
        )
        new.location = user.location
        replace_op(user, new)


def _two_factors(op: ContractOp) -> bool:
    factors = 2 if op.factors is None else op.factors.value.data
    return factors == 2 and op.ins[0] is not op.ins[1] and is_float(op.operator().stats[0].dtype)


def _times(value: SSAValue, step: Step) -> MapOp:
    """A tensor times a step, rounded once."""
    dtype, rank = dtype_of_value(value), len(shape_of(value))
    graph = BodyGraph()
    x = graph.emit("cast", (graph.input(0, dtype),), "float32")
    by = graph.input(1, "float32") if isinstance(step, tuple) else graph.const(step, "float32")
    body, _ = graph.build([graph.emit("cast", (graph.emit("mul", (x, by)),), dtype)])
    here = identity_map(rank)
    ins, maps = [value], [here]
    if isinstance(step, tuple):
        ins.append(step[0])
        maps.append(step[1])
    assert isinstance(value.type, TensorType)
    domain = domain_attr(dims_of(shape_of(value)), maps, [here])
    return MapOp.of(ins, body, [value.type], domain)


def _merged(source: MapOp, scale: MapOp) -> MapOp:
    """`scale`, which multiplies the result of `source` with one number, in one operation."""
    own = source.domain.data
    graph = BodyGraph()
    args = [graph.input(i, dtype_of_value(v)) for i, v in enumerate(source.ins)]
    by = graph.input(len(args), dtype_of_value(scale.ins[1]))
    (value,) = graph.inline(source.body.data, args)
    (result,) = graph.inline(scale.body.data, [value, by])
    body, _ = graph.build([result], range(len(args) + 1))
    step = substitute_map(scale.domain.data.operands[1], {})
    maps = [*own.operands, step]
    return MapOp.of(
        [*source.ins, scale.ins[1]],
        body,
        [scale.outs[0].type],
        domain_attr(own.dims, maps, list(own.results)),
    )
