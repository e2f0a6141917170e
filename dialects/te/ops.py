"""Structured operations of `te`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto
from math import prod

from xdsl.dialects.builtin import (
    I64,
    BoolAttr,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition, irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from elk_ir.dialects.te.attrs import BodyAttr, DomainAttr, Map
from elk_ir.dialects.te.interface import (
    StructuredOp,
    accumulator,
    broadcast_map,
    dims_of,
    domain_attr,
    identity_map,
    with_phase,
)
from elk_ir.dialects.types import shape_dtype, tensor_type
from elk_ir.numerics.body import Body, Instr, dtype_of, is_float, result_dtypes
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Phase, Stat


class Combiner(StrEnum):
    """How a reduction combines two values."""

    MAX = auto()
    MIN = auto()
    PROD = auto()
    SUM = auto()


@irdl_attr_definition
class CombinerAttr(EnumAttribute[Combiner], SpacedOpaqueSyntaxAttribute):
    """`sum`, `prod`, `max` or `min`."""

    name = "te.combiner"


class NormForm(StrEnum):
    """What a normalisation divides by: root mean square, or standard deviation about the mean."""

    LAYER = auto()
    RMS = auto()


@irdl_attr_definition
class NormFormAttr(EnumAttribute[NormForm], SpacedOpaqueSyntaxAttribute):
    """`rms` or `layer`."""

    name = "te.norm_form"


def _check_epilogue(body: Body | None, stat_dtype: str, extra: list[Access], results: int) -> None:
    if body is None:
        if extra:
            raise VerifyException(f"{len(extra)} operands are left for an epilogue that is absent")
        return
    if body.inputs != 1 + len(extra) or len(body.results) != results:
        raise VerifyException(
            f"the epilogue takes {body.inputs} values and yields {len(body.results)}; it is given"
            f" the reduced value and {len(extra)} operands, for {results} results"
        )
    result_dtypes(body, [stat_dtype, *(a.dtype for a in extra)])


def _result_dims(results: list[Access]) -> tuple[int, ...]:
    return tuple(sorted({d for r in results for d in r.dims}))


@irdl_op_definition
class ContractOp(StructuredOp):
    """A sum of products: any einsum, integers included (docs/dialects/te.md).

    The first `factors` operands are multiplied and summed over the reduction dimensions in the
    accumulator type; `epilogue` maps the sum, and the remaining operands, to the result. `zeros`
    are the integers that stand for 0 in the factors: they are subtracted before multiplying, and
    are what a factor reads outside its tensor.
    """

    name = "te.contract"
    factors = opt_prop_def(IntegerAttr)
    epilogue = opt_prop_def(BodyAttr)
    zeros = opt_prop_def(DenseArrayBase[I64])

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        factors = 2 if self.factors is None else self.factors.value.data
        if not 1 <= factors <= len(operands):
            raise VerifyException(f"{factors} factors, but {len(operands)} operands")
        extra = operands[factors:]
        # A narrow factor beside one of numbers (a weight kept as int8, say) is widened to them.
        numbers = [a.dtype for a in operands[:factors] if is_float(a.dtype)]
        dtype = accumulator(numbers[0] if numbers else operands[0].dtype)
        body = None if self.epilogue is None else self.epilogue.data
        _check_epilogue(body, dtype, extra, len(results))
        stat = Stat("acc", _result_dims(results), dtype, 0.0)
        zeros = () if self.zeros is None else tuple(map(int, self.zeros.get_values()))
        if zeros and (len(zeros) != factors or is_float(dtype)):
            raise VerifyException(
                f"{len(zeros)} zero points for {factors} factors of {operands[0].dtype}"
            )
        accesses = [
            with_phase(a, Phase.LOCAL, float(zeros[i]) if zeros else 0.0)
            if i < factors
            else with_phase(a, Phase.APPLY)
            for i, a in enumerate(operands)
        ]
        params: list[tuple[str, object]] = [] if body is None else [("epilogue", body)]
        if any(zeros):
            params.append(("zeros", zeros))
        return Operator(
            "contract",
            dims,
            tuple(accesses),
            tuple(results),
            (stat,),
            tuple(params),
            float(factors),
        )


@irdl_op_definition
class MapOp(StructuredOp):
    """A scalar body at every point of the domain, operands read through their maps."""

    name = "te.map"
    body = prop_def(BodyAttr)

    @classmethod
    def of(
        cls,
        ins: Sequence[SSAValue],
        body: Body,
        result_types: Sequence[Attribute],
        domain: DomainAttr,
    ) -> MapOp:
        """A map of the given body."""
        op = cls.create(
            operands=list(ins),
            result_types=list(result_types),
            properties={"domain": domain, "body": BodyAttr(body)},
        )
        return op

    @classmethod
    def elementwise(
        cls, ins: Sequence[SSAValue], body: Body, result: TensorType[Attribute]
    ) -> MapOp:
        """A map over the shape of `result`, operands broadcast as numpy does."""
        shape = result.get_shape()
        maps = [broadcast_map(shape_dtype(v)[0], shape) for v in ins]
        domain = domain_attr(dims_of(shape), maps, [identity_map(len(shape))])
        return cls.of(ins, body, [result], domain)

    @classmethod
    def move(
        cls,
        source: SSAValue,
        result: TensorType[Attribute],
        dims: Sequence[Dim],
        source_map: Map,
        result_map: Map,
    ) -> MapOp:
        """Pure data movement: element `source_map` of the source to `result_map`."""
        domain = domain_attr(dims, [source_map], [result_map])
        return cls.of([source], Body(1, (), (0,)), [result], domain)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        body = self.body.data
        if body.inputs != len(operands) or len(body.results) != len(results):
            raise VerifyException(
                f"the body takes {body.inputs} values and yields {len(body.results)}; the operation"
                f" has {len(operands)} operands and {len(results)} results"
            )
        types = result_dtypes(body, [a.dtype for a in operands])
        for i, (value, r) in enumerate(zip(body.results, results, strict=True)):
            if types[value] != r.dtype:
                raise VerifyException(f"the body yields {types[value]} for result {i}, {r.dtype}")
        if any(d.kind is DimKind.REDUCTION for d in dims):
            raise VerifyException("a map has no reduction dimensions")
        accesses = tuple(with_phase(a, Phase.APPLY) for a in operands)
        return Operator("map", dims, accesses, tuple(results), (), (("body", body),), body.flops)


@irdl_op_definition
class ReduceOp(StructuredOp):
    """One operand combined over the reduction dimensions, then an epilogue body."""

    name = "te.reduce"
    combiner = prop_def(CombinerAttr)
    epilogue = opt_prop_def(BodyAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        combiner = self.combiner.data
        dtype = operands[0].dtype
        if combiner in (Combiner.SUM, Combiner.PROD):
            dtype = accumulator(dtype)
        neutral = reduction_neutral(combiner, dtype)
        body = None if self.epilogue is None else self.epilogue.data
        _check_epilogue(body, dtype, operands[1:], len(results))
        accesses = [with_phase(operands[0], Phase.LOCAL, neutral)]
        accesses += [with_phase(a, Phase.APPLY) for a in operands[1:]]
        params: list[tuple[str, object]] = [("combiner", str(combiner))]
        if body is not None:
            params.append(("epilogue", body))
        stat = Stat("acc", _result_dims(results), dtype, neutral)
        return Operator(
            "reduce", dims, tuple(accesses), tuple(results), (stat,), tuple(params), 1.0
        )


def reduction_neutral(combiner: Combiner, dtype: str) -> float:
    """The value that leaves a reduction unchanged."""
    if combiner is Combiner.SUM:
        return 0.0
    if combiner is Combiner.PROD:
        return 1.0
    if dtype == "bool":
        return 0.0 if combiner is Combiner.MAX else 1.0
    if is_float(dtype):
        return float("-inf") if combiner is Combiner.MAX else float("inf")
    import numpy as np

    info = np.iinfo(dtype_of(dtype))
    return int(info.min) if combiner is Combiner.MAX else int(info.max)


def check_every_point_is_its_own(
    name: str, dims: Sequence[Dim], source: Access, results: Sequence[Access]
) -> None:
    """Raise VerifyException if a result lacks a reduction dimension, even one of a single point, or
    if the operand lacks a dimension, along which its statistics would be repeated."""
    for i, d in enumerate(dims):
        if i not in source.dims:
            raise VerifyException(f"{name} reads another element for every point of {d.name}")
    for result in results:
        for i, d in enumerate(dims):
            if d.kind is DimKind.REDUCTION and i not in result.dims:
                raise VerifyException(f"{name} has a result for every point of {d.name}")


@irdl_op_definition
class SoftmaxOp(StructuredOp):
    """Softmax (or log-softmax) over the reduction dimensions, in the accumulator type. Operand and
    result depend on every dimension.

    `state` names the state whose filled entries the one reduction dimension runs over, as in
    te.attention: while it is not full, the positions in front of them count as -inf.
    """

    name = "te.softmax"
    log = opt_prop_def(BoolAttr)
    state = opt_prop_def(FlatSymbolRefAttrConstr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        check_every_point_is_its_own("softmax", dims, operands[0], results)
        dtype = accumulator(operands[0].dtype)
        kept = tuple(i for i, d in enumerate(dims) if d.kind is DimKind.PARALLEL)
        low = float("-inf")
        stats = (Stat("max", kept, dtype, low), Stat("sum", kept, dtype, 0.0))
        params: list[tuple[str, object]] = []
        if self.log is not None and self.log.value.data:
            params.append(("log", True))
        if self.state is not None:
            if sum(d.kind is DimKind.REDUCTION for d in dims) != 1:
                raise VerifyException("softmax over a state has one reduction dimension")
            params.append(("state", self.state.root_reference.data))
        access = with_phase(operands[0], Phase.BOTH, low)
        return Operator("softmax", dims, (access,), tuple(results), stats, tuple(params), 5.0)


@irdl_op_definition
class NormalizeOp(StructuredOp):
    """RMS or layer normalisation over the reduction dimensions, then scale and bias. What is
    normalised and the result depend on every dimension.

    `affine` names what each further operand does ("scale" or "bias"). `round_to`, if given, is the
    type to which the normalised value is rounded before the affine part, as exporters do.
    """

    name = "te.normalize"
    form = prop_def(NormFormAttr)
    epsilon = prop_def(FloatAttr)
    affine = opt_prop_def(StringAttr)
    round_to = opt_prop_def(StringAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        affine = () if self.affine is None else tuple(self.affine.data.split())
        if len(affine) != len(operands) - 1 or set(affine) - {"scale", "bias"}:
            raise VerifyException(f"affine {affine} does not name the {len(operands) - 1} operands")
        check_every_point_is_its_own("a norm", dims, operands[0], results)
        dtype = accumulator(operands[0].dtype)
        kept = tuple(i for i, d in enumerate(dims) if d.kind is DimKind.PARALLEL)
        # Of the mean square only the sum has to be merged: how many it sums is known.
        names = ("squares",) if self.form.data is NormForm.RMS else ("count", "mean", "squares")
        stats = tuple(Stat(n, kept, dtype, 0.0) for n in names)
        accesses = [with_phase(operands[0], Phase.BOTH)]
        accesses += [with_phase(a, Phase.APPLY) for a in operands[1:]]
        params: list[tuple[str, object]] = [
            ("form", str(self.form.data)),
            ("epsilon", self.epsilon.value.data),
            ("affine", affine),
        ]
        if self.round_to is not None:
            params.append(("round_to", self.round_to.data))
        return Operator(
            "normalize", dims, tuple(accesses), tuple(results), stats, tuple(params), 5.0
        )


@irdl_op_definition
class AttentionOp(StructuredOp):
    """softmax(scale · Q Kᵀ, soft-capped, + mask) V. One reduction dimension (KV); the head
    dimensions are local. Operands: query, key, value, and the mask if there is one. Keys and values
    may be of a narrower type than queries (int8, fp8): they are widened.

    `state` names the state whose filled entries the KV dimension runs over: while it is not full,
    the positions in front of them count as masked.
    """

    name = "te.attention"
    scale = prop_def(FloatAttr)
    softcap = opt_prop_def(FloatAttr)
    state = opt_prop_def(FlatSymbolRefAttrConstr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        if len(operands) not in (3, 4) or len(results) != 1:
            raise VerifyException("attention takes query, key, value, optionally a mask")
        reductions = [i for i, d in enumerate(dims) if d.kind is DimKind.REDUCTION]
        if len(reductions) != 1:
            raise VerifyException("attention has exactly one reduction dimension, the KV length")
        kv = reductions[0]
        dtype = accumulator(operands[0].dtype)
        out_dims = tuple(sorted(results[0].dims))
        rows = tuple(d for d in out_dims if d in operands[0].dims)
        low = float("-inf")
        stats = (
            Stat("max", rows, dtype, low),
            Stat("sum", rows, dtype, 0.0),
            Stat("out", out_dims, dtype, 0.0),
        )
        if kv not in operands[1].dims or kv not in operands[2].dims or kv in operands[0].dims:
            raise VerifyException("the KV dimension indexes key and value, not the query")
        params: list[tuple[str, object]] = [("scale", self.scale.value.data)]
        if self.softcap is not None:
            params.append(("softcap", self.softcap.value.data))
        if self.state is not None:
            params.append(("state", self.state.root_reference.data))
        # Two products: Q Kᵀ over the head dimensions, and the weights times V over the value's.
        head = prod(dims[d].extent for d in operands[0].dims & operands[1].dims - set(out_dims))
        value = prod(dims[d].extent for d in operands[2].dims & set(out_dims) - operands[0].dims)
        return Operator(
            "attention",
            dims,
            tuple(operands),
            tuple(results),
            stats,
            tuple(params),
            2.0 / max(value, 1) + 2.0 / max(head, 1),
        )


@irdl_op_definition
class GatherOp(StructuredOp):
    """Rows of a table (operand 0) picked by an index tensor (operand 1). The table's row dimension
    is the reduction dimension: a core that holds a part of the table yields the rows it has.

    Negative indices count from the end. One that is out of range stops the interpreters with an
    error; emitted device code does not look, and yields zeros."""

    name = "te.gather"

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        if len(operands) != 2 or len(results) != 1:
            raise VerifyException("gather takes a table and an index tensor")
        if sum(d.kind is DimKind.REDUCTION for d in dims) != 1:
            raise VerifyException("gather has exactly one reduction dimension, the table's rows")
        stat = Stat("rows", _result_dims(results), operands[0].dtype, 0.0)
        return Operator("gather", dims, tuple(operands), tuple(results), (stat,), (), 0.0)


@irdl_op_definition
class ConcatOp(StructuredOp):
    """Operands one after another along the dimension `dim`."""

    name = "te.concat"
    dim = prop_def(IntegerAttr)

    @classmethod
    def along(cls, ins: Sequence[SSAValue], axis: int) -> ConcatOp:
        """The concatenation of `ins` along tensor axis `axis` (not negative)."""
        shapes = [shape_dtype(v)[0] for v in ins]
        result = list(shapes[0])
        result[axis] = sum(s[axis] for s in shapes)
        maps: list[Map] = []
        start = 0
        for shape in shapes:
            maps.append(
                tuple(AxisExpr(((j, 1),), -start if j == axis else 0) for j in range(len(result)))
            )
            start += shape[axis]
        return cls.create(
            operands=list(ins),
            result_types=[tensor_type(result, shape_dtype(ins[0])[1])],
            properties={
                "domain": domain_attr(dims_of(result), maps, [identity_map(len(result))]),
                "dim": IntegerAttr(axis, i64),
            },
        )

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        d = self.dim.value.data
        for i, access in enumerate(operands):
            if [t for a in access.axes for t in a.terms if t[0] == d] != [(d, 1)]:
                raise VerifyException(f"operand {i} is not indexed once by dimension {d}")
        accesses = tuple(with_phase(a, Phase.APPLY) for a in operands)
        return Operator("concat", dims, accesses, tuple(results), (), (("dim", d),), 0.0)


def scalar_body(op: str, arity: int) -> Body:
    """The body that applies one scalar operation."""
    return Body(arity, (Instr(op, tuple(range(arity))),), (arity,))
