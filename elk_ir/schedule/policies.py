"""The policies by name, each a pure function from a program to a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elk_ir.schedule.allocate import Weights
from elk_ir.schedule.inductive import does_not_fit, elk_dyn
from elk_ir.schedule.model import Program, Schedule, placed_stores
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


@dataclass(frozen=True)
class Effort:
    """What bounds the search: evaluations for a program of some 16 operators, and the seed."""

    steps: int = STEPS
    seed: int = 0


def policy(name: str, *, energy: bool = False, effort: Effort = Effort()) -> Policy:
    """The policy called `name`: a function that raises CapacityError for an operator of which no
    plan fits. Raises KeyError for a policy that does not exist."""
    if name == "search":
        return lambda program: _searched(program, energy, effort)
    chosen = _ELK["elk-full" if name == REFERENCE else name]
    return lambda program: min(_all(chosen, program, energy), key=score_of(program, energy))


def _all(
    chosen: Callable[[Program, Weights], Schedule], program: Program, energy: bool
) -> list[Schedule]:
    """The schedules of a policy under every price."""
    for i, op in enumerate(program.ops):
        room = program.rules.capacity_bytes - op.resident_bytes
        if len(op.table) == 0 or int(op.table.execute_bytes.min()) > room:
            raise does_not_fit(program, i)
    found = (chosen(program, Weights(preload=price, energy=energy)) for price in PRICES)
    return [placed_stores(program, schedule) for schedule in found]


def _searched(program: Program, energy: bool, effort: Effort) -> Schedule:
    """The search, starting from what all other policies find."""
    found = [s for chosen in _ELK.values() for s in _all(chosen, program, energy)]
    size = max(1, len(program.ops))
    steps = effort.steps * 16 // max(16, size)
    if not program.periodic:
        # What runs once is worth less than what runs in every layer.
        steps //= 8
    return search(program, found, steps=max(50, steps), seed=effort.seed, energy=energy)


def reorder(program: Program) -> Schedule:
    """The best order and places of preloads for the only plan that each operator of `program` has.

    Raises CapacityError when the plans do not fit.
    """
    choice = [0] * len(program.ops)
    return placed_stores(program, reordered(program, choice) or basic(program, Weights()))
