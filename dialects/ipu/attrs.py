"""Attributes of `ipu`: tile mappings, core maps, and references to variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import auto

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Data, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from elk_ir.plan.expr import CORE, SLOT, STEP, Expr, const
from elk_ir.plan.layout import AxisLayout, Cut, Layout

_VARIABLES = {"c": CORE, "s": SLOT, "t": STEP}


def parse_expr(parser: AttrParser) -> Expr:
    """`term (op term)*` with `+`, `*`, `floordiv`, `mod`, left to right; the printer writes every
    parenthesis, so precedence never decides."""
    expr = _parse_term(parser)
    while True:
        if parser.parse_optional_punctuation("+"):
            expr = expr + _parse_term(parser)
        elif parser.parse_optional_punctuation("*"):
            expr = expr * parser.parse_integer(allow_boolean=False)
        elif parser.parse_optional_keyword("floordiv"):
            expr = expr // parser.parse_integer(allow_boolean=False, allow_negative=False)
        elif parser.parse_optional_keyword("mod"):
            expr = expr % parser.parse_integer(allow_boolean=False, allow_negative=False)
        else:
            return expr


def _parse_term(parser: AttrParser) -> Expr:
    if parser.parse_optional_punctuation("("):
        expr = parse_expr(parser)
        parser.parse_punctuation(")")
        return expr
    value = parser.parse_optional_integer(allow_boolean=False)
    if value is not None:
        return const(value)
    position = parser.pos
    name = parser.parse_identifier()
    if name not in _VARIABLES:
        parser.raise_error(f"expected c, s or t, got {name}", position, parser.pos)
    return _VARIABLES[name]


@irdl_attr_definition
class ExprAttr(Data[Expr]):
    """`#ipu.expr<((c + 1) mod 4)>`: an integer for every core `c` (and ring step `t`)."""

    name = "ipu.expr"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Expr:
        with parser.in_angle_brackets():
            return parse_expr(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class LayoutAttr(Data[Layout]):
    """A tile mapping: which box of a tensor each core holds.

        #ipu.layout<8 cores, [2, 64 at ((c mod 4) * 16) size 16], where (c floordiv 4)>

    One entry an axis: its extent, then nested cuts, outermost first, then `slots N` where a core
    keeps several blocks (`s` in the last cut is the slot). `where`: only cores on which the
    expression is zero hold their box.
    """

    name = "ipu.layout"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Layout:
        with parser.in_angle_brackets():
            cores = parser.parse_integer(allow_boolean=False, allow_negative=False)
            parser.parse_keyword("cores")
            parser.parse_punctuation(",")

            def parse_axis() -> AxisLayout:
                extent = parser.parse_integer(allow_boolean=False, allow_negative=False)
                cuts: list[Cut] = []
                slots = 1
                while parser.parse_optional_keyword("at"):
                    start = parse_expr(parser)
                    parser.parse_keyword("size")
                    cuts.append(Cut(start, parser.parse_integer(allow_boolean=False)))
                if parser.parse_optional_keyword("slots"):
                    slots = parser.parse_integer(allow_boolean=False, allow_negative=False)
                return AxisLayout(extent, tuple(cuts), slots)

            axes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_axis)
            guard = None
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword("where")
                guard = parse_expr(parser)
        return Layout(cores, tuple(axes), guard)

    def print_parameter(self, printer: Printer) -> None:
        layout = self.data

        def axis_text(axis: AxisLayout) -> str:
            text = str(axis.extent)
            text += "".join(f" at {cut.start} size {cut.size}" for cut in axis.cuts)
            return text + (f" slots {axis.slots}" if axis.slots > 1 else "")

        axes = ", ".join(axis_text(a) for a in layout.axes)
        guard = "" if layout.guard is None else f", where {layout.guard}"
        printer.print_string(f"<{layout.cores} cores, [{axes}]{guard}>")


@dataclass(frozen=True)
class Ref:
    """A variable, or the block of it in the given slots (an expression in `t` an axis; None for
    all slots of that axis)."""

    name: str
    slots: tuple[Expr | None, ...] = ()


@irdl_attr_definition
class RefAttr(Data[Ref]):
    """`#ipu.ref<@x>`, or `#ipu.ref<@x[0, (t mod 2), _]>`: one slot an axis, `_` for all."""

    name = "ipu.ref"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Ref:
        with parser.in_angle_brackets():
            name = parser.parse_symbol_name().data

            def parse_slot() -> Expr | None:
                return None if parser.parse_optional_keyword("_") else parse_expr(parser)

            slots = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parse_slot)
        return Ref(name, tuple(slots or ()))

    def print_parameter(self, printer: Printer) -> None:
        ref = self.data
        with printer.in_angle_brackets():
            printer.print_symbol_name(ref.name)
            if ref.slots:
                slots = ", ".join("_" if s is None else str(s) for s in ref.slots)
                printer.print_string(f"[{slots}]")


def ref(name: str, slots: Sequence[Expr | None] = ()) -> RefAttr:
    """The attribute of a reference."""
    return RefAttr(Ref(name, tuple(slots)))


class VertexPhase(StrEnum):
    """Which phase of its codelet a vertex runs."""

    APPLY = auto()
    COMBINE = auto()
    LOCAL = auto()


@irdl_attr_definition
class VertexPhaseAttr(EnumAttribute[VertexPhase], SpacedOpaqueSyntaxAttribute):
    """`local`, `combine` or `apply`."""

    name = "ipu.phase"
