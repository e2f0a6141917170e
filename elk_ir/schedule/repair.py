"""Making a schedule fit, and using the room that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Weights, next_execution, next_state
from elk_ir.schedule.model import (
    Program,
    Schedule,
    last_place,
    occupied,
    queue_order,
    settled,
    waiting,
)


def repair(program: Program, schedule: Schedule, weights: Weights) -> Schedule:
    """`schedule` with plans moved down their fronts, and where that does not help preloads issued
    later, until every execute fits. Where that does not help either, the execute takes a smaller
    plan although more of it waits then, and its preload waits for nobody. Raises CapacityError if
    an operator does not fit alone."""
    capacity = program.rules.capacity_bytes
    if max(occupied(program, schedule), default=0) <= capacity:
        return schedule
    fronts = Fronts.of(program, weights)
    while True:
        used = occupied(program, schedule)
        worst = max(range(len(used)), key=lambda i: used[i], default=-1)
        if worst < 0 or used[worst] <= capacity:
            return schedule
        schedule = (
            _step(program, fronts, schedule, worst, used)
            or later(program, schedule, worst)
            or _alone(program, fronts, schedule, worst)
            or _fail(program, schedule, worst, used[worst])
        )


def _step(
    program: Program, fronts: Fronts, schedule: Schedule, i: int, used: Sequence[int]
) -> Schedule | None:
    """One step of the allocation at execute i; None if there is none."""
    ops, choice = program.ops, list(schedule.choice)
    capacity = program.rules.capacity_bytes
    best: tuple[float, int, int] | None = None
    step = next_execution(program, fronts, i, choice[i])
    if step is not None:
        table = ops[i].table
        saved = int(table.execute_bytes[choice[i]] - table.execute_bytes[step])
        if table.preload_bytes[step] <= table.preload_bytes[choice[i]] or not ops[i].loads:
            added = float(fronts.costs[i][step] - fronts.costs[i][choice[i]])
            best = (saved / max(added, 1e-15), i, step)
    for j in waiting(program, schedule, i):
        table = ops[j].table
        room = capacity - used[j] + int(table.execute_bytes[choice[j]])
        step = next_state(program, fronts, j, choice[j], max(room, 0))
        if step is None:
            continue
        saved = int(table.preload_bytes[choice[j]] - table.preload_bytes[step])
        added = float(fronts.costs[j][step] - fronts.costs[j][choice[j]])
        if best is None or saved / max(added, 1e-15) > best[0]:
            best = (saved / max(added, 1e-15), j, step)
    if best is None:
        return None
    choice[best[1]] = best[2]
    return replace(schedule, choice=tuple(choice))


def later(program: Program, schedule: Schedule, i: int) -> Schedule | None:
    """The last of the preloads that wait during execute i issued after it, and with it what
    follows it in the order; None if none waits."""
    count = len(program.ops)
    held = set(waiting(program, schedule, i))
    issue = list(schedule.issue)
    for last in reversed(queue_order(program, schedule)):
        here = i if issue[last] <= i < last else i - count
        if last in held and here + 1 <= last_place(program, last):
            break
    else:
        return None
    issue[last] = here + 1
    return settled(program, replace(schedule, issue=tuple(issue)))


def _alone(program: Program, fronts: Fronts, schedule: Schedule, i: int) -> Schedule | None:
    """Execute i in its next smaller plan, its preload issued as late as can be; None if there is no
    smaller plan."""
    choice, issue = list(schedule.choice), list(schedule.issue)
    step = next_execution(program, fronts, i, choice[i])
    if step is None:
        return None
    choice[i], issue[i] = step, last_place(program, i)
    return settled(program, replace(schedule, choice=tuple(choice), issue=tuple(issue)))


def _fail(program: Program, schedule: Schedule, i: int, used_bytes: int) -> Schedule:
    op = program.ops[i]
    own = int(op.table.execute_bytes[schedule.choice[i]])
    raise CapacityError(
        operator=op.label,
        needed_bytes=used_bytes,
        available_bytes=program.rules.capacity_bytes,
        largest=(
            ("the operator's plan", own),
            ("other live tensors", op.resident_bytes),
            ("preloads that cannot wait", max(0, used_bytes - own - op.resident_bytes)),
        ),
        hint="more cores or SRAM, a smaller batch or a shorter context would fit",
    )
