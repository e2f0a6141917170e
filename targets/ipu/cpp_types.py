"""Element types, literals, names and layout expressions as C++ text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.numerics.tensors import nearest
from elk_ir.plan.expr import Expr
from elk_ir.plan.layout import AxisLayout, Layout


@dataclass(frozen=True, slots=True)
class CppType:
    """How an element type appears: stored in a tensor (`storage`, and Poplar's name for it) and in
    a scalar expression (`value`). Narrow floats are computed in float and rounded."""

    storage: str
    poplar: str
    value: str


_TYPES = {
    "bool": CppType("bool", "BOOL", "bool"),
    "bfloat16": CppType("unsigned short", "UNSIGNED_SHORT", "float"),
    "float16": CppType("half", "HALF", "float"),
    "float32": CppType("float", "FLOAT", "float"),
    "float8_e4m3fn": CppType("unsigned char", "UNSIGNED_CHAR", "float"),
    "int2": CppType("signed char", "SIGNED_CHAR", "signed char"),
    "int4": CppType("signed char", "SIGNED_CHAR", "signed char"),
    "int8": CppType("signed char", "SIGNED_CHAR", "signed char"),
    "int16": CppType("short", "SHORT", "short"),
    "int32": CppType("int", "INT", "int"),
    "int64": CppType("long long", "LONGLONG", "long long"),
    "uint2": CppType("unsigned char", "UNSIGNED_CHAR", "unsigned char"),
    "uint4": CppType("unsigned char", "UNSIGNED_CHAR", "unsigned char"),
    "uint8": CppType("unsigned char", "UNSIGNED_CHAR", "unsigned char"),
    "uint16": CppType("unsigned short", "UNSIGNED_SHORT", "unsigned short"),
    "uint32": CppType("unsigned", "UNSIGNED_INT", "unsigned"),
    "uint64": CppType("unsigned long long", "UNSIGNED_LONGLONG", "unsigned long long"),
}


def cpp_type(dtype: str) -> CppType:
    """The C++ form of an element type. Raises ElkError for one that Poplar's tiles lack."""
    if dtype not in _TYPES:
        raise ElkError(f"Poplar has no element type for {dtype}")
    return _TYPES[dtype]


def load(expr: str, dtype: str) -> str:
    """A stored element as a value."""
    if dtype == "bfloat16":
        return f"elk::fromBfloat({expr})"
    if dtype == "float8_e4m3fn":
        return f"elk::fromFloat8({expr})"
    return f"static_cast<float>({expr})" if dtype == "float16" else expr


def stored(expr: str, dtype: str) -> str:
    """A value as an element to be stored."""
    if dtype == "bfloat16":
        return f"elk::toBfloat({expr})"
    if dtype == "float8_e4m3fn":
        return f"elk::toFloat8({expr})"
    return f"half({expr})" if dtype == "float16" else expr


def rounded(expr: str, dtype: str) -> str:
    """A value of a float type after an operation: narrow floats are rounded each time."""
    if dtype == "bfloat16":
        return f"elk::roundBfloat({expr})"
    if dtype == "float8_e4m3fn":
        return f"elk::fromFloat8(elk::toFloat8({expr}))"
    return f"elk::roundHalf({expr})" if dtype == "float16" else expr


def convert(expr: str, source: str, target: str) -> str:
    """A value cast as ONNX's Cast does."""
    if source == target:
        return expr
    value = cpp_type(target).value
    if target == "bool":
        return f"({expr} != 0)"
    if is_float(target):
        wide = expr if is_float(source) else f"static_cast<float>({expr})"
        narrows = target != "float32" and source != target
        return rounded(wide, target) if narrows else wide
    return f"static_cast<{value}>({expr})"


def literal(value: float | int | bool, dtype: str) -> str:
    """A constant of an element type."""
    if dtype == "bool":
        return "true" if value else "false"
    if is_float(dtype):
        with np.errstate(over="ignore"):
            number = float(np.asarray(value).astype(dtype_of(dtype)))
        if np.isnan(number):
            return "NAN"
        if np.isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        text = repr(float(str(np.float32(number))))
        return f"{text}f"
    number = int(nearest(value, dtype_of(dtype)))
    if dtype == "int64":
        return f"(-{-(number + 1)}LL - 1)" if number == -(2**63) else f"{number}LL"
    if dtype == "uint64":
        return f"{number}ULL"
    if dtype == "uint32":
        return f"{number}u"
    return "(-2147483647 - 1)" if number == -(2**31) else str(number)


_RESERVED = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const"
    " constexpr continue decltype default delete do double else enum explicit export extern false"
    " float for friend goto if inline int long mutable namespace new noexcept not nullptr operator"
    " or private protected public register return short signed sizeof static struct switch template"
    " this throw true try typedef typeid typename union unsigned using virtual void volatile while"
    " xor main graph prog half std elk poplar program c t n cs v it device declare stage unstage"
    " INFINITY NAN EOF".split()
)


