"""Every file of ../shared/models/{tiny,pretrained,stream}, end to end on 64 cores.

Outputs are those of the `.npz` beside a file; of onnxruntime without optimisations where REFERENCE
says why; and, for the files whose weights or types onnxruntime does not take, each level of the
compiler is compared with ONNX's evaluator instead, on weights made up from a seed.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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
    # A map of probabilities, none of them above 1e-8 on this input: onnxruntime's sigmoid is 0
    # below exp(-18), the exact one is not. `test_detector` looks at what the sigmoid reads, and at
    # an input with something to detect.
    "ch_PP-OCRv4_det_infer": 1e-6,
}
EQUAL_WEIGHTS = ("light_resnet50", "light_squeezenet")
"""Weights of one constant (0.02) each, so that the 1,000 logits are one and the same large number
and the outputs are 1/1000 whatever was computed before: `test_equal_weights` looks at the logits,
and at the same graphs with other weights."""
SRAM_BYTES = {"tiny": None, "pretrained": 4 << 20, "stream": 16 << 20}
"""SRAM of a core where 64 KiB are too little for one output row of an operator."""

INVALID = {
    # Attributes that no operator of ONNX has: bits an element, for another compiler's mapping.
    "swiglu_64_128_256": "Unrecognized attribute: act_size for operator Gemm",
}
FOREIGN_ATTRIBUTES = ("act_size", "output_size", "weight_size")

LARGE = "swiglu_256_4096_14336"
"""45 G multiply-adds in bfloat16: compared with numpy (`test_large_swiglu`), which ONNX's evaluator
would not finish."""
LARGE_SRAM_BYTES, LARGE_HBM_BYTES = 64 << 20, 8 << 30


def files(folder: str) -> list[Path]:
    """The models of a folder, sorted."""
    return sorted((MODELS / folder).glob("*.onnx"))


LEVELS = [p for p in files("stream") if p.stem not in ("attention_head", LARGE, *INVALID)]


def arrays_of(path: Path) -> Path:
    """The `.npz` beside a model, the first of several."""
    own = [
        p
        for p in sorted(path.parent.glob(f"{path.stem}*.npz"))
        if re.fullmatch(r"(_b\d+_p\d+)?", p.stem[len(path.stem) :])
    ]
    return own[0]


def from_onnxruntime(model: bytes, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime computes without optimisations."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [*files("tiny"), *files("pretrained")], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_numbers(path: Path) -> None:
    """The framework's numbers."""
    data = arrays_of(path)
    given, expected = read_npz(data, "in/"), read_npz(data, "out/")
    if path.stem in REFERENCE:
        expected = from_onnxruntime(path.read_bytes(), given)
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
    share, floor = TOLERANCE.get(path.stem, 0.0), ABSOLUTE.get(path.stem, 0.0)
    allowed = [max(e.allowed, share * e.scale, floor) for e in errors]
    wrong = [e for e, most in zip(errors, allowed, strict=True) if not e.max_abs_error <= most]
    assert not wrong, wrong


def with_logits(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model with what its last node, a softmax or a sigmoid, reads as a second output, and
    that one's name."""
    model = onnx.load(path)
    last = model.graph.node[-1]
    assert last.op_type in ("Softmax", "Sigmoid")
    logits = last.input[0]
    value = onnx.ValueInfoProto(name=logits)
    value.type.CopyFrom(model.graph.output[0].type)
    model.graph.output.append(value)
    return model, logits


def randomise(model: onnx.ModelProto, seed: int) -> None:
    """Replace weights of one constant by random ones: products of variance 2 / fan-in, all else
    between 0.2 and 0.6, which keeps the logits of 50 layers within ± 50."""
    rng = np.random.default_rng(seed)
    shapes = {i.name: i for i in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "ConstantOfShape"]:
        shape = tuple(int(n) for n in numpy_helper.to_array(shapes[node.input[0]]))
        if len(shape) > 1:
            array = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            array = rng.uniform(0.2, 0.6, shape)
        model.graph.node.remove(node)
        weight = numpy_helper.from_array(array.astype(np.float32), node.output[0])
        model.graph.initializer.append(weight)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0], ids=["own-weights", "random-weights"])
@pytest.mark.parametrize("stem", EQUAL_WEIGHTS)
def test_equal_weights(stem: str, seed: int | None) -> None:
    """The logits too, and random weights in the place of the equal ones."""
    path = MODELS / "pretrained" / f"{stem}.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/pretrained")
    model, logits = with_logits(path)
    if seed is not None:
        randomise(model, seed)
    given = read_npz(arrays_of(path), "in/")
    expected = from_onnxruntime(model.SerializeToString(), given)
    spread = np.ptp(expected[logits]) / np.abs(expected[logits]).max()
    assert spread > 0.5 if seed is not None else spread < 1e-6
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["pretrained"])
    program = compile_model(model, chip=chip, policy="basic", simulate=False)
    outputs = program.run(check_inputs(given, program.signature.inputs))
    assert len(outputs) == 2
    errors = compare_outputs(outputs, expected, precision=program.precision)
    assert all(e.ok for e in errors), errors


