"""Operations generated from ONNX's schemas."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from elk_ir.dialects.onnx.ops import OnnxOp
from elk_ir.dialects.onnx.signature import OPTIONAL, SINGLE, VARIADIC, Formal, OpSignature

if TYPE_CHECKING:
    from onnx.defs import OpSchema

# Operators whose results differ from run to run: not free of effects, so never merged.
NON_DETERMINISTIC = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)

_ELEMENT_NAMES = {
    "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "i1",
    "string": "string", "complex64": "complex<f32>", "complex128": "complex<f64>",
    "float8e4m3fn": "f8E4M3FN", "float8e4m3fnuz": "f8E4M3FNUZ", "float8e5m2": "f8E5M2",
    "float8e5m2fnuz": "f8E5M2FNUZ", "float8e8m0": "f8E8M0FNU", "float4e2m1": "f4E2M1FN",
}  # fmt: skip


@cache
def _allowed(types: tuple[str, ...]) -> frozenset[str] | None:
    """`tensor(float16)`, … as IR element names; None when not only tensors are allowed."""
    names: set[str] = set()
    for text in types:
        if not text.startswith("tensor("):
            return None
        inner = text[7:-1]
        name = _ELEMENT_NAMES.get(inner)
        if name is None:
            name = (
                inner.replace("uint", "ui") if inner.startswith("u") else inner.replace("int", "i")
            )
        names.add(name)
    return frozenset(names)


def _kind(attribute: Any) -> str:
    """INT, FLOATS, GRAPH, … (onnx's type stubs do not know that the kind is an enumeration)."""
    return attribute.type.name


def _attribute_constraint(schema: OpSchema, name: str) -> Any:
    match _kind(schema.attributes[name]):
        case "INT":
            return base(IntegerAttr)
        case "FLOAT":
            return base(FloatAttr)
        case "STRING":
            return base(StringAttr)
        case "INTS":
            return base(DenseArrayBase)
        case "FLOATS":
            return base(DenseArrayBase) | base(ArrayAttr)
        case "STRINGS":
            return base(ArrayAttr)
        case _:
            return AnyAttr()


def _formals(parameters: Any, schema: OpSchema) -> tuple[Formal, ...]:
    variables = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    formals: list[Formal] = []
    for p in parameters:
        kind = p.option.name.lower()
        types = _allowed(tuple(variables.get(p.type_str, [p.type_str])))
        type_var = p.type_str if p.type_str in variables else ""
        formals.append(Formal(p.name, kind, type_var, types, p.is_homogeneous))
    return tuple(formals)


_OPERANDS = {SINGLE: operand_def, OPTIONAL: opt_operand_def, VARIADIC: var_operand_def}
_RESULTS = {SINGLE: result_def, OPTIONAL: opt_result_def, VARIADIC: var_result_def}


def _op_class(schema: OpSchema) -> type[OnnxOp]:
    """The operation of a schema; see the module's docstring."""
    # Backwards, so that then_branch comes before else_branch.
    names = sorted(schema.attributes, reverse=True)
    graphs = tuple(n for n in names if _kind(schema.attributes[n]) == "GRAPH")
    scalars = tuple(n for n in sorted(schema.attributes) if n not in graphs)
    signature = OpSignature(
        op_type=schema.name,
        since_version=schema.since_version,
        operands=_formals(schema.inputs, schema),
        results=_formals(schema.outputs, schema),
        attributes=frozenset(scalars),
        defaults=_defaults(schema),
        regions=graphs,
    )
    fields: dict[str, Any] = {
        "__doc__": f"ONNX {schema.name} (since opset {schema.since_version}).",
        "__module__": "elk_ir.dialects.onnx",
        "name": f"onnx.{schema.name}",
    }
    for formal in signature.operands:
        fields[formal.name] = _OPERANDS[formal.kind](AnyAttr())
    for formal in signature.results:
        fields[formal.name] = _RESULTS[formal.kind](AnyAttr())
    for name in scalars:
        make = prop_def if schema.attributes[name].required else opt_prop_def
        # The field has another name: an attribute may be called like a method of Operation.
        fields[f"{name}_attr"] = make(_attribute_constraint(schema, name), prop_name=name)
    for name in graphs:
        fields[name] = region_def()
    options = []
    if signature.operand_segments:
        options.append(AttrSizedOperandSegments(as_property=True))
    if signature.result_segments:
        options.append(AttrSizedResultSegments(as_property=True))
    if options:
        fields["irdl_options"] = tuple(options)
    if schema.name not in NON_DETERMINISTIC:
        fields["traits"] = traits_def(Pure())
    op_class = irdl_op_definition(type(f"{schema.name}Op", (OnnxOp,), fields))
    op_class.SIGNATURE = signature
    return op_class


def _defaults(schema: OpSchema) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    defaults: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = get_attribute_value(attribute.default_value)
            if isinstance(value, bytes):
                value = value.decode()
            if isinstance(value, list):
                value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
            defaults[name] = value
    return defaults


@cache
def op_classes() -> dict[str, type[OnnxOp]]:
    """Operator name -> operation, for the newest schemas of ONNX's default domain."""
    from onnx.defs import get_all_schemas

    return {s.name: _op_class(s) for s in get_all_schemas() if s.domain == ""}
