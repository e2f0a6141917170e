"""Graphs made from configurations: valid, consistent, and the same numbers on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import elk_ir
from elk_ir.errors import ModelError
from elk_ir.frontend.decoder_graph import DecoderConfig, config_from_json, decoder_graph, main

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4, "tie_word_embeddings": True}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "activation_function": "relu",
    "torch_dtype": "float32",
}
GRANITE = LLAMA | {
    "model_type": "granite",
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 8.0,
}
FAMILIES = {"llama": LLAMA, "mistral": MISTRAL, "granite": GRANITE, "opt": OPT}


def on_onnxruntime(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by name, nothing optimised."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def tokens(rng: np.random.Generator, batch: int, length: int) -> dict[str, np.ndarray]:
    """Inputs of a prefill."""
    return {
        "input_ids": rng.integers(0, 64, (batch, length)),
        "position_ids": np.tile(np.arange(length), (batch, 1)),
    }


def caches(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a step leaves, as inputs of the next one."""
    return {k.replace("present", "past_key_values"): v for k, v in outputs.items() if k != "logits"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_and_a_step_are_a_longer_prompt(family: str) -> None:
    """Positions, caches, masks and windows of both graphs agree."""
    config = config_from_json(FAMILIES[family])
    every = tokens(np.random.default_rng(1), 2, 7)
    whole = on_onnxruntime(decoder_graph(config, phase="prefill", length=7, seed=0), every)
    first = {k: v[:, :6] for k, v in every.items()}
    begun = on_onnxruntime(decoder_graph(config, phase="prefill", length=6, seed=0), first)
    last = {k: v[:, 6:] for k, v in every.items()}
    step = on_onnxruntime(decoder_graph(config, seed=0), last | caches(begun))
    assert set(step) == set(whole)
    for name, value in whole.items():
        np.testing.assert_allclose(step[name], value, rtol=0, atol=2e-5 * np.abs(value).max())


@pytest.mark.parametrize(
    ("family", "phase"), [("llama", "decode"), ("mistral", "decode"), ("opt", "prefill")]
)
def test_the_machine_computes_what_onnxruntime_does(family: str, phase: str) -> None:
    config = config_from_json(FAMILIES[family])
    rng = np.random.default_rng(2)
    if phase == "decode":
        inputs = {"input_ids": rng.integers(0, 64, (2, 1)), "position_ids": np.full((2, 1), 6)}
        for layer in range(config.layers):
            for kind in ("key", "value"):
                shape = (2, config.kv_heads, 6, config.head_dim)
                past = rng.standard_normal(shape).astype(np.float32)
                inputs[f"past_key_values.{layer}.{kind}"] = past
    else:
        inputs = tokens(rng, 2, 5)
    model = decoder_graph(config, phase=phase, length=5 if phase == "prefill" else None, seed=3)
    expected = on_onnxruntime(model, inputs)
    shapes = {k: v.shape for k, v in inputs.items()}
    program = elk_ir.compile(model, chip="test-64", policy="basic", input_shapes=shapes)
    found = program.run(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4 * np.abs(value).max())


def test_a_full_size_graph_is_small_and_compiles_without_weights(tmp_path: Path) -> None:
    """Llama-2-13B: 13.02 billion parameters in a file of less than a megabyte. Two of its layers
    become one body that runs twice, its attention is attention."""
    fields = LLAMA | {
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "intermediate_size": 13824,
        "vocab_size": 32000,
        "torch_dtype": "float16",
    }
    path, target = tmp_path / "config.json", tmp_path / "llama.onnx"
    path.write_text(json.dumps(fields))
    assert config_from_json(fields).parameters == 13_015_864_320
    assert main([str(path), "-o", str(target)]) == 0
    assert target.stat().st_size < 1_000_000
    onnx.shape_inference.infer_shapes(onnx.load(target, load_external_data=False), True, True)
    assert main([str(path), "-o", str(target), "--layers", "2"]) == 0
    from elk_ir.compiler import context, import_source, pipeline, resolve_chip, run_passes, split_at
    from elk_ir.dialects.te import AttentionOp
    from elk_ir.dialects.te.structure import RepeatOp

    chip = resolve_chip("ipu-pod4-hbm")
    dims = {"batch": 32, "past_sequence_length": 2047}
    module, source = import_source(target, chip, dims=dims)
    front, _ = split_at(pipeline(chip), "te-chunk-attention")
    run_passes(context(), module, front, model=source.name)
    (loop,) = (op for op in module.walk() if isinstance(op, RepeatOp))
    assert loop.count.value.data == 2
    assert sum(isinstance(op, AttentionOp) for op in loop.walk()) == 1


def test_what_has_no_graph_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, message in (
        ({"model_type": "mamba"}, "model_type 'mamba' has no graph here"),
        ({"num_local_experts": 8}, "num_local_experts = 8 has no graph here"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide among 3 KV heads"),
        ({"hidden_act": "swish2"}, "activation 'swish2' is not known"),
        ({"num_hidden_layers": 0}, "layers is 0, not a count"),
        ({"hidden_size": None}, "the configuration has no 'hidden_size'"),
        ({"torch_dtype": "int8"}, "dtype 'int8' is not known"),
    ):
        with pytest.raises(ModelError, match=message.replace("(", r"\(")):
            config_from_json(LLAMA | change)
    config = config_from_json(LLAMA)
    with pytest.raises(ModelError, match="a prefill needs a length"):
        decoder_graph(config, phase="prefill")
    with pytest.raises(ModelError, match="phase 'train' is not known"):
        decoder_graph(config, phase="train")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for name, message in (
        ("missing.json", "cannot be read"),
        ("broken.json", "is no JSON: "),
        ("list.json", "holds no object of fields"),
    ):
        assert main([str(tmp_path / name), "-o", str(tmp_path / "m.onnx")]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 0}, "heads is 0, not a count below 2,147,483,648"),
        ({"hidden_size": "32"}, "hidden is '32', not a count"),
        ({"vocab_size": 10**30}, "vocab is 1000000000000000000000000000000, not a count"),
        ({"sliding_window": "a"}, "window is 'a', not a count"),
        ({"rope_theta": "x"}, "theta is 'x', not a positive number"),
        ({"rope_theta": 0}, "theta is 0.0, not a positive number"),
        ({"rms_norm_eps": float("nan")}, "epsilon is nan, not a positive number"),
        ({"model_type": "granite", "logits_scaling": "x"}, "logits_scale is 'x', not a positive"),
    ],
)
def test_numbers_that_are_none(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_json({**LLAMA, **change})


def test_a_configuration_by_hand() -> None:
    """Any mixture of the parts, not only those of a family."""
    config = DecoderConfig(
        hidden=24,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=16,
        ffn=40,
        vocab=50,
        norm="layer",
        activation="gelu",
        gated=False,
        dtype="bfloat16",
    )
    model = decoder_graph(config, phase="prefill", length=3)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    assert {t.data_location for t in model.graph.initializer if t.name.endswith("proj.weight")} == {
        onnx.TensorProto.EXTERNAL
    }


def test_the_script_needs_no_framework(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = (
        "import sys; from elk_ir.frontend.decoder_graph import main;"
        " code = main(sys.argv[1:]);"
        " assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    target = tmp_path / "m.onnx"
    args = [sys.executable, "-c", code, str(tmp_path / "config.json"), "-o", str(target)]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 layers" in done.stdout
