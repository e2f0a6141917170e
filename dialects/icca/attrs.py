"""Attributes and types of `icca`: partition plans and preload handles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import auto

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    Data,
    ParametrizedAttribute,
    SpacedOpaqueSyntaxAttribute,
    TypeAttribute,
)
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from elk_ir.plan.domain import Operator
from elk_ir.plan.plan import Plan, Reduce


@dataclass(frozen=True)
class NamedPlan:
    """A plan and the names of the iteration dimensions it speaks of."""

    names: tuple[str, ...]
    plan: Plan


def _format_factors(factors: Sequence[int], names: Sequence[str]) -> str:
    pairs = (f"{n} = {f}" for n, f in zip(names, factors, strict=True) if f != 1)
    return "{" + ", ".join(pairs) + "}"


@irdl_attr_definition
class PlanAttr(Data[NamedPlan]):
    """How an execute is spread over the cores.

        #icca.plan<grid [m = 2, n = 4, k = 2], operands [exec {} preload {}, exec {k = 2} preload
        {k = 4}], scatter n, rings [k]>

    Factors of one are left out of the operands; `scatter DIM`, `root` or `all` says where a split
    reduction ends up, `rings` orders nested rings, outermost first (by position if absent).
    """

    name = "icca.plan"

    @staticmethod
    def of(op: Operator, plan: Plan) -> PlanAttr:
        """The attribute of `plan`, for an operator whose dimensions it names."""
        return PlanAttr(NamedPlan(tuple(d.name for d in op.dims), plan))

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.data.plan

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> NamedPlan:
        with parser.in_angle_brackets():
            names: list[str] = []
            grid: list[int] = []

            def parse_grid() -> None:
                names.append(parser.parse_identifier())
                parser.parse_punctuation("=")
                grid.append(parser.parse_integer(allow_boolean=False, allow_negative=False))

            def parse_name() -> int:
                position = parser.pos
                name = parser.parse_identifier()
                if name not in names:
                    parser.raise_error(f"unknown dimension {name}", position, parser.pos)
                return names.index(name)

            def parse_factors() -> tuple[int, ...]:
                factors = [1] * len(names)

                def parse_factor() -> None:
                    d = parse_name()
                    parser.parse_punctuation("=")
                    factors[d] = parser.parse_integer(allow_boolean=False, allow_negative=False)

                parser.parse_comma_separated_list(parser.Delimiter.BRACES, parse_factor)
                return tuple(factors)

            def parse_operand() -> tuple[tuple[int, ...], tuple[int, ...]]:
                parser.parse_keyword("exec")
                execute = parse_factors()
                parser.parse_keyword("preload")
                return execute, parse_factors()

            parser.parse_keyword("grid")
            parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_grid)
            parser.parse_punctuation(",")
            parser.parse_keyword("operands")
            states = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_operand)
            reduce, scatter, rings = Reduce.SCATTER, None, None
            while parser.parse_optional_punctuation(","):
                word = parser.parse_keyword_in(("scatter", "root", "all", "rings"))
                if word == "rings":
                    rings = tuple(
                        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_name)
                    )
                else:
                    reduce = Reduce(word)
                    scatter = parse_name() if word == "scatter" else None
        execute = tuple(x for x, _ in states)
        preload = tuple(p for _, p in states)
        return NamedPlan(tuple(names), Plan(tuple(grid), execute, preload, reduce, scatter, rings))

    def print_parameter(self, printer: Printer) -> None:
        names, plan = self.data.names, self.data.plan
        grid = ", ".join(f"{n} = {f}" for n, f in zip(names, plan.grid, strict=True))
        operands = ", ".join(
            f"exec {_format_factors(x, names)} preload {_format_factors(p, names)}"
            for x, p in zip(plan.execute, plan.preload, strict=True)
        )
        text = f"<grid [{grid}], operands [{operands}]"
        if plan.reduce is not Reduce.SCATTER:
            text += f", {plan.reduce}"
        elif plan.scatter_dim is not None:
            text += f", scatter {names[plan.scatter_dim]}"
        if plan.ring_order is not None:
            text += ", rings [" + ", ".join(names[d] for d in plan.ring_order) + "]"
        printer.print_string(text + ">")


@irdl_attr_definition
class HandleType(ParametrizedAttribute, TypeAttribute):
    """`!icca.handle<tensor<…>>`: a tensor on its way from HBM into the cores' SRAM. It is consumed
    by exactly one execute, whose plan says which core receives what."""

    name = "icca.handle"

    tensor: TensorType[Attribute] = param_def()


class HbmKind(StrEnum):
    """What a tensor in HBM is for."""

    INPUT = auto()
    OUTPUT = auto()
    SCRATCH = auto()
    STATE = auto()
    WEIGHT = auto()


@irdl_attr_definition
class HbmKindAttr(EnumAttribute[HbmKind], SpacedOpaqueSyntaxAttribute):
    """`weight`, `input`, `output`, `scratch` or `state`."""

    name = "icca.hbm_kind"
