"""Write a scalar body as ordinary arithmetic.

b = BodyBuilder(["float32", "float32"])
x, y = b.inputs
body = b.finish(x * y + 1.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elk_ir.numerics.body import PREDICATES, SCALAR_OPS, Body, Instr, is_float

Number = float | int | bool


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A value of a body under construction, of element type `dtype`."""

    builder: BodyBuilder
    index: int
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether the value is a floating-point number."""
        return is_float(self.dtype)

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self.builder.apply("add", self, other)

    def __radd__(self, other: Number) -> Scalar:
        return self.builder.apply("add", other, self)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self.builder.apply("sub", self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return self.builder.apply("sub", other, self)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self.builder.apply("mul", self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return self.builder.apply("mul", other, self)

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return self.builder.apply("div", self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.builder.apply("div", other, self)

    def __neg__(self) -> Scalar:
        return self.builder.apply("neg", self)


class BodyBuilder:
    """Collects instructions; Python numbers become constants of the type of what they meet."""

    def __init__(self, dtypes: Sequence[str]) -> None:
        self._instrs: list[Instr] = []
        self._constants: dict[tuple[str, str], Scalar] = {}
        self.inputs = tuple(Scalar(self, i, d) for i, d in enumerate(dtypes))

    def _add(self, instr: Instr, dtype: str) -> Scalar:
        self._instrs.append(instr)
        return Scalar(self, len(self.inputs) + len(self._instrs) - 1, dtype)

    def const(self, value: Number, dtype: str) -> Scalar:
        """A constant of element type `dtype`; equal ones are shared."""
        if dtype == "bool":
            value = bool(value)
        elif is_float(dtype):
            value = float(value)
        else:
            value = int(value)
        key = (repr(value), dtype)
        if key not in self._constants:
            self._constants[key] = self._add(Instr("const", (), value, dtype), dtype)
        return self._constants[key]

    def cast(self, value: Scalar, dtype: str) -> Scalar:
        """`value` as `dtype`; itself when it has that type already."""
        if value.dtype == dtype:
            return value
        return self._add(Instr("cast", (value.index,), None, dtype), dtype)

    def apply(self, op: str, *args: Scalar | Number) -> Scalar:
        """One scalar operation of `SCALAR_OPS`. At least one argument is a `Scalar`."""
        assert SCALAR_OPS[op][0] == len(args), op
        typed = args[1:] if op == "select" else args
        dtype = next((a.dtype for a in typed if isinstance(a, Scalar)), None)
        assert dtype is not None, f"{op} of constants only"
        values = [a if isinstance(a, Scalar) else self.const(a, dtype) for a in args]
        result = "bool" if op in PREDICATES else values[1 if op == "select" else 0].dtype
        return self._add(Instr(op, tuple(v.index for v in values)), result)

    def finish(self, *results: Scalar) -> Body:
        """The body that yields `results`."""
        return Body(len(self.inputs), tuple(self._instrs), tuple(r.index for r in results))
