"""`search`: plans by prices, places by filling, then local improvement.

Prices (Lagrange multipliers of compute, ports, preloads and bytes) turn the choice of plans into
independent choices that `settle` makes along the chain of layouts; every price vector gives one
candidate, and for plans and an order `fill` finds the places of issue on the lattice of operators
executed and preloads issued. The best candidates, and whatever the other policies found, are then
improved by moves: another plan, two preloads exchanged, one held back; a move is judged by
evaluating the whole period in steady state. Deterministic: effort is counted in evaluations, and
the same seed gives the same schedule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elk_ir.schedule.allocate import Weights, layout_costs, own_costs, settle
from elk_ir.schedule.fill import fill
from elk_ir.schedule.inductive import NO_STALL
from elk_ir.schedule.model import (
    Program,
    Schedule,
    evaluate,
    excess_bytes,
    first_place,
    last_place,
    loads_of,
    placed_stores,
    settled,
    store_places,
)
from elk_ir.schedule.pack import addressed, overflow_bytes

STEPS = 8000
"""Evaluations of the local improvement, unless a budget is given."""
STEPS_PER_SECOND = 1000
"""Evaluations that a second of budget buys, on one slow core."""
PARALLEL = 4
"""Candidates that are improved."""
CANDIDATES = 6
"""Candidates whose preloads are moved until they have addresses, where that is asked for."""
PENALTY = 1.0
"""What bytes without addresses cost: as many as the capacity, this part of the time."""
COLD = 1e-4
"""The last temperature, as part of the time."""
HOT = 4e-3
"""The first temperature."""


@dataclass
class _Found:
    """Schedules by time, each plan choice once."""

    program: Program
    score: Callable[[Schedule], float]
    best: list[tuple[float, Schedule]] = field(default_factory=list)
    seen: set[Schedule] = field(default_factory=set)

    def add(self, schedule: Schedule | None) -> None:
        """Rate a schedule that fits."""
        if schedule is None or schedule in self.seen:
            return
        self.seen.add(schedule)
        if excess_bytes(self.program, schedule, self.program.rules.capacity_bytes) <= 0:
            self.best.append((self.score(schedule), schedule))

    def top(self, count: int) -> list[tuple[float, Schedule]]:
        """The best, different in their plans."""
        found: list[tuple[float, Schedule]] = []
        plans: set[tuple[int, ...]] = set()
        for entry in sorted(self.best, key=lambda e: (e[0], e[1].choice, e[1].issue)):
            if entry[1].choice not in plans:
                plans.add(entry[1].choice)
                found.append(entry)
        return found[:count]


def score_of(program: Program, energy: bool) -> Callable[[Schedule], float]:
    """What is minimised: seconds, or joules of the plans' moves and of static power."""

    def seconds(schedule: Schedule) -> float:
        return evaluate(program, schedule).time_s

    def joules(schedule: Schedule) -> float:
        moved = sum(
            float(op.table.energy_j[c]) for op, c in zip(program.ops, schedule.choice, strict=True)
        )
        return moved + program.rules.static_w * seconds(schedule)

    return joules if energy else seconds


