"""A small program with zero points, a quantised cache and four-bit factors, at every level."""

from __future__ import annotations

from pathlib import Path

import integer_reference as reference
import numpy as np
import pytest
from cpp_program import check_program, needs_compiler
from helpers import lower, parse, planned, program, run, run_passes

from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.te import ContractOp
from elk_ir.numerics.te_eval import evaluate_te

TEXT = program("quantized")


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 2, 5, 9), "new": (2, 1, 9), "past": (2, 4, 9)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def on_te() -> dict[str, np.ndarray]:
    """te's numbers, each product checked against the reference."""
    products = 0

    def observe(op: object, _: int, values: dict) -> None:
        nonlocal products
        if isinstance(op, ContractOp):
            (wanted,) = reference.product(op, [values[v] for v in op.ins])
            np.testing.assert_array_equal(values[op.outs[0]], wanted)
            products += 1

    result = evaluate_te(parse(TEXT), inputs(), load_weight=lambda _: np.zeros(0), observe=observe)
    assert products == 2
    return result


def test_padding_reads_the_zero_point() -> None:
    # Written out: the padded image of (q - zero) in plain integers.
    y, x = on_te()["y"], inputs()["x"]
    q = np.clip(np.round(x / np.float32(0.02)) + 117, 0, 255).astype(np.int64) - 117
    padded = np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1)))
    table = {op.sym_name.data: op for op in parse(TEXT).ops if hasattr(op, "sym_name")}
    w = array_from_dense(table["w"].value).astype(np.int64)
    s = array_from_dense(table["s"].value)
    acc = np.zeros((2, 3, 5, 9), np.int64)
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + 5, j : j + 9]
            acc += np.einsum("ncyx,oc->noyx", window, w[:, :, i, j])
    wanted = acc.astype(np.float32) * s[:, None, None] * np.float32(0.02)
    np.testing.assert_array_equal(y, wanted)


def test_the_cache_holds_integers_and_shows_numbers() -> None:
    given, result = inputs(), on_te()
    whole = np.concatenate([given["past"], given["new"]], axis=1)
    wanted = np.clip(np.round(whole / np.float32(0.25)), -8, 7) * np.float32(0.25)
    np.testing.assert_array_equal(result["present"], wanted)


def test_cores_compute_the_same_integers() -> None:
    wanted = on_te()
    for schedule in ("", "icca-schedule{policy=static}", "icca-schedule{policy=basic}"):
        if schedule:
            module = parse(TEXT)
            run_passes(module, f"convert-te-to-icca{{chip=test-16}},{schedule}")
        else:
            module = planned(TEXT)
        got = run(lower(module), inputs()).outputs
        for name, value in wanted.items():
            filled = tuple(slice(0, n) for n in value.shape)
            np.testing.assert_array_equal(got[name][filled], value)


@pytest.mark.slow
@needs_compiler
def test_the_emitted_program_computes_the_same_integers(tmp_path: Path) -> None:
    check_program(lower(planned(TEXT)), inputs(), tmp_path, tolerance=0)
