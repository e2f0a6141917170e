"""The base of the generated operations, and the operations that no schema describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    base,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.element_types import StringType, print_dense
from elk_ir.dialects.onnx.signature import (
    OpSignature,
    array_values,
    check_types,
    positional,
    python_value,
    segment_sizes,
    segments_attr,
)
from elk_ir.dialects.onnx.syntax import parse_call, print_attributes, print_call
from elk_ir.dialects.weight import WeightAttr

_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")


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
        return positional(
            self.operands, self.SIGNATURE.operands, self.properties.get("operandSegmentSizes")
        )

    @property
    def onnx_results(self) -> tuple[SSAValue | None, ...]:
        """Results as ONNX lists them: None for an absent one, trailing absent ones dropped."""
        return positional(
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
        signature = cls.SIGNATURE
        operand_sizes = segment_sizes(signature.operands, operands, cls.name)
        result_sizes = segment_sizes(signature.results, result_types, cls.name)
        properties: dict[str, Attribute] = dict(attributes or {})
        if signature.operand_segments:
            properties["operandSegmentSizes"] = segments_attr(operand_sizes)
        if signature.result_segments:
            properties["resultSegmentSizes"] = segments_attr(result_sizes)
        return cls.create(
            operands=[v for v in operands if v is not None],
            result_types=[t for t in result_types if t is not None],
            properties=properties,
            **more,
        )

    def verify_(self) -> None:
        bound: dict[str, Attribute] = {}
        check_types(self.onnx_operands, self.SIGNATURE.operands, bound, "operand")
        check_types(self.onnx_results, self.SIGNATURE.results, bound, "result")

    def print(self, printer: Printer) -> None:
        properties = {k: v for k, v in self.properties.items() if k not in _SEGMENTS}
        print_call(
            printer,
            self.onnx_operands,
            self.onnx_results,
            self.regions,
            properties | self.attributes,
        )

    @classmethod
    def parse(cls, parser: Parser) -> OnnxOp:
        call = parse_call(parser, regions=bool(cls.SIGNATURE.regions))
        known = cls.SIGNATURE.attributes
        try:
            op = cls.make(
                call.operands,
                call.result_types,
                {k: v for k, v in call.attributes.items() if k in known},
                regions=call.regions,
            )
        except ValueError as error:
            parser.raise_error(str(error), call.position)
        op.attributes |= {k: v for k, v in call.attributes.items() if k not in known}
        return op


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
        print_attributes(printer, self.attributes)
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

    `absent_operands` and `absent_results` are the positions that the node leaves empty,
    `graph_names` the graph attributes that the regions are.
    """

    name = "onnx.Custom"

    domain = prop_def(StringAttr)
    op_type = prop_def(StringAttr)
    op_attributes = prop_def(DictionaryAttr, prop_name="op_attributes")
    absent_operands = opt_prop_def(DenseArrayBase)
    absent_results = opt_prop_def(DenseArrayBase)
    inputs = var_operand_def(AnyAttr())
    outputs = var_result_def(AnyAttr())
    graph_names = opt_prop_def(ArrayAttr[StringAttr])
    graphs = var_region_def()

    traits = traits_def(Pure())

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.domain)
        printer.print_string(" ")
        printer.print_attribute(self.op_type)
        if self.graph_names is not None:
            printer.print_string(" graphs ")
            printer.print_attribute(self.graph_names)
        print_call(
            printer,
            self.onnx_operands,
            self.onnx_results,
            self.graphs,
            dict(self.op_attributes.data) | self.attributes,
        )

    @classmethod
    def parse(cls, parser: Parser) -> CustomOp:
        domain, op_type = parser.parse_str_literal(), parser.parse_str_literal()
        names: list[str] = []
        if parser.parse_optional_keyword("graphs"):
            names = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, parser.parse_str_literal
            )
        call = parse_call(parser, regions=bool(names))
        if len(names) != len(call.regions):
            parser.raise_error(f"{len(names)} names for {len(call.regions)} graphs", call.position)
        graphs = dict(zip(names, call.regions, strict=True))
        return CustomOp.make(
            domain, op_type, call.operands, call.result_types, call.attributes, graphs
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
        graphs: Mapping[str, Region] | None = None,
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
        if graphs:
            properties["graph_names"] = ArrayAttr(StringAttr(name) for name in graphs)
            more["regions"] = list(graphs.values())
        return CustomOp.create(
            operands=[v for v in operands if v is not None],
            result_types=[t for t in result_types if t is not None],
            properties=properties,
            **more,
        )


def _with_absent(
    values: Sequence[SSAValue], absent: DenseArrayBase | None
) -> tuple[SSAValue | None, ...]:
    found: list[SSAValue | None] = list(values)
    for position in sorted(() if absent is None else array_values(absent)):
        found.insert(position, None)
    return tuple(found)


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Ends the graph of an attribute (a branch, a loop body) with its outputs."""

    name = "onnx.Yield"
    traits = traits_def(IsTerminator())
