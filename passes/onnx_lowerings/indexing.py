"""Gather and its relatives."""

from __future__ import annotations

from xdsl.ir import SSAValue

from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.context import Context, Node, lowers, shape_of
from elk_ir.passes.onnx_lowerings.movement import axis_of


@lowers("Gather")
def _gather(ctx: Context, node: Node) -> SSAValue:
    """Slices of the data picked by index along one axis."""
    data = node.operand(0)
    axis = axis_of(node.attr("axis"), len(shape_of(data)))
    return moves.gather(ctx, data, node.operand(1), axis)
