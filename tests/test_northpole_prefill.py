"""Prompts through a graph of their own: the caches it leaves are those of token by token."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from northpole_programs import llama

import elk_ir
from elk_ir.errors import ElkError, ModelError, UsageError
from elk_ir.numerics.tensors import read_npz
from elk_ir.quantizer import Quantization
from elk_ir.targets.northpole.compiled import NorthpoleProgram
from elk_ir.targets.northpole.prefill import Prefill

TINY = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"
HEADS = {"granite": 1, "llama3gqa": 2, "gemma2": 2, "opt": 4}
CAPACITY = 24


def shared(name: str) -> Path:
    path = TINY / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is in the shared models, which are not here")
    return path


def compiled(path: Path, scheme: str, **options) -> NorthpoleProgram:
    if scheme:
        calibration = read_npz(path.with_suffix(".npz"), "in/")
        options["quantize"] = Quantization(scheme, calibration=calibration)
    program = elk_ir.compile(path, chip="northpole-16", **options)
    assert isinstance(program, NorthpoleProgram)
    return program


@cache
def pair(model: str, scheme: str = "", cards: int = 0) -> tuple[NorthpoleProgram, NorthpoleProgram]:
    """The prompt and the decoding program of a model, for two users."""
    past = (2, HEADS[model], CAPACITY - 1, 16)
    shapes = {"input_ids": (2, 1), "position_ids": (2, 1), "attention_mask": (2, CAPACITY)} | {
        f"past_key_values.{layer}.{kind}": past for layer in range(2) for kind in ("key", "value")
    }
    return (
        compiled(shared(f"{model}_prefill_static_dynamo"), scheme),
        compiled(
            shared(f"{model}_decode_dyn_dynamo"),
            scheme,
            input_shapes=shapes,
            mapping={"cards": cards} if cards else None,
        ),
    )


def prompts(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 512, (4, length))


def of_onnxruntime(model: str, tokens: np.ndarray, steps: int) -> np.ndarray:
    """Greedy tokens: the prompt graph, then the decoding graph on what it left."""
    ort = pytest.importorskip("onnxruntime")
    first = ort.InferenceSession(str(shared(f"{model}_prefill_static_dynamo")))
    then = ort.InferenceSession(str(shared(f"{model}_decode_dyn_dynamo")))
    users, length = tokens.shape
    positions = np.broadcast_to(np.arange(length), tokens.shape)
    feeds = {"input_ids": tokens, "position_ids": np.ascontiguousarray(positions)}
    outputs = dict(zip([o.name for o in first.get_outputs()], first.run(None, feeds), strict=True))
    made = [outputs["logits"][:, -1].argmax(-1)]
    for position in range(length, length + steps - 1):
        feeds = {
            "input_ids": made[-1][:, None],
            "position_ids": np.full((users, 1), position),
            "attention_mask": np.ones((users, position + 1), np.int64),
        } | {
            name.replace("present", "past_key_values"): value
            for name, value in outputs.items()
            if name != "logits"
        }
        names = [o.name for o in then.get_outputs()]
        outputs = dict(zip(names, then.run(None, feeds), strict=True))
        made.append(outputs["logits"][:, -1].argmax(-1))
    return np.stack(made, axis=1)


def test_prompts_in_one_pass_give_the_tokens_of_onnxruntime() -> None:
    """Eight greedy tokens of four users in two micro-batches, as onnxruntime makes them of the same
    two graphs."""
    first, decoder = pair("granite")
    tokens = prompts(8)
    found = decoder.generate(tokens, 8, prefill=first)
    users = [of_onnxruntime("granite", part, 8) for part in (tokens[:2], tokens[2:])]
    assert np.array_equal(found.tokens, np.concatenate(users))
    happened = found.prefill
    assert happened is not None
    assert happened.passes == 2
    # Two users, two layers, keys and values of 8 entries of 16 fp32 numbers, in each pass.
    assert happened.handed_over_bytes == 2 * (2 * 2 * 2 * 8 * 16 * 4)
    # 7 of the 8 tokens are made by the decoder, of which the prompts took no passes.
    assert found.counters.passes == 2 * 7


@pytest.mark.parametrize("length", [5, 9])
def test_prompts_shorter_and_longer_than_the_graph(length: int) -> None:
    """Shorter ones are padded behind; of longer ones the rest passes token by token. As the cards
    do it token by token."""
    first, decoder = pair("granite")
    assert first.signature.inputs[0].shape == (2, 8)
    tokens = prompts(length)[:2]
    found = decoder.generate(tokens, 2, prefill=first)
    slowly = decoder.generate(tokens, 2)
    assert np.array_equal(found.tokens, slowly.tokens)
    assert np.abs(found.logits - slowly.logits).max() < 1e-5
    assert found.counters.passes == 1 + max(0, length - 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "scheme", "cards", "atol"),
    [
        ("llama3gqa", "", 0, 1e-5),
        ("opt", "", 0, 1e-5),
        ("gemma2", "", 3, 1e-5),
        # Quantised, the two graphs have activation and cache steps of their own.
        ("granite", "w8a8", 0, 5e-3),
        ("granite", "w4a4", 0, 2e-2),
    ],
)
def test_other_models(model: str, scheme: str, cards: int, atol: float) -> None:
    first, decoder = pair(model, scheme, cards)
    for length in (5, 8, 10):
        found = decoder.generate(prompts(length), 8, prefill=first)
        slowly = decoder.generate(prompts(length), 8)
        assert np.array_equal(found.tokens, slowly.tokens)
        assert np.abs(found.logits - slowly.logits).max() < atol


def joined(model: str = "granite", room: int = 1 << 20) -> Prefill:
    """Prompt and decoding appliance of a model, ready."""
    first, decoder = pair(model)
    return Prefill(
        first, first.appliance(micro_batches=1), decoder.appliance(micro_batches=1), room
    )


def test_both_programs_multiply_with_one_copy() -> None:
    ready = joined()
    for stage, other in zip(ready.prompts.stages, ready.decoder.stages, strict=True):
        kept = {id(s.data) for s in other.weights.values()}
        assert stage.products
        assert all(id(stage.weights[key].data) in kept for key in stage.products)
    assert ready.counters.shared_weight_bytes > 400_000
    assert 0 < ready.counters.extra_core_bytes < 1000


def test_what_does_not_go_together() -> None:
    """On the bundled decoder, which is its own prompt graph of one token where its caches are no
    inputs."""
    decoder = llama()
    asked = tuple(s for s in decoder.signature.inputs if not s.name.startswith("past"))
    first = copy(decoder)
    first.signature = replace(decoder.signature, inputs=asked)
    passing, appliance = decoder.appliance(micro_batches=1), decoder.appliance(micro_batches=1)

    def refused(message: str, room: int = 1 << 20, program: NorthpoleProgram = first) -> None:
        with pytest.raises(ElkError, match=message):
            Prefill(program, passing, appliance, room)

    assert Prefill(first, passing, appliance, 0).counters.extra_core_bytes == 0
    refused("not known what input 'past_key_values.0.key' of the prompt graph", program=decoder)
    passing.batch = 3
    refused("the prompt graph takes 3 users a pass, decoding 2")
    passing.batch = 2
    home = passing.stages[1].cards
    passing.stages[1].cards = (5,)
    refused(
        r"(?s)'present.1.key' is made on card 5 and kept on card 1: prompts .* the same --cards"
    )
    passing.stages[1].cards = home
    passing.stages[2].cards = (6,)
    refused(r"(?s)is on card 6, no stage of the decoder is on the same cards.* the same --cards")
    passing.stages[2].cards = (2,)
    key = sorted(passing.stages[0].products, key=str)[0]
    own = passing.stages[0].weights[key]
    passing.stages[0].weights[key] = replace(own, data=own.data + 1)
    refused(r"multiplies with '.*' \([\d,]+ bytes on card 0\), and the decoder holds no such")
    passing.stages[0].products.remove(key)
    refused(r"keeps [\d,]+ bytes more on a core, 5 are left \([\d,]+ too many\)", room=5)
    passing.stages[1]._states.clear()
    refused("the prompt graph does not make 'present.1.key', which the decoder keeps")
    for stage in appliance.stages:
        stage._states.clear()
    refused("the decoder keeps no cache for prompts to fill")


def test_tokens_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = joined()
    with pytest.raises(UsageError, match="9 prompt tokens, a pass takes 1 to 8"):
        ready.put(0, prompts(9)[:2])
    ready.put(0, prompts(8)[:2])
    outputs = ready.prompts.get(0)
    last = outputs | {"logits": outputs["logits"][:, -1:]}
    monkeypatch.setattr(ready.prompts, "get", lambda micro_batch: last)
    assert np.array_equal(ready.hand_over(0, 8), outputs["logits"][:, -1])
    with pytest.raises(ModelError, match="logits of 1 of its 8 tokens, those after token 5"):
        ready.hand_over(0, 5)
