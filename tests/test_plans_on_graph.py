"""Plans set by hand on a real graph: every level gives the model's numbers whatever they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from test_te_passes import random_inputs, repeated

from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes
from elk_ir.extensions import universe
from elk_ir.numerics.tensors import read_npz
from elk_ir.pipelines import PIPELINES
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.verify import verify_levels

FIRST, LAST = "node_linear", "node_linear_6"
LLAMA = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"

# Of the output layer, a contraction over b0 = 2, n = 512, k = 64.
PLANS = {
    "ring on a weight": 'grid="b0=2,n=8" exec="1:k=2"',
    "ring on an activation": 'grid="n=16" exec="0:k=4"',
    "two operands rotating together": 'grid="b0=2,n=6" exec="0:k=6;1:k=2"',
    "split reduction with scatter": 'grid="n=4,k=4" scatter=n',
    "preload-state is not execute-state": 'grid="b0=2,n=8" preload="1:k=2"',
    "idle cores and ragged tiles": 'grid="n=5,k=3" scatter=n',
}


@pytest.mark.parametrize("what", PLANS)
@pytest.mark.parametrize("chip", [pytest.param("test-16", marks=pytest.mark.slow), "test-64"])
def test_numbers(what: str, chip: str) -> None:
    passes = list(pipeline(load_chip(chip), policy="basic"))
    at = [p.name for p in passes].index("icca-schedule")
    by_hand = f"icca-set-plan{{op=node_linear_14 {PLANS[what]}}},icca-schedule{{plans=keep}}"
    passes[at : at + 1] = parse_passes(by_hand, universe().all_passes, PIPELINES, origin="test")
    inputs = read_npz(LLAMA.with_suffix(".npz"), "in/")
    result = verify_levels(LLAMA, chip=chip, inputs=inputs, passes=passes)
    assert result.culprit is None
    assert result.checks[-1].level == "ipu"


def test_layers_are_one_body_with_a_carried_preload(tmp_path: Path) -> None:
    """Graphs of 4 and 8 layers: as many operations in icca and in ipu, and the numbers of ONNX's
    reference evaluator, with the first product's weight fetched an iteration ahead."""
    counts = []
    for times in (3, 7):
        model = repeated(onnx.load(LLAMA), "add_6", "add_12", times)
        path = tmp_path / f"llama_{times}.onnx"
        onnx.save(model, path)
        inputs = random_inputs(model, read_npz(LLAMA.with_suffix(".npz"), "in/"))
        passes = list(pipeline(load_chip("test-64"), policy="basic"))
        at = [p.name for p in passes].index("icca-allocate")
        carry = f"icca-carry-preload{{op={FIRST} operand=1 before={LAST}}}"
        passes[at:at] = parse_passes(carry, universe().all_passes, PIPELINES, origin="test")
        result = verify_levels(path, chip="test-64", inputs=inputs, passes=passes)
        assert result.culprit is None and result.checks[-1].level == "ipu"
        module, _ = import_source(path, load_chip("test-64"))
        found = []
        for each in passes:
            run_passes(context(), module, [each], model=path.name)
            if each.name in ("icca-allocate", "convert-icca-to-ipu"):
                found.append(Counter(op.name for op in module.walk()))
        assert found[0]["icca.repeat"] == 1
        counts.append(found)
    assert counts[0] == counts[1]
