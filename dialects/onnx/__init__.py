"""The onnx dialect: one operation an ONNX operator, generated from the standard's own schemas.

Operators of the default domain become `onnx.<OpType>` with the operands, results and attributes of
their newest schema; models of older opsets are lifted before they are imported. Absent optional
operands and results are `none` in their place:

    %1 = onnx.Clip(%0, none, %max) : (tensor<4xf32>, none, tensor<f32>) -> tensor<4xf32>

ONNX attributes are properties (an absent one has the schema's default, see `OnnxOp.attr`), graph
attributes are regions whose blocks end in `onnx.Yield` and may use values of the enclosing graph.
Operators of other domains are `onnx.Custom`, initializers `onnx.Initializer`.

Nothing here imports the `onnx` package until the dialect is first used: `ONNX` is made on demand.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from xdsl.ir import Dialect, Operation

from elk_ir.dialects.element_types import StringType
from elk_ir.dialects.onnx.ops import CustomOp, InitializerOp, OnnxOp, YieldOp
from elk_ir.dialects.onnx.schemas import op_classes
from elk_ir.dialects.onnx.signature import Formal, OpSignature, python_value
from elk_ir.dialects.onnx.types import MapType, OptionalType, SequenceType

if TYPE_CHECKING:
    ONNX: Dialect

__all__ = [
    "ONNX",
    "CustomOp",
    "Formal",
    "InitializerOp",
    "MapType",
    "OnnxOp",
    "OpSignature",
    "OptionalType",
    "SequenceType",
    "YieldOp",
    "get_onnx_dialect",
    "op_classes",
    "python_value",
]


@cache
def get_onnx_dialect() -> Dialect:
    """The dialect, generated at the first call."""
    generated = op_classes()
    operations: list[type[Operation]] = [generated[name] for name in sorted(generated)]
    return Dialect(
        "onnx",
        [*operations, CustomOp, InitializerOp, YieldOp],
        [MapType, OptionalType, SequenceType, StringType],
    )


def __getattr__(name: str) -> Any:
    """`ONNX` is the dialect and `<OpType>Op` an operation, both made when they are first used."""
    if name == "ONNX":
        return get_onnx_dialect()
    if name.endswith("Op") and name[:-2] in op_classes():
        return op_classes()[name[:-2]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
