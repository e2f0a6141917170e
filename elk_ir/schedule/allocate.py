"""Elk's cost-aware allocation: give up time where most bytes are saved for it.

The executing operator starts at its fastest plan, the waiting preloads in the states that later
decisions left them in. While the bytes of all of them exceed the capacity, the one whose next step
saves most bytes for each second that it adds moves one step down its front: the executing operator
to a smaller execution plan, a waiting one to a smaller preload-state of the plan that it will
execute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elk_ir.schedule.model import Program, step_ranks

Objective = Callable[[Program, int], np.ndarray]
"""The cost of each option of operator i, by itself: what the allocation weighs bytes against."""


def seconds(program: Program, i: int) -> np.ndarray:
    """The objective `time`: execute with re-layouts at their best, plus what the preload takes
    longer than its bytes must."""
    table = program.ops[i].table
    into = table.slice_s.sum(axis=0)
    return table.compute_s + table.exchange_s + into + (table.preload_s - table.hbm_s)


def joules(program: Program, i: int) -> np.ndarray:
    """The objective `energy`: what the plan moves, and static power for the time it takes."""
    table = program.ops[i].table
    return table.energy_j + program.rules.static_w * seconds(program, i)


@dataclass(frozen=True, eq=False)
class Fronts:
    """The steps of every operator, computed once.

    costs: of every option. execute: options by rising cost and falling execute_bytes. preload[f]:
    options of family f by rising cost and falling preload_bytes.
    """

    costs: tuple[np.ndarray, ...]
    execute: tuple[np.ndarray, ...]
    preload: tuple[dict[int, np.ndarray], ...]

    @staticmethod
    def of(program: Program, objective: Objective = seconds) -> Fronts:
        """The fronts of all operators."""
        costs, execute, preload = [], [], []
        for i, op in enumerate(program.ops):
            cost = objective(program, i)
            costs.append(cost)
            execute.append(step_ranks(cost, op.table.execute_bytes))
            states: dict[int, np.ndarray] = {}
            for family in np.unique(op.table.family):
                rows = np.flatnonzero(op.table.family == family)
                states[int(family)] = rows[step_ranks(cost[rows], op.table.preload_bytes[rows])]
            preload.append(states)
        return Fronts(tuple(costs), tuple(execute), tuple(preload))


def next_execution(program: Program, fronts: Fronts, i: int, current: int) -> int | None:
    """The next step of the executing operator: the cheapest option of fewer execute_bytes."""
    table = program.ops[i].table
    for option in fronts.execute[i]:
        if table.execute_bytes[option] < table.execute_bytes[current]:
            return int(option)
    return None


def next_state(
    program: Program, fronts: Fronts, j: int, current: int, room_bytes: int
) -> int | None:
    """The next smaller preload-state of a waiting operator that still executes in its room."""
    table = program.ops[j].table
    for option in fronts.preload[j][int(table.family[current])]:
        if (
            table.preload_bytes[option] < table.preload_bytes[current]
            and table.execute_bytes[option] <= room_bytes
        ):
            return int(option)
    return None


def allocate(
    program: Program,
    fronts: Fronts,
    choice: Sequence[int],
    executing: int,
    waiting: Sequence[int],
    room_bytes: Sequence[int],
) -> list[int] | None:
    """`choice` with the steps taken that make `executing` fit beside the preloads of `waiting`,
    None if nothing fits. room_bytes[j]: what operator j may use while it executes."""
    chosen = list(choice)
    ops, rules = program.ops, program.rules
    sizes = [int(ops[j].table.preload_bytes[chosen[j]]) for j in waiting]
    while True:
        own = int(ops[executing].table.execute_bytes[chosen[executing]])
        if rules.separate_sram:
            excess = max(own - room_bytes[executing], sum(sizes) - rules.capacity_bytes)
        else:
            excess = own + sum(sizes) - room_bytes[executing]
        if excess <= 0:
            return chosen
        best: tuple[float, int, int] | None = None
        step = next_execution(program, fronts, executing, chosen[executing])
        if step is not None:
            saved = own - int(ops[executing].table.execute_bytes[step])
            best = (_ratio(fronts, executing, chosen, step, saved), executing, step)
        for position, j in enumerate(waiting):
            step = next_state(program, fronts, j, chosen[j], room_bytes[j])
            if step is None:
                continue
            saved = sizes[position] - int(ops[j].table.preload_bytes[step])
            ratio = _ratio(fronts, j, chosen, step, saved)
            if best is None or ratio > best[0]:
                best = (ratio, j, step)
        if best is None:
            return None
        chosen[best[1]] = best[2]
        if best[1] != executing:
            position = list(waiting).index(best[1])
            sizes[position] = int(ops[best[1]].table.preload_bytes[best[2]])


def _ratio(fronts: Fronts, j: int, chosen: Sequence[int], step: int, saved: int) -> float:
    added = float(fronts.costs[j][step] - fronts.costs[j][chosen[j]])
    return saved / max(added, 1e-15)
