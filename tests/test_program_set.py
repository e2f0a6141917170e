"""Several bindings of a model's dimensions in one call: programs that share the weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import elk_ir
from elk_ir.errors import ElkError, UsageError
from elk_ir.frontend.xdsl_frontend import parse_bindings
from elk_ir.tools import elk

WEIGHT = np.random.default_rng(7).standard_normal((32, 48)).astype(np.float32)
CHIP = "test-16"


def model() -> onnx.ModelProto:
    """y = x @ w with x of (batch, 32)."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 48])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(model(), file)
    return file


@pytest.fixture(scope="module")
def folder(path: Path) -> Path:
    """What `elk compile --dim batch=1,4` writes."""
    out = path.parent / "out"
    args = ["--chip", CHIP, "--policy", "basic", "--dim", "batch=1,4", "-o", str(out)]
    assert elk.main(["compile", str(path), *args]) == 0
    return out


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 32)).astype(np.float32)


def test_the_inputs_pick_the_program() -> None:
    """From Python: one call, the numbers of each, and a message for shapes that none is for."""
    programs = elk_ir.compile_set(
        model(), chip=CHIP, policy="basic", dims=[{"batch": 1}, {"batch": 4}], simulate=False
    )
    for count in (4, 1):
        np.testing.assert_allclose(programs(x=rows(count))["y"], rows(count) @ WEIGHT, atol=1e-5)
    assert programs.select({"x": (4, 32)}) is programs.programs[1]
    assert programs.bound_to({"batch": 1}) is programs.programs[0]
    with pytest.raises(UsageError, match=r"x \[3, 32\]") as raised:
        programs(x=rows(3))
    assert "batch=4: x [4, 32]" in str(raised.value)
    with pytest.raises(UsageError, match="no program is bound to batch=2"):
        programs.bound_to({"batch": 2})
    # A model in memory is there once.
    first, second = (p.source.buffers for p in programs.programs)
    assert first["model.onnx"] is second["model.onnx"]


def test_weights_are_stored_once(path: Path, folder: Path) -> None:
    """Both programs refer to the same bytes of the model's file, and hold no copy."""
    assert sorted(p.name for p in folder.iterdir()) == ["batch=1", "batch=4", "report.json"]
    texts = [(folder / f"batch={n}" / "target.mlir").read_text() for n in (1, 4)]
    places = [re.findall(r'"m\.onnx", \d+, \d+, "\w+"', text) for text in texts]
    assert places[0] and places[0] == places[1]
    loaded = elk_ir.load_set(folder)
    sources = {(p.source.base_dir or Path()).resolve() for p in loaded.programs}
    assert sources == {path.parent.resolve()}
    for program in loaded.programs:
        weights = [o for o in program.target.walk() if o.name == "ipu.remote"]
        assert weights
    np.testing.assert_allclose(loaded.run({"x": rows(4)})["y"], rows(4) @ WEIGHT, atol=1e-5)


def test_the_report_has_every_program(folder: Path) -> None:
    """What they share once, what they take one by one; each folder is a program's own."""
    report = json.loads((folder / "report.json").read_text())
    assert [p["dims"] for p in report["programs"]] == [{"batch": 1}, {"batch": 4}]
    assert report["chip"] == CHIP and report["policy"] == "basic"
    for entry in report["programs"]:
        own = json.loads((folder / entry["folder"] / "report.json").read_text())
        assert entry["time_s"] == own["time_s"]
        assert own["dims"] == entry["dims"]


def test_run_and_simulate_of_the_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`elk run` picks by the inputs, or by --dim where there are none."""
    file, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(file, x=rows(4))
    expect = tmp_path / "expect.npz"
    np.savez(expect, y=rows(4) @ WEIGHT)
    args = ["run", str(folder), "--inputs", str(file), "--expect", str(expect), "-o", str(out)]
    assert elk.main(args) == 0
    assert np.load(out)["y"].shape == (4, 48)
    assert elk.main(["run", str(folder), "--random-inputs", "1", "--dim", "batch=1"]) == 0
    assert "1x48" in capsys.readouterr().out
    assert elk.main(["run", str(folder), "--random-inputs", "1"]) == 2
    assert "the bindings are: batch=1; batch=4" in capsys.readouterr().err
    assert elk.main(["simulate", str(folder), "--dim", "batch=4"]) == 0
    assert elk.main(["simulate", str(folder / "batch=4"), "--dim", "batch=4"]) == 2


def test_refusals(folder: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One message each."""
    with pytest.raises(ElkError, match="holds 2 programs"):
        elk_ir.load(folder)
    with pytest.raises(ElkError, match="holds one program"):
        elk_ir.load_set(folder / "batch=1")
    with pytest.raises(UsageError, match="no bindings"):
        elk_ir.compile_set(path, chip=CHIP, dims=[])
    with pytest.raises(UsageError, match="same inputs"):
        elk_ir.compile_set(
            path, chip=CHIP, policy="basic", dims=[{"batch": 2}, {"batch": 2}], simulate=False
        )
    wrong: Any = [{"batch": 2}]
    with pytest.raises(UsageError, match="binds each dimension once"):
        elk_ir.compile(path, chip=CHIP, dims=wrong)
    assert elk.main(["verify", str(path), "--chip", CHIP, "--dim", "batch=1,4"]) == 2
    assert "'1,4' is not an integer" in capsys.readouterr().err


def test_bindings() -> None:
    """Every combination, the last name fastest."""
    assert parse_bindings([]) == [{}]
    assert parse_bindings(["a=1,2", "b=3,4"]) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]
    assert parse_bindings(["x=y=5"]) == [{"x=y": 5}]
    for wrong in (["a=1,1"], ["a=1,2", "a=1"], ["a=1", "a=2"], ["a=1,"], ["=1,2"], ["a"]):
        with pytest.raises(UsageError):
            parse_bindings(wrong)
