"""From the onnx dialect back to an ONNX model, to run that level with any ONNX runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnrankedTensorType,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects.element_types import array_from_dense, element_type_name
from elk_ir.dialects.location import node_name
from elk_ir.dialects.onnx import (
    CustomOp,
    InitializerOp,
    MapType,
    OnnxOp,
    OptionalType,
    SequenceType,
    YieldOp,
    python_value,
)
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ModelError
from elk_ir.frontend.element_types import BY_NAME
from elk_ir.frontend.weights import WeightRef, load_weight, random_weight

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto


def export_model(
    module: ModuleOp,
    base_dir: Path | str,
    *,
    random_weights: int | None = None,
    buffers: Mapping[str, bytes] | None = None,
) -> ModelProto:
    """The module's `main` as a ModelProto with its weights loaded from `base_dir`.

    `random_weights` is a seed for weights whose file does not exist. Raises ModelError when weights
    are missing and no seed is given, or when an operation is not of the onnx dialect.
    """
    from onnx import helper

    def load(ref: WeightRef) -> np.ndarray:
        missing = not all(
            p.file and ((buffers and p.file in buffers) or (Path(base_dir) / p.file).is_file())
            for p in ref.parts
        )
        if random_weights is not None and missing:
            return random_weight(ref, random_weights)
        return load_weight(ref, base_dir, buffers=buffers)

    exported = export_function(main_function(module), load)
    imports = [helper.make_opsetid("", opset_of(module))]
    imports += [helper.make_opsetid(d, 1) for d in sorted(exported.domains - {""})]
    return helper.make_model(
        exported.graph,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True),
        producer_name="elk-ir",
    )


def main_function(module: ModuleOp) -> FuncOp:
    """The function `main`. Raises ModelError if there is none."""
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise ModelError("the module has no function main")


def opset_of(module: ModuleOp) -> int:
    """The opset a module's operators are of (`onnx.opset`; 23 without it)."""
    from elk_ir.frontend.load import TARGET_OPSET

    opset = module.attributes.get("onnx.opset")
    return opset.value.data if isinstance(opset, IntegerAttr) else TARGET_OPSET


def argument_names(attrs: ArrayAttr | None, values: Sequence[SSAValue], prefix: str) -> list[str]:
    """`onnx.name` of arguments or results; else the value's own name, or `prefix` and a number."""
    names: list[str] = []
    for i, value in enumerate(values):
        hint = value.name_hint
        names.append(hint if hint and hint not in names else f"{prefix}{i}")
    for i, entry in enumerate(() if attrs is None else attrs.data):
        name = getattr(entry, "data", {}).get("onnx.name")
        if isinstance(name, StringAttr):
            names[i] = name.data
    return names


@dataclass
class ExportedGraph:
    """A graph, the weights left out of it (they are inputs of it then), what it came from, and
    the domains of its operators. `sources` maps the first result of each node to its operation."""

    graph: GraphProto
    weights: dict[str, WeightRef]
    sources: dict[str, Operation]
    domains: set[str]


