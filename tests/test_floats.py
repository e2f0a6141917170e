"""fp32 graphs compiled with fp16 or bf16 tensors (`--floats`): every level against onnxruntime in
fp32, decoding, emitted C++, masks, positions, edges."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cpp_program import check_program, needs_compiler
from helpers import feed_back, lower, parse, planned, run_passes

from elk_ir.compiler import compile_model
from elk_ir.decode import compile_decoder
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.compare import TOLERANCE, max_abs_error
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import read_npz
from elk_ir.passes.te_change_floats import FLOATS
from elk_ir.program import Program, load, shaped_outputs
from elk_ir.quant.integers import LARGEST, dequantize_array, quantize_array, saturated
from elk_ir.quantizer import Quantization
from elk_ir.tools import elk
from elk_ir.verify import verify_levels
from elk_ir.weight_source import WeightSource

MODELS = Path(__file__).parent / "models"
TINY = Path(__file__).resolve().parent.parent.parent / "shared" / "models" / "tiny"
LLAMA = MODELS / "llama2_decode_static_dynamo.onnx"

BUNDLED = {
    "gemma2_decode_static_dynamo_op23": "f16",
    "llama2_decode_static_dynamo": "bf16",
    "statickv_scatter_dynamo": "f16",
    "vit_static_legacy": "bf16",
}
"""The models in the repository, and the type that every run of the tests compiles them to."""

SHARED = [
    "bert_sdpa_dyn_legacy",
    "bert_sdpa_static_dynamo",
    "dit_tiny_static_dynamo",
    "gemma2_decode_dyn_dynamo",
    "gemma2_prefill_static_legacy",
    "granite_decode_dyn_legacy",
    "llama2_decode_dyn_dynamo",
    "llama2_decode_static_legacy",
    "llama2_prefill_static_dynamo",
    "llama3gqa_decode_dyn_legacy",
    "mixtral5_batched_mm_prefill_static_dynamo",
    "opt_decode_dyn_legacy",
    "opt_prefill_static_dynamo",
    "resnet50_w8_static_dynamo",
    "rnn_bilstm_gru_static_dynamo",
    "statickv_index_copy_dynamo",
    "vit_static_dynamo",
    "yolo_tiny_static_dynamo",
]
"""Of the tiny models beside the checkout: every architecture and kind of graph."""

NO_FILES = WeightSource(None)

Arrays = dict[str, np.ndarray]


def inputs_of(model: Path) -> Arrays:
    return read_npz(model.with_suffix(".npz"), "in/")


@cache
def compiled(model: Path, floats: str | None, chip: str = "test-64") -> Program:
    shapes = {n: a.shape for n, a in inputs_of(model).items()}
    return compile_model(model, chip=chip, policy="basic", floats=floats, input_shapes=shapes)


@cache
def reference(model: Path) -> Arrays:
    """What onnxruntime computes, in fp32."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(model), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs_of(model)), strict=True))


def assert_near(got: Arrays, want: Arrays, floats: str, where: str) -> None:
    """Within the tolerance of `elk run --expect`: 2e-3 (f16) or 2e-2 (bf16) of the largest number.
    Types are those of the model."""
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        error, scale = max_abs_error(got[name], value)
        share = TOLERANCE[FLOATS[floats]] if value.dtype.kind == "f" else 0.0
        assert error <= share * scale, f"{where}, {name}: {error} of {scale}"


def check_levels(model: Path, floats: str) -> None:
    """te, icca and the machine, against onnxruntime in fp32; HBM holds and moves less."""
    program, want, given = compiled(model, floats), reference(model), inputs_of(model)
    weights = WeightSource(model.parent)
    te = evaluate_te(program.module("te"), given, load_weight=weights.load)
    assert_near(te, want, floats, "te")
    icca = evaluate_icca(program.icca, given, load_weight=weights.load)
    assert_near(shaped_outputs(icca, program.signature), want, floats, "icca")
    machine = program.run(given)
    assert_near(machine, want, floats, "machine")
    assert any((machine[n] != v).any() for n, v in want.items())
    plain = compiled(model, None)
    assert (program.report["floats"], plain.report["floats"]) == (floats, None)
    assert program.precision == FLOATS[floats] and plain.precision == "float32"
    for field in ("hbm_bytes", "hbm_footprint_bytes"):
        assert program.report[field] < 0.6 * plain.report[field]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_models(name: str) -> None:
    check_levels(MODELS / f"{name}.onnx", BUNDLED[name])


@pytest.mark.slow
@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", [*BUNDLED, *SHARED])
def test_models(name: str, floats: str) -> None:
    model = (MODELS if name in BUNDLED else TINY) / f"{name}.onnx"
    if not model.exists():
        pytest.skip(f"needs {name} in ../shared/models/tiny")
    check_levels(model, floats)


