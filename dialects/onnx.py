"""The onnx dialect: one operation an ONNX operator, generated from the standard's own schemas.

Operators of the default domain become `onnx.<OpType>` with the operands, results and attributes of
their newest schema; models of older opsets are lifted before they are imported. Absent optional
operands and results are `none` in their place:

    %1 = onnx.Clip(%0, none, %max) : (tensor<4xf32>, none, tensor<f32>) -> tensor<4xf32>

ONNX attributes are properties (an absent one has the schema's default, see `OnnxOp.attr`), graph
attributes are regions whose blocks end in `onnx.Yield` and may use values of the enclosing graph.
Operators of other domains are `onnx.Custom`, initializers `onnx.Initializer`.

Nothing here imports the `onnx` package until the dialect is first used: `ONNX` is made on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    NoneType,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    i32,
    i64,
)
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    param_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.element_types import StringType, element_type_name, print_dense
from elk_ir.dialects.weight import WeightAttr

if TYPE_CHECKING:
    from onnx.defs import OpSchema

    ONNX: Dialect


@irdl_attr_definition
class SequenceType(ParametrizedAttribute, TypeAttribute):
    """An ONNX sequence of values of one type."""

    name = "onnx.seq"
    element: Attribute = param_def()


@irdl_attr_definition
class OptionalType(ParametrizedAttribute, TypeAttribute):
    """An ONNX value that may be absent."""

    name = "onnx.opt"
    element: Attribute = param_def()


@irdl_attr_definition
class MapType(ParametrizedAttribute, TypeAttribute):
    """An ONNX map from a scalar type to values of one type."""

    name = "onnx.map"
    key: Attribute = param_def()
    element: Attribute = param_def()


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

SINGLE, OPTIONAL, VARIADIC = "single", "optional", "variadic"
_ABSENT = NoneType()
_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal operand or result: its name, how often it occurs, its type variable and types.

    `types` are the element types a tensor may have here, or None where the schema also allows
    sequences, optionals or maps (which are then not checked).
    """

    name: str
    kind: str
    type_var: str = ""
    types: frozenset[str] | None = None
    homogeneous: bool = True


@dataclass(frozen=True)
class OpSignature:
    """What an operation knows of its schema. `regions` are the graph attributes, in their order;
    several optional or variadic operands (results) are told apart by segment sizes."""

    op_type: str
    since_version: int
    operands: tuple[Formal, ...]
    results: tuple[Formal, ...]
    attributes: frozenset[str]
    defaults: dict[str, Any]
    regions: tuple[str, ...]

    @cached_property
    def operand_segments(self) -> bool:
        return sum(f.kind != SINGLE for f in self.operands) > 1

    @cached_property
    def result_segments(self) -> bool:
        return sum(f.kind != SINGLE for f in self.results) > 1


