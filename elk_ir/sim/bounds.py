"""Lower bounds on the time of a program, and of all programs over given plans.

A fixed program (`program_bounds`), by what each argument needs:

* hbm, network, compute, sram_port: one resource is busy for what the program asks of it.
* preload, execute: the queue of transfers and the cores are serial.
* contention: with C the time of the cores outside exchange flows, E and P_j what exchanges and
  preload j occupy one resource (a port or a link) for, t_j the time of preload j alone. Let y_j be
  the part of preload j that moves while an exchange flows, X the time in which one does. Then
  X >= E + sum y_j P_j and X >= sum y_j t_j; T >= C + X; and since preloads move one at a time,
  T >= X + sum (1 - y_j) t_j. Adding (1 - g) and g of these, and a and 1 - a of those,
  T >= (1 - g) C + a E + sum t_j min(g, 1 - a + a P_j / t_j), for the worst y_j. Any
  0 <= g <= 1, 0 <= a <= 1 is valid; the best of a grid is taken.

`plan_bound` has the same families with a minimum over plans inside the sum: a bound on every
schedule of operators whose plans are still open (docs/simulator.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.sim.timeline import (
    Compute,
    Event,
    Exchange,
    Operator,
    Preload,
    Repeat,
    Store,
    Sync,
    Timeline,
    leaves,
)

if TYPE_CHECKING:
    from elk_ir.plan.enumerate import PlanFront
    from elk_ir.sim.machine import Machine

_GRID = 21


def program_bounds(timeline: Timeline, machine: Machine) -> dict[str, float]:
    """Every bound of a program on a machine, by name, in seconds."""
    chip = machine.resources.chip
    size = machine.resources.size
    exchanged, loaded, ported = np.zeros(size), np.zeros(size), np.zeros(chip.cores)
    transfers: dict[int, list[float]] = {}
    coflows = {}
    exchange_s = compute_s = other_s = preload_s = 0.0
    flops: dict[str, float] = {}
    for leaf, times in leaves(timeline.events):
        if isinstance(leaf, Compute):
            compute_s += times * leaf.cycles.maximum / chip.clock_hz
            moved = leaf.sram_bytes.values / chip.local_bytes_per_cycle
            ported += (times / chip.clock_hz) * np.minimum(moved, leaf.cycles.values)
            flops[leaf.dtype] = flops.get(leaf.dtype, 0.0) + 2.0 * times * leaf.macs
        elif isinstance(leaf, Exchange):
            coflow = machine.coflow(leaf)
            exchanged += times * coflow.seconds
            exchange_s += times * coflow.alone_s
            if leaf.traffic.total_bytes:
                other_s += times * (2.0 * chip.sync_s + coflow.latency_s)
        elif isinstance(leaf, Sync):
            other_s += times * leaf.count * chip.sync_s
        elif isinstance(leaf, Preload | Store):
            coflow = machine.coflow(leaf)
            loaded += times * coflow.seconds
            preload_s += times * coflow.alone_s
            entry = transfers.setdefault(id(coflow), [0.0])
            entry[0] += times
            coflows[id(coflow)] = coflow
    overlaps = chip.exchange_overlaps_compute
    slices = machine.resources.slices
    total = exchanged + loaded
    if chip.network.preload_network == "separate":
        total = np.maximum(exchanged, loaded)
    bounds: dict[str, float] = {
        "hbm": float(loaded[slices["hbm"]].max(initial=0.0)),
        "compute": _peak_compute_s(chip, flops),
        "network": float(total[: slices["controller"].start].max(initial=0.0)),
        "preload": preload_s,
        "execute": max(compute_s, exchange_s) if overlaps else compute_s + exchange_s + other_s,
    }
    if chip.port_sharing == "shared":
        # Compute at phi beside rho takes max(1, phi + rho): its port never does more than it can.
        port = ported + total[slices["sram"]]
        bounds["sram_port"] = float(port.max(initial=0.0))
    separate = chip.network.preload_network == "separate"
    if not overlaps and not separate and preload_s > 0 and exchange_s > 0:
        bounds["contention"] = _contention(
            compute_s + other_s,
            exchanged,
            np.asarray([times for (times,) in transfers.values()]),
            [coflows[key].seconds for key in transfers],
            np.asarray([coflows[key].alone_s for key in transfers]),
        )
    return bounds


def _peak_compute_s(chip: Chip, flops: dict[str, float]) -> float:
    """Multiply-adds at the chip's peak, types one after another."""
    total = 0.0
    for dtype, count in flops.items():
        if count and chip.macs_per_cycle(dtype) > 0:
            total += count / chip.peak_flops_per_s(dtype)
    return total


def _contention(
    other_s: float,
    exchanged: np.ndarray,
    times: np.ndarray,
    seconds: Sequence[np.ndarray],
    alone: np.ndarray,
) -> float:
    """The second family on the few resources that exchanges and preloads use most."""
    table = np.stack(list(seconds))
    both = exchanged + times @ table
    candidates = {int(exchanged.argmax()), int(both.argmax())}
    best = 0.0
    keep = alone > 0
    times, alone, table = times[keep], alone[keep], table[keep]
    grid = np.linspace(0.0, 1.0, _GRID)
    g, a = (axis.reshape(-1, 1) for axis in np.meshgrid(grid, grid))
    for r in candidates:
        held = np.minimum(g, (1.0 - a) + a * (table[:, r] / alone))
        total = (1.0 - g[:, 0]) * other_s + a[:, 0] * exchanged[r] + held @ (times * alone)
        best = max(best, float(total.max()))
    return best


