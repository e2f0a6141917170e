"""From a folded graph to a module of the onnx dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    LocationAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    f32,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from elk_ir.dialects.element_types import dense_from_array, element_type_attr
from elk_ir.dialects.location import node_location
from elk_ir.dialects.onnx import (
    CustomOp,
    InitializerOp,
    MapType,
    OptionalType,
    SequenceType,
    YieldOp,
    op_classes,
)
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ModelError
from elk_ir.frontend.element_types import BY_NAME, BY_ONNX
from elk_ir.frontend.evaluate import is_splat
from elk_ir.frontend.graph import Graph, Node, Value, ValueType, read_values, type_from_proto

if TYPE_CHECKING:
    from onnx import AttributeProto, TypeProto

# A constant of one value with more elements is printed as one number that fills its result.
SPLAT_ELEMENTS = 64


def build_module(graph: Graph, *, model: str, opset: int) -> ModuleOp:
    """A module with `func.func @main`; input and output names are `onnx.name` on its arguments and
    results, symbolic dimensions of inputs `onnx.dims`."""
    function = build_function(graph, name="main", model=model)
    attributes: dict[str, Attribute] = {
        "onnx.model": StringAttr(model),
        "onnx.opset": IntegerAttr(opset, i64),
    }
    return ModuleOp([function], attributes)


def build_function(
    graph: Graph,
    *,
    name: str,
    model: str,
    locations: Mapping[str, LocationAttr] | None = None,
) -> FuncOp:
    """The graph as a function. `locations` has those of operations known by the name of their
    first result; others are named after their node, in file `model`."""
    builder = _Builder(model, locations or {})
    block = Block(arg_types=[type_attr(v.type) for v in graph.inputs])
    for value, arg in zip(graph.inputs, block.args, strict=True):
        builder.bind(value, arg)
    builder.add_nodes(graph.nodes, block)
    results = [builder.read(v, block) for _, v in graph.outputs]
    block.add_op(ReturnOp(*results))
    arg_attrs = []
    for value in graph.inputs:
        entries: dict[str, Attribute] = {"onnx.name": StringAttr(value.name)}
        if value.name in graph.dims:
            entries["onnx.dims"] = ArrayAttr(StringAttr(d) for d in graph.dims[value.name])
        arg_attrs.append(DictionaryAttr(entries))
    return FuncOp(
        name,
        ([a.type for a in block.args], [r.type for r in results]),
        Region(block),
        arg_attrs=ArrayAttr(arg_attrs),
        res_attrs=ArrayAttr(
            DictionaryAttr({"onnx.name": StringAttr(label)}) for label, _ in graph.outputs
        ),
    )


@cache
def type_attr(type_: ValueType) -> Attribute:
    """The IR type of a value."""
    if type_.other is not None:
        from onnx import TypeProto

        return _other_type(TypeProto.FromString(type_.other))
    if type_.elem not in BY_ONNX:
        raise ModelError(f"element type {type_.elem} is unknown")
    element = element_type_attr(BY_ONNX[type_.elem].name)
    if type_.shape is None:
        return UnrankedTensorType(element)
    return TensorType(element, [DYNAMIC_INDEX if d is None else d for d in type_.shape])


def _other_type(proto: TypeProto) -> Attribute:
    match proto.WhichOneof("value"):
        case "sequence_type":
            return SequenceType(_other_type(proto.sequence_type.elem_type))
        case "optional_type":
            return OptionalType(_other_type(proto.optional_type.elem_type))
        case "map_type":
            if proto.map_type.key_type not in BY_ONNX:
                raise ModelError(f"key type {proto.map_type.key_type} of a map is unknown")
            key = element_type_attr(BY_ONNX[proto.map_type.key_type].name)
            return MapType(key, _other_type(proto.map_type.value_type))
        case "tensor_type":
            return type_attr(type_from_proto(proto))
        case kind:
            raise ModelError(f"values of type {kind} are not supported")


class _Builder:
    """Builds operations; constants are created before their first reader and shared."""

    def __init__(self, model: str, locations: Mapping[str, LocationAttr]) -> None:
        self.model = model
        self.locations = locations
        self.values: dict[Value, SSAValue] = {}
        self.constants: dict[object, SSAValue] = {}
        # Attributes by their serialised form: layers repeat them, and building one costs as much
        # as building an operation.
        self.attributes: dict[bytes, Attribute] = {}

    def bind(self, value: Value, ssa: SSAValue) -> None:
        self.values[value] = ssa
        ssa.name_hint = name_hint(value.name)

    def read(self, value: Value, block: Block) -> SSAValue:
        """The SSA value; a constant that has none yet is created at the end of `block`."""
        found = self.values.get(value)
        if found is not None:
            return found
        key = constant_key(value)
        ssa = self.constants.get(key)
        if ssa is None:
            op = initializer(value)
            op.location = self._location(value.name, value.name, 0)
            block.add_op(op)
            ssa = self.constants[key] = op.output
            ssa.name_hint = name_hint(value.name)
        self.values[value] = ssa
        return ssa

    def add_nodes(self, nodes: Sequence[Node], block: Block) -> None:
        for node in nodes:
            if not node.domain:
                for graph in node.subgraphs.values():
                    self._read_constants(graph, block)
            operands = [None if v is None else self.read(v, block) for v in node.inputs]
            first = next(v.name for v in node.outputs if v is not None)
            location = self._location(first, node.name, node.index)
            op = self._operation(node, operands, location)
            block.add_op(op)
            present = (v for v in node.outputs if v is not None)
            for value, result in zip(present, op.results, strict=True):
                self.bind(value, result)

    def _location(self, key: str, name: str, index: int) -> LocationAttr:
        return self.locations.get(key) or node_location(name, self.model, index)

    def _read_constants(self, graph: Graph, block: Block) -> None:
        """Create what a subgraph reads outside of it, so that later nodes may share it."""
        for value in [v for _, v in graph.outputs] + list(read_values(graph.nodes)):
            if value.const is not None or value.weight is not None:
                self.read(value, block)

    def _operation(
        self, node: Node, operands: list[SSAValue | None], location: LocationAttr
    ) -> Operation:
        attributes: dict[str, Attribute] = {}
        for a in node.attributes:
            key = a.SerializeToString(deterministic=True)
            attr = self.attributes.get(key)
            if attr is None:
                attr = self.attributes[key] = attribute_attr(a)
            attributes[a.name] = attr
        results = [None if v is None else type_attr(v.type) for v in node.outputs]
        op_class = None if node.domain else op_classes().get(node.op_type)
        if op_class is None:
            graphs = {name: self._own_region(graph) for name, graph in node.subgraphs.items()}
            return CustomOp.make(
                node.domain,
                node.op_type,
                operands,
                results,
                attributes,
                graphs,
                location=location,
            )
        regions = [
            self._region(node.subgraphs[name]) if name in node.subgraphs else Region()
            for name in op_class.SIGNATURE.regions
        ]
        try:
            return op_class.make(operands, results, attributes, location=location, regions=regions)
        except ValueError as error:
            raise ModelError(str(error), where=node.name) from None

    def _own_region(self, graph: Graph) -> Region:
        """A region that holds the constants it reads: foreign operators need not see outer ones."""
        values, constants = self.values, self.constants
        self.values = {v: s for v, s in values.items() if v.const is None and v.weight is None}
        self.constants = {}
        region = self._region(graph)
        self.values, self.constants = values, constants
        return region

    def _region(self, graph: Graph) -> Region:
        block = Block(arg_types=[type_attr(v.type) for v in graph.inputs])
        for value, arg in zip(graph.inputs, block.args, strict=True):
            self.bind(value, arg)
        self.add_nodes(graph.nodes, block)
        block.add_op(YieldOp(*(self.read(v, block) for _, v in graph.outputs)))
        return Region(block)


def constant_key(value: Value) -> object:
    """Equal for constants that are the same tensor."""
    return value.key if value.const is not None else value.weight


def initializer(value: Value) -> InitializerOp:
    """The operation that holds a constant or names a weight."""
    result = type_attr(value.type)
    if value.weight is not None:
        return InitializerOp(WeightAttr.get(value.weight), result)
    array = value.const
    if array is None:
        raise ModelError(f"value {value.name!r} is used before it is produced")
    if array.dtype == object:
        return InitializerOp(
            ArrayAttr(StringAttr(str(s)) for s in array.reshape(-1).tolist()), result
        )
    if array.size > SPLAT_ELEMENTS and is_splat(array):
        array = np.array(array.reshape(-1)[0])
    return InitializerOp(dense_from_array(array), result)


def attribute_attr(attribute: AttributeProto) -> Attribute:
    """An ONNX attribute in IR. Raises ModelError for kinds that no operator here has."""
    from onnx import AttributeProto

    match attribute.type:
        case AttributeProto.INT:
            return IntegerAttr(attribute.i, i64)
        case AttributeProto.FLOAT:
            return FloatAttr(attribute.f, f32)
        case AttributeProto.INTS:
            return DenseArrayBase.from_list(i64, list(attribute.ints))
        case AttributeProto.FLOATS:
            values = list(attribute.floats)
            if not np.isfinite(values).all():  # xDSL cannot read those back inside an array
                return ArrayAttr(FloatAttr(v, f32) for v in values)
            return DenseArrayBase.from_list(f32, values)
        case AttributeProto.STRING:
            return StringAttr(_text(attribute.s))
        case AttributeProto.STRINGS:
            return ArrayAttr(StringAttr(_text(s)) for s in attribute.strings)
        case AttributeProto.TENSOR:
            return tensor_attr(attribute)
        case AttributeProto.TYPE_PROTO:
            return type_attr(type_from_proto(attribute.tp))
        case kind:
            raise ModelError(
                f"attribute {attribute.name!r} of kind {AttributeProto.AttributeType.Name(kind)} "
                "is not supported"
            )


def tensor_attr(attribute: AttributeProto) -> DenseIntOrFPElementsAttr | DictionaryAttr:
    """A tensor attribute (a fill value) as `dense`, one of strings as `{shape, strings}`."""
    from onnx import numpy_helper

    if attribute.t.data_type == BY_NAME["string"].onnx:
        strings = ArrayAttr(StringAttr(_text(s)) for s in attribute.t.string_data)
        shape = DenseArrayBase.from_list(i64, list(attribute.t.dims))
        return DictionaryAttr({"shape": shape, "strings": strings})
    try:
        return dense_from_array(numpy_helper.to_array(attribute.t))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"attribute {attribute.name!r} is malformed: {error}") from None


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


@cache
def name_hint(name: str) -> str | None:
    """A value's name as an SSA name: other characters become `_`, a leading digit is prefixed.

    A trailing number goes: xDSL numbers equal names itself and drops it when it parses.
    """
    clean = re.sub(r"[^A-Za-z0-9_$.-]+", "_", name).strip("_.-")
    clean = re.sub(r"(_+[0-9]*)+$", "", clean)
    if not clean:
        return None
    hint = clean if clean[0].isalpha() else f"v{clean}"
    return hint if SSAValue.is_valid_name(hint) else None
