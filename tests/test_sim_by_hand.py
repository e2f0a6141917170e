"""Programs of a few cores whose timelines are worked out in the comments.

All on chips of 1 GHz with ports of 8 GB/s, so that 8 bytes take a nanosecond, and HBM of 64 GB/s.
"""

from __future__ import annotations

import pytest
import sim_programs as p

from elk_ir.errors import ElkError
from elk_ir.sim import SimResult, simulate
from elk_ir.sim.reference import simulate_reference
from elk_ir.sim.timeline import Operator, PreloadWait, Repeat, Store, StoreWait

NS = 1e-9


def parts(result: SimResult) -> tuple[float, float, float, float]:
    """The breakdown in nanoseconds."""
    b = result.breakdown
    values = (b.preload_only_s, b.execute_only_s, b.overlapped_s, b.network_stall_s)
    return tuple(round(v / NS, 6) for v in values)  # type: ignore[return-value]


def test_all_to_all_two_cores() -> None:
    """Two cores, sync 100, HBM latency 100 ns, transfers of 10 ns latency.

    w0: 800 bytes to each core. HBM: 1600 / 64 = 25 ns; ports: 800 / 8 = 100 ns, which binds.
      first byte at 100 + 10 = 110, landed at 210.
    w1: 1600 bytes to core 0 only: 200 ns at its port. Asked for at 0 behind w0, so its latency is
      over when w0 ends: 210 ... 410.
    wait w0                                            0 ... 210   preload only
    compute 300 cycles on core 0, 150 on core 1      210 ... 510   w1 flows until 410
    exchange core 0 -> 1 of 400 bytes: sync 100, latency 10, 50 ns, sync 100
                                                     510 ... 770
    wait w1: landed long ago
    compute 40 cycles                                770 ... 810
    """
    chip = p.chip(
        2,
        **{"sync_cycles": 100, "hbm.latency_s": 1e-7, "network.transfer_latency_cycles": 10},
    )
    first = Operator(
        "a", "A", (PreloadWait(0), p.compute([300, 150]), p.exchange(2, [(0, 1, 400)]))
    )
    second = Operator("b", "B", (PreloadWait(1), p.compute([40, 40])))
    timeline = p.program(
        2,
        p.preload(0, p.same(2, 800)),
        p.preload(1, p.delivery(2, [[0], []], [1600])),
        first,
        second,
    )
    result = simulate(timeline, chip)
    assert result.time_s == pytest.approx(810 * NS)
    assert parts(result) == (210, 400, 200, 0)
    rows = [
        (r.label, r.node, round(r.start_s / NS), round(r.end_s / NS)) for r in result.operators()
    ]
    assert rows == [("a", "A", 0, 770), ("b", "B", 770, 810)]
    assert result.operators()[0].bounded_by == "compute"
    assert dict(result.operators()[0].spent_s) == pytest.approx(
        {
            "hbm latency": 110 * NS,
            "port_in": (100 + 50) * NS,
            "compute": 300 * NS,
            "sync": 200 * NS,
            "latency": 10 * NS,
        }
    )
    bars = [
        (s.name, round(s.start_s / NS), round(s.end_s / NS))
        for s in result.frame.slices
        if s.track == "hbm"
    ]
    assert bars == [("w0", 110, 210), ("w1", 210, 410)]
    assert result.bytes_by_resource == {
        "hbm": 3200,
        "network": 3600,
        "exchange": 400,
        "landing": 3200,
        "chip_link": 0,
    }
    assert result.hbm_utilization == pytest.approx(3200 / 64 / 810)


def test_a_preload_after_an_execute_waits_for_it() -> None:
    """Rule 2: w1 is issued behind execute a, so it starts when a ends, although HBM is idle.

    w0 0 ... 100; a computes 100 ... 400; w1 400 ... 500; b computes 500 ... 600.
    """
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 800)),
        Operator("a", "", (PreloadWait(0), p.compute([300] * 4))),
        p.preload(1, p.same(4, 800)),
        Operator("b", "", (PreloadWait(1), p.compute([100] * 4))),
    )
    result = simulate(timeline, p.chip(4))
    assert result.time_s == pytest.approx(600 * NS)
    assert parts(result) == (200, 400, 0, 0)


def test_a_preload_blocks_only_its_own_execute() -> None:
    """Rule 3: w1 (long) is on its way while b, which needs w0 only, computes."""
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 800)),  # 0 ... 100
        p.preload(1, p.same(4, 8000)),  # 100 ... 1100
        Operator("a", "", (PreloadWait(0), p.compute([300] * 4))),  # 100 ... 400
        Operator("b", "", (p.compute([300] * 4),)),  # 400 ... 700
        Operator("c", "", (PreloadWait(1), p.compute([100] * 4))),  # 1100 ... 1200
    )
    result = simulate(timeline, p.chip(4))
    assert result.time_s == pytest.approx(1200 * NS)
    assert parts(result) == (500, 100, 600, 0)