def search(
    program: Program,
    incumbents: Sequence[Schedule],
    *,
    steps: int = STEPS,
    seed: int = 0,
    energy: bool = False,
) -> Schedule:
    """The best schedule found, never worse than the best incumbent (at least one is needed)."""
    score = score_of(program, energy)
    found = _Found(program, score)
    for schedule in incumbents:
        found.add(schedule)
    if not found.best:
        found.best = [(score(s), s) for s in incumbents]
    least = float("inf")
    for choice in priced(program, energy):
        least = min(least, sum(load.alone_s for load in loads_of(program, choice)))
        schedule = fill(program, choice)
        found.add(None if schedule is None else placed_stores(program, schedule))
    starts = _with_addresses(program, found, score)
    if not energy and starts[0][0] <= least * (1.0 + NO_STALL):
        # The executes alone take as long, whatever prices their plans are chosen by.
        return starts[0][1]
    share = max(1, steps // max(1, len(starts)))
    results = [
        _improve(program, start, score, share, seed + 7919 * k) for k, start in enumerate(starts)
    ]
    fine = [e for e in starts if overflow_bytes(program, e[1]) == 0]
    return min([*(fine or starts[:1]), *results], key=lambda e: (e[0], e[1].choice, e[1].issue))[1]


def priced(program: Program, energy: bool) -> Iterator[list[int]]:
    """Plan choices under a grid of prices, each once.

    Of the bound's families (`elk_ir.sim.bounds`): (1 - g) compute + a port time of exchanges +
    min(g, b + a landing / preload) preload, a + b = 1; times a price of bytes.
    """
    seen: set[tuple[int, ...]] = set()
    scale = sum(op.table.hbm_s for op in program.ops if op.loads)
    scale = max(scale, 1e-9) / max(1, program.rules.capacity_bytes)
    for size in (0.0, 0.02, 0.1, 0.4, 1.5):
        for exchange in (1.0, 1.5, 2.0):
            for preload, landing in ((0.0, 0.0), (0.3, 0.0), (1.0, 0.0), (0.3, 0.5), (1.0, 1.0)):
                weights = Weights(
                    preload=preload,
                    landing=landing,
                    execute=size * scale,
                    waiting=size * scale,
                    exchange=exchange,
                    energy=energy,
                )
                choice = settle(program, weights)
                if tuple(choice) not in seen:
                    seen.add(tuple(choice))
                    yield choice


def _with_addresses(
    program: Program, found: _Found, score: Callable[[Schedule], float]
) -> list[tuple[float, Schedule]]:
    """What is improved: the best schedules, with addresses if any of more of them have some."""
    if program.addresses_bytes is None:
        return found.top(PARALLEL)
    starts: list[tuple[float, Schedule]] = []
    for _, schedule in found.top(CANDIDATES):
        repaired = addressed(program, schedule)
        if repaired is not None:
            starts.append((score(repaired), repaired))
    starts.sort(key=lambda e: (e[0], e[1].choice, e[1].issue))
    half = PARALLEL // 2
    return [*starts[:half], *found.top(PARALLEL - len(starts[:half]))]


# ---------------------------------------------------------------------- local improvement


def _improve(
    program: Program,
    start: tuple[float, Schedule],
    score: Callable[[Schedule], float],
    steps: int,
    seed: int,
) -> tuple[float, Schedule]:
    """Simulated annealing from one schedule; the best one seen.

    Where addresses are asked for, bytes without one cost time, so that the way to a better schedule
    may lead through some that have none; what is returned has them if anything that was seen has.
    """
    generator = random.Random(seed)
    neighbours = _Neighbours(program, generator)
    over = overflow_bytes(program, start[1])
    best, without = start, over
    current, value = start[1], _penalised(program, start[0], over)
    for step in range(steps):
        heat = HOT * (COLD / HOT) ** (step / max(1, steps - 1)) * best[0]
        candidate = neighbours.of(current)
        if candidate is None:
            continue
        limit = value - heat * math.log(max(generator.random(), 1e-12))
        time = score(candidate)
        if time > limit:
            continue
        over = overflow_bytes(program, candidate)
        penalised = _penalised(program, time, over)
        if penalised > limit:
            continue
        current, value = candidate, penalised
        if (over, time) < (without, best[0]) if without else over == 0 and time < best[0]:
            best, without = (time, candidate), over
    return best if without == 0 else (float("inf"), best[1])


def _penalised(program: Program, time_s: float, over_bytes: int) -> float:
    """Time, and what bytes without an address add to it."""
    return time_s * (1.0 + PENALTY * over_bytes / program.rules.capacity_bytes)


class _Neighbours:
    """Random moves from a schedule to one that fits."""

    def __init__(self, program: Program, generator: random.Random):
        self.program, self.random = program, generator
        self.free = [i for i, op in enumerate(program.ops) if len(op.table) > 1]
        self.loaders = [i for i, op in enumerate(program.ops) if op.loads]
        total = sum(program.ops[i].table.hbm_s for i in self.loaders)
        self.heavy = [i for i in self.loaders if program.ops[i].table.hbm_s > 1e-3 * total]
        self.own = [own_costs(program, i, Weights(0.5, 0.25)) for i in range(len(program.ops))]
        # Operators that take most of the time are tried most often.
        self.weight = [float(np.sqrt(self.own[i].min())) for i in self.free]

    def of(self, schedule: Schedule) -> Schedule | None:
        """A neighbour that fits, or None if the move led nowhere."""
        dice = self.random.random()
        if dice < 0.05 and any(store.movable for store in self.program.stores):
            return self.other_store(schedule)
        if self.free and dice < 0.65:
            found = self.other_plan(schedule)
        elif len(self.heavy) > 1 and dice < 0.85:
            found = self.exchanged(schedule)
        elif self.loaders:
            found = self.moved(schedule)
        else:
            return None
        if found is None or found == schedule:
            return None
        capacity = self.program.rules.capacity_bytes
        return found if excess_bytes(self.program, found, capacity) <= 0 else None

    def other_plan(self, schedule: Schedule) -> Schedule | None:
        """Another plan for one operator, the likelier the cheaper it is beside its neighbours."""
        choice = list(schedule.choice)
        (i,) = self.random.choices(self.free, self.weight)
        costs = self.own[i] + layout_costs(self.program, choice, i)
        rank = int(self.random.expovariate(1.0 / (1.0 + 0.12 * costs.size)))
        order = np.argpartition(costs, min(rank, costs.size - 1))
        choice[i] = int(order[min(rank, costs.size - 1)])
        if choice[i] == schedule.choice[i]:
            return None
        if self.program.addresses_bytes is not None and self.random.random() < 0.5:
            return replace(schedule, choice=tuple(choice))  # places that have addresses, perhaps
        return self.kept(fill(self.program, choice, schedule.order), schedule)

    @staticmethod
    def kept(found: Schedule | None, schedule: Schedule) -> Schedule | None:
        """`found` with the stores of `schedule`."""
        return None if found is None else replace(found, stores=schedule.stores)

    def other_store(self, schedule: Schedule) -> Schedule:
        """A store issued at another place."""
        movable = [k for k, store in enumerate(self.program.stores) if store.movable]
        k = self.random.choice(movable)
        places = list(store_places(self.program, schedule))
        places[k] = self.random.randint(self.program.stores[k].place, len(self.program.ops))
        return replace(schedule, stores=tuple(places))

    def exchanged(self, schedule: Schedule) -> Schedule | None:
        """Two heavy loaders that follow each other change places in the order."""
        order = list(schedule.order)
        places = [k for k, j in enumerate(order) if j in set(self.heavy)]
        k = self.random.randrange(len(places) - 1)
        a, b = places[k], places[k + 1]
        order[a], order[b] = order[b], order[a]
        return self.kept(fill(self.program, schedule.choice, order), schedule)

    def moved(self, schedule: Schedule) -> Schedule | None:
        """One preload issued an execute earlier or later, and those that must keep with it."""
        j = self.random.choice(self.loaders)
        issue = list(schedule.issue)
        later = self.random.random() < 0.6
        at = issue[j] + (1 if later else -1)
        if not first_place(self.program, j) <= at <= last_place(self.program, j):
            return None
        rank = {k: n for n, k in enumerate(schedule.order)}
        for k in self.loaders:
            if later and rank[k] > rank[j] and issue[k] < at:
                issue[k] = min(at, last_place(self.program, k))
            if not later and rank[k] < rank[j] and issue[k] > at:
                issue[k] = max(at, first_place(self.program, k))
        issue[j] = at
        return settled(self.program, replace(schedule, issue=tuple(issue)))
