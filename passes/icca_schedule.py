"""`icca-schedule`: choose plans and the order of preloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp, RepeatOp
from elk_ir.memory.offsets import allocate
from elk_ir.passes.icca_liveness import Liveness, liveness
from elk_ir.passes.icca_support import chip_of, plan_of, program_of, set_plan
from elk_ir.plan.buffers import PHASES, execute_buffers, peak_bytes
from elk_ir.plan.enumerate import enumerate_plans, smallest_plan
from elk_ir.plan.plan import Plan
from elk_ir.schedule.basic import Step, choose_basic

ROUNDS = 12
"""How often plans are chosen again with what the last choice left live, before giving up."""


@dataclass
class _Candidate:
    """An execute and its plans."""

    execute: ExecuteOp
    step: Step
    plan: Callable[[int], Plan]


def _fixed(execute: ExecuteOp) -> _Candidate:
    """The single plan that an execute already has."""
    operator, plan, sources = execute.operator(), plan_of(execute), execute.sources
    buffers = execute_buffers(operator, plan, sources, (False,) * len(sources))
    preload = sum(b.size_bytes for b in buffers if b.role == "preload")
    one = np.asarray([peak_bytes(buffers)], dtype=np.int64)
    step = Step(execute.label.data, one, np.asarray([preload]), np.zeros(1))
    return _Candidate(execute, step, lambda _: plan)


def _enumerated(execute: ExecuteOp, chip: Chip, cost: CostModel) -> _Candidate:
    """All plans worth knowing of an execute."""
    front = enumerate_plans(execute.operator(), chip, execute.sources, cost)
    smallest = 0
    if len(front) == 0:
        _, smallest = smallest_plan(execute.operator(), chip, execute.sources, cost)
    step = Step(
        execute.label.data,
        front.execute_bytes,
        front.preload_bytes,
        front.execute_cycles,
        smallest_bytes=smallest,
    )
    return _Candidate(execute, step, front.plan)


def _blocks(block: Block) -> list[list[ExecuteOp]]:
    """Runs of executes with nothing but preloads and stores between them, in program order."""
    runs: list[list[ExecuteOp]] = [[]]
    for op in block.ops:
        if isinstance(op, ExecuteOp):
            runs[-1].append(op)
        elif isinstance(op, RepeatOp):
            runs += _blocks(op.body.block)
            runs.append([])
    return [run for run in runs if run]


def _preloads(execute: ExecuteOp) -> list[PreloadOp]:
    return [v.owner for v in execute.ins if isinstance(v.owner, PreloadOp)]


def _resident(live: Liveness, run: list[ExecuteOp]) -> list[int]:
    """Per execute of a run, the most bytes that belong to no buffer of it, nor to the preload of
    the next one, while it runs."""
    found: list[int] = []
    for i, execute in enumerate(run):
        base = live.times[execute]
        following = run[i + 1] if i + 1 < len(run) else None
        most = 0
        spans = [
            (p.buffer.size_bytes, p.buffer.intervals(live.problem.loops))
            for p in live.placed
            if not any(
                e is execute or (e is following and role == "preload") for e, role, _ in p.uses
            )
        ]
        for time in range(base, base + PHASES):
            most = max(
                most, sum(size for size, times in spans if any(a <= time < b for a, b in times))
            )
        found.append(most)
    return found


def schedule_basic(module: ModuleOp, keep_plans: bool) -> None:
    """Plans by `choose_basic` and preloads one execute ahead. Raises CapacityError."""
    program, chip = program_of(module), chip_of(module)
    cost = device_model(chip)
    runs = [
        [
            _fixed(e) if keep_plans and e.plan is not None else _enumerated(e, chip, cost)
            for e in run
        ]
        for run in _blocks(program.body.block)
    ]
    # A first choice of any plan at all, so that lifetimes and resident sizes are known.
    capacity = chip.usable_sram_per_core_bytes
    resident = [[0] * len(run) for run in runs]
    slack = 0
    for _ in range(ROUNDS):
        for run, bytes_ in zip(runs, resident, strict=True):
            steps = [
                replace(c.step, resident_bytes=b + slack) for c, b in zip(run, bytes_, strict=True)
            ]
            choice = choose_basic(steps, capacity)
            for i, candidate in enumerate(run):
                plan = candidate.plan(choice.plans[i])
                if candidate.execute.plan is None or candidate.execute.plan.plan != plan:
                    set_plan(candidate.execute, plan)
                ahead = run[i - 1].execute if choice.hoisted[i] else candidate.execute
                for preload in _preloads(candidate.execute):
                    if preload.next_op is not ahead:
                        block = ahead.parent_block()
                        assert block is not None
                        preload.detach()
                        block.insert_op_before(preload, ahead)
        live = liveness(module)
        allocation = allocate(live.problem)
        if allocation.height_bytes <= capacity:
            return
        # What is live beside each operator is known now; what fragmentation costs is held back.
        previous = resident
        resident = [
            [
                max(old, new)
                for old, new in zip(_resident(live, [c.execute for c in run]), before, strict=True)
            ]
            for run, before in zip(runs, previous, strict=True)
        ]
        if resident == previous:
            slack += max(8, allocation.height_bytes - capacity)
    allocate(liveness(module).problem, require_fit=True)


@dataclass(frozen=True)
class IccaSchedulePass(ModulePass):
    """Choose a plan for every execute and the place of every preload.

        elk-opt model.mlir -p 'icca-schedule{policy=basic}'

    Policies: `basic` (the largest execution space that fits beside the next operator's preload,
    which is issued one execute ahead). `plans=keep` leaves plans that are there as they are.
    Invariant: the numbers; every preload stays in front of its execute, and the result fits the
    chip's SRAM, addresses included. Fails with the operator that fits in no plan.
    """

    name = "icca-schedule"

    policy: str = "basic"
    plans: str = "choose"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.policy != "basic":
            raise PassFailedException(
                f"icca-schedule: no policy is called {self.policy!r}; there is basic"
            )
        if self.plans not in ("choose", "keep"):
            raise PassFailedException("icca-schedule: plans is choose or keep")
        schedule_basic(op, self.plans == "keep")
        op.attributes["icca.policy"] = StringAttr(self.policy)