# ---------------------------------------------------------------------- state, decoding


def test_caches_at_the_edge() -> None:
    """Caches are float32 outside and narrow inside: old entries come back rounded, bit by bit."""
    program, given = compiled(LLAMA, "bf16"), inputs_of(LLAMA)
    assert {s["dtype"] for s in program.report["states"]} == {"bfloat16"}
    assert {s.dtype for s in program.signature.outputs} == {"float32"}
    got = program.run(given)
    for layer in range(2):
        for what in ("key", "value"):
            old = given[f"past_key_values.{layer}.{what}"]
            new = got[f"present.{layer}.{what}"]
            assert new.dtype == np.float32
            rounded = old.astype(dtype_of("bfloat16")).astype(np.float32)
            np.testing.assert_array_equal(new[:, :, :-1], rounded)
    written = {s["name"]: s["written_bytes"] for s in compiled(LLAMA, None).report["states"]}
    for state in program.report["states"]:
        assert 2 * state["written_bytes"] == written[state["name"]]


def check_decoding(model: Path, floats: str, chip: str, steps: int) -> None:
    """As many steps as onnxruntime in fp32: logits within the tolerance along onnxruntime's own
    tokens, and those tokens wherever its logits are further apart than that."""
    ort = pytest.importorskip("onnxruntime")
    given = inputs_of(model)
    decoder = compile_decoder(
        model, chip=chip, inputs=given, steps=steps, policy="basic", floats=floats
    )
    assert decoder.program.report["floats"] == floats
    session = ort.InferenceSession(str(model))
    names, roles, state = [o.name for o in session.get_outputs()], decoder.roles, dict(given)
    sure = 0
    for step in range(steps):
        want = dict(zip(names, session.run(None, state), strict=True))
        logits = decoder.step()[roles.logits]
        expected = want[roles.logits]
        batch = state[roles.token].shape
        bound = TOLERANCE[FLOATS[floats]] * np.abs(expected).max()
        assert np.abs(logits - expected).max() <= bound, f"step {step}"
        last = expected.reshape(batch[0], -1, expected.shape[-1])[:, -1]
        best, second = -np.partition(-last, 1)[:, :2].T
        tokens = last.argmax(-1)
        apart = best - second > 2 * bound
        np.testing.assert_array_equal(decoder.tokens[apart], tokens[apart], f"step {step}")
        sure += int(apart.sum())
        feed_back(decoder, state, want, tokens)
        decoder.inputs[roles.token] = state[roles.token]
    assert sure > 0


def test_decoding_a_static_cache() -> None:
    check_decoding(MODELS / "statickv_scatter_dynamo.onnx", "bf16", "test-16", 4)


@pytest.mark.slow
@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize(
    "name",
    [
        "gemma2_decode_dyn_legacy",
        "granite_decode_dyn_dynamo",
        "llama2_decode_dyn_legacy",
        "llama3gqa_decode_dyn_dynamo",
        "opt_decode_dyn_legacy",
        "statickv_index_copy_dynamo",
        "statickv_scatter_dynamo",
    ],
)
def test_sixteen_steps(name: str, floats: str) -> None:
    model = TINY / f"{name}.onnx"
    if not model.exists():
        pytest.skip(f"needs {name} in ../shared/models/tiny")
    check_decoding(model, floats, "test-64", 16)


# ---------------------------------------------------------------------- masks and positions

MASKED = """
func.func @main(%q: tensor<4x8xf32> {onnx.name = "q"}, %k: tensor<6x8xf32> {onnx.name = "k"},
    %ok: tensor<4x6xi1> {onnx.name = "ok"}, %p: tensor<6xi64> {onnx.name = "p"})
    -> (tensor<4x6xf32> {onnx.name = "y"}, tensor<4x8xf32> {onnx.name = "z"}) {
  %m = te.map(%ok) <(a = 4, b = 6), [(a, b)] -> [(a, b)]> {body = #te.body<(x0)
    {t0 = const(0.0 : "float32"), t1 = const(-3.40282347E+38 : "float32"),
     t2 = select(x0, t0, t1)} -> (t2)>} : (tensor<4x6xi1>) -> tensor<4x6xf32>
  %n = te.map(%p) <(b = 6), [(b)] -> [(b)]> {body = #te.body<(x0)
    {t0 = cast(x0 : "float32"), t1 = const(1.0 : "float32"), t2 = sub(t1, t0),
     t3 = const(-3.40282347E+38 : "float32"), t4 = mul(t2, t3)} -> (t4)>}
    : (tensor<6xi64>) -> tensor<6xf32>
  %s = te.contract(%q, %k, %m, %n)
    <(a = 4, b = 6, d = 8 reduce), [(a, d), (b, d), (a, b), (b)] -> [(a, b)]>
    {epilogue = #te.body<(x0, x1, x2) {t0 = add(x0, x1), t1 = add(t0, x2)} -> (t1)>}
    : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  %y = te.softmax(%s) <(a = 4, b = 6 reduce), [(a, b)] -> [(a, b)]>
    : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %z = te.attention(%q, %k, %k, %m)
    <(a = 4, n = 8 local, t = 6 reduce, d = 8 local),
     [(a, d), (t, d), (t, n), (a, t)] -> [(a, n)]> {scale = 1.0 : f64}
    : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>, tensor<4x6xf32>) -> tensor<4x8xf32>
  func.return %y, %z : tensor<4x6xf32>, tensor<4x8xf32>
}
"""


