"""The three conflicts of inter-core connected chips, each against a bound computed by hand."""

from __future__ import annotations

import pytest
import sim_programs as p

from elk_ir.sim import Timeline, simulate
from elk_ir.sim.timeline import Operator, PreloadWait

NS = 1e-9


def test_sram_space() -> None:
    """With room for one more weight, preloads hide behind computing; without, they can't.

    Three operators of 300 ns whose weights take 200 ns each. Room: w(i + 1) is issued before
    execute i: 200 + 3 · 300 = 1,100. No room: w(i + 1) may only be issued when execute i has given
    its weight's bytes back: 3 · (200 + 300) = 1,500 = Σ preload + Σ execute. The bytes in use say
    why: both weights, or one.
    """

    def operator(i: int) -> Operator:
        return Operator(f"op{i}", "", (PreloadWait(i), p.compute([300] * 4)))

    def load(i: int) -> p.Preload:
        return p.preload(i, p.same(4, 1600))

    early = p.program(4, load(0), load(1), operator(0), load(2), operator(1), operator(2))
    late = p.program(4, load(0), operator(0), load(1), operator(1), load(2), operator(2))
    chip = p.chip(4)
    assert simulate(early, chip).time_s == pytest.approx(1100 * NS)
    assert simulate(late, chip).time_s == pytest.approx(1500 * NS)
    assert simulate(late, chip).bounds_s["preload"] == pytest.approx(600 * NS)


def _beside(exchange_bytes: int, preload_bytes: int) -> Timeline:
    """One ring exchange on all four cores while a preload lands, then the preload's use."""
    ring = [((c + 1) % 4, c, exchange_bytes) for c in range(4)]
    return p.program(
        4,
        p.preload(0, p.same(4, preload_bytes)),
        Operator("shift", "", (p.exchange(4, ring),)),
        Operator("use", "", (PreloadWait(0),)),
    )


def test_network() -> None:
    """A preload and an exchange of 1,600 bytes a core each: alone 200 ns at a port of 8 GB/s.

    On separate networks both are done after 200. On one network the port needs 400 for the bytes
    of both. Fair: 4 GB/s each, both end at 400. Exchange first: 200, then the preload until 400.
    """
    timeline = _beside(1600, 1600)
    fair = simulate(timeline, p.chip(4))
    assert fair.time_s == pytest.approx(400 * NS)
    assert fair.bounds_s["network"] == pytest.approx(400 * NS)
    assert fair.breakdown.network_stall_s == pytest.approx(200 * NS)
    assert fair.breakdown.overlapped_s == pytest.approx(200 * NS)
    first = simulate(timeline, p.chip(4, **{"network.transfer_sharing": "exchange-first"}))
    assert first.time_s == pytest.approx(400 * NS)
    assert first.breakdown.network_stall_s == 0
    assert first.breakdown.preload_only_s == pytest.approx(200 * NS)
    ideal = simulate(timeline, p.chip(4).ideal())
    assert ideal.time_s == pytest.approx(200 * NS)


@pytest.mark.parametrize("exchange_bytes", [400, 1600, 6400])
def test_network_when_hbm_is_slow(exchange_bytes: int) -> None:
    """HBM feeds each port with 2 GB/s, a quarter of it: max-min leaves 6 GB/s to the exchange.

    Exchange of E bytes: E / 6 ns while the preload (1,600 bytes, 800 ns alone) lands at full speed;
    a longer one goes on at 8 GB/s. The time is the later end of both, and the port's bound holds.
    """
    chip = p.chip(4, **{"hbm.bandwidth_bytes_per_s": 8e9})
    result = simulate(_beside(exchange_bytes, 1600), chip)
    moved = 800 * 6
    hand = max(800.0, 800 + (exchange_bytes - moved) / 8 if exchange_bytes > moved else 0.0)
    assert result.time_s == pytest.approx(hand * NS)
    assert result.time_s >= (exchange_bytes + 1600) / 8 * NS * (1 - 1e-9)
    stalled = min(exchange_bytes / 6, 800) * (1 - 6 / 8)
    assert result.breakdown.network_stall_s == pytest.approx(stalled * NS)


@pytest.mark.parametrize("sharing", ["shared", "stall"])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_sram_port(sharing: str, phi: float) -> None:
    """Landing at 8 GB/s takes ρ = 1/2 of an SRAM port of 16 bytes a cycle while 1,000 cycles are
    computed that use φ of it. 800 bytes a core: 100 ns.

    `shared`: those 100 ns do 100 / max(1, φ + ρ) cycles; `stall`: 100 / (1 + ρ). The rest follows.
    Conservation: the port's own time, φ · 1000 + 800 / 16, never exceeds the total.
    """
    chip = p.chip(4, landing_steals_sram=True, port_sharing=sharing)
    load = p.compute([1000] * 4, [1000 * 16 * phi] * 4)
    timeline = p.program(
        4, p.preload(0, p.same(4, 800)), Operator("a", "", (load,)), PreloadWait(0)
    )
    slow = 1.5 if sharing == "stall" else max(1.0, phi + 0.5)
    result = simulate(timeline, chip)
    assert result.time_s == pytest.approx((1000 + 100 - 100 / slow) * NS)
    assert result.breakdown.network_stall_s == pytest.approx(100 * (1 - 1 / slow) * NS)
    assert result.time_s >= (phi * 1000 + 800 / 16) * NS
    free = simulate(timeline, p.chip(4, port_sharing=sharing))
    assert free.time_s == pytest.approx(1000 * NS)


def test_no_landing_while_tiles_compute() -> None:
    """A bulk-synchronous machine: 200 ns of preload and 300 of compute take 500."""
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 1600)),
        Operator("a", "", (p.compute([300] * 4),)),
        Operator("b", "", (PreloadWait(0),)),
    )
    assert simulate(timeline, p.chip(4)).time_s == pytest.approx(300 * NS)
    apart = p.chip(4, preload_during_compute=False)
    assert simulate(timeline, apart).time_s == pytest.approx(500 * NS)
