"""`icca-make-resident`: programs for a chip without HBM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import device_model
from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp, RepeatOp
from elk_ir.errors import CapacityError
from elk_ir.memory.offsets import allocate
from elk_ir.passes.icca_fit import estimated_changes
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_support import chip_of, executes, program_of, set_plan
from elk_ir.plan.buffers import PHASES, Source
from elk_ir.plan.enumerate import enumerate_plans
from elk_ir.plan.plan import Plan
from elk_ir.schedule.basic import Step
from elk_ir.schedule.resident import choose_resident

ROUNDS = 8


def _still(plans: Sequence[Plan], sources: Sequence[Source]) -> list[int]:
    """Plans in which nothing that stays on chip rotates: a ring would leave it displaced."""
    return [
        i
        for i, plan in enumerate(plans)
        if all(
            max(x, default=1) == 1
            for x, s in zip(plan.execute, sources, strict=True)
            if s is Source.HBM
        )
    ]


def _candidates(execute: ExecuteOp, chip: Chip) -> tuple[Step, list[Plan]]:
    """What an execute can choose from, and the least that a plan without rings needs."""
    operator, sources = execute.operator(), execute.sources
    cost = device_model(chip)
    front = enumerate_plans(operator, chip, sources, cost)
    plans = list(front)
    still = _still(plans, sources)
    smallest = 0
    if not still:
        every = enumerate_plans(operator, chip, sources, cost, budget_bytes=1 << 62)
        rows = _still(list(every), sources)
        smallest = int(every.execute_bytes[rows].min(initial=1 << 62))
    rows = np.asarray(still, dtype=np.int64)
    step = Step(
        execute.label.data,
        front.execute_bytes[rows],
        front.preload_bytes[rows],
        front.execute_cycles[rows],
        smallest_bytes=smallest,
    )
    return step, [plans[i] for i in still]


def make_resident(module: ModuleOp) -> None:
    """Choose plans and turn every preload into initialisation. Raises CapacityError."""
    program, chip = program_of(module), chip_of(module)
    if any(isinstance(op, RepeatOp) for op in program.walk()):
        raise PassFailedException(
            "icca-make-resident: a chip without HBM has no layer to fetch in a loop; compile with"
            " the layers unrolled (leave te-roll-layers out)"
        )
    todo = list(executes(program))
    candidates = [_candidates(e, chip) for e in todo]
    first = program.body.block.first_op
    for op in list(program.body.block.ops):
        if isinstance(op, PreloadOp):
            op.properties["init"] = UnitAttr()
            if op is not first and first is not None:
                op.detach()
                program.body.block.insert_op_before(op, first)
    capacity = chip.usable_sram_per_core_bytes
    beside, slack = [0] * len(todo), 0
    for _ in range(ROUNDS):
        steps = [
            replace(step, resident_bytes=b + slack)
            for (step, _), b in zip(candidates, beside, strict=True)
        ]
        for execute, (_, plans), choice in zip(
            todo, candidates, choose_resident(steps, capacity), strict=True
        ):
            if execute.plan is None or execute.plan.plan != plans[choice]:
                set_plan(execute, plans[choice])
        live = liveness(module)
        height = allocate(live.problem).height_bytes
        if height <= capacity:
            return
        before = list(beside)
        for i, execute in enumerate(todo):
            base = live.times[execute]
            own = {p.buffer.name for p in live.placed if any(e is execute for e, _, _ in p.uses)}
            for time in range(base, base + PHASES):
                other = sum(
                    p.buffer.size_bytes
                    for p in live.placed
                    if p.buffer.name not in own
                    and p.uses[0][1] != "preload"
                    and p.buffer.start <= time < p.buffer.end
                )
                beside[i] = max(beside[i], other)
        if beside == before:
            slack += max(8, height - capacity)
    allocate(liveness(module).problem, require_fit=True)


@dataclass(frozen=True)
class IccaMakeResidentPass(ModulePass):
    """Schedule a program for a chip without HBM: preloads become initialisation.

        elk-opt model.mlir -p 'convert-te-to-icca{chip=ipu-mk2},icca-make-resident,icca-allocate'

    Every preload is marked `init` and moves to the start of the program; its buffer lives for the
    whole program. Weights, inputs and states are put on chip by the host before the program runs,
    outputs are fetched after it. Plans are chosen so that all of them fit together. Invariant: the
    numbers; what stays on chip is where it was when the program ends, so it can run again.
    """

    name = "icca-make-resident"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        try:
            make_resident(op)
        except CapacityError as error:
            needed = error.needed_bytes
            error.suggest(lambda: estimated_changes(chip_of(op), needed))
            raise
        op.attributes["icca.policy"] = StringAttr("resident")
