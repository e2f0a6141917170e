"""What the HTML report shows, as plain JSON: everything on the page comes from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from elk_ir.errors import ElkError, UsageError
from elk_ir.sim.timeline import operators as operators_of

if TYPE_CHECKING:
    from elk_ir.program import Program
    from elk_ir.sim import SimResult
    from elk_ir.sim.record import Frame

MAX_SLICES = 20_000
"""Bars of the timeline; beyond it the shortest ones are left out, and the page says so."""

BINS = 300


def report_data(
    program: Program, policies: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The report of a program of the ipu target. `policies`: results of `elk compare`, if they are
    to be on the page. Raises UsageError for another target, ElkError for a damaged program."""
    from elk_ir.report.sensitivity import sensitivities
    from elk_ir.report_json import time_fields
    from elk_ir.sim.run import simulate
    from elk_ir.targets.ipu.timeline import timeline_of

    if program.target_name != "ipu":
        raise UsageError(f"--report shows programs of the target ipu, not {program.target_name}")
    chip, report = program.chip, program.report
    timeline = timeline_of(program.target)
    result = simulate(timeline, chip)
    tokens = report.get("tokens_per_run")
    labels = [op.label for op, _ in operators_of(timeline.events)]
    if len(labels) != len(report["operators"]):
        raise ElkError(
            f"{len(labels)} operators are in the target, {len(report['operators'])} in the report",
            hint="the files of this folder are not of one compilation: compile again",
        )
    usage = result.usage(BINS)
    return {
        "report": {**report, **time_fields(result, tokens)},
        "moved_bytes": result.bytes_by_resource,
        "ideal_time_s": simulate(timeline, chip.ideal()).time_s,
        "spent_s": _spent(result),
        "sensitivities": [asdict(s) for s in sensitivities(timeline, chip)],
        "timeline": timeline_data(result),
        "usage": {
            "step_s": usage.step_s,
            "hbm": _rounded(usage.hbm.tolist()),
            "network": _rounded(usage.network.tolist()),
            "compute": _rounded(usage.compute.tolist()),
        },
        "sram": sram_data(program, result, labels),
        "operators": operator_data(result, report["operators"], labels),
        "policies": None if policies is None else list(policies),
    }


def _spent(result: SimResult) -> dict[str, float]:
    """Seconds of all operators by what bounded them, the largest first."""
    total: dict[str, float] = {}
    for row in result.operators():
        for name, seconds in row.spent_s:
            total[name] = total.get(name, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(v, digits) for v in values]


# ---------------------------------------------------------------------- operators


