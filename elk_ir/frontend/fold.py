"""One pass over a checked ONNX graph: infer every type, fold constants, drop what does nothing.

Nodes are visited in order. Each is inferred with the constants that came before it, evaluated when
its operands are constant, replaced by its operand when it changes nothing, or moved into a weight's
recipe. Branches on constants are inlined, loops unrolled (`unroll`). What is left and reachable
from the outputs is the graph.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.errors import ModelError
from elk_ir.frontend import subgraphs, unroll
from elk_ir.frontend.custom_shapes import infer_custom
from elk_ir.frontend.evaluate import (
    MAX_CONSTANT_BYTES,
    bytes_of,
    evaluate_node,
    evaluate_shape,
)
from elk_ir.frontend.graph import Graph, Node, Value, ValueType, read_values, type_from_proto
from elk_ir.frontend.infer import infer_types, schema_of
from elk_ir.frontend.load import UNKNOWN_DOMAIN
from elk_ir.frontend.simplify import integer_weight_bytes, rewritten_weights, unchanged_operand
from elk_ir.frontend.weights import WeightRef

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

Scope = MutableMapping[str, Value]

MAX_TENSOR_BYTES = 1 << 48
"""256 TiB: more than any machine has. A few bytes of a file can ask for more (Expand, Tile, …)."""

MAX_RANK = 32
"""Dimensions of a tensor. numpy has 64, some of which layouts need for cores and slots."""

MAX_SPARSE_BYTES = 1 << 30
"""What a sparse initializer may take when its zeros are written out."""


@dataclass
class Inferred:
    """Types of a node's results, and their elements if they are constant."""

    types: list[ValueType | None]
    arrays: list[np.ndarray] | None


