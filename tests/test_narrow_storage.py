"""Weights and caches that are stored as int8 or fp8 and widened on the cores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cpp_program import BuiltProgram, needs_compiler
from helpers import parse, run_passes
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr

from elk_ir.chips import load_chip
from elk_ir.compiler import compile_model
from elk_ir.cost.device import device_model
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.ipu import RemoteOp
from elk_ir.dialects.te import AttentionOp, ContractOp, GlobalOp
from elk_ir.dialects.weight import WeightAttr
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import read_npz
from elk_ir.plan.domain import Operator
from elk_ir.program import Program
from elk_ir.quant.integers import FLOAT8, dequantize_array, quantize_array
from elk_ir.quant.steps import channel_steps, quantize_channels
from elk_ir.quantizer import Quantization
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.weight_source import WeightSource

MODELS = Path(__file__).parent / "models"
MODEL = MODELS / "llama2_decode_static_dynamo.onnx"
F8 = "float8_e4m3fn"

ERRORS = {"w8a16": 0.05, "w8a16kv8": 0.05, "wf8a16": 0.12, "wf8a16kvf8": 0.15}
"""Relative root mean square error of the logits that a scheme may have (random weights)."""


def inputs() -> dict[str, np.ndarray]:
    return read_npz(MODEL.with_suffix(".npz"), "in/")


@cache
def compiled(scheme: str | None, chip: str = "test-16") -> Program:
    quantize = None if scheme is None else Quantization(scheme, inputs())
    return compile_model(MODEL, chip=chip, policy="basic", quantize=quantize, simulate=False)


def loss(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize(
    "scheme",
    [*ERRORS][1::2] + [pytest.param(s, marks=pytest.mark.slow) for s in [*ERRORS][::2]],
)
def test_error_and_bytes(scheme: str) -> None:
    """Logits near those of the model, caches near its caches, and HBM holds and moves a quarter of
    the bytes of what is stored narrow."""
    plain, narrow = compiled(None), compiled(scheme)
    want, got = plain.run(inputs()), narrow.run(inputs())
    assert 0 < loss(got["logits"], want["logits"]) < ERRORS[scheme]
    for name in want:
        assert loss(got[name], want[name]) < ERRORS[scheme]
    for field in ("hbm_bytes", "hbm_footprint_bytes"):
        assert narrow.report[field] < 0.6 * plain.report[field]
    states = {s["name"]: s for s in plain.report["states"]}
    for state in narrow.report["states"]:
        ratio = 4 if "kv" in scheme else 1
        assert states[state["name"]]["written_bytes"] == ratio * state["written_bytes"]


@pytest.mark.parametrize("scheme", ["w8a16kv8", "wf8a16kvf8"])
def test_te_and_cores_agree(scheme: str) -> None:
    """The caches are equal bit by bit, the logits up to the order of sums."""
    program = compiled(scheme)
    want = evaluate_te(program.module("te"), inputs(), load_weight=WeightSource(MODELS).load)
    got = program.run(inputs())
    for name, value in want.items():
        if name == "logits":
            np.testing.assert_allclose(got[name], value, atol=1e-4 * np.abs(value).max())
        else:
            # A number on the border between two narrow ones may fall to either side.
            assert (got[name] == value).mean() > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16kv8", "wf8a16kvf8"])
def test_sixty_four_cores(scheme: str) -> None:
    a, b = (compiled(scheme, chip).run(inputs())["logits"] for chip in ("test-16", "test-64"))
    np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(a).max())


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16kv8", "wf8a16kvf8"])
def test_emitted_cpp(scheme: str, tmp_path: Path) -> None:
    program, weights = compiled(scheme), WeightSource(MODELS)

    def load(op: RemoteOp) -> np.ndarray:
        if isinstance(op.value, WeightAttr):
            return np.asarray(weights.load(op.value))
        assert isinstance(op.value, DenseIntOrFPElementsAttr)
        return array_from_dense(op.value)

    want = program.run(inputs())
    got = BuiltProgram(emit_cpp(program.target), tmp_path).outputs(program.target, inputs(), load)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=1e-5 * np.abs(value).max())


@pytest.mark.parametrize("scheme", ["w8a16kv8", pytest.param("wf8a16kvf8", marks=pytest.mark.slow)])
def test_static_caches(scheme: str) -> None:
    """A narrow static cache is widened by what puts the new row into it; a step stores its row."""
    model = MODELS / "statickv_scatter_dynamo.onnx"
    given = read_npz(model.with_suffix(".npz"), "in/")
    want = read_npz(model.with_suffix(".npz"), "out/")
    program = compile_model(
        model,
        chip="test-16",
        policy="basic",
        quantize=Quantization(scheme, given),
        simulate=False,
    )
    assert [s["written_bytes"] for s in program.report["states"]] == [2 * 2 * 16] * 2
    got = program.run(given)
    for name, value in want.items():
        assert loss(got[name], value) < ERRORS[scheme]


ATTENTION = """
te.global state @k stack 2 : tensor<1x2x4xf32>
    {axis = 1 : i64, length = 1 : i64, inputs = ["k0", "k1"], outputs = ["l0", "l1"]}
