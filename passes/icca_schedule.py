"""`icca-schedule`: choose plans and the order of preloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.icca.ops import RepeatOp
from elk_ir.errors import CapacityError
from elk_ir.memory.lifetimes import Problem
from elk_ir.memory.offsets import allocate, loop_buffers
from elk_ir.passes.icca_fit import ChipChanges, fits_bare, set_smallest_plans
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_schedule_model import (
    Scheduling,
    Tables,
    resident_bytes,
    tables_of,
)
from elk_ir.passes.icca_spill import SPILLED, spill
from elk_ir.passes.icca_support import chip_of, executes, program_of
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.passes.icca_unroll_layers import unroll_layers
from elk_ir.report_json import hbm_footprint_bytes
from elk_ir.schedule.policies import EXECUTABLE, Effort, Policy, Solved, policy
from elk_ir.schedule.search import STEPS, STEPS_PER_SECOND
from elk_ir.sim.run import simulate

POLICIES = EXECUTABLE
"""Executable policies by name, the best one last."""

ALLOCATION_S = 1.0
"""What one attempt to find addresses may cost, in the allocator's budget."""

ROUNDS = 16
"""How often a schedule is made again with what the last one left live, before giving up."""

MARGINS = 4
"""How often schedules are asked for addresses before bytes are held back."""

RETRIES = 7
"""Schedules that are made with less held back, once one has got addresses."""

RETRIED_EXECUTES = 7 * 64
"""Executes of all of these together, but for one retry: long programs take long to schedule."""

LAYERS = 2
"""Layers in the body of a loop that is unrolled for addresses."""

FREE = 2e-3
"""By this part of its time an unrolled loop may be slower than one without addresses before other
ways are tried."""

POOR = 2e-2
"""By this part of its time it may be slower before what is expensive is tried."""

WORTH = 1 / 32
"""From this part of the SRAM on, what is held back for fragmentation is worth retrying."""


SPILL_SHARES = (0.75, 0.5, 0.25, 0.0)
"""What tensors of others may take of the SRAM that an execute leaves free at least, tried in turn
when a program does not fit."""


def schedule_module(
    module: ModuleOp,
    policy: Policy,
    *,
    keep_plans: bool,
    tables: Tables | None = None,
    retries: bool = False,
    bare_fits: bool = False,
    unroll: bool = False,
) -> Scheduling:
    """Plans and places of preloads for a module, such that byte addresses exist for all buffers.

    retries: try the ways to addresses that `_Rounds` has, and keep the fastest schedule. unroll:
    loops may be unrolled where one layer has no addresses. The module records the bytes held back
    as `icca.schedule_slack_bytes`, and those that are held back outside of loops only as
    `icca.schedule_outside_slack_bytes`. bare_fits: see `Scheduling`; some amount then leads to
    addresses. Raises CapacityError.
    """
    rounds = _Rounds(module, policy, keep_plans, tables or tables_of(module), retries, bare_fits)
    best = _unrolled_or_not(rounds) if unroll else rounds.fastest()
    _replace_body(module, best.module)
    if not best.separate:
        module.attributes["icca.schedule_slack_bytes"] = IntegerAttr(best.slack_bytes, i64)
    if best.outside_bytes:
        held = IntegerAttr(best.outside_bytes, i64)
        module.attributes["icca.schedule_outside_slack_bytes"] = held
    return best


def _unrolled_or_not(rounds: _Rounds) -> Scheduling:
    """The fastest that `rounds`, or the same with loops unrolled, lead to: loops are unrolled where
    one layer has no addresses of its own accord, and other ways are tried where that is much
    slower than a schedule without addresses. Raises CapacityError."""
    first, free_s = rounds.until_fragmented()
    if first is not None:
        return rounds.fastest(first)
    wide = _unrolled(rounds.module)
    if wide is None:
        return rounds.fastest()
    best: Scheduling | None = None
    with suppress(CapacityError):  # then one layer is left to try
        best = replace(rounds, module=wide, enough_s=free_s * (1.0 + FREE)).fastest()
    if best is not None and best.time_s <= free_s * (1.0 + POOR):
        return best
    try:
        other = rounds.fastest()
    except CapacityError:
        if best is None:
            raise
        return best
    return other if best is None or other.time_s < best.time_s else best


def _unrolled(module: ModuleOp) -> ModuleOp | None:
    """A copy with two layers in the bodies of its loops, if that leaves them at least two turns."""
    loops = [o for o in program_of(module).walk() if isinstance(o, RepeatOp)]
    if not loops or min(o.count.value.data for o in loops) < 2 * LAYERS:
        return None
    copy = module.clone()
    return copy if unroll_layers(copy, LAYERS) == len(loops) else None


