"""convert-linalg-to-te computes what the regions say, and the operations that xDSL lacks parse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.parser import Parser

from elk_ir.compiler import context, run_passes
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_linalg_to_te import ConvertLinalgToTePass
from elk_ir.weight_source import WeightSource

Fn = Callable[..., np.ndarray]


def run(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of the only function of a linalg module."""
    ctx = context()
    module = Parser(ctx, text).parse_module()
    run_passes(ctx, module, [ConvertLinalgToTePass()], model="test")
    inputs = {f"i{i}": a for i, a in enumerate(arrays)}
    return list(evaluate_te(module, inputs, load_weight=WeightSource(None).load).values())


def pointwise(lines: str, operands: str, result: str, elements: str = "8") -> str:
    """A function that applies scalar operations, the last of which defines %r, at every element."""
    kinds = operands.split()
    arguments = ", ".join(
        f'%t{i}: tensor<{elements}x{k}> {{onnx.name = "i{i}"}}' for i, k in enumerate(kinds)
    )
    ins = ", ".join(f"%t{i}" for i in range(len(kinds)))
    types = ", ".join(f"tensor<{elements}x{k}>" for k in kinds)
    block = ", ".join(f"%x{i}: {k}" for i, k in enumerate(kinds))
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (len(kinds) + 1))
    out = f"tensor<{elements}x{result}>"
    return f"""
func.func @main({arguments}) -> {out} {{
  %e = tensor.empty() : {out}
  %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins({ins} : {types}) outs(%e : {out}) {{
  ^bb0({block}, %o: {result}):
    {lines}
    linalg.yield %r : {result}
  }} -> {out}
  func.return %y : {out}
}}"""


SPECIAL = np.float32([-np.inf, -2.5, -0.5, -1e-7, 0.0, 1.5, np.inf, np.nan])
OTHER = np.float32([1.0, -2.5, np.nan, 3.0, 0.0, -1.5, np.inf, np.nan])
ORDERED = ~(np.isnan(SPECIAL) | np.isnan(OTHER))
_COMPARED = {
    "oeq": SPECIAL == OTHER,
    "ogt": SPECIAL > OTHER,
    "oge": SPECIAL >= OTHER,
    "olt": SPECIAL < OTHER,
    "ole": SPECIAL <= OTHER,
    "one": (SPECIAL != OTHER) & ORDERED,
    "ord": ORDERED,
    "ueq": (SPECIAL == OTHER) | ~ORDERED,
    "ugt": (SPECIAL > OTHER) | ~ORDERED,
    "uge": (SPECIAL >= OTHER) | ~ORDERED,
    "ult": (SPECIAL < OTHER) | ~ORDERED,
    "ule": (SPECIAL <= OTHER) | ~ORDERED,
    "une": SPECIAL != OTHER,
    "uno": ~ORDERED,
}


@pytest.mark.parametrize("predicate", _COMPARED)
def test_float_comparisons_with_nan(predicate: str) -> None:
    text = pointwise(f"%r = arith.cmpf {predicate}, %x0, %x1 : f32", "f32 f32", "i1")
    (got,) = run(text, SPECIAL, OTHER)
    np.testing.assert_array_equal(got, _COMPARED[predicate])


def _half_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("arith.maxnumf", np.fmax),
        ("arith.minnumf", np.fmin),
        ("arith.maximumf", np.maximum),
        ("math.expm1", np.expm1),
        ("math.log1p", np.log1p),
        ("math.round", _half_away),
        ("math.roundeven", np.rint),
        ("math.trunc", np.trunc),
        ("math.exp2", np.exp2),
        ("math.log2", np.log2),
    ],
)
def test_composed_operations_at_the_edges(op: str, reference: Fn) -> None:
    binary = op.startswith("arith.")
    operands = "%x0, %x1" if binary else "%x0"
    text = pointwise(f"%r = {op} {operands} : f32", "f32 f32" if binary else "f32", "f32")
    arrays = (SPECIAL, OTHER) if binary else (SPECIAL,)
    (got,) = run(text, *arrays)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, reference(*arrays), rtol=1e-6)


def test_integer_arithmetic_truncates_and_keeps_signs() -> None:
    lines = """%q = arith.divsi %x0, %x1 : i32
    %m = arith.remsi %x0, %x1 : i32
    %s = arith.shli %m, %x1 : i32
    %c = arith.cmpi slt, %q, %m : i32
    %r = arith.select %c, %q, %s : i32"""
    a = np.int32([7, -7, 7, -7, 9, 1, 0, 5])
    b = np.int32([2, 2, 3, 3, 4, 1, 5, 6])
    (got,) = run(pointwise(lines, "i32 i32", "i32"), a, b)
    quotient, remainder = np.trunc(a / b).astype(np.int32), np.fmod(a, b)
    np.testing.assert_array_equal(got, np.where(quotient < remainder, quotient, remainder << b))


def _named(op: str, ins: list[str], out: str, attributes: str = "") -> str:
    arguments = ", ".join(f'%t{i}: tensor<{s}> {{onnx.name = "i{i}"}}' for i, s in enumerate(ins))
    names = ", ".join(f"%t{i}" for i in range(len(ins)))
    types = ", ".join(f"tensor<{s}>" for s in ins)
    zero = "0.0" if out.endswith("f32") else "0"
    return f"""
func.func @main({arguments}) -> tensor<{out}> {{
  %n = arith.constant {zero} : {out.split("x")[-1]}
  %z = tensor.splat %n : tensor<{out}>
  %y = {op} {attributes} ins({names} : {types}) outs(%z : tensor<{out}>) -> tensor<{out}>
  func.return %y : tensor<{out}>
}}"""


