"""`te-mask-state`: attention over a state masks the entries that are not filled yet."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.dialects.te.ops import AttentionOp
from elk_ir.dialects.te.structure import AppendOp, GlobalOp


@dataclass(frozen=True)
class TeMaskStatePass(ModulePass):
    """Tell every attention whose keys are a state which state that is.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-fuse-attention,te-make-state,te-mask-state'

    A program is compiled for a number of filled entries; run with fewer, the missing ones lie in
    front of the filled ones and must not be attended to. Invariant: the numbers of a run in which
    every entry is filled; nothing but the `state` property of te.attention changes.
    """

    name = "te-mask-state"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        states = {g.sym_name.data: g for g in op.body.block.ops if isinstance(g, GlobalOp)}
        for attention in op.walk():
            if not isinstance(attention, AttentionOp):
                continue
            append = attention.ins[1].owner
            if not isinstance(append, AppendOp):
                continue
            axis = states[append.state.root_reference.data].axis
            domain = attention.domain.data
            if axis is None:
                continue
            kv = domain.operands[1][axis.value.data].simple_dim
            if kv in attention.operator().reductions:
                attention.properties["state"] = append.state
