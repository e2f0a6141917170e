"""`simulate`: run the engine, add what follows from the program alone, check the bounds."""

from __future__ import annotations

from elk_ir.chips.chip import Chip
from elk_ir.errors import ElkError
from elk_ir.sim.bounds import longest_loop, program_bounds, steady_bounds
from elk_ir.sim.engine import Engine
from elk_ir.sim.machine import Machine, machine_of
from elk_ir.sim.record import Frame
from elk_ir.sim.result import Breakdown, SimResult
from elk_ir.sim.timeline import Compute, Exchange, Preload, Store, Timeline, leaves

_SLACK = 1e-9
"""Rounding of sums of many steps, relative."""


class SimulationError(ElkError):
    """The simulator contradicts itself; never the user's fault."""


def simulate(timeline: Timeline, chip: Chip) -> SimResult:
    """Simulate a program on `chip`. Raises ElkError for a program of another number of cores, or
    one that waits for what never started; SimulationError if the result broke a bound."""
    engine = Engine(timeline, chip)
    time_s, totals, frame = engine.run()
    machine = machine_of(chip)
    moved, energy = _static(timeline, machine)
    energy += chip.energy.static_power_per_chip_w * chip.chips * time_s
    bounds = program_bounds(timeline, machine)
    _check(time_s, totals.time_s, bounds, (totals.hbm_bytes, moved["hbm"]))
    _check_exchanged(totals.exchange_bytes, moved["exchange_network"])
    network = _network_utilization(timeline, machine, time_s)
    hbm_rate = chip.hbm_bytes_per_s
    del moved["exchange_network"]
    return SimResult(
        chip=chip.name,
        time_s=time_s,
        breakdown=Breakdown(
            totals.preload_only_s,
            totals.execute_only_s,
            totals.overlapped_s,
            totals.network_stall_s,
        ),
        hbm_utilization=moved["hbm"] / (hbm_rate * time_s) if hbm_rate * time_s else 0.0,
        network_utilization=network,
        flops=timeline.flops,
        sram_peak_bytes=timeline.peak_bytes,
        sram_capacity_bytes=chip.usable_sram_per_core_bytes,
        bytes_by_resource=moved,
        energy_j=energy,
        bounds_s=bounds,
        compute_s=totals.compute_s,
        sync_s=totals.sync_s,
        steady_iteration_s=_steady_iteration(timeline, frame),
        steady_lower_bound_s=max(steady_bounds(timeline, machine).values(), default=0.0),
        frame=frame,
    )


def _steady_iteration(timeline: Timeline, frame: Frame) -> float:
    """The last full repetition of the longest loop over operators; 0 without one."""
    loop = longest_loop(timeline)
    repeated = [(count, period) for _, count, period, _ in frame.inner]
    if loop is None or not repeated:
        return 0.0
    count, period = max(repeated)
    return period if count > 1 else 0.0


def _static(timeline: Timeline, machine: Machine) -> tuple[dict[str, float], float]:
    """(bytes by resource, energy without static power) of the whole program."""
    chip = machine.resources.chip
    rates = chip.energy
    names = ("hbm", "network", "exchange", "landing", "chip_link", "exchange_network")
    moved: dict[str, float] = {name: 0.0 for name in names}
    energy = 0.0
    for leaf, times in leaves(timeline.events):
        if isinstance(leaf, Compute):
            if leaf.macs:
                energy += times * leaf.macs * chip.mac_energy_j(leaf.dtype)
            energy += times * float(leaf.sram_bytes.values.sum()) * rates.sram_byte_j
        elif isinstance(leaf, Preload | Store | Exchange):
            coflow = machine.coflow(leaf)
            moved["hbm"] += times * coflow.hbm_bytes
            moved["network"] += times * coflow.network_bytes
            moved["chip_link"] += times * coflow.chip_link_bytes
            if isinstance(leaf, Exchange):
                moved["exchange"] += times * leaf.traffic.total_bytes
                moved["exchange_network"] += times * coflow.network_bytes
                touched = 2.0 * (leaf.traffic.total_bytes + leaf.traffic.local_bytes.values.sum())
            else:
                touched = float(leaf.delivery.ingress.sum())
                if isinstance(leaf, Preload):
                    moved["landing"] += times * touched
            energy += times * float(touched) * rates.sram_byte_j
    energy += moved["hbm"] * rates.hbm_byte_j + moved["network"] * rates.network_byte_j
    energy += moved["chip_link"] * rates.chip_link_byte_j
    return moved, energy


def _network_utilization(timeline: Timeline, machine: Machine, time_s: float) -> float:
    """Average part of the links' (or ingress ports') bandwidth in use."""
    if time_s <= 0:
        return 0.0
    busy = 0.0
    for leaf, times in leaves(timeline.events):
        if isinstance(leaf, Preload | Exchange | Store):
            busy += times * machine.resources.mean_seconds(machine.coflow(leaf), "network")
    return busy / time_s


def _check(
    time_s: float, parts_s: float, bounds: dict[str, float], hbm: tuple[float, float]
) -> None:
    """Rule 4: no time below a bound; and what the engine moved is what the program asks for."""
    for name, bound in bounds.items():
        if time_s < bound * (1.0 - _SLACK):
            raise SimulationError(
                f"simulated {time_s:.6g} s, below the bound '{name}' of {bound:.6g} s",
                hint="this is an error of the simulator: please report the program",
            )
    if abs(parts_s - time_s) > _SLACK * time_s:
        raise SimulationError(f"the parts of the time add up to {parts_s:.6g} of {time_s:.6g} s")
    if abs(hbm[0] - hbm[1]) > 1e-6 * max(hbm[1], 1.0):
        raise SimulationError(f"HBM moved {hbm[0]:.6g} bytes of the program's {hbm[1]:.6g}")


def _check_exchanged(moved: float, wanted: float) -> None:
    if abs(moved - wanted) > 1e-6 * max(wanted, 1.0):
        raise SimulationError(f"exchanges moved {moved:.6g} bytes of the program's {wanted:.6g}")
