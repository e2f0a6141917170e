"""Every architecture on every chip: ONNX file in, the framework's numbers out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elk_ir.compiler import compile_model
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

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
    "mixtral5_batched_mm_decode_static_dynamo",
    "mixtral5_batched_mm_prefill_static_dynamo",
    "moe_dense_dispatch_static_dynamo",
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
ONE = "llama2_decode_static_dynamo"

TOO_LARGE = {("mixtral5_batched_mm_prefill_static_dynamo", "test-16")}
"""What can't fit: the experts that 16 tokens choose are 1.5 MB as one tensor."""

CHIPS = ["test-64", "ipu-pod4-hbm"]
EXTRA_CHIPS = ["ipu-hbm", "ipu-mk2"]

QUICK = "basic"
"""The policy that is quickest to compile. None is the default, which is the best."""


def cases() -> list[ParameterSet]:
    """Every graph on every chip under QUICK, and SIX under the default policy as well."""
    found: list[ParameterSet] = []
    for chip in ("test-16", *CHIPS, *EXTRA_CHIPS):
        for graph in SIX if chip in EXTRA_CHIPS else GRAPHS:
            quick = chip == "test-16" or (graph == ONE if chip in EXTRA_CHIPS else graph in SIX)
            if (graph, chip) in TOO_LARGE:
                continue
            # Where all weights are resident there is nothing to choose from.
            found.append(case(graph, chip, None if chip == "ipu-mk2" else QUICK, quick))
            if graph in SIX and chip not in EXTRA_CHIPS:
                found.append(case(graph, chip, None, graph == ONE and chip != "ipu-pod4-hbm"))
    return found


def case(graph: str, chip: str, policy: str | None, quick: bool) -> ParameterSet:
    """One run; those that are not quick are left to `make test-all`."""
    marks = () if quick else (pytest.mark.slow,)
    return pytest.param(graph, chip, policy, id=f"{graph}-{chip}-{policy or 'best'}", marks=marks)


@pytest.mark.parametrize(("graph", "chip", "policy"), cases())
def test_numbers(graph: str, chip: str, policy: str | None) -> None:
    model, data = TINY / f"{graph}.onnx", TINY / f"{graph}.npz"
    if not model.exists():
        pytest.skip("needs ../shared/models/tiny")
    given, expected = read_npz(data, "in/"), read_npz(data, "out/")
    program = compile_model(
        model,
        chip=chip,
        policy=policy,
        input_shapes={name: array.shape for name, array in given.items()},
    )
    assert program.report["sram_peak_bytes"] <= program.report["sram_capacity_bytes"]
    outputs = program.run(check_inputs(given, program.signature.inputs))
    errors = compare_outputs(outputs, expected, precision=program.precision)
    wrong = [f"{e.name}: {e.max_abs_error:.3g} > {e.allowed:.3g}" for e in errors if not e.ok]
    assert not wrong, wrong
