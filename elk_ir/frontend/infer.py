"""Types of one node's results, from ONNX's own inference functions, with constants propagated.

Inference runs node by node, in order, beside folding, so each node sees the constants that the
nodes before it were folded to; ONNX's whole-graph data propagation stops at Range, Reshape to a
computed shape and Slice from a computed start. Equal nodes (same attributes, operand types and
small constants) are inferred once: the layers of a network are alike.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.errors import ModelError
from elk_ir.frontend.graph import Node, ValueType, type_from_proto, type_to_proto
from elk_ir.frontend.simplify import attribute

if TYPE_CHECKING:
    from onnx import NodeProto, OperatorSetIdProto, TensorProto, TypeProto
    from onnx.defs import OpSchema

# ONNX has no inference for these; their result has the type of their first operand.
_LIKE_FIRST = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
# Constants up to this many elements are handed to ONNX's inference functions.
DATA_ELEMENTS = 1024


@cache
def schema_of(op_type: str, opset: int, domain: str = "") -> OpSchema | None:
    """The schema of an operator (at an opset of the default domain), None if there is none."""
    from onnx.defs import SchemaError, get_schema

    try:
        return get_schema(op_type, domain) if domain else get_schema(op_type, opset, "")
    except SchemaError:
        return None


def node_to_proto(node: Node) -> NodeProto:
    """The node with its operands named i0, i1, … and its results o0, o1, …; without subgraphs."""
    from onnx import NodeProto

    proto = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    proto.output.extend("" if v is None else f"o{i}" for i, v in enumerate(node.outputs))
    proto.attribute.extend(node.attributes)
    return proto


def infer_types(node: Node, opset: int) -> list[ValueType | None]:
    """Types of a node's results; None for one that inference does not reach.

    Raises ModelError with ONNX's reason when the operands do not fit the operator.
    """
    from onnx import numpy_helper
    from onnx.checker import ValidationError
    from onnx.shape_inference import InferenceError

    schema = schema_of(node.op_type, opset, node.domain)
    if schema is None:
        raise ModelError(f"operator {node.op_type} is not part of opset {opset}", where=node.name)
    if node.op_type in _LIKE_FIRST and not node.domain and node.inputs[0] is not None:
        return [node.inputs[0].type]
    if node.op_type == "Split" and (parts := attribute(node, "num_outputs")) is not None:
        if parts != len(node.outputs):  # inference would allocate that many types
            raise ModelError(f"{parts} parts for {len(node.outputs)} results", where=node.name)
    proto = node_to_proto(node)
    types: dict[str, TypeProto] = {}
    data: dict[str, TensorProto] = {}
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        types[f"i{i}"] = type_to_proto(value.type)
        array = value.const
        if array is not None and array.size <= DATA_ELEMENTS and array.dtype != object:
            data[f"i{i}"] = numpy_helper.from_array(np.array(array, order="C"), f"i{i}")
    failures = (InferenceError, ValidationError, RuntimeError, ValueError)
    try:
        found = _infer(schema, proto, types, data, opset)
    except failures as error:
        try:
            # What inference refuses may be a constant's form that run times take (a Range from a
            # tensor of one element), so once more without the constants.
            found = _infer(schema, proto, types, {}, opset) if data else None
        except failures:
            found = None
        if found is None:
            raise ModelError(
                f"{node.op_type} does not fit its operands: {_reason(error)}",
                where=node.name,
                details=[
                    f"operand {i}: {v.type}" for i, v in enumerate(node.inputs) if v is not None
                ],
            ) from None
    result = [type_from_proto(found[name]) if name in found else None for name in proto.output]
    return _by_type_variable(node, schema, result)


def _imports(proto: NodeProto, opset: int) -> list[OperatorSetIdProto]:
    from onnx import helper
    from onnx.defs import get_schema

    imports = [helper.make_opsetid("", opset)]
    if proto.domain:
        version = get_schema(proto.op_type, proto.domain).since_version
        imports.append(helper.make_opsetid(proto.domain, version))
    return imports


def _infer(
    schema: OpSchema,
    proto: NodeProto,
    types: dict[str, TypeProto],
    data: dict[str, TensorProto],
    opset: int,
) -> dict[str, TypeProto]:
    from onnx.checker import ValidationError
    from onnx.shape_inference import infer_node_outputs

    if not schema.has_type_and_shape_inference_function:
        return _infer_as_model(proto, types, data, opset)
    imports = _imports(proto, opset)
    try:
        return infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except ValidationError:
        # It checks what it inferred against the schema, and is wrong about element types
        # (see `_by_type_variable`); inference of whole models does not check.
        return _infer_as_model(proto, types, data, opset)


def _infer_as_model(
    proto: NodeProto, types: dict[str, TypeProto], data: dict[str, TensorProto], opset: int
) -> dict[str, TypeProto]:
    """Infer as a model of one node, which expands an operator that only has a function body."""
    from onnx import helper, shape_inference

    inputs = [helper.make_value_info(name, t) for name, t in types.items() if name not in data]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = helper.make_graph([proto], "node", inputs, outputs, initializer=list(data.values()))
    model = helper.make_model(graph, opset_imports=_imports(proto, opset))
    done = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return {o.name: o.type for o in done.graph.output if o.type.WhichOneof("value")}


def _by_type_variable(
    node: Node, schema: OpSchema, types: list[ValueType | None]
) -> list[ValueType | None]:
    """A result whose type variable an operand shares has that operand's element type.

    ONNX's inference gives RMSNormalization's result the type of its data, where the schema says the
    type of its scale.
    """
    bound: dict[str, int] = {}
    variables = {c.type_param_str for c in schema.type_constraints}
    for i, value in enumerate(node.inputs):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if value is not None and formal.type_str in variables and formal.is_homogeneous:
            bound.setdefault(formal.type_str, value.type.elem)
    fixed: list[ValueType | None] = []
    for i, type_ in enumerate(types):
        formal = schema.outputs[min(i, len(schema.outputs) - 1)]
        elem = bound.get(formal.type_str, 0)
        if type_ is not None and type_.other is None and elem and formal.is_homogeneous:
            type_ = ValueType(elem, type_.shape)
        fixed.append(type_)
    return fixed


def _reason(error: BaseException) -> str:
    """The message without ONNX's prefixes (error class, node, file)."""
    text = " ".join(str(error).split())
    text = re.sub(r"\[[A-Za-z]+Error\]\s*", "", text)
    text = re.sub(r"\(op_type:[^)]*\):?\s*", "", text)
    text = re.sub(r"^Inference error\(s\):\s*", "", text)
    return text or type(error).__name__
