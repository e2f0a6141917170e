"""ONNX element types: their names in IR, numpy dtypes and sizes. One table, no xDSL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ElementType:
    """`onnx` is the value in TensorProto.DataType, `name` the type's spelling in IR.

    `bits` is the size of an element as it is stored; types below 8 bits are packed, lowest bits
    first. Strings have no fixed size (0 bits).
    """

    onnx: int
    name: str
    bits: int
    numpy: str

    @property
    def is_integer(self) -> bool:
        return self.name.startswith(("i", "ui"))


# TensorProto.DataType of onnx.proto; numpy names without a built-in dtype come from ml_dtypes.
ELEMENT_TYPES: tuple[ElementType, ...] = (
    ElementType(1, "f32", 32, "float32"),
    ElementType(2, "ui8", 8, "uint8"),
    ElementType(3, "i8", 8, "int8"),
    ElementType(4, "ui16", 16, "uint16"),
    ElementType(5, "i16", 16, "int16"),
    ElementType(6, "i32", 32, "int32"),
    ElementType(7, "i64", 64, "int64"),
    ElementType(8, "string", 0, "object"),
    ElementType(9, "i1", 8, "bool"),
    ElementType(10, "f16", 16, "float16"),
    ElementType(11, "f64", 64, "float64"),
    ElementType(12, "ui32", 32, "uint32"),
    ElementType(13, "ui64", 64, "uint64"),
    ElementType(14, "complex<f32>", 64, "complex64"),
    ElementType(15, "complex<f64>", 128, "complex128"),
    ElementType(16, "bf16", 16, "bfloat16"),
    ElementType(17, "f8E4M3FN", 8, "float8_e4m3fn"),
    ElementType(18, "f8E4M3FNUZ", 8, "float8_e4m3fnuz"),
    ElementType(19, "f8E5M2", 8, "float8_e5m2"),
    ElementType(20, "f8E5M2FNUZ", 8, "float8_e5m2fnuz"),
    ElementType(21, "ui4", 4, "uint4"),
    ElementType(22, "i4", 4, "int4"),
    ElementType(23, "f4E2M1FN", 4, "float4_e2m1fn"),
    ElementType(24, "f8E8M0FNU", 8, "float8_e8m0fnu"),
    ElementType(25, "ui2", 2, "uint2"),
    ElementType(26, "i2", 2, "int2"),
)

BY_ONNX = {t.onnx: t for t in ELEMENT_TYPES}
BY_NAME = {t.name: t for t in ELEMENT_TYPES}


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of an element type by its IR name (KeyError for an unknown one)."""
    spelled = BY_NAME[name].numpy
    try:
        return np.dtype(spelled)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, spelled))


@cache
def element_name(dtype: np.dtype) -> str:
    """The IR name of a numpy dtype (KeyError when ONNX has no such type)."""
    for t in ELEMENT_TYPES:
        if t.numpy == dtype.name or (t.numpy == "object" and dtype.kind in "OSUT"):
            return t.name
    raise KeyError(dtype.name)


def stored_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes a tensor of this element type and shape takes in a file."""
    return (prod(shape) * BY_NAME[name].bits + 7) // 8


def decode(data: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """View stored bytes (a uint8 array) as a tensor; only packed types are copied."""
    raw = np.asarray(data, dtype=np.uint8)
    bits = BY_NAME[name].bits
    dtype = numpy_dtype(name)
    if bits >= 8:
        return raw.view(dtype).reshape(shape)
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    fields = ((raw[:, None] >> shifts) & mask).reshape(-1)[: prod(shape)]
    if name.startswith("i"):  # two's complement in `bits` bits
        signed = fields.astype(np.int8)
        fields = np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed)
        return fields.astype(dtype).reshape(shape)
    if name.startswith("ui"):
        return fields.astype(dtype).reshape(shape)
    return fields.view(dtype).reshape(shape)  # ml_dtypes keeps one 4-bit float a byte