def export_function(
    function: FuncOp, load: Callable[[WeightRef], np.ndarray] | None
) -> ExportedGraph:
    """A function as a GraphProto; without `load`, weights stay references beside it.

    Raises ModelError for an operation that is not of the onnx dialect.
    """
    from onnx import helper

    block = function.body.block
    exporter = _Exporter(load)
    names = argument_names(function.arg_attrs, block.args, "input")
    for arg, name in zip(block.args, names, strict=True):
        exporter.claim(arg, name)
    inputs = [value_info(exporter.names[a], a.type) for a in block.args]
    terminator = block.last_op
    if not isinstance(terminator, ReturnOp):
        raise ModelError(f"function {function.sym_name.data!r} does not end in func.return")
    output_names = argument_names(function.res_attrs, terminator.arguments, "output")
    aliases: list[NodeProto] = []
    for value, name in zip(terminator.arguments, output_names, strict=True):
        if value in exporter.names or isinstance(value.owner, InitializerOp | Block):
            continue
        exporter.claim(value, name)
    nodes = exporter.nodes(block)
    for value, name in zip(terminator.arguments, output_names, strict=True):
        if exporter.names[value] != name:
            # An argument, a constant, or a value that is returned twice.
            if name in exporter.used:
                raise ModelError(f"output {name!r} has the name of another value")
            exporter.used.add(name)
            aliases.append(helper.make_node("Identity", [exporter.names[value]], [name]))
    outputs = [
        value_info(name, value.type)
        for value, name in zip(terminator.arguments, output_names, strict=True)
    ]
    inputs += [
        helper.make_tensor_value_info(name, BY_NAME[ref.dtype].onnx, ref.shape)
        for name, ref in exporter.weights.items()
    ]
    graph = helper.make_graph(
        [*nodes, *aliases], function.sym_name.data, inputs, outputs, list(exporter.tensors.values())
    )
    return ExportedGraph(graph, exporter.weights, exporter.sources, exporter.domains)


@dataclass
class _Exporter:
    load: Callable[[WeightRef], np.ndarray] | None
    names: dict[SSAValue, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    tensors: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, WeightRef] = field(default_factory=dict)
    sources: dict[str, Operation] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)

    def claim(self, value: SSAValue, wanted: str | None = None) -> str:
        """Give a value a name nothing else has, once."""
        if value not in self.names:
            stem = wanted or value.name_hint or "v"
            name, count = stem, 0
            while name in self.used:
                count += 1
                name = f"{stem}_{count}"
            self.used.add(name)
            self.names[value] = name
        return self.names[value]

    def nodes(self, block: Block) -> list[NodeProto]:
        nodes: list[NodeProto] = []
        for op in block.ops:
            if isinstance(op, InitializerOp):
                self._initializer(op)
            elif isinstance(op, OnnxOp | CustomOp):
                nodes.append(self._node(op))
            elif not isinstance(op, ReturnOp | YieldOp):
                raise ModelError(f"{op.name} is not of the onnx dialect", where=node_name(op))
        return nodes

    def _initializer(self, op: InitializerOp) -> None:
        name = self.claim(op.output)
        self.sources[name] = op
        if isinstance(op.value, WeightAttr) and self.load is None:
            self.weights[name] = op.value.to_ref()
        else:
            self.tensors[name] = _tensor(initializer_array(op, self.load), name)

    def _node(self, op: OnnxOp | CustomOp) -> NodeProto:
        from onnx import NodeProto

        custom = isinstance(op, CustomOp)
        op_type = op.op_type.data if custom else op.SIGNATURE.op_type
        domain = op.domain.data if custom else ""
        node = NodeProto(op_type=op_type, domain=domain, name=node_name(op))
        self.domains.add(domain)
        node.input.extend("" if v is None else self.claim(v) for v in op.onnx_operands)
        node.output.extend("" if v is None else self.claim(v) for v in op.onnx_results)
        self.sources[next(o for o in node.output if o)] = op
        if custom:
            entries: Iterable[tuple[str, Attribute]] = op.op_attributes.data.items()
            graphs = () if op.graph_names is None else op.graph_names.data
            for label, region in zip(graphs, op.graphs, strict=True):
                node.attribute.append(self._graph(label.data, region.block))
        else:
            known = op.SIGNATURE.attributes
            entries = [(k, v) for k, v in op.properties.items() if k in known]
            for name, region in zip(op.SIGNATURE.regions, op.regions, strict=True):
                if region.blocks:
                    node.attribute.append(self._graph(name, region.block))
        node.attribute.extend(export_attribute(k, v) for k, v in sorted(entries))
        return node

    def _graph(self, name: str, block: Block) -> AttributeProto:
        from onnx import helper

        outer, self.tensors = self.tensors, {}
        inputs = [value_info(self.claim(a), a.type) for a in block.args]
        nodes = self.nodes(block)
        tensors, self.tensors = list(self.tensors.values()), outer
        last = block.last_op
        assert isinstance(last, YieldOp)
        outputs: list[ValueInfoProto] = []
        for value in last.operands:
            inner = self.claim(value)
            if value.owner is not block and getattr(value.owner, "parent", None) is not block:
                # A graph's outputs are its own values, not those of the graph around it.
                alias = f"{inner}_out{len(self.used)}"
                self.used.add(alias)
                nodes.append(helper.make_node("Identity", [inner], [alias]))
                inner = alias
            outputs.append(value_info(inner, value.type))
        return helper.make_attribute(name, helper.make_graph(nodes, name, inputs, outputs, tensors))


