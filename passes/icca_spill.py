"""`icca-spill`: tensors that are needed again much later wait in HBM instead of on chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips.chip import Chip
from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.icca.attrs import HbmKind, HbmKindAttr
from elk_ir.dialects.icca.ops import ExecuteOp, HbmOp, PreloadOp, ProgramOp, RepeatOp, StoreOp
from elk_ir.dialects.location import copy_location
from elk_ir.dialects.types import shape_dtype
from elk_ir.passes.icca_support import (
    build_execute,
    chip_of,
    hbm_tensors,
    plan_of,
    program_of,
    set_plan,
    symbol,
    tensor_of,
)
from elk_ir.plan.buffers import ALIGNMENT_BYTES, Source
from elk_ir.plan.domain import Phase
from elk_ir.schedule.spill import Resident, choose_spills

SPILLED = "icca.spilled_bytes"
"""Attribute of the module: bytes of tensors that are stored to HBM and fetched again."""


def least_bytes(execute: ExecuteOp, chip: Chip) -> int:
    """What every core holds of an execute's own, whatever its plan: what it preloads, and its
    statistics or results, spread over all cores. Resident operands are those who made them."""
    op = execute.operator()
    total = sum(
        access.read_elements(op.extents) * itemsize(access.dtype)
        for access, source in zip(op.operands, execute.sources, strict=True)
        if source is Source.HBM and access.phase is not Phase.APPLY
    )
    if op.stats:
        total += sum(
            prod(op.extents[d] for d in stat.dims) * itemsize(stat.dtype) for stat in op.stats
        )
    else:
        total += sum(prod(a.shape) * itemsize(a.dtype) for a in op.results)
    return total // chip.cores


def spill(module: ModuleOp, share: float) -> int:
    """Spill what leaves executes too little room; how many tensors went to HBM.

    share: how much others' tensors may take of what an execute leaves free at least. With 1, what
    is spilled would not fit in any plan; copies of operands need room as well. Stores of graph
    outputs move right behind what makes them, so that outputs do not wait on chip for the end of
    the program. Tensors that enter or leave a layer loop, or are inserted into a state, stay.
    """
    program, chip = program_of(module), chip_of(module)
    _store_early(program, hbm_tensors(module))
    # Loops take the place of one execute: what lies on chip beside them lies there all the time.
    steps = [op for op in program.body.block.ops if isinstance(op, ExecuteOp | RepeatOp)]
    number: dict[Operation, int] = {op: i for i, op in enumerate(steps)}
    values: list[SSAValue] = []
    tensors: list[Resident] = []
    for i, op in enumerate(steps):
        for value in op.results:
            values.append(value)
            tensors.append(_resident(value, i, number, chip.cores))
    needs = [max((least_bytes(e, chip) for e in _inside(op)), default=0) for op in steps]
    chosen = choose_spills(tensors, needs, chip.usable_sram_per_core_bytes, share)
    if not chosen:
        return 0
    taken = set(hbm_tensors(module))
    reload: dict[ExecuteOp, dict[int, str]] = {}
    total = 0
    for k, start in chosen.items():
        value = values[k]
        name = _store(value, program, taken)
        shape, dtype = shape_dtype(value.type)
        total += prod(shape) * itemsize(dtype)
        for use in list(value.uses):
            reader = use.operation
            if isinstance(reader, ExecuteOp) and number[reader] >= start:
                reload.setdefault(reader, {})[use.index] = name
    for execute in steps:
        if isinstance(execute, ExecuteOp) and execute in reload:
            _reload(execute, reload[execute])
    module.attributes[SPILLED] = IntegerAttr(total, i64)
    return len(chosen)


def _inside(step: Operation) -> list[ExecuteOp]:
    """An execute itself, or the executes of a loop."""
    if isinstance(step, ExecuteOp):
        return [step]
    return [op for op in step.walk() if isinstance(op, ExecuteOp)]


def _store_early(program: ProgramOp, hbm: Mapping[str, HbmOp]) -> None:
    """Move stores of outputs right behind the execute that makes what they store."""
    for op in list(program.body.block.ops):
        if not isinstance(op, StoreOp) or not isinstance(op.source.owner, ExecuteOp):
            continue
        target = hbm.get(op.target.root_reference.data)
        maker = op.source.owner
        if target is None or target.kind.data is not HbmKind.OUTPUT or op.layer is not None:
            continue
        if maker.parent_block() is program.body.block and maker.next_op is not op:
            op.detach()
            program.body.block.insert_op_after(op, maker)


def _resident(value: SSAValue, made: int, number: Mapping[Operation, int], cores: int) -> Resident:
    """A result of step `made` as the choice of spills sees it."""
    movable = isinstance(value, OpResult) and isinstance(value.op, ExecuteOp)
    uses: set[int] = set()
    for use in value.uses:
        op = use.operation
        if isinstance(op, StoreOp) and op in _block(value).ops:
            after = _next_step(op, number)
            uses.add(made if after is None else after)
            # Stored where others wait for it (a state): until then it stays.
            movable = movable and (after is None or after <= made + 1)
            continue
        while op not in number:
            parent = op.parent_op()
            if parent is None or isinstance(parent, ProgramOp):
                break
            op = parent
        if op not in number:
            continue
        uses.add(number[op])
        if not isinstance(op, ExecuteOp) or use.index >= len(op.ins) or op.entries:
            movable = False
    shape, dtype = shape_dtype(tensor_of(value))
    size = -(-prod(shape) * itemsize(dtype) // cores)
    size = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Resident(size, made, tuple(sorted(uses)), movable)


def _block(value: SSAValue) -> Block:
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent_block()
    assert block is not None
    return block


def _next_step(op: Operation, number: Mapping[Operation, int]) -> int | None:
    """The first step behind `op` in its block."""
    after = op.next_op
    while after is not None and after not in number:
        after = after.next_op
    return None if after is None else number[after]


def _store(value: SSAValue, program: ProgramOp, taken: set[str]) -> str:
    """Store a tensor to one of its own in HBM, right behind what makes it; its name."""
    maker = value.owner
    assert isinstance(maker, ExecuteOp)
    name = symbol(f"{maker.label.data}.spill", taken)
    hbm = HbmOp(
        properties={
            "sym_name": StringAttr(name),
            "kind": HbmKindAttr(HbmKind.SCRATCH),
            "type": value.type,
        }
    )
    copy_location(maker, hbm)
    Rewriter.insert_op(hbm, InsertPoint.before(program))
    store = StoreOp(value, name)
    copy_location(maker, store)
    Rewriter.insert_op(store, InsertPoint.after(maker))
    return name


def _reload(execute: ExecuteOp, names: Mapping[int, str]) -> None:
    """Make an execute fetch some of its operands from HBM."""
    operands = list(execute.ins)
    for index, name in names.items():
        preload = PreloadOp(name, tensor_of(operands[index]))
        copy_location(execute, preload)
        preload.result.name_hint = operands[index].name_hint
        Rewriter.insert_op(preload, InsertPoint.before(execute))
        operands[index] = preload.result
    new = build_execute(
        execute.tile.structured, operands, [None] * len(operands), execute.label.data
    )
    copy_location(execute, new)
    if execute.plan is not None:
        set_plan(new, plan_of(execute))
    for old, value in zip(execute.outs, new.outs, strict=True):
        value.name_hint = old.name_hint
    Rewriter.replace_op(execute, new)


@dataclass(frozen=True)
class IccaSpillPass(ModulePass):
    """Send tensors to HBM that are needed again much later: activations of a training step, say.

        elk-opt model.onnx -p '…,convert-te-to-icca{chip=test-16},icca-spill{share=0.5}'

    Where the tensors that lie on chip take more than `share` of what an execute leaves free at
    least, the one whose next reader is furthest away is stored to a scratch tensor right
    after it was made, and every reader from there on preloads it (`elk_ir/schedule/spill.py`).
    Stores of outputs move right behind what makes them. `icca-schedule` does the same by itself,
    with smaller and smaller shares, if a program does not fit otherwise. The module records the
    bytes that were spilled as `icca.spilled_bytes`. Invariant: the numbers; a program in which
    everything fits only has its outputs stored earlier. Fails on a chip without HBM.
    """

    name = "icca-spill"

    share: float | int = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise PassFailedException(
                f"icca-spill: share is a part of the free SRAM, 0 to 1, not {self.share:g}"
            )
        chip = chip_of(op)
        if chip.hbm is None:
            raise PassFailedException(
                f"icca-spill: chip {chip.name} has no HBM to spill to; choose one that has it"
            )
        spill(op, self.share)
