"""The baselines `basic` and `static`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elk_ir.schedule.allocate import Fronts, Objective, seconds
from elk_ir.schedule.basic import Step, choose_basic
from elk_ir.schedule.inductive import AHEAD, does_not_fit, unrolled
from elk_ir.schedule.model import Program, Schedule, evaluate, first_place, occupied_bytes
from elk_ir.schedule.repair import repair, settled

SPLITS = 128
"""Sizes of the preload space that `static` tries, evenly over the capacity."""


def basic(program: Program, *, objective: Objective = seconds) -> Schedule:
    """The fastest plan that fits beside the next operator's preload, one execute ahead.

    Raises CapacityError for an operator of which no plan fits.
    """
    count = len(program.ops)
    wide = unrolled(program, 3) if program.periodic else program
    fronts = Fronts.of(wide, objective)
    steps = [
        Step(
            op.label,
            op.table.execute_bytes,
            op.table.preload_bytes if op.loads else np.zeros_like(op.table.preload_bytes),
            fronts.costs[i],
            op.resident_bytes,
            op.smallest_bytes,
        )
        for i, op in enumerate(wide.ops)
    ]
    choice = choose_basic(steps, program.rules.capacity_bytes)
    start = count if program.periodic else 0
    issue = [
        max(first_place(program, i), i - 1 if choice.hoisted[start + i] else i)
        for i in range(count)
    ]
    if not program.periodic and issue:
        issue[0] = 0
    schedule = Schedule(choice.plans[start : start + count], tuple(issue), tuple(range(count)))
    return repair(program, settled(program, schedule), objective)


def static(program: Program, *, objective: Objective = seconds) -> Schedule:
    """The best single split of the SRAM into execution and preload space: every operator takes its
    fastest plan within the first, as many preloads as fit the second are issued ahead.

    Raises CapacityError for an operator of which no plan fits.
    """
    capacity = program.rules.capacity_bytes
    fronts = Fronts.of(program, objective)
    best: tuple[float, Schedule] | None = None
    seen: set[Schedule] = set()
    for k in range(SPLITS):
        share = capacity * k // SPLITS
        schedule = _split(program, fronts, capacity - share, share)
        if schedule is None or schedule in seen:
            continue
        seen.add(schedule)
        time = evaluate(program, schedule).time_s
        if best is None or time < best[0]:
            best = (time, schedule)
    if best is None:
        # No split lets the largest operator execute: it takes what it needs.
        return basic(program, objective=objective)
    return repair(program, best[1], objective)


def _split(
    program: Program, fronts: Fronts, execution_bytes: int, preload_bytes: int
) -> Schedule | None:
    choice: list[int] = []
    for i, op in enumerate(program.ops):
        if len(op.table) == 0:
            raise does_not_fit(program, i)
        fits = [
            option
            for option in fronts.execute[i]
            if op.table.execute_bytes[option] + op.resident_bytes <= execution_bytes
        ]
        if not fits:
            return None
        choice.append(int(fits[0]))
    return settled(program, filled(program, choice, lambda _: preload_bytes))


def filled(program: Program, choice: Sequence[int], share: Callable[[int], int]) -> Schedule:
    """Preloads issued in the order of their executes, each as early as those that wait beside an
    execute stay within `share(execute)` bytes."""
    count = len(program.ops)
    sizes = [
        int(op.table.preload_bytes[c]) if op.loads else 0
        for op, c in zip(program.ops, choice, strict=True)
    ]
    limits = [share(i) for i in range(count)]
    ahead = count - 1 if program.periodic else AHEAD
    issue: list[int] = []
    for j in range(count):
        at, first = j, max(first_place(program, j), j - ahead)
        # Everything up to j waits at once while the execute in front of `at` runs.
        while at > first:
            i = at - 1
            if sum(sizes[k % count] for k in range(i + 1, j + 1)) > limits[i % count]:
                break
            at = i
        issue.append(at)
    return Schedule(tuple(choice), tuple(issue), tuple(range(count)))


def fits(program: Program, schedule: Schedule) -> bool:
    """Whether every execute of a schedule fits."""
    capacity = program.rules.capacity_bytes
    return all(occupied_bytes(program, schedule, i) <= capacity for i in range(len(program.ops)))
