"""Models in which some inputs are constants: for inputs whose values determine shapes.

A program has static shapes, so a graph that takes the shape of a Reshape or the axes of a reduction
as an input can only be compiled for given values of that input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.errors import ElkError

if TYPE_CHECKING:
    from onnx import ModelProto

MAX_ELEMENTS = 64
"""Inputs of more elements, or of more than one axis, are data: they are never made constants."""

MAX_INPUTS = 8
"""Inputs of which every choice of up to two is tried before all of them are made constant."""


def specialise(model: ModelProto, values: Mapping[str, np.ndarray]) -> ModelProto:
    """`model` with the inputs named in `values` replaced by initializers of these values.

    The inputs that remain keep their order. Raises KeyError for a name that is no input.
    """
    from onnx import ModelProto, numpy_helper

    copy = ModelProto()
    copy.CopyFrom(model)
    positions = {value.name: i for i, value in enumerate(copy.graph.input)}
    for position in sorted((positions[name] for name in values), reverse=True):
        del copy.graph.input[position]
    for name, array in values.items():
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return copy


def candidates(values: Mapping[str, np.ndarray]) -> list[str]:
    """Inputs that may determine shapes, integers first: short lists and single numbers."""
    small = [
        name
        for name, array in values.items()
        if array.ndim <= 1 and array.size <= MAX_ELEMENTS and array.dtype.kind != "O"
    ]
    return sorted(small, key=lambda name: values[name].dtype.kind not in "biu")


def needed_values(
    model: ModelProto,
    values: Mapping[str, np.ndarray],
    compiles: Callable[[ModelProto], object],
) -> dict[str, np.ndarray]:
    """The fewest inputs that must be constants for `compiles(model)` not to raise ElkError.

    Empty if the model compiles as it is. Raises the ElkError of the first attempt if no choice of
    candidates helps.
    """
    try:
        compiles(model)
        return {}
    except ElkError as error:
        first = error
    for names in _choices(candidates(values)):
        chosen = {name: values[name] for name in names}
        try:
            compiles(specialise(model, chosen))
        except ElkError:
            continue
        return chosen
    raise first


def _choices(names: list[str]) -> Iterator[tuple[str, ...]]:
    if len(names) <= MAX_INPUTS:
        for count in range(1, min(3, len(names))):
            yield from combinations(names, count)
    if names:
        yield tuple(names)
