"""`icca-carry-preload`: issue a preload of a loop's body one iteration ahead."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import ExecuteOp, LayerOp, PreloadOp, RepeatOp, YieldOp
from elk_ir.dialects.location import copy_location
from elk_ir.passes.icca_support import executes, program_of, yield_of

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


def _copy_preload(preload: PreloadOp, layer: SSAValue | None) -> PreloadOp:
    """The same preload of another layer, without an offset."""
    assert isinstance(preload.result.type, HandleType)
    rows = None if preload.rows is None else preload.rows.root_reference.data
    new = PreloadOp(preload.source.root_reference.data, preload.result.type.tensor, layer, rows)
    copy_location(preload, new)
    new.result.name_hint = preload.result.name_hint
    return new


def _ahead(preload: PreloadOp) -> int:
    """By how much the layer of a preload is ahead of the loop's counter."""
    offset, layer = 0, preload.layer
    while layer is not None and isinstance(layer.owner, LayerOp):
        offset += layer.owner.offset.value.data
        layer = layer.owner.base_layer
    if not isinstance(layer, BlockArgument):
        fail_at(preload, f"{NAME}: the layer of this preload does not follow the loop")
    return offset


def carry(loop: RepeatOp, execute: ExecuteOp, operand: int, before: ExecuteOp) -> RepeatOp:
    """`loop` with one preload issued an iteration ahead; its last iteration comes after it."""
    preload = _own_preload(execute, operand)
    first, count = loop.first.value.data, loop.count.value.data
    if count < 2:
        fail_at(loop, f"{NAME}: a loop of one iteration has no next one to preload for")
    block = loop.parent_block()
    body = loop.body.block
    assert block is not None
    if body.get_operation_index(before) <= body.get_operation_index(execute):
        fail_at(
            before,
            f'{NAME}: "{before.label.data}" runs before "{execute.label.data}" has consumed the'
            " last preload: two would be live at once",
        )

    def layer(value: int, base: SSAValue | None) -> list[LayerOp]:
        if preload.layer is None:
            return []
        op = LayerOp(value + _ahead(preload), base)
        copy_location(preload, op)
        return [op]

    def issue(where: Block, anchor: Operation, layers: list[LayerOp]) -> PreloadOp:
        new = _copy_preload(preload, layers[0].result if layers else None)
        where.insert_ops_before([*layers, new], anchor)
        return new

    prologue = issue(block, loop, layer(first, None))
    # The last iteration, peeled, before the body changes.
    last = Block(arg_types=[a.type for a in body.args])
    peeled = Region(last)
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, last.args, strict=True))
    for op in body.ops:
        last.add_op(op.clone(mapping))
    _copy_hints(body, last)

    # The loop itself: the handle arrives as an argument and is issued again in front of `before`.
    arg = body.insert_arg(preload.result.type, len(body.args))
    arg.name_hint = preload.result.name_hint
    following = issue(body, before, layer(1, body.args[0]) if preload.layer is not None else [])
    preload.result.replace_all_uses_with(arg)
    preload.detach()
    preload.erase()
    old = yield_of(loop)
    new_yield = YieldOp(*old.values, following.result)
    copy_location(old, new_yield)
    body.insert_op_before(new_yield, old)
    old.detach()
    old.erase()
    new = RepeatOp(first, count - 1, [*loop.inits, prologue.result], loop.detach_region(loop.body))
    copy_location(loop, new)
    block.insert_op_before(new, loop)
    for out, known in zip(new.outs, loop.outs, strict=False):
        out.name_hint = known.name_hint

    # Inline the peeled iteration: its arguments are what the loop carried out.
    counter = LayerOp(first + count - 1)
    copy_location(loop, counter)
    block.insert_op_before(counter, loop)
    for inner, outer in zip(last.args, [counter.result, *new.outs[:-1]], strict=True):
        inner.replace_all_uses_with(outer)
    target = _twin(body, last, execute)
    assert isinstance(target, ExecuteOp)
    own = _own_preload(target, operand)
    own.result.replace_all_uses_with(new.outs[-1])
    own.detach()
    own.erase()
    results = last.last_op
    assert isinstance(results, YieldOp)
    for out, value in zip(loop.outs, list(results.values), strict=True):
        out.replace_all_uses_with(value)
    results.detach()
    results.erase()
    for op in list(last.ops):
        op.detach()
        block.insert_op_before(op, loop)
    peeled.erase()
    loop.detach()
    loop.erase()
    return new


def _copy_hints(source: Block, target: Block) -> None:
    for a, b in zip(source.walk(), target.walk(), strict=True):
        for old, new in zip(a.results, b.results, strict=True):
            new.name_hint = old.name_hint


def _twin(body: Block, copy: Block, execute: ExecuteOp) -> Operation:
    """The copy of `execute`: the same number among the executes of its name."""
    same = [o for o in body.ops if isinstance(o, ExecuteOp) and o.label == execute.label]
    twins = [o for o in copy.ops if isinstance(o, ExecuteOp) and o.label == execute.label]
    return twins[same.index(execute)]


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
