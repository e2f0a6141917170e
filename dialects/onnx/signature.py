"""What an operation knows of its schema, and how operands are told apart when some are absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.element_types import element_type_name

SINGLE, OPTIONAL, VARIADIC = "single", "optional", "variadic"


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal operand or result: its name, how often it occurs, its type variable and types.

    `types` are the element types a tensor may have here, or None where the schema also allows
    sequences, optionals or maps (which are then not checked).
    """

    name: str
    kind: str
    type_var: str = ""
    types: frozenset[str] | None = None
    homogeneous: bool = True


@dataclass(frozen=True)
class OpSignature:
    """What an operation knows of its schema. `regions` are the graph attributes, in their order;
    several optional or variadic operands (results) are told apart by segment sizes."""

    op_type: str
    since_version: int
    operands: tuple[Formal, ...]
    results: tuple[Formal, ...]
    attributes: frozenset[str]
    defaults: dict[str, Any]
    regions: tuple[str, ...]

    @cached_property
    def operand_segments(self) -> bool:
        return sum(f.kind != SINGLE for f in self.operands) > 1

    @cached_property
    def result_segments(self) -> bool:
        return sum(f.kind != SINGLE for f in self.results) > 1


def python_value(attr: Attribute) -> Any:
    """An ONNX attribute in IR as a Python value; tensors, types and weights stay attributes."""
    match attr:
        case IntegerAttr():
            return attr.value.data
        case FloatAttr():
            return attr.value.data
        case StringAttr():
            return attr.data
        case DenseArrayBase():
            return array_values(attr)
        case ArrayAttr():
            return tuple(python_value(a) for a in attr.data)
        case _:
            return attr


def array_values(attr: DenseArrayBase[Any]) -> tuple[Any, ...]:
    """The numbers of an `array<…>`."""
    return tuple(attr.get_values())


def positional(
    values: Sequence[SSAValue], formals: tuple[Formal, ...], sizes: Attribute | None
) -> tuple[SSAValue | None, ...]:
    if sizes is None:
        # At most one formal is optional or variadic: what is not single goes to it.
        spare = len(values) - sum(f.kind == SINGLE for f in formals)
        counts: Sequence[int] = [1 if f.kind == SINGLE else spare for f in formals]
    else:
        assert isinstance(sizes, DenseArrayBase)
        counts = array_values(sizes)
    found: list[SSAValue | None] = []
    rest: Iterator[SSAValue] = iter(values)
    for formal, count in zip(formals, counts, strict=True):
        if count == 0 and formal.kind == OPTIONAL:
            found.append(None)
        for _ in range(count):
            found.append(next(rest))
    while found and found[-1] is None:
        found.pop()
    return tuple(found)


@cache
def segments_attr(sizes: tuple[int, ...]) -> DenseArrayBase:
    """Segment sizes as an attribute; the few that occur are shared."""
    return DenseArrayBase.from_list(i32, sizes)


def segment_sizes(
    formals: tuple[Formal, ...], given: Sequence[object | None], name: str
) -> tuple[int, ...]:
    """How many of `given` (None: absent) belong to each formal; ValueError if they do not fit."""
    sizes: list[int] = []
    position = 0
    for formal in formals:
        if formal.kind == VARIADIC:
            rest = given[position:]
            if any(v is None for v in rest):
                raise ValueError(f"{name}: one of the variadic {formal.name} is absent")
            sizes.append(len(rest))
            position = len(given)
            continue
        present = position < len(given) and given[position] is not None
        if formal.kind == SINGLE and not present:
            raise ValueError(f"{name}: {formal.name} is missing")
        sizes.append(int(present))
        position += 1
    if position < len(given):
        raise ValueError(f"{name}: {len(given)} given, at most {len(formals)} expected")
    return tuple(sizes)


@cache
def _element_name(type_: Attribute) -> str | None:
    if isinstance(type_, TensorType | UnrankedTensorType):
        return element_type_name(type_.element_type)
    return None


def check_types(
    values: Sequence[SSAValue | None],
    formals: tuple[Formal, ...],
    bound: dict[str, Attribute],
    what: str,
) -> None:
    """Element types against the schema's lists, equal where the schema's variable is the same."""
    for index, value in enumerate(values):
        if value is None:
            continue
        formal = formals[min(index, len(formals) - 1)]
        if formal.types is None:
            continue
        element = _element_name(value.type)
        if element is None or element not in formal.types:
            raise VerifyException(f"{what} {formal.name} cannot have type {value.type}")
        if formal.type_var and formal.homogeneous:
            first = bound.setdefault(formal.type_var, value.type)
            if _element_name(first) != element:
                raise VerifyException(
                    f"{what} {formal.name} has element type {element}, "
                    f"but {formal.type_var} is {_element_name(first)}"
                )
