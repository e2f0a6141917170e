"""How `elk-opt` prints IR: large constants elided on request, and dumps around passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from math import prod
from typing import IO

from xdsl.dialects.builtin import DenseArrayBase, DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.printer import Printer


class _ElidesConstants(Printer):
    """Prints a dense attribute of more than `element_limit` elements as a remark.

    The remark `dense<...elided 4096 elements...> : type` is rejected by every MLIR parser, so that
    a listing made for reading is never mistaken for a program. Splats stay: they are short anyway.
    """

    element_limit: int | None = None

    def print_attribute(self, attribute: Attribute) -> None:
        limit = self.element_limit
        if limit is not None:
            if isinstance(attribute, DenseIntOrFPElementsAttr):
                count = prod(attribute.get_shape())
                if count > limit and not _is_splat(attribute.data.data, count):
                    self.print_string(f"dense<...elided {count} elements...> : ")
                    super().print_attribute(attribute.get_type())
                    return
            elif isinstance(attribute, DenseArrayBase) and len(attribute) > limit:
                self.print_string("array<")
                super().print_attribute(attribute.elt_type)
                self.print_string(f": ...elided {len(attribute)} elements...>")
                return
        super().print_attribute(attribute)


def _is_splat(data: bytes, count: int) -> bool:
    width = len(data) // count
    return len(data) == width or data == data[:width] * count


class _OneOpPrinter(_ElidesConstants):
    """Prints an operation on one line: its regions are only marked."""

    def print_region(
        self,
        region: Region,
        print_entry_block_args: bool = True,
        print_empty_block: bool = True,
        print_block_terminators: bool = True,
    ) -> None:
        self.print_string("{...}")

    def print_block_name(self, block: Block) -> str:
        # Numbering successors would need the region around the operation.
        self.print_string("^...")
        return "..."


def one_line(op: Operation) -> str:
    """The operation in generic form without its regions, for error messages."""
    stream = StringIO()
    printer = _OneOpPrinter(stream, print_generic_format=True)
    printer.element_limit = 8
    printer.print_op(op)
    return stream.getvalue()


@dataclass(frozen=True)
class PrintOptions:
    """The options of `elk-opt` that say how IR is printed."""

    generic: bool = False
    properties_as_attributes: bool = False
    debuginfo: bool = False
    highlight: bool = False
    element_limit: int | None = None

    def printer(self, stream: IO[str]) -> Printer:
        """A printer writing to `stream`."""
        cls = _ElidesConstants
        if self.highlight:
            from xdsl.syntax_printer import SyntaxPrinter

            cls = type("_Highlighting", (_ElidesConstants, SyntaxPrinter), {})
        printer = cls(
            stream,
            print_generic_format=self.generic,
            print_properties_as_attributes=self.properties_as_attributes,
            print_debuginfo=self.debuginfo,
        )
        printer.element_limit = self.element_limit
        return printer


@dataclass(frozen=True)
class Dumps:
    """Which passes to dump the IR before and after; None stands for all of them."""

    before: Sequence[str] | None
    after: Sequence[str] | None
    options: PrintOptions

    def dump_before(self, pass_name: str, module: ModuleOp, stream: IO[str]) -> None:
        if self.before is None or pass_name in self.before:
            self._dump(f"IR Dump Before {pass_name}", module, stream)

    def dump_after(self, pass_name: str, module: ModuleOp, stream: IO[str]) -> None:
        if self.after is None or pass_name in self.after:
            self._dump(f"IR Dump After {pass_name}", module, stream)

    def _dump(self, title: str, module: ModuleOp, stream: IO[str]) -> None:
        text = StringIO()
        self.options.printer(text).print_op(module)
        stream.write(f"// -----// {title} //----- //\n{text.getvalue()}\n\n")
        stream.flush()
