"""Random ONNX graphs: a few operators on a common pool of values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import strategies as st

from fuzz.builder import Builder, Refused
from fuzz.compute import COMPUTE
from fuzz.elementwise import ELEMENTWISE
from fuzz.movement import MOVEMENT

OPERATORS = {**ELEMENTWISE, **MOVEMENT, **COMPUTE}
"""Every operator that graphs are made of, with its generator."""

MOST_NODES = 7
FREQUENT = (
    "MatMul",
    "Add",
    "Mul",
    "Transpose",
    "Reshape",
    "Softmax",
    "LayerNormalization",
    "Concat",
)
"""What fusions look for: drawn more often than the rest."""


@dataclass(frozen=True)
class Graph:
    """A model with inputs."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    operators: Counter[str]


@st.composite
def graphs(draw: st.DrawFn, first: str | None = None, most: int = MOST_NODES) -> Graph:
    """A model of up to `most` operators; `first` is one of them."""
    g = Builder(draw)
    count = draw(st.integers(1, most))
    wanted = [first] if first is not None else []
    tries = 0
    while len(g.nodes) < count and tries < 3 * most:
        tries += 1
        name = wanted.pop() if wanted else draw(_operator())
        before = len(g.values), len(g.nodes)
        try:
            OPERATORS[name](g)
        except Refused:
            del g.nodes[before[1] :]
            made = {o for n in g.nodes for o in n.output}
            g.values = [v for v in g.values if not v.name.startswith("v") or v.name in made]
            g.operators = Counter(_label(n) for n in g.nodes)
    if not g.nodes:
        OPERATORS["Add"](g)
    model = g.model()
    return Graph(model, g.inputs, g.operators)


def _operator() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(FREQUENT), st.sampled_from(sorted(OPERATORS)))


def _label(node: onnx.NodeProto) -> str:
    return f"{node.domain}:{node.op_type}" if node.domain else node.op_type
