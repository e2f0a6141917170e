"""Attention in chunks along the batch: the numbers at every level, each chunk's bytes, decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elk_ir.chips import load_chip
from elk_ir.compiler import compile_model
from elk_ir.decode import compile_decoder
from elk_ir.dialects.icca.ops import ExecuteOp
from elk_ir.dialects.te import AttentionOp, RepeatOp
from elk_ir.errors import ElkError
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes.icca_support import sharding_of
from elk_ir.plan.buffers import Source
from elk_ir.plan.chunks import chunks_for, ranges
from elk_ir.program import Program
from elk_ir.verify import verify_levels

TINY = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"
LLAMA = "llama2-13b_L2_tiny_dyn_fp32_op23"

GRAPHS = {
    # Grouped queries, a soft cap, a sliding window in every other layer.
    "gemma2_decode_dyn_legacy": {"batch": 3, "past": 9, "total": 10},
    "granite-3b-8blike_L2_tiny_dyn_fp32_op23": {"batch": 4, "past_sequence_length": 9},
    "llama3gqa_decode_dyn_legacy": {"batch": 5, "past": 9, "total": 10},
    "opt_decode_dyn_legacy": {"batch": 3, "past": 9, "total": 10},
}
QUICK = "gemma2_decode_dyn_legacy"


def graph(name: str) -> Path:
    """A graph of the tiny ones, if they are here."""
    path = TINY / f"{name}.onnx"
    if not path.exists():
        pytest.skip("needs ../shared/models/tiny")
    return path


def compiled(chunks: int, simulate: bool = False) -> Program:
    """The Llama graph for a batch of three."""
    shapes = {k: v.shape for k, v in read_npz(TINY / f"{LLAMA}_b3_p20.npz", "in/").items()}
    return compile_model(
        graph(LLAMA),
        chip="test-16",
        policy="static",
        input_shapes=shapes,
        attention_chunks=chunks,
        simulate=simulate,
    )


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        pytest.param(name, chunks, marks=[] if (name, chunks) == (QUICK, 2) else pytest.mark.slow)
        for name in GRAPHS
        for chunks in (2, 3)
    ],
)
def test_numbers_at_every_level(name: str, chunks: int) -> None:
    """te, icca and the virtual machine agree with ONNX, parts of the batch being unequal too."""
    result = verify_levels(
        graph(name),
        chip="test-16",
        dims=GRAPHS[name],
        policy="static",
        attention_chunks=chunks,
    )
    assert "te-chunk-attention" in [c.after for c in result.checks]
    assert result.culprit is None, result.failed


def test_every_chunk_loads_its_part() -> None:
    """The layers stay one body, a chunk's preloads are boxes of its part of the batch, together
    they read what one attention reads, and the program computes what the framework did."""
    program = compiled(3)
    (loop,) = [op for op in program.module("te").walk() if isinstance(op, RepeatOp)]
    assert sum(isinstance(op, AttentionOp) for op in loop.body.block.ops) == 3
    parts: set[tuple[int, int]] = set()
    for op in program.module("icca").walk():
        if not isinstance(op, ExecuteOp) or not isinstance(op.structured, AttentionOp):
            continue
        s = sharding_of(op)
        read = {(0, 1), (1, 2), (2, 3)}
        for v in (1, 2):
            assert op.sources[v] is Source.HBM
            layout = s.preload_layout(v)
            rows = layout.bounds[layout.held][:, 0]
            read &= {(int(a), int(b)) for a, b in rows}
            assert len(np.unique(rows, axis=0)) == 1
        parts |= read
    assert parts == {(0, 1), (1, 2), (2, 3)}
    assert program.report["hbm_bytes"] == compiled(1).report["hbm_bytes"]
    given = read_npz(TINY / f"{LLAMA}_b3_p20.npz", "in/")
    expected = read_npz(TINY / f"{LLAMA}_b3_p20.npz", "out/")
    outputs = program.run(check_inputs(given, program.signature.inputs))
    for comparison in compare_outputs(outputs, expected):
        assert comparison.ok, comparison


@pytest.mark.slow
def test_decoding_does_not_change() -> None:
    """Eight tokens: chunks append to the state and read what earlier steps appended."""
    inputs = read_npz(TINY / f"{LLAMA}_b3_p20.npz", "in/")
    found = []
    for chunks in (1, 2):
        decoder = compile_decoder(
            graph(LLAMA),
            chip="test-16",
            inputs=inputs,
            steps=8,
            policy="static",
            attention_chunks=chunks,
        )
        steps = [decoder.step()[decoder.roles.logits].copy() for _ in range(8)]
        found.append((decoder.tokens.copy(), np.stack(steps)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


@pytest.mark.slow
def test_little_sram_chooses_chunks() -> None:
    """A machine that attention over the whole batch does not fit runs it in parts by itself."""
    inputs = read_npz(TINY / f"{LLAMA}_b3_p20.npz", "in/")
    shapes = {
        k: (24, v.shape[1], 200, v.shape[3]) if v.ndim == 4 else (24, *v.shape[1:])
        for k, v in inputs.items()
    }
    chip = load_chip("test-16").with_fields({"sram_per_core_bytes": 128 * 1024})
    program = {}
    for chunks in (1, None):
        try:
            program[chunks] = compile_model(
                graph(LLAMA),
                chip=chip,
                policy="static",
                input_shapes=shapes,
                attention_chunks=chunks,
                simulate=False,
            )
        except ElkError as error:
            assert "SRAM" in str(error)
    assert 1 not in program
    ops = program[None].module("te").walk()
    assert sum(isinstance(op, AttentionOp) for op in ops) > 1


def test_how_many_chunks() -> None:
    """Whole up to half of the SRAM; then the fewest equal parts of at most a third of it, as many
    as there are points at most."""
    assert chunks_for(500, 32, 1000) == 1
    assert chunks_for(501, 32, 1000) == 2
    assert chunks_for(700, 32, 1000) == 4
    assert chunks_for(700, 9, 1000) == 3
    assert chunks_for(10_000, 5, 1000) == 5
    assert chunks_for(10_000, 1, 1000) == 1
    assert ranges(7, 3) == ((0, 3), (3, 3), (6, 1))
    assert ranges(4, 9) == ((0, 1), (1, 1), (2, 1), (3, 1))


def test_no_chunks_are_refused() -> None:
    with pytest.raises(ElkError, match="attention in 0 chunks is none"):
        compiled(0)
