"""Scalar bodies as C++ statements, with the semantics of `elk_ir.numerics.body`."""

from __future__ import annotations

from collections.abc import Sequence

from elk_ir.errors import ElkError
from elk_ir.numerics.body import PREDICATES, Body, Instr, is_float, result_dtypes
from elk_ir.targets.ipu.cpp_types import convert, cpp_type, literal, rounded

_INFIX = {"add": "+", "bitand": "&", "bitor": "|", "bitxor": "^", "mul": "*", "shl": "<<"}
_INFIX |= {"shr": ">>", "sub": "-"}
_COMPARE = {"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="}
_LOGIC = {"and": "&&", "or": "||"}
_CALL = {"fmod": "elk::remainderOf", "max": "elk::maximum", "min": "elk::minimum"}
_CALL |= {"mod": "elk::modulo", "pow": "elk::power", "sign": "elk::signOf", "div": "elk::divide"}
_FLOAT_CALL = {
    "abs": "std::fabs",
    "ceil": "std::ceil",
    "floor": "std::floor",
    "round": "std::nearbyint",
    "sigmoid": "elk::sigmoid",
    **{
        name: f"std::{name}"
        for name in (
            "acos acosh asin asinh atan atanh cos cosh erf exp log sin sinh sqrt tan tanh".split()
        )
    },
}


def _apply(op: str, args: list[str], types: list[str]) -> str:
    dtype = types[0]
    first = args[0]
    if op in _LOGIC:
        return f"({first} {_LOGIC[op]} {args[1]})"
    if op == "xor":
        return f"(!{first} != !{args[1]})"
    if op == "not":
        return f"!{first}"
    if op in ("isinf", "isnan"):
        return f"std::{op}({first})" if is_float(dtype) else "false"
    if op == "select":
        return f"({first} ? {args[1]} : {args[2]})"
    if len(args) == 2 and types[1] != dtype:
        args[1] = convert(args[1], types[1], dtype)
    if op in _COMPARE:
        return f"({first} {_COMPARE[op]} {args[1]})"
    if op in _INFIX:
        return f"({first} {_INFIX[op]} {args[1]})"
    if op == "neg":
        return f"-{first}"
    if op == "identity":
        return first
    if op == "bitnot":
        return f"!{first}" if dtype == "bool" else f"~{first}"
    if op == "recip":
        return f"(1 / {first})"
    if op == "rsqrt":
        return f"(1 / std::sqrt({first}))"
    if op in _CALL:
        return f"{_CALL[op]}({', '.join(args)})"
    if op in _FLOAT_CALL:
        if is_float(dtype):
            return f"{_FLOAT_CALL[op]}({first})"
        if op == "abs":
            return f"({first} < 0 ? -{first} : {first})"
        if op in ("ceil", "floor", "round"):
            return first
    raise ElkError(f"no C++ for the scalar operation {op} of {dtype}")


def _instruction(instr: Instr, names: list[str], types: list[str]) -> tuple[str, str]:
    """Expression and type of one instruction."""
    args = [names[a] for a in instr.args]
    own = [types[a] for a in instr.args]
    if instr.op == "const":
        assert instr.dtype is not None and instr.value is not None
        return literal(instr.value, instr.dtype), instr.dtype
    if instr.op == "cast":
        assert instr.dtype is not None
        return convert(args[0], own[0], instr.dtype), instr.dtype
    text = _apply(instr.op, args, own)
    if instr.op in PREDICATES:
        return text, "bool"
    dtype = own[1] if instr.op == "select" else own[0]
    if not is_float(dtype):
        return f"static_cast<{cpp_type(dtype).value}>({text})", dtype
    exact = instr.op in ("select", "identity", "neg", "abs", "max", "min", "sign")
    return (text if exact else rounded(text, dtype)), dtype


def body_lines(
    body: Body, inputs: Sequence[str], dtypes: Sequence[str], prefix: str = "b"
) -> tuple[list[str], list[str], list[str]]:
    """Statements that compute a body, then the expressions and types of its results.

    inputs: expressions of the values it is given, of element types `dtypes`.
    """
    lines: list[str] = []
    names, types = list(inputs), list(dtypes)
    expected = result_dtypes(body, dtypes)
    uses = [0] * (body.inputs + len(body.instrs))
    for instr in body.instrs:
        for a in instr.args:
            uses[a] += 1
    for r in body.results:
        uses[r] += 1
    for instr in body.instrs:
        text, dtype = _instruction(instr, names, types)
        assert dtype == expected[len(types)]
        if instr.op != "const" and uses[len(names)]:
            name = f"{prefix}{len(names)}"
            lines.append(f"const {cpp_type(dtype).value} {name} = {text};")
            text = name
        names.append(text)
        types.append(dtype)
    return lines, [names[r] for r in body.results], [types[r] for r in body.results]
