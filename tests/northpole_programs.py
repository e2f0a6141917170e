"""Programs of cards that several tests share, each compiled once in a process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import elk_ir
from elk_ir.chips import Chip, load_chip
from elk_ir.targets.northpole.compiled import NorthpoleProgram

MODELS = Path(__file__).parent / "models"
SHARED = Path(__file__).parent.parent.parent / "shared" / "models"
GRANITE = SHARED / "full" / "granite-3b-8blike_L14_b2_s1_kv2048_fp16.onnx"
LLAMA = MODELS / "llama2_decode_static_dynamo.onnx"
SMALL = SHARED / "tiny" / "granite-3b-8blike_L2_tiny_dyn_fp32_op23.onnx"


def shared(path: Path) -> Path:
    """`path`, or the test is skipped."""
    if not path.exists():
        pytest.skip(f"{path.name} is in the shared models, which are not here")
    return path


def compiled(path: Path, chip: str | Chip = "northpole-16", **options) -> NorthpoleProgram:
    """A model for cards."""
    program = elk_ir.compile(path, chip=chip, **options)
    assert isinstance(program, NorthpoleProgram)
    return program


@cache
def decoder(batch: int = 2, past: int = 11) -> NorthpoleProgram:
    """The tiny Granite, without a mask."""
    return compiled(shared(SMALL), dims={"batch": batch, "past_sequence_length": past})


@cache
def llama() -> NorthpoleProgram:
    """The tiny Llama-2 with a cache of fixed length."""
    return compiled(LLAMA)


@cache
def published() -> NorthpoleProgram:
    """The published 3B model: weightless."""
    return compiled(shared(GRANITE))


def shrunk(core_bytes: int, cards: int = 16) -> Chip:
    """Cards whose cores keep `core_bytes`; what they work with beside that is not scarce."""
    chip = load_chip("northpole-16")
    return replace(
        chip,
        chips=cards,
        sram_per_core_bytes=core_bytes + 1_000_000,
        reserved_per_core_bytes=1_000_000,
    )
