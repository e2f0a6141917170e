"""The bounds of branch and bound, and its optimum, against schedules of every kind of chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from elk_ir.schedule.exhaustive import TOLERANCE, is_valid, optimum, random_program
from elk_ir.schedule.exhaustive_bounds import (
    Rest,
    ascend,
    bounds,
    overlap,
    savings,
    side_by_side,
)
from elk_ir.schedule.model import (
    Clock,
    Edge,
    Load,
    Op,
    Program,
    Rules,
    Schedule,
    Turn,
    evaluate,
    execute,
    issue,
    loads_of,
)

RULES = {
    "shared": Rules(600_000, 2e-7, 2e-7, False, False, False, True, 0.0),
    "tight": Rules(330_000, 2e-7, 4e-6, False, False, False, True, 0.0),
    "exchange-first": Rules(450_000, 2e-7, 2e-6, True, False, False, True, 0.0),
    "separate-network": Rules(450_000, 2e-7, 2e-7, False, True, False, True, 0.3),
    "separate-sram": Rules(330_000, 2e-7, 1e-6, False, False, True, True, 0.0),
    "not-beside-compute": Rules(450_000, 2e-7, 2e-7, False, False, False, False, 0.0),
    "steal": Rules(400_000, 2e-7, 0.0, True, False, False, True, 0.8),
}


def varied_program(seed: int, operators: int, plans: int, rules: Rules) -> Program:
    """A random program; some operators hold tensors of others, have turns and re-layouts, no
    preload or one that takes no time."""
    rng = np.random.default_rng(seed)
    found: list[Op] = []
    for i, op in enumerate(random_program(seed, operators, plans, rules=rules).ops):
        table, kind = op.table, rng.random(5)
        if kind[0] < 0.4:
            parts = rng.uniform(0.0, 0.5, (3, 1))
            turns = parts * np.stack([table.exchange_s, table.exchange_s, table.compute_s])
            table = replace(table, turns_s=turns)
        edges: tuple[Edge, ...] = ()
        if i > 0 and kind[1] < 0.4:
            edges = (Edge(int(rng.integers(i)), 0),)
            slices = rng.uniform(0.0, 4e-6, (1, plans))
            table = replace(table, slice_s=slices, spread=rng.uniform(0.0, 6e-11, (1, plans)))
        table = replace(table, pieces=rng.uniform(0.0, 1e5, (1, plans)))
        if kind[2] < 0.1:
            table = replace(table, preload_s=np.zeros(plans), landing_s=np.zeros(plans))
        resident = int(rng.integers(60_000)) if kind[3] < 0.3 else 0
        found.append(Op(op.label, table, edges, bool(kind[4] < 0.85), resident))
    return Program(tuple(found), rules)


def all_schedules(program: Program) -> Iterator[Schedule]:
    """Every valid schedule, without any bound."""
    count = len(program.ops)
    loaders = [j for j, op in enumerate(program.ops) if op.loads]
    others = [j for j in range(count) if j not in loaders]
    for choice in product(*(range(len(op.table)) for op in program.ops)):
        for order in permutations(loaders):
            for places in product(*(range(j + 1) for j in order)):
                at = dict(zip(order, places, strict=True))
                issued = tuple(at.get(j, 0) for j in range(count))
                schedule = Schedule(choice, issued, (*order, *others))
                if is_valid(program, schedule):
                    yield schedule


def random_schedule(program: Program, rng: np.random.Generator) -> Schedule | None:
    """A random valid schedule, if one is found."""
    count = len(program.ops)
    for _ in range(100):
        choice = tuple(int(rng.integers(len(op.table))) for op in program.ops)
        places = rng.integers(np.arange(1, count + 1))
        places = np.maximum(places, np.arange(count) - rng.integers(count))
        order = sorted(range(count), key=lambda j: (places[j], rng.random()))
        schedule = Schedule(choice, tuple(places.tolist()), tuple(order))
        if is_valid(program, schedule):
            return schedule
    return None


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_optimum_is_that_of_all_schedules(rules: Rules) -> None:
    for seed in range(12):
        program = varied_program(seed, 3, 2, rules)
        least = min((evaluate(program, s).time_s for s in all_schedules(program)), default=np.inf)
        found = optimum(program)
        assert found.time_s == pytest.approx(least, rel=TOLERANCE) and found.bound_s == found.time_s
        if found.schedule is not None:
            assert is_valid(program, found.schedule)
            assert evaluate(program, found.schedule).time_s == found.time_s


def test_optimum_with_a_long_latency() -> None:
    for seed in range(30):
        rules = replace(RULES["shared"], latency_s=(1e-5, 4e-5)[seed % 2])
        program = varied_program(seed, 4, 1, rules)
        least = min((evaluate(program, s).time_s for s in all_schedules(program)), default=np.inf)
        assert optimum(program).time_s == pytest.approx(least, rel=TOLERANCE)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_no_schedule_beats_a_bound(rules: Rules) -> None:
    rng = np.random.default_rng(7)
    checked = 0
    for seed in range(40):
        program = varied_program(seed, 5, 3, rules)
        schedule = random_schedule(program, rng)
        if schedule is None:
            continue
        time_s = evaluate(program, schedule).time_s * (1.0 + TOLERANCE)
        choices = side_by_side(program, [schedule.choice])
        bound, prices = ascend(choices, 20, np.inf)
        assert bound[0] <= time_s
        for trial in (*rng.uniform(0.0, 1.2, (4, 5, 1)), np.zeros((5, 1)), prices):
            saved, _ = savings(choices, trial)
            assert bounds(choices, trial, saved[0][0])[0] <= time_s
            _check_branch(program, schedule, trial[:, 0], time_s)
        checked += 1
    assert checked >= 10


def _check_branch(program: Program, schedule: Schedule, prices: np.ndarray, time_s: float) -> None:
    """The bound of every partial schedule of a schedule."""
    loads, clock, issued = loads_of(program, schedule.choice), Clock(), 0
    rest = Rest.of(program, schedule.choice, prices)
    for i, place in enumerate(schedule.queue(len(loads))):
        assert rest.bound(i, issued, clock) <= time_s
        for j in place:
            issue(clock, loads, j, program.rules)
            issued |= loads[j].loads << j
            assert rest.bound(i, issued, clock) <= time_s
        execute(clock, loads, i, program.rules)
    assert rest.bound(len(loads), issued, clock) <= time_s


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_overlap_is_what_the_evaluator_takes_less(rules: Rules) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        turn = Turn(*rng.uniform(0.0, 1.0, 3))
        landing = float(rng.uniform(1.0, 9.0))
        beside = Load(0.0, 0.0, 0.0, 0.0, float(rng.uniform(landing, 12.0)), landing, True)
        own = Load(turn.compute_s, turn.exchange_s, 0.0, 0.0, 0.0, 0.0, False, (turn,))
        clock = Clock(queue=[(1, 0.0)])
        execute(clock, [own, beside], 0, rules)
        if not clock.queue:
            continue
        saved, moved = overlap(rules, turn, beside)
        assert (1.0 - clock.left) * beside.preload_s == pytest.approx(moved)
        assert own.alone_s + moved - clock.now == pytest.approx(saved)


def test_a_search_cut_short_says_what_is_proven() -> None:
    program = random_program(6, 5, 3)
    whole, cut = optimum(program), optimum(program, nodes=10)
    assert cut.bound_s <= whole.time_s <= cut.time_s and cut.bound_s >= 0.9 * whole.time_s


def test_an_optimum_is_an_incumbent_that_nothing_beats() -> None:
    program = random_program(2, 5, 3)
    found = optimum(program)
    assert found.schedule is not None and optimum(program, found.schedule) == found


def test_nothing_fits() -> None:
    program = random_program(0, 3, 2, rules=replace(RULES["shared"], capacity_bytes=10))
    assert optimum(program).schedule is None and optimum(program).bound_s == np.inf
