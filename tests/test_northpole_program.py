"""Programs of cards: what is compiled, what the cores compute, what the pipeline keeps apart."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import parse, run_passes
from northpole_programs import (
    GRANITE,
    LLAMA,
    MODELS,
    SHARED,
    SMALL,
    compiled,
    decoder,
    llama,
    published,
    shared,
    shrunk,
)

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.compiler import Signature
from elk_ir.dialects import northpole
from elk_ir.dialects.chip import ChipAttr
from elk_ir.errors import ElkError
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import parse_precision
from elk_ir.northpole.pipeline import simulate
from elk_ir.northpole.place import division_errors
from elk_ir.northpole.published import GRANITE_3B
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import TensorSpec, read_npz
from elk_ir.passes.northpole_verify_program import stages_of
from elk_ir.plan.plan import simple_plan
from elk_ir.quantizer import Quantization
from elk_ir.targets.northpole.compiled import NorthpoleProgram
from elk_ir.targets.northpole.cores import Core, Traffic, buffered
from elk_ir.targets.northpole.memory import blocks_of, tensors_of
from elk_ir.targets.northpole.read import mapping_of
from elk_ir.targets.northpole.runtime import Appliance
from elk_ir.tools.elk import main
from elk_ir.weight_source import WeightSource

QDQ_RESNET = SHARED / "tiny" / "q_resnet50_w8_static_legacy_qdq.onnx"


def agrees(program: NorthpoleProgram, path: Path, atol: float = 1e-5) -> None:
    outputs = program.run(read_npz(path, "in/"))
    expected = read_npz(path, "out/")
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(outputs[name] - value).max() <= atol * np.abs(value).max(), name


# ---------------------------------------------------------------------- compiling


def test_the_published_model_is_compiled_for_the_published_appliance() -> None:
    report = published().report
    assert (report["target"], report["policy"]) == ("northpole", "gpipe")
    assert (report["cards"], report["mini_batch"], report["micro_batches"]) == (16, 28, 14)
    assert report["mini_batch_by_micro_batches"] == {
        "12": 36, "13": 39, "14": 28, "15": 30, "16": 32,
    }  # fmt: skip
    assert [len(s["cards"]) for s in report["stages"]] == [1] * 14 + [2]
    layer, head = report["stages"][0], report["stages"][-1]
    assert layer["phases"] == 12
    assert layer["weight_bytes"] == pytest.approx(109.1e6, rel=1e-3)
    assert layer["kv_bytes"] == pytest.approx(58.7e6, rel=1e-3)
    assert layer["card_bytes"] == pytest.approx(167.8e6, rel=1e-3)
    assert head["cards"] == [14, 15]
    assert head["card_bytes"] == pytest.approx(100.7e6, rel=1e-3)
    assert report["power_w"] == 672
    # Fitted, so only that the fit is what the chip file has.
    assert report["tokens_per_s"] == pytest.approx(28_356, rel=1e-3)
    # What was placed, core by core, is what the map counted.
    assert report["sram_peak_bytes"] == pytest.approx(layer["core_bytes"], rel=1e-3)
    assert not report["quantized"]


def test_the_graph_and_its_figures_agree() -> None:
    """The map of the graph, and that of the model's widths alone, which the fit and the what-ifs
    use."""
    figures = map_network(
        GRANITE_3B.network(2048), load_chip("northpole-16"), parse_precision("w4a4")
    )
    assert figures.table == mapping_of(published().target).table
    rate = simulate(figures).tokens_per_s
    assert published().report["tokens_per_s"] == pytest.approx(rate, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "cards", "expected"),
    [("w8a8", 32, (30, 28, 28)), ("w2a2", 8, (7, 5, 5)), ("w4a4", 16, (16, 28, 14))],
)
def test_answers_hold_on_the_graph(
    precision: str, cards: int, expected: tuple[int, int, int]
) -> None:
    """What-ifs that the figures answer are compiled, placed and verified too, whatever micro-batch
    the map chooses."""
    path = shared(GRANITE.with_stem(GRANITE.stem + "_op23"))
    report = compiled(path, mapping={"precision": precision, "cards": cards}).report
    assert (report["cards"], report["mini_batch"], report["micro_batches"]) == expected
    core = max(stage["core_bytes"] for stage in report["stages"])
    assert report["sram_peak_bytes"] == pytest.approx(core, rel=2e-3)


def test_the_target_follows_the_chip() -> None:
    with pytest.raises(ElkError, match=r"'ipu-mk2' is no NorthPole machine"):
        elk_ir.compile(LLAMA, chip="ipu-mk2", target="northpole")
    with pytest.raises(ElkError, match="unknown policy 'basic'"):
        elk_ir.compile(LLAMA, chip="northpole-16", policy="basic")


# ---------------------------------------------------------------------- numbers


def test_a_decoder_on_cards_agrees_with_its_framework() -> None:
    agrees(llama(), LLAMA.with_suffix(".npz"))


def test_a_program_and_its_map_survive_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, folder = llama(), llama().save(tmp_path / "out")
    assert {p.name for p in folder.iterdir()} == {
        "program.mlir", "target.mlir", "report.json", "map.txt", "map.json", "map.svg",
    }  # fmt: skip
    loaded = elk_ir.load(folder)
    assert isinstance(loaded, NorthpoleProgram)
    read, made = mapping_of(loaded.target), mapping_of(program.target)
    assert read.stages == made.stages
    assert simulate(read) == simulate(made)
    fields = json.loads((folder / "map.json").read_text())
    for name in ("cards", "mini_batch", "micro_batches", "power_w", "latency_s", "tokens_per_s"):
        assert fields[name] == program.report[name]
    assert loaded.emitted()["map.txt"] == (folder / "map.txt").read_text()
    ElementTree.fromstring((folder / "map.svg").read_text())
    # Simulated from the folder, beside published figures of GPUs.
    assert main(["simulate", str(folder), "--gpus", "published"]) == 0
    text = capsys.readouterr().out
    assert text.startswith((folder / "map.txt").read_text())
    assert "not here: L4 with llama-7b" in text
    assert main(["simulate", str(folder), "--gpus", "published", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["tokens_per_s"] == program.report["tokens_per_s"]
    assert [row["machine"] for row in fields["gpus"]][:2] == ["H100", "L4"]
    assert fields["gpus_missing"]


@pytest.mark.slow
def test_a_vision_transformer_on_one_card() -> None:
    path = MODELS / "vit_static_legacy"
    program = compiled(path.with_suffix(".onnx"))
    assert program.report["cards"] == 1
    agrees(program, path.with_suffix(".npz"))


@pytest.mark.slow
def test_an_output_layer_shared_by_cards() -> None:
    path = shared(SMALL).with_name(SMALL.stem + "_b2_p12.npz")
    shapes = {k: v.shape for k, v in read_npz(path, "in/").items()}
    program = compiled(SMALL, shrunk(100), input_shapes=shapes, mapping={"users": 2})
    assert [len(s["cards"]) for s in program.report["stages"]] == [1, 1, 1, 1, 2]
    divided = {
        op.task.data.name: op.cards.data
        for block in blocks_of(program.target).values()
        for op in northpole.contents(block.body)
        if isinstance(op, northpole.ExecuteOp) and op.cards is not None
    }
    assert divided == {"node_linear_14": "n"}
    agrees(program, path)


def mlp(rng: np.random.Generator) -> tuple[str, np.ndarray, np.ndarray]:
    """A te module, y = x + (x a) b on int8 with int32 sums, and its weights."""
    a, b = rng.integers(-8, 8, (16, 64), np.int8), rng.integers(-8, 8, (64, 16), np.int8)
    text = f"""
    te.global weight @a : tensor<16x64xi8> = dense<{a.tolist()}> : tensor<16x64xi8>
    te.global weight @b : tensor<64x16xi8> = dense<{b.tolist()}> : tensor<64x16xi8>
    func.func @main(%x: tensor<3x16xi8> {{onnx.name = "x"}}) -> (tensor<3x16xi32> {{onnx.name = "y"}}) {{
      %a = te.load @a : tensor<16x64xi8>
      %h = te.contract(%x, %a) <(m = 3, n = 64, k = 16 reduce), [(m, k), (k, n)] -> [(m, n)]>
        : (tensor<3x16xi8>, tensor<16x64xi8>) -> tensor<3x64xi32>
      %b = te.load @b : tensor<64x16xi8>
      %y = te.contract(%h, %b, %x) <(m = 3, n = 16, k = 64 reduce), [(m, k), (k, n), (m, n)] -> [(m, n)]>
        {{epilogue = #te.body<(x0, x1) {{t0 = cast(x1 : "int32"), t1 = add(x0, t0)}} -> (t1)>}}
        : (tensor<3x64xi32>, tensor<64x16xi8>, tensor<3x16xi8>) -> tensor<3x16xi32>
      func.return %y : tensor<3x16xi32>
    }}
    """  # noqa: E501
    return text, a, b


def test_a_layer_shared_by_cards() -> None:
    """Outputs of the first product are divided among two cards, so the second one sums over what
    each has, and partial sums cross PCIe; the result is exact."""
    rng = np.random.default_rng(3)
    text, a, b = mlp(rng)
    chip = shrunk(6, cards=4)
    module = parse(text)
    module.attributes["icca.chip"] = ChipAttr.from_chip(chip)
    run_passes(
        module,
        "northpole-map-stages{precision=w8a8 users=3},convert-te-to-icca,northpole-place,"
        "convert-icca-to-northpole,northpole-verify-program",
    )
    stages = stages_of(module)
    assert [len(s.cards) for s in stages] == [2]
    cut = [
        op.cards.data for op in module.walk() if isinstance(op, northpole.ExecuteOp) and op.cards
    ]
    assert cut == ["n", "k"]
    x = rng.integers(-8, 8, (3, 16), np.int8)
    signature = Signature((TensorSpec("x", "int8", (3, 16)),), (TensorSpec("y", "int32", (3, 16)),))
    appliance = Appliance(module, lambda value: np.zeros(0), chip, signature, micro_batches=1)
    appliance.put(0, {"x": x})
    wide = x.astype(np.int64)
    assert np.array_equal(appliance.get(0)["y"], wide + (wide @ a) @ b)
    # Each of 3 × 16 int32 sums has one part on each card; half of them cross.
    assert appliance.stages[0].traffic.card_bytes >= 3 * 16 * 4


@pytest.mark.slow
def test_a_quantised_resnet_on_one_card_is_exact() -> None:
    program = compiled(shared(QDQ_RESNET))
    assert (program.report["cards"], program.report["quantized"]) == (1, True)
    outputs = program.run(read_npz(QDQ_RESNET.with_suffix(".npz"), "in/"))
    for name, value in read_npz(QDQ_RESNET.with_suffix(".npz"), "out/").items():
        assert np.array_equal(outputs[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w4a4", "w8a8"])
def test_a_quantised_decoder_is_bit_exact(scheme: str) -> None:
    """Cores compute the integers of whole tensors, and generation keeps micro-batches apart."""
    path = shared(SMALL).with_name(SMALL.stem + "_b2_p12.npz")
    inputs = read_npz(path, "in/")
    shapes = {k: v.shape for k, v in inputs.items()}
    wanted = Quantization(scheme, calibration=inputs)
    program = compiled(SMALL, input_shapes=shapes, quantize=wanted)
    assert (program.report["quantized"], program.report["precision"]["name"]) == (True, scheme)
    weights = WeightSource(SMALL.parent)
    expected = evaluate_te(program.module("te"), inputs, load_weight=weights.load)
    outputs = program.run(inputs)
    for name, value in outputs.items():
        assert np.array_equal(value, expected[name]), name
    tokens = []
    for batch in (2, 1):
        dims = {"batch": batch, "past_sequence_length": 11}
        program = compiled(SMALL, dims=dims, quantize=wanted)
        prompts = np.random.default_rng(1).integers(0, 512, (4, 2))
        if batch == 2:
            tokens.append(program.generate(prompts, 8).tokens)
        else:
            alone = [program.generate(p[None], 8).tokens for p in prompts]
            tokens.append(np.concatenate(alone))
    assert np.array_equal(*tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "q_llama3gqa_decode_dyn_dynamo_int4qdq",  # weights only: products of numbers
        "gemma2_decode_static_dynamo",
        "opt_decode_static_dynamo",
    ],
)
def test_other_graphs_are_what_te_computes(name: str) -> None:
    path = shared(SHARED / "tiny" / f"{name}.onnx")
    inputs = read_npz(path.with_suffix(".npz"), "in/")
    program = compiled(path, input_shapes={k: v.shape for k, v in inputs.items()})
    weights = WeightSource(path.parent)
    expected = evaluate_te(program.module("te"), inputs, load_weight=weights.load)
    for key, value in program.run(inputs).items():
        assert np.abs(value - expected[key]).max() <= 1e-5 * np.abs(expected[key]).max(), key


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["q_llama3gqa_decode_static_legacy_qdq", "q_bert_eager_static_legacy_qdq"]
)
def test_qdq_graphs_are_what_onnxruntime_computes(name: str) -> None:
    """Integers everywhere, and the numbers between them in the same order: no step is off."""
    ort = pytest.importorskip("onnxruntime")
    path = shared(SHARED / "tiny" / f"{name}.onnx")
    inputs = read_npz(path.with_suffix(".npz"), "in/")
    program = compiled(path)
    assert program.report["quantized"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options)
    names = [o.name for o in session.get_outputs()]
    expected = dict(zip(names, session.run(None, inputs), strict=True))
    found = program.run(inputs)
    assert found.keys() == expected.keys()
    for key, value in found.items():
        if key == "pooler_output":  # a tanh
            assert np.abs(value - expected[key]).max() < 1e-6
        else:
            assert np.array_equal(value, expected[key]), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("q_llama3gqa_decode_dyn_dynamo_int4qdq", "w4a8"),  # int4 weights of its own, in blocks
        ("llama3gqa_decode_static_dynamo", "w4a4"),
        ("llama3gqa_decode_static_dynamo", "w2a2"),
    ],
)
def test_other_quantised_graphs_are_bit_exact(name: str, scheme: str) -> None:
    path = shared(SHARED / "tiny" / f"{name}.onnx")
    inputs = read_npz(path.with_suffix(".npz"), "in/")
    shapes = {k: v.shape for k, v in inputs.items()}
    program = compiled(path, input_shapes=shapes, quantize=Quantization(scheme, calibration=inputs))
    assert program.report["quantized"]
    weights = WeightSource(path.parent)
    expected = evaluate_te(program.module("te"), inputs, load_weight=weights.load)
    for key, value in program.run(inputs).items():
        assert np.array_equal(value, expected[key]), key


def product() -> northpole.ExecuteOp:
    """An integer product, 5 × 12 by 12 × 7, its reduction cut among four cores of each card."""
    module = parse(
        """
        northpole.block @b "b" in 12 out 7 phases 1 ways 2 {
        ^bb0(%l: index, %x: tensor<5x12xi8>, %w: tensor<12x7xi8>):
          %y = northpole.execute <name = "y", kind = "contract", unit = "matrix"> plan <grid [m = 2, n = 4, k = 3], operands [exec {} preload {}, exec {} preload {}], scatter n> cards "n" (%x, %w) {
          ^bb0(%a: tensor<5x12xi8>, %c: tensor<12x7xi8>):
            %z = te.contract(%a, %c) <(m = 5, n = 7, k = 12 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<5x12xi8>, tensor<12x7xi8>) -> tensor<5x7xi32>
          } : (tensor<5x12xi8>, tensor<12x7xi8>) -> tensor<5x7xi32>
          northpole.yield %y : tensor<5x7xi32>
        }
        """  # noqa: E501
    )
    (op,) = [o for o in module.walk() if isinstance(o, northpole.ExecuteOp)]
    return op


def test_integers_are_exact_and_partial_sums_travel() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (5, 12), np.int8), rng.integers(-128, 128, (12, 7), np.int8)
    core, traffic = Core(product(), 2), Traffic()
    (out,) = core.run([buffered(a), buffered(b)], traffic)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    found = np.zeros_like(expected)
    for data, bounds in zip(out.data, out.layout.bounds.reshape(24, 2, 2), strict=True):
        (m0, m1), (n0, n1) = bounds
        found[m0:m1, n0:n1] = data[: m1 - m0, : n1 - n0]
    assert np.array_equal(found, expected)
    # 24 cores: 12 a card, none of whose sums leave it; each core sends 2 of its 3 parts.
    assert traffic.partial_bytes > 0
    assert traffic.card_bytes == 0
    assert {core.place.card.count(w) for w in (0, 1)} == {12}


def test_a_weight_on_the_wrong_core_changes_the_numbers() -> None:
    rng = np.random.default_rng(0)
    program = decoder()
    inputs = {
        "input_ids": rng.integers(0, 512, (2, 1)),
        "position_ids": np.zeros((2, 1), np.int64),
    }
    appliance = program.appliance(micro_batches=2)
    appliance.put(0, inputs)
    right = appliance.get(0)["logits"]
    spread = max(appliance.stages[0].weights.values(), key=lambda s: s.data.size)
    spread.data[[0, 1]] = spread.data[[1, 0]]
    appliance.put(1, inputs)
    assert np.abs(appliance.get(1)["logits"] - right).max() > 1e-3


# ---------------------------------------------------------------------- the pipeline


def test_tokens_in_flight_are_those_of_one_user_at_a_time() -> None:
    """Eight greedy tokens of four users, two prompt tokens each: all micro-batches at once, and
    the last two users alone on an appliance of their own."""
    prompts = np.random.default_rng(1).integers(0, 512, (4, 2))
    together = decoder(2).generate(prompts, 8)
    assert together.counters.most_in_flight > 2
    assert together.counters.passes == 2 * 9
    alone = decoder(2).generate(prompts[2:], 8, together=False)
    assert alone.counters.most_in_flight == 2  # its prompt tokens
    assert np.array_equal(alone.tokens, together.tokens[2:])
    assert together.tokens.shape == (4, 8)


@pytest.mark.slow
def test_generation_is_that_of_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    prompts = np.random.default_rng(2).integers(0, 512, (2, 3))
    session = ort.InferenceSession(str(shared(SMALL)))
    names = [o.name for o in session.get_outputs()]
    caches = {
        i.name: np.zeros((2, 1, 0, 16), np.float32)
        for i in session.get_inputs()
        if "past" in i.name
    }
    expected: list[np.ndarray] = []
    token = prompts[:, 0]
    for position in range(10):
        feeds = {"input_ids": token[:, None], "position_ids": np.full((2, 1), position)}
        outputs = dict(zip(names, session.run(None, feeds | caches), strict=True))
        caches = {n: outputs[n.replace("past_key_values", "present")] for n in caches}
        token = outputs["logits"][:, -1].argmax(-1)
        if position >= 2:
            expected.append(token)
        else:
            token = prompts[:, position + 1]
    found = decoder(2).generate(prompts, 8)
    assert np.array_equal(found.tokens, np.stack(expected, axis=1))
    for user in (0, 1):
        alone = decoder(1).generate(prompts[user : user + 1], 8, together=False)
        assert np.array_equal(alone.tokens[0], found.tokens[user])


@pytest.mark.slow
def test_caches_come_back_in_the_order_of_their_tokens() -> None:
    """Cores keep new entries in front of old ones; what is read is in order."""
    path = shared(SMALL).with_name(SMALL.stem + "_b2_p12.npz")
    inputs, expected = read_npz(path, "in/"), read_npz(path, "out/")
    appliance = decoder(2, 14).appliance(micro_batches=1)
    appliance.put(0, inputs)
    first = appliance.get(0)
    for name, value in expected.items():
        if name != "logits":
            assert np.allclose(first[name], value, atol=1e-5), name
    token = first["logits"][:, -1].argmax(-1)[:, None]
    appliance.put(0, {"input_ids": token, "position_ids": inputs["position_ids"] + 1})
    second = appliance.get(0)
    for name, value in expected.items():
        if name != "logits":
            assert second[name].shape[2] == 14
            assert np.allclose(second[name][:, :, :13], value, atol=1e-5), name


def test_a_plan_that_cuts_one_card_in_two() -> None:
    op = product()
    plan = simple_plan(op.operator(), (1, 1, 3))
    assert "is not for 2 cards" in division_errors(plan, 2, 1)[0]


def test_tensors_by_name() -> None:
    kinds = {op.kind.data.value for op in tensors_of(decoder().target).values()}
    assert kinds == {"input", "output", "state", "weight"}
