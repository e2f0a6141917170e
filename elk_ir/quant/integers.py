"""Narrow types (integers of 2, 4 and 8 bits, floats of 8), and quantising arrays to them."""

from __future__ import annotations

import numpy as np

from elk_ir.numerics.body import dtype_of

NARROW = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of the element types that integer matrix units take."""


FLOAT8 = {"float8_e4m3fn": 448.0}
"""Largest finite number of the eight-bit float types that numbers are stored as."""

LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
"""Largest finite number of the float types that float32 can become."""


def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type, narrow ones included."""
    if dtype in NARROW:
        bits = NARROW[dtype]
        return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    limits = np.iinfo(dtype_of(dtype))
    return int(limits.min), int(limits.max)


def integer_type(bits: int, *, signed: bool = True) -> str:
    """The element type of `bits` bits."""
    return f"{'' if signed else 'u'}int{bits}"


def quantize_array(x: np.ndarray, steps: np.ndarray | float, dtype: str) -> np.ndarray:
    """round(x / steps), saturated, as `dtype`; float32 arithmetic, ties to even. An eight-bit float
    and fp16 and bf16 round to their own numbers.

    `steps` broadcast against `x`."""
    scaled = np.asarray(x, np.float32) / np.asarray(steps, np.float32)
    if dtype in LARGEST:
        return saturated(scaled, dtype)
    if dtype in FLOAT8:
        return np.clip(scaled, -FLOAT8[dtype], FLOAT8[dtype]).astype(dtype_of(dtype))
    low, high = integer_range(dtype)
    scaled = np.rint(scaled)
    return (
        np.clip(scaled, low, high).astype(np.int8 if low < 0 else np.uint8).astype(dtype_of(dtype))
    )


def dequantize_array(q: np.ndarray, steps: np.ndarray | float) -> np.ndarray:
    """q · steps in float32."""
    return np.asarray(q).astype(np.float32) * np.asarray(steps, np.float32)


def saturated(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` rounded to fp16 or bf16; finite numbers beyond it become its largest."""
    with np.errstate(over="ignore"):
        narrow = x.astype(dtype_of(dtype))
    lost = ~np.isfinite(narrow) & np.isfinite(x)
    if lost.any():
        narrow[lost] = np.copysign(LARGEST[dtype], x[lost]).astype(dtype_of(dtype))
    return narrow
