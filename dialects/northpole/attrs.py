"""Attributes of `northpole`: what an operator asks of a unit, bytes that stay, precision, and what
is assumed. Each spells the fields of one dataclass of `elk_ir/northpole`, defaults left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from typing import Any, TypeVar

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from elk_ir.errors import ElkError
from elk_ir.northpole.bytes import Resident
from elk_ir.northpole.network import Precision, Task, Unit
from elk_ir.northpole.timing import Assumptions

T = TypeVar("T")


def _print_fields(printer: Printer, data: object) -> None:
    """`<field = value, …>`, without fields that have their default."""
    parts: list[str] = []
    for each in fields(data):  # pyright: ignore[reportArgumentType]
        value = getattr(data, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        parts.append(f"{each.name} = {_spelled(value)}")
    printer.print_string(f"<{', '.join(parts)}>")


def _spelled(value: Any) -> str:
    if isinstance(value, str | StrEnum):
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(str(v) for v in value)}]"
    text = repr(value)
    # A float of MLIR has a point, one of Python need not: 2e-05.
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text


def _parse_fields(parser: AttrParser, data: type[T], convert: Mapping[str, Any]) -> T:
    """What `_print_fields` wrote."""
    known: dict[str, Field[Any]] = {f.name: f for f in fields(data)}  # pyright: ignore[reportArgumentType]
    found: dict[str, Any] = {}

    def one() -> None:
        start = parser.pos
        name = parser.parse_identifier()
        if name not in known or name in found:
            parser.raise_error(f"'{name}' is no field here, or is there twice", start, parser.pos)
        parser.parse_punctuation("=")
        found[name] = convert.get(name, lambda v: v)(_parse_value(parser))

    start = parser.pos
    parser.parse_comma_separated_list(parser.Delimiter.ANGLE, one)
    try:
        return data(**found)
    except (TypeError, ElkError) as error:
        parser.raise_error(str(error), start, parser.pos)


def _parse_value(parser: AttrParser) -> Any:
    text = parser.parse_optional_str_literal()
    if text is not None:
        return text
    if parser.parse_optional_punctuation("["):
        values = [parser.parse_integer()]
        while parser.parse_optional_punctuation(","):
            values.append(parser.parse_integer())
        parser.parse_punctuation("]")
        return tuple(values)
    return parser.parse_number()


@irdl_attr_definition
class TaskAttr(Data[Task]):
    """What an operator asks of a unit, for one user and token (elk_ir/northpole/network.py)."""

    name = "northpole.task"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Task:
        return _parse_fields(parser, Task, {"unit": Unit})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class ResidentAttr(Data[Resident]):
    """Bytes that stay on each card of a stage, and on its fullest core."""

    name = "northpole.resident"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Resident:
        return _parse_fields(parser, Resident, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class PrecisionAttr(Data[Precision]):
    """Bits of weights, activations, KV entries and the output layer."""

    name = "northpole.precision"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Precision:
        return _parse_fields(parser, Precision, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class AssumptionsAttr(Data[Assumptions]):
    """What is not published about the machine's use, with the values that were assumed."""

    name = "northpole.assumptions"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Assumptions:
        return _parse_fields(parser, Assumptions, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)