def steady_bounds(timeline: Timeline, machine: Machine) -> dict[str, float]:
    """Bounds of one iteration of the program's longest loop over operators in its steady state, in
    which what is issued in one iteration and used in the next costs each iteration once. Empty for
    a program without such a loop."""
    loop = longest_loop(timeline)
    if loop is None:
        return {}
    return program_bounds(Timeline(timeline.cores, loop.events), machine)


def longest_loop(timeline: Timeline) -> Repeat | None:
    """The outermost loop over operators with most iterations."""
    loops = [
        event
        for event in timeline.events
        if isinstance(event, Repeat) and any(isinstance(e, Operator) for e in event.events)
    ]
    return max(loops, key=lambda loop: loop.count, default=None)


# ---------------------------------------------------------------------- over plans


@dataclass(frozen=True)
class Choices:
    """The plans of one operator as seconds, in arrays of equal length (or one number for all).

    Ports are those of one core that every plan uses fully: core 0 holds a full tile in each.
    preload_s: its transfers alone, one after another, each the larger of HBM and ingress.
    compute_s: compute, barriers and latencies, the cores' time outside exchange flows.
    exchange_s, landing_s: what exchanges and preloads occupy the ingress port for.
    egress_s, sram_s: what exchanges occupy the egress port for; the SRAM port's time (0 is valid).
    single: whether at most one tensor is preloaded. times: how often the operator runs.
    """

    preload_s: np.ndarray
    compute_s: np.ndarray
    exchange_s: np.ndarray
    landing_s: np.ndarray
    egress_s: np.ndarray | float = 0.0
    sram_s: np.ndarray | float = 0.0
    single: bool = False
    times: int = 1


def choices(front: PlanFront, chip: Chip, *, single: bool = False, times: int = 1) -> Choices:
    """The choices of a plan front on a chip. `single`: the operator preloads one tensor."""
    net = chip.network
    landing = front.preload_bytes / net.port_in_bytes_per_s
    hbm = front.hbm_bytes / chip.hbm_bytes_per_s if chip.hbm_bytes_per_s else 0.0
    if chip.hbm is None:
        landing = np.zeros(len(front))
    exchange = front.exchange_bytes * net.exchange_overhead_factor / net.port_in_bytes_per_s
    return Choices(
        preload_s=np.maximum(landing, hbm),
        compute_s=front.compute_cycles / chip.clock_hz,
        exchange_s=exchange,
        landing_s=landing,
        single=single,
        times=times,
    )


def plan_bound(operators: Sequence[Choices], *, overlaps: bool = False) -> float:
    """The best lower bound over a grid of weights, in seconds, on any schedule of `operators`,
    whichever plan each of them takes. `overlaps`: the chip computes while it exchanges.

    In the second family an operator with several preloads may move those during exchanges that
    need least of the port, so of its sum only the chord between its extremes is proven:
    sum t_j h(P_j / t_j) >= t h(0) + P (h(1) - h(0)) for the concave h(r) = min(g, 1 - a + a r).
    """
    steps = np.linspace(0.0, 1.0, 11)
    first = np.stack(np.meshgrid(steps, steps, steps, steps, indexing="ij"), -1).reshape(-1, 4)
    first = first[first.sum(axis=1) <= 1.0 + 1e-9]
    weights = np.concatenate([first, 1.0 - first.sum(axis=1, keepdims=True)], axis=1)
    total = np.zeros(len(weights))
    for c in operators:
        apart = c.compute_s + c.exchange_s
        execute = np.maximum(c.compute_s, c.exchange_s) if overlaps else apart
        parts = (c.preload_s, execute, c.landing_s + c.exchange_s, c.egress_s, c.sram_s)
        table = np.stack(np.broadcast_arrays(*parts))
        total += c.times * (weights @ table).min(axis=1)
    best = float(total.max())
    if overlaps:
        return best
    for g in steps:
        for a in steps:
            low, high = min(g, 1.0 - a), g
            value = 0.0
            for c in operators:
                if c.single:
                    held = np.minimum(g * c.preload_s, (1.0 - a) * c.preload_s + a * c.landing_s)
                else:
                    held = low * c.preload_s + (high - low) * c.landing_s
                plan = (1.0 - g) * c.compute_s + a * c.exchange_s + held
                value += c.times * float(np.min(plan))
            best = max(best, value)
    return best


def operator_choices(timeline: Timeline, machine: Machine) -> list[Choices]:
    """A program's own plans, each as the only choice, and each transfer on its own."""
    chip = machine.resources.chip
    none = np.zeros(1)
    out = machine.resources.slices["port_out"].start
    found: list[Choices] = []

    def visit(events: Sequence[Event], times: int) -> None:
        for event in events:
            if isinstance(event, Repeat):
                visit(event.events, times * event.count)
            elif isinstance(event, Preload | Store):
                coflow = machine.coflow(event)
                alone, landing = np.asarray([coflow.alone_s]), coflow.seconds[:1]
                found.append(Choices(alone, none, none, landing, single=True, times=times))
            elif isinstance(event, Operator):
                found.append(execute(event, times))

    def execute(event: Operator, times: int) -> Choices:
        compute = exchange = egress = 0.0
        for leaf, n in leaves(event.events):
            if isinstance(leaf, Compute):
                compute += n * leaf.cycles.maximum / chip.clock_hz
            elif isinstance(leaf, Exchange) and leaf.traffic.total_bytes:
                coflow = machine.coflow(leaf)
                exchange += n * float(coflow.seconds[0])
                egress += n * float(coflow.seconds[out])
                compute += n * (2.0 * chip.sync_s + coflow.latency_s)
        cores, flows = np.asarray([compute]), np.asarray([exchange])
        return Choices(none, cores, flows, none, egress, times=times)

    visit(timeline.events, 1)
    return found
