"""`elk-dyn`: inductive scheduling with cost-aware allocation.

From the last operator back: while operator i executes, the preloads of the next n operators are on
their way, for every n that fits; the n that ends the rest of the program soonest is kept. Of
identical layers three are scheduled in a row, and the middle one is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Weights, allocate
from elk_ir.schedule.fill import AHEAD, place
from elk_ir.schedule.model import (
    Clock,
    Edge,
    Load,
    Program,
    Schedule,
    Times,
    evaluate,
    execute,
    issue,
    load_of,
    store_load,
    wait,
)
from elk_ir.schedule.repair import repair

COPIES = 3
"""Identical layers in a row of which the middle one is kept."""
SLACKS = (0.3, 0.1, 0.02, 1e-6)
"""By how much of an execute the chosen number of preloads may miss the soonest end: with an empty
queue, as the induction assumes, a preload too few costs nothing that a loop would not feel."""
HORIZON = 72
"""Operators of which the time is compared; later ones are the same for all candidates."""


def unrolled(program: Program, copies: int) -> Program:
    """A periodic program written out `copies` times."""
    count = len(program.ops)
    ops = []
    for k in range(copies):
        for op in program.ops:
            inputs = tuple(_shifted(e, k, count) for e in op.inputs)
            ops.append(replace(op, inputs=inputs))
    stores = tuple(
        store._replace(place=store.place + k * count)
        for k in range(copies)
        for store in program.stores
    )
    return Program(tuple(ops), program.rules, stores=stores)


def _shifted(edge: Edge, k: int, count: int) -> Edge:
    if edge.producer < 0:
        return edge
    producer = edge.producer + count * (k - edge.back)
    return Edge(producer if producer >= 0 else -1, edge.result)


def elk_dyn(
    program: Program,
    weights: Weights,
    *,
    order: Sequence[int] | None = None,
    slacks: Sequence[float] = SLACKS,
) -> Schedule:
    """The schedule of `program`. `order`: the preloads in the order of their issue (default: that
    of the operators); in a periodic program of one period.

    Raises CapacityError for an operator of which no plan fits.
    """
    count = len(program.ops)
    if count == 0:
        return Schedule((), (), ())
    wide, copies = (unrolled(program, COPIES), COPIES) if program.periodic else (program, 1)
    ordered = [k * count + j for k in range(copies) for j in (order or range(count))]
    middle = copies // 2 * count
    best: tuple[float, Schedule] | None = None
    ahead = count - 1 if program.periodic else AHEAD
    fronts = Fronts.of(program, weights).repeated(copies, wide)
    for slack in slacks:
        choice, reach = _induct(wide, fronts, ahead, ordered, slack)
        kept = slice(middle, middle + count)
        reach = [r - middle for r in reach[kept]]
        schedule = place(program, choice[kept], reach, list(order or range(count)))
        schedule = repair(program, schedule, weights)
        times = evaluate(program, schedule)
        if best is None or times.time_s < best[0]:
            best = (times.time_s, schedule)
        if unhindered(program, fronts, schedule, times):
            break
    assert best is not None
    return best[1]


NO_STALL = 1e-3
"""The part of a schedule's time below which what executes wait for is not worth looking at."""


def unhindered(program: Program, fronts: Fronts, schedule: Schedule, times: Times) -> bool:
    """Whether every operator has its cheapest plan and none waits: no order of preloads, and no
    number of them ahead, could do better."""
    fastest = all(
        f.size == 0 or c == int(f[0]) for c, f in zip(schedule.choice, fronts.execute, strict=False)
    )
    return fastest and times.time_s <= times.execute_s * (1.0 + NO_STALL)


