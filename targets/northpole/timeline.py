"""The simulated pipeline as a trace for Perfetto and Chrome: stages down, time across."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elk_ir.northpole.mapping import Mapping
from elk_ir.northpole.pipeline import HOST, decode_intervals
from elk_ir.output import write_text

TOKENS = 3
"""Rounds of generation that the trace shows: one fills the pipeline, the others repeat."""


def trace_events(mapping: Mapping, tokens: int = TOKENS) -> list[dict[str, Any]]:
    """Chrome trace events, times in microseconds: one thread a stage, one more for the host."""
    names = [f"{s.name} (cards {s.cards[0]}-{s.cards[-1]})" for s in mapping.stages] + [HOST]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
        for i, name in enumerate(names)
    ]
    for each in decode_intervals(mapping, tokens):
        events.append(
            {
                "ph": "X",
                "name": f"micro-batch {each.micro_batch}",
                "pid": 0,
                "tid": each.stage,
                "ts": each.start_s * 1e6,
                "dur": (each.end_s - each.start_s) * 1e6,
                "args": {"token": each.token},
            }
        )
    return events


def write_trace(mapping: Mapping, path: str | Path) -> None:
    """Write the trace. Raises ElkError when the file cannot be written."""
    text = json.dumps({"traceEvents": trace_events(mapping), "displayTimeUnit": "ns"}) + "\n"
    write_text(path, text)
