"""The optimum of small programs, by branch and bound over plans, orders and places of issue.

For every choice of plans, executes run in order and before each of them any preloads may be
issued, in any order. A branch is left when a lower bound of its end is no better than the best
known: executes that are left, one after another; or preloads that are left, one after another,
and the execute of whichever comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from elk_ir.plan.plan import Plan
from elk_ir.schedule.model import (
    Clock,
    Load,
    Op,
    Program,
    Rules,
    Schedule,
    evaluate,
    excess_bytes,
    execute,
    issue,
    load_of,
)
from elk_ir.schedule.options import Table


@dataclass
class _Best:
    time_s: float
    schedule: Schedule | None
    nodes: int = 0


@dataclass(frozen=True)
class Optimum:
    """The best schedule known (None: nothing fits), its time, and what no schedule can beat: equal
    unless the search was cut short."""

    time_s: float
    schedule: Schedule | None
    bound_s: float


NODES = 2_000_000
"""Partial schedules that are looked at, at most."""


def optimum(program: Program, incumbent: Schedule | None = None, nodes: int = NODES) -> Optimum:
    """The optimum of a program without a loop; with an incumbent only what is better is searched
    for."""
    best = _Best(float("inf"), None)
    if incumbent is not None:
        best = _Best(evaluate(program, incumbent).time_s, incumbent)
    count = len(program.ops)
    choices: list[tuple[float, tuple[int, ...], list[Load]]] = []
    for choice in product(*(range(len(op.table)) for op in program.ops)):
        loads = [load_of(program, choice, i) for i in range(count)]
        choices.append((_bound(loads, 0, range(count), 0.0), choice, loads))
    best.nodes = nodes
    for bound, choice, loads in sorted(choices, key=lambda entry: (entry[0], entry[1])):
        if bound >= best.time_s:
            break
        _Search(program, choice, loads, best).run()
        if best.nodes <= 0:
            return Optimum(best.time_s, best.schedule, min(bound, best.time_s))
    return Optimum(best.time_s, best.schedule, best.time_s)


def _bound(loads: Sequence[Load], first: int, unissued: Sequence[int], queued_s: float) -> float:
    """Time that is at least left when operators from `first` on have not run."""
    left = [load.alone_s for load in loads[first:]]
    work = queued_s + sum(loads[j].preload_s for j in unissued if loads[j].loads)
    bound = max(sum(left), work)
    if work > 0.0 and left:
        bound = max(bound, work + left[-1] * bool(len(left) == 1))
    if first == 0 and loads and loads[0].loads:
        bound = max(bound, loads[0].preload_s + sum(left))
    return bound


class _Search:
    """All interleavings of one choice of plans."""

    def __init__(
        self, program: Program, choice: tuple[int, ...], loads: list[Load], best: _Best
    ) -> None:
        self.program, self.choice, self.loads, self.best = program, choice, loads, best
        self.places = [0] * len(loads)
        self.order: list[int] = []
        tables = [op.table for op in program.ops]
        self.sizes = [int(t.preload_bytes[c]) for t, c in zip(tables, choice, strict=True)]
        self.room = [
            program.rules.capacity_bytes - op.resident_bytes - int(op.table.execute_bytes[c])
            for op, c in zip(program.ops, choice, strict=True)
        ]

    def run(self) -> None:
        """Search from the start."""
        self.step(0, frozenset(j for j, load in enumerate(self.loads) if load.loads), Clock(), 0)

    def step(self, i: int, unissued: frozenset[int], clock: Clock, held: int) -> None:
        """In front of execute i, with `held` bytes of preloads on their way or landed."""
        self.best.nodes -= 1
        if self.best.nodes <= 0:
            return
        if i == len(self.loads):
            if clock.now < self.best.time_s:
                self.best.time_s = clock.now
                order = (*self.order, *(j for j in range(i) if not self.loads[j].loads))
                self.best.schedule = Schedule(self.choice, tuple(self.places), order)
            return
        queued = sum(self.loads[j].preload_s for j, _ in clock.queue)
        if clock.queue:
            queued -= (1.0 - clock.left) * self.loads[clock.queue[0][0]].preload_s
        if clock.now + _bound(self.loads, i, sorted(unissued), queued) >= self.best.time_s:
            return
        own = self.sizes[i] if self.loads[i].loads else 0
        if i not in unissued and held - own <= self.room[i]:
            after = clock.copy()
            execute(after, self.loads, i, self.program.rules)
            self.step(i + 1, unissued, after, held - own)
        for j in sorted(unissued):
            if j != i and held + self.sizes[j] - (own if i not in unissued else 0) > self.room[i]:
                continue
            after = clock.copy()
            issue(after, self.loads, j, self.program.rules)
            self.places[j] = i
            self.order.append(j)
            self.step(i, unissued - {j}, after, held + self.sizes[j])
            self.order.pop()


# ---------------------------------------------------------------------- random programs


def random_program(seed: int, operators: int, plans: int, *, rules: Rules | None = None) -> Program:
    """A program whose plans trade time for bytes, and whose SRAM is short."""
    rng = np.random.default_rng(seed)
    capacity = 600_000
    rules = rules or Rules(capacity, 2e-7, 2e-7, False, False, False, True, 0.0)
    ops = []
    for i in range(operators):
        hbm_s = float(rng.lognormal(np.log(8e-6), 0.9))
        held = hbm_s * 16e12 / 5888
        copies = np.sort(rng.choice([1.0, 1.5, 2.0, 3.0, 4.0], plans))[::-1]
        preload = np.minimum(held * copies, capacity * 0.55).astype(np.int64)
        extra = np.sort(rng.uniform(0.05, 1.0, plans))[::-1] * capacity * 0.4
        compute = float(rng.lognormal(np.log(8e-6), 0.7)) * np.cumprod(
            1.0 + rng.uniform(0.0, 0.5, plans)
        )
        landing = preload / 5.5e9
        empty = np.zeros((0, plans))
        table = Table(
            execute_bytes=np.minimum(preload + extra, capacity).astype(np.int64),
            preload_bytes=preload,
            compute_s=compute,
            exchange_s=compute * rng.uniform(0.05, 0.5, plans),
            preload_s=np.maximum(landing, hbm_s),
            landing_s=landing,
            energy_j=np.zeros(plans),
            family=np.arange(plans),
            slice_s=empty,
            spread=empty,
            pieces=empty,
            hbm_s=hbm_s,
            plans=(Plan((), (), ()),) * plans,
        )
        ops.append(Op(f"op{i}", table))
    return Program(tuple(ops), rules)


def is_valid(program: Program, schedule: Schedule) -> bool:
    """Whether a schedule fits, issues every preload in time, and in the order it states."""
    rank = {j: k for k, j in enumerate(schedule.order)}
    loaders = [j for j, op in enumerate(program.ops) if op.loads]
    ordered = sorted(loaders, key=lambda j: rank[j])
    places = [schedule.issue[j] for j in ordered]
    return (
        all(schedule.issue[j] <= j for j in loaders)
        and places == sorted(places)
        and excess_bytes(program, schedule, program.rules.capacity_bytes) <= 0
    )