class Names:
    """C++ identifiers made from other names, each different."""

    def __init__(self) -> None:
        self.taken: set[str] = set(_RESERVED)
        self.known: dict[tuple[str, str], str] = {}

    def get(self, kind: str, name: str) -> str:
        """The identifier of `name`; the same for the same kind and name."""
        key = (kind, name)
        if key not in self.known:
            base = re.sub(r"_+", "_", re.sub(r"\W", "_", name, flags=re.ASCII)).strip("_") or "x"
            if base[0].isdigit():
                base = f"n{base}"
            candidate, count = base, 1
            while candidate in self.taken:
                count += 1
                candidate = f"{base}_{count}"
            self.taken.add(candidate)
            self.known[key] = candidate
        return self.known[key]


def quoted(text: str) -> str:
    """A C++ string literal."""
    out = []
    for ch in text:
        if ch in '"\\':
            out.append("\\" + ch)
        elif ch.isascii() and ch.isprintable():
            out.append(ch)
        else:
            out += [f"\\{b:03o}" for b in ch.encode()]
    return '"' + "".join(out) + '"'


def comment(text: str) -> str:
    """Text that cannot leave a `//` comment."""
    return text.replace("\\", "/").replace("\n", " ").replace("\r", " ")


# ---------------------------------------------------------------------- layout expressions


def _never_negative(expr: Expr) -> bool:
    if expr.kind == "const":
        return expr.value >= 0
    if expr.kind == "var":
        return True
    assert expr.left is not None and expr.right is not None
    if expr.kind == "mod":
        return True
    return _never_negative(expr.left) and _never_negative(expr.right)


def cpp_expr(expr: Expr) -> str:
    """A layout expression over `c`, `s` and `t` as C++."""
    text = _cpp(expr)
    return text[1:-1] if text.startswith("(") and _closes_at_end(text) else text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for i, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0:
            return i == len(text) - 1
    return False


def _cpp(expr: Expr) -> str:
    if expr.kind == "const":
        return str(expr.value)
    if expr.kind == "var":
        return expr.name
    assert expr.left is not None and expr.right is not None
    left, right = _cpp(expr.left), _cpp(expr.right)
    if expr.kind in ("+", "*"):
        if expr.kind == "+" and expr.right.kind == "const" and expr.right.value < 0:
            return f"({left} - {-expr.right.value})"
        return f"({left} {expr.kind} {right})"
    if _never_negative(expr.left):
        return f"({left} {'/' if expr.kind == 'floordiv' else '%'} {right})"
    function = "elk::floorDiv" if expr.kind == "floordiv" else "elk::floorMod"
    return f"{function}({left}, {right})"


def _function(expr: Expr) -> str:
    c = "long c" if expr.uses("c") else "long"
    s = "long s" if expr.uses("s") else "long"
    return f"[]({c}, {s}) -> long {{ return {cpp_expr(expr)}; }}"


def _axis(axis: AxisLayout) -> str:
    if not axis.cuts and axis.slots == 1:
        return f"{{{axis.extent}}}"
    cuts = ", ".join(f"{{{_function(cut.start)}, {cut.size}}}" for cut in axis.cuts)
    slots = f", {axis.slots}" if axis.slots > 1 else ""
    return f"{{{axis.extent}, {{{cuts}}}{slots}}}"


def cpp_layout(layout: Layout) -> str:
    """The initializer of an `elk::Layout`."""
    axes = ",".join(f"\n    {_axis(a)}" for a in layout.axes)
    guard = "" if layout.guard is None else f", {_function(layout.guard)}"
    return f"{{{layout.cores}, {len(layout.axes)}, {{{axes}}}{guard}}}"
