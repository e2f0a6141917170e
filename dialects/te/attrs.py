"""Attributes of `te`: the iteration domain with its access maps, and scalar bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from elk_ir.numerics.body import SCALAR_OPS, Body, Instr, dtype_of
from elk_ir.plan.domain import AxisExpr, Dim, DimKind

Map = tuple[AxisExpr, ...]

_KINDS = {"": DimKind.PARALLEL, "reduce": DimKind.REDUCTION, "local": DimKind.LOCAL}
_SUFFIX = {kind: f" {word}" if word else "" for word, kind in _KINDS.items()}


@dataclass(frozen=True)
class Domain:
    """Iteration dimensions and one map (an expression an axis) per operand and result."""

    dims: tuple[Dim, ...]
    operands: tuple[Map, ...]
    results: tuple[Map, ...]


def format_map(axes: Map, names: Sequence[str]) -> str:
    """`(m, 2*h + d - 1)`."""
    return "(" + ", ".join(_format_axis(axis, names) for axis in axes) + ")"


def _format_axis(axis: AxisExpr, names: Sequence[str]) -> str:
    text = ""
    for d, k in axis.terms:
        term = names[d] if abs(k) == 1 else f"{abs(k)}*{names[d]}"
        text += (" - " if k < 0 else " + ") + term if text else ("-" if k < 0 else "") + term
    if axis.offset or not text:
        sign = " - " if axis.offset < 0 else " + "
        text = text + sign + str(abs(axis.offset)) if text else str(axis.offset)
    return text


def _parse_axis(parser: AttrParser, names: list[str]) -> AxisExpr:
    terms: dict[int, int] = {}
    offset = 0
    sign = -1 if parser.parse_optional_punctuation("-") else 1
    while True:
        factor = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        if factor is None or parser.parse_optional_punctuation("*"):
            position = parser.pos
            name = parser.parse_identifier()
            if name not in names:
                parser.raise_error(f"unknown iteration dimension {name}", position, parser.pos)
            d = names.index(name)
            terms[d] = terms.get(d, 0) + sign * (1 if factor is None else factor)
        else:
            offset += sign * factor
        if parser.parse_optional_punctuation("+"):
            sign = 1
        elif parser.parse_optional_punctuation("-"):
            sign = -1
        else:
            break
    return AxisExpr(tuple(sorted((d, k) for d, k in terms.items() if k)), offset)


@irdl_attr_definition
class DomainAttr(Data[Domain]):
    """`#te.domain<(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]>`.

    Dimensions are parallel, `reduce`, or `local` (iterated inside one core)."""

    name = "te.domain"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Domain:
        with parser.in_angle_brackets():
            dims: list[Dim] = []

            def parse_dim() -> None:
                name = parser.parse_identifier()
                parser.parse_punctuation("=")
                extent = parser.parse_integer(allow_boolean=False, allow_negative=False)
                word = parser.parse_optional_keyword_in(("reduce", "local")) or ""
                dims.append(Dim(name, extent, _KINDS[word]))

            parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_dim)
            names = [d.name for d in dims]
            if len(set(names)) != len(names):
                parser.raise_error("iteration dimensions must have distinct names")

            def parse_map() -> Map:
                return tuple(
                    parser.parse_comma_separated_list(
                        parser.Delimiter.PAREN, lambda: _parse_axis(parser, names)
                    )
                )

            parser.parse_punctuation(",")
            operands = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_map)
            parser.parse_punctuation("->")
            results = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_map)
        return Domain(tuple(dims), tuple(operands), tuple(results))

    def print_parameter(self, printer: Printer) -> None:
        domain = self.data
        names = [d.name for d in domain.dims]
        dims = ", ".join(f"{d.name} = {d.extent}{_SUFFIX[d.kind]}" for d in domain.dims)
        operands = ", ".join(format_map(m, names) for m in domain.operands)
        results = ", ".join(format_map(m, names) for m in domain.results)
        printer.print_string(f"<({dims}), [{operands}] -> [{results}]>")


def _value_name(i: int, inputs: int) -> str:
    return f"x{i}" if i < inputs else f"t{i - inputs}"


def _format_constant(value: float | int | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # Floats that are not finite have no literal in MLIR: they are written as quoted words.
    text = repr(float(value)) if value is not None else "0.0"
    if "n" in text:
        return f'"{text}"'
    # MLIR's float literals need a point in front of the exponent.
    mantissa, e, exponent = text.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent


@irdl_attr_definition
class BodyAttr(Data[Body]):
    """A scalar body: `#te.body<(x0, x1) {t0 = mul(x0, x1), t1 = cast(t0 : "float16")} -> (t1)>`.

    A constant is `const(1.0 : "float32")`. The operations are those of `SCALAR_OPS`."""

    name = "te.body"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Body:
        with parser.in_angle_brackets():
            inputs = parser.parse_comma_separated_list(
                parser.Delimiter.PAREN, parser.parse_identifier
            )
            names = {name: i for i, name in enumerate(inputs)}

            def parse_value() -> int:
                position = parser.pos
                name = parser.parse_identifier()
                if name not in names:
                    parser.raise_error(f"unknown value {name}", position, parser.pos)
                return names[name]

            def parse_dtype() -> str:
                position = parser.pos
                name = parser.parse_str_literal()
                try:
                    dtype_of(name)
                except (AttributeError, TypeError):
                    parser.raise_error(f"unknown element type {name}", position, parser.pos)
                return name

            instrs: list[Instr] = []

            def parse_instr() -> None:
                result = parser.parse_identifier()
                parser.parse_punctuation("=")
                position = parser.pos
                op = parser.parse_identifier()
                with parser.in_parens():
                    if op == "const":
                        text = parser.parse_optional_str_literal()
                        value = (
                            float(text)
                            if text is not None
                            else parser.parse_number(allow_boolean=True)
                        )
                        parser.parse_punctuation(":")
                        dtype = parse_dtype()
                        value = bool(value) if dtype == "bool" else value
                        instr = Instr("const", (), value, dtype)
                    elif op == "cast":
                        args = (parse_value(),)
                        parser.parse_punctuation(":")
                        instr = Instr("cast", args, None, parse_dtype())
                    elif op in SCALAR_OPS:
                        args = tuple(
                            parser.parse_comma_separated_list(parser.Delimiter.NONE, parse_value)
                        )
                        arity = SCALAR_OPS[op][0]
                        if len(args) != arity:
                            message = f"{op} takes {arity} values, got {len(args)}"
                            parser.raise_error(message, position, parser.pos)
                        instr = Instr(op, args)
                    else:
                        parser.raise_error(f"unknown scalar operation {op}", position, parser.pos)
                names[result] = len(inputs) + len(instrs)
                instrs.append(instr)

            parser.parse_comma_separated_list(parser.Delimiter.BRACES, parse_instr)
            parser.parse_punctuation("->")
            results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_value)
        return Body(len(inputs), tuple(instrs), tuple(results))

    def print_parameter(self, printer: Printer) -> None:
        body = self.data

        def name(i: int) -> str:
            return _value_name(i, body.inputs)

        lines: list[str] = []
        for i, instr in enumerate(body.instrs):
            if instr.op == "const":
                inner = f'{_format_constant(instr.value)} : "{instr.dtype}"'
            else:
                inner = ", ".join(name(a) for a in instr.args)
                inner += f' : "{instr.dtype}"' if instr.op == "cast" else ""
            lines.append(f"{name(body.inputs + i)} = {instr.op}({inner})")
        inputs = ", ".join(name(i) for i in range(body.inputs))
        results = ", ".join(name(r) for r in body.results)
        printer.print_string(f"<({inputs}) {{{', '.join(lines)}}} -> ({results})>")
