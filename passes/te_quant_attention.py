"""Attention as two products with a softmax between them, so that both can be of integers."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, SSAValue

from elk_ir.dialects.te import AttentionOp, BodyAttr, ContractOp, SoftmaxOp
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import Body
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.te_affine import drop_dims
from elk_ir.passes.te_support import dtype_of_value, replace_op
from elk_ir.plan.domain import AxisExpr, DimKind, Operator


def split_attention(module: ModuleOp) -> set[ContractOp]:
    """Replace every te.attention of a module; returns the products that replaced them.

    A row whose every position is masked with -inf is zero in te.attention and not a number here.
    """
    made: set[ContractOp] = set()
    for op in list(module.walk()):
        if isinstance(op, AttentionOp):
            made |= _split(op)
    return made


def _split(op: AttentionOp) -> set[ContractOp]:
    operator = op.operator()
    rows = operator.stats[0].dims
    (kv,) = operator.reductions
    scored = (*rows, kv)
    score_map = tuple(AxisExpr(((d, 1),)) for d in scored)
    extents = operator.extents
    scores_type = tensor_type([extents[d] for d in scored], operator.stats[0].dtype)
    own = op.domain.data
    masked = len(op.ins) > 3

    maps = (own.operands[0], own.operands[1], *own.operands[3:])
    reduced = {d for m in maps[:2] for a in m for d, _ in a.terms} - set(scored)
    scores = _product(
        op,
        [op.ins[0], op.ins[1], *op.ins[3:]],
        _domain(own, maps, (score_map,), reduced),
        scores_type,
        _score_body(operator, dtype_of_value(op.ins[3]) if masked else None),
    )
    softmax = SoftmaxOp.create(
        operands=[scores.outs[0]],
        result_types=[scores_type],
        properties={
            "domain": DomainAttr(_domain(own, (score_map,), (score_map,), {kv})),
            **({} if op.state is None else {"state": op.state}),
        },
    )
    softmax.location = op.location
    out = _product(
        op,
        [softmax.outs[0], op.ins[2]],
        _domain(own, (score_map, own.operands[2]), own.results, {kv}),
        op.outs[0].type,
        None,
    )
    hint = op.outs[0].name_hint or "attention"
    scores.outs[0].name_hint = f"{hint}_scores"
    softmax.outs[0].name_hint = f"{hint}_weights"
    block = op.parent
    assert block is not None
    block.insert_ops_before([scores, softmax], op)
    replace_op(op, out)
    return {scores, out}


def _domain(own: Domain, operands: tuple[Map, ...], results: tuple[Map, ...], reduced: set[int]):
    """The dimensions of attention that the maps use, all parallel but `reduced`."""
    used = {d for m in (*operands, *results) for a in m for d, _ in a.terms}
    dims = tuple(
        replace(d, kind=DimKind.REDUCTION if i in reduced else DimKind.PARALLEL)
        for i, d in enumerate(own.dims)
    )
    gone = {i for i in range(len(dims)) if i not in used}
    return drop_dims(Domain(dims, operands, results), gone)


def _product(
    op: StructuredOp,
    ins: list[SSAValue],
    domain: Domain,
    result: Attribute,
    epilogue: Body | None,
) -> ContractOp:
    properties: dict[str, Attribute] = {"domain": DomainAttr(domain)}
    if epilogue is not None:
        properties["epilogue"] = BodyAttr(epilogue)
    new = ContractOp.create(operands=ins, result_types=[result], properties=properties)
    new.location = op.location
    new.outs[0].name_hint = op.outs[0].name_hint
    return new


def _score_body(operator: Operator, mask: str | None) -> Body:
    """scale, soft cap, mask."""
    dtype = operator.stats[0].dtype
    b = BodyBuilder([dtype] if mask is None else [dtype, mask])
    value: Scalar = b.inputs[0] * float(operator.param["scale"])
    if (cap := operator.param.get("softcap")) is not None:
        value = b.apply("tanh", value / float(cap)) * float(cap)
    if mask == "bool":
        value = b.apply("select", b.inputs[1], value, float("-inf"))
    elif mask is not None:
        value = value + b.cast(b.inputs[1], dtype)
    return b.finish(value)
