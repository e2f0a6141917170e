"""`northpole-verify-program`: what a program of cards must obey before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips import Chip
from elk_ir.diagnostics import fail_at
from elk_ir.dialects import northpole
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.northpole.timing import card_of
from elk_ir.passes.convert_icca_to_northpole import tensor_bytes
from elk_ir.passes.icca_support import chip_of
from elk_ir.passes.northpole_place import map_of
from elk_ir.targets.northpole.memory import (
    blocks_of,
    copies_of,
    core_bytes,
    held_by,
    tensors_of,
    working_bytes,
)


class _Verifier:
    def __init__(self, module: ModuleOp):
        self.module, self.program = module, map_of(module)
        self.chip: Chip = chip_of(module)
        self.blocks, self.tensors = blocks_of(module), tensors_of(module)
        self.kinds = {name: op.kind.data for name, op in self.tensors.items()}
        self.source: dict[SSAValue, str] = {}
        self.arrived: dict[SSAValue, str] = {}

    def run(self) -> None:
        ops = northpole.contents(self.program.body)
        stages = [op for op in ops if isinstance(op, northpole.StageOp)]
        if not stages or any(s.body is None for s in stages):
            raise PassFailedException(
                "the stages hold no calls: run convert-icca-to-northpole first"
            )
        for block in self.blocks.values():
            self.check_block(block)
        for op in ops:
            self.check_flow(op)
        for stage in stages:
            self.check_calls(stage)
            self.check_memory(stage)

    # ------------------------------------------------------------------ what crosses

    def check_flow(self, op: Operation) -> None:
        """Nothing is read on a stage or on the host that was not sent there."""
        if isinstance(op, northpole.HostOp):
            self.source.update(dict.fromkeys(op.outs, op.sym_name.data))
        elif isinstance(op, northpole.SendOp):
            self.check_send(op)
        elif isinstance(op, northpole.StageOp):
            name = op.sym_name.data
            for value in op.ins:
                if self.arrived.get(value) != name:
                    fail_at(op, f"stage @{name} reads {_name(value)}, which was not sent there")
            self.source.update(dict.fromkeys(op.outs, name))
            self.check_framebuffer(op)
        elif isinstance(op, northpole.OutputOp):
            self.check_output(op)

    def check_send(self, op: northpole.SendOp) -> None:
        source, target = op.source.root_reference.data, op.target.root_reference.data
        for value in op.ins:
            if self.source.get(value) != source:
                fail_at(op, f"{_name(value)} is sent from @{source}, which does not have it")
        size = sum(tensor_bytes(v.type) for v in op.ins)
        if size != op.bytes.value.data:
            fail_at(op, f"a send of {size:,} bytes says that it is {op.bytes.value.data:,}")
        self.arrived.update(dict.fromkeys(op.outs, target))

    def check_output(self, op: northpole.OutputOp) -> None:
        name = op.target.root_reference.data
        if self.kinds.get(name) is not HbmKind.OUTPUT:
            fail_at(op, f"@{name} is no output of the graph")
        if northpole.HOST not in (self.arrived.get(op.value), self.source.get(op.value)):
            fail_at(op, f"output @{name} was not sent to the host")

    def check_framebuffer(self, op: northpole.StageOp) -> None:
        """What arrives and leaves, twice: one micro-batch moves while another is worked on."""
        size = 2 * sum(tensor_bytes(v.type) for v in (*op.ins, *op.outs))
        available = card_of(self.chip).framebuffer_bytes
        if size > available:
            fail_at(
                op,
                f"stage @{op.sym_name.data}: inputs and outputs of a micro-batch need {size:,}"
                f" bytes, the framebuffer has {available:,} ({size - available:,} too many)",
            )

    # ------------------------------------------------------------------ what runs

    def check_calls(self, stage: northpole.StageOp) -> None:
        for call in stage.calls:
            symbol = call.block.root_reference.data
            block = self.blocks[symbol]
            args = [a.type for a in block.body.block.args[1:]]
            last = block.body.block.last_op
            results = [v.type for v in last.values] if isinstance(last, northpole.YieldOp) else []
            if args != [v.type for v in call.ins] or results != [v.type for v in call.outs]:
                fail_at(call, f"the call does not fit block @{symbol}")

    def check_block(self, block: northpole.BlockOp) -> None:
        for op in northpole.contents(block.body):
            if isinstance(op, northpole.ResidentOp):
                name = op.source.root_reference.data
                if self.kinds.get(name) not in (HbmKind.WEIGHT, HbmKind.STATE):
                    fail_at(op, f"@{name} does not stay on a card")
            if isinstance(op, northpole.AppendOp):
                self.check_append(op)

    def check_append(self, op: northpole.AppendOp) -> None:
        name = op.state.root_reference.data
        if self.kinds.get(name) is not HbmKind.STATE:
            fail_at(op, f"@{name} is no state to append to")
        axis = self.tensors[name].axis
        assert axis is not None
        capacity = shape_dtype(self.tensors[name].type)[0][axis.value.data]
        end = op.start.value.data + shape_dtype(op.entries)[0][axis.value.data]
        if end > capacity:
            fail_at(op, f"@{name} has {capacity} entries, entry {end - 1} is appended")

    # ------------------------------------------------------------------ what stays

    def check_memory(self, stage: northpole.StageOp) -> None:
        """Residents of the fullest core, and beside them the operator that needs most."""
        held = held_by(stage, self.blocks, self.kinds, self.program.precision.data)
        copies = copies_of(self.program)
        fixed, states = core_bytes(stage, held, self.chip.cores_per_chip, copies)
        resident = int((fixed + states).max())
        work = max(
            (
                (working_bytes(op), op.task.data.name)
                for call in stage.calls
                for op in northpole.contents(self.blocks[call.block.root_reference.data].body)
                if isinstance(op, northpole.ExecuteOp)
            ),
            default=(0, ""),
        )
        usable, whole = self.chip.usable_sram_per_core_bytes, self.chip.sram_per_core_bytes
        _fits(stage, "what stays on a core", resident, usable)
        _fits(stage, f"what stays on a core and '{work[1]}'", resident + work[0], whole)


def _fits(stage: northpole.StageOp, what: str, needed: int, available: int) -> None:
    if needed > available:
        fail_at(
            stage,
            f"stage @{stage.sym_name.data}: {what} needs {needed:,} bytes, a core has"
            f" {available:,} ({needed - available:,} too many): fewer users or more cards",
        )


def _name(value: SSAValue) -> str:
    return f"%{value.name_hint}" if value.name_hint else "a value"


def stages_of(module: ModuleOp) -> Sequence[northpole.StageOp]:
    """The stages of a program, in order."""
    return [
        op for op in northpole.contents(map_of(module).body) if isinstance(op, northpole.StageOp)
    ]


@dataclass(frozen=True)
class NorthpoleVerifyProgramPass(ModulePass):
    """Check a program of cards; it changes nothing.

        elk-opt program.mlir -p northpole-verify-program

    Stages and the host read only what was sent to them, sends have the bytes of what they carry,
    calls fit their blocks, framebuffers hold what passes, appends lie inside their caches, and on
    every core the weights and the caches of all users fit, with the buffers of the largest
    operator beside them.
    """

    name = "northpole-verify-program"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _Verifier(op).run()
