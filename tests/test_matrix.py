"""Every architecture on every chip: ONNX file in, the framework's numbers out."""

from __future__ import annotations

from pathlib import Path

import pytest

from elk_ir.compiler import compile_model
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz

TINY = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"

GRAPHS = [
    *(
        f"{model}_{phase}_static_{exporter}"
        for model in ("gemma2", "granite", "llama2", "llama3gqa", "opt")
        for phase in ("decode", "prefill")
        for exporter in ("dynamo", "legacy")
    ),
    *(
        f"{model}_decode_dyn_{exporter}"
        for model in ("gemma2", "granite", "llama2", "llama3gqa", "opt")
        for exporter in ("dynamo", "legacy")
    ),
    "gemma2_decode_static_dynamo_op23",
    "llama3gqa_decode_static_dynamo_bf16",
    "llama3gqa_decode_static_dynamo_fp16",
    "llama3gqa_decode_static_dynamo_op23",
    *(
        f"{model}_static_{exporter}"
        for model in ("bert_sdpa", "dit_tiny", "resnet50_w8", "vit", "yolo_tiny")
        for exporter in ("dynamo", "legacy")
    ),
    "bert_sdpa_dyn_legacy",
    "dit_tiny_dyn_dynamo",
    "statickv_index_copy_dynamo",
    "statickv_scatter_dynamo",
]
SIX = [
    "bert_sdpa_static_legacy",
    "gemma2_prefill_static_dynamo",
    "llama2_decode_static_dynamo",
    "llama3gqa_decode_static_dynamo_fp16",
    "opt_decode_dyn_legacy",
    "statickv_scatter_dynamo",
]
"""Graphs that `make test` also runs on the larger chips; `make test-all` runs the whole matrix."""

CHIPS = ["test-64", "ipu-pod4-hbm"]
EXTRA_CHIPS = ["ipu-hbm", "ipu-mk2"]

CASES = [
    *(pytest.param(g, "test-16", id=f"{g}-test-16") for g in GRAPHS),
    *(
        pytest.param(g, c, id=f"{g}-{c}", marks=() if g in SIX else pytest.mark.slow)
        for c in CHIPS
        for g in GRAPHS
    ),
    *(
        pytest.param(g, c, id=f"{g}-{c}", marks=() if g == SIX[2] else pytest.mark.slow)
        for c in EXTRA_CHIPS
        for g in SIX
    ),
]


@pytest.mark.parametrize(("graph", "chip"), CASES)
def test_numbers(graph: str, chip: str) -> None:
    model, data = TINY / f"{graph}.onnx", TINY / f"{graph}.npz"
    if not model.exists():
        pytest.skip("needs ../shared/models/tiny")
    given, expected = read_npz(data, "in/"), read_npz(data, "out/")
    program = compile_model(
        model,
        chip=chip,
        # The default policy on six graphs; on the others the one that is quickest to compile.
        policy=None if graph in SIX else "basic",
        input_shapes={name: array.shape for name, array in given.items()},
    )
    assert program.report["sram_peak_bytes"] <= program.report["sram_capacity_bytes"]
    outputs = program.run(check_inputs(given, program.signature.inputs))
    errors = compare_outputs(outputs, expected, precision=program.precision)
    wrong = [f"{e.name}: {e.max_abs_error:.3g} > {e.allowed:.3g}" for e in errors if not e.ok]
    assert not wrong, wrong