def test_stores_share_the_queue() -> None:
    """A store goes behind the preloads that are in front of it, and the program ends with it.

    w0 0 ... 100, wait, compute 100 ... 150. w1 150 ... 250, store of 800 bytes a core 250 ... 350
    (ports out), both issued at 150; b computes 150 ... 200; then the store is waited for.
    """
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 800)),
        Operator("a", "", (PreloadWait(0), p.compute([50] * 4))),
        p.preload(1, p.same(4, 800)),
        Store(2, "y", p.same(4, 800)),
        Operator("b", "", (p.compute([50] * 4),)),
        StoreWait(2),
    )
    result = simulate(timeline, p.chip(4))
    assert result.time_s == pytest.approx(350 * NS)
    without_wait = p.program(4, *timeline.events[:-1])
    assert simulate(without_wait, p.chip(4)).time_s == pytest.approx(350 * NS)


def test_two_stores_of_one_buffer() -> None:
    """Each has a wait of its own, whether it has landed by then or not. 0 ... 100 and 100 ... 200;
    compute until 300; the third, issued then, 300 ... 400."""
    store = Store(2, "y", p.same(4, 800))
    timeline = p.program(
        4,
        store,
        store,
        Operator("a", "", (p.compute([300] * 4),)),
        StoreWait(2),
        StoreWait(2),
        store,
        StoreWait(2),
    )
    assert simulate(timeline, p.chip(4)).time_s == pytest.approx(400 * NS)
    assert simulate_reference(timeline, p.chip(4)).time_s == pytest.approx(400 * NS)
    with pytest.raises(ElkError, match="waits for a transfer that it never started"):
        simulate(p.program(4, *timeline.events, StoreWait(2)), p.chip(4))


def test_hbm_bandwidth_binds_when_copies_are_few() -> None:
    """Sixteen cores receive 800 bytes each: ports 100 ns, HBM 12,800 / 64 = 200 ns."""
    timeline = p.program(16, p.preload(0, p.same(16, 800)), PreloadWait(0))
    assert simulate(timeline, p.chip(16)).time_s == pytest.approx(200 * NS)


def test_multicast_and_repeated_unicast() -> None:
    """One block of 800 bytes for four cores. HBM: 12.5 ns. Ports: 100 ns. Two controllers of 2 GB/s
    each send one copy in 200 ns, four copies in 800 ns."""
    shared = p.delivery(4, [[0], [0], [0], [0]], [800])
    timeline = p.program(4, p.preload(0, shared), PreloadWait(0))
    slow = {"hbm.controller_egress_bytes_per_s": 2e9}
    assert simulate(timeline, p.chip(4, **slow)).time_s == pytest.approx(200 * NS)
    single = p.chip(4, **slow, **{"hbm.multicast": False})
    assert simulate(timeline, single).time_s == pytest.approx(800 * NS)


def test_mesh_of_four() -> None:
    """2 x 2 mesh, links of 4 GB/s, hops of 5 cycles, transfers of 10. Numbering: 0 1 / 2 3.

    Exchange: 0 -> 3 and 1 -> 3, 400 bytes each. 0 -> 3 runs east over 0-1, then south over 1-3;
    1 -> 3 runs south over 1-3. That link carries 800 bytes: 200 ns; port of 3: 100 ns. Two hops.
      latency 10 + 2 · 5 = 20, so 220 in all.
    Preload: 400 bytes for each core from one controller at core 0 (HBM 25 ns): east link 0-1
      carries the bytes of 1 and 3, south 0-2 those of 2, south 1-3 those of 3. 800 / 4 = 200 ns,
      and again two hops: 220. The wait ends at 220, the exchange at 440.
    """
    chip = p.mesh(
        2,
        2,
        **{
            "network.link_bytes_per_s": 4e9,
            "network.hop_latency_cycles": 5,
            "network.transfer_latency_cycles": 10,
        },
    )
    timeline = p.program(
        4,
        p.preload(0, p.same(4, 400)),
        PreloadWait(0),
        p.exchange(4, [(0, 3, 400), (1, 3, 400)]),
    )
    result = simulate(timeline, chip)
    assert result.time_s == pytest.approx(440 * NS)
    # Link bytes: exchange 400 · 2 + 400, preload 400 (core 1) + 400 (core 2) + 800 (core 3).
    assert result.bytes_by_resource["network"] == 1200 + 1600
    # Eight directed links: 2,800 bytes of 8 · 4 · 440.
    assert result.network_utilization == pytest.approx(2800 / (8 * 4 * 440))