@dataclass
class Folder:
    """State of one pass. `load` reads a small integer weight, None if its file is missing;
    `declare` makes the types the model states for its values (for foreign operators)."""

    opset: int
    load: Callable[[WeightRef], np.ndarray | None]
    node_index: Mapping[str, int]
    declare: Callable[[], Mapping[str, ValueType]]
    cache: dict[object, Inferred] = field(default_factory=dict)
    loaded: dict[WeightRef, Value] = field(default_factory=dict)

    @cached_property
    def declared(self) -> Mapping[str, ValueType]:
        return self.declare()

    def main_graph(
        self,
        proto: GraphProto,
        input_types: Mapping[str, ValueType],
        weights: Mapping[str, WeightRef],
    ) -> Graph:
        """Fold the main graph. `input_types` has every input that is no initializer, in order."""
        scope: dict[str, Value] = {n: Value.of_weight(n, r) for n, r in weights.items()}
        inputs = []
        for name, type_ in input_types.items():
            check_size(name, type_)
            scope[name] = value = Value(name, type_)
            inputs.append(value)
        graph = self.fold(proto, scope, inputs)
        drop_dead(graph, self.opset)
        return graph

    def fold(self, proto: GraphProto, scope: Scope, inputs: list[Value]) -> Graph:
        """Fold a graph whose inputs (and what it captures) are in `scope`."""
        nodes: list[Node] = []
        self.add_nodes(proto, scope, nodes)
        outputs = [(o.name, self.read(scope, o.name, "the graph's outputs")) for o in proto.output]
        return Graph(proto.name, inputs, outputs, nodes)

    def add_nodes(self, proto: GraphProto, scope: Scope, nodes: list[Node]) -> None:
        """Bring a graph's constants into scope and append what is left of its nodes."""
        for tensor in proto.initializer:
            scope[tensor.name] = constant_value(tensor, tensor.name)
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            scope[name] = Value.constant(name, dense_of_sparse(sparse))
        for node in proto.node:
            self.add_node(node, scope, nodes)

    def read(self, scope: Scope, name: str, reader: str) -> Value:
        """The value of that name. Raises ModelError, naming `reader`, if there is none."""
        try:
            return scope[name]
        except KeyError:
            raise ModelError(f"{reader} read {name!r}, which nothing produces") from None

    def add_node(self, proto: NodeProto, scope: Scope, nodes: list[Node]) -> None:
        """Append a node, unless it folds, and bring its results into scope."""
        if proto.op_type == "Constant" and not proto.domain:
            name = proto.output[0]
            if len(proto.attribute) != 1:
                given = ", ".join(a.name for a in proto.attribute) or "none"
                raise ModelError(f"constant {name!r} has one attribute for its value, not {given}")
            scope[name] = constant_of(proto.attribute[0], name)
            return
        name = proto.name or f"{proto.op_type}:{next((o for o in proto.output if o), '')}"
        inputs = [self.read(scope, i, f"node {name!r}") if i else None for i in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        graphs = {a.name: a.g for a in proto.attribute if a.HasField("g")}
        node = Node(
            op_type=proto.op_type,
            domain=proto.domain,
            name=name,
            index=self.node_index.get(proto.name, 0),
            inputs=inputs,
            outputs=[Value(o, ValueType()) if o else None for o in proto.output],
            attributes=[a for a in proto.attribute if a.name not in graphs],
        )
        if graphs:
            self._add_with_subgraphs(node, graphs, scope, nodes)
        elif node.domain:
            self.emit(node, self.custom_types(node), scope, nodes)
        else:
            self._add_operator(node, scope, nodes)

    def _add_operator(self, node: Node, scope: Scope, nodes: list[Node]) -> None:
        found = self._infer(node)
        if found.arrays is None and any(v is not None and v.weight for v in node.inputs):
            refs = rewritten_weights(node, found.types)
            if refs is not None:
                for value, ref in zip(node.outputs, refs, strict=True):
                    if value is not None:
                        scope[value.name] = Value.of_weight(value.name, ref)
                return
            found = self._infer_loaded(node, found)
        if found.arrays is not None:
            for value, array in zip(node.outputs, found.arrays, strict=True):
                if value is not None:
                    scope[value.name] = Value.constant(value.name, array)
            return
        same = unchanged_operand(node, found.types)
        if same is not None:
            (result, *_) = node.outputs
            if result is not None:
                scope[result.name] = same
            return
        self.emit(node, found.types, scope, nodes)

    def _infer(self, node: Node) -> Inferred:
        key = (
            node.op_type,
            tuple([None if v is None else v.key for v in node.inputs]),
            tuple([v is None for v in node.outputs]),
            tuple([a.SerializeToString(deterministic=True) for a in node.attributes]),
        )
        found = self.cache.get(key)
        if found is None:
            types = infer_types(node, self.opset)
            arrays = evaluate_shape(node)
            if arrays is None and all(v is None or v.const is not None for v in node.inputs):
                arrays = evaluate_node(node, types, self.opset)
            found = self.cache[key] = Inferred(types, arrays)
        return found

    def _infer_loaded(self, node: Node, found: Inferred) -> Inferred:
        """Once more with integer weights (positions, masks) read, if that folds the node."""
        if any(v is not None and v.const is None and v.weight is None for v in node.inputs):
            return found
        inputs: list[Value | None] = []
        for value in node.inputs:
            if value is not None and value.weight is not None:
                size = integer_weight_bytes(value.weight)
                if size is None or size > MAX_CONSTANT_BYTES:
                    return found
                if value.weight not in self.loaded:
                    array = self.load(value.weight)
                    if array is None:
                        return found
                    self.loaded[value.weight] = Value.constant(value.name, array)
                value = self.loaded[value.weight]
            inputs.append(value)
        whole = Node(
            node.op_type, node.domain, node.name, node.index, inputs, node.outputs, node.attributes
        )
        again = self._infer(whole)
        return again if again.arrays is not None else found

    def custom_types(self, node: Node) -> list[ValueType | None]:
        """Types of a foreign operator's results: by our rules, by ONNX's own schema (ai.onnx.ml),
        or as the model declares them."""
        types = infer_custom(node)
        if None in types and not node.subgraphs:
            try:
                inferred = infer_types(node, self.opset)
            except ModelError:
                inferred = []  # no schema knows it
            types = [t or i for t, i in zip_longest(types, inferred)]
        for i, value in enumerate(node.outputs):
            if value is not None and types[i] is None:
                types[i] = self.declared.get(value.name)
        return types

    def _add_with_subgraphs(
        self, node: Node, graphs: Mapping[str, GraphProto], scope: Scope, nodes: list[Node]
    ) -> None:
        subgraphs.check_counts(node, graphs)
        condition = node.inputs[0] if node.inputs else None
        if node.op_type == "If" and condition is not None and condition.const is not None:
            taken = graphs["then_branch" if bool(condition.const.all()) else "else_branch"]
            inner = ChainMap({}, scope)
            self.add_nodes(taken, inner, nodes)
            for value, output in zip(node.outputs, taken.output, strict=True):
                if value is not None:
                    scope[value.name] = self.read(inner, output.name, f"node {node.name!r}")
            return
        if unroll.unroll(self, node, graphs, scope, nodes):
            return
        types = subgraphs.fold_subgraphs(self, node, graphs, scope)
        self.emit(node, types, scope, nodes)

    def emit(
        self, node: Node, types: Iterable[ValueType | None], scope: Scope, nodes: list[Node]
    ) -> None:
        """Keep the node as an operation."""
        for value, type_ in zip(node.outputs, types, strict=True):
            if value is None:
                continue
            if type_ is None or (type_.other is None and not type_.elem):
                raise ModelError(
                    f"the type of result {value.name!r} of {node.op_type} cannot be inferred",
                    where=node.name,
                    hint=None
                    if not node.domain
                    else f"operators of domain {node.domain!r} need their result types declared "
                    "in the model (value_info)",
                )
            check_size(value.name, type_)
            value.type = type_
            value.key = type_
            scope[value.name] = value
        if node.domain == UNKNOWN_DOMAIN:
            node.domain = ""
        nodes.append(node)


def check_size(name: str, type_: ValueType) -> None:
    """Raises ModelError for a tensor that no machine can hold, or nothing here computes with."""
    if type_.shape is not None and len(type_.shape) > MAX_RANK:
        raise ModelError(
            f"tensor {name!r} has {len(type_.shape)} dimensions, at most {MAX_RANK} are possible"
        )
    if type_.is_static and (size := bytes_of(type_)) > MAX_TENSOR_BYTES:
        raise ModelError(f"tensor {name!r}, {type_}, would take {size:,} bytes")


def constant_value(tensor: TensorProto, name: str) -> Value:
    """A constant from a TensorProto with its elements. Raises ModelError if it is malformed."""
    array = _elements(tensor, name)
    if array.size > 1 and array.nbytes > 4096:
        flat = array.reshape(-1)
        if array.dtype.kind != "O" and flat[0] == flat[-1] and (flat == flat[0]).all():
            array = np.broadcast_to(flat[:1].reshape(()), array.shape)
    return Value.constant(name, array)


def _elements(tensor: TensorProto, name: str) -> np.ndarray:
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except KeyError:
        raise ModelError(
            f"tensor {name!r} has the element type {tensor.data_type}, which is unknown"
        ) from None
    except (ValueError, TypeError) as error:
        raise ModelError(f"tensor {name!r} is malformed: {error}") from None


def constant_of(attribute: AttributeProto, name: str) -> Value:
    """The value of a Constant node, whichever attribute holds it."""
    from onnx.helper import get_attribute_value

    value = get_attribute_value(attribute)
    match attribute.name:
        case "value":
            return constant_value(value, name)
        case "sparse_value":
            return Value.constant(name, dense_of_sparse(value))
        case "value_int" | "value_ints":
            return Value.constant(name, np.array(value, np.int64))
        case "value_float" | "value_floats":
            return Value.constant(name, np.array(value, np.float32))
        case "value_string":
            return Value.constant(name, np.array(value.decode(), dtype=object))
        case "value_strings":
            return Value.constant(name, np.array([v.decode() for v in value], dtype=object))
        case other:
            raise ModelError(f"constant {name!r} has an unknown attribute {other!r}")


def dense_of_sparse(sparse: object) -> np.ndarray:
    """A SparseTensorProto as an array. Raises ModelError if it is malformed."""
    from onnx import SparseTensorProto

    assert isinstance(sparse, SparseTensorProto)
    name, shape = sparse.values.name, tuple(sparse.dims)
    values, indices = _elements(sparse.values, name), _elements(sparse.indices, name)
    if min(shape, default=0) < 0 or prod(shape) * values.itemsize > MAX_SPARSE_BYTES:
        raise ModelError(
            f"sparse tensor {name!r} of shape {list(shape)} would take"
            f" {prod(shape) * values.itemsize:,} bytes with its zeros, at most"
            f" {MAX_SPARSE_BYTES:,} are possible"
        )
    dense = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"sparse tensor {name!r} is malformed: {error}") from None
    return dense


