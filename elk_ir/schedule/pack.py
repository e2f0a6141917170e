"""Addresses in the scheduler's model: preloads of a loop that have room, but nowhere to lie.

A preload that a loop carries lies at the same address in every iteration, so the lifetimes are arcs
of a circle; a body of several copies of a layer is a longer one, on which each copy has arcs of its
own. Three arcs of which any two meet, each time somewhere else, need the sum of their
bytes, although no two of the three ever exceed the capacity; no allocator can help. Schedules are
therefore checked by first fit: what executes take for themselves is at the top of the memory, and
the preloads that wait are placed from the bottom; whichever ends too high comes earlier in the next
attempt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from elk_ir.schedule.allocate import Fronts, Weights, next_execution, next_state
from elk_ir.schedule.model import (
    Program,
    Schedule,
    evaluate,
    excess_bytes,
    last_place,
    occupied,
    settled,
)

SMALL = 1 / 256
"""Preloads below this part of the memory are counted, not placed: they fit into any gap."""

STEPS = 64
"""How often a preload is issued later before a schedule is given up."""

ATTEMPTS = 11
"""Packings that one order leads to, before the next one is tried."""

Arc = tuple[int, int, int]
"""Bytes, the places as a bit mask, and the bytes below which it must end."""


def overflow_bytes(program: Program, schedule: Schedule) -> int:
    """By how much the lowest of a few first-fit packings exceeds `program.addresses_bytes`; 0 where
    there are addresses, or none are asked for."""
    if program.addresses_bytes is None or not program.periodic:
        return 0
    arcs = _arcs(program, schedule, program.addresses_bytes)
    generator = random.Random(0)
    least = 1 << 62
    for order in _orders(arcs):
        least = min(least, _packed(order, generator))
        if least <= 0:
            return 0
    return least


def _packed(order: list[Arc], generator: random.Random) -> int:
    """The lowest of `ATTEMPTS` packings: the arc that ends worst comes first in the next one, or
    anywhere before its place, by turns. The copies of a layer are alike, and only such steps tell
    them apart."""
    least = 1 << 62
    for attempt in range(ATTEMPTS):
        over, worst = _first_fit(order)
        least = min(least, over)
        if least <= 0 or not worst:
            return least
        order.insert(generator.randrange(worst) if attempt % 2 else 0, order.pop(worst))
    return least


def _arcs(program: Program, schedule: Schedule, capacity: int) -> list[Arc]:
    count = len(program.ops)
    small = int(SMALL * capacity)
    room: list[int] = []
    heavy: list[tuple[int, range]] = []
    light: list[tuple[int, range]] = []
    for j, (op, c) in enumerate(zip(program.ops, schedule.choice, strict=True)):
        size = int(op.table.preload_bytes[c]) if op.loads else 0
        own = int(op.table.execute_bytes[c]) - size
        room.append(capacity - op.resident_bytes - own)
        if size:
            (heavy if size > small else light).append((size, range(schedule.issue[j], j + 1)))
    for size, places in light:
        for i in places:
            room[i] -= size  # a negative place is one of the previous iteration
    around = count * program.copies
    return [
        (
            size,
            sum(1 << ((i + shift) % around) for i in places),
            min(room[i % count] for i in places),
        )
        for size, places in heavy
        for shift in range(0, around, count)
    ]


def _orders(arcs: Sequence[Arc]) -> Iterator[list[Arc]]:
    """Orders in which first fit is tried."""
    yield sorted(arcs, key=lambda a: (-a[1].bit_count(), -a[0]))
    yield sorted(arcs, key=lambda a: (-a[0], -a[1].bit_count()))
    yield sorted(arcs, key=lambda a: -a[0] * a[1].bit_count())
    yield sorted(arcs, key=lambda a: (a[2] - a[0], -a[1].bit_count()))


def _first_fit(order: Sequence[Arc]) -> tuple[int, int]:
    """By how much the worst arc ends above its limit, at least 0, and which one that is."""
    placed: list[tuple[int, int, int]] = []
    over = worst = 0
    for k, (size, mask, limit) in enumerate(order):
        at = 0
        for low, high, other in placed:
            if other & mask and low < at + size and high > at:
                at = high
        # One pass over ascending addresses: whatever lies lower has been passed already.
        placed.append((at, at + size, mask))
        placed.sort()
        if at + size - limit > over:
            over, worst = at + size - limit, k
    return over, worst


def addressed(program: Program, schedule: Schedule) -> Schedule | None:
    """`schedule` changed step by step until addresses are found, by issuing preloads later alone or
    by moving plans down their fronts as well, whichever ends up faster. None if neither leads to
    addresses."""
    if overflow_bytes(program, schedule) == 0:
        found = [schedule]
    else:
        fronts = Fronts.of(program, Weights())
        found = [_stepped(program, fronts, schedule, plans) for plans in (False, True)]
    capacity = program.rules.capacity_bytes
    fine = [s for s in found if s is not None and excess_bytes(program, s, capacity) <= 0]
    return min(fine, key=lambda s: evaluate(program, s).time_s, default=None)


def _stepped(program: Program, fronts: Fronts, schedule: Schedule, plans: bool) -> Schedule | None:
    """The steps that free most bytes for each second that they add, until there are addresses. None
    if `STEPS` of them, or the latest places and smallest plans, do not suffice."""
    over, time = overflow_bytes(program, schedule), evaluate(program, schedule).time_s
    for _ in range(STEPS):
        best: tuple[float, int, float, Schedule] | None = None
        for trial, later in _steps(program, fronts, schedule, plans):
            left = overflow_bytes(program, trial)
            if left >= over and not later:
                continue
            took = evaluate(program, trial).time_s
            gain = (over - left) / max(took - time, 1e-4 * time)
            if left >= over:
                gain = -max(took - time, 0.0) - (left > over)
            if best is None or gain > best[0]:
                best = (gain, left, took, trial)
        if best is None:
            return None
        _, over, time, schedule = best
        if over == 0:
            return schedule
    return None


def _steps(
    program: Program, fronts: Fronts, schedule: Schedule, plans: bool
) -> Iterator[tuple[Schedule, bool]]:
    """Schedules one step away that may need fewer addresses, and whether a preload is later."""
    used = occupied(program, schedule)
    heavy = set(_heavy(program, schedule))
    for j, c in enumerate(schedule.choice):
        if j in heavy and schedule.issue[j] < last_place(program, j):
            yield delayed(program, schedule, j), True
        if not plans:
            continue
        steps = [next_execution(program, fronts, j, c)]
        if j in heavy:
            table = program.ops[j].table
            room = program.rules.capacity_bytes - used[j] + int(table.execute_bytes[c])
            steps.append(next_state(program, fronts, j, c, max(room, 0)))
        for step in dict.fromkeys(steps):
            if step is not None:
                choice = (*schedule.choice[:j], step, *schedule.choice[j + 1 :])
                yield replace(schedule, choice=choice), False


def _heavy(program: Program, schedule: Schedule) -> list[int]:
    """The operators whose preloads are placed."""
    least = int(SMALL * (program.addresses_bytes or 0))
    return [
        j
        for j, (op, c) in enumerate(zip(program.ops, schedule.choice, strict=True))
        if op.loads and int(op.table.preload_bytes[c]) > least
    ]


def delayed(program: Program, schedule: Schedule, j: int) -> Schedule:
    """The preload of operator j issued one execute later, and those behind it not before it."""
    issue = list(schedule.issue)
    at = issue[j] + 1
    rank = {k: n for n, k in enumerate(schedule.order)}
    for k, op in enumerate(program.ops):
        if op.loads and rank[k] > rank[j] and issue[k] < at:
            issue[k] = min(at, last_place(program, k))
    issue[j] = at
    return settled(program, replace(schedule, issue=tuple(issue)))
