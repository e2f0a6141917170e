"""The HTML report: its numbers are the JSON's, nothing is fetched, and a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import elk_ir
from elk_ir.program import Program
from elk_ir.report.data import MAX_SLICES, report_data
from elk_ir.report.page import page
from elk_ir.report.sensitivity import faster_tiles, sensitivities
from elk_ir.sim.run import simulate
from elk_ir.targets.ipu.timeline import timeline_of
from elk_ir.tools.elk import main

MODELS = Path(__file__).parent / "models"
MODEL = MODELS / "statickv_scatter_dynamo.onnx"


@pytest.fixture(scope="module")
def program() -> Program:
    return elk_ir.compile(MODEL, chip="test-16", policy="basic")


@pytest.fixture(scope="module")
def data(program: Program) -> dict[str, Any]:
    return report_data(program)


@pytest.fixture(scope="module")
def html(data: dict[str, Any]) -> str:
    return page(data)


class Reader(HTMLParser):
    """Numbers by field, rows of tables by id, text of scripts, addresses, and open elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, float] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: dict[str, str] = {}
        self.addresses: list[str] = []
        self.rects = 0
        self._table = self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.addresses += [found[a] for a in ("src", "href") if a in found]
        self.rects += tag == "rect"
        if "data-field" in found:
            self.fields[found["data-field"]] = float(found["data-value"])
        if tag == "table":
            self._table = found["id"]
            self.tables[self._table] = []
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag == "td":
            self.tables[self._table][-1].append(found.get("data-value", ""))
        elif tag == "script":
            self._script = found.get("id", "code")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = ""
        elif tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self._table and self.tables[self._table] and self.tables[self._table][-1]:
            row = self.tables[self._table][-1]
            row[-1] = row[-1] or data


def test_numbers_are_those_of_the_report(program: Program, html: str) -> None:
    read, report = Reader(html), program.report
    expected = {
        name: report[name]
        for name in ("time_s", "lower_bound_s", "energy_j", "flops_per_s", "hbm_bytes")
    }
    expected |= {n: report[n] for n in ("hbm_utilization", "network_utilization")}
    expected["sram_peak_bytes"] = report["sram_peak_bytes"]
    expected |= {f"breakdown_s.{n}": v for n, v in report["breakdown_s"].items()}
    if "tokens_per_s" in report:
        for name in ("tokens_per_s", "latency_per_token_s", "energy_per_token_j"):
            expected[name] = report[name]
    assert read.fields == expected
    bounds = {row[0]: float(row[1]) for row in read.tables["bounds"] if row}
    assert bounds == report["bounds_s"]
    rows = [row for row in read.tables["operators"] if row]
    assert [int(r[6]) for r in rows] == [o["cores"] for o in report["operators"]]
    assert [int(r[8]) for r in rows] == [o["sram_bytes"] for o in report["operators"]]
    assert [int(r[2]) for r in rows] == [o["count"] for o in report["operators"]]
    nodes = [row[0] for row in read.tables["nodes"] if row]
    assert nodes == [n for o in report["operators"] for n in o["nodes"]]
    embedded = json.loads(read.scripts["data"])["report"]
    assert embedded == {k: v for k, v in report.items() if k != "operators"}


def test_nothing_is_fetched(html: str) -> None:
    assert Reader(html).addresses == ["data:,"]
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest", html)
    assert "prefers-color-scheme: dark" in html


def test_bars_are_what_was_simulated(program: Program, data: dict[str, Any]) -> None:
    frames = data["timeline"]["frames"]

    def bars(number: int, offset: float) -> list[tuple[float, float]]:
        s = frames[number]["s"]
        found = [(offset + s[k + 3], offset + s[k + 4]) for k in range(0, len(s), 6) if s[k] == 2]
        for start, count, period, inner in frames[number]["i"]:
            for i in range(count):
                found += bars(inner, offset + start + i * period)
        return found

    wanted = [
        (start + s.start_s, start + s.end_s)
        for start, frame in program.simulate().frame.passes()
        for s in frame.slices
        if s.track == "execute"
    ]
    assert len(wanted) < MAX_SLICES
    flat = sorted(v for bar in bars(0, 0.0) for v in bar)
    assert flat == pytest.approx(sorted(v for bar in wanted for v in bar), rel=1e-6, abs=1e-15)


def test_times_of_operators_add_up(program: Program, data: dict[str, Any]) -> None:
    total = sum(r.end_s - r.start_s for r in program.simulate().operators())
    assert sum(o["time_s"] for o in data["operators"]) == pytest.approx(total)


