"""Do two sets of outputs agree? Tolerances by precision, relative to the largest expected value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import is_float

TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
"""Largest error allowed, as a share of max |expected| of an output. Integers must be equal."""

NARROW_TOLERANCE = 1e-1
"""For floats of 8 bits and below."""


def tolerance_of(dtype: str) -> float:
    """The tolerance of one element type; 0 for integers and booleans."""
    if not is_float(dtype):
        return 0.0
    return TOLERANCE.get(dtype, NARROW_TOLERANCE)


def coarsest(dtypes: Iterable[str]) -> str:
    """The least precise float among element types ("float32" if there is none): a model with
    fp16 weights computes in fp16, whatever type its outputs are cast to."""
    floats = sorted({d for d in dtypes if is_float(d)}, key=tolerance_of)
    return floats[-1] if floats else "float32"


@dataclass(frozen=True)
class OutputError:
    """How far one output is from what was expected.

    max_abs_error and scale (max |expected|) have the output's own unit; `tolerance` is relative to
    the scale, 0 for integers.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs_error: float
    scale: float
    tolerance: float

    @property
    def allowed(self) -> float:
        """The largest absolute error that counts as agreement."""
        return self.tolerance * self.scale

    @property
    def ok(self) -> bool:
        """Whether the output agrees (an error that is not a number never does)."""
        return self.max_abs_error <= self.allowed

    def to_json(self) -> dict[str, Any]:
        """Plain values; an error that is not finite is None, which JSON can say."""
        error = self.max_abs_error
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "max_abs_error": error if isfinite(error) else None,
            "max_abs_expected": self.scale,
            "tolerance": self.tolerance,
            "ok": self.ok,
        }


def max_abs_error(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """(largest |actual - expected|, largest finite |expected|); infinite where one is not a number
    and the other is, or where shapes differ. Equal infinities agree."""
    if actual.shape != expected.shape:
        return float("inf"), 0.0
    if not actual.size:
        return 0.0, 0.0
    wide = np.int64 if _integers(actual) and _integers(expected) else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(e)
    scale = float(np.abs(e[finite]).max()) if finite.any() else 0.0
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(a - e))
    worst = float(error.max())
    return (float("inf") if np.isnan(worst) else worst), scale


def _integers(array: np.ndarray) -> bool:
    return not is_float(array.dtype.name)


def compare_outputs(
    actual: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    precision: str = "float32",
    where: str | None = None,
) -> list[OutputError]:
    """One entry for each expected output. `precision` is the type in which the model computes; an
    output of a coarser type has that type's tolerance. Raises ElkError when an expected name is no
    output, a shape differs, or nothing is expected."""
    if not expected:
        raise ElkError("no expected outputs to compare with", where=where)
    names = ", ".join(actual)
    for name, value in expected.items():
        if name not in actual:
            raise ElkError(
                f"{name!r} is expected, but is no output",
                where=where,
                hint=f"the outputs are: {names}",
            )
        if value.shape != actual[name].shape:
            raise ElkError(
                f"output {name!r} has shape {list(actual[name].shape)}, but {list(value.shape)} is"
                " expected",
                where=where,
            )
    return [
        output_error(name, actual[name], expected[name], precision)
        for name in actual
        if name in expected
    ]


def output_error(
    name: str, actual: np.ndarray, expected: np.ndarray, precision: str = "float32"
) -> OutputError:
    """The error of one tensor, with the tolerance of the coarser of its type and `precision`."""
    dtype = actual.dtype.name
    tolerance = tolerance_of(dtype)
    if is_float(dtype):
        tolerance = max(tolerance, tolerance_of(precision))
    error, scale = max_abs_error(actual, expected)
    return OutputError(name, dtype, actual.shape, error, scale, tolerance)
