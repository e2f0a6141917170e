"""Operators of `com.microsoft` against onnxruntime, on models built here."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from test_misfits import other_shapes

from elk_ir.backend import prepare
from elk_ir.compiler import context, run_passes
from elk_ir.errors import ElkError
from elk_ir.frontend.importer import import_model
from elk_ir.frontend.weights import load_weight
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass

RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    """One operator: inputs by position (None: absent), which of them are initializers, how many
    rows of axis 2 of the caches among the results are defined (None: all)."""

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constants: Sequence[int] = ()
    filled: Sequence[int] | None = None
    domain: str = "com.microsoft"
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op} {self.label}".strip()


def f(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Normal numbers."""
    return RNG.standard_normal(shape).astype(dtype)


def ints(*values: int, dtype: str = "int32") -> np.ndarray:
    """A list of integers."""
    return np.array(values, dtype)


def angles(rows: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables of cosines and sines."""
    angle = np.arange(rows)[:, None] / 10 ** (np.arange(half) / half)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def nbits(k: int, n: int, block: int, zero: bool, bits: int = 4) -> list[np.ndarray | None]:
    """Operands of a product with packed weights."""
    blocks = -(-k // block)
    packed = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = (RNG.random(n * blocks) + 0.5).astype(np.float32)
    zeros = RNG.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
    return [f(3, k), packed, scales, zeros if zero else None]


def cache(*, past: int, lengths: Sequence[int], **attributes: Any) -> Case:
    """Grouped attention of 4 query heads on 2 KV heads of 16, one new row, to a filled cache."""
    batch = len(lengths)
    inputs = [f(batch, 1, 64), f(batch, 1, 32), f(batch, 1, 32)]
    inputs += [f(batch, 2, past, 16), f(batch, 2, past, 16)]
    inputs += [ints(*(n - 1 for n in lengths)), np.array(past + 1, np.int32)]
    if attributes.get("do_rotary"):
        inputs += angles(32, 8)
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    label = f"past {past} lengths {list(lengths)} {sorted(attributes)[:1]}"
    return Case(
        "GroupQueryAttention", inputs, attributes, 3, constants=(6,), filled=lengths, label=label
    )


def prompt(**attributes: Any) -> Case:
    """Grouped attention of a first prompt of 5 rows, packed."""
    inputs = [f(2, 5, 128), None, None, None, None, ints(4, 4), np.array(5, np.int32)]
    inputs += angles(32, 8)
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return Case("GroupQueryAttention", inputs, attributes, constants=(6,), label="prompt")


def lstm(
    directions: int, kind: str, columns: bool, extras: bool, *, lengths: bool = False, **more: Any
) -> Case:
    """An LSTM of 3 steps, 2 sequences, 5 inputs, 4 hidden, whose weights are 8-bit integers."""
    # Seven bits: where a machine lacks 8-bit dot products, onnxruntime's sums of two products of
    # int8 by uint8 saturate at 16 bits.
    low, high = (0, 256) if kind == "uint8" else (-64, 64)

    def weight(rows: int) -> np.ndarray:
        return RNG.integers(low, high, (directions, rows, 16), kind)

    shape = (directions, 16) if columns else (directions,)
    inputs: list[np.ndarray | None] = [f(3, 2, 5), weight(5), weight(4)]
    inputs += [f(directions, 32), ints(3, 2) if lengths else None]
    inputs += (
        [f(directions, 2, 4), f(directions, 2, 4), f(directions, 12)] if extras else [None] * 3
    )
    for _ in range(2):
        zero = np.full(shape, 128 if kind == "uint8" else 0, kind)
        inputs += [((RNG.random(shape) + 0.5) / 127).astype(np.float32), zero]
    names = {1: "forward", 2: "bidirectional"}
    attributes = {"hidden_size": 4, "direction": names[directions], **more}
    label = f"{attributes['direction']} {kind} {'columns' if columns else 'tensor'}"
    return Case("DynamicQuantizeLSTM", inputs, attributes, 3, (1, 2, 8, 9, 10, 11), label=label)


HEADS = {"num_heads": 4}
CASES = [
    Case("FastGelu", [f(3, 8)]),
    Case("FastGelu", [f(3, 8), f(8)], label="bias"),
    Case("BiasGelu", [f(3, 8), f(8)]),
    Case("Gelu", [f(3, 8)]),
    Case("QuickGelu", [f(3, 8)], {"alpha": 1.5}),
    Case("FusedMatMul", [f(2, 3, 4), f(2, 4, 5)], {"alpha": 0.5}),
    Case("FusedMatMul", [f(1, 3, 4), f(2, 4, 5)], label="broadcast"),
    Case("FusedMatMul", [f(2, 4, 3), f(5, 4)], {"transA": 1, "transB": 1}, label="transposed"),
    Case("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"epsilon": 1e-5}, domain=""),
    Case("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8)], {"epsilon": 1e-5}),
    Case(
        "SkipSimplifiedLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8), f(8), f(8)],
        {"epsilon": 1e-5},
        outputs=4,
        label="bias and sum",
    ),
    Case("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], {"epsilon": 1e-5}),
    Case("MatMulNBits", nbits(64, 8, 32, False), {"K": 64, "N": 8, "block_size": 32, "bits": 4}),
    Case(
        "MatMulNBits",
        nbits(80, 6, 16, True),
        {"K": 80, "N": 6, "block_size": 16, "bits": 4},
        constants=(1, 2, 3),
        label="zero points",
    ),
    *(
        Case(
            "MatMulNBits",
            nbits(64, 8, 32, zero, bits),
            {"K": 64, "N": 8, "block_size": 32, "bits": bits},
            constants=(1, 2, 3) if zero else (1, 2),
            label=f"{bits} bits{' zero points' if zero else ''}",
        )
        for bits in (2, 8)
        for zero in (False, True)
    ),
    Case(
        "RotaryEmbedding",
        [f(2, 5, 64), ints(3, dtype="int64"), *angles(32, 8)],
        HEADS,
        label="offset",
    ),
    Case(
        "RotaryEmbedding",
        [f(2, 4, 5, 16), RNG.integers(0, 9, (2, 5)), *angles(32, 8)],
        {"interleaved": 1},
        label="interleaved",
    ),
    Case("MultiHeadAttention", [f(2, 3, 32), f(2, 6, 32), f(2, 6, 32)], HEADS),
    Case(
        "MultiHeadAttention",
        [f(2, 3, 32), f(2, 3, 32), f(2, 3, 32), f(96), None, f(1, 4, 3, 3)],
        {**HEADS, "unidirectional": 1, "scale": 0.3},
        label="bias, causal, additive",
    ),
    Case(
        "MultiHeadAttention",
        [f(2, 3, 32), f(2, 4, 32), f(2, 4, 32), None, ints(1, 1, 0, 0, 1, 1, 1, 1).reshape(2, 4)],
        HEADS,
        label="padding",
    ),
    Case(
        "MultiHeadAttention",
        [f(2, 1, 32), f(2, 1, 32), f(2, 1, 32), None, None, None, f(2, 4, 5, 8), f(2, 4, 5, 8)],
        HEADS,
        outputs=3,
        label="past",
    ),
    Case("Attention", [f(2, 5, 16), f(16, 48), f(48)], {"num_heads": 2}),
    Case(
        "Attention",
        [f(2, 5, 16), f(16, 48), f(48), ints(5, 3)],
        {"num_heads": 4, "unidirectional": 1, "scale": 0.3},
        label="lengths, causal",
    ),
    Case(
        "Attention",
        [f(2, 3, 16), f(16, 48), f(48), None, f(2, 2, 4, 6, 4)],
        {"num_heads": 4, "unidirectional": 1},
        outputs=2,
        label="past",
    ),
    Case(
        "Attention",
        [f(2, 3, 16), f(16, 48), f(48), None, None, f(2, 4, 3, 3)],
        {"num_heads": 4},
        label="additive",
    ),
    Case(
        "Attention",
        [f(2, 5, 16), f(16, 40), f(40), RNG.integers(0, 2, (2, 5)).astype(np.int32) | ints(1)],
        {"num_heads": 2, "qkv_hidden_sizes": [16, 16, 8]},
        constants=(1, 2),
        label="sizes, padding",
    ),
    Case(
        "DynamicQuantizeMatMul",
        [f(2, 3, 16), RNG.integers(-64, 64, (16, 8)).astype(np.int8), f(8), None, f(8)],
        constants=(1, 2, 4),
        label="columns, bias",
    ),
    Case(
        "DynamicQuantizeMatMul",
        [f(5, 16), ints(*range(128), dtype="uint8").reshape(16, 8), f(1), ints(7, dtype="uint8")],
        constants=(1, 2, 3),
    ),
    Case(
        "MatMulIntegerToFloat",
        [
            ints(*range(48), dtype="uint8").reshape(3, 16),
            RNG.integers(-64, 64, (16, 8)).astype(np.int8),
            f(1),
            f(8),
            ints(9, dtype="uint8"),
            RNG.integers(-5, 5, 8).astype(np.int8),
            f(8),
        ],
    ),
    lstm(1, "int8", False, False),
    lstm(1, "int8", True, False, direction="reverse", input_forget=1),
    lstm(2, "uint8", False, True, clip=0.9),
    prompt(),
    prompt(do_rotary=1),
    prompt(local_window_size=2, softcap=2.0),
    cache(past=6, lengths=[7, 7]),
    cache(past=6, lengths=[7, 4], do_rotary=1),
    cache(past=6, lengths=[7, 7], do_rotary=1, rotary_interleaved=1, scale=0.2),
]


def model_of(case: Case) -> tuple[Any, dict[str, np.ndarray]]:
    """The model and what its inputs are given."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(case.inputs)]
    feed = {n: a for n, a in zip(names, case.inputs, strict=True) if a is not None}
    fixed = {f"x{i}" for i in case.constants}
    outputs = [f"y{i}" for i in range(case.outputs)]
    if case.op.startswith("SkipS") and case.outputs == 4:
        outputs[1] = outputs[2] = ""
    node = helper.make_node(
        case.op, names, outputs, name="the node", domain=case.domain, **case.attributes
    )
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
        if n not in fixed
    ]
    graph = helper.make_graph(
        [node],
        "g",
        infos,
        [helper.make_tensor_value_info(o, 1, None) for o in outputs if o],
        [numpy_helper.from_array(feed[n], n) for n in sorted(fixed)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {n: a for n, a in feed.items() if n not in fixed}


def expected(model: Any, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """onnxruntime's results."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))


def agree(case: Case, got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal to 1e-4 of the largest element, where the result is defined."""
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    for i in range(len(wanted) if case.filled is not None and wanted.ndim == 4 else 0):
        assert case.filled is not None
        got, wanted = got.copy(), wanted.copy()
        got[i, :, case.filled[i] :] = wanted[i, :, case.filled[i] :] = 0
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowering(case: Case) -> None:
    """The numbers of onnxruntime, from the te level."""
    model, feed, got = numbers_of(case)
    for name, wanted in expected(model, feed).items():
        agree(case, got[name], wanted)


@pytest.mark.parametrize(
    "op", ["MatMulNBits", "GroupQueryAttention", "DynamicQuantizeLSTM", "Attention"]
)
def test_on_the_machine(op: str) -> None:
    """The same, compiled for 16 cores and run on the virtual machine."""
    case = next(c for c in reversed(CASES) if c.op == op)
    model, feed = model_of(case)
    results = prepare(model, "ELK:test-16", policy="basic").run(feed)
    for got, wanted in zip(results, expected(model, feed).values(), strict=True):
        agree(case, got, wanted)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("MultiHeadAttention", [f(2, 3, 4, 3, 8)], HEADS), "packed"),
        (
            Case("FusedMatMul", [f(2, 3, 4), f(2, 4, 5)], {"transBatchA": 1}),
            "transposed batches",
        ),
        (lstm(1, "int8", False, False, lengths=True), "different lengths"),
    ],
    ids=str,
)
def test_refused(case: Case, message: str) -> None:
    """What is not supported is an error that names the node, not a wrong number."""
    model, feed = model_of(case)
    for info in model.graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, 1, [2, 3, 5]))
    with pytest.raises(ElkError, match=message) as raised:
        prepare(model, "ELK:test-16", host=False).run(feed)
    assert "the node" in str(raised.value)


