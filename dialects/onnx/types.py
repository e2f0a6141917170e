"""Types of ONNX values that are no tensors; no core computes on them."""

from __future__ import annotations

from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def


@irdl_attr_definition
class SequenceType(ParametrizedAttribute, TypeAttribute):
    """An ONNX sequence of values of one type."""

    name = "onnx.seq"
    element: Attribute = param_def()


@irdl_attr_definition
class OptionalType(ParametrizedAttribute, TypeAttribute):
    """An ONNX value that may be absent."""

    name = "onnx.opt"
    element: Attribute = param_def()


@irdl_attr_definition
class MapType(ParametrizedAttribute, TypeAttribute):
    """An ONNX map from a scalar type to values of one type."""

    name = "onnx.map"
    key: Attribute = param_def()
    element: Attribute = param_def()
