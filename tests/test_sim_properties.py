"""What must hold for every program: scaling, monotonicity, exact loops, conservation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sim_programs as p
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.sim import Timeline, simulate
from elk_ir.sim.flows import max_min, share
from elk_ir.sim.timeline import (
    Event,
    Operator,
    Preload,
    PreloadWait,
    Repeat,
    Store,
    StoreWait,
)

RANDOM = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)


def unrolled(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The same events without loops."""
    flat: list[Event] = []
    for event in events:
        if isinstance(event, Repeat):
            flat += list(unrolled(event.events)) * event.count
        elif isinstance(event, Operator):
            flat.append(replace(event, events=unrolled(event.events)))
        else:
            flat.append(event)
    return tuple(flat)


@RANDOM
@given(st.data())
def test_loops_equal_unrolled_programs(data: st.DataObject) -> None:
    chip = data.draw(p.chips())
    timeline = data.draw(p.programs(chip.cores))
    fast = simulate(timeline, chip)
    slow = simulate(Timeline(timeline.cores, unrolled(timeline.events)), chip)
    assert fast.time_s == pytest.approx(slow.time_s, rel=1e-9)
    assert fast.breakdown.overlapped_s == pytest.approx(
        slow.breakdown.overlapped_s, rel=1e-7, abs=1e-7 * slow.time_s
    )
    assert len(fast.operators()) == len(slow.operators())
    for a, b in zip(fast.operators(), slow.operators(), strict=True):
        assert a.label == b.label
        assert a.start_s == pytest.approx(b.start_s, rel=1e-9, abs=1e-9 * slow.time_s)
        assert a.end_s == pytest.approx(b.end_s, rel=1e-9, abs=1e-9 * slow.time_s)


@RANDOM
@given(st.data(), st.sampled_from([0.125, 3.0, 1e3]))
def test_scaling(data: st.DataObject, speed: float) -> None:
    """Rates times s and latencies over s: the time is divided by s."""
    chip = data.draw(p.chips())
    timeline = data.draw(p.programs(chip.cores))
    slow, fast = simulate(timeline, chip), simulate(timeline, chip.scaled(speed))
    assert fast.time_s * speed == pytest.approx(slow.time_s, rel=1e-12)
    assert fast.hbm_utilization == pytest.approx(slow.hbm_utilization, rel=1e-9)


BANDWIDTHS = (
    "hbm.bandwidth_bytes_per_s",
    "hbm.controller_egress_bytes_per_s",
    "network.port_in_bytes_per_s",
    "network.port_out_bytes_per_s",
    "network.link_bytes_per_s",
    "clock_hz",
)


@RANDOM
@given(st.data(), st.sampled_from(BANDWIDTHS), st.sampled_from([0.5, 0.9]))
def test_time_never_falls_without_overlap(data: st.DataObject, field: str, factor: float) -> None:
    """Every preload and store is waited for at once, so nothing shares anything.

    (With overlap a lower bandwidth can help, by ending a contention earlier; see the next test.)
    """
    chip = data.draw(p.chips(overlap=False))
    timeline = data.draw(p.programs(chip.cores, loops=False))
    serial: list[Event] = []
    for event in unrolled(timeline.events):
        if isinstance(event, PreloadWait | StoreWait):
            continue
        serial.append(event)
        if isinstance(event, Preload):
            serial.append(PreloadWait(event.variable))
        elif isinstance(event, Store):
            serial.append(StoreWait(event.variable))
        elif isinstance(event, Operator):
            kept = [e for e in event.events if not isinstance(e, PreloadWait)]
            serial[-1] = replace(event, events=tuple(kept))
    value = chip.network.link_bytes_per_s if "link" in field else None
    if value == 0.0:
        field = "clock_hz"
    section, _, name = field.rpartition(".")
    old = getattr(getattr(chip, section) if section else chip, name)
    lower = chip.with_fields({field: old * factor})
    program = Timeline(chip.cores, tuple(serial))
    before, after = simulate(program, chip).time_s, simulate(program, lower).time_s
    assert after >= before * (1 - 1e-12)


