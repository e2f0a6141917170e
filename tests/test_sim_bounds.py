"""Lower bounds: proven, so never above what is simulated; and the families' values by hand."""

from __future__ import annotations

import numpy as np
import pytest
import sim_programs as p
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elk_ir.chips import load_chip
from elk_ir.cost.device import device_model
from elk_ir.plan.buffers import Source
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Stat
from elk_ir.plan.enumerate import enumerate_plans
from elk_ir.sim import run, simulate
from elk_ir.sim.bounds import Choices, choices, operator_choices, plan_bound
from elk_ir.sim.chain_bounds import Fetch, chain_bound
from elk_ir.sim.machine import machine_of
from elk_ir.sim.run import SimulationError
from elk_ir.sim.timeline import PreloadWait, Repeat

NS = 1e-9


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_program_beats_a_bound(data: st.DataObject) -> None:
    """`simulate` asserts its own bounds; the bound over plans, with the plans of the program as
    the only ones, may not exceed its time either."""
    chip = data.draw(p.chips())
    timeline = data.draw(p.programs(chip.cores))
    result = simulate(timeline, chip)
    assert result.lower_bound_s <= result.time_s * (1 + 1e-9)
    found = operator_choices(timeline, machine_of(chip))
    bound = plan_bound(found, overlaps=chip.exchange_overlaps_compute)
    assert bound <= result.time_s * (1 + 1e-9)


def test_contention_by_hand() -> None:
    """Exchange of 200 ns beside a preload that fills the port (200 ns), then 100 ns of compute.

    Resource bounds: port 400. Serial cores 300, serial preloads 200. Together: with g = 0 and a = 1
    the second family gives C + E + 0 = 300, with g = 1, a = 1: E + P = 400.
    """
    ring = [((c + 1) % 4, c, 1600) for c in range(4)]
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 1600)),
        p.exchange(4, ring),
        p.compute([100] * 4),
        PreloadWait(0),
    )
    bounds = simulate(timeline, p.chip(4)).bounds_s
    assert bounds["network"] == pytest.approx(400 * NS)
    assert bounds["execute"] == pytest.approx(300 * NS)
    assert bounds["contention"] == pytest.approx(400 * NS)
    assert bounds["sram_port"] == pytest.approx(200 * NS)  # in and out of 1,600 at 16 a cycle


def test_contention_is_stronger_than_each_resource() -> None:
    """HBM-bound preloads of 600 ns that need half of the port, an exchange of 400, compute of 100.

    Alone: preload 600, cores 500, port 300 + 400 = 700. During X (at least 400) preloads get at
    most what the port leaves: T >= X + (1 - y) 600 and X >= 400 + 300 y, so T >= 1000 - 300 y; and
    T >= 100 + X >= 500 + 300 y. The worst y (2/3 of X's limit y <= 1) gives 1000 - 250 = 750.
    """
    slow = p.chip(4, **{"hbm.bandwidth_bytes_per_s": 16e9})
    ring = [((c + 1) % 4, c, 3200) for c in range(4)]
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 2400)),
        p.exchange(4, ring),
        p.compute([100] * 4),
        PreloadWait(0),
    )
    result = simulate(timeline, slow)
    single = max(result.bounds_s[k] for k in ("hbm", "network", "preload", "execute"))
    assert single == pytest.approx(700 * NS)
    assert result.bounds_s["contention"] == pytest.approx(750 * NS, rel=0.01)
    assert result.time_s >= result.bounds_s["contention"]


def test_several_preloads_need_the_chord() -> None:
    """Two preloads of 100 ns, one free for the port, one that fills it. As one of 200 ns at half
    of the port the family would claim more than what a scheduler can do: the free one moves while
    the exchange (100 ns) flows, the other during the 100 ns of compute; 200 ns in all."""
    one = np.asarray([200 * NS])
    together = Choices(one, one / 2, one / 2, one / 2)
    assert plan_bound([together]) <= 200 * NS * (1 + 1e-9)
    wrong = Choices(one, one / 2, one / 2, one / 2, single=True)
    assert plan_bound([wrong]) > 210 * NS


def test_the_best_plan_of_each_operator_counts() -> None:
    """Plans (preload, compute) of (100, 10) and (10, 100): Σ min is 10 or 10, but no schedule of
    four such operators is faster than half of 4 · 110."""
    plans = Choices(
        np.asarray([100.0, 10.0]),
        np.asarray([10.0, 100.0]),
        np.zeros(2),
        np.zeros(2),
        single=True,
        times=4,
    )
    assert plan_bound([plans]) == pytest.approx(220.0)