class OnnxOp(IRDLOperation):
    """Base of the generated operations: positional access, attribute defaults, syntax."""

    SIGNATURE: ClassVar[OpSignature]

    @property
    def op_type(self) -> str:
        """The ONNX operator's name."""
        return self.SIGNATURE.op_type

    @property
    def onnx_operands(self) -> tuple[SSAValue | None, ...]:
        """Operands as ONNX lists them: None for an absent one, trailing absent ones dropped."""
        return _positional(
            self.operands, self.SIGNATURE.operands, self.properties.get("operandSegmentSizes")
        )

    @property
    def onnx_results(self) -> tuple[SSAValue | None, ...]:
        """Results as ONNX lists them: None for an absent one, trailing absent ones dropped."""
        return _positional(
            self.results, self.SIGNATURE.results, self.properties.get("resultSegmentSizes")
        )

    def attr(self, name: str) -> Any:
        """An attribute as a Python value (int, float, str, tuple, …), or the schema's default.

        None when it is absent and has no default; KeyError when the operator has no such attribute.
        """
        value = self.properties.get(name)
        if value is None:
            if name not in self.SIGNATURE.attributes:
                raise KeyError(f"{self.name} has no attribute {name!r}")
            return self.SIGNATURE.defaults.get(name)
        return python_value(value)

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue | None],
        result_types: Sequence[Attribute | None],
        attributes: dict[str, Attribute] | None = None,
        **more: Any,
    ) -> OnnxOp:
        """Build from positional operands and results (None where absent); `more` as in `create`.

        Raises ValueError when their number does not fit the schema.
        """
        properties: dict[str, Attribute] = dict(attributes or {})
        if cls.SIGNATURE.operand_segments:
            properties["operandSegmentSizes"] = _segments(
                cls.SIGNATURE.operands, operands, cls.name
            )
        if cls.SIGNATURE.result_segments:
            properties["resultSegmentSizes"] = _segments(
                cls.SIGNATURE.results, result_types, cls.name
            )
        return cls.create(
            operands=[v for v in operands if v is not None],
            result_types=[t for t in result_types if t is not None],
            properties=properties,
            **more,
        )

    def verify_(self) -> None:
        bound: dict[str, Attribute] = {}
        _check_types(self.onnx_operands, self.SIGNATURE.operands, bound, "operand")
        _check_types(self.onnx_results, self.SIGNATURE.results, bound, "result")

    def print(self, printer: Printer) -> None:
        operands = self.onnx_operands
        results = self.onnx_results
        with printer.in_parens():
            printer.print_list(operands, lambda v: _print_optional(printer, v))
        if self.regions:
            printer.print_string(" ")
            with printer.in_parens():
                printer.print_list(self.regions, printer.print_region)
        _print_dictionary(
            printer,
            {k: v for k, v in self.properties.items() if k not in _SEGMENTS} | self.attributes,
        )
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list(operands, lambda v: printer.print_attribute(_type_of(v)))
        printer.print_string(" -> ")
        if len(results) == 1:
            printer.print_attribute(_type_of(results[0]))
        else:
            with printer.in_parens():
                printer.print_list(results, lambda v: printer.print_attribute(_type_of(v)))

    @classmethod
    def parse(cls, parser: Parser) -> OnnxOp:
        unresolved = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN,
            lambda: (
                None
                if parser.parse_optional_keyword("none")
                else (parser.parse_unresolved_operand())
            ),
        )
        regions = []
        if cls.SIGNATURE.regions:
            regions = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_region)
        pos = parser.pos
        dictionary = parser.parse_optional_attr_dict()
        known = cls.SIGNATURE.attributes
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if len(types) != len(unresolved):
            parser.raise_error(f"{len(unresolved)} operands but {len(types)} operand types", pos)
        parser.parse_punctuation("->")
        result_types = parser.parse_optional_comma_separated_list(
            parser.Delimiter.PAREN, parser.parse_type
        )
        if result_types is None:
            result_types = [parser.parse_type()]
        operands = [
            None if name is None else parser.resolve_operand(name, type_)
            for name, type_ in zip(unresolved, types, strict=True)
        ]
        try:
            op = cls.make(
                operands,
                [None if isinstance(t, NoneType) else t for t in result_types],
                {k: v for k, v in dictionary.items() if k in known},
                regions=regions,
            )
        except ValueError as error:
            parser.raise_error(str(error), pos)
        op.attributes |= {k: v for k, v in dictionary.items() if k not in known}
        return op


def python_value(attr: Attribute) -> Any:
    """An ONNX attribute in IR as a Python value; tensors, types and weights stay attributes."""
    match attr:
        case IntegerAttr():
            return attr.value.data
        case FloatAttr():
            return attr.value.data
        case StringAttr():
            return attr.data
        case DenseArrayBase():
            return array_values(attr)
        case ArrayAttr():
            return tuple(python_value(a) for a in attr.data)
        case _:
            return attr


def array_values(attr: DenseArrayBase[Any]) -> tuple[Any, ...]:
    """The numbers of an `array<…>`."""
    return tuple(attr.get_values())


def _type_of(value: SSAValue | None) -> Attribute:
    return _ABSENT if value is None else value.type


def _print_optional(printer: Printer, value: SSAValue | None) -> None:
    if value is None:
        printer.print_string("none")
    else:
        printer.print_ssa_value(value)


def _print_dictionary(printer: Printer, entries: dict[str, Attribute]) -> None:
    if not entries:
        return
    printer.print_string(" ")

    def print_entry(key: str) -> None:
        printer.print_identifier_or_string_literal(key)
        value = entries[key]
        printer.print_string(" = ")
        if isinstance(value, DenseIntOrFPElementsAttr):
            print_dense(printer, value)
        else:
            printer.print_attribute(value)

    with printer.in_braces():
        printer.print_list(entries, print_entry)


def _positional(
    values: Sequence[SSAValue], formals: tuple[Formal, ...], sizes: Attribute | None
) -> tuple[SSAValue | None, ...]:
    if sizes is None:
        # At most one formal is optional or variadic: what is not single goes to it.
        spare = len(values) - sum(f.kind == SINGLE for f in formals)
        counts: Sequence[int] = [1 if f.kind == SINGLE else spare for f in formals]
    else:
        assert isinstance(sizes, DenseArrayBase)
        counts = array_values(sizes)
    positional: list[SSAValue | None] = []
    rest: Iterator[SSAValue] = iter(values)
    for formal, count in zip(formals, counts, strict=True):
        if count == 0 and formal.kind == OPTIONAL:
            positional.append(None)
        for _ in range(count):
            positional.append(next(rest))
    while positional and positional[-1] is None:
        positional.pop()
    return tuple(positional)


