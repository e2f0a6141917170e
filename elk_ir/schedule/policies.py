"""The policies by name, each a pure function from a program to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elk_ir.schedule.allocate import Weights
from elk_ir.schedule.inductive import does_not_fit, elk_dyn
from elk_ir.schedule.model import Program, Schedule, placed_stores
from elk_ir.schedule.pack import addressed
from elk_ir.schedule.reorder import elk_full, reordered
from elk_ir.schedule.search import STEPS, score_of, search
from elk_ir.schedule.static import basic, static

Policy = Callable[[Program], Schedule]

PRICES = (1.0, 0.25)
"""What a second of preload beyond the bytes' own costs, in seconds of execution: tried in turn, by
every policy, since each of them only sees one operator's time and bytes when it picks a plan."""

_ELK: dict[str, Callable[[Program, Weights], Schedule]] = {
    "basic": basic,
    "static": static,
    "elk-dyn": elk_dyn,
    "elk-full": elk_full,
}

EXECUTABLE = (*_ELK, "search")
"""Policies whose programs run, the best one last."""

REFERENCE = "ideal"
"""elk-full on a chip whose preloads have a network and SRAM of their own; never executed."""


REPEATS = 16
"""Iterations of a loop from which on all of the effort is spent on its body."""


@dataclass(frozen=True)
class Effort:
    """What bounds the search: evaluations for a program of some 16 operators, and the seed."""

    steps: int = STEPS
    seed: int = 0


Solved = dict[object, list[Schedule]]
"""Schedules by policy, objective and program: the search starts from what the others find, and is
compared with them afterwards. Those of elk-dyn before stores are placed too: elk-full's first."""


def policy(
    name: str, *, energy: bool = False, effort: Effort = Effort(), solved: Solved | None = None
) -> Policy:
    """The policy called `name`: a function that raises CapacityError for an operator of which no
    plan fits. Raises KeyError for a policy that does not exist. Policies that are given the same
    `solved` do nothing twice."""
    known: Solved = {} if solved is None else solved
    if name == "search":
        return lambda program: _searched(program, energy, effort, known)
    chosen = "elk-full" if name == REFERENCE else name
    if chosen not in _ELK:
        raise KeyError(name)
    return lambda program: _all(chosen, program, energy, known)[0]


def _all(name: str, program: Program, energy: bool, solved: Solved) -> list[Schedule]:
    """The schedules of a policy under every price, with stores at their best places, the best one
    first; with addresses where they are asked for, as long as one can become the best that way."""
    key = (name, energy, program.key, program.addresses_key)
    if key not in solved:
        score = score_of(program, energy)
        found = dict.fromkeys(_scheduled(name, program, energy, solved))
        if name == "elk-full":
            # Its first order is that of the operators, in which addresses may be had for less.
            found |= dict.fromkeys(_scheduled("elk-dyn", program, energy, solved))
        placed = [placed_stores(program, replace(each, stores=())) for each in found]
        placed.sort(key=score)
        if program.addresses_bytes is not None:
            placed = _addressed(program, placed, score)
        solved[key] = placed
    return solved[key]


def _addressed(
    program: Program, schedules: Sequence[Schedule], score: Callable[[Schedule], float]
) -> list[Schedule]:
    """Schedules with addresses, the best one first; those as they are if none can have some."""
    best: list[tuple[float, Schedule]] = []
    for schedule in schedules:
        if best and best[0][0] <= score(schedule):
            break  # with addresses it would be worse still
        found = addressed(program, schedule)
        if found is not None:
            found = placed_stores(program, found)
            best.append((score(found), found))
            best.sort(key=lambda entry: entry[0])
    return [schedule for _, schedule in best] or list(schedules)


def _scheduled(name: str, program: Program, energy: bool, solved: Solved) -> list[Schedule]:
    """What a policy itself decides; it knows nothing of addresses."""
    key = (name, energy, program.key)
    if key in solved:
        return solved[key]
    for i, op in enumerate(program.ops):
        room = program.rules.capacity_bytes - op.resident_bytes
        if len(op.table) == 0 or int(op.table.execute_bytes.min()) > room:
            raise does_not_fit(program, i)
    weights = [Weights(preload=price, energy=energy) for price in PRICES]
    cases = [(case, each) for case in _without_stores(program) for each in weights]
    if name == "elk-full":
        first = _scheduled("elk-dyn", program, energy, solved)
        found = [elk_full(case, w, dyn) for (case, w), dyn in zip(cases, first, strict=True)]
    else:
        found = [_ELK[name](case, each) for case, each in cases]
    solved[key] = found
    return found


def _without_stores(program: Program) -> list[Program]:
    """The program, and the same without what it may store later. A policy takes a store for one
    that is issued as early as can be, and what is preloaded ahead of it for what it waits for; in
    front of another execute it may cost nothing."""
    kept = tuple(store for store in program.stores if not store.movable)
    return [program] if kept == program.stores else [program, replace(program, stores=kept)]


def _searched(program: Program, energy: bool, effort: Effort, solved: Solved) -> Schedule:
    """The search, starting from what all other policies find."""
    key = ("search", energy, effort, program.key, program.repeats, program.addresses_key)
    if key in solved:
        return solved[key][0]
    found = [s for name in _ELK for s in _all(name, program, energy, solved)]
    size = max(1, len(program.ops))
    # What runs once or twice is worth less than what runs in every one of many layers.
    share = min(REPEATS, max(2, program.repeats)) if program.periodic else 2
    steps = effort.steps * 16 // max(16, size) * share // REPEATS
    best = search(program, found, steps=max(50, steps), seed=effort.seed, energy=energy)
    solved[key] = [best]
    return best


def reorder(program: Program) -> Schedule:
    """The best order and places of preloads for the only plan that each operator of `program` has.

    Raises CapacityError when the plans do not fit.
    """
    choice = [0] * len(program.ops)
    return placed_stores(program, reordered(program, choice) or basic(program, Weights()))