def declared_types(
    infos: Iterable[ValueInfoProto], bound: Mapping[str, int]
) -> dict[str, ValueType]:
    """Types a model states for values, symbolic dimensions replaced where they are bound."""
    from elk_ir.frontend.dims import evaluate

    types: dict[str, ValueType] = {}
    for info in infos:
        type_ = type_from_proto(info.type)
        if type_.shape is not None:
            shape = list(type_.shape)
            for i, dim in enumerate(info.type.tensor_type.shape.dim):
                if dim.HasField("dim_param"):
                    shape[i] = evaluate(dim.dim_param, bound)
            type_ = ValueType(type_.elem, tuple(shape))
        types[info.name] = type_
    return types


def drop_dead(graph: Graph, opset: int) -> None:
    """Drop nodes no output needs, and the results of optional kind that nothing reads."""
    from onnx.defs import OpSchema

    live: set[Value] = {v for _, v in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not any(v in live for v in node.outputs if v is not None):
            continue
        kept.append(node)
        for sub in node.subgraphs.values():
            drop_dead(sub, opset)
        live.update(read_values([node]))
        schema = None if node.domain else schema_of(node.op_type, opset)
        if schema is not None:
            for i, value in enumerate(node.outputs[: len(schema.outputs)]):
                optional = schema.outputs[i].option == OpSchema.FormalParameterOption.Optional
                if optional and value not in live and sum(v is not None for v in node.outputs) > 1:
                    node.outputs[i] = None
        while node.outputs and node.outputs[-1] is None:
            node.outputs.pop()
    kept.reverse()
    graph.nodes = kept
