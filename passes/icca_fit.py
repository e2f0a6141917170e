"""What a program needs at least of every core's SRAM, and the smallest changes with which it fits.

The least is that of one program: every execute in its smallest plan, nothing preloaded ahead. A
policy may find a faster one in as little, none is refused in more (`schedule_by_name` comes back to
these plans when its own fit nowhere).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import device_model
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca.ops import ExecuteOp
from elk_ir.errors import CapacityError, ChipError
from elk_ir.memory.offsets import allocate
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_schedule_model import Tables
from elk_ir.passes.icca_spill import SPILLED, spill
from elk_ir.passes.icca_support import chip_of, executes, program_of, set_plan
from elk_ir.plan.buffers import PHASES
from elk_ir.report_json import hbm_footprint_bytes
from elk_ir.schedule.fit import DOUBLINGS, Found, least_count

CHIP = "icca.chip"
"""Attribute of the module: the chip that it is compiled for."""

ALLOCATION_S = 1.0
"""What one attempt to find addresses may cost, in the allocator's budget."""

BUDGET_S = 2.0
"""CPU time after which no other amount of SRAM, or number of cores, is tried; what is known by then
is said."""

LARGEST = 5
"""Buffers that are listed."""

ROUNDS = 4
"""Amounts of SRAM that are tried."""


def set_smallest_plans(module: ModuleOp, tables: Tables) -> bool:
    """Give every execute its plan of the least peak, the fastest of those; whether each of them
    fits by itself."""
    capacity = tables.chip.usable_sram_per_core_bytes
    fits = True
    for execute in executes(program_of(module)):
        plan, least = tables.smallest(execute)
        set_plan(execute, plan)
        fits = fits and least <= capacity
    return fits


def height_bytes(module: ModuleOp) -> int:
    """The highest byte that a module with plans uses, its preloads where they are."""
    return allocate(liveness(module).problem, time_budget_s=ALLOCATION_S).height_bytes


def fits_bare(module: ModuleOp) -> bool:
    """Whether a module with plans has addresses, its preloads where they are."""
    return height_bytes(module) <= chip_of(module).usable_sram_per_core_bytes


def least_bytes(module: ModuleOp, tables: Tables) -> int:
    """Usable bytes a core with which the module fits in its smallest plans; where the chip has HBM,
    as it is or, if there is room, with all that can wait there spilled."""
    chip = chip_of(module)

    def least(candidate: ModuleOp) -> int:
        set_smallest_plans(candidate, tables)
        # What tiles share with tensors of others is in the first number only.
        return max(height_bytes(candidate), alone_bytes(candidate, tables))

    plain = least(module.clone())
    if chip.hbm is None or SPILLED in module.attributes:
        return plain
    if plain <= max(alone_bytes(module, tables), chip.usable_sram_per_core_bytes):
        return plain
    spilled = module.clone()
    if not spill(spilled, 0.0) or hbm_footprint_bytes(spilled) > chip.hbm.capacity_bytes:
        return plain
    return min(plain, least(spilled))


def alone_bytes(module: ModuleOp, tables: Tables) -> int:
    """The most that an execute takes by itself, in its smallest plan."""
    return max((tables.smallest(e)[1] for e in executes(program_of(module))), default=0)


