"""Same input, options and seed: byte-identical artifacts across runs, hash seeds and job counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from elk_ir.explore.run import explore
from elk_ir.explore.store import Store
from elk_ir.explore.sweep import sweep_from_toml
from elk_ir.tools import elk

HERE = Path(__file__).parent
MEASURED = ("compile_cpu_s", "compile_peak_rss_bytes")
SLICE = HERE / "programs" / "slice.mlir"
MODELS = [SLICE, *sorted(HERE.glob("models/*.onnx"))]
POLICIES = ("basic", "search")


def command(model: Path, policy: str, folder: Path) -> list[str]:
    """Compiles a model, the emitted text included."""
    return ["compile", str(model), "--chip", "test-16", "--policy", policy, "-o", str(folder)]


def artifacts(folder: Path) -> dict[str, bytes]:
    """The files of a compiled program, the report without what was measured."""
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    report = json.loads(files["report.json"])
    kept = {k: v for k, v in report.items() if k not in MEASURED}
    files["report.json"] = json.dumps(kept).encode()
    return files


def compiled(model: Path, policy: str, folder: Path, hash_seed: str) -> dict[str, bytes]:
    """What a fresh process with a hash seed writes."""
    subprocess.run(
        [sys.executable, "-m", "elk_ir.tools.elk", *command(model, policy, folder)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
    )
    return artifacts(folder)


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        pytest.param(m, p, marks=() if (m, p) == (SLICE, "search") else pytest.mark.slow)
        for m in MODELS
        for p in POLICIES
    ],
    ids=lambda v: v.stem if isinstance(v, Path) else v,
)
def test_runs_and_hash_seeds(model: Path, policy: str, tmp_path: Path) -> None:
    """Two processes with other hash seeds, and this one, after whatever it has done before."""
    first = compiled(model, policy, tmp_path / "a", "1")
    assert {"program.mlir", "target.mlir", "program.cpp", "report.json"} <= first.keys()
    assert first == compiled(model, policy, tmp_path / "b", "2")
    assert elk.main(command(model, policy, tmp_path / "c")) == 0
    assert first == artifacts(tmp_path / "c")


SWEEP = """
[base]
model = "{model}"
seed = 3
[axes]
chip = ["test-16", "test-16-mesh"]
policy = ["basic", "{policy}"]
"""


def rows(text: str, file: Path, jobs: int) -> list[tuple[Any, ...]]:
    """What a sweep finds, without what varies between runs."""
    explore(sweep_from_toml(text, "s.toml", HERE), str(file), jobs=jobs)
    store = Store(file, create=False)
    found = [(r.key, r.position, r.settings, r.status, r.result, r.error) for r in store.rows()]
    store.close()
    return found


def two_products(file: Path) -> None:
    """Writes a model."""
    weights = [
        numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
        for name, shape in (("v", (32, 48)), ("w", (48, 20)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
            helper.make_node("MatMul", ["a", "w"], ["y"], name="second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6, 32])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [6, 20])],
        weights,
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), file)


@pytest.mark.parametrize(
    "model",
    [None, *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m.suffix == ".onnx")],
    ids=lambda m: "two products" if m is None else m.stem,
)
def test_job_counts(model: Path | None, tmp_path: Path) -> None:
    if model is None:
        model = tmp_path / "m.onnx"
        two_products(model)
    text = SWEEP.format(model=model, policy="elk-dyn")
    one, two = (rows(text, tmp_path / f"{jobs}.sqlite", jobs) for jobs in (1, 2))
    assert one == two
    assert len(one) == 4 and all(error is None for *_, error in one)
