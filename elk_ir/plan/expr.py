"""Quasi-affine integer expressions over a core number, a slot number and a ring step.

Which box of a tensor a core holds is always such an expression, so a program's size does not grow
with the number of cores. The same expression is printed in the IR, evaluated on numpy arrays of
cores, and emitted as C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

OpKind = Literal["const", "var", "+", "*", "floordiv", "mod"]


@dataclass(frozen=True, slots=True)
class Expr:
    """One node: a constant, a variable (`c` core, `s` slot, `t` ring step), or an operation.

    `*`, `floordiv` and `mod` take a constant on the right, as in MLIR's affine expressions.
    """

    kind: OpKind
    value: int = 0
    name: str = ""
    left: Expr | None = None
    right: Expr | None = None

    def __add__(self, other: Expr | int) -> Expr:
        other = const(other) if isinstance(other, int) else other
        if self.kind == "const" and other.kind == "const":
            return const(self.value + other.value)
        if self.kind == "const" and self.value == 0:
            return other
        if other.kind == "const" and other.value == 0:
            return self
        return Expr("+", left=self, right=other)

    def __mul__(self, factor: int) -> Expr:
        if self.kind == "const":
            return const(self.value * factor)
        if factor == 0:
            return const(0)
        if factor == 1:
            return self
        return Expr("*", left=self, right=const(factor))

    def __floordiv__(self, divisor: int) -> Expr:
        if self.kind == "const":
            return const(self.value // divisor)
        return self if divisor == 1 else Expr("floordiv", left=self, right=const(divisor))

    def __mod__(self, modulus: int) -> Expr:
        if self.kind == "const":
            return const(self.value % modulus)
        return const(0) if modulus == 1 else Expr("mod", left=self, right=const(modulus))

    def __str__(self) -> str:
        if self.kind == "const":
            return str(self.value)
        if self.kind == "var":
            return self.name
        assert self.left is not None and self.right is not None
        return f"({self.left} {self.kind} {self.right})"

    def uses(self, name: str) -> bool:
        """Whether the variable `name` occurs in the expression."""
        if self.kind == "var":
            return self.name == name
        return any(e is not None and e.uses(name) for e in (self.left, self.right))

    def evaluate(self, **variables: np.ndarray | int) -> np.ndarray:
        """The value on broadcastable arrays of each variable; int64."""
        if self.kind == "const":
            return np.asarray(self.value, dtype=np.int64)
        if self.kind == "var":
            return np.asarray(variables[self.name], dtype=np.int64)
        assert self.left is not None and self.right is not None
        a = self.left.evaluate(**variables)
        b = self.right.evaluate(**variables)
        match self.kind:
            case "+":
                return a + b
            case "*":
                return a * b
            case "floordiv":
                return a // b
            case _:
                return a % b


def const(value: int) -> Expr:
    """The constant `value`."""
    return Expr("const", value=value)


CORE = Expr("var", name="c")
SLOT = Expr("var", name="s")
STEP = Expr("var", name="t")
