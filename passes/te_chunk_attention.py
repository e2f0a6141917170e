"""`te-chunk-attention`: attention over a batch becomes several attentions over parts of it.

One attention preloads the keys and values of the whole batch, and they stay until it has ended. At
large batches they fill the SRAM, so that nothing is fetched while attention runs, or do not fit.
Cut along the batch, every chunk is an operator of its own: its maps read a part of the cached keys
and values, its preloads fetch that part from HBM, and the next chunk's may land while it executes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.te import AppendOp, AttentionOp, ConcatOp, GlobalOp, LoadOp
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.types import tensor_type
from elk_ir.passes.te_support import (
    chip_for,
    dtype_of_value,
    globals_of,
    owner,
    rebuilt,
    replace_op,
    shape_of,
    structured_ops,
)
from elk_ir.plan.chunks import chunks_for, ranges
from elk_ir.plan.domain import AxisExpr, DimKind, Operator

MISSING = "te-chunk-attention: name a chip with chip=NAME, or how many with chunks=N"

KEY, VALUE = 1, 2


def batch_dim(op: AttentionOp) -> int | None:
    """The outermost parallel dimension of more than one point that query, keys, values and result
    all have, the result as a whole axis; None without one."""
    operator = op.operator()
    for d, dim in enumerate(operator.dims):
        if dim.kind is not DimKind.PARALLEL or dim.extent < 2:
            continue
        if d in operator.results[0].simple and all(d in a.dims for a in operator.operands[:3]):
            return d
    return None


def _in_hbm(value: SSAValue, table: dict[str, GlobalOp]) -> bool:
    """Whether a tensor is preloaded: the filled part of a state, a weight, an input."""
    op = owner(value)
    if isinstance(op, AppendOp):
        length = table[op.state.root_reference.data].length
        return length is not None and length.value.data > 0
    if op is None:
        assert isinstance(value.owner, Block)
        return isinstance(value.owner.parent_op(), FuncOp)
    return isinstance(op, LoadOp)


def _preload_bytes(operator: Operator) -> int:
    """Bytes of the keys and values that an attention reads."""
    return sum(
        a.read_elements(operator.extents) * itemsize(a.dtype)
        for a in (operator.operands[KEY], operator.operands[VALUE])
    )


def _shifted(axes: Map, d: int, start: int) -> Map:
    """`axes` with d + start in the place of d."""
    return tuple(
        AxisExpr(a.terms, a.offset + start * sum(k for t, k in a.terms if t == d)) for a in axes
    )


def _chunk(op: AttentionOp, d: int, chunks: int) -> None:
    """Put `chunks` attentions over parts of dimension d, and their concat, in the place of `op`."""
    own = op.domain.data
    axis = op.operator().results[0].simple[d]
    shape, dtype = list(shape_of(op.outs[0])), dtype_of_value(op.outs[0])
    block = op.parent
    assert block is not None
    parts: list[SSAValue] = []
    for start, size in ranges(own.dims[d].extent, chunks):
        dims = tuple(replace(x, extent=size) if i == d else x for i, x in enumerate(own.dims))
        maps = tuple(_shifted(axes, d, start) for axes in own.operands)
        shape[axis] = size
        type_ = tensor_type(shape, dtype)
        part = rebuilt(op, op.ins, Domain(dims, maps, own.results), [type_])
        block.insert_op_before(part, op)
        parts.append(part.outs[0])
    joined = ConcatOp.along(parts, axis)
    joined.location = op.location
    replace_op(op, joined)


@dataclass(frozen=True)
class TeChunkAttentionPass(ModulePass):
    """Cut attention whose keys and values come from HBM into chunks along the batch.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,te-chunk-attention{chunks=4}'

    `chunks` is how many, 1 to leave attention whole. Without it the chip decides (the one that
    the module names, or `chip=NAME`): attention whose keys and values take more than half of the
    SRAM is cut into chunks of at most a third (`elk_ir/plan/chunks.py`). Invariant: the numbers,
    to the bit where each chunk is computed as the whole was. Nothing changes but te.attention:
    states are appended to as a whole, and every chunk reads its part of what that yields.
    """

    name = "te-chunk-attention"

    chunks: int | None = None
    chip: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.chunks is not None and self.chunks < 1:
            raise PassFailedException(
                f"te-chunk-attention: {self.chunks} chunks are no attention; 1 leaves it whole"
            )
        chip = chip_for(op, self.chip, MISSING) if self.chunks is None else None
        if chip is not None and chip.hbm is None:
            return
        table = globals_of(op)
        for attention in structured_ops(op):
            if not isinstance(attention, AttentionOp):
                continue
            d = batch_dim(attention)
            if d is None or not all(_in_hbm(attention.ins[v], table) for v in (KEY, VALUE)):
                continue
            count = self.chunks or 1
            if chip is not None:
                operator = attention.operator()
                sram = chip.cores * chip.usable_sram_per_core_bytes
                count = chunks_for(_preload_bytes(operator), operator.extents[d], sram)
            if count > 1:
                _chunk(attention, d, count)