def _segments(
    formals: tuple[Formal, ...], given: Sequence[object | None], name: str
) -> DenseArrayBase:
    return DenseArrayBase.from_list(i32, segment_sizes(formals, given, name))


def segment_sizes(
    formals: tuple[Formal, ...], given: Sequence[object | None], name: str
) -> list[int]:
    """How many of `given` (None: absent) belong to each formal; ValueError if they do not fit."""
    sizes: list[int] = []
    position = 0
    for formal in formals:
        if formal.kind == VARIADIC:
            rest = given[position:]
            if any(v is None for v in rest):
                raise ValueError(f"{name}: a variadic {formal.name} cannot be absent")
            sizes.append(len(rest))
            position = len(given)
            continue
        present = position < len(given) and given[position] is not None
        if formal.kind == SINGLE and not present:
            raise ValueError(f"{name}: {formal.name} is missing")
        sizes.append(int(present))
        position += 1
    if position < len(given):
        raise ValueError(f"{name}: {len(given)} given, at most {len(formals)} expected")
    return sizes


@cache
def _element_name(type_: Attribute) -> str | None:
    if isinstance(type_, TensorType | UnrankedTensorType):
        return element_type_name(type_.element_type)
    return None


def _check_types(
    values: Sequence[SSAValue | None],
    formals: tuple[Formal, ...],
    bound: dict[str, Attribute],
    what: str,
) -> None:
    """Element types against the schema's lists, equal where the schema's variable is the same."""
    for index, value in enumerate(values):
        if value is None:
            continue
        formal = formals[min(index, len(formals) - 1)]
        if formal.types is None:
            continue
        element = _element_name(value.type)
        if element is None or element not in formal.types:
            raise VerifyException(f"{what} {formal.name} cannot have type {value.type}")
        if formal.type_var and formal.homogeneous:
            first = bound.setdefault(formal.type_var, value.type)
            if _element_name(first) != element:
                raise VerifyException(
                    f"{what} {formal.name} has element type {element}, "
                    f"but {formal.type_var} is {_element_name(first)}"
                )


