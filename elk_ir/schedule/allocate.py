"""Elk's cost-aware allocation: give up time where most bytes are saved for it.

The executing operator starts at its fastest plan, the waiting preloads in the states that later
decisions left them in. While the bytes of all of them exceed the capacity, the one whose next step
saves most bytes for each second that it adds moves one step down its front: the executing operator
to a smaller execution plan, a waiting one to a smaller preload-state of the plan that it will
execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from elk_ir.schedule.model import Program, step_ranks


@dataclass(frozen=True)
class Weights:
    """What a plan's resources cost beside the time of its execute: seconds a second or byte.

    preload: of the time that its preload takes beyond its bytes' own. landing: of the ingress port
    while the preload lands. execute, waiting: of bytes a core while it executes, or waits.
    exchange: of an exchange, which preloads slow down. energy: joules that the plan moves count,
    and time as what static power takes in it.
    """

    preload: float = 1.0
    landing: float = 0.0
    execute: float = 0.0
    waiting: float = 0.0
    exchange: float = 1.0
    energy: bool = False


def own_costs(program: Program, i: int, weights: Weights) -> np.ndarray:
    """The cost of each option of operator i without its neighbours: compute, exchanges and what
    the weights say."""
    table = program.ops[i].table
    found = table.compute_s + weights.exchange * table.exchange_s
    if program.ops[i].loads:
        found = found + weights.preload * (table.preload_s - table.hbm_s)
        found = found + weights.landing * table.landing_s
        found = found + weights.waiting * table.preload_bytes
    found = found + weights.execute * table.execute_bytes
    if weights.energy:
        # Joules in units of the static power, so that the two add up.
        found = found + table.energy_j / max(program.rules.static_w, 1e-9)
    return found


def layout_costs(program: Program, choice: Sequence[int], i: int) -> np.ndarray:
    """The re-layouts of operator i's operands and results, for each of its options, when its
    neighbours are as in `choice`: seconds."""
    op = program.ops[i]
    table = op.table
    found = np.zeros(len(table))
    for e, edge in enumerate(op.inputs):
        piece = 0.0
        if edge.producer == i:
            piece = table.pieces[edge.result]
        elif edge.producer >= 0:
            piece = program.ops[edge.producer].table.pieces[edge.result, choice[edge.producer]]
        found += np.maximum(table.slice_s[e], table.spread[e] * piece)
    for reader, e in program.readers[i]:
        if reader == i:
            continue
        other, c = program.ops[reader], choice[reader]
        piece = table.pieces[other.inputs[e].result]
        found += np.maximum(other.table.slice_s[e, c], other.table.spread[e, c] * piece)
    return found


SWEEPS = 8
"""Rounds over the operators in which each takes its cheapest plan beside its neighbours."""


def settle(program: Program, weights: Weights, start: Sequence[int] | None = None) -> list[int]:
    """Plans such that none alone is better changed, by the weights; memory is not looked at."""
    own = [own_costs(program, i, weights) for i in range(len(program.ops))]
    choice = [int(c.argmin()) if c.size else 0 for c in own] if start is None else list(start)
    for _ in range(SWEEPS):
        before = list(choice)
        for i in reversed(range(len(program.ops))):
            if len(program.ops[i].table) > 1:
                choice[i] = int((own[i] + layout_costs(program, choice, i)).argmin())
        if choice == before:
            break
    return choice


@dataclass(frozen=True, eq=False)
class Fronts:
    """The steps of every operator, computed once.

    costs: of every option. execute: options by rising cost and falling execute_bytes.
    """

    program: Program
    costs: tuple[np.ndarray, ...]
    execute: tuple[np.ndarray, ...]
    states: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(program: Program, weights: Weights) -> Fronts:
        """The fronts of all operators, re-layouts counted beside the neighbours' cheapest plans."""
        base = settle(program, weights)
        costs, execute = [], []
        for i, op in enumerate(program.ops):
            cost = own_costs(program, i, weights) + layout_costs(program, base, i)
            costs.append(cost)
            execute.append(step_ranks(cost, op.table.execute_bytes))
        return Fronts(program, tuple(costs), tuple(execute))

    def repeated(self, copies: int, program: Program) -> Fronts:
        """The same for `program`, in which all operators occur `copies` times."""
        return Fronts(program, self.costs * copies, self.execute * copies)

    def preload(self, j: int, family: int) -> np.ndarray:
        """Options of one family of operator j by rising cost and falling preload_bytes."""
        found = self.states.get((j, family))
        if found is None:
            table = self.program.ops[j].table
            rows = np.flatnonzero(table.family == family)
            found = rows[step_ranks(self.costs[j][rows], table.preload_bytes[rows])]
            self.states[j, family] = found
        return found


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
    for option in fronts.preload(j, int(table.family[current])):
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