@dataclass(eq=False)
class ChipChanges:
    """What to change of the chip, at least, so that a module fits that does not: a line each.

    error: is told the largest buffers beside the operator that it names. rebuild: the same model
    before scheduling on another chip, if it is at hand: what is too large for a chip is cut into
    parts before it is planned, and on a larger chip it is not.
    """

    module: ModuleOp
    tables: Tables
    error: CapacityError
    rebuild: Callable[[Chip], ModuleOp] | None = None

    @cached_property
    def needed_bytes(self) -> int:
        """`least_bytes` of the module on its chip."""
        return least_bytes(self.module, self.tables)

    def __call__(self) -> list[str]:
        chip, need = self.tables.chip, self.needed_bytes
        if need <= chip.usable_sram_per_core_bytes:
            return [
                f"other plans: the smallest of every operator take {need:,} bytes (icca-schedule"
                " chooses plans)"
            ]
        self.error.largest = largest_buffers(self.module, self.tables, self.error.operator)
        sram = self.sram(need)
        unit, now = unit_of(chip)
        count = self.cores(now)
        if count is None:
            more = f"not even {now << DOUBLINGS:,} are enough, there are {now:,}"
        else:
            more = f"{count.value:,} instead of {now:,} ({_how(count)})"
        return [
            f"more SRAM: sram_per_core_bytes = {sram.value + chip.reserved_per_core_bytes:,}"
            f" instead of {chip.sram_per_core_bytes:,} ({sram.value:,} usable; {_how(sram)})",
            f"more {unit}: {more}",
        ]

    def needs(self, chip: Chip, tables: Tables) -> int:
        """`least_bytes` on another chip."""
        if self.rebuild is not None:
            return least_bytes(self.rebuild(chip), tables)
        trial = self.module.clone()
        trial.attributes[CHIP] = ChipAttr.from_chip(chip)
        return least_bytes(trial, tables)

    def sram(self, need: int) -> Found:
        """Usable bytes a core that are enough."""
        if self.rebuild is None:
            return Found(need, True)
        chip, until = self.tables.chip, time.process_time() + BUDGET_S
        for _ in range(ROUNDS):
            larger = chip.with_fields({"sram_per_core_bytes": need + chip.reserved_per_core_bytes})
            found = self.needs(larger, Tables(larger, device_model(larger)))
            if found <= need:
                return Found(need, True)
            need = found
            if time.process_time() > until:
                break
        return Found(need, False)

    def cores(self, now: int) -> Found | None:
        """The least number of cores, in units of `unit_of`, that is enough."""
        chip = self.tables.chip
        capacity = chip.usable_sram_per_core_bytes
        found: dict[object, ExecuteOp] = {}
        for execute in executes(program_of(self.module)):
            if self.tables.smallest(execute)[1] > capacity:
                found.setdefault((execute.operator(), execute.sources), execute)
        known: dict[int, Tables] = {}

        def tables(count: int) -> Tables:
            if count not in known:
                larger = more_cores(chip, count)
                known[count] = Tables(larger, device_model(larger))
            return known[count]

        def fits_alone(count: int) -> bool:
            try:
                return all(tables(count).smallest(e)[1] <= capacity for e in found.values())
            except ChipError:
                return False  # the kind of chip does not come in this size

        def fits(count: int) -> bool:
            return self.needs(tables(count).chip, tables(count)) <= capacity

        until = time.process_time() + BUDGET_S
        return least_count(now, fits_alone, fits, lambda: time.process_time() < until)


def largest_buffers(module: ModuleOp, tables: Tables, operator: str) -> tuple[tuple[str, int], ...]:
    """The largest of the buffers that are live when most bytes are while an operator executes, all
    in their smallest plans and nothing ahead."""
    bare = module.clone()
    set_smallest_plans(bare, tables)
    live = liveness(bare)
    best: tuple[tuple[str, int], ...] = ()
    for execute in executes(program_of(bare)):
        base = live.times[execute] if execute.label.data == operator else None
        for time_ in range(base, base + PHASES) if base is not None else ():
            found = tuple(
                (b.name, b.size_bytes)
                for b in live.problem.buffers
                if any(a <= time_ < z for a, z in b.intervals(live.problem.loops))
            )
            best = max(best, found, key=lambda group: sum(size for _, size in group))
    return tuple(sorted(best, key=lambda entry: (-entry[1], entry[0]))[:LARGEST])


def _how(found: Found) -> str:
    return "tried" if found.tried else "estimated"


def unit_of(chip: Chip) -> tuple[str, int]:
    """What more cores of the same kind are counted in, and how many there are."""
    if chip.chips > 1:
        return "chips", chip.chips
    if chip.network.rows:
        return f"rows of {chip.network.cols} cores", chip.network.rows
    return "cores", chip.cores_per_chip


def more_cores(chip: Chip, count: int) -> Chip:
    """The same chip with `count` of the units of `unit_of`. Raises ChipError."""
    if chip.chips > 1:
        return chip.with_fields({"chips": count})
    if chip.network.rows:
        return chip.with_fields(
            {"network.rows": count, "cores_per_chip": count * chip.network.cols}
        )
    return chip.with_fields({"cores_per_chip": count})


def estimated_changes(chip: Chip, needed_bytes: int) -> list[str]:
    """The same for a chip without HBM, from the bytes a core that are needed on the chip there is:
    what its cores hold is spread over more of them."""
    sram = needed_bytes + chip.reserved_per_core_bytes
    unit, now = unit_of(chip)
    count = -(-now * needed_bytes // chip.usable_sram_per_core_bytes)
    return [
        f"more SRAM: sram_per_core_bytes = {sram:,} instead of {chip.sram_per_core_bytes:,}"
        " (estimated)",
        f"more {unit}: {count:,} instead of {now:,} (estimated)",
        "a chip with HBM, from which weights are fetched while it runs",
    ]
