"""Weights that do not fit: recipes, files and parts that are refused, each with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from elk_ir.errors import ModelError
from elk_ir.frontend.weights import (
    WeightPart,
    apply_recipe,
    infer_recipe,
    load_part,
    resolve_file,
)

A = ("f32", (2, 3))


@pytest.mark.parametrize(
    ("parts", "step", "message"),
    [
        ([A, A, A], "stack 2", "3 tensors do not split into groups of 2"),
        ([A, A], "stack 0", "2 tensors do not split into groups of 0"),
        ([A, ("f16", (2, 3))], "stack", "parts differ in element type"),
        ([A, ("f16", (2, 3))], "concat 0", "parts differ in element type"),
        ([A, ("f32", (3, 2))], "stack", "shapes differ: [(2, 3), (3, 2)]"),
        ([A, ("f32", (2, 4))], "concat 0", "shapes differ outside the axis"),
        ([A, A], "concat 2", "axis 2 of rank 2"),
        ([A], "transpose 0 0", "[0, 0] is no permutation of rank 2"),
        ([A], "reshape 7", "(2, 3) to (7,)"),
        ([A], "saturate f32", "floats as f32"),
        ([A], "slice 2 0 1 1", "slice of (2, 3)"),
        ([A], "quantize i32 0", "quantisation to i32"),
        ([A], "quantize f16 0", "quantisation to f16"),
        ([A], "quantize i1 0", "quantisation to i1"),
        ([A], "reshape -2 -3", "(2, 3) to (-2, -3)"),
        ([A], "quantize i8 1 0", "axes [1, 0] of rank 2"),
        ([A], "shuffle", "unknown step"),
    ],
)
def test_a_step_that_does_not_apply(
    parts: list[tuple[str, tuple[int, ...]]], step: str, message: str
) -> None:
    wanted = f"weight recipe step {step!r} does not apply: {message}"
    with pytest.raises(ModelError, match=re.escape(wanted)):
        infer_recipe(parts, [step])


def test_recipes_are_checked_where_they_are_applied() -> None:
    with pytest.raises(ModelError, match="recipe step 'shuffle' is unknown"):
        apply_recipe([np.zeros(2, np.float32)], ["shuffle 1"])
    with pytest.raises(ModelError, match="weight recipe leaves 2 tensors; expected 1"):
        infer_recipe([A, A], [])


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'w\\x00' has a name that no file can have"):
        resolve_file("w\0", tmp_path)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (("", 0, 8), "'w' are missing: the model was made without them"),
        (("none", 0, 8), "'w' are missing: no file 'none' beside the model"),
        (("w.bin", 4, 8), "'w' need bytes 4 to 12 of 'w.bin', which has 8"),
        (("w.bin", 0, 4), "'w' are 4 bytes in 'w.bin', but f32 of shape [2] takes 8"),
    ],
)
def test_a_part_that_is_not_there(part: tuple[str, int, int], message: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))
    file, offset, length = part
    with pytest.raises(ModelError, match=re.escape(message)):
        load_part(WeightPart(file, offset, length, "", "f32", (2,), "w"), tmp_path)


def test_a_part_that_has_changed(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))
    part = WeightPart("w.bin", 0, 8, "0" * 16, "f32", (2,), "w")
    with pytest.raises(ModelError, match="are not those that were imported"):
        load_part(part, tmp_path)
