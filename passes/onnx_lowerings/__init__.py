"""Tables of lowerings from ONNX operators to te, one module a family."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from elk_ir.passes.onnx_lowerings.context import LOWERINGS, Lowering

_FAMILIES = (
    "attention",
    "control",
    "elementwise",
    "indexing",
    "movement",
    "norms",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "resize",
    "windows",
)


@cache
def lowerings() -> dict[str, Lowering]:
    """Operator -> lowering, of all families; `domain:Operator` outside ONNX's default domain."""
    for family in _FAMILIES:
        import_module(f"elk_ir.passes.onnx_lowerings.{family}")
    return LOWERINGS