class _FragmentedError(Exception):
    """A loop has room for its bytes but no addresses; `time_s` of a schedule without them."""

    def __init__(self, time_s: float) -> None:
        super().__init__()
        self.time_s = time_s


@dataclass
class _Rounds:
    """Schedules of a module, made again with what the last one has taught until addresses exist.

    What tensors that live across operators take is found by allocating, and charged in another
    round. If then there is room but are no addresses, there are three ways. If loops have some, and
    only what is around them has none beside what they carry, bytes are held back outside of loops
    (`around`). Schedules of loops may be asked to have some in the scheduler's own model
    (`elk_ir.schedule.pack`), with a margin that grows with what the allocator still lacks (`ask`).
    Where that leads nowhere, bytes are held back from every operator. What is held back overshoots,
    and less of it is not always faster or harder to place, so with `retries` amounts between the
    last two are tried.
    """

    module: ModuleOp
    policy: Policy
    keep_plans: bool
    tables: Tables
    retries: bool
    bare_fits: bool
    enough_s: float = 0.0
    """Once a schedule takes no more, no other is looked for."""

    def __post_init__(self) -> None:
        self.capacity = chip_of(self.module).usable_sram_per_core_bytes
        self.count = sum(1 for _ in executes(program_of(self.module)))
        self.heights: dict[Problem, int] = {}

    def height_bytes(self, problem: Problem) -> int:
        """What an allocation takes. Those of earlier rounds are known: many end in the same
        buffers, and to look for addresses in vain takes long."""
        if problem not in self.heights:
            self.heights[problem] = allocate(problem, time_budget_s=ALLOCATION_S).height_bytes
        return self.heights[problem]

    def scheduled(self, resident: Sequence[int], held: _Held) -> Scheduling:
        """One schedule."""
        made = Scheduling(
            self.module.clone(),
            self.policy,
            self.keep_plans,
            resident,
            held.slack,
            self.tables,
            self.bare_fits,
            held.addresses,
            held.outside,
        )
        made.run()
        return made

    def fastest(self, first: Scheduling | None = None) -> Scheduling:
        """The fastest schedule with addresses; with `retries` of all ways to them. first: where
        the first way leads, if that is known. Raises CapacityError."""
        if first is None:
            try:
                first = self.run(ask=True, around=True)
            except CapacityError:
                first = self.run(ask=True, around=False)
        poor = first.time_s > self.enough_s * (1.0 + POOR) > 0.0
        if first.separate or not (self.retries or poor):
            return first
        best = first
        ways: list[tuple[bool, bool]] = []
        if first.addresses_bytes is not None:
            ways.append((False, True))
        if first.outside_bytes:
            ways.append((True, False))
        while ways and best.time_s > self.enough_s:
            ask, around = ways.pop()
            with suppress(CapacityError):
                other = self.run(ask=ask, around=around)
                if other.outside_bytes and not ask:
                    ways.append((False, False))
                if other.time_s < best.time_s:
                    best = other
        return best

    def until_fragmented(self) -> tuple[Scheduling | None, float]:
        """What `run` does as long as loops have addresses without being asked for them; None where
        they have not, and the time of the schedule that has room for all of its bytes then."""
        try:
            return self.run(ask=True, around=True, loops=False), 0.0
        except _FragmentedError as error:
            return None, error.time_s
        except CapacityError:
            return None, 0.0

    def run(self, *, ask: bool, around: bool, loops: bool = True) -> Scheduling:
        """A schedule with addresses. loops: go on when loops have none. Raises CapacityError, and
        _FragmentedError."""
        resident = [0] * self.count
        held = before = _Held()
        margins = _Margins(self.capacity)
        for round_ in range(ROUNDS):
            scheduling = self.scheduled(resident, held)
            if scheduling.separate:
                # A reference machine, whose programs are timed but have no addresses.
                return scheduling
            live = liveness(scheduling.module)
            excess = self.height_bytes(live.problem) - self.capacity
            if excess <= 0:
                return self.retried(scheduling, resident, before, held)
            if round_ + 1 == ROUNDS:
                allocate(live.problem, time_budget_s=ALLOCATION_S, require_fit=True)
            needed = resident_bytes(live, scheduling, self.count)
            known = [max(a, b) for a, b in zip(resident, needed, strict=True)]
            if known == resident:
                # The live bytes fit, their addresses do not. A few bytes too many each time would
                # use up the rounds.
                late = max(0, round_ - ROUNDS // 2)
                step = max(8, excess, late * self.capacity // ROUNDS)
                before = held
                fit = around and self.loops_fit(live.problem)
                if not fit and not loops:
                    raise _FragmentedError(scheduling.time_s)
                if fit:
                    held = replace(held, outside=held.outside + step)
                elif ask and margins.grows(excess, scheduling):
                    held = replace(held, addresses=margins.addresses_bytes)
                else:
                    held = replace(held, addresses=None, slack=held.slack + step)
            resident = known
        raise AssertionError("the last round raises CapacityError")

    def retried(
        self, best: Scheduling, resident: Sequence[int], before: _Held, held: _Held
    ) -> Scheduling:
        """The fastest schedule with addresses of those with amounts between the last two."""
        steps = held.slack - before.slack, held.outside - before.outside
        if not self.retries or max(steps) <= 0 or max(held.slack, held.outside) <= self.worth:
            return best
        tries = max(1, min(RETRIES, RETRIED_EXECUTES // max(1, self.count)))
        for part in range(1, tries + 1):
            if best.time_s <= self.enough_s:
                break
            slack, outside = (step * part // (tries + 1) // 8 * 8 for step in steps)
            less = replace(held, slack=before.slack + slack, outside=before.outside + outside)
            with suppress(CapacityError):
                other = self.scheduled(resident, less)
                if other.time_s < best.time_s:
                    height = self.height_bytes(liveness(other.module).problem)
                    best = other if height <= self.capacity else best
        return best

    def loops_fit(self, problem: Problem) -> bool:
        """Whether what lives in loops has addresses, if it were not for the rest of the program."""
        within, around = loop_buffers(problem)
        if not within or not around:
            return False
        return self.height_bytes(replace(problem, buffers=within)) <= self.capacity

    @property
    def worth(self) -> float:
        """Bytes from which on less is tried."""
        return WORTH * self.capacity


@dataclass(frozen=True)
class _Held:
    """What a round holds back: bytes of every operator and outside of loops, and within how many
    bytes loops are asked to have addresses."""

    slack: int = 0
    outside: int = 0
    addresses: int | None = None


@dataclass
class _Margins:
    """What the scheduler's own model of addresses leaves free, round by round."""

    capacity_bytes: int
    addresses_bytes: int | None = None
    tries: int = 0

    def grows(self, excess_bytes: int, scheduling: Scheduling) -> bool:
        """Ask for addresses, or for lower ones than those that were too high by `excess_bytes`.
        False, and nothing asked for any more, where that has not helped."""
        loops = any(program.periodic for program, _ in scheduling.schedules)
        if not loops or self.tries == MARGINS or scheduling.without_addresses:
            self.addresses_bytes, self.tries = None, MARGINS
            return False
        if self.addresses_bytes is None:
            self.addresses_bytes = self.capacity_bytes
        else:
            self.addresses_bytes -= max(8, excess_bytes)
        self.tries += 1
        return True


def schedule_by_name(
    module: ModuleOp,
    name: str,
    *,
    keep_plans: bool = False,
    energy: bool = False,
    effort: Effort | None = None,
    tables: Tables | None = None,
    solved: Solved | None = None,
) -> Scheduling:
    """`schedule_module` with a policy by name. solved: what calls with the same tables have found.

    For `search`, which chooses by the scheduler's model, the programs of all other policies, and
    its own without unrolled loops, are simulated beside its own and the fastest is kept: the model
    can be off (by 9 % on one program), and where fragmentation took room the search has begun again
    from other plans than they. A program that does not fit is tried again with more and more of its
    tensors spilled to HBM (`icca-spill`), and at last in the smallest plans of all operators.
    Raises the first CapacityError if none fits; its message then says what would.
    """
    tables = tables or tables_of(module)

    refusal: CapacityError | None = None
    for candidate, bare in _attempts(module, keep_plans, tables):
        keep = keep_plans or bare
        try:
            scheduling = _schedule_by_name(
                candidate, name, keep, energy, effort, tables, solved, bare_fits=bare
            )
        except CapacityError as error:
            refusal = refusal or error
            continue
        if candidate is not module:
            _replace_body(module, candidate)
            module.attributes |= candidate.attributes
        return scheduling
    assert refusal is not None
    refusal.suggest(ChipChanges(module, tables, refusal))
    raise refusal


def _attempts(
    module: ModuleOp, keep_plans: bool, tables: Tables
) -> Iterator[tuple[ModuleOp, bool]]:
    """What to schedule in turn until something fits, and whether it has the smallest plans, which
    are kept and are known to fit by themselves."""
    tried: list[ModuleOp] = []
    for candidate in _candidates(module):
        yield candidate, False
        tried.append(candidate)
    if keep_plans or tables.chip.preload_sram == "separate":
        return
    for candidate in dict.fromkeys((tried[0], tried[-1])):
        smallest = candidate.clone()
        if set_smallest_plans(smallest, tables) and fits_bare(smallest):
            yield smallest, True


def _candidates(module: ModuleOp) -> Iterator[ModuleOp]:
    """A module as it is, unless it can't fit, and copies in which ever more tensors wait in HBM, as
    long as that has room for them."""
    hbm = chip_of(module).hbm
    spills = hbm is not None and SPILLED not in module.attributes
    offered = not spills or spill(module.clone(), 1.0) == 0
    if offered:
        yield module
    known = 0
    for share in SPILL_SHARES if spills else ():
        candidate = module.clone()
        count = spill(candidate, share)
        if count > known:
            known = count
            if hbm is not None and hbm_footprint_bytes(candidate) <= hbm.capacity_bytes:
                offered = True
                yield candidate
    if not offered:
        yield module  # to be refused with what it needs


def _schedule_by_name(
    module: ModuleOp,
    name: str,
    keep_plans: bool,
    energy: bool,
    effort: Effort | None,
    tables: Tables,
    solved: Solved | None,
    *,
    bare_fits: bool = False,
) -> Scheduling:
    """`schedule_by_name` of a program as it is."""
    solved = {} if solved is None else solved
    searches = name == EXECUTABLE[-1]

    def scheduled(other: str, unroll: bool) -> tuple[ModuleOp, Scheduling]:
        trial = module.clone()
        scheduling = schedule_module(
            trial,
            policy(other, energy=energy, effort=effort or Effort(), solved=solved),
            keep_plans=keep_plans,
            tables=tables,
            # The search is too slow to be retried, and joules have no model of a program.
            retries=other != EXECUTABLE[-1] and not energy,
            bare_fits=bare_fits,
            unroll=unroll,
        )
        return trial, scheduling

    best, scheduling = scheduled(name, True)
    if searches:
        value = _simulated(best, energy)
        seen = [[s for _, s in scheduling.schedules]]
        others = [(rival, True) for rival in EXECUTABLE[:-1]]
        if any(program.copies > 1 for program, _ in scheduling.schedules):
            # Faster by the model, which may be further off than the two are apart.
            others.append((name, False))
        for rival, unroll in others:
            try:
                trial, other = scheduled(rival, unroll)
            except CapacityError:
                continue  # its plans leave no room for addresses
            schedules = [s for _, s in other.schedules]
            if schedules in seen:
                continue
            seen.append(schedules)
            found = _simulated(trial, energy)
            if found < value:
                value, best, scheduling = found, trial, other
    _replace_body(module, best)
    module.attributes |= best.attributes
    return scheduling


def _simulated(module: ModuleOp, energy: bool) -> float:
    """Seconds, or joules, of a scheduled program."""
    result = simulate(timeline_of(module), chip_of(module))
    return result.energy_j if energy else result.time_s


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


def steps_of(time_budget_s: float | None) -> int:
    """Steps of the search that a budget buys."""
    return STEPS if time_budget_s is None else max(1, int(time_budget_s * STEPS_PER_SECOND))


@dataclass(frozen=True)
class IccaSchedulePass(ModulePass):
    """Choose a plan for every execute and the place of every preload.

        elk-opt model.mlir -p 'icca-schedule{policy=search}'

    Policies: `basic` (the largest execution space that fits beside the next operator's preload,
    which is issued one execute ahead), `static` (the best single split of the SRAM into execution
    and preload space), `elk-dyn` (inductive scheduling with cost-aware allocation), `elk-full`
    (that over preload orders), `search` (prices and local improvement, never worse than those;
    `time-budget-s` bounds it, `seed` fixes it). Preloads of a layer loop's first operators are
    issued an iteration ahead where the policy wants it; a loop in which they have room but no
    addresses gets two layers a turn (`icca-unroll-layers`). `objective=energy` minimises energy.
    `plans=keep` leaves plans that are there as they are. Invariant: the numbers; every preload
    stays in front of its execute, and the result fits the chip's SRAM, addresses included. Fails
    with the operator that fits in no plan, and the smallest changes with which all would fit.
    """

    name = "icca-schedule"

    policy: str = "basic"
    plans: str = "choose"
    objective: str = "time"
    time_budget_s: float | None = None
    seed: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.policy not in EXECUTABLE:
            raise PassFailedException(
                f"icca-schedule: no policy is called {self.policy!r}; there are"
                f" {', '.join(EXECUTABLE)}"
            )
        if self.plans not in ("choose", "keep"):
            raise PassFailedException("icca-schedule: plans is choose or keep")
        if self.objective not in ("time", "energy"):
            raise PassFailedException("icca-schedule: objective is time or energy")
        effort = Effort(steps_of(self.time_budget_s), self.seed)
        schedule_by_name(
            op,
            self.policy,
            keep_plans=self.plans == "keep",
            energy=self.objective == "energy",
            effort=effort,
        )
        op.attributes["icca.policy"] = StringAttr(self.policy)