def test_mesh_multicast_tree() -> None:
    """One block of 400 bytes for all of a 2 x 3 mesh, controller at core 0: the tree has a link to
    each other core (east twice, south three times), each with 400 bytes: 100 ns at 4 GB/s."""
    chip = p.mesh(2, 3, **{"network.link_bytes_per_s": 4e9})
    timeline = p.program(6, p.preload(0, p.delivery(6, [[0]] * 6, [400])), PreloadWait(0))
    result = simulate(timeline, chip)
    assert result.time_s == pytest.approx(100 * NS)
    assert result.bytes_by_resource["network"] == 5 * 400
    # Repeated unicast: the first link east carries the copies of four cores.
    single = p.mesh(2, 3, **{"network.link_bytes_per_s": 4e9, "hbm.multicast": False})
    assert simulate(timeline, single).time_s == pytest.approx(400 * NS)


def test_torus_takes_the_short_way() -> None:
    """A ring of four: 0 -> 3 is one hop west, 0 -> 2 two hops east (equal, so positive)."""
    chip = p.mesh(1, 4, **{"network.topology": "torus2d"})
    timeline = p.program(4, p.exchange(4, [(0, 3, 800), (0, 2, 800)]))
    result = simulate(timeline, chip)
    assert result.bytes_by_resource["network"] == 800 * 3
    assert result.time_s == pytest.approx(200 * NS)  # 1,600 bytes leave core 0 through its port


def test_chips_and_their_links() -> None:
    """Two chips of two cores, one link of 4 GB/s each way between them, 30 ns to cross, span 1.25.

    0 -> 2 and 1 -> 3, 400 bytes each: ports 400 · 1.25 / 8 = 62.5 ns; the chip link carries
    800 · 1.25 / 4 = 250 ns. 30 + 250 = 280.
    """
    chip = p.chip(
        2,
        **{
            "chips": 2,
            "network.inter_chip_link_bytes_per_s": 4e9,
            "network.inter_chip_latency_s": 3e-8,
            "network.exchange_span_factor": 1.25,
        },
    )
    timeline = p.program(4, p.exchange(4, [(0, 2, 400), (1, 3, 400)]))
    result = simulate(timeline, chip)
    assert result.time_s == pytest.approx(280 * NS)
    assert result.bytes_by_resource["chip_link"] == 800
    assert result.operators() == []


def test_ring_step_that_overlaps() -> None:
    """A ring of three steps: compute 100, shift of 400 bytes (50 ns) beside it where the chip can.

    Not overlapped: 2 · (100 + 50 + 2 · 10) + 100 = 440. Overlapped: the longer of both and one
    barrier, 2 · (100 + 10) + 100 = 320, without a slow-down as the core's port is idle.
    """
    step = (
        p.compute([100, 100]),
        p.exchange(2, [(0, 1, 400), (1, 0, 400)], beside=True),
    )
    timeline = p.program(2, Repeat(2, step), p.compute([100, 100]))
    plain = p.chip(2, sync_cycles=10)
    assert simulate(timeline, plain).time_s == pytest.approx(440 * NS)
    overlapping = p.chip(2, sync_cycles=10, exchange_overlaps_compute=True)
    assert simulate(timeline, overlapping).time_s == pytest.approx(320 * NS)
    # `stall`: while 8 + 8 bytes a cycle pass the port of 16, compute takes twice as long: the 50 ns
    # of the shift do 25 cycles of work, the other 75 follow. 2 · (125 + 10) + 100 = 370.
    stalling = p.chip(2, sync_cycles=10, exchange_overlaps_compute=True, port_sharing="stall")
    assert simulate(timeline, stalling).time_s == pytest.approx(370 * NS)


def test_a_copy_inside_a_core_needs_no_barrier() -> None:
    """400 bytes are read and written through a port of 16 bytes a cycle: 50 ns."""
    timeline = p.program(2, p.exchange(2, [(0, 0, 400)]))
    assert simulate(timeline, p.chip(2, sync_cycles=10)).time_s == pytest.approx(50 * NS)


def test_loops_are_exact() -> None:
    """A loop whose preload is issued an iteration ahead: HBM 400 ns, cores 300 ns an iteration.

    Prologue 400. Each iteration: the next preload starts with it, the cores are done after 300 and
    wait: 400 an iteration, and 300 for the last.
    """
    body = (
        PreloadWait(0),
        p.preload(1, p.same(4, 3200)),
        p.compute([300] * 4),
        PreloadWait(1),
        p.preload(0, p.same(4, 1)),
    )
    timeline = p.program(4, p.preload(0, p.same(4, 3200)), Repeat(100, body), PreloadWait(0))
    result = simulate(timeline, p.chip(4))
    small = 1 / 8
    # Every iteration but the first waits for the little preload of the one before.
    assert result.time_s == pytest.approx((400 + 100 * 400 + 100 * small) * NS)
    unrolled = p.program(4, timeline.events[0], *body * 100, PreloadWait(0))
    assert simulate(unrolled, p.chip(4)).time_s == pytest.approx(result.time_s, rel=1e-9)
