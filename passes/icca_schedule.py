"""`icca-schedule`: choose plans and the order of preloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.memory.offsets import allocate
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_schedule_model import (
    Policy,
    Scheduling,
    Tables,
    resident_bytes,
    tables_of,
)
from elk_ir.passes.icca_support import chip_of, executes, program_of
from elk_ir.schedule.allocate import Weights
from elk_ir.schedule.inductive import elk_dyn
from elk_ir.schedule.model import Program, Schedule, evaluate
from elk_ir.schedule.static import basic, static

ROUNDS = 16
"""How often a schedule is made again with what the last one left live, before giving up."""

PRICES = (1.0, 0.25, 0.0)
"""What a second of preload beyond the bytes' own costs, in seconds of execution: tried in turn."""


def best_of(policy: Callable[[Program, Weights], Schedule], energy: bool) -> Policy:
    """The best schedule of a policy over the prices, by the evaluation of the whole run."""

    def choose(program: Program) -> Schedule:
        found = [policy(program, Weights(preload=price, energy=energy)) for price in PRICES]
        return min(found, key=lambda schedule: evaluate(program, schedule).time_s)

    return choose


POLICIES: dict[str, Callable[[Program, Weights], Schedule]] = {
    "basic": basic,
    "static": static,
    "elk-dyn": elk_dyn,
}
"""Executable policies by name."""


def schedule_module(
    module: ModuleOp, policy: Policy, *, keep_plans: bool, tables: Tables | None = None
) -> Scheduling:
    """Plans and places of preloads for a module, such that byte addresses exist for all buffers.

    What fragmentation or tensors that live across operators take is found by allocating, and held
    back in another round. The module records the bytes held back for fragmentation as
    `icca.schedule_slack_bytes`. Raises CapacityError.
    """
    capacity = chip_of(module).usable_sram_per_core_bytes
    tables = tables or tables_of(module)
    count = sum(1 for _ in executes(program_of(module)))
    resident, slack = [0] * count, 0
    for round_ in range(ROUNDS):
        attempt = module.clone()
        scheduling = Scheduling(attempt, policy, keep_plans, resident, slack, tables)
        scheduling.run()
        live = liveness(attempt)
        allocation = allocate(live.problem, require_fit=round_ + 1 == ROUNDS)
        if allocation.height_bytes <= capacity:
            _replace_body(module, attempt)
            module.attributes["icca.schedule_slack_bytes"] = IntegerAttr(slack, i64)
            return scheduling
        found = resident_bytes(live, scheduling, count)
        known = [max(a, b) for a, b in zip(resident, found, strict=True)]
        if known == resident:
            # The live bytes fit, their addresses do not.
            slack += max(8, allocation.height_bytes - capacity)
        resident = known
    raise AssertionError("the last round requires a fit")


def _replace_body(module: ModuleOp, attempt: ModuleOp) -> None:
    """Give `module` the operations of its scheduled copy."""
    region = attempt.detach_region(attempt.body)
    for op in list(module.body.block.ops):
        op.detach()
        op.erase(safe_erase=False)
    block = region.block
    for op in list(block.ops):
        op.detach()
        module.body.block.add_op(op)
    region.erase()


@dataclass(frozen=True)
class IccaSchedulePass(ModulePass):
    """Choose a plan for every execute and the place of every preload.

        elk-opt model.mlir -p 'icca-schedule{policy=elk-dyn}'

    Policies: `basic` (the largest execution space that fits beside the next operator's preload,
    which is issued one execute ahead), `static` (the best single split of the SRAM into execution
    and preload space), `elk-dyn` (inductive scheduling with cost-aware allocation). Preloads of a
    layer loop's first operators are issued an iteration ahead where the policy wants it.
    `objective=energy` weighs energy instead of time. `plans=keep` leaves plans that are there as
    they are. Invariant: the numbers; every preload stays in front of its execute, and the result
    fits the chip's SRAM, addresses included. Fails with the operator that fits in no plan.
    """

    name = "icca-schedule"

    policy: str = "basic"
    plans: str = "choose"
    objective: str = "time"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.policy not in POLICIES:
            raise PassFailedException(
                f"icca-schedule: no policy is called {self.policy!r}; there are"
                f" {', '.join(POLICIES)}"
            )
        if self.plans not in ("choose", "keep"):
            raise PassFailedException("icca-schedule: plans is choose or keep")
        if self.objective not in ("time", "energy"):
            raise PassFailedException("icca-schedule: objective is time or energy")
        policy = best_of(POLICIES[self.policy], self.objective == "energy")
        schedule_module(op, policy, keep_plans=self.plans == "keep")
        op.attributes["icca.policy"] = StringAttr(self.policy)
