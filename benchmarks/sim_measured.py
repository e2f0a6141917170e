"""The simulator against cycle-accurate simulators: mesh saturation, mesh latency, HBM streaming.

    python benchmarks/sim_measured.py [FOLDER]            the tables, as in docs/simulator.md

FOLDER holds the reference CSV files (default: data/reference of the folder `shared` beside the
repository). Traffic goes through the simulator's own routing, sharing and engine.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from elk_ir.chips import load_chip
from elk_ir.chips.chip import Chip
from elk_ir.sim import Timeline, simulate
from elk_ir.sim.flows import Resources, max_min
from elk_ir.sim.patterns import traffic_of
from elk_ir.sim.timeline import Delivery, Preload, PreloadWait, Vector

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "reference"


@dataclass(frozen=True)
class Row:
    """One comparison. `limit`: the error that is promised, None for a row that is only reported."""

    what: str
    measured: float
    simulated: float
    limit: float | None

    @property
    def error(self) -> float:
        """Relative to the measured value."""
        return self.simulated / self.measured - 1.0


def mesh_chip(k: int, latency_cycles: float = 0.0) -> Chip:
    """k x k cores at 1 GHz whose ports and links carry one flit of a byte each cycle."""
    return load_chip("test-16").with_fields(
        {
            "cores_per_chip": k * k,
            "network.topology": "mesh2d",
            "network.rows": k,
            "network.cols": k,
            "network.port_in_bytes_per_s": 1e9,
            "network.port_out_bytes_per_s": 1e9,
            "network.link_bytes_per_s": 1e9,
            "network.transfer_latency_cycles": latency_cycles,
            "network.hop_latency_cycles": latency_cycles,
            "hbm.controller_placement": "corners",
            "hbm.controllers_per_chip": 4,
        }
    )


def destinations(pattern: str, k: int) -> Callable[[int], Sequence[int]]:
    """The destinations of a source, equally likely, as BookSim2 defines the pattern."""
    n = k * k

    def shifted(node: int, by: int) -> int:
        return (node // k + by) % k * k + (node % k + by) % k

    table: dict[str, Callable[[int], Sequence[int]]] = {
        "uniform": lambda node: range(n),
        "transpose": lambda node: [node % k * k + node // k],
        "tornado": lambda node: [shifted(node, (k + 1) // 2 - 1)],
        "neighbor": lambda node: [shifted(node, 1)],
        "bitcomp": lambda node: [n - 1 - node],
        "hotspot_node0": lambda node: [0],
    }
    return table[pattern]


def saturation(pattern: str, k: int) -> float:
    """Average accepted rate in flits per node and cycle when every node offers one a cycle.

    Every source is a flow of its own (nodes do not wait for each other here), spread over its
    destinations; all share links and ports max-min fairly.
    """
    chip = mesh_chip(k)
    resources = Resources(chip)
    targets = destinations(pattern, k)
    flits = 1_000_000
    loads: list[np.ndarray] = []
    for node in range(k * k):
        to = np.asarray(list(targets(node)), dtype=np.int64)
        size = np.full(to.size, flits // to.size, dtype=np.int64)
        traffic = traffic_of(k * k, np.full(to.size, node, dtype=np.int64), to, size)
        seconds = resources.exchange(traffic, k * k).seconds.copy()
        # What a node sends to itself passes its ports in the reference, too.
        own = traffic.local_bytes.values / 1e9
        seconds[resources.slices["port_in"]] += own
        seconds[resources.slices["port_out"]] += own
        seconds[resources.slices["sram"]] = 0.0
        loads.append(seconds / (flits // to.size * to.size / 1e9))
    table = np.stack(loads)
    return float(max_min(table, np.ones(table.shape[1]), np.ones(k * k)).mean())


def mean_latency_cycles(pattern: str, k: int, router_cycles: float) -> float:
    """Mean latency of single flits without load: `router_cycles` for the source's router and for
    every hop."""
    resources = Resources(mesh_chip(k, router_cycles))
    targets = destinations(pattern, k)
    total: list[float] = []
    for node in range(k * k):
        row: list[float] = []
        for to in targets(node):
            if to == node:
                row.append(router_cycles)
                continue
            pair = (np.asarray([v], dtype=np.int64) for v in (node, to, 1))
            row.append(resources.exchange(traffic_of(k * k, *pair), k * k).latency_s * 1e9)
        total.append(float(np.mean(row)))
    return float(np.mean(total))


def hbm_gb_per_s(requests_per_cycle: str) -> float:
    """Streaming 1 GB through HBM2 of 256 GB/s peak with tRFC 260 ns and tREFI 3.9 µs, in GB/s."""
    chip = load_chip("test-16").with_fields(
        {
            "hbm.peak_bandwidth_bytes_per_s": 256e9,
            "hbm.refresh_interval_s": 3.9e-6,
            "hbm.refresh_duration_s": 260e-9,
            "hbm.bandwidth_bytes_per_s": 256e9 * (1 - 260 / 3900),
            "hbm.controller_egress_bytes_per_s": 256e9,
            "network.port_in_bytes_per_s": 64e9,
        }
    )
    cores, total = chip.cores, 10**9
    size = total // cores
    each = Delivery(cores, 1, Vector(np.arange(cores)), Vector(np.full(cores, size)), size * cores)
    timeline = Timeline(cores, (Preload(0, "stream", each), PreloadWait(0)))
    return size * cores / simulate(timeline, chip).time_s / 1e9


def _read(folder: Path, name: str) -> list[dict[str, str]]:
    lines = (folder / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@cache
def saturation_rows(folder: Path = FOLDER) -> list[Row]:
    """Accepted rates at saturation."""
    rows: list[Row] = []
    for line in _read(folder, "noc_mesh_saturation_booksim2.csv"):
        k, pattern = int(line["k"]), line["pattern"]
        limit = None
        if pattern in ("neighbor", "hotspot_node0", "transpose"):
            limit = 0.05
        elif pattern == "uniform" and k <= 8:
            limit = 0.10
        name = f"{k}×{k} {pattern}"
        rows.append(Row(name, float(line["accepted"]), saturation(pattern, k), limit))
    return rows


@cache
def latency_rows(folder: Path = FOLDER) -> list[Row]:
    """Latencies on an 8 × 8 mesh; the router's is fitted on uniform traffic at a rate of 0.01."""
    lines = [r for r in _read(folder, "noc_mesh_booksim2.csv") if r["avg_latency_cycles"]]
    first = next(r for r in lines if r["pattern"] == "uniform" and r["injection_rate"] == "0.01")
    router = float(first["avg_latency_cycles"]) / mean_latency_cycles("uniform", 8, 1.0)
    lowest: dict[str, float] = {}
    for line in lines:
        rate = float(line["injection_rate"])
        lowest[line["pattern"]] = min(rate, lowest.get(line["pattern"], rate))
    rows: list[Row] = []
    for line in lines:
        pattern, rate = line["pattern"], float(line["injection_rate"])
        limit = 0.10 if rate == lowest[pattern] else None
        simulated = mean_latency_cycles(pattern, 8, router)
        measured = float(line["avg_latency_cycles"])
        rows.append(Row(f"{pattern} at {rate:g}", measured, simulated, limit))
    return rows