def mask_inputs() -> Arrays:
    """Queries of which one sees everything, one nothing; a key that is padding."""
    rng = np.random.default_rng(0)
    ok = np.tril(np.ones((4, 6), bool), 1)
    ok[0], ok[3] = False, True
    return {
        # Scores of -16 and below, which would take the largest fp16 number to infinity.
        "q": 4 * np.abs(rng.standard_normal((4, 8))).astype(np.float32),
        "k": -2 * np.abs(rng.standard_normal((6, 8))).astype(np.float32),
        "ok": ok,
        "p": np.asarray([1, 1, 1, 1, 1, 0]),
    }


@pytest.mark.parametrize("floats", FLOATS)
def test_masks_of_the_largest_number(floats: str) -> None:
    """Masked entries get nothing, rows see what they may, and a row that sees nothing stays finite,
    where two masks are added and where attention takes one."""
    given = mask_inputs()
    want = evaluate_te(parse(MASKED), given, load_weight=NO_FILES.load)
    module = run_passes(parse(MASKED), f"te-change-floats{{to={floats}}}")
    got = evaluate_te(module, given, load_weight=NO_FILES.load)
    seen = given["ok"] & (given["p"] == 1)
    for name, value in want.items():
        assert got[name].dtype == np.float32 and np.isfinite(got[name]).all()
        error = np.abs(got[name] - value)[1:].max()
        assert error < 8 * TOLERANCE[FLOATS[floats]] * np.abs(value[1:]).max()
    assert (got["y"][1:][~seen[1:]] == 0).all()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("floats", FLOATS)
def test_masks_in_cpp(floats: str, tmp_path: Path) -> None:
    module = run_passes(parse(MASKED), f"te-change-floats{{to={floats}}}")
    program = lower(planned(str(module)))
    check_program(program, mask_inputs(), tmp_path, tolerance=TOLERANCE[FLOATS[floats]])


ANGLES = """
te.global weight @f : tensor<4xf32> = dense<[1.0, 0.1, 0.01, 0.001]> : tensor<4xf32>
func.func @main(%p: tensor<3xi64> {onnx.name = "p"}, %t: tensor<2xf32> {onnx.name = "t"})
    -> (tensor<3x4xf32> {onnx.name = "c"}, tensor<2x4xf32> {onnx.name = "s"}) {
  %f = te.load @f : tensor<4xf32>
  %a = te.map(%p) <(b = 3), [(b)] -> [(b)]> {body = #te.body<(x0)
    {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<3xi64>) -> tensor<3xf32>
  %m = te.contract(%a, %f) <(b = 3, d = 4), [(b), (d)] -> [(b, d)]>
    : (tensor<3xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %c = te.map(%m) <(b = 3, d = 4), [(b, d)] -> [(b, d)]> {body = #te.body<(x0)
    {t0 = cos(x0)} -> (t0)>} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %s = te.map(%t, %f) <(b = 2, d = 4), [(b), (d)] -> [(b, d)]> {body = #te.body<(x0, x1)
    {t0 = mul(x0, x1), t1 = sin(t0)} -> (t1)>} : (tensor<2xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  func.return %c, %s : tensor<3x4xf32>, tensor<2x4xf32>
}
"""


def test_angles_are_not_rounded() -> None:
    """Positions that neither type has: their cosines are those of float32."""
    module = run_passes(parse(ANGLES), "te-change-floats{to=bf16}")
    given = {"p": np.asarray([257, 4097, 131071]), "t": np.asarray([999.25, 3], np.float32)}
    want = evaluate_te(parse(ANGLES), given, load_weight=NO_FILES.load)
    got = evaluate_te(module, given, load_weight=NO_FILES.load)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


# ---------------------------------------------------------------------- numbers and edges


