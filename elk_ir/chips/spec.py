"""What a field of a chip may hold: its kind, unit, meaning and range, kept beside the field itself.

One `FieldSpec` in a dataclass field's metadata drives validation, the messages of the loader,
`elk chips` and the tests that compare `docs/chips.md` with the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from elk_ir.finite import is_finite

Kind = Literal["int", "float", "bool", "str"]
Value = int | float | bool | str

_KEY = "elk_ir.chips.spec"


@dataclass(frozen=True)
class FieldSpec:
    """What one field of a chip means and which values it takes.

    `low` and `high` are inclusive and in `unit`; `zero` says what a 0 outside that range stands
    for (empty: 0 is an ordinary value). `choices` is only for `kind == "str"`; an empty tuple there
    means any text.
    """

    kind: Kind
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    zero: str = ""
    choices: tuple[str, ...] = ()

    def allowed(self) -> str:
        """The legal values in words, with the unit."""
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "one of " + ", ".join(map(repr, self.choices)) if self.choices else "a text"
        noun = "a whole number" if self.kind == "int" else "a number"
        if self.low is not None and self.high is not None:
            noun += f" from {_number(self.low)} to {_number(self.high)}"
        elif self.low is not None:
            noun += f" of at least {_number(self.low)}"
        if self.unit:
            noun += f" {self.unit}"
        return f"{noun}, or 0 ({self.zero})" if self.zero else noun

    def convert(self, value: object) -> Value:
        """`value` as this field stores it (whole floats become ints, ints become floats).

        Raises ValueError, whose text is `allowed()`, when the value is of the wrong kind or out of
        range.
        """
        problem = ValueError(self.allowed())
        if self.kind == "bool":
            if isinstance(value, bool):
                return value
            raise problem
        if self.kind == "str":
            if isinstance(value, str) and (value in self.choices or not self.choices):
                return value
            raise problem
        if not is_finite(value):
            raise problem
        if self.kind == "int" and value != int(value):
            raise problem
        converted: int | float = int(value) if self.kind == "int" else float(value)
        if self.zero and converted == 0:
            return converted
        if self.low is not None and converted < self.low:
            raise problem
        if self.high is not None and converted > self.high:
            raise problem
        return converted


def _number(value: float) -> str:
    """Short and exact enough to read: 1, 4096, 1e+18."""
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:g}"


def spec_of(field: dataclasses.Field[Any]) -> FieldSpec | None:
    """The spec stored with a dataclass field, or None for a nested section."""
    return field.metadata.get(_KEY)


def _metadata(spec: FieldSpec) -> Mapping[str, FieldSpec]:
    return {_KEY: spec}


def flag(meaning: str) -> Mapping[str, FieldSpec]:
    """Metadata of a yes/no field."""
    return _metadata(FieldSpec("bool", meaning))


def text(meaning: str) -> Mapping[str, FieldSpec]:
    """Metadata of a free text field."""
    return _metadata(FieldSpec("str", meaning))


def choice(meaning: str, *choices: str) -> Mapping[str, FieldSpec]:
    """Metadata of a field that holds one of a few words."""
    return _metadata(FieldSpec("str", meaning, choices=choices))


def count(
    meaning: str, low: int, high: int, unit: str = "", zero: str = ""
) -> Mapping[str, FieldSpec]:
    """Metadata of a whole number from `low` to `high`."""
    return _metadata(FieldSpec("int", meaning, unit, low, high, zero))


def quantity(
    meaning: str, unit: str, low: float, high: float, zero: str = ""
) -> Mapping[str, FieldSpec]:
    """Metadata of a real number from `low` to `high` in `unit`."""
    return _metadata(FieldSpec("float", meaning, unit, low, high, zero))
