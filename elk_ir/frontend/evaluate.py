"""Evaluating single nodes on constants, with ONNX's reference implementations."""

from __future__ import annotations

import warnings
from math import ceil, prod

import numpy as np

from elk_ir.frontend.graph import KEYED_BYTES, Node, ValueType
from elk_ir.frontend.infer import node_to_proto
from elk_ir.frontend.simplify import attribute

# A computed constant is not larger than this; what would be stays an operation.
MAX_CONSTANT_BYTES = 4 << 20

# Not folded: random results, and the operators that say how numbers are stored (a quantised
# weight would become a float one).
KEPT = frozenset(
    {
        "Bernoulli",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Multinomial",
        "QuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def is_splat(array: np.ndarray) -> bool:
    """Whether an array is one element seen many times (all strides zero)."""
    return array.size > 1 and not any(
        stride for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1
    )


def evaluate_node(node: Node, types: list[ValueType | None], opset: int) -> list[np.ndarray] | None:
    """The results of a node whose operands are all constant, or None when it is not to be folded.

    `types` are the results' inferred types: a result of another type or shape, or one that is too
    large, leaves the node as it is, as does an operator without a reference implementation.
    """
    if node.domain or node.op_type in KEPT or node.subgraphs:
        return None
    arrays: list[np.ndarray | None] = []
    for value in node.inputs:
        if value is None:
            arrays.append(None)
        elif value.const is None or value.const.dtype == object:
            return None
        else:
            arrays.append(value.const)
    splat = _splat(node, arrays)
    if splat is not None:
        return splat
    if any(_too_large(t, arrays) for t in types if t is not None):
        return None
    if node.op_type == "Range":
        results = _range(arrays)
    else:
        results = _reference(node, arrays, opset)
    if results is None or len(results) != len(node.outputs):
        return None
    for value, type_, array in zip(node.outputs, types, results, strict=True):
        if value is None:
            continue
        if type_ is None or array.nbytes > MAX_CONSTANT_BYTES:
            return None
        if type_.shape is not None and None not in type_.shape and array.shape != type_.shape:
            return None
    return results


def evaluate_shape(node: Node) -> list[np.ndarray] | None:
    """The result of Shape or Size on a tensor whose (wanted) dimensions are known, else None."""
    value = node.inputs[0] if node.inputs else None
    if node.op_type not in ("Shape", "Size") or value is None or value.type.shape is None:
        return None
    shape = value.type.shape
    if node.op_type == "Size":
        return None if None in shape else [np.array(prod(d or 0 for d in shape), np.int64)]
    wanted = shape[attribute(node, "start", 0) : attribute(node, "end", None)]
    return None if None in wanted else [np.array(wanted, np.int64)]


def bytes_of(type_: ValueType) -> int:
    """Bytes of a tensor, unknown dimensions counting once; types without a size as a byte each."""
    from elk_ir.frontend.element_types import BY_ONNX

    extents = [d for d in type_.shape or () if d is not None]
    bits = BY_ONNX[type_.elem].bits if type_.elem in BY_ONNX else 8
    return prod(extents) * max(8, bits) // 8


def _splat(node: Node, arrays: list[np.ndarray | None]) -> list[np.ndarray] | None:
    """Constants of one value, of any size: ConstantOfShape, Expand, and what keeps them so."""
    if node.op_type == "ConstantOfShape" and arrays[0] is not None:
        from onnx import numpy_helper

        fill = np.zeros((1,), np.float32)
        for attribute in node.attributes:
            if attribute.name == "value":
                fill = numpy_helper.to_array(attribute.t)
        return _filled(fill, tuple(int(d) for d in arrays[0]))
    first = arrays[0] if arrays else None
    if first is None or not (is_splat(first) or first.size == 1):
        return None
    if node.op_type == "Expand" and arrays[1] is not None:
        try:
            shape = np.broadcast_shapes(first.shape, tuple(int(d) for d in arrays[1]))
        except ValueError:
            return None
        return _filled(first.reshape(-1)[:1], shape)
    return None


def _filled(fill: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray] | None:
    """One element seen as a tensor; None where numpy can't even count the elements."""
    if min(shape, default=0) < 0 or prod(shape) * fill.itemsize > np.iinfo(np.int64).max:
        return None
    return [np.broadcast_to(fill.reshape(()), shape)]


def _too_large(type_: ValueType, arrays: list[np.ndarray | None]) -> bool:
    """Whether a result is certainly, or for all that is known may be, more than is folded.

    A shape that depends on data (NonZero, Unique) is bounded by the data.
    """
    if type_.is_static:
        return bytes_of(type_) > MAX_CONSTANT_BYTES
    return type_.other is not None or sum(a.nbytes for a in arrays if a is not None) > KEYED_BYTES


def _range(arrays: list[np.ndarray | None]) -> list[np.ndarray] | None:
    """start, start + delta, ... below the limit; None if there are too many."""
    if any(a is None or a.size != 1 for a in arrays):
        return None
    start, limit, delta = (a.reshape(-1)[0] for a in arrays if a is not None)
    if delta == 0:
        return None
    # Narrow floats are counted, and integers of any size stay exact, as Python numbers.
    first, last, step = start.item(), limit.item(), delta.item()
    exact = start.dtype.kind in "iu"
    count = max(0, -((first - last) // step) if exact else ceil((last - first) / step))
    if count * max(1, start.dtype.itemsize) > MAX_CONSTANT_BYTES:
        return None
    if exact:
        return [first + step * np.arange(count, dtype=start.dtype)]
    wide = start.dtype if start.dtype.itemsize >= 4 else np.dtype(np.float32)
    steps = np.arange(count).astype(wide) * delta.astype(wide) + start.astype(wide)
    return [steps.astype(start.dtype)]


def _reference(node: Node, arrays: list[np.ndarray | None], opset: int) -> list[np.ndarray] | None:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    proto = node_to_proto(node)
    feeds = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    graph = helper.make_graph(
        [proto],
        "node",
        [helper.make_empty_tensor_value_info(name) for name in feeds],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, feeds)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
        return None  # no reference implementation for this operator on these types
    if not isinstance(found, list) or not all(
        isinstance(a, np.ndarray | np.generic) for a in found
    ):
        return None
    present = iter(found)
    empty = np.zeros(0)
    return [empty if v is None else np.asarray(next(present)) for v in node.outputs]