def test_an_anomaly_of_fair_sharing() -> None:
    """Slower HBM, faster program: known, and why monotonicity is claimed without overlap only.

    A preload of 1,600 bytes a core (200 ns alone) beside an exchange of 1,600; then 600 ns of
    compute. With HBM at 32 GB/s the port is shared in halves: the exchange ends at 400, compute at
    1,000. With HBM at 8 GB/s the preload takes 2 GB/s, the exchange 6: it ends at 267, compute at
    867, and the preload has landed at 800 already.
    """
    ring = [((c + 1) % 4, c, 1600) for c in range(4)]
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 1600)),
        p.exchange(4, ring),
        p.compute([600] * 4),
        PreloadWait(0),
    )
    fast = simulate(timeline, p.chip(4, **{"hbm.bandwidth_bytes_per_s": 32e9}))
    slow = simulate(timeline, p.chip(4, **{"hbm.bandwidth_bytes_per_s": 8e9}))
    assert fast.time_s == pytest.approx(1000e-9)
    assert slow.time_s == pytest.approx((1600 / 6 + 600) * 1e-9)
    assert slow.time_s < fast.time_s


# ---------------------------------------------------------------------- sharing


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_the_fair_point(data: st.DataObject) -> None:
    """Feasible, and each coflow has a full resource of which nobody uses more than it does."""
    count = data.draw(st.integers(1, 12))
    entry = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 7.5])
    loads = st.lists(entry, min_size=count, max_size=count).filter(any)
    a, b = np.asarray(data.draw(loads)), np.asarray(data.draw(loads))
    x, y = share(a, b, "max-min")
    used = a * x + b * y
    assert used.max() <= 1 + 1e-9
    full = used >= 1 - 1e-9
    assert (a[full] * x >= b[full] * y - 1e-9).any()
    assert (b[full] * y >= a[full] * x - 1e-9).any()
    x1, y1 = share(a, b, "exchange-first")
    assert y1 == pytest.approx(1 / b.max())
    assert (a * x1 + b * y1).max() <= 1 + 1e-9
    # Symmetric: the fair point does not depend on who is called what.
    y2, x2 = share(b, a, "max-min")
    assert (x2, y2) == pytest.approx((x, y))


def test_max_min_of_many_flows() -> None:
    """Three flows: two on a link of 1, one of them also on a link of 0.2; the third is alone."""
    loads = np.asarray([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    rates = max_min(loads, np.asarray([1.0, 0.2]), [5.0, 5.0, 5.0])
    assert rates == pytest.approx([0.8, 0.2, 5.0])
    with pytest.raises(ElkError, match="uses no resource"):
        max_min(np.zeros((1, 1)), np.ones(1), [np.inf])


# ---------------------------------------------------------------------- errors


def test_a_wait_for_nothing_is_an_error() -> None:
    with pytest.raises(ElkError, match="never started"):
        simulate(p.program(4, PreloadWait(3)), p.chip(4))


def test_wrong_number_of_cores() -> None:
    with pytest.raises(ElkError, match="4 cores, the chip 'test-16' has 16"):
        simulate(p.program(4), load_chip("test-16"))


def test_without_hbm_weights_are_in_place() -> None:
    chip = load_chip("ipu-mk2")
    held = p.delivery(chip.cores, [[0]] * chip.cores, [800])
    timeline = p.program(chip.cores, p.preload(0, held), PreloadWait(0), Store(1, "y", held))
    result = simulate(timeline, chip)
    assert result.time_s == 0.0
    assert result.hbm_utilization == 0.0
    assert result.to_json()["flops_per_s"] == 0.0


def test_usage_adds_up() -> None:
    """Utilisations over time have the averages as their means, and the SRAM its peak."""
    ring = [((c + 1) % 4, c, 1600) for c in range(4)]
    body = (p.preload(0, p.same(4, 1600)), p.exchange(4, ring), PreloadWait(0))
    timeline = p.program(4, Repeat(30, tuple(replace(e, live_bytes=77) for e in body)))
    result = simulate(timeline, p.chip(4))
    usage = result.usage(64)
    assert usage.hbm.mean() == pytest.approx(result.hbm_utilization)
    assert usage.network.mean() == pytest.approx(result.network_utilization)
    assert usage.sram_bytes.max() == result.sram_peak_bytes == 77
