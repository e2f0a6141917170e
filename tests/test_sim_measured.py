"""The simulator against the cycle-accurate references: what docs/simulator.md promises."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT.parent / "shared" / "data" / "reference"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the reference measurements (../shared/data/reference) are missing"
)


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    """benchmarks/sim_measured.py."""
    spec = importlib.util.spec_from_file_location(
        "sim_measured", ROOT / "benchmarks" / "sim_measured.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sim_measured"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_promised_errors_and_documented_tables(measured: ModuleType) -> None:
    """One test, so that the references are simulated once."""
    for rows in (measured.saturation_rows, measured.latency_rows, measured.hbm_rows):
        promised = [row for row in rows(FOLDER) if row.limit is not None]
        assert len(promised) >= 2
        broken = [f"{r.what}: {r.error:+.1%}" for r in promised if abs(r.error) > r.limit]
        assert not broken
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    for table in measured.report(FOLDER).split("\n\n"):
        assert table in text
