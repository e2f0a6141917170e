"""A Chrome/Perfetto trace of a simulation: rows for execute, network and HBM, and counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elk_ir.output import write_text
from elk_ir.sim.result import SimResult

_ROWS = {"execute": 1, "network": 2, "hbm": 3}
_TITLES = {"execute": "execute", "network": "network", "hbm": "HBM"}
_MICROSECONDS = 1e6
COUNTER_BINS = 1000


def trace_events(result: SimResult, *, program: str = "program") -> list[dict[str, Any]]:
    """Events of the Trace Event Format: complete slices (`X`), counters (`C`) and names (`M`).

    Slices carry the ONNX node's name; times are microseconds of simulated time.
    """
    events: list[dict[str, Any]] = [_metadata("process_name", 0, f"{program} on {result.chip}")]
    for row, number in _ROWS.items():
        events.append(_metadata("thread_name", number, _TITLES[row]))
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number}
            | {"args": {"sort_index": number}}
        )
    slices: list[dict[str, Any]] = []
    for start, frame in result.frame.passes():
        for s in frame.slices:
            args: dict[str, Any] = {"bounded_by": s.detail} if s.detail else {}
            if s.node and s.node != s.name:
                args["program"] = s.name
            begin = round((start + s.start_s) * _MICROSECONDS, 6)
            end = round((start + s.end_s) * _MICROSECONDS, 6)
            slices.append(
                {
                    "ph": "X",
                    "name": s.node or s.name,
                    "cat": s.track,
                    "pid": 1,
                    "tid": _ROWS[s.track],
                    "ts": begin,
                    "dur": round(end - begin, 6),
                    "args": args,
                }
            )
    # Viewers nest by containment: longer ones first where two begin together, and an operator
    # (whose category is `execute` and which has a bound) in front of its only phase.
    slices.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"], not e["args"]))
    events += slices
    usage = result.usage(COUNTER_BINS)
    rows = (
        ("HBM utilization", usage.hbm),
        ("network utilization", usage.network),
        ("compute utilization", usage.compute),
        ("SRAM bytes a core", usage.sram_bytes),
    )
    for name, values in rows:
        last: float | None = None
        for k, value in enumerate(values.tolist()):
            if value != last:
                at = k * usage.step_s * _MICROSECONDS
                events.append(
                    {"ph": "C", "name": name, "pid": 1, "ts": at, "args": {"value": value}}
                )
                last = value
    return events


def _metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}


def write_trace(result: SimResult, path: Path | str, *, program: str = "program") -> None:
    """Write the trace; Perfetto and chrome://tracing open it. Raises ElkError if it can't be
    written."""
    text = json.dumps(
        {"displayTimeUnit": "ns", "traceEvents": trace_events(result, program=program)}
    )
    write_text(path, text + "\n")
