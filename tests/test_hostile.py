"""Malformed files of every kind: no traceback, no hang, no stray file, bounded memory.

`python -m hostile` has the whole corpus with a table (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from hostile import file_inputs, onnx_inputs, text_inputs
from hostile.__main__ import cases, run_all
from hostile.harness import Hostile, problem_of

MEMORY_BYTES = 2 << 30

# What was not refused, or not in time, until the compiler was changed.
FOUND = {
    "onnx/changed: weight type 99",
    "onnx/changed: a function that calls itself",
    "onnx/changed: functions that call each other",
    "onnx/external with a zero at 0 length None",
    "onnx/bomb Expand 1048576",
    "onnx/bomb Tile 1048576",
    "onnx/a thousand dimensions",
    "chip/extends /dev/zero",
    "mlir/slice mutated 20",
    "mlir/dialects/onnx/ops mutated 1",
    "mlir/tensor 9999999999999999x999",
    "mlir/tensor 2x2x2x2x2x2x2x2x2x2x",
}


def problems(chosen: Iterable[Hostile], folder: Path) -> dict[str, str]:
    """What is wrong with how each case ends, by its name."""
    found = {}
    for i, case in enumerate(chosen):
        inside = folder / str(i)
        inside.mkdir()
        if (problem := problem_of(case, inside)) is not None:
            found[case.name] = problem
    return found


def test_defects_that_were_found(tmp_path: Path) -> None:
    chosen = [c for c in chain(onnx_inputs.cases(), text_inputs.cases()) if c.name in FOUND]
    assert {c.name for c in chosen} == FOUND
    assert not problems(chosen, tmp_path)


def test_sample(tmp_path: Path) -> None:
    text = list(text_inputs.cases())[::60]
    files = list(file_inputs.archives())[::12]
    assert not problems([*text, *files], tmp_path)


@pytest.mark.slow
def test_everything() -> None:
    rows, defects = run_all(cases())
    assert not defects
    assert sum(sum(row.counts.values()) for row in rows.values()) > 2000
    assert max(row.largest[0] for row in rows.values()) < MEMORY_BYTES
