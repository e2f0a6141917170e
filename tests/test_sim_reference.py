"""The engine against a second simulator that knows neither classes, loops nor shared patterns."""

from __future__ import annotations

import pytest
import sim_programs as p
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elk_ir.chips import load_chip
from elk_ir.sim import simulate
from elk_ir.sim.machine import machine_of
from elk_ir.sim.reference import LIMIT, simulate_reference

SLOW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)


@SLOW
@given(st.data())
def test_grouped_equals_ungrouped(data: st.DataObject) -> None:
    chip = data.draw(p.chips())
    timeline = data.draw(p.programs(chip.cores))
    fast, slow = simulate(timeline, chip), simulate_reference(timeline, chip)
    assert fast.time_s == pytest.approx(slow.time_s, rel=1e-9)
    parts = fast.breakdown
    for name in ("preload_only_s", "execute_only_s", "overlapped_s", "network_stall_s"):
        close = pytest.approx(getattr(slow, name), rel=1e-6, abs=1e-6 * slow.time_s)
        assert getattr(parts, name) == close, name
    # Conservation: the bytes of every resource, as the reference booked them while it ran.
    hbm = sum(v for k, v in slow.bytes.items() if k[0] == "hbm")
    assert fast.bytes_by_resource["hbm"] == pytest.approx(hbm)
    factor = chip.network.exchange_overhead_factor
    if chip.network.topology == "all-to-all" and chip.network.exchange_span_factor == 1:
        into = sum(v for k, v in slow.bytes.items() if k[0] == "in")
        moved = fast.bytes_by_resource
        assert moved["exchange"] * factor + moved["landing"] == pytest.approx(into)


@SLOW
@given(st.data())
def test_loads_of_every_link(data: st.DataObject) -> None:
    """Dimension-order routing and multicast trees in closed form equal paths walked hop by hop."""
    from elk_ir.sim.reference import _Run

    chip = data.draw(p.chips())
    what = data.draw(p.deliveries(chip.cores))
    events = [p.preload(0, what), p.exchange(chip.cores, []), data.draw(p.exchanges(chip.cores))]
    resources = machine_of(chip).resources
    for event in events:
        if isinstance(event, p.Exchange):
            coflow, flow = machine_of(chip).coflow(event), _Run(chip).exchange(event)
        else:
            coflow, flow = machine_of(chip).coflow(event), _Run(chip).transfer(event)
        for kind, name in (("port_in", "in"), ("port_out", "out"), ("sram", "sram")):
            for core, seconds in enumerate(coflow.seconds[resources.slices[kind]]):
                assert seconds == pytest.approx(flow.loads.get((name, core), 0.0))
        if resources.mesh is not None:
            table = coflow.seconds[resources.slices["link"]].reshape(-1, 4)
            for core, links in enumerate(table):
                place = chip.core_position(core)
                for direction, seconds in zip("EWSN", links, strict=True):
                    wanted = flow.loads.get(("link", *place, direction), 0.0)
                    assert seconds == pytest.approx(wanted), (place, direction)
        assert coflow.latency_s == pytest.approx(flow.latency_s)
        assert coflow.alone_s == pytest.approx(flow.alone_s)


def test_the_reference_is_for_small_chips() -> None:
    chip = load_chip("ipu-mk2")
    with pytest.raises(Exception, match=f"{LIMIT} cores"):
        simulate_reference(p.program(chip.cores), chip)
