"""The optimum of small programs, by branch and bound over plans, orders and places of issue.

For every choice of plans, executes run in order and before each of them any preloads may be
issued, in any order. A branch is left when a lower bound of its end (`exhaustive_bounds`) is no
better than the best known, or when another branch leads to the same times (`_Branches.waits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from elk_ir.plan.plan import Plan
from elk_ir.schedule.exhaustive_bounds import Rest, ascend, side_by_side
from elk_ir.schedule.model import (
    Clock,
    Op,
    Program,
    Rules,
    Schedule,
    evaluate,
    excess_bytes,
    execute,
    issue,
)
from elk_ir.schedule.options import Table

NODES = 200_000
"""Partial schedules that are looked at, at most."""
TOLERANCE = 1e-9
"""What is better by a smaller part is not searched for: rounding of the evaluation and of bounds is
far below."""
STEPS = 150
"""Steps towards good prices of a bound."""
BLOCK = 4096
"""Choices of plans whose bounds are found side by side."""


@dataclass
class _Best:
    time_s: float
    schedule: Schedule | None
    nodes: int

    @property
    def enough_s(self) -> float:
        """A bound that nothing worth having is behind."""
        return self.time_s * (1.0 - TOLERANCE)


@dataclass(frozen=True)
class Optimum:
    """The best schedule known (None: nothing fits), its time, and what no schedule can beat (by a
    part of TOLERANCE): equal unless the search was cut short."""

    time_s: float
    schedule: Schedule | None
    bound_s: float


def optimum(program: Program, incumbent: Schedule | None = None, nodes: int = NODES) -> Optimum:
    """The optimum of a program without a loop and stores; with an incumbent only what is better is
    searched for."""
    best = _Best(float("inf"), None, nodes)
    if incumbent is not None:
        best = _Best(evaluate(program, incumbent).time_s, incumbent, nodes)
    choices = list(product(*(range(len(op.table)) for op in program.ops)))
    found: list[tuple[float, tuple[int, ...], np.ndarray]] = []
    for first in range(0, len(choices), BLOCK):
        block = choices[first : first + BLOCK]
        bound, prices = ascend(side_by_side(program, block), STEPS, best.enough_s)
        for c in np.flatnonzero(bound < best.enough_s).tolist():
            found.append((float(bound[c]), block[c], prices[:, c]))
    for bound, choice, prices in sorted(found, key=lambda entry: entry[:2]):
        if bound >= best.enough_s:
            break
        _Branches(Rest.of(program, choice, prices), best).run()
        if best.nodes <= 0:
            return Optimum(best.time_s, best.schedule, min(bound, best.time_s))
    return Optimum(best.time_s, best.schedule, best.time_s)


class _Branches:
    """All interleavings of one choice of plans."""

    def __init__(self, rest: Rest, best: _Best) -> None:
        self.rest, self.best, self.rules = rest, best, rest.program.rules
        self.loads, self.sizes, self.room = rest.loads, rest.sizes, rest.room
        self.places = [0] * len(rest.loads)
        self.order: list[int] = []

    def run(self) -> None:
        """Search from the start."""
        self.step(0, 0, Clock(), 0)

    def step(self, i: int, issued: int, clock: Clock, held: int) -> None:
        """In front of execute i, with the preloads of a set of operators issued (bit j: operator j)
        and `held` bytes of them on their way or landed."""
        self.best.nodes -= 1
        if self.best.nodes <= 0:
            return
        if i == len(self.loads):
            if clock.now < self.best.time_s:
                self.best.time_s = clock.now
                order = (*self.order, *(j for j in range(i) if not self.loads[j].loads))
                self.best.schedule = Schedule(self.rest.choice, tuple(self.places), order)
            return
        branches: list[tuple[float, int, Clock]] = []
        here = self.rest.all & ~issued
        own = self.sizes[i] if issued >> i & 1 else 0
        if not here >> i & 1 and held - own <= self.room[i]:
            after = clock.copy()
            execute(after, self.loads, i, self.rules)
            if not self.waits(after):
                branches.append((self.rest.bound(i + 1, issued, after), -1, after))
        for j in range(i, len(self.loads)):
            fits = j == i or held + self.sizes[j] - own <= self.room[i]
            if here >> j & 1 and fits:
                after = clock.copy()
                issue(after, self.loads, j, self.rules)
                branches.append((self.rest.bound(i, issued | 1 << j, after), j, after))
        for bound, j, after in sorted(branches, key=lambda branch: branch[:2]):
            if bound >= self.best.enough_s:
                return
            if j < 0:
                self.step(i + 1, issued, after, held - own)
            else:
                self.places[j] = i
                self.order.append(j)
                self.step(i, issued | 1 << j, after, held + self.sizes[j])
                self.order.pop()

    def waits(self, after: Clock) -> bool:
        """Whether what was issued last could as well be issued behind the execute that has run.

        If it has not begun to land, and what lands before it still takes no less than its latency
        (at most a second of it lands in a second), its first byte waits for the queue alone, now
        or then: all times are the same, and it waits beside one execute less. Places only grow from
        such a schedule to its equal, so of every schedule some equal one is a branch.
        """
        if len(after.queue) < 2:
            return False
        ahead = sum(self.rest.work_s[j] for j, _ in after.queue[:-1])
        ahead -= (1.0 - after.left) * self.rest.work_s[after.queue[0][0]]
        return ahead >= self.rules.latency_s


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
