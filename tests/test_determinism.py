"""Same input, same output: byte-identical artifacts whatever the hash seed is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MEASURED = ("compile_cpu_s", "compile_peak_rss_bytes")
MODELS = sorted(HERE.glob("models/*.onnx"))


def artifacts(model: Path, folder: Path, hash_seed: str) -> dict[str, bytes]:
    """The files of a compiled program, the report without what was measured."""
    argv = ["compile", str(model), "--chip", "test-16", "--policy", "basic", "-o", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "elk_ir.tools.elk", *argv],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
    )
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    report = json.loads(files["report.json"])
    kept = {k: v for k, v in report.items() if k not in MEASURED}
    files["report.json"] = json.dumps(kept).encode()
    return files


@pytest.mark.parametrize(
    "model",
    [HERE / "programs" / "slice.mlir", *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS)],
    ids=lambda m: m.stem,
)
def test_hash_seeds(model: Path, tmp_path: Path) -> None:
    first = artifacts(model, tmp_path / "a", "1")
    assert first == artifacts(model, tmp_path / "b", "2")
    assert "program.mlir" in first
