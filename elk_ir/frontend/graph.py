"""An ONNX graph with its values resolved: what folding works on and IR is built from. No xDSL.

Names are resolved to `Value` objects once, so that branches can be inlined and values replaced
without renaming anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.frontend.element_types import BY_NAME, BY_ONNX, element_name
from elk_ir.frontend.weights import WeightRef

if TYPE_CHECKING:
    from onnx import AttributeProto, TypeProto


@dataclass(frozen=True)
class ValueType:
    """A tensor's type, or (with `other`, a serialised TypeProto) a sequence, optional or map.

    `elem` is a TensorProto.DataType; a dimension of None depends on data, a shape of None has an
    unknown rank.
    """

    elem: int = 0
    shape: tuple[int | None, ...] | None = None
    other: bytes | None = None

    @property
    def is_static(self) -> bool:
        return self.other is None and self.shape is not None and None not in self.shape

    def __str__(self) -> str:
        if self.other is not None:
            return "a sequence, optional or map"
        name = BY_ONNX[self.elem].name if self.elem in BY_ONNX else "?"
        if self.shape is None:
            return f"{name} of unknown rank"
        return f"{name}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


# Constants up to this size take part in shape inference and in the keys of its cache.
KEYED_BYTES = 8192


@dataclass(eq=False, slots=True)
class Value:
    """An SSA value: at most one of `const` (its elements) and `weight` (where they are) is set."""

    name: str
    type: ValueType
    const: np.ndarray | None = None
    weight: WeightRef | None = None
    key: object = None

    def __post_init__(self) -> None:
        # Two values of one key behave alike in shape inference and evaluation.
        if self.const is None:
            self.key = self.type
        elif self.const.dtype == object:
            self.key = (self.type, tuple(self.const.reshape(-1).tolist()))
        elif self.const.nbytes <= KEYED_BYTES:
            self.key = (self.type, self.const.tobytes())
        else:
            self.key = (self.type, id(self.const))

    @staticmethod
    def constant(name: str, array: np.ndarray) -> Value:
        elem = BY_NAME[element_name(array.dtype)].onnx
        return Value(name, ValueType(elem, array.shape), const=array)

    @staticmethod
    def of_weight(name: str, ref: WeightRef) -> Value:
        return Value(name, ValueType(BY_NAME[ref.dtype].onnx, ref.shape), weight=ref)


@dataclass(eq=False, slots=True)
class Node:
    """An operator. `domain` is "" for ONNX's own; `index` its position in the imported model."""

    op_type: str
    domain: str
    name: str
    index: int
    inputs: list[Value | None]
    outputs: list[Value | None]
    attributes: list[AttributeProto]
    subgraphs: dict[str, Graph] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Graph:
    """`outputs` pairs the graph's output names with values; `dims` the inputs' symbolic dims."""

    name: str
    inputs: list[Value]
    outputs: list[tuple[str, Value]]
    nodes: list[Node]
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_values(nodes: list[Node]) -> Iterator[Value]:
    """Every value read by the nodes, those captured by their subgraphs included."""
    for node in nodes:
        yield from (v for v in node.inputs if v is not None)
        for sub in node.subgraphs.values():
            yield from (v for _, v in sub.outputs)
            yield from read_values(sub.nodes)


def type_from_proto(proto: TypeProto) -> ValueType:
    """A TypeProto's value type; names of dimensions are dropped."""
    if proto.WhichOneof("value") != "tensor_type":
        return ValueType(other=proto.SerializeToString())
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return ValueType(tensor.elem_type)
    dims = tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in tensor.shape.dim
    )
    return ValueType(tensor.elem_type, dims)


def type_to_proto(type_: ValueType) -> TypeProto:
    """The inverse of `type_from_proto`."""
    from onnx import TypeProto
    from onnx.helper import make_tensor_type_proto

    if type_.other is not None:
        return TypeProto.FromString(type_.other)
    return make_tensor_type_proto(type_.elem, type_.shape)
