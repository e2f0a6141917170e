"""Making a schedule fit, and using the room that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Objective, next_execution, next_state, seconds
from elk_ir.schedule.model import Program, Schedule, occupied_bytes, waiting


def repair(program: Program, schedule: Schedule, objective: Objective = seconds) -> Schedule:
    """`schedule` with plans moved down their fronts, and where that does not help preloads issued
    later, until every execute fits. Raises CapacityError if an operator does not fit alone."""
    capacity = program.rules.capacity_bytes
    if all(occupied_bytes(program, schedule, i) <= capacity for i in range(len(program.ops))):
        return schedule
    fronts = Fronts.of(program, objective)
    while True:
        used = [occupied_bytes(program, schedule, i) for i in range(len(program.ops))]
        worst = max(range(len(used)), key=lambda i: used[i], default=-1)
        if worst < 0 or used[worst] <= capacity:
            return schedule
        schedule = (
            _step(program, fronts, schedule, worst, used)
            or later(program, schedule, worst)
            or _fail(program, schedule, worst)
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
    last = next((j for j in reversed(queue_order(program, schedule)) if j in held), None)
    if last is None:
        return None
    issue = list(schedule.issue)
    here = i if issue[last] <= i < last else i - count
    issue[last] = here + 1
    return settled(program, replace(schedule, issue=tuple(issue)))


def queue_order(program: Program, schedule: Schedule) -> list[int]:
    """The operators in the order in which a pass over the program issues their preloads: by the
    absolute place of issue, then by the order."""
    rank = {j: k for k, j in enumerate(schedule.order)}
    return sorted(range(len(program.ops)), key=lambda j: (schedule.issue[j], rank[j]))


def settled(program: Program, schedule: Schedule) -> Schedule:
    """The same with the order made consistent with the places of issue."""
    return replace(schedule, order=tuple(queue_order(program, schedule)))


def _fail(program: Program, schedule: Schedule, i: int) -> Schedule:
    op = program.ops[i]
    own = int(op.table.execute_bytes[schedule.choice[i]])
    smallest = op.smallest_bytes or int(op.table.execute_bytes.min())
    raise CapacityError(
        operator=op.label,
        needed_bytes=smallest + op.resident_bytes,
        available_bytes=program.rules.capacity_bytes,
        largest=(("the operator's plan", own), ("other live tensors", op.resident_bytes)),
        hint="more cores or SRAM, a smaller batch or a shorter context would fit",
    )


def hoist(program: Program, schedule: Schedule, movable: Sequence[int], ahead: int) -> Schedule:
    """The preloads of `movable`, in order of their execution, issued as early as their bytes fit
    beside everything, at most `ahead` executes early, never before an earlier preload."""
    issue = list(schedule.issue)
    capacity = program.rules.capacity_bytes
    current = schedule
    for j in sorted(movable):
        if not program.ops[j].loads:
            continue
        while issue[j] > max(0, j - ahead):
            trial = list(issue)
            trial[j] -= 1
            candidate = replace(current, issue=tuple(trial))
            if occupied_bytes(program, candidate, trial[j]) > capacity:
                break
            before = [k for k in range(j) if program.ops[k].loads and issue[k] > trial[j]]
            if before:
                break
            issue, current = trial, candidate
    return settled(program, current)
