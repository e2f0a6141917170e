"""Narrow state at the edge of a program: the graph's numbers become its own and back.

A state with `steps` (one a layer) holds integers, or floats narrower than the graph's, q that stand
for q · step; the graph inputs and outputs that it replaces stay the numbers that they were.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from elk_ir.quant.integers import dequantize_array, quantize_array


class State(Protocol):
    """A `te.global`, `icca.hbm` or `ipu.remote`."""

    @property
    def type(self) -> Any:
        """The tensor type of one layer."""
        ...

    @property
    def steps(self) -> Any:
        """A dense attribute of one float a layer, or None."""
        ...


def _step(op: State, layer: int) -> float:
    from elk_ir.dialects.element_types import array_from_dense

    return float(array_from_dense(op.steps).reshape(-1)[layer])


def entering(op: State, layer: int, value: np.ndarray) -> np.ndarray:
    """A graph input as the state holds it; numbers of its own type stay as they are."""
    from elk_ir.dialects.types import shape_dtype
    from elk_ir.numerics.body import dtype_of

    dtype = shape_dtype(op.type)[1]
    if op.steps is None or value.dtype == dtype_of(dtype):
        return value
    return quantize_array(value, _step(op, layer), dtype)


def leaving(op: State, layer: int, value: np.ndarray) -> np.ndarray:
    """The entries of a state as the graph's output: float32 where the state has steps."""
    return value if op.steps is None else dequantize_array(value, _step(op, layer))