def operator_data(
    result: SimResult, operators: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of `report.json`, in program order, with the time of all their runs and what bounded
    most of it. `name` is the target's, in which the copies of an operator (one in a loop, one
    peeled off it) have names of their own: `labels`, in the same order."""
    times: dict[str, float] = {}
    runs: dict[str, int] = {}
    spent: dict[str, dict[str, float]] = {}
    for row in result.operators():
        times[row.label] = times.get(row.label, 0.0) + row.end_s - row.start_s
        runs[row.label] = runs.get(row.label, 0) + 1
        own = spent.setdefault(row.label, {})
        for name, seconds in row.spent_s:
            own[name] = own.get(name, 0.0) + seconds
    found = []
    for operator, name in zip(operators, labels, strict=True):
        own = spent.get(name, {})
        found.append(
            {
                "name": name,
                **{k: operator[k] for k in ("nodes", "kind", "extents", "grid")},
                **{k: operator[k] for k in ("cores", "sram_bytes", "flops")},
                "runs": runs.get(name, 0),
                "time_s": times.get(name, 0.0),
                "bounded_by": max(own, key=lambda key: own[key], default=""),
            }
        )
    return found


# ---------------------------------------------------------------------- timeline


def timeline_data(result: SimResult) -> dict[str, Any]:
    """Bars of HBM, network and execute, loops folded as the simulator leaves them.

    `frames`: each with `s`, six numbers a bar (track 0 HBM, 1 network, 2 execute; name; node; start
    and end in seconds of the frame; detail), and `i`, (start, count, period, frame) of what runs
    inside. Names are numbers of `names`. Frame 0 is the program.
    """
    tracks = {"hbm": 0, "network": 1, "execute": 2}
    names: dict[str, int] = {}
    numbers: dict[int, int] = {}
    frames: list[dict[str, Any]] = []
    every = [s.end_s - s.start_s for frame in _frames(result.frame) for s in frame.slices]
    shortest = sorted(every, reverse=True)[MAX_SLICES] if len(every) > MAX_SLICES else -1.0
    left_out = 0

    def name(text: str) -> int:
        return names.setdefault(text, len(names))

    def add(frame: Frame) -> int:
        nonlocal left_out
        if id(frame) in numbers:
            return numbers[id(frame)]
        number = numbers[id(frame)] = len(frames)
        bars: list[float] = []
        entry: dict[str, Any] = {"s": bars, "i": []}
        frames.append(entry)
        for s in frame.slices:
            if s.end_s - s.start_s <= shortest:
                left_out += 1
                continue
            bars += [tracks[s.track], name(s.name), name(s.node)]
            bars += [float(f"{s.start_s:.8g}"), float(f"{s.end_s:.8g}"), name(s.detail)]
        for start, count, period, inner in frame.inner:
            entry["i"].append([start, count, period, add(inner)])
        return number

    add(result.frame)
    return {"names": list(names), "frames": frames, "left_out": left_out}


def _frames(frame: Frame) -> list[Frame]:
    """A frame and all below it, each once."""
    found = {id(frame): frame}
    for _, _, _, inner in frame.inner:
        found |= {id(f): f for f in _frames(inner)}
    return list(found.values())


# ---------------------------------------------------------------------- SRAM


def sram_data(program: Program, result: SimResult, labels: Sequence[str]) -> dict[str, Any]:
    """Where each buffer lies and when: bodies of loops once, an operator as wide as a run of it
    takes on average, and the phases of an operator equally long.

    `columns`: (label, start, end) in seconds of that axis. `buffers`: (name, operator, offset, end
    offset, [start, end, …]), bytes and seconds.
    """
    from elk_ir.dialects.icca.ops import ExecuteOp
    from elk_ir.passes.icca_liveness import liveness
    from elk_ir.plan.buffers import PHASES

    live = liveness(program.icca)
    total: dict[str, list[float]] = {}
    for row in result.operators():
        entry = total.setdefault(row.label, [0.0, 0.0])
        entry[0] += row.end_s - row.start_s
        entry[1] += 1.0
    executes = sorted(
        ((time, op) for op, time in live.times.items() if isinstance(op, ExecuteOp)),
        key=lambda item: item[0],
    )
    label_of = {op: label for (_, op), label in zip(executes, labels, strict=True)}
    starts = [(time, label_of[op]) for time, op in executes]
    last = max([time + PHASES for time, _ in starts], default=0)
    last = max([last, *(b for p in live.placed for _, b in _intervals(p, live))])
    at = [0.0] * (last + 1)
    columns: list[tuple[str, float, float]] = []
    now, point = 0.0, 0
    for time, label in starts:
        for t in range(point, time + 1):
            at[t] = now
        seconds, runs = total.get(label, [0.0, 1.0])
        width = seconds / runs
        columns.append((label, now, now + width))
        for k in range(1, PHASES + 1):
            at[time + k] = now + width * k / PHASES
        now, point = now + width, time + PHASES
    for t in range(point, last + 1):
        at[t] = now
    buffers = []
    for placed in live.placed:
        offset = placed.offset
        if offset is None or offset < 0 or not placed.buffer.size_bytes:
            continue
        spans = [v for a, b in _intervals(placed, live) for v in (at[a], at[b])]
        owner = label_of[placed.uses[0][0]]
        end = offset + placed.buffer.size_bytes
        buffers.append((placed.buffer.name, owner, offset, end, spans))
    return {"columns": columns, "buffers": buffers, "span_s": now}


def _intervals(placed: Any, live: Any) -> Sequence[tuple[int, int]]:
    return placed.buffer.intervals(live.problem.loops)
