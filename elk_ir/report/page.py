"""The HTML report: one file, nothing fetched, readable without a script but for the timeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from zlib import crc32

from elk_ir.output import write_text

_FOLDER = Path(__file__).parent

PARTS = {
    "preload_only": "cores wait for HBM",
    "execute_only": "cores execute, HBM is idle",
    "overlapped": "both",
    "network_stall": "execution slowed down by transfers",
}
_PART_COLORS = ("var(--hbm)", "var(--execute)", "var(--mark)", "var(--network)")


def write_page(data: Mapping[str, Any], path: str | Path) -> None:
    """Write the page. Raises ElkError if it can't be written."""
    write_text(path, page(data))


def page(data: Mapping[str, Any]) -> str:
    """The page as text. Every number on it carries its exact value as `data-value`, and the name of
    its field in the report, if it has one, as `data-field`."""
    report = data["report"]
    title = f"{report['model']} on {report['chip']}"
    css = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    # What only tables and the map need is on the page already.
    kept = {k: v for k, v in data.items() if k in ("report", "timeline", "usage")}
    kept["timeline"] = {**data["timeline"], "hues": [hue(n) for n in data["timeline"]["names"]]}
    kept["report"] = {k: v for k, v in report.items() if k != "operators"}
    body = "\n".join(
        [
            f"<header><h1>{escape(title)}</h1><button id=theme>light / dark</button></header>",
            f"<p>Policy {escape(str(report['policy']))}, target {escape(report['target'])};"
            f" elk-ir {escape(report['elk_ir_version'])}. All times are simulated.</p>",
            _cards(data),
            _where(report),
            _timeline(data),
            _bounds(data),
            _sram(data),
            _operators(data),
            _policies(data),
            _nodes(data),
        ]
    )
    return (
        f"<!doctype html>\n<html lang=en>\n<head><meta charset=utf-8><title>{escape(title)}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f'<link rel=icon href="data:,">\n<style>\n{css}</style></head>\n<body>\n{body}\n'
        f"<div id=tip></div>\n<script type=application/json id=data>{_json(kept)}</script>\n"
        f"<script>\n{script}</script>\n</body></html>\n"
    )


def _json(value: object) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c")


# ---------------------------------------------------------------------- numbers


def seconds(value: float) -> str:
    """A time for people."""
    if value == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"


def si(value: float, unit: str) -> str:
    """A number with a decimal prefix."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    for prefix, scale in (("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _span(field: str, value: float, shown: str) -> str:
    return f'<b data-field="{field}" data-value="{value!r}">{escape(shown)}</b>'


def _card(field: str, value: float, shown: str, label: str) -> str:
    return f"<div class=card>{_span(field, value, shown)}<span>{escape(label)}</span></div>"


def _cell(value: object, shown: str | None = None) -> str:
    """A table cell; numbers are aligned to the right and carry their value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = shown if shown is not None else f"{value:,}"
        return f'<td class=n data-value="{value!r}">{escape(text)}</td>'
    return f"<td>{escape(shown if shown is not None else str(value))}</td>"