# ---------------------------------------------------------------------- what does not fit


def changed(case: Case, number: int, trials: int) -> Iterator[Case]:
    """The case with the shape of one operand changed, or one of its numbers."""
    found = [
        replace(case, inputs=[*case.inputs[:i], resized(x, shape), *case.inputs[i + 1 :]])
        for i, x in enumerate(case.inputs)
        if x is not None
        for shape in other_shapes(x.shape)
        if min(shape, default=1) > 0
    ]
    for name, value in case.attributes.items():
        others = (-1, 0, 3, 100) if isinstance(value, int) else ()
        found += [replace(case, attributes={**case.attributes, name: n}) for n in others]
    random.Random(number).shuffle(found)
    yield from found[:trials]


def resized(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The elements, again and again, in another shape."""
    return np.resize(array.reshape(-1), tuple(shape)).astype(array.dtype)


def numbers_of(case: Case) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model, its inputs and what te makes of them."""
    model, feed = model_of(case)
    data = model.SerializeToString()
    module = import_model(data, name="model.onnx")
    run_passes(context(), module, [ConvertOnnxToTePass()], model="model.onnx")
    given = {"model.onnx": data}
    got = evaluate_te(
        module, feed, load_weight=lambda a: load_weight(a.to_ref(), ".", buffers=given)
    )
    return model, feed, got


def check_changed(cases: Sequence[Case], trials: int) -> int:
    """Each change is refused with a message, or the numbers are onnxruntime's if it takes it; how
    many were not refused."""
    accepted = 0
    for number, case in enumerate(cases):
        for other in changed(case, number, trials):
            try:
                model, feed, got = numbers_of(other)
            except ElkError as error:
                assert "the node" in str(error) or "rank" in str(error), str(error)
                continue
            accepted += 1
            try:
                results = expected(model, feed)
            except Exception:  # onnxruntime has no class of its own for what it refuses
                continue
            for name, wanted in results.items():
                if case.filled is None:
                    agree(other, got[name], wanted)
    return accepted


def test_operands_that_do_not_fit() -> None:
    assert check_changed(CASES, 4) > 10


@pytest.mark.slow
def test_many_operands_that_do_not_fit() -> None:
    assert check_changed(CASES, 30) > 100


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case("BiasGelu", [f(3, 8), f(7)]),
            "operand 1 has shape [7] instead of [8]",
        ),
        (
            Case("FusedMatMul", [f(2, 3, 4), f(2, 5, 5)]),
            "factors of shapes [2, 3, 4] and [2, 5, 5]",
        ),
        (
            Case("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(7)]),
            "operand 2 has shape [7] instead of [8]",
        ),
        (
            Case("MatMulNBits", nbits(64, 8, 32, False), {"K": 64, "N": 8, "block_size": 0}),
            "block_size = 0: it is one or more",
        ),
        (
            Case("MatMulNBits", nbits(64, 8, 32, False), {"K": 65, "N": 8, "block_size": 32}),
            "data of shape [3, 64] for K = 65",
        ),
        (
            Case("MultiHeadAttention", [f(2, 3, 32), f(3, 6, 32), f(2, 6, 32)], {"num_heads": 4}),
            "operand 1 has shape [3, 6, 32] instead of [2, r, 32] or [2, 4, r, 8]",
        ),
        (
            Case("MultiHeadAttention", [f(2, 3, 30), f(2, 6, 30), f(2, 6, 30)], {"num_heads": 4}),
            "30 elements of the heads can't be divided by 4",
        ),
        (
            Case("Attention", [f(2, 5, 16), f(16, 48), f(49)], {"num_heads": 4}),
            "operand 2 has shape [49] instead of [48]",
        ),
        (
            Case(
                "Attention",
                [f(2, 5, 16), f(16, 48), f(48)],
                {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 20]},
            ),
            "qkv_hidden_sizes = [16, 16, 20] of 48",
        ),
        (
            Case(
                "GroupQueryAttention",
                [f(2, 1, 48), f(2, 1, 32), f(2, 1, 32), None, None, ints(0, 0), ints(1)],
                {"num_heads": 3, "kv_num_heads": 2},
            ),
            "3 query heads can't be divided by 2",
        ),
        (
            Case("RotaryEmbedding", [f(2, 4, 5, 15), ints(0), *angles(32, 8)]),
            "heads of 15 turned by 8 angles",
        ),
        (
            Case(
                "RotaryEmbedding",
                [f(2, 5, 64), ints(0), *angles(32, 8)],
                {"rotary_embedding_dim": 8, "num_heads": 4},
            ),
            "4 heads, 8 of each turned by 8 angles",
        ),
        (
            replace(lstm(1, "int8", False, False), attributes={"hidden_size": 5}),
            "hidden_size = 5, but R has 4",
        ),
    ],
    ids=str,
)
def test_messages_of_what_does_not_fit(case: Case, message: str) -> None:
    with pytest.raises(ElkError, match=re.escape(message)):
        numbers_of(case)
