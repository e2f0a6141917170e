"""Every file of ../shared/models/{tiny,pretrained,stream}, end to end on 64 cores.

Outputs are those of the `.npz` beside a file; of onnxruntime without optimisations where REFERENCE
says why; and, for the files whose weights or types onnxruntime does not take, each level of the
compiler is compared with ONNX's evaluator instead, on weights made up from a seed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elk_ir.chips import load_chip
from elk_ir.compiler import compile_model
from elk_ir.errors import ModelError
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.verify import verify_levels

MODELS = Path(__file__).parent.parent.parent / "shared" / "models"

REFERENCE = {
    # The .npz beside these come from onnxruntime's optimised kernels, which are 1e-2 from what it
    # computes when it runs the file's own operators.
    "q_llama3gqa_decode_dyn_dynamo_int4qdq",
    "q_llama3gqa_decode_static_legacy_qdq",
}
TOLERANCE = {
    # onnxruntime with and without optimisations differ by 4e-3 of the largest element: the network
    # takes logarithms of spectra and normalises them.
    "basic_pitch": 5e-3,
}
ABSOLUTE = {
    # A map of probabilities, all of them near 0 on this input: onnxruntime's sigmoid is 0 where the
    # exact one is 1e-8.
    "ch_PP-OCRv4_det_infer": 1e-6,
}
LIMITS = {
    # All weights of a layer are equal, so the 1,000 logits are one and the same large number: the
    # softmax shows in which order each of the equal sums was added, and nothing else.
    "light_resnet50": "a softmax of equal, large numbers: it shows their rounding errors only",
    "light_squeezenet": "a softmax of equal numbers near 1e10: it shows their rounding errors only",
}
SRAM_BYTES = {"tiny": None, "pretrained": 4 << 20, "stream": 16 << 20}
"""SRAM of a core where 64 KiB are too little for one output row of an operator."""

INVALID = {
    # Gemm with attributes that ONNX does not have, and an alpha of 0 that is no float.
    "swiglu_64_128_256": "Unrecognized attribute: act_size for operator Gemm",
}

TOO_LARGE = {"swiglu_256_4096_14336"}
"""172 M multiply-adds a row on the virtual machine: compiled only."""


def files(folder: str) -> list[Path]:
    """The models of a folder, sorted."""
    return sorted((MODELS / folder).glob("*.onnx"))


def arrays_of(path: Path) -> Path:
    """The `.npz` beside a model, the first of several."""
    own = [
        p
        for p in sorted(path.parent.glob(f"{path.stem}*.npz"))
        if re.fullmatch(r"(_b\d+_p\d+)?", p.stem[len(path.stem) :])
    ]
    return own[0]


def from_onnxruntime(path: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime computes without optimisations."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [*files("tiny"), *files("pretrained")], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_numbers(path: Path) -> None:
    """The framework's numbers."""
    if path.stem in LIMITS:
        pytest.skip(LIMITS[path.stem])
    data = arrays_of(path)
    given, expected = read_npz(data, "in/"), read_npz(data, "out/")
    if path.stem in REFERENCE:
        expected = from_onnxruntime(path, given)
    chip = load_chip("test-64")
    sram = SRAM_BYTES[path.parent.name]
    program = compile_model(
        path,
        chip=chip if sram is None else replace(chip, sram_per_core_bytes=sram),
        policy="basic",
        input_shapes={name: array.shape for name, array in given.items()},
        simulate=False,
    )
    outputs = program.run(check_inputs(given, program.signature.inputs))
    errors = compare_outputs(outputs, expected, precision=program.precision)
    share = TOLERANCE.get(path.stem)
    wrong = [
        e for e in errors if not (e.ok if share is None else e.max_abs_error <= share * e.scale)
    ]
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [p for p in files("stream") if p.stem not in ("attention_head", *INVALID)],
    ids=lambda p: p.stem,
)
def test_levels(path: Path) -> None:
    """Every level agrees with ONNX's evaluator."""
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["stream"])
    if path.stem in TOO_LARGE:
        assert compile_model(path, chip=chip, policy="basic", simulate=False).report
        return
    result = verify_levels(path, chip=chip, policy="basic", random_weights=0)
    assert result.failed is None, result.failed


@pytest.mark.slow
def test_attention_head() -> None:
    """Against float32: ONNX's evaluator adds in bfloat16, and is further off than the program.

    The weights are inputs and the scores are not scaled, so that standard normal numbers would give
    scores near 4,000, whose bfloat16 neighbours are 16 away.
    """
    path = MODELS / "stream" / "attention_head.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/stream")
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["stream"])
    program = compile_model(path, chip=chip, policy="basic", simulate=False)
    rng = np.random.default_rng(0)
    given = {
        spec.name: rng.standard_normal(spec.shape).astype(np.float32)
        * np.float32(1 if spec.name == "I" else 0.01)
        for spec in program.signature.inputs
    }
    taken = check_inputs(given, program.signature.inputs)
    x, wq, wk, wv = (taken[n].astype(np.float32) for n in ("I", "wQ", "wK", "wV"))
    scores = np.exp((x @ wq) @ (x @ wk).T)
    wanted = scores / scores.sum(-1, keepdims=True) @ (x @ wv)
    got = program.run(taken)["Y"].astype(np.float32)
    assert np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max()


@pytest.mark.parametrize("stem", INVALID)
def test_invalid(stem: str) -> None:
    """Refused, with ONNX's reason."""
    path = MODELS / "stream" / f"{stem}.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/stream")
    with pytest.raises(ModelError, match=INVALID[stem]):
        compile_model(path, chip="test-64")


def test_files_are_there() -> None:
    """The list is not empty where the models are."""
    if not MODELS.is_dir():
        pytest.skip("needs ../shared/models")
    assert len(files("tiny")) >= 60
    assert len(files("pretrained")) >= 8
    assert len(files("stream")) >= 6