@cache
def hbm_rows(folder: Path = FOLDER) -> list[Row]:
    """Streaming from HBM."""
    rows: list[Row] = []
    for line in _read(folder, "hbm_dramsim3.csv"):
        rate = line["requests_per_cycle"]
        limit = 0.02 if rate in ("4", "saturated") else None
        if limit is not None:
            rows.append(
                Row(
                    f"{rate} requests/cycle",
                    float(line["read_GB_per_s"]),
                    hbm_gb_per_s(rate),
                    limit,
                )
            )
    return rows


def table(head: str, unit: str, rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = [
        f"| {head} | measured ({unit}) | simulated | error | promised |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        promise = "" if row.limit is None else f"{row.limit:.0%}"
        digits = 4 if row.measured < 10 else 1
        lines.append(
            f"| {row.what} | {row.measured:.{digits}f} | {row.simulated:.{digits}f}"
            f" | {row.error:+.1%} | {promise} |"
        )
    return "\n".join(lines)


def report(folder: Path = FOLDER) -> str:
    """All tables."""
    return "\n\n".join(
        [
            table("mesh, pattern", "flits/node/cycle", saturation_rows(folder)),
            table("8×8, pattern at rate", "cycles", latency_rows(folder)),
            table("HBM2, sequential reads", "GB/s", hbm_rows(folder)),
        ]
    )


def main() -> int:
    """Prints the tables; exit code 1 if a promise is broken."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(report(folder))
    rows = [*saturation_rows(folder), *latency_rows(folder), *hbm_rows(folder)]
    broken = [r.what for r in rows if r.limit is not None and abs(r.error) > r.limit]
    for what in broken:
        print(f"broken: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
