"""The syntax that the operations share: `(operands) ({graphs}) {attributes} : (types) -> types`.

An absent operand or result is `none` in its place, in the list and in the types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, NoneType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer

from elk_ir.dialects.element_types import print_dense

_ABSENT = NoneType()


@dataclass(frozen=True)
class Call:
    """What was parsed; `position` is where a complaint about it belongs."""

    operands: list[SSAValue | None]
    result_types: list[Attribute | None]
    regions: list[Region]
    attributes: dict[str, Attribute]
    position: int


def print_call(
    printer: Printer,
    operands: Sequence[SSAValue | None],
    results: Sequence[SSAValue | None],
    regions: Sequence[Region],
    attributes: Mapping[str, Attribute],
) -> None:
    """Print everything behind an operation's name."""

    def print_operand(value: SSAValue | None) -> None:
        if value is None:
            printer.print_string("none")
        else:
            printer.print_ssa_value(value)

    def print_type(value: SSAValue | None) -> None:
        printer.print_attribute(_ABSENT if value is None else value.type)

    with printer.in_parens():
        printer.print_list(operands, print_operand)
    if regions:
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(regions, printer.print_region)
    print_attributes(printer, attributes)
    printer.print_string(" : ")
    with printer.in_parens():
        printer.print_list(operands, print_type)
    printer.print_string(" -> ")
    if len(results) == 1:
        print_type(results[0])
    else:
        with printer.in_parens():
            printer.print_list(results, print_type)


def print_attributes(printer: Printer, attributes: Mapping[str, Attribute]) -> None:
    """` {name = value, …}`, nothing if there are none."""
    if not attributes:
        return

    def print_entry(key: str) -> None:
        printer.print_identifier_or_string_literal(key)
        printer.print_string(" = ")
        value = attributes[key]
        if isinstance(value, DenseIntOrFPElementsAttr):
            print_dense(printer, value)
        else:
            printer.print_attribute(value)

    printer.print_string(" ")
    with printer.in_braces():
        printer.print_list(attributes, print_entry)


def parse_call(parser: Parser, *, regions: bool) -> Call:
    """Parse everything behind an operation's name; `regions` says whether it has graphs."""
    position = parser.pos
    names = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN,
        lambda: (
            None if parser.parse_optional_keyword("none") else parser.parse_unresolved_operand()
        ),
    )
    parsed: list[Region] = []
    if regions:
        parsed = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_region)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if len(types) != len(names):
        parser.raise_error(f"{len(names)} operands but {len(types)} operand types", position)
    parser.parse_punctuation("->")
    result_types = parser.parse_optional_comma_separated_list(
        parser.Delimiter.PAREN, parser.parse_type
    )
    if result_types is None:
        result_types = [parser.parse_type()]
    return Call(
        operands=[
            None if name is None else parser.resolve_operand(name, type_)
            for name, type_ in zip(names, types, strict=True)
        ],
        result_types=[None if isinstance(t, NoneType) else t for t in result_types],
        regions=parsed,
        attributes=attributes,
        position=position,
    )