def _induct(
    program: Program, fronts: Fronts, ahead: int, order: Sequence[int], slack: float
) -> tuple[list[int], list[int]]:
    """(choice, reach): reach[i] is the last position of the order issued before execute i. Of times
    that differ by no more than `slack` (a part of an execute) the one with most preloads."""
    count, rules = len(program.ops), program.rules
    choice = [int(f[0]) if f.size else 0 for f in fronts.execute]
    position = [0] * count
    for k, j in enumerate(order):
        position[j] = k
    room = [rules.capacity_bytes - op.resident_bytes for op in program.ops]
    reach = [count - 1] * count
    for i in range(count - 1, -1, -1):
        op = program.ops[i]
        if len(op.table) == 0 or int(op.table.execute_bytes.min()) > room[i]:
            raise does_not_fit(program, i)
        # All that has been needed by the end of this execute is issued before it.
        least = max((position[j] for j in range(i + 1) if program.ops[j].loads), default=0)
        most = reach[i + 1] if i + 1 < count else count - 1
        most = max(least, min(most, least + ahead))
        found_at: list[tuple[float, int, list[int]]] = []
        end = min(count, i + HORIZON + 2 * AHEAD)
        known = {k: load_of(program, choice, k) for k in range(i, end)}
        for last in range(least, most + 1):
            new = order[last]
            if last > least and (new <= i or not program.ops[new].loads):
                if last < most:
                    continue
            if last > least and new - i > ahead:
                break
            waiting = [j for j in order[: last + 1] if j > i and program.ops[j].loads]
            found = allocate(program, fronts, choice, i, waiting, room)
            if found is None:
                break
            changed = [j for j in (i, *waiting) if found[j] != choice[j]]
            time = _rest(program, found, i, waiting, reach, order, known, changed)
            found_at.append((time, last, found))
        if not found_at:
            raise does_not_fit(program, i)
        # HBM is ahead when earlier operators start: the empty queue of this one does not see that.
        alone = load_of(program, found_at[0][2], i).alone_s
        limit = min(t for t, _, _ in found_at) + slack * alone
        _, reach[i], choice = next(f for f in reversed(found_at) if f[0] <= limit)
        for j in order[: reach[i] + 1]:
            if j > i and program.ops[j].loads:
                room[i] -= int(program.ops[j].table.preload_bytes[choice[j]])
    return choice, reach


def _rest(
    program: Program,
    choice: Sequence[int],
    i: int,
    waiting: Sequence[int],
    reach: Sequence[int],
    order: Sequence[int],
    known: Mapping[int, Load],
    changed: Sequence[int],
) -> float:
    """From the start of execute i, its own preload landed and those of `waiting` issued, to the
    end (or as far as it matters). known: the loads but for the plans of `changed`."""
    rules = program.rules
    end = min(len(program.ops), i + HORIZON)
    loads = dict(known)
    for j in changed:
        for k in (j, *(reader for reader, _ in program.readers[j])):
            loads[k] = load_of(program, choice, k)
    stores: dict[int, list[int]] = {}
    for k, store in enumerate(program.stores):
        if i <= store.place < end:
            stores.setdefault(store.place, []).append(len(program.ops) + k)
            loads[len(program.ops) + k] = store_load(store)
    clock = Clock()
    if program.ops[i].loads:
        clock.landed.add(i)
    for j in stores.get(i, ()):
        issue(clock, loads, j, rules)
    for j in waiting:
        issue(clock, loads, j, rules)
    issued = set(waiting)
    upto = -1
    for k in range(i, end):
        if k > i:
            for j in stores.get(k, ()):
                issue(clock, loads, j, rules)
            while upto < reach[k]:
                upto += 1
                j = order[upto]
                if j >= k and j not in issued:
                    issue(clock, loads, j, rules)
                    issued.add(j)
        execute(clock, loads, k, rules)
        for j in stores.get(k, ()):
            wait(clock, loads, j)
    return clock.now


def does_not_fit(program: Program, i: int) -> CapacityError:
    """The error for operator i, of which no plan fits."""
    op = program.ops[i]
    sizes = op.table.execute_bytes
    smallest = op.smallest_bytes or (int(sizes.min()) if len(op.table) else 0)
    return CapacityError(
        operator=op.label,
        needed_bytes=smallest + op.resident_bytes,
        available_bytes=program.rules.capacity_bytes,
        largest=(
            ("the operator's smallest plan", smallest),
            ("other live tensors", op.resident_bytes),
        ),
        hint="more cores or SRAM, a smaller batch or a shorter context would fit",
    )
