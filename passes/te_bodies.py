"""Building scalar bodies: value numbering, folding, inlining; free of IR.

A `BodyGraph` is a graph of scalar operations whose equal nodes are one node. Passes read bodies
into it, match on it, and write the part they want as a `Body`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from elk_ir.numerics.body import (
    PREDICATES,
    SCALAR_OPS,
    Body,
    Instr,
    cast,
    dtype_of,
    is_float,
    result_dtypes,
)

# Significand and exponent bits of the float types: a cast to a type with no fewer of both is exact.
_PRECISION = {
    "float8_e4m3fn": (4, 4),
    "float8_e5m2": (3, 5),
    "bfloat16": (8, 8),
    "float16": (11, 5),
    "float32": (24, 8),
    "float64": (53, 11),
}

Constant = float | int | bool


def is_exact_cast(source: str, target: str) -> bool:
    """Whether every value of one float type is a value of the other."""
    a, b = _PRECISION.get(source), _PRECISION.get(target)
    return a is not None and b is not None and a[0] <= b[0] and a[1] <= b[1]


@dataclass(frozen=True, slots=True)
class Node:
    """`op` on earlier nodes; op "input" has its key as `value`, "const" its number."""

    op: str
    args: tuple[int, ...]
    value: Hashable
    dtype: str


def python_number(value: np.generic | np.ndarray | Constant, dtype: str) -> Constant:
    """A constant (a number or an array of one) as the Python number that a body keeps."""
    if dtype == "bool":
        return bool(value)
    return float(value) if is_float(dtype) else int(value)


@dataclass
class BodyGraph:
    """A graph of scalar operations; see the module's docstring."""

    nodes: list[Node] = field(default_factory=list[Node])
    _numbers: dict[Node, int] = field(default_factory=dict[Node, int])

    def _add(self, node: Node) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def input(self, key: Hashable, dtype: str) -> int:
        """The input with this key."""
        return self._add(Node("input", (), key, dtype))

    def const(self, value: Constant, dtype: str) -> int:
        """A constant."""
        # The repr keeps 0.0 and -0.0 apart, and NaN equal to itself.
        return self._add(Node("const", (), (repr(value), _Number(value)), dtype))

    def constant(self, i: int) -> Constant | None:
        """The number, if node i is a constant."""
        node = self.nodes[i]
        if node.op != "const":
            return None
        assert isinstance(node.value, tuple)
        return node.value[1].number  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def emit(self, op: str, args: Sequence[int], dtype: str | None = None) -> int:
        """`op` on nodes, folded where that is exact. `dtype` is a cast's target."""
        args = tuple(args)
        if op == "identity":
            return args[0]
        if op == "cast":
            assert dtype is not None
            return self._cast(args[0], dtype)
        types = [self.nodes[a].dtype for a in args]
        if op in PREDICATES:
            result = "bool"
        else:
            result = types[1] if op == "select" else types[0]
        values = [self.constant(a) for a in args]
        if all(v is not None for v in values):
            return self._folded(op, values, types, result)
        folded = self._simplified(op, args, values)
        return self._add(Node(op, args, None, result)) if folded is None else folded

    def _cast(self, a: int, dtype: str) -> int:
        node = self.nodes[a]
        if node.dtype == dtype:
            return a
        value = self.constant(a)
        if value is not None:
            array = cast(np.asarray(value).astype(dtype_of(node.dtype)), dtype)
            return self.const(python_number(array[()], dtype), dtype)
        if node.op == "cast":
            source = self.nodes[node.args[0]].dtype
            # Widening first changes nothing; x -> wide -> x is x.
            if is_exact_cast(source, node.dtype):
                return self._cast(node.args[0], dtype)
        return self._add(Node("cast", (a,), None, dtype))

    def _folded(
        self, op: str, values: Sequence[Constant | None], types: Sequence[str], result: str
    ) -> int:
        arrays = [np.asarray(v).astype(dtype_of(t)) for v, t in zip(values, types, strict=True)]
        with np.errstate(all="ignore"):
            out = np.asarray(SCALAR_OPS[op][1](*arrays)).astype(dtype_of(result))
        return self.const(python_number(out[()], result), result)

    def _simplified(
        self, op: str, args: tuple[int, ...], values: Sequence[Constant | None]
    ) -> int | None:
        match op:
            case "mul":
                if values[1] == 1:
                    return args[0]
                if values[0] == 1:
                    return args[1]
            case "div" if values[1] == 1:
                return args[0]
            case "add" if values[1] == 0 or values[0] == 0:
                return args[0] if values[1] == 0 else args[1]
            case "sub" if values[1] == 0:
                return args[0]
            case "pow" if values[1] == 2 and is_float(self.nodes[args[0]].dtype):
                return self.emit("mul", (args[0], args[0]))
            case "pow" if values[1] == 1:
                return args[0]
            case "pow" if values[1] == 0.5:
                return self.emit("sqrt", args[:1])
            case "neg" if self.nodes[args[0]].op == "neg":
                return self.nodes[args[0]].args[0]
            case "not" if self.nodes[args[0]].op == "not":
                return self.nodes[args[0]].args[0]
            case "recip" if self.nodes[args[0]].op == "sqrt":
                return self.emit("rsqrt", self.nodes[args[0]].args)
            case "div" if values[0] == 1:
                return self.emit("recip", args[1:])
            case "select" if values[0] is not None:
                return args[1] if values[0] else args[2]
            case "select" if args[1] == args[2]:
                return args[1]
            case "max" | "min" | "and" | "or" if args[0] == args[1]:
                return args[0]
            case _:
                pass
        return None

    def inline(self, body: Body, args: Sequence[int]) -> list[int]:
        """The results of a body whose inputs are the nodes `args`."""
        values = list(args)
        for instr in body.instrs:
            if instr.op == "const":
                assert instr.dtype is not None and instr.value is not None
                values.append(self.const(instr.value, instr.dtype))
            else:
                values.append(self.emit(instr.op, [values[a] for a in instr.args], instr.dtype))
        return [values[r] for r in body.results]

    def reached(self, results: Sequence[int]) -> list[int]:
        """The nodes that `results` depend on, in order."""
        needed: set[int] = set()
        stack = list(results)
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack.extend(self.nodes[i].args)
        return sorted(needed)

    def depends(self, i: int, on: int) -> bool:
        """Whether node i depends on node `on`."""
        return on in self.reached([i])

    def build(
        self, results: Sequence[int], first: Sequence[Hashable] = ()
    ) -> tuple[Body, list[Hashable]]:
        """The body that yields `results` and the keys of its inputs: `first` in any case, then the
        others in the order in which they were read."""
        needed = self.reached(results)
        keys: list[Hashable] = list(first)
        position: dict[int, int] = {}
        for i in needed:
            node = self.nodes[i]
            if node.op == "input":
                if node.value not in first:
                    keys.append(node.value)
                position[i] = keys.index(node.value)
        instrs: list[Instr] = []
        for i in needed:
            node = self.nodes[i]
            if node.op == "input":
                continue
            args = tuple(position[a] for a in node.args)
            if node.op == "const":
                instr = Instr("const", (), self.constant(i), node.dtype)
            else:
                instr = Instr(node.op, args, None, node.dtype if node.op == "cast" else None)
            position[i] = len(keys) + len(instrs)
            instrs.append(instr)
        return Body(len(keys), tuple(instrs), tuple(position[r] for r in results)), keys


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """A constant beside its printed form: equal whenever they stand in the same tuple."""

    number: Constant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number)

    def __hash__(self) -> int:
        return 0


def simplified(body: Body, inputs: Sequence[str]) -> tuple[Body, list[int]]:
    """An equal body without repetition, and which inputs it still reads. `inputs`: their types."""
    builder = BodyGraph()
    args = [builder.input(i, dtype) for i, dtype in enumerate(inputs)]
    results = builder.inline(body, args)
    types = result_dtypes(body, inputs)
    results = [
        builder.emit("cast", (r,), types[old]) for r, old in zip(results, body.results, strict=True)
    ]
    new, keys = builder.build(results)
    return new, [int(k) for k in keys]  # pyright: ignore[reportArgumentType]