@irdl_op_definition
class InitializerOp(IRDLOperation):
    """A constant tensor of the graph: small ones inline, weights by reference to their file.

        %c = onnx.Initializer dense<[0, 1]> : tensor<2xi64>
        %w = onnx.Initializer #te.weight<[<"w" : tensor<64x64xf32>, "m.onnx", 64, 16384, "">]>
        %m = onnx.Initializer dense<0.0> : tensor<f32> -> tensor<2048x2048xf32>

    The result has the value's type unless another is given: an inline value of rank 0 fills a
    result of any shape, and a list of strings needs the shape of its tensor.
    """

    name = "onnx.Initializer"

    value = prop_def(
        base(DenseIntOrFPElementsAttr) | base(WeightAttr) | base(ArrayAttr[StringAttr])
    )
    output = result_def(base(TensorType))

    traits = traits_def(Pure())

    def __init__(
        self,
        value: DenseIntOrFPElementsAttr | WeightAttr | ArrayAttr[StringAttr],
        result_type: Attribute | None = None,
    ) -> None:
        if result_type is None:
            assert not isinstance(value, ArrayAttr)
            result_type = value.get_type()
        super().__init__(properties={"value": value}, result_types=[result_type])

    def verify_(self) -> None:
        result = self.output.type
        assert isinstance(result, TensorType)
        if not result.has_static_shape():
            raise VerifyException("the shape of an initializer is static")
        if isinstance(self.value, ArrayAttr):
            count = 1
            for extent in result.get_shape():
                count *= extent
            if not isinstance(result.element_type, StringType) or len(self.value.data) != count:
                raise VerifyException("a list of strings is the value of a string tensor")
            return
        given = self.value.get_type()
        assert isinstance(given, TensorType)
        splat = given.element_type == result.element_type and not given.get_shape()
        if given != result and not splat:
            raise VerifyException(f"the value has type {given}, the result {result}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        if isinstance(self.value, DenseIntOrFPElementsAttr):
            print_dense(printer, self.value)
        else:
            printer.print_attribute(self.value)
        printer.print_op_attributes(self.attributes)
        if isinstance(self.value, ArrayAttr) or self.value.get_type() != self.output.type:
            printer.print_string(" -> ")
            printer.print_attribute(self.output.type)

    @classmethod
    def parse(cls, parser: Parser) -> InitializerOp:
        value = parser.parse_attribute()
        attributes = parser.parse_optional_attr_dict()
        if parser.parse_optional_punctuation("->") is not None:
            result_type = parser.parse_type()
        elif isinstance(value, DenseIntOrFPElementsAttr | WeightAttr):
            result_type = value.get_type()
        else:
            parser.raise_error("expected -> and the type of the result")
        op = cls.create(properties={"value": value}, result_types=[result_type])
        op.attributes |= attributes
        return op


@irdl_op_definition
class CustomOp(IRDLOperation):
    """An operator of another domain, kept as it is.

    `absent_operands` and `absent_results` are the positions that the node leaves empty.
    """

    name = "onnx.Custom"

    domain = prop_def(StringAttr)
    op_type = prop_def(StringAttr)
    op_attributes = prop_def(DictionaryAttr, prop_name="op_attributes")
    absent_operands = opt_prop_def(DenseArrayBase)
    absent_results = opt_prop_def(DenseArrayBase)
    inputs = var_operand_def(AnyAttr())
    outputs = var_result_def(AnyAttr())

    traits = traits_def(Pure())
    assembly_format = (
        "$domain $op_type `(` $inputs `)` (`absent` $absent_operands^)? "
        "(`absent_results` $absent_results^)? $op_attributes attr-dict `:` "
        "functional-type($inputs, $outputs)"
    )

    @property
    def onnx_operands(self) -> tuple[SSAValue | None, ...]:
        """Operands as the node lists them, None for an absent one."""
        return _with_absent(self.inputs, self.absent_operands)

    @property
    def onnx_results(self) -> tuple[SSAValue | None, ...]:
        """Results as the node lists them, None for an absent one."""
        return _with_absent(self.outputs, self.absent_results)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value, or `default` when it is absent."""
        value = self.op_attributes.data.get(name)
        return default if value is None else python_value(value)

    @staticmethod
    def make(
        domain: str,
        op_type: str,
        operands: Sequence[SSAValue | None],
        result_types: Sequence[Attribute | None],
        attributes: dict[str, Attribute],
        **more: Any,
    ) -> CustomOp:
        """Build from positional operands and results, None where absent; `more` as in `create`."""
        properties: dict[str, Attribute] = {
            "domain": StringAttr(domain),
            "op_type": StringAttr(op_type),
            "op_attributes": DictionaryAttr(attributes),
        }
        for key, given in (("absent_operands", operands), ("absent_results", result_types)):
            absent = [i for i, v in enumerate(given) if v is None]
            if absent:
                properties[key] = DenseArrayBase.from_list(i64, absent)
        return CustomOp.create(
            operands=[v for v in operands if v is not None],
            result_types=[t for t in result_types if t is not None],
            properties=properties,
            **more,
        )


def _with_absent(
    values: Sequence[SSAValue], absent: DenseArrayBase | None
) -> tuple[SSAValue | None, ...]:
    positional: list[SSAValue | None] = list(values)
    for position in sorted(() if absent is None else array_values(absent)):
        positional.insert(position, None)
    return tuple(positional)


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Ends the graph of an attribute (a branch, a loop body) with its outputs."""

    name = "onnx.Yield"
    traits = traits_def(IsTerminator())


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
    graphs = tuple(n for n, a in sorted(schema.attributes.items()) if _kind(a) == "GRAPH")
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
        "__module__": __name__,
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
            defaults[name] = tuple(value) if isinstance(value, list) else value
    return defaults


@cache
def op_classes() -> dict[str, type[OnnxOp]]:
    """Operator name -> operation, for the newest schemas of ONNX's default domain."""
    from onnx.defs import get_all_schemas

    return {s.name: _op_class(s) for s in get_all_schemas() if s.domain == ""}


@cache
def get_onnx_dialect() -> Dialect:
    """The dialect, generated at the first call."""
    generated = op_classes()
    operations: list[type[Operation]] = [generated[name] for name in sorted(generated)]
    return Dialect(
        "onnx",
        [*operations, CustomOp, InitializerOp, YieldOp],
        [MapType, OptionalType, SequenceType, StringType],
    )


def __getattr__(name: str) -> Any:
    """`ONNX` is the dialect and `<OpType>Op` an operation, both made when they are first used."""
    if name == "ONNX":
        return get_onnx_dialect()
    if name.endswith("Op") and name[:-2] in op_classes():
        return op_classes()[name[:-2]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
