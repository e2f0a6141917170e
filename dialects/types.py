"""Element types: xDSL's on one side, numpy and ml_dtypes names on the other."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    BFloat16Type,
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
from xdsl.ir import Attribute, SSAValue

_INTEGERS: dict[tuple[int, Signedness], str] = {
    (1, Signedness.SIGNLESS): "bool",
    **{(w, Signedness.SIGNLESS): f"int{w}" for w in (2, 4, 8, 16, 32, 64)},
    **{(w, Signedness.SIGNED): f"int{w}" for w in (2, 4, 8, 16, 32, 64)},
    **{(w, Signedness.UNSIGNED): f"uint{w}" for w in (2, 4, 8, 16, 32, 64)},
}
_FLOATS: dict[Attribute, str] = {
    Float16Type(): "float16",
    Float32Type(): "float32",
    Float64Type(): "float64",
    BFloat16Type(): "bfloat16",
    Float8E4M3FNType(): "float8_e4m3fn",
    Float8E4M3FNUZType(): "float8_e4m3fnuz",
    Float8E5M2Type(): "float8_e5m2",
    Float8E5M2FNUZType(): "float8_e5m2fnuz",
    Float8E8M0FNUType(): "float8_e8m0fnu",
    Float4E2M1FNType(): "float4_e2m1fn",
}
_BY_NAME: dict[str, Attribute] = {
    **{name: IntegerType(w, s) for (w, s), name in reversed(_INTEGERS.items())},
    **{name: t for t, name in _FLOATS.items()},
}


def dtype_name(element: Attribute) -> str:
    """The numpy (or ml_dtypes) name of an element type. Raises ValueError for other types."""
    if isinstance(element, IntegerType):
        name = _INTEGERS.get((element.width.data, element.signedness.data))
    else:
        name = _FLOATS.get(element)
    if name is None:
        raise ValueError(f"no numeric element type {element}")
    return name


def element_type(name: str) -> Attribute:
    """The xDSL element type called `name` in numpy. Raises KeyError for other names."""
    return _BY_NAME[name]


def tensor_type(shape: Sequence[int], dtype: str) -> TensorType[Attribute]:
    """The ranked static tensor type of `shape` and numpy element type `dtype`."""
    return TensorType(element_type(dtype), list(shape))


def shape_dtype(value: SSAValue | Attribute) -> tuple[tuple[int, ...], str]:
    """Shape and numpy element type of a static ranked tensor. Raises ValueError otherwise."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, TensorType):
        raise ValueError(f"expected a ranked tensor, got {type_}")
    shape = type_.get_shape()
    if any(extent < 0 for extent in shape):
        raise ValueError(f"expected a static shape, got {type_}")
    return tuple(shape), dtype_name(type_.element_type)
