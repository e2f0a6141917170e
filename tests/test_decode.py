"""Decoding on state: tokens and logits equal onnxruntime's, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import feed_back

from elk_ir.chips import load_chip
from elk_ir.compiler import compile_model
from elk_ir.decode import Decoder, compile_decoder
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.ipu import RemoteOp
from elk_ir.errors import ElkError
from elk_ir.numerics.tensors import read_npz
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.targets.ipu.machine import TrapError

TINY = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"
STATIC = Path(__file__).parent / "models" / "statickv_scatter_dynamo.onnx"
BUNDLED = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"

FAST = ["llama2_decode_dyn_legacy", "statickv_scatter_dynamo"]
SLOW = [
    f"{name}_decode_dyn_{exporter}"
    for name in ("gemma2", "granite", "llama2", "llama3gqa", "opt")
    for exporter in ("dynamo", "legacy")
    if f"{name}_decode_dyn_{exporter}" not in FAST
] + [
    "granite-3b-8blike_L2_tiny_dyn_fp32_op23",
    "llama2-13b_L2_tiny_dyn_fp32_op23",
    "q_llama3gqa_decode_dyn_dynamo_int4qdq",
    "statickv_index_copy_dynamo",
]
STEPS = 16


def reference(
    model: Path, inputs: dict[str, np.ndarray], decoder: Decoder, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (steps, batch) and logits of the same loop in onnxruntime, caches growing."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options)
    names = [o.name for o in session.get_outputs()]
    roles, state = decoder.roles, dict(inputs)
    tokens, logits = [], []
    for _ in range(steps):
        outputs = dict(zip(names, session.run(None, state), strict=True))
        values = outputs[roles.logits]
        batch = state[roles.token].shape
        following = values.reshape(batch[0], -1, values.shape[-1])[:, -1].argmax(-1)
        tokens.append(following)
        logits.append(values)
        feed_back(decoder, state, outputs, following)
    return np.stack(tokens), np.stack(logits)


def check(model: Path, data: Path, steps: int = STEPS) -> None:
    """Decode on 16 cores and in onnxruntime, from the same inputs."""
    if not model.exists():
        pytest.skip("needs ../shared/models/tiny")
    inputs = read_npz(data, "in/")
    decoder = compile_decoder(model, chip="test-16", inputs=inputs, steps=steps, policy="basic")
    tokens, logits = [], []
    for _ in range(steps):
        outputs = decoder.step()
        tokens.append(decoder.tokens.copy())
        logits.append(outputs[decoder.roles.logits].copy())
    expected_tokens, expected_logits = reference(model, inputs, decoder, steps)
    np.testing.assert_array_equal(np.stack(tokens), expected_tokens)
    bound = 1e-4 * np.abs(expected_logits).max()
    assert np.abs(np.stack(logits) - expected_logits).max() <= bound


@pytest.mark.parametrize("name", FAST)
def test_tokens_equal_onnxruntime(name: str) -> None:
    check(TINY / f"{name}.onnx", TINY / f"{name}.npz")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_tokens_equal_onnxruntime_everywhere(name: str) -> None:
    """All graphs that decode: caches that grow, with and without a mask input, and static ones."""
    own = TINY / f"{name}.npz"
    check(TINY / f"{name}.onnx", own if own.exists() else TINY / f"{name}_b2_p12.npz")


def test_rows_of_static_caches_reach_hbm() -> None:
    """A step writes the logits and one row of each cache, not the caches; the report says so, and
    what the caller gave is untouched."""
    inputs = read_npz(STATIC.with_suffix(".npz"), "in/")
    kept = {k: v.copy() for k, v in inputs.items()}
    decoder = compile_decoder(STATIC, chip="test-16", inputs=inputs, steps=2, policy="basic")
    assert isinstance(decoder.machine, Interpreter)
    report = decoder.program.report
    assert [s["inputs"] for s in report["states"]] == [["k_cache"], ["v_cache"]]
    row = 2 * 2 * 16 * 4
    assert [s["written_bytes"] for s in report["states"]] == [row, row]
    assert report["tokens_per_run"] == 2
    logits = decoder.step()["logits"]
    decoder.step()
    assert decoder.machine.counters.hbm_written_bytes == 2 * (logits.nbytes + 2 * row)
    assert all((inputs[k] == v).all() for k, v in kept.items())


def test_a_full_static_cache_stops_decoding() -> None:
    """The last row is written by the first step: the second has none."""
    inputs = read_npz(STATIC.with_suffix(".npz"), "in/")
    inputs["cache_position"][:] = 31
    decoder = compile_decoder(STATIC, chip="test-16", inputs=inputs, steps=2, policy="basic")
    decoder.step()
    with pytest.raises(TrapError, match=r"store to @k_out: @cache_position asks for row 32, out"):
        decoder.step()


def test_a_static_cache_takes_no_capacity() -> None:
    """--kv-capacity is of caches that grow."""
    inputs = read_npz(STATIC.with_suffix(".npz"), "in/")
    decoder = compile_decoder(
        STATIC, chip="test-16", inputs=inputs, steps=1, policy="basic", kv_capacity=64
    )
    assert [s["capacity"] for s in decoder.program.report["states"]] == [32, 32]


def test_attention_masks_what_is_not_filled_without_a_mask_input() -> None:
    name = "llama2-13b_L2_tiny_dyn_fp32_op23"
    check(TINY / f"{name}.onnx", TINY / f"{name}_b2_p12.npz", steps=4)


def test_a_cache_of_fixed_length_is_refused() -> None:
    inputs = read_npz(BUNDLED.with_suffix(".npz"), "in/")
    with pytest.raises(ElkError, match="12 entries in this graph, fixed"):
        compile_decoder(BUNDLED, chip="test-16", inputs=inputs, steps=2, policy="basic")


def test_a_full_cache_stops_decoding() -> None:
    inputs = read_npz(BUNDLED.with_suffix(".npz"), "in/")
    decoder = compile_decoder(BUNDLED, chip="test-16", inputs=inputs, steps=1, policy="basic")
    decoder.step()
    full = "(?s)holds 13 entries, the program reads at most 12.*a larger --kv-capacity"
    with pytest.raises(ElkError, match=full):
        decoder.step()


def test_too_small_a_capacity_is_refused() -> None:
    inputs = read_npz(BUNDLED.with_suffix(".npz"), "in/")
    with pytest.raises(ElkError, match="3 steps need a cache of 15 entries, the capacity is 14"):
        compile_decoder(
            BUNDLED, chip="test-16", inputs=inputs, steps=3, kv_capacity=14, policy="basic"
        )


def test_a_shorter_cache_reads_a_window_whose_end_is_filled() -> None:
    """Seven filled entries in a program compiled for twelve: attention over eight."""
    program = compile_model(BUNDLED, chip=load_chip("test-16"), policy="basic")
    inputs = read_npz(BUNDLED.with_suffix(".npz"), "in/")
    short = {k: v[:, :, :7] if k.startswith("past") else v for k, v in inputs.items()}
    states = {
        op.sym_name.data
        for op in program.target.body.block.ops
        if isinstance(op, RemoteOp) and op.kind.data is HbmKind.STATE
    }
    machine = program.interpreter(filled=dict.fromkeys(states, 7))
    outputs = machine.run(short)
    assert outputs["present.0.key"].shape == (2, 4, 8, 16)
    np.testing.assert_array_equal(
        outputs["present.0.key"][:, :, :7], short["past_key_values.0.key"]
    )
    # The same cache at full length, its oldest entries in place of what is missing, differs.
    full = program.run(inputs)
    assert np.abs(full["logits"] - outputs["logits"]).max() > 1e-3
