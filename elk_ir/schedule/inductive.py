"""`elk-dyn`: inductive scheduling with cost-aware allocation.

From the last operator back: while operator i executes, the preloads of the next n operators are on
their way, for every n that fits; the n that ends the rest of the program soonest is kept. Of
identical layers three are scheduled in a row, and the middle one is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Objective, allocate, seconds
from elk_ir.schedule.model import (
    Clock,
    Edge,
    Load,
    Program,
    Schedule,
    execute,
    first_place,
    issue,
    load_of,
)
from elk_ir.schedule.repair import repair

AHEAD = 24
"""The most operators that are preloaded ahead in a program without a loop."""
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
    return Program(tuple(ops), program.rules)


def _shifted(edge: Edge, k: int, count: int) -> Edge:
    if edge.producer < 0:
        return edge
    producer = edge.producer + count * (k - edge.back)
    return Edge(producer if producer >= 0 else -1, edge.result)


def elk_dyn(
    program: Program, *, order: Sequence[int] | None = None, objective: Objective = seconds
) -> Schedule:
    """The schedule of `program`. `order`: the preloads in the order of their issue (default: that
    of the operators); in a periodic program of one period.

    Raises CapacityError for an operator of which no plan fits.
    """
    count = len(program.ops)
    if count == 0:
        return Schedule((), (), ())
    if not program.periodic:
        choice, reach = _induct(program, AHEAD, objective, order or range(count))
        return repair(program, _schedule(program, choice, reach, order), objective)
    wide = unrolled(program, 3)
    wide_order = [k * count + j for k in range(3) for j in (order or range(count))]
    choice, reach = _induct(wide, count - 1, objective, wide_order)
    middle = slice(count, 2 * count)
    reach = [r - count for r in reach[middle]]
    return repair(program, _schedule(program, choice[middle], reach, order), objective)


def _schedule(
    program: Program, choice: Sequence[int], reach: Sequence[int], order: Sequence[int] | None
) -> Schedule:
    """From the position in the order up to which preloads are issued before each execute, to where
    each preload is issued."""
    count = len(program.ops)
    ordered = list(order or range(count))
    issued = [0] * count
    for position, j in enumerate(ordered):
        at = j
        first = first_place(program, j)
        while at > first:
            # Before execute at - 1, were all preloads up to this one issued?
            before = at - 1
            shift = count if before < 0 else 0
            if reach[before + shift] - shift < position:
                break
            at = before
        issued[j] = at
    return Schedule(tuple(choice), tuple(issued), tuple(ordered))


def _induct(
    program: Program, ahead: int, objective: Objective, order: Sequence[int]
) -> tuple[list[int], list[int]]:
    """(choice, reach): reach[i] is the last position of the order issued before execute i ends."""
    count, rules = len(program.ops), program.rules
    fronts = Fronts.of(program, objective)
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
        best: tuple[float, int, list[int]] | None = None
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
            time = _rest(program, found, i, waiting, reach, order)
            if best is None or time < best[0] * (1.0 - 1e-12):
                best = (time, last, found)
        if best is None:
            raise does_not_fit(program, i)
        _, reach[i], choice = best
        for j in order[: reach[i] + 1]:
            if j > i and program.ops[j].loads:
                room[i] -= int(program.ops[j].table.preload_bytes[choice[j]])
    return choice, reach


class _Lazy(dict[int, Load]):
    """Loads that are computed when asked for."""

    def __init__(self, program: Program, choice: Sequence[int]):
        super().__init__()
        self.program, self.choice = program, choice

    def __missing__(self, key: int) -> Load:
        self[key] = found = load_of(self.program, self.choice, key)
        return found


def _rest(
    program: Program,
    choice: Sequence[int],
    i: int,
    waiting: Sequence[int],
    reach: Sequence[int],
    order: Sequence[int],
) -> float:
    """From the start of execute i, its own preload landed and those of `waiting` issued, to the
    end (or as far as it matters)."""
    rules = program.rules
    end = min(len(program.ops), i + HORIZON)
    loads = _Lazy(program, choice)
    clock = Clock()
    if program.ops[i].loads:
        clock.landed.add(i)
    for j in waiting:
        issue(clock, loads, j, rules)
    issued = set(waiting)
    upto = -1
    for k in range(i, end):
        if k > i:
            while upto < reach[k]:
                upto += 1
                j = order[upto]
                if j >= k and j not in issued:
                    issue(clock, loads, j, rules)
                    issued.add(j)
        execute(clock, loads, k, rules)
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
