"""Real models compiled at once, in fresh processes: the bytes of one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elk_ir.report_json import RUN_DEPENDENT

HERE = Path(__file__).parent
JOBS = (
    ("llama2_decode_static_dynamo", "test-16", ""),
    ("gemma2_decode_static_dynamo_op23", "test-64", "basic"),
    ("vit_static_legacy", "test-16-mesh", "elk-full"),
    ("vit_static_legacy", "northpole-16", ""),
)
"""Model, chip, policy ("": the default, which searches)."""

INTERVALS_S = (5e-3, 1e-4, 1e-5)
"""How often the interpreter changes threads: its own default, and far more often."""


def compiled(folder: Path, mode: str, interval_s: float) -> dict[str, bytes]:
    """Every file of every program by its path, reports without what was measured."""
    jobs = [f"{HERE / 'models' / name}.onnx:{chip}:{policy}" for name, chip, policy in JOBS]
    subprocess.run(
        [sys.executable, HERE / "compile_at_once.py", folder, mode, str(interval_s), *jobs],
        check=True,
    )
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(folder))] = data = path.read_bytes()
            if path.name == "report.json":
                report = {k: v for k, v in json.loads(data).items() if k not in RUN_DEPENDENT}
                files[str(path.relative_to(folder))] = json.dumps(report).encode()
    return files


@pytest.mark.slow
def test_real_models_at_once(tmp_path: Path) -> None:
    """`program.mlir`, `target.mlir`, the emitted text and the report of every model."""
    want = compiled(tmp_path / "turn", "turn", INTERVALS_S[0])
    assert len(want) >= 3 * len(JOBS)
    for i, interval_s in enumerate(INTERVALS_S):
        got = compiled(tmp_path / f"once{i}", "once", interval_s)
        assert got.keys() == want.keys()
        assert [name for name in want if got[name] != want[name]] == []