def _table(name: str, head: Sequence[str], rows: Iterable[str], numeric: Iterable[int]) -> str:
    right = set(numeric)
    top = "".join(
        f"<th{' class=n' if i in right else ''}>{escape(h)}</th>" for i, h in enumerate(head)
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f"<div class=scroll><table class=sort id={name}><thead><tr>{top}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


# ---------------------------------------------------------------------- sections


def _cards(data: Mapping[str, Any]) -> str:
    report = data["report"]
    cards = [
        _card("time_s", report["time_s"], seconds(report["time_s"]), "time of a run"),
        _card(
            "lower_bound_s",
            report["lower_bound_s"],
            seconds(report["lower_bound_s"]),
            "lower bound",
        ),
        _card("energy_j", report["energy_j"], si(report["energy_j"], "J"), "energy of a run"),
    ]
    if "tokens_per_s" in report:
        rate, energy = report["tokens_per_s"], report["energy_per_token_j"]
        wait = report["latency_per_token_s"]
        cards += [
            _card("tokens_per_s", rate, f"{rate:,.4g}", "tokens a second"),
            _card("latency_per_token_s", wait, seconds(wait), "to the next token"),
            _card("energy_per_token_j", energy, si(energy, "J"), "energy a token"),
        ]
    for field, label in (("hbm_utilization", "of HBM"), ("network_utilization", "of the network")):
        cards.append(_card(field, report[field], f"{report[field]:.1%}", f"{label} bandwidth"))
    rate = report["flops_per_s"]
    cards.append(_card("flops_per_s", rate, si(rate, "FLOPS"), "of work done"))
    peak, capacity = report["sram_peak_bytes"], report["sram_capacity_bytes"]
    cards.append(
        _card("sram_peak_bytes", peak, f"{peak / capacity:.1%}", f"of {capacity:,} bytes a core")
    )
    moved = report["hbm_bytes"]
    cards.append(_card("hbm_bytes", moved, si(moved, "B"), "moved to and from HBM"))
    return f"<div class=cards>{''.join(cards)}</div>"


def _where(report: Mapping[str, Any]) -> str:
    whole = sum(report["breakdown_s"].values()) or 1.0
    bars, keys = [], []
    for (name, meaning), color in zip(PARTS.items(), _PART_COLORS, strict=True):
        value = report["breakdown_s"][name]
        label = f"{name.replace('_', ' ')}: {meaning}"
        bars.append(f'<i style="width:{100 * value / whole:.3f}%;background:{color}"></i>')
        keys.append(
            f'<span class=key style="background:{color}"></span>{escape(label)} '
            f'<span data-field="breakdown_s.{name}" data-value="{value!r}">{seconds(value)}'
            f" ({value / whole:.1%})</span>"
        )
    return f"<h2>Where the time goes</h2><div class=bar>{''.join(bars)}</div>{''.join(keys)}"


def _timeline(data: Mapping[str, Any]) -> str:
    note = "The wheel zooms, dragging moves, a double click shows everything."
    left_out = data["timeline"]["left_out"]
    if left_out:
        note += f" The {left_out:,} shortest bars are left out."
    keys = "".join(
        f'<span class=key style="background:var(--{n})"></span>{label}'
        for n, label in (("hbm", "HBM"), ("network", "network"), ("execute", "computing cores"))
    )
    return (
        f"<h2>Timeline</h2><p>{note} Below: shares in use of {keys}.</p>"
        "<canvas id=timeline></canvas>"
    )


def _bounds(data: Mapping[str, Any]) -> str:
    report = data["report"]
    time_s = report["time_s"] or 1.0
    rows = [
        _cell(name) + _cell(value, seconds(value)) + _cell(value / time_s, f"{value / time_s:.1%}")
        for name, value in sorted(report["bounds_s"].items(), key=lambda item: -item[1])
    ]
    text = (
        "<h2>What bounds it</h2><p>No schedule of this program on this chip can be faster than the"
        " largest of these (docs/simulator.md says why).</p>"
    )
    text += _table("bounds", ("bound", "at least", "of the time"), rows, (1, 2))
    spent = data["spent_s"]
    total = sum(spent.values()) or 1.0
    rows = [
        _cell(n) + _cell(v, seconds(v)) + _cell(v / total, f"{v / total:.1%}")
        for n, v in spent.items()
    ]
    text += "<p>What operators waited for, or were busy with, all their runs added up:</p>"
    text += _table("spent", ("bounded by", "time", "share"), rows, (1, 2))
    rows = []
    for s in data["sensitivities"]:
        saved = 1.0 - s["doubled_s"] / time_s
        rows.append(
            _cell(s["resource"])
            + _cell(s["meaning"])
            + _cell(s["elasticity"], f"{s['elasticity']:.3f} %")
            + _cell(s["doubled_s"], f"{seconds(s['doubled_s'])} ({saved:+.1%} saved)")
        )
    text += (
        "<h2>What would help most</h2><p>The same program, simulated again on faster chips. The"
        " derivative is the time saved by one per cent more of a resource; a compiler that knew of"
        " it could choose better plans still.</p>"
    )
    head = ("resource", "what", "saved by 1 % more", "time with twice as much")
    return text + _table("sensitivity", head, rows, (2, 3))


def hue(text: str) -> float:
    """The colour of an operator, in degrees."""
    return crc32(text.encode()) % 3600 / 10


def _sram(data: Mapping[str, Any]) -> str:
    sram = data["sram"]
    capacity, span = data["report"]["sram_capacity_bytes"], sram["span_s"] or 1.0
    width, height = 1000.0, 400.0
    rects = []
    for label, start, end in sram["columns"]:
        x = width * start / span
        rects.append(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1=0 y2="{height:g}" stroke="var(--line)"'
            f' stroke-width=".5"><title>{escape(label)} {seconds(end - start)}</title></line>'
        )
    for name, owner, low, high, spans in sram["buffers"]:
        y, tall = height * (1 - high / capacity), height * (high - low) / capacity
        title = f"{name}\noperator {owner}\n{high - low:,} bytes at {low:,}"
        for a, b in zip(spans[::2], spans[1::2], strict=True):
            if b <= a:
                continue
            rects.append(
                f'<rect class=b x="{width * a / span:.2f}" y="{y:.2f}"'
                f' width="{width * (b - a) / span:.2f}" height="{tall:.2f}"'
                f' fill="hsl({hue(owner):.0f} 60% 55%)"><title>{escape(title)}</title></rect>'
            )
    return (
        "<h2>SRAM of a core</h2><p>Which bytes are whose: address upwards to"
        f" {capacity:,} bytes, time to the right. Bodies of loops are drawn once; an operator is as"
        " wide as one run of it takes on average, and its phases are equally wide.</p>"
        f'<svg viewBox="0 0 {width:g} {height:g}" preserveAspectRatio=none role=img'
        f' aria-label="SRAM in use">{"".join(rects)}</svg>'
    )


def _operators(data: Mapping[str, Any]) -> str:
    time_s = data["report"]["time_s"] or 1.0
    rows = []
    for o in data["operators"]:
        grid = " × ".join(f"{n} {k}" for n, k in o["grid"].items() if k > 1) or "1"
        rows.append(
            _cell(o["name"])
            + _cell(o["kind"])
            + _cell(o["runs"])
            + _cell(o["time_s"], seconds(o["time_s"]))
            + _cell(o["time_s"] / time_s, f"{o['time_s'] / time_s:.1%}")
            + _cell(o["bounded_by"])
            + _cell(o["cores"])
            + _cell(grid)
            + _cell(o["sram_bytes"])
            + _cell(o["flops"], si(o["flops"], ""))
        )
    head = ("operator", "kind", "runs", "time", "of all", "bounded by", "cores", "grid")
    head += ("SRAM bytes", "operations a run")
    return (
        "<h2>Operators</h2><p>A click on a column sorts. Times of all runs are added up.</p>"
        "<input class=filter data-table=operators placeholder=filter>"
        + _table("operators", head, rows, (2, 3, 4, 6, 8, 9))
    )


def _policies(data: Mapping[str, Any]) -> str:
    if data["policies"] is None:
        return ""
    rows = []
    for r in data["policies"]:
        if "time_s" not in r:
            rows.append(_cell(r["policy"]) + _cell(r["error"].split("\n")[0]) + "<td></td>" * 6)
            continue
        parts = r["breakdown_s"]
        rows.append(
            _cell(r["policy"])
            + _cell(r["time_s"], seconds(r["time_s"]))
            + _cell(r["hbm_utilization"], f"{r['hbm_utilization']:.1%}")
            + _cell(r["network_utilization"], f"{r['network_utilization']:.1%}")
            + "".join(_cell(parts[n], seconds(parts[n])) for n in list(PARTS)[:1])
            + _cell(parts["network_stall"], seconds(parts["network_stall"]))
            + _cell(r["energy_j"], si(r["energy_j"], "J"))
            + _cell(r["sram_peak_bytes"])
        )
    head = ("policy", "time", "HBM", "network", "preload only", "stall", "energy", "SRAM bytes")
    return "<h2>Policies</h2>" + _table("policies", head, rows, range(1, 8))


def _nodes(data: Mapping[str, Any]) -> str:
    rows = []
    for o in data["operators"]:
        for node in o["nodes"]:
            rows.append(_cell(node) + _cell(o["name"]) + _cell(o["cores"]))
    return (
        "<h2>Which ONNX node became what</h2><p>Nodes that only change a view, or were folded, have"
        " no operator of their own.</p><input class=filter data-table=nodes placeholder=filter>"
        + _table("nodes", ("ONNX node", "operator", "cores"), rows, (2,))
    )
