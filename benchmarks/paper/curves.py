"""The curves that motivate Elk, of one layer of a decoding step, and what compiling takes.

Each is a `Curve`: data, a picture, the published trend and whether the data show it. The layer's
curves come from the program's own tables and from its simulation, not from formulas of this file,
but for the bandwidth demand (`demand`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log10, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from charts import bar_chart, line_chart

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.schedule.model import Program, Schedule
    from elk_ir.sim.result import SimResult

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "shared" / "data"
KIB = 1024


@dataclass(frozen=True)
class Curve:
    """A figure that is no sweep. `agrees` is None where nothing is published to compare with."""

    name: str
    title: str
    published: str
    agrees: bool | None
    sentence: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    picture: str
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Layer:
    """One layer under one policy: the scheduler's program of the loop's body (or of all, if nothing
    loops), its schedule, and the simulation of the whole program."""

    chip: Chip
    program: Program
    schedule: Schedule
    result: SimResult


def layers(model: Path, chip: str, dims: Mapping[str, int]) -> dict[str, Layer]:
    """The longest body of a model under basic and elk-full."""
    from elk_ir.compiler import context
    from elk_ir.passes.convert_icca_to_ipu import ConvertIccaToIpuPass
    from elk_ir.passes.icca_allocate import allocate_module
    from elk_ir.passes.icca_schedule import schedule_by_name
    from elk_ir.targets.ipu.timeline import simulate_module
    from elk_ir.tools.cmd_compare import prepare

    prepared = prepare(str(model), chip, dims)
    found: dict[str, Layer] = {}
    for policy in ("basic", "elk-full"):
        module = prepared.module.clone()
        scheduling = schedule_by_name(
            module, policy, tables=prepared.tables, solved=prepared.solved
        )
        allocate_module(module)
        ConvertIccaToIpuPass().apply(context(), module)
        result = simulate_module(module, prepared.chip)
        program, schedule = max(scheduling.schedules, key=lambda s: (s[0].periodic, len(s[0].ops)))
        found[policy] = Layer(prepared.chip, program, schedule, result)
    return found


def layer_curves(model: Path, chip: str, dims: Mapping[str, int]) -> Iterator[Curve]:
    """The four curves of one layer; the first bears the cost of compiling."""
    started = time.process_time()
    found = layers(model, chip, dims)
    full = found["elk-full"]
    for make in (space, demand_curve, traffic):
        curve = make(full)
        yield _timed(curve, started)
        started = time.process_time()
    yield _timed(network(found), started)


def _timed(curve: Curve, started: float) -> Curve:
    return replace(curve, cpu_s=time.process_time() - started)


# ---------------------------------------------------------------------- one layer


def space(layer: Layer) -> Curve:
    """Execution time against execution space, of the products that load most."""
    heavy = sorted(
        (i for i, op in enumerate(layer.program.ops) if op.loads),
        key=lambda i: -layer.program.ops[i].table.hbm_s,
    )[:5]
    lines: dict[str, dict[float, float]] = {}
    rows: list[tuple[Any, ...]] = []
    for i in heavy:
        op = layer.program.ops[i]
        order = np.lexsort((op.table.compute_s, op.table.execute_bytes))
        room = op.table.execute_bytes[order] / KIB
        best = np.minimum.accumulate((op.table.compute_s + op.table.exchange_s)[order]) * 1e6
        corner = np.flatnonzero(np.diff(best, prepend=np.inf) < 0)
        line: dict[float, float] = {}
        last = None
        for k in corner:  # stairs: the time stays until there is room for a better plan
            if last is not None:
                line[float(room[k]) - 1e-6] = last
            last = float(best[k])
            line[float(room[k])] = last
        lines[op.label] = line
        rows.append(
            (
                op.label,
                len(corner),
                f"{room[corner[0]]:.0f}",
                f"{best[corner[0]]:.1f}",
                f"{room[corner[-1]]:.0f}",
                f"{best[corner[-1]]:.1f}",
                f"{best[corner[0]] / best[corner[-1]]:.2f}",
            )
        )
    gains = [float(r[-1]) for r in rows]
    return Curve(
        "execution-space",
        "Execution time against execution space (KiB a core)",
        "An operator is faster with more memory to execute in.",
        all(g >= 1 for g in gains) and max(gains) > 1.05,
        f"from the least space to what the fastest plan takes, times fall by up to"
        f" {max(gains):.2f}x (of the {len(rows)} operators that load most)",
        ("operator", "corners", "least KiB", "µs there", "KiB of the fastest", "µs there", "ratio"),
        tuple(rows),
        line_chart(lines, "Execution space", "KiB of SRAM a core", "µs"),
    )


def demand(
    starts: Sequence[float],
    landing: Sequence[float],
    hbm: Sequence[float],
    period: float,
    room: float,
) -> float:
    """The least constant HBM bandwidth (bytes/s) at which no operator of a loop ever waits.

    Operator k begins at starts[k] (seconds; the loop repeats after `period`), by when its hbm[k]
    bytes must be there. From the issue of its preload until then a core holds landing[k] bytes of
    preload space for it, of which there are `room`; preloads come in order. So operator j can be
    issued when operator i begins if the bytes of i + 1 … j fit, and of operators i … j all bytes
    have to come between the issue of i and the start of j: the bandwidth is the largest ratio over
    all i <= j (as in scheduling with release times and deadlines). Infinite if one operator's own
    preload does not fit.
    """
    if max(landing) > room:
        return float("inf")
    n, copies = len(starts), 4
    t = np.concatenate([np.asarray(starts) + period * c for c in range(copies)])
    held = np.concatenate([[0.0], np.cumsum(np.tile(landing, copies))])
    came = np.concatenate([[0.0], np.cumsum(np.tile(hbm, copies))])
    # The first operator behind which j's preload fits: held[j + 1] - held[first + 1] <= room. One
    # that would have to be issued more than a period ahead is issued a period ahead.
    first = np.searchsorted(held[1:], held[1:] - room * (1 + 1e-12), side="left")
    best = 0.0
    for i in range(2 * n, 3 * n):
        issued = t[max(int(first[i]), i - n)]
        last = np.arange(i, i + n)
        best = max(best, float(np.max((came[last + 1] - came[i]) / (t[last] - issued))))
    return max(best, float(sum(hbm)) / period)


def demand_curve(layer: Layer) -> Curve:
    """The HBM bandwidth that a layer needs so as never to wait, against its preload space."""
    from elk_ir.schedule.model import loads_of

    program, schedule = layer.program, layer.schedule
    rate = layer.chip.hbm_bytes_per_s
    starts, landing, hbm, now = [], [], [], 0.0
    for op, load, c in zip(
        program.ops, loads_of(program, schedule.choice), schedule.choice, strict=True
    ):
        if op.loads and op.table.preload_bytes[c] > 0:
            starts.append(now)
            landing.append(float(op.table.preload_bytes[c]))
            hbm.append(op.table.hbm_s * rate)
        now += load.alone_s
    rooms = np.linspace(max(landing), max(1.05 * max(landing), sum(landing)), 14)[1:]
    needed = {float(s) / KIB: demand(starts, landing, hbm, now, float(s)) / 1e12 for s in rooms}
    values = list(needed.values())
    average = sum(hbm) / now / 1e12
    return Curve(
        "preload-space",
        "HBM bandwidth so that no operator waits, against preload space (KiB a core)",
        "With more preload space the demand for bandwidth is smoothed.",
        all(b <= a * (1 + 1e-9) for a, b in pairwise(values)) and values[0] > values[-1],
        f"{values[0]:.1f} TB/s with little more room than the largest preload takes,"
        f" {values[-1]:.1f} TB/s with room for a layer's; the average of the executes is"
        f" {average:.1f}",
        ("KiB a core", "TB/s"),
        tuple((f"{s:.0f}", f"{v:.2f}") for s, v in needed.items()),
        line_chart({"elk-full's plans": needed}, "Preload space", "KiB of SRAM a core", "TB/s"),
    )


def traffic(layer: Layer) -> Curve:
    """Bytes into a core of each operator with the least and the most preload space, its execution
    plan being what elk-full chose."""
    port = layer.chip.network.port_in_bytes_per_s
    rows: list[tuple[Any, ...]] = []
    bars: dict[str, dict[str, float]] = {}
    totals = [0.0, 0.0]
    for op, c in zip(layer.program.ops, layer.schedule.choice, strict=True):
        if not op.loads:
            continue
        t = op.table
        family = np.flatnonzero(t.family == t.family[c])
        ends = [
            int(family[np.lexsort((t.exchange_s[family], key))[0]])
            for key in (t.preload_bytes[family], -t.preload_bytes[family])
        ]
        moved = [float(t.exchange_s[k]) * port / KIB for k in ends]
        held = [float(t.preload_bytes[k]) / KIB for k in ends]
        totals = [a + b for a, b in zip(totals, moved, strict=True)]
        rows.append(
            (op.label, *(f"{v:.1f}" for pair in zip(held, moved, strict=True) for v in pair))
        )
        bars[op.label[:14]] = {"least preload space": moved[0], "most preload space": moved[1]}
    return Curve(
        "preload-traffic",
        "Traffic between cores with the least and the most preload space",
        "Preloads that take little space cause traffic between cores when they are distributed.",
        totals[0] > totals[1],
        f"a layer moves {totals[0]:.0f} KiB into a core with the least preload space,"
        f" {totals[1]:.0f} with the most",
        ("operator", "least KiB", "KiB moved", "most KiB", "KiB moved"),
        tuple(rows),
        bar_chart(bars, "Traffic between cores", "operators that load", "KiB a core"),
    )


def network(found: Mapping[str, Layer], bins: int = 120) -> Curve:
    """The share of the network in use over one iteration in steady state."""
    lines: dict[str, dict[float, float]] = {}
    rows: list[tuple[Any, ...]] = []
    spread: dict[str, float] = {}
    for policy, layer in found.items():
        frame = layer.result.frame
        period = layer.result.time_s
        if frame.inner:
            _, _, period, frame = max(frame.inner, key=lambda entry: entry[1] * entry[2])
        use = np.zeros(bins)
        step = period / bins
        for begin, inner in frame.passes():
            for s in inner.segments:
                a, b = (s.start_s + begin) / step, (s.end_s + begin) / step
                edges = np.arange(bins)
                use += np.clip(np.minimum(b, edges + 1) - np.maximum(a, edges), 0, None) * s.network
        lines[policy] = {(k + 0.5) * step * 1e6: float(v) * 100 for k, v in enumerate(use)}
        spread[policy] = float(use.std() / use.mean()) if use.mean() else 0.0
        idle = float((use < 0.05).mean())
        rows.append(
            (
                policy,
                f"{period * 1e6:.1f}",
                f"{use.mean():.0%}",
                f"{use.max():.0%}",
                f"{idle:.0%}",
                f"{spread[policy]:.2f}",
            )
        )
    return Curve(
        "network-demand",
        "The network over one iteration of the longest loop",
        "Demand on the network fluctuates; Elk fills it evenly.",
        spread["elk-full"] < spread["basic"],
        "standard deviation over mean: "
        + ", ".join(f"{v:.2f} under {name}" for name, v in spread.items()),
        ("policy", "µs", "mean", "peak", "time below 5 %", "deviation / mean"),
        tuple(rows),
        line_chart(lines, "Share of all ports in use", "µs of one iteration", "%"),
    )


# ---------------------------------------------------------------------- cost model


def accuracy() -> Curve:
    """Errors of the fitted tile costs on tiles they have not seen, and of the closed forms."""
    from elk_ir.cost import formulas
    from elk_ir.cost.fit_files import SHIPPED, load_fits
    from elk_ir.cost.linear_tree import cross_validate, tree_trainer
    from elk_ir.cost.profile_data import read_measurements

    started = time.process_time()
    fits = load_fits(SHIPPED)
    lines: dict[str, dict[float, float]] = {}
    rows: list[tuple[Any, ...]] = []
    for name in ("ipu_mk2_tile_conv.csv", "ipu_mk2_tile_pool.csv"):
        for m in read_measurements(DATA / name):
            found = fits.of(m.kind)
            assert found is not None
            seen = cross_validate(m.shapes, m.cycles, tree_trainer(found))
            if m.kind == "conv":
                b, i, o, p, k = m.shapes.T
                closed = formulas.matmul_cycles(np.ones_like(b), b * p, o, i * k, 2)
            else:
                c, p, k = m.shapes.T
                closed = formulas.reduction_cycles(c * p, k)
            for label, predicted in (("fitted", seen), ("closed form", closed)):
                errors = np.sort(np.abs(predicted / m.cycles - 1.0).ravel()) * 100
                shares = np.linspace(0, 1, 41)
                line = {float(np.quantile(errors, s)): float(s) * 100 for s in shares}
                lines[f"{m.kind}, {label}"] = {x: y for x, y in line.items() if x <= 100}
                half, most, worst = np.quantile(errors, [0.5, 0.9, 1.0])
                rows.append(
                    (
                        m.kind,
                        label,
                        len(m.cycles),
                        f"{half:.1f} %",
                        f"{most:.0f} %",
                        f"{worst:.0f} %",
                    )
                )
    return Curve(
        "cost-model",
        "Errors of tile costs, five-fold cross-validated, five shuffles",
        "Fitted trees predict what a tile takes (the error is not in our notes).",
        None,
        "half of the tiles are predicted within "
        + " and ".join(f"{r[3]} ({r[0]})" for r in rows if r[1] == "fitted"),
        ("tiles", "model", "measured", "median error", "90th percentile", "worst"),
        tuple(rows),
        line_chart(lines, "Errors of tile costs", "error, %", "% of tiles"),
        time.process_time() - started,
    )


# ---------------------------------------------------------------------- compile time

_COMPILE = """
import json, resource, sys
import elk_ir
path, chip, policy, dims = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
elk_ir.compile(path, chip=chip, policy=policy, dims=dims)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def compile_times(models: Sequence[Path], chip: str, policy: str, dims: Mapping[str, int]) -> Curve:
    """CPU seconds of compiling each model in a process of its own, start of Python included."""
    rows: list[tuple[Any, ...]] = []
    line: dict[float, float] = {}
    total = 0.0
    for model in models:
        own = dims if "dyn" in model.name else {}
        run = subprocess.run(
            [sys.executable, "-c", _COMPILE, str(model), chip, policy, json.dumps(own)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            lines = run.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"{model.name}: {lines[-1]}")
        cpu_s, peak = json.loads(run.stdout.splitlines()[-1])
        weights, nodes = size_of(model)
        line[weights / 1e9] = cpu_s
        total += cpu_s
        rows.append(
            (
                model.name.split("_")[0],
                f"{weights / 1e9:.2f}",
                nodes,
                f"{cpu_s:.1f}",
                f"{peak / 1e9:.2f}",
            )
        )
    growth = ""
    if len(line) > 1:
        x, y = zip(*sorted(line.items()), strict=True)
        slope = (log10(y[-1]) - log10(y[0])) / (log10(x[-1]) - log10(x[0]))
        growth = f"; {x[-1] / x[0]:.0f} times the parameters take {y[-1] / y[0]:.1f} times as long"
        growth += f" (exponent {slope:.2f})"
    return Curve(
        "compile-time",
        f"CPU seconds of compiling (`{policy}`) against parameters",
        "Plans for large LLMs in under 5 minutes on 32 cores.",
        max(line.values()) < 300,
        f"at most {max(line.values()):.0f} CPU s on one core" + growth,
        ("model", "parameters, 10⁹", "ONNX nodes", "CPU s", "peak GB"),
        tuple(rows),
        line_chart({policy: line}, "Compile time", "parameters, 10⁹", "CPU s"),
        total,
    )


def size_of(model: Path) -> tuple[int, int]:
    """Parameters and nodes of an ONNX file; its weights need not exist."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return sum(prod(t.dims) for t in graph.initializer if len(t.dims) > 1), len(graph.node)
