"""Binding symbolic dimensions of a model's inputs to numbers.

A dimension is bound by its own name, by the shape of the input it belongs to, or, when it has no
name, by `INPUT.AXIS`. Exporters also write expressions of other names (`past + 1`), which are
evaluated, and give one real dimension several names, each of which is bound on its own.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elk_ir.errors import ModelError

Dim = int | str | None
"""A number, a name or expression, or None for a dimension without either."""

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS = {"max": max, "min": min, "Max": max, "Min": min}


def evaluate(expression: str, dims: Mapping[str, int]) -> int | None:
    """The value of a dimension's name or integer expression, None if something in it is unbound."""
    if expression in dims:
        return dims[expression]
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _evaluate(tree.body, dims)
    except (SyntaxError, KeyError, ZeroDivisionError, ValueError):
        return None


def _evaluate(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return dims[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, dims), _evaluate(right, dims))
        case ast.UnaryOp(op=op, operand=value) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(value, dims))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(a, dims) for a in args))
        case _:
            raise ValueError("not an integer expression")


@dataclass(frozen=True)
class UnboundDim:
    """A dimension of an input without a value: its flag name and the first node that reads it."""

    tensor: str
    axis: int
    flag: str
    node: str | None

    def __str__(self) -> str:
        reader = "" if self.node is None else f", first read by node {self.node!r}"
        return f"dimension {self.axis} ({self.flag}) of input {self.tensor!r}{reader}"


def bind_shapes(
    inputs: Mapping[str, Sequence[Dim]],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, Sequence[int]],
    first_readers: Mapping[str, str],
) -> dict[str, tuple[int, ...]]:
    """The static shape of every input.

    `dims` overrides what `input_shapes` implies for a name; `first_readers` (input -> node name) is
    for messages. Raises ModelError for a shape of another rank or with other fixed dimensions, a
    name with two values, a flag that fits nothing, and for everything that stays unbound.
    """
    bound = dict(dims)
    sources: dict[str, str] = {}
    for name, shape in input_shapes.items():
        declared = inputs.get(name)
        if declared is None:
            continue
        if len(declared) != len(shape):
            raise ModelError(
                f"input {name!r} has rank {len(declared)}, but a tensor of shape "
                f"{list(shape)} is given",
                where=name,
            )
        for axis, (dim, extent) in enumerate(zip(declared, shape, strict=True)):
            if isinstance(dim, str) and dim not in dims and dim.isidentifier():
                place = f"dimension {axis} of {name!r}"
                if bound.setdefault(dim, extent) != extent:
                    raise ModelError(
                        f"dimension {dim!r} is {bound[dim]} by {sources[dim]}, "
                        f"but {extent} by {place}",
                        where=name,
                    )
                sources.setdefault(dim, place)
    unbound: list[UnboundDim] = []
    used: set[str] = set()
    result: dict[str, tuple[int, ...]] = {}
    for name, declared in inputs.items():
        given = input_shapes.get(name)
        extents: list[int] = []
        for axis, dim in enumerate(declared):
            flag = dim if isinstance(dim, str) else f"{name}.{axis}"
            if isinstance(dim, str):
                used |= {dim} | {w for w in dims if w in dim}
            value = dim if isinstance(dim, int) else None
            if value is None:
                used.add(flag)
                value = bound.get(flag)
            if value is None and isinstance(dim, str):
                value = evaluate(dim, bound)
            if value is None and given is not None:
                value = given[axis]
            if value is None:
                unbound.append(UnboundDim(name, axis, flag, first_readers.get(name)))
                continue
            if value < 0:
                raise ModelError(f"dimension {axis} ({flag}) of input {name!r} is {value}")
            if given is not None and given[axis] != value and flag not in dims:
                raise ModelError(
                    f"input {name!r} has dimension {axis} = {value}, but the tensor given has "
                    f"shape {list(given)}",
                    where=name,
                )
            extents.append(value)
        result[name] = tuple(extents)
    if unbound:
        raise _unbound_error(unbound)
    unknown = sorted(set(dims) - used)
    if unknown:
        names = sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})
        raise ModelError(
            f"--dim {unknown[0]}: the model has no dimension of this name",
            hint=f"its symbolic dimensions are {', '.join(names)}" if names else "it has none",
        )
    return result


def _unbound_error(unbound: list[UnboundDim]) -> ModelError:
    flags = list(dict.fromkeys(u.flag for u in unbound))
    first = unbound[0]
    count = "a symbolic dimension is" if len(flags) == 1 else f"{len(flags)} dimensions are"
    return ModelError(
        f"{count} not bound: {first}",
        where=first.node,
        details=[str(u) for u in unbound[1:8]]
        + ([f"and {len(unbound) - 8} more"] if len(unbound) > 8 else []),
        hint="add "
        + " ".join(f"--dim {flag}=VALUE" for flag in flags)
        + ", or give inputs of the wanted shapes",
    )
