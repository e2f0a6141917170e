"""The bundled sweeps of Elk's figures: they parse, name fields that exist, and become pictures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from elk_ir.explore.sweep import load_sweep
from elk_ir.explore.task import tasks_of

PAPER = Path(__file__).resolve().parent.parent / "benchmarks" / "paper"
FULL = PAPER.parents[2] / "shared" / "models" / "full"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_figures", PAPER / "figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_figures"] = module
    spec.loader.exec_module(module)
    return module


def test_every_sweep_has_a_figure(figures: ModuleType) -> None:
    assert {f.file for f in figures.FIGURES} == {p.name for p in PAPER.glob("*.toml")}
    for figure in figures.FIGURES:
        assert load_sweep(PAPER / figure.file).name == figure.name


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


def test_verdicts(figures: ModuleType) -> None:
    def rows(chip: str, times: list[float]) -> list[dict[str, object]]:
        return [
            {"status": "ok", "chip": chip, figures.HBM: float(i), "time_s": t}
            for i, t in enumerate(times)
        ]

    good, text = figures.judge_hbm(rows("a", [8, 4, 3, 2.9]) + rows("b", [8, 5, 4.5, 4.4]))
    assert good and "2.76x on all-to-all, 1.82x on meshes" in text
    assert not figures.judge_hbm(rows("a", [8, 7, 5, 2]) + rows("b", [8, 5, 4.5, 4.4]))[0]
    assert not figures.judge_hbm(rows("a", [8, 5, 4.5, 4.4]) + rows("b", [8, 4, 3, 2.9]))[0]


def test_a_tiny_figure(
    figures: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.main(["--tiny", "--only", "decode-latency", "-o", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "2 points, 0 failed" in told and "Tiny: against basic" in told
    picture = ElementTree.parse(tmp_path / "tiny-decode-latency.svg").getroot()
    assert picture.tag.endswith("svg")
    assert len((tmp_path / "tiny-decode-latency.csv").read_text().splitlines()) == 3
