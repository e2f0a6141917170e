"""The baselines `basic` and `static`."""

from __future__ import annotations

import numpy as np

from elk_ir.schedule.allocate import Fronts, Weights
from elk_ir.schedule.basic import Step, choose_basic
from elk_ir.schedule.fill import fill
from elk_ir.schedule.inductive import does_not_fit, unrolled
from elk_ir.schedule.model import Program, Schedule, evaluate, first_place, last_place, settled
from elk_ir.schedule.repair import repair

SPLITS = 128
"""Sizes of the preload space that `static` tries, evenly over the capacity."""


def basic(program: Program, weights: Weights) -> Schedule:
    """The fastest plan that fits beside the next operator's preload, one execute ahead.

    Raises CapacityError for an operator of which no plan fits.
    """
    count = len(program.ops)
    wide = unrolled(program, 3) if program.periodic else program
    fronts = Fronts.of(wide, weights)
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
        max(
            first_place(program, i),
            min(last_place(program, i), i - 1 if choice.hoisted[start + i] else i),
        )
        for i in range(count)
    ]
    schedule = Schedule(choice.plans[start : start + count], tuple(issue), tuple(range(count)))
    return repair(program, settled(program, schedule), weights)


def static(program: Program, weights: Weights) -> Schedule:
    """The best single split of the SRAM into execution and preload space: every operator takes its
    fastest plan within the first, as many preloads as fit the second are issued ahead.

    Raises CapacityError for an operator of which no plan fits.
    """
    capacity = program.rules.capacity_bytes
    fronts = Fronts.of(program, weights)
    best: tuple[float, Schedule] | None = None
    seen: set[Schedule] = set()
    for k in range(SPLITS):
        share = capacity * k // SPLITS
        schedule = split(program, fronts, capacity - share, share)
        if schedule is None or schedule in seen:
            continue
        seen.add(schedule)
        time = evaluate(program, schedule).time_s
        if best is None or time < best[0]:
            best = (time, schedule)
    if best is None:
        # No split lets the largest operator execute: it takes what it needs.
        return basic(program, weights)
    return repair(program, best[1], weights)


def split(
    program: Program, fronts: Fronts, execution_bytes: int, preload_bytes: int
) -> Schedule | None:
    """The schedule of one split; None if an operator does not fit the execution space."""
    choice: list[int] = []
    for i, op in enumerate(program.ops):
        if len(op.table) == 0:
            raise does_not_fit(program, i)
        room = execution_bytes - op.resident_bytes
        fits = (int(o) for o in fronts.execute[i] if op.table.execute_bytes[o] <= room)
        option = next(fits, None)
        if option is None:
            return None
        choice.append(option)
    return fill(program, choice, limits=[preload_bytes] * len(program.ops))
