"""`icca-carry-preload`: issue a preload of a loop's body one iteration ahead."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp, RepeatOp
from elk_ir.passes.icca_move_preloads import carry_preloads
from elk_ir.passes.icca_support import executes, layer_index, program_of

NAME = "icca-carry-preload"


def _find(module: ModuleOp, label: str) -> tuple[ExecuteOp, RepeatOp]:
    """The execute of that name in a loop, and the loop."""
    named = [e for e in executes(program_of(module)) if e.label.data == label]
    for execute in named:
        if isinstance(loop := execute.parent_op(), RepeatOp):
            return execute, loop
    if named:
        fail_at(named[0], f'{NAME}: "{label}" is not in a layer loop')
    raise PassFailedException(f"{NAME}: no execute is called {label!r}")


def _own_preload(execute: ExecuteOp, operand: int) -> PreloadOp:
    """The preload of one operand, issued in the same iteration."""
    if not 0 <= operand < len(execute.ins):
        fail_at(execute, f'{NAME}: "{execute.label.data}" has operands 0 to {len(execute.ins) - 1}')
    owner = execute.ins[operand].owner
    if not isinstance(owner, PreloadOp) or owner.parent_block() is not execute.parent_block():
        fail_at(
            execute,
            f'{NAME}: operand {operand} of "{execute.label.data}" is not preloaded in this'
            " iteration",
        )
    return owner


def _check_layer(preload: PreloadOp) -> None:
    """A preload of another layer each iteration, or of a tensor that is no stack."""
    layer, _ = layer_index(preload.layer)
    if preload.layer is not None and not isinstance(layer, BlockArgument):
        fail_at(preload, f"{NAME}: the layer of this preload does not follow the loop")


def carry(loop: RepeatOp, execute: ExecuteOp, operand: int, before: ExecuteOp) -> None:
    """Issue one preload of `loop` an iteration ahead; its last iteration comes after the loop."""
    preload = _own_preload(execute, operand)
    if loop.count.value.data < 2:
        fail_at(loop, f"{NAME}: a loop of one iteration has no next one to preload for")
    body = loop.body.block
    if body.get_operation_index(before) <= body.get_operation_index(execute):
        fail_at(
            before,
            f'{NAME}: "{before.label.data}" runs before "{execute.label.data}" has consumed the'
            " last preload: two would be live at once",
        )
    _check_layer(preload)
    carry_preloads(loop, [(preload, before)])


@dataclass(frozen=True)
class IccaCarryPreloadPass(ModulePass):
    """Issue the preload of operand `operand` of the execute `op` one iteration ahead, in front of
    the execute `before` of the same layer loop.

        elk-opt model.mlir -p 'icca-carry-preload{op=q operand=1 before=down}'

    The loop carries the handle: a preload in front of the loop fills it for the first iteration,
    the last iteration is peeled off behind it. `before` must come after `op`, so that at most one
    such preload is live. Invariant: the numbers, and each layer is preloaded once. Offsets of the
    preload are dropped: run icca-allocate afterwards.
    """

    name = NAME

    op: str
    operand: int
    before: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        execute, loop = _find(op, self.op)
        inside = [
            e for e in loop.body.block.ops if isinstance(e, ExecuteOp)
            and e.label.data == self.before
        ]  # fmt: skip
        if not inside:
            fail_at(loop, f"{NAME}: the loop has no execute called {self.before!r}")
        carry(loop, execute, self.operand, inside[-1])