@pytest.mark.parametrize("dtype", LARGEST)
def test_saturation(dtype: str) -> None:
    """Round to nearest, finite numbers to the largest, infinities and NaN as they are."""
    high, top = LARGEST[dtype], float(np.finfo(np.float32).max)
    assert float(np.asarray(high).astype(dtype_of(dtype))) == high
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(top).astype(dtype_of(dtype)))
    x = np.asarray([1 / 3, -top, top, high, np.inf, -np.inf, np.nan, 0], np.float32)
    third = float(np.float32(1 / 3).astype(dtype_of(dtype)))
    want = np.asarray([third, -high, high, high, np.inf, -np.inf, np.nan, 0], np.float32)
    for got in (saturated(x, dtype), quantize_array(x, 1.0, dtype)):
        assert got.dtype == dtype_of(dtype)
        np.testing.assert_array_equal(dequantize_array(got, 1.0), want)


def test_a_graph_of_fp16_is_left_alone() -> None:
    """Only float32 is changed; the report says that nothing was."""
    text = """
    func.func @main(%x: tensor<4x8xf16> {onnx.name = "x"}, %k: tensor<6x8xf16> {onnx.name = "k"})
        -> (tensor<4x6xf16> {onnx.name = "y"}) {
      %y = te.contract(%x, %k) <(a = 4, b = 6, d = 8 reduce), [(a, d), (b, d)] -> [(a, b)]>
        : (tensor<4x8xf16>, tensor<6x8xf16>) -> tensor<4x6xf16>
      func.return %y : tensor<4x6xf16>
    }
    """
    program = compile_model(parse(text), chip="test-16", policy="basic", floats="bf16")
    assert program.report["floats"] is None and program.precision == "float16"


@pytest.mark.slow
def test_weights_narrower_still() -> None:
    """Integers in HBM beside fp16: a graph of fp32 goes through both."""
    given = inputs_of(LLAMA)
    both = compile_model(
        LLAMA,
        chip="test-64",
        policy="basic",
        floats="f16",
        quantize=Quantization("w8a16kv8", given),
        simulate=False,
    )
    assert {s["dtype"] for s in both.report["states"]} == {"int8"}
    assert both.report["hbm_bytes"] < 0.6 * compiled(LLAMA, "f16").report["hbm_bytes"]
    logits, want = both.run(given)["logits"], reference(LLAMA)["logits"]
    assert np.sqrt(np.mean((logits - want) ** 2) / np.mean(want**2)) < 0.05


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A folder runs as the program did."""
    program, given = compiled(LLAMA, "bf16"), inputs_of(LLAMA)
    again = load(program.save(tmp_path / "out"))
    assert again.report["floats"] == "bf16"
    want = program.run(given)
    for name, value in again.run(given).items():
        np.testing.assert_array_equal(value, want[name])


def test_verify_uses_the_tolerance_of_the_type() -> None:
    """From the pass on levels are judged as fp16; before it as fp32."""
    model = MODELS / "statickv_scatter_dynamo.onnx"
    result = verify_levels(
        model, chip="test-16", policy="basic", inputs=inputs_of(model), floats="f16"
    )
    assert result.culprit is None
    after = [c.after for c in result.checks]
    at = after.index("te-change-floats")
    shares = [{e.tolerance for e in c.errors} for c in result.checks]
    assert all(s == {TOLERANCE["float32"]} for s in shares[:at])
    assert all(s == {TOLERANCE["float16"]} for s in shares[at:])


def test_unknown_floats() -> None:
    with pytest.raises(ElkError, match="float32 can become f16 or bf16"):
        compile_model(LLAMA, chip="test-16", floats="f8")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--floats` of a model; a folder is compiled already, and other names are refused."""
    model = MODELS / "statickv_scatter_dynamo.onnx"
    data = str(model.with_suffix(".npz"))
    command = ["run", str(model), "--chip", "test-16", "--policy", "basic", "--inputs", data]
    assert elk.main([*command, "--floats", "f16", "--expect", data, "--json"]) == 0
    assert '"floats": "f16"' in capsys.readouterr().out
    assert elk.main([*command, "--floats", "f8"]) == 2
    assert "invalid choice: 'f8'" in capsys.readouterr().err
    folder = str(compiled(LLAMA, "bf16").save(tmp_path / "out"))
    assert elk.main(["simulate", folder, "--floats", "f16"]) == 2
    assert "--floats does not apply to a program that is compiled" in capsys.readouterr().err


# ---------------------------------------------------------------------- C++


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize(
    "name", ["llama2_decode_static_dynamo", "vit_static_legacy", "statickv_scatter_dynamo"]
)
def test_emitted_cpp(name: str, floats: str, tmp_path: Path) -> None:
    """g++'s numbers are the machine's, up to a rounding of the narrow type."""
    model = MODELS / f"{name}.onnx"
    program, weights = compiled(model, floats, "test-16"), WeightSource(MODELS)
    check_program(
        program.target,
        inputs_of(model),
        tmp_path,
        lambda remote: weights.load(remote.value),
        tolerance=TOLERANCE[FLOATS[floats]],
    )
