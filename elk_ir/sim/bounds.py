"""Lower bounds on the time of a program, and of all programs over given plans.

A fixed program (`program_bounds`), by what each argument needs:

* hbm, network, compute, preload, execute: one resource, or the serial queue of preloads, or the
  serial cores, each busy for what the program asks of it.
* contention: with C the time of the cores outside exchange flows, E and P what exchanges and
  preloads occupy one resource (a port or a link) for, t_j the time of preload j alone. Let y_j be
  the part of preload j that moves while an exchange flows, X the time in which one does. Then
  X >= E + Σ y_j P_j and X >= Σ y_j t_j on that resource; T >= C + X, and since preloads move
  one at a time, T >= X + Σ (1 - y_j) t_j. Adding (1 - g) and g of these, and a and b <= 1 - a of
  those,  T >= (1 - g) C + a E + Σ t_j · min(g, b + a P_j / t_j)  for the worst y_j. Any
  0 <= g <= 1, 0 <= a <= 1 is valid; the best of a grid is taken.

`plan_bound` takes the same families with a minimum over plans inside the sum: a bound on every
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
    from elk_ir.sim.engine import Machine

_GRID = 21


def program_bounds(timeline: Timeline, machine: Machine) -> dict[str, float]:
    """Every bound of a program on a machine, by name, in seconds."""
    chip = machine.resources.chip
    size = machine.resources.size
    exchanged, loaded = np.zeros(size), np.zeros(size)
    transfers: dict[int, list[float]] = {}
    coflows = {}
    exchange_s = compute_s = other_s = preload_s = 0.0
    flops: dict[str, float] = {}
    for leaf, times in leaves(timeline.events):
        if isinstance(leaf, Compute):
            compute_s += times * leaf.cycles.maximum / chip.clock_hz
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
    bounds = {
        "hbm": float(loaded[slices["hbm"]].max(initial=0.0)),
        "compute": _peak_compute_s(chip, flops),
        "network": float(total[: slices["controller"].start].max(initial=0.0)),
        "preload": preload_s,
        "execute": max(compute_s, exchange_s) if overlaps else compute_s + exchange_s + other_s,
    }
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


# ---------------------------------------------------------------------- over plans


@dataclass(frozen=True)
class Choices:
    """The plans of one operator, as seconds and seconds of a port on a core that all plans use
    fully (core 0 holds a full tile in each): arrays of equal length. `times` it runs."""

    preload_s: np.ndarray
    """Alone: the larger of HBM time and ingress."""
    compute_s: np.ndarray
    """Compute, barriers and latencies: the cores' time outside exchange flows."""
    exchange_s: np.ndarray
    """What exchanges occupy the ingress port for."""
    landing_s: np.ndarray
    """What the preload occupies the ingress port for."""
    sram_s: np.ndarray
    """What compute keeps the SRAM port busy for; zeros are always right."""
    times: int = 1


def choices(front: PlanFront, chip: Chip, times: int = 1) -> Choices:
    """The choices of a plan front on a chip. Plans on a mesh, or of machines with overheads, take
    longer than what is counted here, so the bound holds there, too."""
    net = chip.network
    landing = front.preload_bytes / net.port_in_bytes_per_s
    hbm = front.hbm_bytes / chip.hbm_bytes_per_s if chip.hbm_bytes_per_s else 0.0
    exchange = front.exchange_bytes / net.port_in_bytes_per_s
    if chip.hbm is None:
        landing = np.zeros(len(front))
    return Choices(
        np.maximum(landing, hbm),
        front.compute_cycles / chip.clock_hz,
        exchange * net.exchange_overhead_factor,
        landing,
        np.zeros(len(front)),
        times,
    )


def plan_bound(operators: Sequence[Choices], *, overlaps: bool = False) -> float:
    """The best lower bound over weights, in seconds, on any schedule of `operators`, whichever
    plan each of them takes. `overlaps`: cores compute while they exchange."""
    steps = np.linspace(0.0, 1.0, 11)
    best = 0.0
    # First family: λ over preload, execute, ingress and SRAM-port time.
    for l1 in steps:
        for l2 in steps[steps <= 1.0 - l1 + 1e-12]:
            for l3 in steps[steps <= 1.0 - l1 - l2 + 1e-12]:
                l4 = max(0.0, 1.0 - l1 - l2 - l3)
                total = 0.0
                for c in operators:
                    execute = (
                        np.maximum(c.compute_s, c.exchange_s)
                        if overlaps
                        else c.compute_s + c.exchange_s
                    )
                    value = (
                        l1 * c.preload_s
                        + l2 * execute
                        + l3 * (c.landing_s + c.exchange_s)
                        + l4 * c.sram_s
                    )
                    total += c.times * float(value.min())
                best = max(best, total)
    if overlaps:
        return best
    # Second family: weights g and a (b = 1 - a).
    for g in steps:
        for a in steps:
            total = 0.0
            for c in operators:
                held = np.minimum(g * c.preload_s, (1.0 - a) * c.preload_s + a * c.landing_s)
                value = (1.0 - g) * c.compute_s + a * c.exchange_s + held
                total += c.times * float(value.min())
            best = max(best, total)
    return best


def operator_choices(timeline: Timeline, machine: Machine) -> list[Choices]:
    """The actual plan of every operator of a program as its only choice. Preloads count with the
    operator that they precede in program order, since only their sum matters."""
    chip = machine.resources.chip
    found: list[Choices] = []
    pending = [0.0, 0.0]

    def visit(events: Sequence[Event], times: int) -> None:
        for event in events:
            if isinstance(event, Repeat):
                flush(times)
                visit(event.events, times * event.count)
                flush(times * event.count)
            elif isinstance(event, Preload | Store):
                coflow = machine.coflow(event)
                pending[0] += coflow.alone_s
                pending[1] += float(coflow.seconds[0])
            elif isinstance(event, Operator):
                compute = exchange = 0.0
                for leaf, n in leaves(event.events):
                    if isinstance(leaf, Compute):
                        compute += n * leaf.cycles.maximum / chip.clock_hz
                    elif isinstance(leaf, Exchange) and leaf.traffic.total_bytes:
                        coflow = machine.coflow(leaf)
                        exchange += n * float(coflow.seconds[0])
                        compute += n * (2.0 * chip.sync_s + coflow.latency_s)
                add(compute, exchange, times)

    def add(compute: float, exchange: float, times: int) -> None:
        found.append(
            Choices(
                np.asarray([pending[0]]),
                np.asarray([compute]),
                np.asarray([exchange]),
                np.asarray([pending[1]]),
                np.zeros(1),
                times,
            )
        )
        pending[:] = [0.0, 0.0]

    def flush(times: int) -> None:
        if pending[0] > 0.0:
            add(0.0, 0.0, times)

    visit(timeline.events, 1)
    flush(1)
    return found
