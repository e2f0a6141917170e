"""What is wrong with an operation that a lowering stumbles over.

Lowerings rely on types that ONNX's inference gave. In IR that was written by hand a result can have
any type, and to check all of them beforehand would cost every model what only those need.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.dialects.onnx import CustomOp, OnnxOp
from elk_ir.errors import ModelError
from elk_ir.frontend.custom_shapes import infer_custom
from elk_ir.frontend.export import export_attribute, type_proto
from elk_ir.frontend.graph import Node, Value, ValueType, type_from_proto
from elk_ir.frontend.infer import infer_types


def misfit(op: OnnxOp | CustomOp, known: Mapping[SSAValue, np.ndarray], opset: int) -> str | None:
    """Why the types of an operation without subgraphs contradict inference; None if they do not.
    known: elements of constant operands."""
    if isinstance(op, CustomOp):
        name, domain, given = op.op_type.data, op.domain.data, op.op_attributes.data
    else:
        known_names = op.SIGNATURE.attributes
        given = {key: value for key, value in op.properties.items() if key in known_names}
        name, domain = op.op_type, ""
    try:
        inputs = [_value(v, known.get(v) if v is not None else None) for v in op.onnx_operands]
        outputs = [_value(v) for v in op.onnx_results]
        attributes = [export_attribute(key, value) for key, value in given.items()]
        node = Node(name, domain, "", 0, list(inputs), list(outputs), attributes)
        inferred = infer_custom(node) if domain else infer_types(node, opset)
    except ModelError as error:
        return "; ".join([error.what.removeprefix(f"{name} "), *error.details])
    for i, (value, found) in enumerate(zip(outputs, inferred, strict=True)):
        if value is not None and found is not None and not _agree(value.type, found):
            return f"result {i} is {value.type}, but the operands make it {found}"
    return None


def _value(value: SSAValue | None, array: np.ndarray | None = None) -> Value | None:
    if value is None:
        return None
    return Value("", type_from_proto(type_proto(value.type)), array)


def _agree(a: ValueType, b: ValueType) -> bool:
    """Whether both can be the type of one value."""
    if a.other is not None or b.other is not None or a.shape is None or b.shape is None:
        return True
    pairs = zip(a.shape, b.shape, strict=False)
    return (
        a.elem == b.elem
        and len(a.shape) == len(b.shape)
        and all(m == n or m is None or n is None for m, n in pairs)
    )