def test_a_front_of_plans() -> None:
    """The bound over the front of a product is positive, and grows with the number of layers."""
    op = Operator(
        "contract",
        (Dim("m", 8), Dim("n", 64), Dim("k", 96, DimKind.REDUCTION)),
        (
            Access((8, 96), "float16", (AxisExpr(((0, 1),)), AxisExpr(((2, 1),)))),
            Access((96, 64), "float16", (AxisExpr(((2, 1),)), AxisExpr(((1, 1),)))),
        ),
        (Access((8, 64), "float16", (AxisExpr(((0, 1),)), AxisExpr(((1, 1),)))),),
        (Stat("sum", (0, 1), "float32", 0.0),),
    )
    chip = load_chip("test-16")
    front = enumerate_plans(op, chip, (Source.RESIDENT, Source.HBM), device_model(chip))
    one = plan_bound([choices(front, chip, single=True)])
    assert one >= front.hbm_bytes / chip.hbm_bytes_per_s
    assert one >= float(front.compute_cycles.min()) / chip.clock_hz * (1 - 1e-9)
    ten = plan_bound([choices(front, chip, single=True, times=10)])
    assert ten == pytest.approx(10 * one)


def test_a_steady_layer() -> None:
    """A loop that waits for HBM each time: 400 ns an iteration, and that is its bound."""
    body = (
        p.Operator("a", "", (PreloadWait(0), p.compute([300] * 4))),
        p.preload(1, p.same(4, 3200)),
        p.Operator("b", "", (PreloadWait(1),)),
        p.preload(0, p.same(4, 8)),
    )
    timeline = p.program(4, p.preload(0, p.same(4, 8)), Repeat(50, body), PreloadWait(0))
    result = simulate(timeline, p.chip(4))
    assert result.steady_iteration_s == pytest.approx((1 + 300 + 400) * NS)
    assert result.steady_lower_bound_s == pytest.approx(401 * NS)


def test_a_broken_bound_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "program_bounds", lambda timeline, machine: {"made up": 1.0})
    with pytest.raises(SimulationError, match="below the bound 'made up' of 1 s"):
        simulate(p.program(4, p.compute([100] * 4)), p.chip(4))


def cores_only(*seconds: float) -> Choices:
    """Plans that only compute."""
    none = np.zeros(len(seconds))
    return Choices(none, np.asarray(seconds), none, none)


def test_what_a_reader_fetches_depends_on_both_plans() -> None:
    """The producer takes 10 s and leaves pieces of 2 bytes, or 13 s and 8; the reader's tile needs
    10 bytes in plans of 20 s, 4 in one of 25. A byte takes a second, a phase 0.5 s of barriers.

    (10, 20): 8 more bytes, 38.5; (10, 25): 2 more, 37.5; (13, 20): 2 more, 35.5; (13, 25): 38.
    """
    maker, reader = cores_only(10.0, 13.0), cores_only(20.0, 25.0)
    fetch = Fetch(0, np.asarray([10.0, 4.0]), np.ones(2), np.asarray([2, 8]))
    assert chain_bound([maker, reader], {}, 0.5) == pytest.approx(30.0)
    assert chain_bound([maker, reader], {1: fetch}, 0.5) == pytest.approx(35.5)


def test_a_producer_of_several_readers() -> None:
    """One plan of the producer has to serve all of its readers."""
    maker, reader = cores_only(10.0, 13.0), cores_only(20.0)
    fetch = Fetch(0, np.asarray([10.0]), np.ones(1), np.asarray([2, 8]))
    both = chain_bound([maker, reader, reader], {1: fetch, 2: fetch}, 0.0)
    assert both == pytest.approx(min(10 + 2 * 28, 13 + 2 * 22))


def test_pieces_are_rounded_up() -> None:
    """Forty sizes are told apart as sixteen: never more than what is really fetched."""
    sizes = np.arange(1, 41)
    maker, reader = cores_only(*np.linspace(10.0, 6.1, 40)), cores_only(20.0)
    fetch = Fetch(0, np.asarray([40.0]), np.ones(1), sizes[::-1])
    exact = min(10.0 - 0.1 * i + 20.0 + 40.0 - (40 - i) for i in range(40))
    found = chain_bound([maker, reader], {1: fetch}, 0.0)
    assert exact - 3.0 <= found <= exact + 1e-9


def test_without_operands_the_families_are_those_of_plan_bound() -> None:
    """Of random plans, neither bound exceeds the other by more than the grids differ."""
    rng = np.random.default_rng(3)
    operators = [Choices(*rng.uniform(1.0, 5.0, (4, 7)), single=bool(i % 2)) for i in range(5)]
    for c in operators:
        np.minimum(c.landing_s, c.preload_s, out=c.landing_s)
    assert chain_bound(operators, {}, 0.0) == pytest.approx(plan_bound(operators))