@pytest.mark.slow
def test_detector() -> None:
    """What its sigmoid reads, on the input of the .npz and on a page with strokes to detect."""
    path = MODELS / "pretrained" / "ch_PP-OCRv4_det_infer.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/pretrained")
    model, logits = with_logits(path)
    ((name, sample),) = read_npz(arrays_of(path), "in/").items()
    page = np.ones_like(sample)
    for row in range(40, 280, 60):
        for column in range(30, 280, 14):
            page[:, :, row : row + 24, column : column + 4] = -1
            page[:, :, row + 10 : row + 13, column : column + 10] = -1
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["pretrained"])
    program = compile_model(
        model, chip=chip, policy="basic", input_shapes={name: sample.shape}, simulate=False
    )
    for array in (sample, page):
        expected = from_onnxruntime(model.SerializeToString(), {name: array})
        outputs = program.run(check_inputs({name: array}, program.signature.inputs))
        for error in compare_outputs(outputs, expected, precision=program.precision):
            floor = 0.0 if error.name == logits else ABSOLUTE[path.stem]
            assert error.max_abs_error <= max(error.allowed, floor), error
    # The second input has both: a tenth of the page is text.
    (text,) = (v for n, v in expected.items() if n != logits)
    assert 0.05 < (text > 0.5).mean() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("path", LEVELS, ids=lambda p: p.stem)
def test_levels(path: Path) -> None:
    """Every level agrees with ONNX's evaluator."""
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["stream"])
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


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["basic", "search"])
def test_large_swiglu(policy: str) -> None:
    """Against float32, on weights made up here: the file has none, onnxruntime has no Gemm for
    bfloat16, and products of ONNX's evaluator have no BLAS for it."""
    path = MODELS / "stream" / f"{LARGE}.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/stream")
    model = onnx.load(path, load_external_data=False)
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    for tensor in model.graph.initializer:
        array = rng.standard_normal(tuple(tensor.dims), np.float32) / np.sqrt(tensor.dims[0])
        stored = array.astype(ml_dtypes.bfloat16)
        weights[tensor.name] = stored.astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(stored, tensor.name))
    chip = load_chip("test-64")
    assert chip.hbm is not None
    roomy = replace(
        chip,
        sram_per_core_bytes=LARGE_SRAM_BYTES,
        hbm=replace(chip.hbm, capacity_bytes=LARGE_HBM_BYTES),
    )
    program = compile_model(model, chip=roomy, policy=policy, simulate=False)
    (spec,) = program.signature.inputs
    x = rng.standard_normal(spec.shape, np.float32).astype(ml_dtypes.bfloat16)
    got = program.run({spec.name: x})["output"].astype(np.float32)
    exact = x.astype(np.float32)
    left = exact @ weights["weights_1"]
    hidden = left / (1 + np.exp(-left)) * (exact @ weights["weights_2"])
    wanted = hidden @ weights["weights_3"]
    # Two tensors between the products are stored in bfloat16, of 8 bits.
    assert np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max()
    assert np.sqrt(np.mean((got - wanted) ** 2)) <= 5e-3 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("stem", INVALID)
def test_invalid(stem: str) -> None:
    """Refused, with ONNX's reason, which is onnxruntime's too; and compared without what is wrong.

    The reasons can't be had from ONNX's checker: it stops at the weights, which have no data.
    """
    path = MODELS / "stream" / f"{stem}.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/stream")
    chip = replace(load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES["stream"])
    with pytest.raises(ModelError, match=INVALID[stem]):
        compile_model(path, chip=chip)
    if importlib.util.find_spec("onnxruntime") is not None:
        with pytest.raises(Exception, match=INVALID[stem]):
            from_onnxruntime(path.read_bytes(), {})
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [a for a in node.attribute if a.name not in FOREIGN_ATTRIBUTES]
        del node.attribute[:]
        node.attribute.extend(kept)
    result = verify_levels(model.SerializeToString(), chip=chip, policy="basic", random_weights=0)
    assert result.failed is None, result.failed


def test_files_are_there() -> None:
    """The list is not empty where the models are."""
    if not MODELS.is_dir():
        pytest.skip("needs ../shared/models")
    assert len(files("tiny")) >= 60
    assert len(files("pretrained")) >= 8
    assert len(files("stream")) >= 6


def test_every_file_is_in_a_test() -> None:
    """None is left out: what is not compared level by level has a test of its own."""
    stream = {p.stem for p in files("stream")}
    own = {"attention_head", LARGE, *INVALID}
    assert stream - {p.stem for p in LEVELS} == (own if stream else set())
    for path in (*files("tiny"), *files("pretrained")):
        assert arrays_of(path).exists()