_PRODUCTS = [
    ("linalg.batch_matmul", ["2x3x5xf32", "2x5x4xf32"], "2x3x4xf32", "bmk,bkn->bmn"),
    ("linalg.batch_matmul_transpose_a", ["2x5x3xf32", "2x5x4xf32"], "2x3x4xf32", "bkm,bkn->bmn"),
    ("linalg.batch_matmul_transpose_b", ["2x3x5xf32", "2x4x5xf32"], "2x3x4xf32", "bmk,bnk->bmn"),
    ("linalg.batch_matvec", ["2x3x5xf32", "2x5xf32"], "2x3xf32", "bmk,bk->bm"),
    ("linalg.dot", ["5xf32", "5xf32"], "f32", "k,k->"),
    ("linalg.matmul", ["3x5xf32", "5x4xf32"], "3x4xf32", "mk,kn->mn"),
    ("linalg.matmul_transpose_a", ["5x3xf32", "5x4xf32"], "3x4xf32", "km,kn->mn"),
    ("linalg.matmul_transpose_b", ["3x5xf32", "4x5xf32"], "3x4xf32", "mk,nk->mn"),
    ("linalg.matvec", ["3x5xf32", "5xf32"], "3xf32", "mk,k->m"),
    ("linalg.vecmat", ["5xf32", "5x4xf32"], "4xf32", "k,kn->n"),
    ("linalg.batch_matmul", ["2x3x5xi8", "2x5x4xi8"], "2x3x4xi32", "bmk,bkn->bmn"),
    ("linalg.matmul_transpose_b", ["3x5xf16", "4x5xf16"], "3x4xf32", "mk,nk->mn"),
]


def _random(text: str, seed: int) -> np.ndarray:
    *shape, kind = text.split("x")
    rng = np.random.default_rng(seed)
    if kind.startswith("i"):
        return rng.integers(-100, 100, [int(n) for n in shape]).astype(np.int8)
    values = rng.standard_normal([int(n) for n in shape])
    return values.astype(np.float16 if kind == "f16" else np.float32)


@pytest.mark.parametrize(("op", "ins", "out", "equation"), _PRODUCTS)
def test_named_products(op: str, ins: list[str], out: str, equation: str) -> None:
    arrays = [_random(s, i) for i, s in enumerate(ins)]
    (got,) = run(_named(op, ins, out), *arrays)
    wide = np.int32 if out.endswith("i32") else np.float32
    want = np.einsum(equation, *(a.astype(wide) for a in arrays))
    assert got.dtype == wide
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "count", "reference"),
    [
        ("linalg.abs", 1, np.abs),
        ("linalg.ceil", 1, np.ceil),
        ("linalg.div", 2, np.divide),
        ("linalg.floor", 1, np.floor),
        ("linalg.max", 2, np.maximum),
        ("linalg.negf", 1, np.negative),
        ("linalg.round", 1, _half_away),
        ("linalg.square", 1, np.square),
        ("linalg.sub", 2, np.subtract),
        ("linalg.tanh", 1, np.tanh),
    ],
)
def test_named_elementwise(op: str, count: int, reference: Fn) -> None:
    arrays = [_random("3x4xf32", i) for i in range(count)]
    (got,) = run(_named(op, ["3x4xf32"] * count, "3x4xf32"), *arrays)
    np.testing.assert_allclose(got, reference(*arrays), rtol=1e-6)


def test_wide_accumulation_is_not_narrowed() -> None:
    """Factors that are widened to int64 must not be summed in int32."""
    text = """
func.func @main(%a: tensor<2x3xi32> {onnx.name = "i0"}) -> tensor<2xi64> {
  %n = arith.constant 5 : i64
  %z = tensor.splat %n : tensor<2xi64>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<2x3xi32>) outs(%z : tensor<2xi64>) {
  ^bb0(%x: i32, %o: i64):
    %w = arith.extsi %x : i32 to i64
    %p = arith.muli %w, %w : i64
    %s = arith.addi %o, %p : i64
    linalg.yield %s : i64
  } -> tensor<2xi64>
  func.return %y : tensor<2xi64>
}"""
    a = np.int32([[2**30, 3, 1], [-(2**30), 2**20, 7]])
    (got,) = run(text, a)
    np.testing.assert_array_equal(got, (a.astype(np.int64) ** 2).sum(1) + 5)


def test_pooling_takes_the_window_from_the_shape_of_its_second_input() -> None:
    text = """
func.func @main(%x: tensor<1x2x6x6xf32> {onnx.name = "i0"}) -> tensor<1x2x2x2xf32> {
  %low = arith.constant 0xFF800000 : f32
  %z = tensor.splat %low : tensor<1x2x2x2xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %y = linalg.pooling_nchw_max {dilations = dense<1> : tensor<2xi64>,
      strides = dense<3> : tensor<2xi64>}
      ins(%x, %w : tensor<1x2x6x6xf32>, tensor<3x3xf32>)
      outs(%z : tensor<1x2x2x2xf32>) -> tensor<1x2x2x2xf32>
  func.return %y : tensor<1x2x2x2xf32>
}"""
    x = _random("1x2x6x6xf32", 0)
    (got,) = run(text, x)
    np.testing.assert_array_equal(got, x.reshape(1, 2, 2, 3, 2, 3).max((3, 5)))
