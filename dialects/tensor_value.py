"""`custom<TensorValue>($value)`: the value of a tensor in an assembly format, exactly.

Prints ` = value` or nothing. xDSL 0.75 prints numbers without a short decimal form (-inf) inside
`dense<…>` in a way that it reads back as other numbers; here such tensors keep their bytes.
"""

from __future__ import annotations

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer

from elk_ir.dialects.element_types import print_dense


@irdl_custom_directive
class TensorValue(CustomDirective):
    """` = value`, left out where the property is absent."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        if parser.parse_optional_punctuation("="):
            self.value.set(state, parser.parse_attribute())

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        attr = self.value.get(op)
        if attr is None:
            return
        state.print_whitespace(printer)
        printer.print_string("= ")
        if isinstance(attr, DenseIntOrFPElementsAttr):
            print_dense(printer, attr)
        else:
            printer.print_attribute(attr)
        state.last_was_punctuation = False
        state.should_emit_space = True
