"""`#icca.chip`: the machine a module is compiled for, with every field of `elk_ir.chips.Chip`.

    #icca.chip<"test-16", {chips = 1, clock_hz = 1000000000.0, network = {rows = 0, ...}, ...}>

Registered by the icca dialect. A printed program therefore needs no chip file: it says itself what
it was planned for. docs/chips.md explains the fields; ones left out by hand have their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from elk_ir.chips import Chip
from elk_ir.errors import ChipError


@irdl_attr_definition
class ChipAttr(Data[Chip]):
    """A chip, printed as `<"name", {field = value, section = {…}}>`. See docs/chips.md.

    Floats print with all their digits, so that a chip comes back exactly as it was; a chip is
    checked when it is made, so an attribute never holds an impossible one.
    """

    name = "icca.chip"

    @classmethod
    def from_chip(cls, chip: Chip) -> ChipAttr:
        """The attribute that holds `chip`."""
        return cls(chip)

    def to_chip(self) -> Chip:
        """The chip that this holds."""
        return self.data

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Chip:
        with parser.in_angle_brackets():
            start = parser.pos
            name = parser.parse_str_literal(" of the chip's name")
            parser.parse_punctuation(",")
            fields = _parse_fields(parser)
            end = parser.pos
        if "name" in fields:
            parser.raise_error("a chip's name stands before its fields", start, end)
        try:
            return Chip.from_dict({"name": name, **fields})
        except ChipError as error:
            more = f" (and {len(error.details)} more problems)" if error.details else ""
            parser.raise_error(error.what + more, start, end)

    def print_parameter(self, printer: Printer) -> None:
        fields = self.data.to_dict()
        with printer.in_angle_brackets():
            printer.print_string_literal(fields.pop("name"))
            printer.print_string(", ")
            _print_fields(printer, fields)


def _parse_fields(parser: AttrParser) -> dict[str, Any]:
    fields: dict[str, Any] = {}

    def parse_field() -> None:
        start = parser.pos
        name = parser.parse_identifier()
        if name in fields:
            parser.raise_error(f"field '{name}' is given twice", start, parser.pos)
        parser.parse_punctuation("=")
        fields[name] = _parse_value(parser)

    parser.parse_comma_separated_list(parser.Delimiter.BRACES, parse_field)
    return fields


def _parse_value(parser: AttrParser) -> Any:
    if (text := parser.parse_optional_str_literal()) is not None:
        return text
    if (flag := parser.parse_optional_boolean()) is not None:
        return flag
    if (number := parser.parse_optional_number()) is not None:
        return number
    return _parse_fields(parser)


def _print_fields(printer: Printer, fields: Mapping[str, Any]) -> None:
    def print_field(item: tuple[str, Any]) -> None:
        printer.print_string(f"{item[0]} = ")
        _print_value(printer, item[1])

    with printer.in_braces():
        printer.print_list(fields.items(), print_field)


def _print_value(printer: Printer, value: Any) -> None:
    if isinstance(value, Mapping):
        _print_fields(printer, value)
    elif isinstance(value, str):
        printer.print_string_literal(value)
    elif isinstance(value, bool):
        printer.print_string("true" if value else "false")
    else:
        printer.print_string(_number(value))


def _number(value: int | float) -> str:
    """A literal that MLIR's lexer takes and that reads back exactly (it wants `1.0e-12`)."""
    shown = repr(value)
    if "e" in shown and "." not in shown:
        shown = shown.replace("e", ".0e")
    return shown
