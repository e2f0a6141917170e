"""The bundled sweeps of Elk's figures: they parse, name fields that exist, and become pictures."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from elk_ir.explore.sweep import load_sweep
from elk_ir.explore.task import tasks_of

PAPER = Path(__file__).resolve().parent.parent / "benchmarks" / "paper"
FULL = PAPER.parents[2] / "shared" / "models" / "full"


def _script(name: str) -> ModuleType:
    """A module of the folder; scripts there import each other."""
    sys.path.insert(0, str(PAPER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(PAPER))


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return _script("figures")


@pytest.fixture(scope="module")
def trends() -> ModuleType:
    return _script("trends")


@pytest.fixture(scope="module")
def curves() -> ModuleType:
    return _script("curves")


def test_every_sweep_has_a_figure(figures: ModuleType) -> None:
    assert {f.file for f in figures.FIGURES} == {p.name for p in PAPER.glob("*.toml")}
    for figure in figures.FIGURES:
        names = {f.name for f in figures.FIGURES if f.file == figure.file}
        assert load_sweep(PAPER / figure.file).name in names


@pytest.mark.skipif(not FULL.is_dir(), reason="the full-size graphs are not here (../shared)")
@pytest.mark.parametrize("path", sorted(PAPER.glob("*.toml")), ids=lambda p: p.stem)
def test_all_points_are_possible_machines(path: Path) -> None:
    assert [t.problem for t in tasks_of(load_sweep(path)) if t.problem] == []


def test_bandwidths_are_those_of_the_paper() -> None:
    if not FULL.is_dir():
        pytest.skip("the full-size graphs are not here (../shared)")
    tasks = tasks_of(load_sweep(PAPER / "hbm_bandwidth.toml"))
    chips = [t.chip for t in tasks if t.chip is not None]
    rates = sorted({c.hbm_bytes_per_s / 1e12 for c in chips})
    assert rates == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert all(c.hbm_egress_bytes_per_s >= c.hbm_bytes_per_s for c in chips)
    cores = [t.chip.cores for t in tasks_of(load_sweep(PAPER / "core_count.toml")) if t.chip]
    assert (min(cores), max(cores)) == (2208, 5152)


def test_verdicts(trends: ModuleType) -> None:
    def rows(chip: str, times: list[float]) -> list[dict[str, object]]:
        point = {"status": "ok", "chip": chip, "policy": "elk-full"}
        return [{**point, trends.HBM: float(i), "time_s": t} for i, t in enumerate(times)]

    def judged(*lines: list[float]) -> tuple[bool, str]:
        return trends.judge_hbm(
            [r for n, t in zip("ab", lines, strict=True) for r in rows(n, t)], {}
        )

    good, text = judged([8, 4, 3, 2.9], [8, 5, 4.5, 4.4])
    assert good and "`elk-full`: a 8e+03" in text
    assert "2.76x on all-to-all, 1.82x on meshes" in text
    assert not judged([8, 7, 5, 2], [8, 5, 4.5, 4.4])[0]
    assert not judged([8, 5, 4.5, 4.4], [8, 4, 3, 2.9])[0]


def test_verdicts_of_policies(trends: ModuleType) -> None:
    def row(policy: str, time_s: float, use: float) -> dict[str, object]:
        about = {"status": "ok", "model": "m", "policy": policy, "dim.batch": 1}
        return {**about, "time_s": time_s, "hbm_utilization": use}

    rows = [row("basic", 2.0, 0.4), row("elk-full", 1.0, 0.8), row("search", 0.9, 0.9)]
    good, text = trends.judge_policies(rows, {})
    assert good and "basic takes 2.00x" in text and "search takes 0.90x" in text
    far = [row("basic", 3.0, 0.4), row("elk-full", 1.0, 0.8)]
    good, text = trends.judge_policies(far, {})
    assert not good and "The order is the published one, the distances are not" in text
    good, text = trends.judge_use(rows, {})
    assert not good and "the values are not" in text
    assert trends.judge_use([row("basic", 2.0, 0.35), row("elk-full", 1.0, 0.6)], {})[0]
    slower = [row("basic", 0.5, 0.9), row("elk-full", 1.0, 0.8)]
    assert not trends.judge_policies(slower, {})[0]
    assert not trends.judge_use(slower, {})[0]


def test_bandwidth_demand(curves: ModuleType) -> None:
    """Two operators of a loop of 10 s, the first takes 1 s: with room for one of them, the second
    has to come within that second; with room for both, the average is enough."""
    case: tuple[list[float], list[float], list[float], float] = ([0, 1], [3, 3], [30, 30], 10.0)
    assert curves.demand(*case, room=3.0) == pytest.approx(30.0)
    assert curves.demand(*case, room=5.9) == pytest.approx(30.0)
    assert curves.demand(*case, room=6.0) == pytest.approx(6.0)
    assert curves.demand(*case, room=2.9) == float("inf")


def test_a_tiny_figure(
    figures: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = "decode-latency,execution-space,preload-space,preload-traffic,network-demand"
    assert figures.main(["--tiny", "--only", wanted, "-o", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "2 of 2 points computed, 0 failed" in told and "**Tiny**: against basic" in told
    assert (tmp_path / "paper.md").read_text() + "\n" == told
    for name in wanted.split(","):
        picture = ElementTree.parse(tmp_path / "paper" / f"tiny-{name}.svg").getroot()
        assert picture.tag.endswith("svg")
        assert f"](paper/tiny-{name}.svg)" in told
    assert len((tmp_path / "paper" / "tiny-decode-latency.csv").read_text().splitlines()) == 3
    assert figures.main(["--tiny", "--only", wanted, "-o", str(tmp_path), "--page-only"]) == 0
    assert capsys.readouterr().out == told


def test_memory_of_all_processes_is_recorded(tmp_path: Path) -> None:
    """A process below this one counts too, and a later run into the folder adds to the totals."""
    used = _script("used")
    alone = used.together_bytes(os.getpid())
    if not alone:
        pytest.skip("proportional set sizes are Linux's")
    program = "held = bytes(range(256)) * 400_000; print(flush=True); input()"
    with (
        used.Used(tmp_path) as first,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout and child.stdout.readline()
        assert used.together_bytes(os.getpid()) > alone + 100e6
        while not first.peak_bytes:
            time.sleep(0.1)
        first.waited(2.0)
        child.communicate(b"\n")
    with used.Used(tmp_path) as second:
        second.waited(3.0)
    assert used.Used(tmp_path).wall_s == 5.0
    assert used.Used(tmp_path).peak_bytes > 100e6
