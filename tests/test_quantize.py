"""Quantised models: against integer references, onnxruntime, and from level to level.

`../shared/models/tiny` holds the models; without it these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import integer_reference as reference
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from elk_ir.compiler import context, import_source, pipeline, resolve_chip, run_passes, split_at
from elk_ir.dialects.te import ContractOp, GlobalOp, NormalizeOp, QuantizeOp
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes.te_quantize import quantize_module
from elk_ir.quant.integers import NARROW
from elk_ir.quant.scheme import parse_scheme
from elk_ir.weight_source import WeightSource

TINY = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"
pytestmark = pytest.mark.skipif(not TINY.is_dir(), reason="needs ../shared/models/tiny")

GRANITE, LLAMA = "granite_decode_static_legacy", "llama3gqa_decode_static_legacy"
INT4 = "q_llama3gqa_decode_dyn_dynamo_int4qdq"
QDQ = ["q_llama3gqa_decode_static_legacy_qdq", "q_bert_eager_static_legacy_qdq"]
RESNET = "q_resnet50_w8_static_legacy_qdq"


@dataclass
class Model:
    """A model in te, its inputs, and where its weights come from."""

    module: ModuleOp
    inputs: dict[str, np.ndarray]
    weights: WeightSource

    def run(self, observe: Callable | None = None) -> dict[str, np.ndarray]:
        return evaluate_te(self.module, self.inputs, load_weight=self.weights.load, observe=observe)


@cache
def _plain(name: str) -> tuple[ModuleOp, dict[str, np.ndarray]]:
    chip = resolve_chip("test-64")
    inputs = read_npz(TINY / f"{name}.npz", "in/")
    shapes = {n: a.shape for n, a in inputs.items()}
    module, _ = import_source(TINY / f"{name}.onnx", chip, input_shapes=shapes)
    front, _ = split_at(pipeline(chip), "convert-te-to-icca")
    run_passes(context(), module, front, model=name)
    return module, inputs


def te(name: str, scheme: str | None = None, **options: str) -> Model:
    """A tiny model after te-pipeline, quantised (calibrated on its own inputs) if asked."""
    plain, inputs = _plain(name)
    module, weights = plain.clone(), WeightSource(TINY)
    if scheme is not None:
        quantize_module(module, parse_scheme(scheme, **options), inputs, weights.load)
        module.verify()
    return Model(module, dict(inputs), weights)


def is_integer(op: ContractOp) -> bool:
    return all(shape_dtype(v)[1] in NARROW for v in op.ins[:2])


def check_products(model: Model) -> int:
    """Compare every product of integers that runs, bit by bit; how many there were."""
    compared = 0

    def observe(op: object, _: int, values: dict) -> None:
        nonlocal compared
        if isinstance(op, ContractOp) and is_integer(op):
            wanted = reference.product(op, [values[v] for v in op.ins])
            for value, result in zip(wanted, op.outs, strict=True):
                got = np.asarray(values[result])
                assert got.dtype == value.dtype
                np.testing.assert_array_equal(got.astype(float), value.astype(float))
            compared += 1

    model.run(observe)
    return compared


# ---------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("name", "scheme", "grain", "products"),
    [
        (GRANITE, "w4a4", "tensor", 13),
        (LLAMA, "w8a8", "token", 13),
        pytest.param(LLAMA, "w2a8", "tensor", 13, marks=pytest.mark.slow),
        (INT4, "w4a4", "tensor", 19),
    ],
)
def test_products_equal_the_integer_reference(
    name: str, scheme: str, grain: str, products: int
) -> None:
    assert check_products(te(name, scheme, activations=grain)) == products


@pytest.mark.parametrize("name", [pytest.param(QDQ[0], marks=pytest.mark.slow), QDQ[1]])
def test_products_of_qdq_graphs_equal_the_integer_reference(name: str) -> None:
    assert check_products(te(name)) >= 15


@pytest.mark.slow
def test_products_of_resnet_equal_the_integer_reference() -> None:
    assert check_products(te(RESNET)) == 54


STEPS = ("key", "value", "attention", "query", "weights", "o", "mlp", "silu", "down")
SHAPES = {
    GRANITE: reference.Shape(4, 1, 1e-6, 12.0, 0.22, 0.0625, 8.0),
    LLAMA: reference.Shape(4, 2, 1e-6),
}


def by_hand(name: str, model: Model, bits: int):
    """The whole model by the reference: weights read from the ONNX file and rounded here, steps
    from the quantised program."""
    import onnx

    graph = onnx.load(str(TINY / f"{name}.onnx")).graph
    arrays = [(i.name, onnx.numpy_helper.to_array(i)) for i in graph.initializer]
    plain = [a for n, a in arrays if n.startswith("onnx::MatMul")]
    named = {n.removeprefix("m.model."): a for n, a in arrays}
    table = {op.sym_name.data: op for op in model.module.ops if isinstance(op, GlobalOp)}
    values = {n: model.weights.load(op.value) for n, op in table.items() if op.value is not None}
    steps = [values[n] for n in values if n.endswith(".step")]
    columns = [values[n] for n in values if n.endswith(".steps")]
    assert len(steps) == len(STEPS) and len(plain) == 15

    def rounded(w: np.ndarray, s: np.ndarray, n: int):
        return reference.integers(w, s, -(2 ** (n - 1)), 2 ** (n - 1) - 1), s

    layers = []
    for i in range(2):
        weights, row = {}, np.concatenate([c[i] for c in columns[:4]])
        widths = [w.shape[1] for w in plain[7 * i : 7 * i + 7]]
        parts = np.split(row, np.cumsum(widths)[:-1])
        names = ("q", "k", "v", "o", "gate", "up", "down")
        for key, w, s in zip(names, plain[7 * i : 7 * i + 7], parts, strict=True):
            weights[key] = rounded(w, s, bits)
        norms = [named[f"layers.{i}.{n}_layernorm.weight"] for n in ("input", "post_attention")]
        own = {k: float(s[i, 0]) for k, s in zip(STEPS, steps, strict=True)}
        layers.append(reference.Layer((norms[0], norms[1]), weights, own))
    (angles,) = (values[n] for n in values if "rotary" in n)
    (last,) = (
        op.step.value.data
        for op in model.module.walk()
        if isinstance(op, QuantizeOp) and op.step is not None
    )
    assert all(
        op.epsilon.value.data == pytest.approx(SHAPES[name].epsilon)
        for op in model.module.walk()
        if isinstance(op, NormalizeOp)
    )
    return reference.decode(
        SHAPES[name],
        layers,
        named["embed_tokens.weight"],
        named["norm.weight"],
        rounded(plain[14], columns[4], 8),
        model.inputs,
        angles[0, :, 0],
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        8,
        last,
    ), layers


@pytest.mark.parametrize("name", [GRANITE, LLAMA])
@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_decoders_equal_a_model_written_by_hand_bit_by_bit(name: str, bits: int) -> None:
    model = te(name, f"w{bits}a{bits}")
    (logits, caches), layers = by_hand(name, model, bits)
    got = model.run()
    np.testing.assert_array_equal(got["logits"][:, 0], logits)
    for i, (keys, values) in enumerate(caches):
        for what, whole in (("key", keys), ("value", values)):
            step = np.float32(layers[i].steps[what])
            np.testing.assert_array_equal(
                got[f"present.{i}.{what}"], whole.astype(np.float32) * step
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", [GRANITE, LLAMA])
def test_cards_equal_a_model_written_by_hand_bit_by_bit(name: str) -> None:
    """The same reference against the cores of an appliance."""
    import elk_ir
    from elk_ir.quantizer import Quantization

    model = te(name, "w4a4")
    (logits, _), _ = by_hand(name, model, 4)
    wanted = Quantization("w4a4", calibration=model.inputs)
    program = elk_ir.compile(TINY / f"{name}.onnx", chip="northpole-16", quantize=wanted)
    np.testing.assert_array_equal(program.run(model.inputs)["logits"][:, 0], logits)


# ---------------------------------------------------------------------- onnxruntime


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in (QDQ[0], RESNET)]


@pytest.mark.parametrize("name", [QDQ[1], *SLOW])
def test_qdq_graphs_equal_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    # Its optimisations fuse and requantise, which moves results by whole steps.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        str(TINY / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
    )
    model = te(name)
    feeds = {i.name: model.inputs[i.name] for i in session.get_inputs()}
    outputs = [o.name for o in session.get_outputs()]
    wanted = dict(zip(outputs, session.run(outputs, feeds), strict=True))
    got = model.run()
    for key, value in wanted.items():
        assert np.abs(got[key] - value).max() <= 1e-6 * np.abs(value).max(), key


def test_weight_only_int4_is_a_product_of_numbers_until_activations_are_quantised() -> None:
    weights_only = te(INT4)
    assert not any(
        is_integer(op) for op in weights_only.module.walk() if isinstance(op, ContractOp)
    )
    expected = read_npz(TINY / f"{INT4}.npz", "out/")
    got = weights_only.run()["logits"]
    # The file's own expectation comes from kernels that round activations to eight bits.
    assert np.abs(got - expected["logits"]).max() <= 0.03 * np.abs(expected["logits"]).max()
    quantised = te(INT4, "w4a8")
    run_passes(context(), quantised.module, _passes("te-verify-quantized"), model=INT4)
    assert relative_loss(weights_only, quantised, "logits") < 0.05


# ---------------------------------------------------------------------- accuracy


def _passes(text: str):
    from elk_ir.tools.opt_pipeline import parse_passes
    from elk_ir.universe import PASSES, lazy

    return parse_passes(text, lazy(PASSES), {})


def relative_loss(plain: Model, quantised: Model, output: str) -> float:
    """Root mean square of the error over that of the numbers."""
    a, b = plain.run()[output].astype(float), quantised.run()[output].astype(float)
    return float(np.sqrt(((a - b) ** 2).mean() / (a**2).mean()))


@pytest.mark.parametrize(
    ("scheme", "granite", "llama"),
    [
        pytest.param("w8a8", 0.015, 0.04, marks=pytest.mark.slow),
        pytest.param("w4a8", 0.03, 0.25, marks=pytest.mark.slow),
        ("w4a4", 0.03, 0.5),
    ],
)
def test_the_loss_is_what_the_documentation_states(
    scheme: str, granite: float, llama: float
) -> None:
    for name, bound in ((GRANITE, granite), (LLAMA, llama)):
        assert relative_loss(te(name), te(name, scheme), "logits") < bound


# ---------------------------------------------------------------------- levels


def test_every_level_computes_the_same_integers() -> None:
    from elk_ir.targets.ipu.interpreter import Interpreter

    model = te(GRANITE, "w4a4")
    wanted = model.run()
    chip = resolve_chip("test-64")
    _, back = split_at(pipeline(chip, policy="static"), "convert-te-to-icca")
    middle, last = split_at(back, "convert-icca-to-ipu")
    run_passes(context(), model.module, middle, model=GRANITE)
    icca = evaluate_icca(model.module, model.inputs, load_weight=model.weights.load)
    run_passes(context(), model.module, last, model=GRANITE)
    machine = Interpreter(
        model.module,
        lambda remote: model.weights.load(remote.value),
        cores=chip.cores,
        sram_bytes=chip.usable_sram_per_core_bytes,
    )
    ipu = machine.run(model.inputs)
    for key, value in wanted.items():
        filled = tuple(slice(0, n) for n in value.shape)
        np.testing.assert_array_equal(icca[key][filled], value)
        np.testing.assert_array_equal(ipu[key][filled], value)


def test_state_is_given_as_numbers_or_as_integers() -> None:
    import ml_dtypes

    model = te(GRANITE, "w4a4")
    wanted = model.run()
    table = {op.sym_name.data: op for op in model.module.ops if isinstance(op, GlobalOp)}
    steps = model.weights.load(table["present.key"].steps)
    for i in range(2):
        name = f"past_key_values.{i}.key"
        whole = np.clip(np.round(model.inputs[name] / steps[i]), -8, 7)
        model.inputs[name] = whole.astype(np.int8).astype(ml_dtypes.int4)
    again = model.run()
    for key, value in wanted.items():
        np.testing.assert_array_equal(again[key], value)


@pytest.mark.slow
def test_decoding_with_a_window_that_is_not_full_and_calibration_at_other_shapes() -> None:
    from elk_ir.decode import compile_decoder
    from elk_ir.quantizer import Quantization

    name = "granite-3b-8blike_L2_tiny_dyn_fp32_op23"
    inputs = read_npz(TINY / f"{name}_b1_p5.npz", "in/")
    wanted = Quantization("w4a4", TINY / f"{name}_b2_p12.npz")
    first = []
    for steps in (1, 4):
        decoder = compile_decoder(
            TINY / f"{name}.onnx",
            chip="test-64",
            inputs=inputs,
            steps=steps,
            policy="static",
            quantize=wanted,
        )
        first.append(decoder.step()[decoder.roles.logits].copy())
    # Compiled for 5 entries, and for 8 of which the first three are not there yet.
    np.testing.assert_array_equal(first[0], first[1])


# ---------------------------------------------------------------------- what goes wrong


def test_calibration_that_does_not_fit() -> None:
    from elk_ir import compile
    from elk_ir.quantizer import Quantization

    def compiled(**options) -> None:
        compile(TINY / f"{GRANITE}.onnx", chip="test-64", quantize=Quantization(**options))

    with pytest.raises(ElkError, match="w4a4 needs calibration inputs: the steps of 10 tensors"):
        compiled(scheme="w4a4")
    with pytest.raises(ElkError, match="unknown quantisation scheme 'w4a5'"):
        compiled(scheme="w4a5")
    with pytest.raises(ElkError, match="no such file"):
        compiled(scheme="w4a4", calibration="nothing.npz")
    inputs = read_npz(TINY / f"{GRANITE}.npz", "in/")
    del inputs["input_ids"]
    with pytest.raises(ElkError, match="'input_ids' is missing"):
        compiled(scheme="w4a4", calibration=inputs)


@pytest.mark.slow
def test_check_inputs_is_what_calibration_uses() -> None:
    # bfloat16 inputs come as float32 in the files.
    name = "llama3gqa_decode_static_dynamo_bf16"
    chip = resolve_chip("test-64")
    inputs = read_npz(TINY / f"{name}.npz", "in/")
    from elk_ir.compiler import signature_of
    from elk_ir.quantizer import Quantization, with_quantization

    module, source = import_source(TINY / f"{name}.onnx", chip)
    specs = signature_of(module).inputs
    passes = with_quantization(
        split_at(pipeline(chip), "icca-schedule")[0],
        Quantization("w8a8", inputs),
        model=TINY / f"{name}.onnx",
        source=source,
        module=module,
        chip=chip,
    )
    front, _ = split_at(passes, "convert-te-to-icca")
    plain = module.clone()
    given = check_inputs(inputs, specs)
    weights = WeightSource(TINY)
    run_passes(context(), module, front, model=name)
    run_passes(context(), plain, front[:-1], model=name)
    got = evaluate_te(module, given, load_weight=weights.load)["logits"].astype(float)
    wanted = evaluate_te(plain, given, load_weight=weights.load)["logits"].astype(float)
    assert np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean()) < 0.05
