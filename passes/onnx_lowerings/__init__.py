"""Tables of lowerings from ONNX operators to te, one module a family."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from elk_ir.errors import ElkError
from elk_ir.extensions import OPERATORS, operators
from elk_ir.passes.onnx_lowerings.context import LOWERINGS, Lowering

_FAMILIES = (
    "attention",
    "control",
    "dynamic_lstm",
    "elementwise",
    "indexing",
    "movement",
    "norms",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "resize",
    "runtime",
    "runtime_products",
    "windows",
)


def lowerings() -> Mapping[str, Lowering]:
    """Operator -> lowering, of all families and extensions; `domain:Operator` outside ONNX's
    default domain. Raises ElkError for an extension that redefines one of ours."""
    brought = operators().lowerings
    if not brought:
        return _builtin()
    both = sorted(brought.keys() & _builtin().keys())
    if both:
        raise ElkError(
            f"an extension lowers {both[0]}, which the compiler lowers itself",
            where=f"entry point {OPERATORS}",
        )
    return ChainMap(_builtin(), dict(brought))


@cache
def _builtin() -> dict[str, Lowering]:
    for family in _FAMILIES:
        import_module(f"elk_ir.passes.onnx_lowerings.{family}")
    return LOWERINGS
