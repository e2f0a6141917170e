"""Element types, literals, names and layout expressions as C++ text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.numerics.tensors import nearest
from elk_ir.plan.expr import CORE, Expr, const
from elk_ir.plan.layout import AxisLayout, Cut, Layout


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
    return _cpp(expr)[0]


def _cpp(expr: Expr) -> tuple[str, bool]:
    """An expression, and whether it is a sum, which binds less than what may be around it."""
    if expr.kind == "const":
        return str(expr.value), False
    if expr.kind == "var":
        return expr.name, False
    assert expr.left is not None and expr.right is not None
    left, left_sum = _cpp(expr.left)
    right, right_sum = _cpp(expr.right)
    if expr.kind == "+":
        if expr.right.kind == "const" and expr.right.value < 0:
            return f"{left} - {-expr.right.value}", True
        return f"{left} + {right}", True
    if expr.kind == "*" or _never_negative(expr.left):
        # Products, quotients and remainders are read from the left; the right is a constant.
        left = f"({left})" if left_sum else left
        right = f"({right})" if right_sum or expr.right.kind not in ("const", "var") else right
        return f"{left} {_OPERATORS[expr.kind]} {right}", False
    function = "elk::floorDiv" if expr.kind == "floordiv" else "elk::floorMod"
    return f"{function}({left}, {right})", False


_OPERATORS = {"*": "*", "floordiv": "/", "mod": "%"}


def _blocks(expr: Expr) -> tuple[int, int, int] | None:
    """(d, m, w) of `c / d % m * w`, None for another expression."""
    width = 1
    if expr.kind == "*" and expr.left and expr.right and expr.right.kind == "const":
        expr, width = expr.left, expr.right.value
    if expr.kind != "mod" or not expr.left or not expr.right or expr.right.kind != "const":
        return None
    modulus, core, near = expr.right.value, expr.left, 1
    if core.kind == "floordiv" and core.left and core.right and core.right.kind == "const":
        core, near = core.left, core.right.value
    if core != CORE or near < 1 or modulus < 1:
        return None
    return near, modulus, width


def _function(expr: Expr) -> str:
    c = "long c" if expr.uses("c") else "long"
    s = "long s" if expr.uses("s") else "long"
    return f"[]({c}, {s}) -> long {{ return {cpp_expr(expr)}; }}"


def _cut(cut: Cut) -> str:
    blocks = _blocks(cut.start)
    if blocks is not None and blocks[2] == cut.size:
        near, modulus, width = blocks
        return f"elk::blocks<{near}, {modulus}{f', {width}' if width != 1 else ''}>"
    return f"{{{_function(cut.start)}, {cut.size}}}"


def _narrowing(axis: AxisLayout) -> list[Cut]:
    """The cuts of an axis without those that keep all of what they cut."""
    kept: list[Cut] = []
    size = axis.extent
    for cut in axis.cuts:
        if cut.size != size or cut.start != const(0):
            kept.append(cut)
        size = cut.size
    return kept


def _axis(axis: AxisLayout) -> str:
    narrowing = _narrowing(axis)
    if not narrowing and axis.slots == 1:
        return f"{{{axis.extent}}}"
    cuts = ", ".join(map(_cut, narrowing))
    slots = f", {axis.slots}" if axis.slots > 1 else ""
    return f"{{{axis.extent}, {{{cuts}}}{slots}}}"


def cpp_layout(layout: Layout) -> str:
    """The initializer of an `elk::Layout`."""
    axes = ", ".join(map(_axis, layout.axes))
    guard = "" if layout.guard is None else f", {_function(layout.guard)}"
    return f"{{{layout.cores}, {len(layout.axes)}, {{{axes}}}{guard}}}"