def initializer_array(
    op: InitializerOp, load: Callable[[WeightRef], np.ndarray] | None
) -> np.ndarray:
    """The elements of an initializer; `load` reads weights (ModelError without it)."""
    result = op.output.type
    assert isinstance(result, TensorType)
    shape = result.get_shape()
    if isinstance(op.value, WeightAttr):
        if load is None:
            raise ModelError("its weights are not loaded", where=node_name(op))
        return load(op.value.to_ref())
    if isinstance(op.value, ArrayAttr):
        return np.array([s.data for s in op.value.data], dtype=object).reshape(shape)
    return np.broadcast_to(array_from_dense(op.value), shape)


def _tensor(array: np.ndarray, name: str) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(array, order="C"), name)


def export_attribute(name: str, attr: Attribute) -> AttributeProto:
    """An ONNX attribute from its form in IR."""
    from onnx import AttributeProto, helper

    if isinstance(attr, DenseIntOrFPElementsAttr):
        return helper.make_attribute(name, _tensor(array_from_dense(attr), ""))
    if isinstance(attr, TensorType | UnrankedTensorType | SequenceType | OptionalType | MapType):
        return helper.make_attribute(name, type_proto(attr))
    if isinstance(attr, DictionaryAttr) and set(attr.data) == {"shape", "strings"}:
        strings = np.array(python_value(attr.data["strings"]), dtype=object)
        return helper.make_attribute(
            name, _tensor(strings.reshape(python_value(attr.data["shape"])), "")
        )
    value = python_value(attr)
    if isinstance(value, tuple) and not value:
        strings = isinstance(attr, ArrayAttr)
        kind = AttributeProto.STRINGS if strings else AttributeProto.INTS
        return helper.make_attribute(name, [], attr_type=kind)
    if not isinstance(value, int | float | str | tuple):
        raise ModelError(f"attribute {name!r} = {attr} has no ONNX form")
    return helper.make_attribute(name, value)


def value_info(name: str, type_: Attribute) -> ValueInfoProto:
    from onnx import helper

    return helper.make_value_info(name, type_proto(type_))


def type_proto(type_: Attribute) -> TypeProto:
    """The TypeProto of an IR type. Raises ModelError for a type ONNX does not have."""
    from onnx import helper

    match type_:
        case TensorType():
            dims = [None if d < 0 else d for d in type_.get_shape()]
            return helper.make_tensor_type_proto(_elem(type_.element_type), dims)
        case UnrankedTensorType():
            return helper.make_tensor_type_proto(_elem(type_.element_type), None)
        case SequenceType():
            return helper.make_sequence_type_proto(type_proto(type_.element))
        case OptionalType():
            return helper.make_optional_type_proto(type_proto(type_.element))
        case MapType():
            return helper.make_map_type_proto(_elem(type_.key), type_proto(type_.element))
        case _:
            raise ModelError(f"ONNX has no type {type_}")


def _elem(element: Attribute) -> int:
    name = element_type_name(element)
    if name not in BY_NAME:
        raise ModelError(f"ONNX has no element type {name}")
    return BY_NAME[name].onnx
