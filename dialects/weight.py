"""`#te.weight`: a reference to weights on disk and what to do with them at load.

    #te.weight<[<"wq" : tensor<5120x5120xf16>, "weights.bin", 4096, 52428800, "9f86d081884c7d65">],
               ["transpose 1 0", "cast f32"]>

Each part is a name, the stored type, a file relative to the model's folder, byte offset, byte
length and content hash ("" if the file did not exist at import). The steps of the recipe are listed
in `elk_ir/frontend/weights.py`, which also loads what this attribute names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr, TensorType
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.element_types import element_type_attr, element_type_name
from elk_ir.errors import ModelError
from elk_ir.frontend.weights import WeightPart, WeightRef


@cache
def _tensor_type(dtype: str, shape: tuple[int, ...]) -> TensorType[Attribute]:
    return TensorType(element_type_attr(dtype), shape)


@irdl_attr_definition
class WeightPartAttr(ParametrizedAttribute):
    """A byte range of a file that holds one tensor. Printed within `#te.weight`."""

    name = "te.weight_part"

    label: StringAttr = param_def()
    type: TensorType[Attribute] = param_def()
    file: StringAttr = param_def()
    offset: IntAttr = param_def()
    length: IntAttr = param_def()
    hash: StringAttr = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return cls.parse_part(parser).parameters

    @classmethod
    def parse_part(cls, parser: AttrParser) -> WeightPartAttr:
        """`<"name" : type, "file", offset, length, "hash">`."""
        with parser.in_angle_brackets():
            label = StringAttr(parser.parse_str_literal())
            parser.parse_punctuation(":")
            pos = parser.pos
            tensor = parser.parse_type()
            if not isinstance(tensor, TensorType):
                parser.raise_error("expected the tensor type of a weight", pos)
            parser.parse_punctuation(",")
            file = StringAttr(parser.parse_str_literal())
            parser.parse_punctuation(",")
            offset = IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False))
            parser.parse_punctuation(",")
            length = IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False))
            parser.parse_punctuation(",")
            digest = StringAttr(parser.parse_str_literal())
        return WeightPartAttr(label, tensor, file, offset, length, digest)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.label.data)
            printer.print_string(" : ")
            printer.print_attribute(self.type)
            printer.print_string(", ")
            printer.print_string_literal(self.file.data)
            printer.print_string(f", {self.offset.data}, {self.length.data}, ")
            printer.print_string_literal(self.hash.data)

    def verify(self) -> None:
        if not self.type.has_static_shape():
            raise VerifyException(f"weight {self.label.data!r} must have a static shape")

    @staticmethod
    def get(part: WeightPart) -> WeightPartAttr:
        return WeightPartAttr(
            StringAttr(part.name),
            _tensor_type(part.dtype, part.shape),
            StringAttr(part.file),
            IntAttr(part.offset),
            IntAttr(part.length),
            StringAttr(part.hash),
        )

    def to_part(self) -> WeightPart:
        return WeightPart(
            file=self.file.data,
            offset=self.offset.data,
            length=self.length.data,
            hash=self.hash.data,
            dtype=element_type_name(self.type.element_type),
            shape=self.type.get_shape(),
            name=self.label.data,
        )


@irdl_attr_definition
class WeightAttr(ParametrizedAttribute):
    """Where the bytes of a tensor are, and the recipe that is applied to them at load."""

    name = "te.weight"

    parts: ArrayAttr[WeightPartAttr] = param_def()
    recipe: ArrayAttr[StringAttr] = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            parts = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE,
                lambda: WeightPartAttr.parse_part(parser),
            )
            recipe: list[StringAttr] = []
            if parser.parse_optional_punctuation(",") is not None:
                recipe = parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: StringAttr(parser.parse_str_literal())
                )
        return [ArrayAttr(parts), ArrayAttr(recipe)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            with printer.in_square_brackets():
                printer.print_list(self.parts.data, lambda part: part.print_parameters(printer))
            if self.recipe.data:
                printer.print_string(", ")
                with printer.in_square_brackets():
                    printer.print_list(
                        self.recipe.data, lambda s: printer.print_string_literal(s.data)
                    )

    def verify(self) -> None:
        if not self.parts.data:
            raise VerifyException("a weight has at least one part")
        try:
            _ = self.to_ref().type
        except ModelError as error:
            raise VerifyException(error.what) from None

    @staticmethod
    def get(ref: WeightRef) -> WeightAttr:
        """The attribute of a reference."""
        return WeightAttr(
            ArrayAttr(WeightPartAttr.get(p) for p in ref.parts),
            ArrayAttr(StringAttr(step) for step in ref.recipe),
        )

    def to_ref(self) -> WeightRef:
        """The IR-free reference, which `elk_ir.frontend.weights.load_weight` loads."""
        return WeightRef(
            tuple(p.to_part() for p in self.parts.data), tuple(s.data for s in self.recipe.data)
        )

    def get_type(self) -> TensorType[Attribute]:
        """The type of the tensor after the recipe."""
        return _tensor_type(*self.to_ref().type)
