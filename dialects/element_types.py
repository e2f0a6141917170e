"""Element types between ONNX (by name) and IR attributes, and tensors between numpy and `dense`."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    Float4E2M1FNType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    TensorType,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.printer import Printer

from elk_ir.frontend.element_types import element_name, numpy_dtype


@irdl_attr_definition
class StringType(ParametrizedAttribute, TypeAttribute):
    """The element type of ONNX string tensors; no core computes on them."""

    name = "onnx.string"


_FLOATS = {
    "f16": Float16Type,
    "f32": Float32Type,
    "f64": Float64Type,
    "bf16": BFloat16Type,
    "f8E4M3FN": Float8E4M3FNType,
    "f8E4M3FNUZ": Float8E4M3FNUZType,
    "f8E5M2": Float8E5M2Type,
    "f8E5M2FNUZ": Float8E5M2FNUZType,
    "f8E8M0FNU": Float8E8M0FNUType,
    "f4E2M1FN": Float4E2M1FNType,
}


@cache
def element_type_attr(name: str) -> Attribute:
    """The IR type of an element type name (KeyError or ValueError for an unknown one)."""
    if name == "string":
        return StringType()
    if name in _FLOATS:
        return _FLOATS[name]()
    if name.startswith("complex<"):
        return ComplexType(_FLOATS[name[8:-1]]())
    if name.startswith("ui"):
        return IntegerType(int(name[2:]), Signedness.UNSIGNED)
    return IntegerType(int(name[1:]))


@cache
def element_type_name(attr: Attribute) -> str:
    """The inverse of `element_type_attr`."""
    return "string" if isinstance(attr, StringType) else str(attr)


def dense_from_array(array: np.ndarray) -> DenseIntOrFPElementsAttr[Any]:
    """A numpy array as a `dense` attribute; raises KeyError for strings and foreign dtypes."""
    name = element_name(array.dtype)
    if name == "string":
        raise KeyError(name)
    # xDSL keeps a signless true as -1, and types below 8 bits one element a byte.
    if array.dtype == np.bool_:
        data = (-array.astype(np.int8)).tobytes()
    elif name in ("i4", "i2"):
        data = array.astype(np.int8).tobytes()
    elif name in ("ui4", "ui2"):
        data = array.astype(np.uint8).tobytes()
    else:
        data = array.tobytes()
    type_: TensorType[Any] = TensorType(element_type_attr(name), array.shape)
    return DenseIntOrFPElementsAttr(type_, BytesAttr(data))


def array_from_dense(attr: DenseIntOrFPElementsAttr) -> np.ndarray:
    """A `dense` attribute as a (read-only) numpy array; a splat has its full shape."""
    name = element_type_name(attr.get_element_type())
    shape = attr.get_shape()
    data = attr.data.data
    if name == "i1":
        array = np.frombuffer(data, np.int8) != 0
    elif name in ("i4", "i2"):
        array = np.frombuffer(data, np.int8).astype(numpy_dtype(name))
    elif name in ("ui4", "ui2"):
        array = np.frombuffer(data, np.uint8).astype(numpy_dtype(name))
    else:
        array = np.frombuffer(data, numpy_dtype(name))
    if array.size == 1 and prod(shape) != 1:
        return np.broadcast_to(array.reshape(()), shape)
    return array.reshape(shape)


def print_dense(printer: Printer, attr: DenseIntOrFPElementsAttr) -> None:
    """Print a `dense` attribute so that it parses back to the same bytes.

    xDSL 0.75 prints a number that has no short decimal form (-inf, 16777217.0) as hexadecimal bits,
    but inside `dense<…>` it reads those back as an integer's value, so that a mask of 0 and -inf
    would change. Such a tensor is printed as one hexadecimal string, which is read back right.
    """
    element = attr.get_element_type()
    if isinstance(element, AnyFloat) and 0 < len(attr) <= 100:
        values = array_from_dense(attr).astype(np.float64).reshape(-1).tolist()
        if not all(_prints_as_decimal(v, element) for v in set(values)):
            printer.print_string(f'dense<"0x{attr.data.data.hex().upper()}"> : ')
            printer.print_attribute(attr.type)
            return
    printer.print_attribute(attr)


def _prints_as_decimal(value: float, element: AnyFloat) -> bool:
    """Whether xDSL prints the number as a decimal literal with a point (`Printer.print_float`)."""
    if not np.isfinite(value):
        return False
    if element.unpack(element.pack([float(f"{value:.5e}")]), 1)[0] == value:
        return True
    if isinstance(element, Float32Type):
        return "." in f"{value:.9g}"
    return "." in (f"{value:.17g}" if isinstance(element, Float64Type) else repr(value))
