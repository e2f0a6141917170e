"""What a simulation reports: time, its parts, utilisations, operators, SRAM, energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elk_ir.sim.record import Frame, Row


@dataclass(frozen=True)
class Breakdown:
    """The four parts of the time: they add up to it."""

    preload_only_s: float
    """The cores wait for HBM."""
    execute_only_s: float
    """The cores execute, HBM is idle."""
    overlapped_s: float
    """Both, at the speed at which the cores would execute alone."""
    network_stall_s: float
    """What the execution lost to transfers that shared its network or SRAM ports."""

    def to_json(self) -> dict[str, float]:
        """The fields of `breakdown_s`."""
        return {
            "preload_only": self.preload_only_s,
            "execute_only": self.execute_only_s,
            "overlapped": self.overlapped_s,
            "network_stall": self.network_stall_s,
        }


@dataclass(frozen=True)
class Usage:
    """Utilisations over time, in equal steps of `step_s`: float64 (bins,) each."""

    step_s: float
    hbm: np.ndarray
    network: np.ndarray
    compute: np.ndarray
    sram_bytes: np.ndarray
    """The largest number of bytes in use on a core within each step."""


@dataclass(frozen=True)
class SimResult:
    """The simulation of one program on one chip.

    Utilisations are averages over the run. `bytes_by_resource`: hbm, network (once a link on a
    mesh), exchange (between cores), landing (preloads into cores), chip_link. `bounds_s`: every
    lower bound that was checked; none exceeds `time_s`. Of the longest loop: the time of the
    iteration that repeats (0 where none does) and the largest bound on it.
    """

    chip: str
    time_s: float
    breakdown: Breakdown
    hbm_utilization: float
    network_utilization: float
    flops: float
    sram_peak_bytes: int
    sram_capacity_bytes: int
    bytes_by_resource: dict[str, float]
    energy_j: float
    bounds_s: dict[str, float]
    compute_s: float
    sync_s: float
    steady_iteration_s: float
    steady_lower_bound_s: float
    frame: Frame = field(repr=False, compare=False)

    @property
    def lower_bound_s(self) -> float:
        """The largest bound known."""
        return max(self.bounds_s.values(), default=0.0)

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations a second; 0 for a program that takes no time."""
        return self.flops / self.time_s if self.time_s > 0 else 0.0

    def operators(self) -> list[Row]:
        """Every operator that ran, in order, with times in seconds of the program."""
        rows: list[Row] = []
        for start, frame in self.frame.passes():
            for row in frame.rows:
                rows.append(row._replace(start_s=row.start_s + start, end_s=row.end_s + start))
        return sorted(rows, key=lambda row: (row.start_s, row.end_s))

    def usage(self, bins: int = 200) -> Usage:
        """Utilisations over time."""
        step = self.time_s / bins if self.time_s > 0 else 1.0
        sums = np.zeros((3, bins))
        sram = np.zeros(bins)
        for start, frame in self.frame.passes():
            for s in frame.segments:
                a, b = (s.start_s + start) / step, (s.end_s + start) / step
                first, last = int(a), min(int(b), bins - 1)
                for k in range(first, last + 1):
                    part = min(b, k + 1.0) - max(a, float(k))
                    if part > 0:
                        sums[0, k] += part * s.hbm
                        sums[1, k] += part * s.network
                        sums[2, k] += part * s.compute
                        sram[k] = max(sram[k], s.live_bytes)
        return Usage(step, sums[0], sums[1], sums[2], sram)

    def to_json(self, *, operators: bool = True, bins: int = 0) -> dict[str, Any]:
        """A JSON object with the field names of every report; `bins` adds usage over time."""
        result: dict[str, Any] = {
            "chip": self.chip,
            "time_s": self.time_s,
            "lower_bound_s": self.lower_bound_s,
            "bounds_s": self.bounds_s,
            "steady_iteration_s": self.steady_iteration_s,
            "steady_lower_bound_s": self.steady_lower_bound_s,
            "breakdown_s": self.breakdown.to_json(),
            "hbm_utilization": self.hbm_utilization,
            "network_utilization": self.network_utilization,
            "flops_per_s": self.flops_per_s,
            "sram_peak_bytes": self.sram_peak_bytes,
            "sram_capacity_bytes": self.sram_capacity_bytes,
            "hbm_bytes": self.bytes_by_resource["hbm"],
            "bytes_by_resource": self.bytes_by_resource,
            "energy_j": self.energy_j,
        }
        if operators:
            result["operators"] = [
                {
                    "operator": row.label,
                    "node": row.node,
                    "start_s": row.start_s,
                    "end_s": row.end_s,
                    "bounded_by": row.bounded_by,
                    "spent_s": dict(row.spent_s),
                }
                for row in self.operators()
            ]
        if bins:
            usage = self.usage(bins)
            result["usage"] = {
                "step_s": usage.step_s,
                "hbm_utilization": usage.hbm.tolist(),
                "network_utilization": usage.network.tolist(),
                "compute_utilization": usage.compute.tolist(),
                "sram_bytes": usage.sram_bytes.tolist(),
            }
        return result