def test_the_map_has_no_overlaps_and_its_peak_is_the_report_s(
    program: Program, data: dict[str, Any], html: str
) -> None:
    buffers = data["sram"]["buffers"]
    assert max(b[3] for b in buffers) == program.report["sram_peak_bytes"]
    spans = [
        (low, high, a, b)
        for _, _, low, high, times in buffers
        for a, b in zip(times[::2], times[1::2], strict=True)
        if b > a
    ]
    assert Reader(html).rects == len(spans)
    for i, (low, high, a, b) in enumerate(spans):
        for other in spans[:i]:
            both = min(b, other[3]) - max(a, other[2])
            assert both <= 1e-12 or min(high, other[1]) <= max(low, other[0])


def test_derivatives(program: Program, data: dict[str, Any]) -> None:
    """Against a finite difference made by hand; and twice as fast a machine takes half the time."""
    timeline, chip = timeline_of(program.target), program.chip
    found = {s.resource: s for s in sensitivities(timeline, chip)}
    assert [s["resource"] for s in data["sensitivities"]] == list(found)
    assert set(found) == {"HBM", "network", "tiles", "barriers", "latencies"}
    base = simulate(timeline, chip).time_s
    assert simulate(faster_tiles(timeline, 1.0), chip).time_s == base
    doubled = chip.with_fields({"sync_cycles": chip.sync_cycles / 2})
    assert found["barriers"].doubled_s == simulate(timeline, doubled).time_s
    more = simulate(faster_tiles(timeline, 1.001), chip).time_s
    assert found["tiles"].elasticity == pytest.approx((base - more) / base / 0.001, rel=0.05)
    # Time has no other ingredients, and scales with all of them together.
    assert sum(s.elasticity for s in found.values()) == pytest.approx(1.0, abs=0.02)


def test_the_command_writes_it(
    tmp_path: Path, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program.save(tmp_path / "program")
    file = tmp_path / "r.html"
    assert main(["simulate", str(folder), "--report", str(file)]) == 0
    assert "report written to" in capsys.readouterr().out
    saved = json.loads((folder / "report.json").read_text())
    fields = Reader(file.read_text()).fields
    assert fields["time_s"] == saved["time_s"]
    assert fields["energy_j"] == saved["energy_j"]
    assert main(["simulate", str(folder), "--report", str(tmp_path / "no" / "r.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert main(["simulate", str(folder), "--report-policies", "basic"]) == 2
    flags = ["--report", str(file), "--report-policies", "basic"]
    assert main(["simulate", str(folder), *flags]) == 2
    assert "give the model" in capsys.readouterr().err


def test_policies_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.html"
    argv = ["simulate", str(MODEL), "--chip", "test-16", "--policy", "basic", "--report", str(file)]
    assert main([*argv, "--report-policies", "basic,static", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = [row for row in Reader(file.read_text()).tables["policies"] if row]
    assert [row[0] for row in rows] == ["basic", "static"]
    assert float(rows[0][1]) == told["time_s"]


@pytest.mark.slow
def test_a_browser_shows_it(html: str, tmp_path: Path) -> None:
    """In headless Chromium: the script runs to its end, and the timeline is drawn."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on this machine")
    check = """<script>
window.errors = [];
addEventListener("error", e => errors.push(e.message));
addEventListener("load", () => {
  const c = document.getElementById("timeline"), g = c.getContext("2d");
  const pixels = g.getImageData(0, 0, c.width, c.height).data, colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) colours.add(pixels.slice(i, i + 3).join());
  document.querySelector("#operators th:nth-child(4)").click();
  const times = [...document.querySelectorAll("#operators tbody tr")]
    .map(r => +r.cells[3].dataset.value);
  const filter = document.querySelector("input.filter");
  filter.value = "no such operator"; filter.dispatchEvent(new Event("input"));
  const theme = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  document.body.innerHTML = `<pre id=told>${JSON.stringify({
    ready: document.documentElement.dataset.ready, errors, colours: colours.size, times,
    shown: [...document.querySelectorAll("#operators tbody tr")].filter(r => !r.hidden).length,
    themes: [theme, getComputedStyle(document.body).backgroundColor],
    buffers: document.querySelectorAll("svg rect").length })}</pre>`;
});
</script>"""
    file = tmp_path / "r.html"
    file.write_text(html.replace("<meta charset=utf-8>", "<meta charset=utf-8>" + check, 1))
    dump = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--window-size=1200,900",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    match = re.search(r"<pre id=\"told\">(.*?)</pre>", dump, re.S)
    assert match is not None, dump[:500]
    told = json.loads(match[1])
    assert told["errors"] == [] and told["ready"] == "1"
    assert told["colours"] > 10
    assert told["times"] == sorted(told["times"], reverse=True)
    assert told["shown"] == 0
    assert told["themes"][0] != told["themes"][1]
    assert told["buffers"] == Reader(html).rects
