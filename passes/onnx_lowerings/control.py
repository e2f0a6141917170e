"""Control flow that the importer could not resolve: why, and what to do."""

from __future__ import annotations

from typing import NoReturn

from elk_ir.passes.onnx_lowerings.context import Context, Node, Unsupported, lowers

_WHY = {
    "If": "its condition is computed, and the branches yield tensors of different shapes",
    "Loop": "its trip count depends on data (give the values of the inputs that determine it), or"
    " its results do not keep their shapes",
    "Scan": "the length of what it scans is not known",
}


@lowers("If", "Loop", "Scan")
def _control(ctx: Context, node: Node) -> NoReturn:
    """The importer inlines, unrolls and selects what it can (`elk_ir.frontend.unroll`)."""
    raise Unsupported(_WHY[node.op_type])
