"""The pipeline in time: the fit, the held-out prediction, and properties of the simulation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from elk_ir.chips import Chip, load_chip
from elk_ir.errors import ElkError
from elk_ir.northpole.mapping import Mapping, map_network
from elk_ir.northpole.network import parse_precision
from elk_ir.northpole.pipeline import decode_intervals, fit_phase_overhead, simulate, with_chip
from elk_ir.northpole.published import (
    GRANITE_3B,
    fitted_chip,
    held_out,
    implied_utilization,
    what_if,
)
from elk_ir.northpole.timing import Assumptions, with_overhead

W4A4 = parse_precision("w4a4")


@pytest.fixture(scope="module")
def fitted() -> Chip:
    return fitted_chip(load_chip("northpole-16"))


@pytest.fixture(scope="module")
def paper(fitted: Chip) -> Mapping:
    return map_network(GRANITE_3B.network(2048), fitted, W4A4)


def test_the_fit_reproduces_what_it_was_fitted_on(paper: Mapping, fitted: Chip) -> None:
    run = simulate(paper)
    assert run.tokens_per_s == pytest.approx(28_356, rel=1e-4)
    assert run.latency_per_token_s == pytest.approx(0.987e-3, rel=1e-3)
    assert run.inter_token_s < 1e-3
    assert run.power_w == pytest.approx(672)
    assert run.tokens_per_s_per_w == pytest.approx(42.2, rel=1e-3)
    assert fitted.northpole is not None
    assert 3e-6 < fitted.northpole.phase_overhead_s < 5e-6


def test_the_overhead_in_the_chip_file_is_near_the_fit(fitted: Chip) -> None:
    given = load_chip("northpole-16").northpole
    assert given is not None
    assert fitted.northpole is not None
    assert given.phase_overhead_s == pytest.approx(fitted.northpole.phase_overhead_s, rel=0.12)


def test_roofline_of_a_slot(paper: Mapping) -> None:
    cost = paper.cost(paper.stages[0])
    assert cost.weight_s == pytest.approx(8.4e-6, rel=0.02)
    assert cost.product_s == pytest.approx(2.1e-6, rel=0.02)
    assert cost.kv_read_s * 1536 == pytest.approx(0.24e-6, rel=0.02)
    assert cost.phases == 12
    assert cost.roofline_s(1536) < cost.serial_s(1536) < 14e-6


def test_time_is_never_below_the_rooflines(paper: Mapping) -> None:
    run = simulate(replace(paper, chip=with_overhead(paper.chip, 0.0)))
    assert run.inter_token_s >= 14 * run.slot_roofline_s
    assert all(0 < u <= 1 for u in run.stage_utilization)
    assert 0 <= run.bubble_share < 1
    assert run.product_utilization < 1


@pytest.mark.parametrize("precision", [pytest.param("w4a4", marks=pytest.mark.slow), "w4a8"])
def test_held_out_8b(fitted: Chip, precision: str) -> None:
    assert abs(held_out(fitted, precision).error) < 0.25


def test_intervals_of_a_stage_do_not_overlap(paper: Mapping) -> None:
    found = decode_intervals(paper, 2)
    assert len(found) == 2 * 14 * 16
    by_stage: dict[int, list[tuple[float, float]]] = {}
    for each in found:
        by_stage.setdefault(each.stage, []).append((each.start_s, each.end_s))
    for times in by_stage.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))


def test_a_user_waits_for_all_stages(paper: Mapping) -> None:
    found = [i for i in decode_intervals(paper, 2) if i.micro_batch == 3]
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(found))


def test_sends_through_the_host_are_slower(paper: Mapping) -> None:
    through = replace(paper, assumptions=Assumptions(route="host"))
    assert simulate(through).tokens_per_s < simulate(paper).tokens_per_s
    assert simulate(through).host_link_utilization > simulate(paper).host_link_utilization


@pytest.mark.parametrize(
    "assumptions", [Assumptions(host_time_s=40e-6), Assumptions(prefill_utilization=0.25)]
)
def test_worse_assumptions_cost_tokens(paper: Mapping, assumptions: Assumptions) -> None:
    assert simulate(replace(paper, assumptions=assumptions)).tokens_per_s < 28_356


def test_a_faster_clock_helps_little(paper: Mapping, fitted: Chip) -> None:
    slow = simulate(with_chip(paper, replace(fitted, clock_hz=380e6))).tokens_per_s
    fast = simulate(with_chip(paper, replace(fitted, clock_hz=425e6))).tokens_per_s
    assert 1 < fast / slow < 1.05


def test_what_if(fitted: Chip) -> None:
    settings = (("w4a4", 4096, 16), ("w4a4", 2048, 8), ("w8a8", 2048, 32), ("w8a8", 2048, 16))
    longer, fewer, wide, tight = what_if(GRANITE_3B, fitted, settings)
    assert longer.mini_batch == 14
    assert "8 are there" in fewer.problem
    assert wide.tokens_per_s > 0
    assert "16 are there" in tight.problem


def test_resnet50_cannot_have_been_int8(fitted: Chip) -> None:
    assert implied_utilization(fitted, 8) > 1
    assert 0.7 < implied_utilization(fitted, 4) < 1


def test_impossible_fit(paper: Mapping) -> None:
    with pytest.raises(ElkError, match="without any overhead"):
        fit_phase_overhead(paper, 1e9)
