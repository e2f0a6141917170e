"""Failing cases are written as files and a command that runs the same case again."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from elk_ir.chips import load_chip
from elk_ir.numerics.compare import OutputError
from elk_ir.tools import elk
from fuzz.failures import write
from fuzz.runner import Arrays, Case, Defect, Tally, run_case

PLANS = 'icca-set-plan{op="p" grid="m=2,k=2" reduce=root}'
TE = """
func.func @main(%a: tensor<6x8xf32> {onnx.name = "a"}, %b: tensor<8x5xf32> {onnx.name = "b"})
    -> (tensor<6x5xf32> {onnx.name = "y"}) {
  %p = te.contract(%a, %b) <(m = 6, n = 5, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<6x8xf32>, tensor<8x5xf32>) -> tensor<6x5xf32> loc("p")
  func.return %p : tensor<6x5xf32>
}
"""


def product() -> onnx.ModelProto:
    """The same in ONNX."""
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("a", [6, 8]), ("b", [8, 5]), ("y", [6, 5]))
    ]
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"], name="p")]
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def wrong(outputs: Arrays) -> list[OutputError]:
    """Disagrees with whatever comes."""
    return [OutputError("y", "float32", (6, 5), 1.0, 1.0, 0.0)]


@pytest.mark.parametrize("plans", [PLANS, "", None], ids=["set", "none set", "no plans"])
@pytest.mark.parametrize("model", [TE, product()], ids=["te", "onnx"])
def test_the_command_runs_the_case(
    model: onnx.ModelProto | str,
    plans: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = {"a": np.ones((6, 8), np.float32), "b": np.ones((8, 5), np.float32)}
    case = Case(model, inputs, load_chip("test-16"), "basic", Counter())
    levels: list[Arrays] = []

    def at_icca(outputs: Arrays) -> list[OutputError]:
        levels.append(outputs)
        return wrong(outputs) if len(levels) == 2 else []

    with pytest.raises(Defect) as raised:
        run_case(
            case, at_icca, Tally(), plans=None if plans is None else lambda _: (plans, Counter())
        )
    line = write(raised.value, tmp_path)
    assert line in (tmp_path / "command.txt").read_text()
    monkeypatch.chdir(tmp_path)
    # The case is right: what was wrong is the comparison above.
    assert elk.main(shlex.split(line)[1:]) == 0
    assert ("icca-set-plan" in capsys.readouterr().out) == bool(plans)
