"""Step sizes, integer types, schemes and the recipes that quantise weights."""

from __future__ import annotations

import numpy as np
import pytest

from elk_ir.errors import ElkError, ModelError
from elk_ir.frontend.weights import apply_recipe, infer_recipe
from elk_ir.quant.integers import integer_range, quantize_array
from elk_ir.quant.scheme import parse_scheme
from elk_ir.quant.statistics import Samples, unit_step
from elk_ir.quant.steps import fit_step, fit_steps

TYPES = ["int8", "int4", "int2", "uint8", "uint4", "uint2"]


def error(x: np.ndarray, step: float, dtype: str) -> float:
    """Squared error of quantising `x`, in float64."""
    low, high = integer_range(dtype)
    return float(((np.clip(np.round(x / step), low, high) * step - x) ** 2).sum())


def sample(seed: int, dtype: str, n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-4, 3)
    x[: n // 50] *= 8  # outliers
    return np.abs(x) if dtype.startswith("u") else x


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(2))
def test_a_fitted_step_is_near_the_best_of_a_dense_grid(dtype: str, seed: int) -> None:
    x = sample(seed, dtype)
    top = np.abs(x).max()
    grid = np.geomspace(top / 2000, 4 * top, 3000)
    best = min(error(x, s, dtype) for s in grid)
    assert error(x, fit_step(x, dtype), dtype) <= 1.05 * best
    # Covering the largest number, as min-max calibration does, is never better.
    assert error(x, fit_step(x, dtype), dtype) <= error(x, top / integer_range(dtype)[1], dtype)


@pytest.mark.parametrize("dtype", ["int8", "int4", "int2"])
def test_a_step_is_where_its_gradient_is_zero(dtype: str) -> None:
    # d/ds |x - s q|² = 0 at s = <x, q> / <q, q>: a further step of the iteration hardly moves it.
    x = sample(7, dtype)
    step = fit_step(x, dtype)
    q = np.clip(np.round(x / step), *integer_range(dtype))
    assert (x @ q) / (q @ q) == pytest.approx(step, rel=0.02)


def test_rows_are_fitted_each_on_its_own_and_zeros_have_step_one() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, 50)).astype(np.float32) * np.geomspace(1e-6, 1e6, 64)[:, None]
    rows[5] = 0
    steps = fit_steps(rows, "int4")
    assert steps[5] == 1
    for i in (0, 17, 63):
        assert fit_steps(rows[i : i + 1], "int4")[0] == steps[i]
    # An exactly representable row is reproduced without an error.
    exact = np.arange(-8, 8, dtype=np.float32)[None] * np.float32(0.125)
    assert fit_steps(exact, "int4")[0] == np.float32(0.125)


def test_numbers_that_are_not_normal_still_get_a_positive_step() -> None:
    rows = np.full((2, 8), 1e-44, np.float32)
    assert (fit_steps(rows, "int8") > 0).all()
    assert np.isfinite(fit_steps(np.full((1, 8), 3e38, np.float32), "int4")).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_quantisation_rounds_half_to_even_and_saturates(dtype: str) -> None:
    low, high = integer_range(dtype)
    x = np.array([0.5, 1.5, -0.5, 1e9, -1e9])
    expected = [min(0, high), min(2, high), 0, high, low]
    assert quantize_array(x, 1.0, dtype).astype(int).tolist() == expected


def test_recipes_quantise_at_load() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal((6, 10)).astype(np.float32) for _ in range(2)]
    typed = [("f32", (6, 10))] * 2
    assert infer_recipe(typed, ["transpose 1 0", "quantize i4 1", "stack"]) == ("i4", (2, 10, 6))
    assert infer_recipe(typed, ["transpose 1 0", "steps i4 1", "stack"]) == ("f32", (2, 6))
    assert infer_recipe(typed[:1], ["steps i8"]) == ("f32", (1,))
    q = apply_recipe(parts, ["transpose 1 0", "quantize i4 1", "stack"]).astype(np.float32)
    s = apply_recipe(parts, ["transpose 1 0", "steps i4 1", "stack"])
    w = np.stack([p.T for p in parts])
    assert (q == np.clip(np.round(w / s[:, None, :]), -8, 7)).all()
    # The same numbers whether layers are stacked before or after.
    assert (apply_recipe(parts, ["transpose 1 0", "stack", "steps i4 0 2"]) == s).all()
    for bad in ("quantize f32 1", "quantize i4 2", "quantize i4 1 0", "steps i32"):
        with pytest.raises(ModelError, match="does not apply"):
            infer_recipe(typed[:1], [bad])


def test_schemes() -> None:
    w4a4 = parse_scheme("w4a4")
    assert (w4a4.weight_bits, w4a4.activation_bits, w4a4.kv_bits) == (4, 4, 4)
    assert (w4a4.output_bits, w4a4.silu_bits) == (8, 8)
    assert parse_scheme("w2a8").kv_bits == 8
    assert parse_scheme("w4a16").weights_only
    assert parse_scheme("w4a4", output=4, kv=8).kv_bits == 8
    stored = parse_scheme("w8a16kv8")
    assert (stored.name, stored.stored_kv, stored.weight_type(8)) == ("w8a16kv8", "int8", "int8")
    assert parse_scheme("w8a16", kv=8) == stored
    floats = parse_scheme("wf8a16kvf8")
    assert (floats.name, floats.stored_kv) == ("wf8a16kvf8", "float8_e4m3fn")
    assert parse_scheme("w8a8kv4").stored_kv is None and parse_scheme("w8a8kv4").kv_bits == 4
    for bad in ("", "w4", "a4", "w16a4", "w4a5", "W4A4", "w4a4 "):
        with pytest.raises(ElkError, match="unknown quantisation scheme"):
            parse_scheme(bad)


def test_samples_of_layers_are_kept_apart() -> None:
    samples = Samples()
    samples.add("x", 0, np.linspace(-1, 1, 100))
    samples.add("x", 1, np.linspace(-4, 4, 1 << 17))
    samples.add("x", 0, np.linspace(-1, 1, 50))
    one, four = samples.steps("x", 2, "int8")
    assert four == pytest.approx(4 * one, rel=0.05)
    assert 0.2 < unit_step("int4") < 0.4
    assert unit_step("uint4") == pytest.approx(1 / 15)
