"""Plans set by hand on a real graph: every level gives the model's numbers whatever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from elk_ir.chips import load_chip
from elk_ir.compiler import pipeline
from elk_ir.extensions import universe
from elk_ir.numerics.tensors import read_npz
from elk_ir.pipelines import PIPELINES
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.verify import verify_levels

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
@pytest.mark.parametrize("chip", ["test-16", "test-64"])
def test_numbers(what: str, chip: str) -> None:
    passes = list(pipeline(load_chip(chip), policy="basic"))
    at = [p.name for p in passes].index("icca-schedule")
    by_hand = f"icca-set-plan{{op=node_linear_14 {PLANS[what]}}},icca-schedule{{plans=keep}}"
    passes[at : at + 1] = parse_passes(by_hand, universe().all_passes, PIPELINES, origin="test")
    inputs = read_npz(LLAMA.with_suffix(".npz"), "in/")
    result = verify_levels(LLAMA, chip=chip, inputs=inputs, passes=passes)
    assert result.culprit is None
    assert result.checks[-1].level == "ipu"
