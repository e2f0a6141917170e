"""The scheduler's model, the policies on random programs, and their distance from the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Weights, allocate, settle
from elk_ir.schedule.exhaustive import is_valid, optimum, random_program
from elk_ir.schedule.fill import fill
from elk_ir.schedule.inductive import elk_dyn, unrolled
from elk_ir.schedule.model import (
    Edge,
    Op,
    Program,
    Rules,
    Schedule,
    Store,
    evaluate,
    excess_bytes,
    occupied,
    placed_stores,
    shared,
    step_ranks,
    waiting,
)
from elk_ir.schedule.options import Table
from elk_ir.schedule.pack import addressed, overflow_bytes
from elk_ir.schedule.policies import EXECUTABLE, Effort, policy
from elk_ir.schedule.reorder import edit_distance, heavy_loaders, orders
from elk_ir.schedule.repair import repair
from elk_ir.schedule.search import search
from elk_ir.schedule.static import basic, static

FREE = Rules(
    capacity_bytes=1000,
    barrier_s=0.0,
    latency_s=0.0,
    exchange_first=False,
    separate_network=False,
    separate_sram=False,
    beside_compute=True,
    steal=0.0,
)


def table(
    compute: list[float],
    execute: list[int],
    preload: list[int],
    preload_s: float,
    *,
    exchange: float = 0.0,
    landing: float = 0.0,
    inputs: int = 0,
) -> Table:
    """Options by time and bytes; every preload takes as long."""
    n = len(compute)
    return Table(
        execute_bytes=np.asarray(execute),
        preload_bytes=np.asarray(preload),
        compute_s=np.asarray(compute, dtype=float),
        exchange_s=np.full(n, exchange),
        preload_s=np.full(n, preload_s),
        landing_s=np.full(n, landing),
        energy_j=np.zeros(n),
        family=np.arange(n),
        slice_s=np.zeros((inputs, n)),
        spread=np.zeros((inputs, n)),
        pieces=np.ones((1, n)),
        hbm_s=preload_s,
        plans=(None,) * n,  # pyright: ignore[reportArgumentType]
    )


def op(name: str, compute: float, size: int, preload_s: float, extra: int = 0, **more: float) -> Op:
    """An operator of one plan."""
    return Op(name, table([compute], [size + extra], [size], preload_s, **more))  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------- time


def test_a_preload_overlaps_the_executes_before_it() -> None:
    program = Program((op("a", 3.0, 10, 1.0), op("b", 2.0, 10, 2.0)), FREE)
    late = Schedule((0, 0), (0, 1), (0, 1))
    early = Schedule((0, 0), (0, 0), (0, 1))
    assert evaluate(program, late).time_s == pytest.approx(1 + 3 + 2 + 2)
    assert evaluate(program, early).time_s == pytest.approx(1 + 3 + 2)


def test_a_store_that_may_wait_keeps_no_preload_back() -> None:
    """A store in front of execute b would wait for all that is ahead of it. elk-dyn as it is takes
    the long preload for what is to be kept behind it; moving the store afterwards helps little."""
    ops = (
        op("a", 1.0, 10, 0.5),
        op("b", 1.0, 10, 0.5),
        op("c", 1.0, 10, 0.5),
        op("d", 8.0, 500, 8.0),
        op("e", 1.0, 10, 0.5),
    )
    program = Program(ops, FREE, periodic=True, stores=(Store(1, 0.1),))
    alone = placed_stores(program, elk_dyn(program, Weights()))
    assert evaluate(program, alone).time_s == pytest.approx(18.5)
    for name in ("elk-dyn", "elk-full", "search"):
        found = policy(name, effort=Effort(200))(program)
        assert evaluate(program, found).time_s == pytest.approx(16.0)
    fixed = replace(program, stores=(Store(1, 0.1, movable=False),))
    assert evaluate(fixed, policy("elk-dyn")(fixed)).time_s == pytest.approx(18.6)


def test_preloads_run_in_the_order_of_issue() -> None:
    program = Program((op("a", 1.0, 10, 1.0), op("b", 1.0, 10, 5.0), op("c", 1.0, 10, 1.0)), FREE)
    behind = Schedule((0, 0, 0), (0, 0, 0), (0, 2, 1))
    assert evaluate(program, behind).time_s == pytest.approx(1 + 1 + 5 + 1 + 1)


def test_latency_counts_only_when_the_queue_is_empty() -> None:
    rules = Rules(1000, 0.0, 0.5, False, False, False, True, 0.0)
    program = Program((op("a", 1.0, 10, 2.0), op("b", 1.0, 10, 2.0)), rules)
    together = Schedule((0, 0), (0, 0), (0, 1))
    apart = Schedule((0, 0), (0, 1), (0, 1))
    assert evaluate(program, together).time_s == pytest.approx(0.5 + 2 + 2 + 1)
    assert evaluate(program, apart).time_s == pytest.approx(0.5 + 2 + 1 + 0.5 + 2 + 1)


@pytest.mark.parametrize(
    ("landing", "ingress", "rates"),
    [
        (0.4, 0.5, (1.0, 1.0)),
        (0.5, 1.0, (1.0, 0.5)),
        (1.0, 1.0, (0.5, 0.5)),
        (1.0, 0.25, (0.75, 1.0)),
        (0.8, 0.6, (0.625, 0.5 / 0.6)),
    ],
)
def test_ports_are_shared_max_min(
    landing: float, ingress: float, rates: tuple[float, float]
) -> None:
    assert shared(FREE, landing, ingress) == pytest.approx(rates)


def test_an_exchange_and_a_landing_preload_slow_each_other() -> None:
    a = op("a", 0.0, 10, 1.0, exchange=4.0)
    b = op("b", 1.0, 10, 2.0, landing=2.0)
    program = Program((a, b), FREE)
    # Half the port each until b has landed, after 4 s; a has 2 s left then.
    assert evaluate(program, Schedule((0, 0), (0, 0), (0, 1))).time_s == pytest.approx(
        1 + 4 + 2 + 1
    )


def test_preloads_may_have_to_wait_for_compute() -> None:
    rules = Rules(1000, 0.0, 0.0, False, False, False, False, 0.0)
    program = Program((op("a", 3.0, 10, 1.0), op("b", 2.0, 10, 2.0)), rules)
    assert evaluate(program, Schedule((0, 0), (0, 0), (0, 1))).time_s == pytest.approx(8.0)


def test_a_loop_is_timed_in_its_steady_state() -> None:
    body = (op("a", 1.0, 10, 3.0), op("b", 2.0, 10, 1.0))
    program = Program(body, FREE, periodic=True)
    serial = Schedule((0, 0), (0, 1), (0, 1))
    piped = Schedule((0, 0), (-1, 0), (0, 1))
    assert evaluate(program, serial).time_s == pytest.approx(3 + 1 + 1 + 2)
    # HBM idles only while "a", whose successor is already on its way, has nothing to fetch.
    assert evaluate(program, piped).time_s == pytest.approx(4.0)


def test_relayouts_depend_on_the_producer() -> None:
    wide = table([1.0, 1.0], [10, 10], [0, 0], 0.0)
    object.__setattr__(wide, "pieces", np.asarray([[100.0, 10.0]]))
    reader = table([1.0], [10], [0], 0.0, inputs=1)
    object.__setattr__(reader, "slice_s", np.asarray([[0.5]]))
    object.__setattr__(reader, "spread", np.asarray([[0.02]]))
    program = Program((Op("a", wide), Op("b", reader, (Edge(0, 0),))), FREE)
    assert evaluate(program, Schedule((0, 0), (0, 1), (0, 1))).time_s == pytest.approx(4.0)
    assert evaluate(program, Schedule((1, 0), (0, 1), (0, 1))).time_s == pytest.approx(2.5)
    assert settle(program, Weights()) == [1, 0]


# ---------------------------------------------------------------------- memory


def test_waiting_preloads_take_room_in_every_execute_that_they_pass() -> None:
    body = tuple(op(name, 1.0, 100, 1.0, extra=50) for name in "abc")
    program = Program(body, FREE, periodic=True)
    schedule = Schedule((0, 0, 0), (-1, 1, 0), (0, 1, 2))
    assert waiting(program, schedule, 2) == [0]
    assert waiting(program, schedule, 0) == [2]
    assert waiting(program, schedule, 1) == [2]
    assert occupied(program, schedule) == [250, 250, 250]
    assert excess_bytes(program, schedule, 200) == 50


def test_fill_issues_as_early_as_fits() -> None:
    body = tuple(op(name, 1.0, 300, 1.0, extra=50) for name in "abcd")
    program = Program(body, FREE)
    schedule = fill(program, (0, 0, 0, 0))
    assert schedule is not None
    assert schedule.issue == (0, 0, 0, 1)
    assert max(occupied(program, schedule)) <= FREE.capacity_bytes
    swapped = fill(program, (0, 0, 0, 0), order=[0, 2, 1, 3])
    assert swapped is not None and swapped.issue == (0, 0, 0, 1)


def test_fill_carries_preloads_around_a_loop() -> None:
    program = Program(tuple(op(name, 1.0, 200, 1.0) for name in "abc"), FREE, periodic=True)
    schedule = fill(program, (0, 0, 0))
    assert schedule is not None
    # One period ahead at most: each is issued as soon as its last use is over.
    assert schedule.issue == (-2, -1, 0)


def test_allocation_gives_up_time_where_most_bytes_are_saved() -> None:
    flat = table([1.0, 1.1, 3.0], [600, 500, 100], [100, 100, 100], 1.0)
    steep = table([1.0, 2.0], [300, 290], [300, 100], 1.0)
    object.__setattr__(steep, "family", np.zeros(2, dtype=int))
    program = Program((Op("a", flat), Op("b", steep)), FREE)
    fronts = Fronts.of(program, Weights())
    room = [850, 1000]
    # 100 bytes for 0.1 s of "a" are cheaper than 200 for 1 s of "b".
    assert allocate(program, fronts, [0, 0], 0, [1], room) == [1, 0]
    # The next step of "a" would cost 1.9 s for 400 bytes: 211 a second, "b" gives 200.
    assert allocate(program, fronts, [0, 0], 0, [1], [700, 1000]) == [2, 0]
    assert allocate(program, fronts, [0, 0], 0, [1], [199, 1000]) is None


def test_step_ranks_fall_in_size() -> None:
    times, sizes = np.asarray([3.0, 1.0, 2.0, 2.5]), np.asarray([10, 50, 60, 40])
    assert step_ranks(times, sizes).tolist() == [1, 3, 0]


# ---------------------------------------------------------------------- policies


@pytest.mark.parametrize("name", EXECUTABLE)
@pytest.mark.parametrize("seed", range(2))
def test_policies_give_valid_schedules(name: str, seed: int) -> None:
    program = random_program(seed, 6, 4)
    schedule = policy(name, effort=Effort(steps=100))(program)
    assert is_valid(program, schedule)
    body = Program(program.ops, program.rules, periodic=True)
    schedule = policy(name, effort=Effort(steps=100))(body)
    assert excess_bytes(body, schedule, body.rules.capacity_bytes) <= 0
    assert all(j - 6 < at <= j for j, at in enumerate(schedule.issue))


@pytest.mark.parametrize("seed", range(4))
def test_search_is_never_worse_and_near_the_optimum(seed: int) -> None:
    program = random_program(seed, 4, 3)
    times = {
        name: evaluate(program, policy(name, effort=Effort(steps=600))(program)).time_s
        for name in EXECUTABLE
    }
    assert times["search"] == min(times.values())
    best = optimum(program)
    assert best.schedule is not None and is_valid(program, best.schedule)
    assert evaluate(program, best.schedule).time_s == pytest.approx(best.time_s)
    assert best.bound_s == best.time_s <= times["search"] * (1.0 + 1e-9)
    assert times["search"] <= 1.01 * best.time_s
    cut = optimum(program, nodes=50)
    assert cut.bound_s <= best.time_s * (1.0 + 1e-9)


def test_search_is_deterministic_by_seed() -> None:
    program = random_program(3, 8, 6)
    start = [basic(program, Weights())]
    assert search(program, start, steps=200, seed=5) == search(program, start, steps=200, seed=5)


def test_more_operators_ahead_than_basic_help() -> None:
    program = Program(
        tuple(op(f"o{i}", 1.0 if i % 2 else 4.0, 100, 2.5) for i in range(8)), FREE, True
    )
    times = [evaluate(program, f(program, Weights())).time_s for f in (basic, static, elk_dyn)]
    assert times[0] > times[1] and times[2] <= times[1] * 1.0001
    assert times[2] == pytest.approx(20.0)


def test_an_operator_that_fits_in_no_plan_is_named() -> None:
    program = Program((op("small", 1.0, 10, 1.0), op("huge", 1.0, 2000, 1.0)), FREE)
    for name in EXECUTABLE:
        with pytest.raises(CapacityError, match="huge: needs 2,000 bytes"):
            policy(name)(program)


def test_an_operator_with_large_preloads_in_its_small_plan_is_repaired() -> None:
    """Where only a plan fits of which more waits, its preload waits for nobody."""
    small = Op("b", table([1.0, 2.0], [900, 400], [100, 300], 1.0))
    held = Op("a", table([1.0], [600], [100], 1.0), resident_bytes=300)
    program = Program((held, replace(small, resident_bytes=500)), FREE)
    start = Schedule((0, 0), (0, 0), (0, 1))
    fixed = repair(program, start, Weights())
    assert fixed.choice == (0, 1) and fixed.issue == (0, 1)


def test_an_operator_without_plans_is_named() -> None:
    reader = table([1.0], [10], [0], 0.0, inputs=1)
    nothing = table([], [], [], 0.0)
    ops = (Op("none", nothing, smallest_bytes=4000), Op("b", reader, (Edge(0, 0),)))
    for name in EXECUTABLE:
        with pytest.raises(CapacityError, match="none: needs 4,000 bytes"):
            policy(name)(Program(ops, FREE))


def test_energy_is_another_objective() -> None:
    rules = Rules(1000, 0.0, 0.0, False, False, False, True, 0.0, static_w=1.0)
    choice = table([1.0, 2.0], [10, 10], [10, 10], 0.5)
    object.__setattr__(choice, "energy_j", np.asarray([5.0, 1.0]))
    program = Program((Op("a", choice),), rules)
    assert policy("search", effort=Effort(50))(program).choice == (0,)
    assert policy("search", energy=True, effort=Effort(50))(program).choice == (1,)


# ---------------------------------------------------------------------- orders


def test_orders_permute_heavy_loaders_only() -> None:
    heavy, light = op("h", 1.0, 100, 5.0), op("l", 1.0, 1, 0.001)
    program = Program((heavy, light, heavy, light, heavy), FREE)
    assert heavy_loaders(program) == [0, 2, 4]
    found = [tuple(order) for order in orders(program, (0,) * 5)]
    assert len(set(found)) == len(found) == 5
    for order in found:
        assert sorted(order) == [0, 1, 2, 3, 4]
        # A light one stays in front of the heavy ones that execute after it.
        assert order.index(1) < order.index(2) or order.index(2) < order.index(0)


def test_orders_that_overflow_are_dropped() -> None:
    program = Program((op("a", 1.0, 600, 5.0), op("b", 1.0, 600, 5.0)), FREE)
    assert list(orders(program, (0, 0))) == []


def test_edit_distance_is_the_mean_displacement() -> None:
    assert edit_distance([0, 1, 2]) == 0.0
    assert edit_distance([2, 0, 1]) == pytest.approx(4 / 3)


def test_unrolling_keeps_edges() -> None:
    reader = table([1.0], [10], [0], 0.0, inputs=2)
    body = (Op("a", reader, (Edge(0, 0, back=True), Edge(-1, 0))),)
    wide = unrolled(Program(body, FREE, periodic=True), 3)
    assert [o.inputs[0].producer for o in wide.ops] == [-1, 0, 1]


# ---------------------------------------------------------------------- addresses


def ring_of_three(addresses: int | None) -> Program:
    """A loop of three operators, of which each preload waits beside one execute of the others: any
    two fit into 100 bytes, and each meets both others, so that together they need 120."""
    rules = replace(FREE, capacity_bytes=100)
    ops = tuple(op(name, 1.0, 40, 1.0) for name in "abc")
    return Program(ops, rules, periodic=True, addresses_bytes=addresses)


THREE_ARCS = Schedule((0, 0, 0), (-1, 0, 1), (0, 1, 2))


def test_arcs_of_which_any_two_meet_have_no_addresses() -> None:
    program = ring_of_three(100)
    assert excess_bytes(program, THREE_ARCS, 100) == -20
    assert overflow_bytes(program, THREE_ARCS) == 20
    assert overflow_bytes(ring_of_three(None), THREE_ARCS) == 0
    assert overflow_bytes(ring_of_three(120), THREE_ARCS) == 0


def test_a_preload_is_issued_later_where_addresses_are_missing() -> None:
    program = ring_of_three(100)
    found = addressed(program, THREE_ARCS)
    assert found is not None and found.choice == THREE_ARCS.choice
    assert overflow_bytes(program, found) == 0
    assert sum(found.issue) == sum(THREE_ARCS.issue) + 1
    assert addressed(replace(program, addresses_bytes=30), THREE_ARCS) is None


def test_a_plan_moves_down_where_addresses_are_missing() -> None:
    """Issuing any preload later costs 3 s, and another plan for one of them a tenth of one."""
    rules = replace(FREE, capacity_bytes=100)
    small = table([1.0, 1.1], [40, 20], [40, 20], 1.0)
    ops = (Op("a", small), *(op(name, 1.0, 40, 1.0) for name in "bc"))
    program = Program(ops, rules, periodic=True, addresses_bytes=100)
    found = addressed(program, THREE_ARCS)
    assert found is not None and overflow_bytes(program, found) == 0
    assert found.choice == (1, 0, 0) and found.issue == THREE_ARCS.issue


def test_the_search_finds_addresses_where_they_are_asked_for() -> None:
    bare = search(ring_of_three(None), [THREE_ARCS], steps=200)
    asked = search(ring_of_three(100), [THREE_ARCS], steps=200)
    assert overflow_bytes(ring_of_three(100), asked) == 0
    assert evaluate(ring_of_three(None), bare).time_s <= evaluate(ring_of_three(100), asked).time_s


# ---------------------------------------------------------------------- turns


def test_what_an_execute_does_in_turn() -> None:
    """3 s of tiles, then 2 s of an exchange that fills the port; a preload of 2 s, as fast as the
    port, lands beside the tiles and is gone when the exchange begins. Blended, it would share the
    port with two fifths of it."""
    loading = op("b", 1.0, 10, 2.0, landing=2.0)
    plain = table([3.0], [10], [10], 0.0, exchange=2.0)
    in_turn = replace(plain, turns_s=np.asarray([[0.0], [2.0], [0.0]]))
    schedule = Schedule((0, 0), (0, 0), (0, 1))
    times = [
        evaluate(Program((Op("a", t, loads=False), loading), FREE), schedule).time_s
        for t in (plain, in_turn)
    ]
    assert times[1] == pytest.approx(3.0 + 2.0 + 1.0)
    assert times[0] > times[1]
