"""The operator `com.example.ext:PowerMean`: (mean |x|^p)^(1/p) over the last axis.

An operation of te says what it iterates over and which statistics a core keeps, its kernel what
they are. Partition plans, the cost model, the virtual machine and the report follow from that: here
the last axis is split over cores, whose partial sums are added up.
"""

import numpy as np
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition, prop_def

from elk_ir.dialects.te.interface import StructuredOp, accumulator, with_phase
from elk_ir.dialects.types import tensor_type
from elk_ir.extensions import Operators
from elk_ir.frontend.graph import ValueType
from elk_ir.numerics.tiles import epilogue, reduction_block
from elk_ir.passes.onnx_lowerings.axes import Domain
from elk_ir.passes.onnx_lowerings.context import dtype_of_value, shape_of
from elk_ir.plan.domain import Operator, Phase, Stat


@irdl_op_definition
class PowerMeanOp(StructuredOp):
    """The power mean over the reduction dimensions."""

    name = "ext.power_mean"
    power = prop_def(FloatAttr)

    def build_operator(self, dims, operands, results) -> Operator:
        """One statistic: the sum of the powers, for every element of the result."""
        kept = tuple(sorted(results[0].dims))
        stat = Stat("sum", kept, accumulator(operands[0].dtype), 0.0)
        params = (("power", self.power.value.data),)
        reads = (with_phase(operands[0], Phase.LOCAL),)
        return Operator("power_mean", dims, reads, tuple(results), (stat,), params, 2.0)


class PowerMeanKernel:
    """What a core computes. Arrays have the cores first, then a tile's dimensions."""

    def local(self, tile, blocks):
        """The sum of the powers of a tile; elements outside the tensor read as 0."""
        stat = tile.op.stats[0]
        array, dims = reduction_block(tile, 0, blocks[0], stat.dtype, stat.neutral)
        gone = tuple(i + 1 for i, d in enumerate(dims) if d not in stat.dims)
        return [(np.abs(array) ** tile.op.param["power"]).sum(axis=gone, dtype=array.dtype)]

    def combine(self, op, left, right):
        """The sums of two parts of a reduction."""
        return [left[0] + right[0]]

    def apply(self, tile, stats, blocks):
        """The mean's root, of the whole sum."""
        op = tile.op
        count = np.prod([op.extents[d] for d in op.reductions])
        values = (stats[0] / count) ** (1 / op.param["power"])
        return epilogue(tile, values.astype(stats[0].dtype), op.stats[0].dims, blocks)


def lower(ctx, node):
    """The node as one operation over its operand's elements."""
    x = node.operand(0)
    domain = Domain()
    lead = domain.parallel(shape_of(x)[:-1])
    last = domain.reduction("k", shape_of(x)[-1])
    op = PowerMeanOp.create(
        operands=[x],
        result_types=[tensor_type(shape_of(x)[:-1], dtype_of_value(x))],
        properties={
            "domain": domain.attr([(*lead, last)], [lead]),
            "power": FloatAttr(float(node.attr("p") or 2.0), 64),
        },
    )
    return ctx.emit1(op)


def result_types(node):
    """The type of the result, so that models need not declare it."""
    type_ = node.inputs[0].type
    return [None if type_.shape is None else ValueType(type_.elem, type_.shape[:-1])]


NAME = "com.example.ext:PowerMean"
OPERATORS = Operators({NAME: lower}, {"power_mean": PowerMeanKernel()}, {NAME: result_types})
EXT = Dialect("ext", [PowerMeanOp])
