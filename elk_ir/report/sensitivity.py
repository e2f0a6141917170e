"""What would help most: the derivative of a program's time by each resource, by re-simulation.

The program stays as it is; a compiler that knew of the faster resource could do better still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log

from elk_ir.chips import Chip
from elk_ir.sim.run import simulate
from elk_ir.sim.timeline import Compute, Event, Operator, Repeat, Timeline, Vector

STEP = 1.01
"""The derivative is taken between a resource divided and multiplied by this."""


@dataclass(frozen=True)
class Sensitivity:
    """How the time depends on one resource.

    elasticity: per cent of time saved by one per cent more of it, at this point (0: it does not
    matter, 1: it alone does). `doubled_s`: the time with twice as much of it.
    """

    resource: str
    meaning: str
    elasticity: float
    doubled_s: float


def sensitivities(timeline: Timeline, chip: Chip) -> list[Sensitivity]:
    """All resources that a chip has, the one that helps most first."""
    found: list[Sensitivity] = []
    for name, meaning, change in _resources(chip):
        slow, fast, doubled = (
            simulate(*change(timeline, factor)).time_s for factor in (1.0 / STEP, STEP, 2.0)
        )
        slope = log(slow / fast) / (2.0 * log(STEP)) if fast > 0 else 0.0
        found.append(Sensitivity(name, meaning, slope, doubled))
    return sorted(found, key=lambda s: (-s.elasticity, s.resource))


Change = Callable[[Timeline, float], tuple[Timeline, Chip]]


def _resources(chip: Chip) -> Iterator[tuple[str, str, Change]]:
    """(name, what is changed, how): a larger factor is a faster machine."""

    def scaled(*fields: str, inverse: bool = False) -> Change:
        known = {name: value for name, _, value in chip.values()}
        present = {f: known[f] for f in fields if known.get(f)}

        def change(timeline: Timeline, factor: float) -> tuple[Timeline, Chip]:
            by = 1.0 / factor if inverse else factor
            return timeline, chip.with_fields({f: v * by for f, v in present.items()})

        return change

    if chip.hbm is not None:
        fields = ("bandwidth_bytes_per_s", "peak_bandwidth_bytes_per_s")
        fields += ("controller_egress_bytes_per_s",)
        yield "HBM", "bandwidth, and of controllers", scaled(*(f"hbm.{f}" for f in fields))
    ports = ("network.port_in_bytes_per_s", "network.port_out_bytes_per_s")
    yield "network", "ports and links of cores", scaled(*ports, "network.link_bytes_per_s")
    if chip.network.inter_chip_link_bytes_per_s:
        link = "network.inter_chip_link_bytes_per_s"
        yield "chip links", "bandwidth between chips", scaled(link)
    yield (
        "tiles",
        "cycles of all vertices",
        lambda timeline, factor: (faster_tiles(timeline, factor), chip),
    )
    if chip.sync_cycles:
        yield "barriers", "cycles of a barrier", scaled("sync_cycles", inverse=True)
    latencies = ["network.transfer_latency_cycles", "network.hop_latency_cycles"]
    latencies += ["network.inter_chip_latency_s", "hbm.latency_s"]
    known = {name: value for name, _, value in chip.values()}
    if any(known.get(name) for name in latencies):
        yield "latencies", "of HBM and networks", scaled(*latencies, inverse=True)


def faster_tiles(timeline: Timeline, factor: float) -> Timeline:
    """The same program with all cycles of vertices divided by `factor`."""

    def change(event: Event) -> Event:
        if isinstance(event, Compute):
            return replace(event, cycles=Vector(event.cycles.values / factor))
        if isinstance(event, Operator | Repeat):
            return replace(event, events=tuple(map(change, event.events)))
        return event

    return Timeline(timeline.cores, tuple(map(change, timeline.events)))
