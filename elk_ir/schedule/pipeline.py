"""Spatial pipelining: the core array in stages, each with some layers, micro-batches flowing.

A model of time, not of a program: a stage is a chip of its own with a part of the cores, and what
it takes for a micro-batch is what the scheduler finds for its layers there. Stages run at the same
time, so each has an equal share of the HBM bandwidth; a layer whose weights stay on its stage's
cores reads none. Nothing here knows about IR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from elk_ir.chips.chip import Chip
from elk_ir.errors import ElkError


@dataclass(frozen=True)
class Network:
    """Identical layers between what comes before and behind them.

    streamed_s: seconds of one layer and micro-batch on a stage, its weights fetched from HBM.
    resident_s(n): the same with the weights of n layers on chip, None if they do not fit there.
    before_s, behind_s: what the first and the last stage do besides, weights fetched; behind_s is
    negative where the last layer is faster than one in steady state by more than what follows.
    """

    layers: int
    streamed_s: float
    resident_s: Callable[[int], float | None]
    before_s: float = 0.0
    behind_s: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Layers `first` … `first + layers - 1`. seconds: of a micro-batch, what comes before the first
    or behind the last layer of the network included, transfers not."""

    first: int
    layers: int
    resident: bool
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    """Stages, and micro-batches that are under way at the same time.

    transfer_s: from one stage to the next, which both of them wait for. feedback: a micro-batch
    begins again only when it has left the last stage (decoding: the next token needs the last one).
    """

    stages: tuple[Stage, ...]
    micro_batches: int
    transfer_s: float
    feedback: bool = True

    @property
    def cycle_s(self) -> float:
        """Between two micro-batches: the slowest stage, receiving and sending included."""
        last = len(self.stages) - 1
        return max(
            s.seconds + self.transfer_s * ((i > 0) + (i < last)) for i, s in enumerate(self.stages)
        )

    @property
    def latency_s(self) -> float:
        """Of a micro-batch through all stages, nothing in its way."""
        return sum(s.seconds for s in self.stages) + self.transfer_s * (len(self.stages) - 1)

    @property
    def fill_s(self) -> float:
        """All micro-batches once, from an empty pipeline until it is empty again."""
        return self.latency_s + (self.micro_batches - 1) * self.cycle_s

    @property
    def interval_s(self) -> float:
        """All micro-batches once, in steady state."""
        busy = self.micro_batches * self.cycle_s
        return max(busy, self.latency_s) if self.feedback else busy


def balance(network: Network, stages: int) -> tuple[Stage, ...]:
    """Layers on stages such that the slowest stage is as fast as can be.

    Exact, over all ways to cut the layers into `stages` runs of at least one: a stage depends only
    on how many layers it holds and on whether it is the first or the last one. Raises ElkError if
    there are more stages than layers.
    """
    if stages > network.layers:
        raise ElkError(
            f"{stages} stages for {network.layers} layers: a stage holds at least one",
            hint=f"at most {network.layers} stages",
        )
    resident: dict[int, float | None] = {}

    def stage(i: int, first: int, count: int) -> Stage:
        if count not in resident:
            found = network.resident_s(count)
            # Never held on chip where fetching is faster: plans that hold less may be quicker.
            resident[count] = None if found is None or found > network.streamed_s else found
        held = resident[count]
        seconds = count * (network.streamed_s if held is None else held)
        seconds += network.before_s * (i == 0) + network.behind_s * (i == stages - 1)
        return Stage(first, count, held is not None, seconds)

    @cache
    def slowest(i: int, first: int) -> tuple[float, int]:
        """The slowest of stages i … from layer `first` on, and the layers of stage i."""
        left = network.layers - first
        if i == stages - 1:
            return stage(i, first, left).seconds, left
        return min(
            (max(stage(i, first, n).seconds, slowest(i + 1, first + n)[0]), n)
            for n in range(1, left - (stages - 1 - i) + 1)
        )

    found: list[Stage] = []
    first = 0
    for i in range(stages):
        count = slowest(i, first)[1]
        found.append(stage(i, first, count))
        first += count
    return tuple(found)


def transfer_s(chip: Chip, stage_cores: int, size_bytes: int) -> float:
    """Seconds to bring `size_bytes` from the cores of one stage to those of the next: every core
    sends and receives its part, through its port and, where stages are chips, the slower network
    between chips; with both barriers."""
    part = -(-size_bytes // stage_cores)
    spans = chip.chips > 1 and stage_cores >= chip.cores_per_chip
    slower = chip.network.exchange_span_factor if spans else 1.0
    rate = min(chip.network.port_in_bytes_per_s, chip.network.port_out_bytes_per_s)
    latency = chip.network.transfer_latency_cycles / chip.clock_hz
    return part * slower / rate + 2.0 * chip.sync_s + latency


def stage_chip(chip: Chip, stages: int) -> Chip:
    """The machine that one of `stages` equal stages is: its cores, and its share of the HBM
    bandwidth and of the controllers' egress. One stage is the chip itself.

    Stages are whole chips, or equal parts of each chip (rows of a mesh); cores that do not divide
    stay idle. Raises ElkError where a mesh or the chips do not divide, or without HBM.
    """
    if stages < 1:
        raise ElkError(f"a chip can't be cut into {stages} stages")
    if stages == 1:
        return chip
    if chip.hbm is None:
        raise ElkError(f"chip {chip.name!r} has no HBM to share between stages")
    share = 1.0 / stages
    changes: dict[str, str | int | float | bool] = {
        "name": f"{chip.name}/{stages}",
        "hbm.bandwidth_bytes_per_s": chip.hbm.bandwidth_bytes_per_s * share,
    }
    if chip.hbm.peak_bandwidth_bytes_per_s:
        peak = chip.hbm.peak_bandwidth_bytes_per_s
        changes["hbm.peak_bandwidth_bytes_per_s"] = peak * share
    parts, rest = divmod(stages, chip.chips)
    if chip.chips % stages == 0:
        changes["chips"] = chip.chips // stages
    elif rest == 0 and chip.cores_per_chip >= parts:
        changes["chips"] = 1
        net = chip.network
        if net.rows and net.rows % parts:
            raise ElkError(
                f"{stages} stages cut a mesh of {net.rows} x {net.cols} cores into {parts} parts;"
                f" {net.rows} rows do not divide",
                hint=f"stages that are {chip.chips} times a divisor of {net.rows}",
            )
        if net.rows:
            changes["network.rows"] = net.rows // parts
        changes["cores_per_chip"] = chip.cores_per_chip // parts
        egress = chip.hbm.controller_egress_bytes_per_s
        changes["hbm.controller_egress_bytes_per_s"] = egress / parts
    else:
        raise ElkError(
            f"{stages} stages on {chip.chips} chips: neither divides the other",
            hint="as many stages as chips, a divisor, or a multiple",
        )
    return chip.with_fields(changes)