te.global state @v stack 2 : tensor<1x2x4xf32>
    {axis = 1 : i64, length = 1 : i64, inputs = ["v0", "v1"], outputs = ["w0", "w1"]}
te.global weight @w stack 2 : tensor<4x4xf32> = dense<0.5> : tensor<2x4x4xf32>
func.func @main(%x: tensor<1x4xf32> {onnx.name = "x"})
    -> (tensor<1x4xf32> {onnx.name = "y"}) {
  %o = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<1x4xf32>):
    %w = te.load @w[%l] : tensor<4x4xf32>
    %p = te.contract(%h, %w) <(m = 1, n = 4, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]>
      : (tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<1x4xf32>
    %e = te.map(%p) <(b = 1, d = 4), [(b, d)] -> [(b, 0, d)]> {body = #te.body<(x0) {} -> (x0)>}
      : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
    %k = te.append %e to @k[%l] : tensor<1x1x4xf32> -> tensor<1x2x4xf32>
    %v = te.append %e to @v[%l] : tensor<1x1x4xf32> -> tensor<1x2x4xf32>
    %q = te.map(%p) <(b = 1, d = 4), [(b, d)] -> [(b, d)]>
      {body = #te.body<(x0) {t0 = cos(x0)} -> (t0)>} : (tensor<1x4xf32>) -> tensor<1x4xf32>
    %a = te.attention(%q, %k, %v)
      <(b = 1, n = 4 local, t = 2 reduce, d = 4 local), [(b, d), (b, t, d), (b, t, n)] -> [(b, n)]>
      {scale = 0.5 : f64} : (tensor<1x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>)
      -> tensor<1x4xf32>
    %y = te.map(%a, %h) <(b = 1, d = 4), [(b, d), (b, d)] -> [(b, d)]>
      {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>}
      : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
    te.yield %y : tensor<1x4xf32>
  } : (tensor<1x4xf32>) -> tensor<1x4xf32>
  func.return %o : tensor<1x4xf32>
}
"""


def test_steps_of_layers_go_into_queries_and_results() -> None:
    """Against numpy: attention over what the integers of each layer's cache stand for. The queries'
    own operation multiplies with the step; a result that no product reads is scaled itself."""
    module = run_passes(parse(ATTENTION), "te-quantize{scheme=w8a16kv8 calibration=unit}")
    ops = [op for op in module.walk() if isinstance(op, AttentionOp)]
    assert [str(v.type) for v in ops[0].ins[1:]] == ["tensor<1x2x4xi8>"] * 2
    states = [op for op in module.body.block.ops if isinstance(op, GlobalOp) and op.steps]
    assert len(states) == 2 and states[0].steps is not None
    step = array_from_dense(states[0].steps)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 4)).astype(np.float32)
    given = {n: rng.standard_normal((1, 1, 4)).astype(np.float32) for n in ("k0", "k1", "v0", "v1")}
    got = evaluate_te(module, {"x": x, **given}, load_weight=WeightSource(MODELS).load)["y"]

    def stored(array: np.ndarray, layer: int) -> np.ndarray:
        return dequantize_array(quantize_array(array, step[layer], "int8"), step[layer])

    h = x
    for layer in range(2):
        p = h @ np.full((4, 4), 0.5, np.float32)
        keys, values = (
            np.concatenate([stored(given[f"{n}{layer}"][0], layer), stored(p, layer)]) for n in "kv"
        )
        scores = 0.5 * keys @ np.cos(p)[0]
        weights = np.exp(scores - scores.max())
        h = h + (weights / weights.sum()) @ values
    np.testing.assert_allclose(got, h, rtol=1e-5)


def test_eight_bit_floats_saturate_and_keep_their_precision() -> None:
    x = np.asarray([0.0, 1e-9, 0.3, -500.0, 448.0, 1e6], np.float32)
    q = quantize_array(x, 1.0, F8)
    assert q.dtype == dtype_of(F8) and FLOAT8[F8] == 448
    np.testing.assert_array_equal(q.astype(np.float32), [0, 0, 0.3125, -448, 448, 448])
    w = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32) * 10.0 ** np.arange(8)
    steps = channel_steps(w, F8, (1,))
    np.testing.assert_allclose(steps, np.abs(w).max(axis=0) / 448, rtol=1e-6)
    back = dequantize_array(quantize_channels(w, F8, (1,)), steps)
    normal = np.abs(w) > np.abs(w).max(axis=0) * 2.0**-14
    assert (np.abs(back - w)[normal] <= 2.0**-4 * np.abs(w)[normal] * 1.0001).all()


@needs_compiler
@pytest.mark.slow
def test_eight_bit_floats_in_cpp(tmp_path: Path) -> None:
    """All codes, and rounding of numbers between them, as ml_dtypes has it."""
    import subprocess

    from cpp_program import COMPILER

    from elk_ir.targets.ipu.cpp_common import helper

    assert COMPILER is not None
    source = [
        "#include <cmath>",
        "#include <cstdio>",
        "struct half { half(float) {} operator float() const { return 0; } };",
        *helper("elk_math.hpp"),
        "int main() {",
        "  for (int i = 0; i < 256; ++i) {",
        "    const float f = elk::fromFloat8(static_cast<unsigned char>(i));",
        "    std::fwrite(&f, 4, 1, stdout);",
        "  }",
        "  for (float f; std::fread(&f, 4, 1, stdin) == 1;) {",
        "    const unsigned char c = elk::toFloat8(f);",
        "    std::fwrite(&c, 1, 1, stdout);",
        "  }",
        "}",
    ]
    (tmp_path / "codes.cpp").write_text("\n".join(source))
    command = [COMPILER, "-std=c++17", "-Wall", "codes.cpp", "-o", "codes"]
    subprocess.run(command, cwd=tmp_path, check=True)
    codes = np.arange(256, dtype=np.uint8).view(dtype_of(F8)).astype(np.float32)
    rng = np.random.default_rng(0)
    sample = rng.standard_normal(2000) * 10.0 ** rng.uniform(-5, 3, 2000)
    between = (codes[:-1] + codes[1:]) / 2
    x = np.concatenate([sample, codes, between, [-0.0, 464, 465, -np.inf, np.nan]])
    x = x.astype(np.float32)
    out = subprocess.run(
        [str(tmp_path / "codes")], input=x.tobytes(), capture_output=True, check=True
    ).stdout
    np.testing.assert_array_equal(np.frombuffer(out[:1024], np.float32), codes)
    got = np.frombuffer(out[1024:], np.uint8).view(dtype_of(F8)).astype(np.float32)
    np.testing.assert_array_equal(got, x.astype(dtype_of(F8)).astype(np.float32))


PRODUCT = """
func.func @main(%x: tensor<32x64xf16>, %w: tensor<64x16xKIND>) -> tensor<32x16xf16> {
  %y = te.contract(%x, %w) <(m = 32, n = 16, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<32x64xf16>, tensor<64x16xKIND>) -> tensor<32x16xf16>
  func.return %y : tensor<32x16xf16>
}
"""


@pytest.mark.parametrize("kind", ["i8", "f8E4M3FN"])
def test_widening_costs_half_a_cycle_an_element(kind: str) -> None:
    """Of the narrow factor, on top of the same product of fp16; sums are in float32 in both."""

    def operator(kind: str) -> Operator:
        module = parse(PRODUCT.replace("KIND", kind))
        return next(op for op in module.walk() if isinstance(op, ContractOp)).operator()

    cost, tile = device_model(load_chip("test-64")), np.asarray([[32, 16, 64]])
    wide, narrow = (cost.tile_cycles(operator(k), tile)[0] for k in ("f16", kind))
    assert narrow - wide == pytest.approx(0.5 * 64 * 16)
    assert [s.dtype for s in operator(kind).stats] == ["float32"]
