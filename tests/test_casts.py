"""Casts between all types that ONNX has, against ONNX's reference evaluator, bit by bit."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from xdsl.context import Context

import elk_ir
from elk_ir.frontend.importer import import_model
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass

FLOATS = ["DOUBLE", "FLOAT", "FLOAT16", "BFLOAT16"]
FLOAT8 = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
NARROW = [*FLOAT8, "FLOAT4E2M1"]
INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (2, 4, 8, 16, 32, 64)]
TYPES = [*FLOATS, *NARROW, *INTEGERS, "BOOL"]
PACKED = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4}
"""Bits of integers that numpy does not have; ONNX's evaluator does not convert among them."""
BITS = {**PACKED, "FLOAT4E2M1": 4}


def dtype(name: str) -> np.dtype:
    """numpy's type, or that of ml_dtypes."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name)))


def everything(name: str) -> np.ndarray:
    """Every value of a type of up to 16 bits."""
    kind = dtype(name)
    bits = BITS.get(name, 8 * kind.itemsize)
    patterns = np.arange(1 << bits, dtype=np.uint64)
    if name in PACKED:
        return modulo(patterns.astype(np.int8), name)
    return patterns.astype(f"uint{8 * kind.itemsize}").view(kind)


def modulo(array: np.ndarray, name: str) -> np.ndarray:
    """Integers of 8 bits in a packed type: the low bits."""
    bits = PACKED[name]
    low = array & ((1 << bits) - 1)
    return np.where((low >> (bits - 1)) & (name[0] == "I"), low - (1 << bits), low).astype(
        dtype(name)
    )


@cache
def values(name: str) -> np.ndarray:
    """What is cast: every value of a narrow type; of a wide one what the narrow types have, the
    middles between neighbours, what lies beside both, powers of two, and random bits."""
    kind = dtype(name)
    rng = np.random.default_rng(0)
    if name == "BOOL":
        return np.array([False, True])
    if kind.itemsize <= 2:
        return everything(name)
    if name in INTEGERS:
        info = np.iinfo(kind)
        powers = [s * 2**e + d for e in range(65) for s in (1, -1) for d in (-1, 0, 1)]
        kept = [p for p in powers if info.min <= p <= info.max]
        random = rng.integers(info.min, info.max, 4000, dtype=kind, endpoint=True)
        return np.concatenate([np.array(kept, kind), random])
    grids = [everything(n).astype(np.float64) for n in ("FLOAT16", "BFLOAT16", *NARROW)]
    points = np.unique(np.concatenate([g[np.isfinite(g)] for g in grids]))
    middles = (points[1:] + points[:-1]) / 2
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.concatenate([points, middles]).astype(kind)
    beside = [np.nextafter(exact, kind.type(s * np.inf)) for s in (1, -1)]
    bits = rng.integers(0, 256, 80_000, dtype=np.uint8).view(kind)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], kind)
    return np.concatenate([exact, *beside, bits, special])


def casts(source: str, targets: list[tuple[str, int]]) -> tuple[bytes, dict[str, str]]:
    """A model with one Cast for each target, and the targets by output."""
    names = {f"{t}_{saturate}": t for t, saturate in targets}
    nodes = [
        helper.make_node(
            "Cast",
            ["x"],
            [f"{t}_{saturate}"],
            to=getattr(TensorProto, t),
            saturate=None if saturate else 0,
        )
        for t, saturate in targets
    ]
    n = len(values(source))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", getattr(TensorProto, source), [n])],
        [helper.make_tensor_value_info(o, getattr(TensorProto, t), [n]) for o, t in names.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    return model.SerializeToString(), names


def defined(array: np.ndarray, target: str) -> np.ndarray:
    """Where ONNX says what the result is: integers take no floats beyond their range."""
    if target not in INTEGERS or array.dtype.kind in "iub" or "int" in array.dtype.name:
        return np.ones(array.shape, bool)
    kind = dtype(target)
    info = ml_dtypes.iinfo(kind) if target in PACKED else np.iinfo(kind)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(array.astype(np.float64))
    # The largest 64-bit integers are no float64: the bound itself is out of range.
    return (whole >= float(info.min)) & (whole < float(int(info.max) + 1))


def no_weights(weight: object) -> np.ndarray:
    """There are none."""
    raise AssertionError(weight)


def patterns(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bits, 0 for every NaN; and where NaNs are."""
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float64) if array.dtype.kind not in "iub" else array
    bits = np.ascontiguousarray(array).view(f"uint{8 * array.dtype.itemsize}")
    return np.where(wide != wide, bits.dtype.type(0), bits), wide != wide


@pytest.mark.parametrize("source", TYPES)
def test_casts(source: str) -> None:
    packed = [t for t in PACKED if source in PACKED and t != source]
    targets = [(t, 1) for t in TYPES if t != source]
    if source in FLOATS:
        targets += [(t, 0) for t in FLOAT8]
    x = values(source)
    wanted: dict[str, np.ndarray] = {}
    if packed:
        wanted = {f"{t}_1": modulo(x.astype(np.int8), t) for t in packed}
    others, names = casts(source, [t for t in targets if t[0] not in packed])
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(others).run(None, {"x": x})
    wanted |= zip(names, map(np.asarray, results), strict=True)
    data, names = casts(source, targets)
    module = import_model(data, name="m.onnx")
    ConvertOnnxToTePass().apply(Context(), module)
    got = evaluate_te(module, {"x": x}, load_weight=no_weights)
    for output, target in names.items():
        where = defined(x, target)
        mine, theirs = got[output], wanted[output]
        assert mine.dtype == theirs.dtype == dtype(target)
        wrong = np.zeros(x.shape, bool)
        for a, b in zip(patterns(mine), patterns(theirs), strict=True):
            wrong |= a != b
        wrong &= where
        first = np.flatnonzero(wrong)[:4]
        assert not wrong.any(), (output, wrong.sum(), x[first], mine[first], theirs[first])


@pytest.mark.parametrize("source", list(PACKED))
def test_on_the_machine(source: str) -> None:
    """Packed integers into one another, and into what they are computed in."""
    targets = [(t, 1) for t in (*PACKED, "INT8", "FLOAT") if t != source]
    data, names = casts(source, targets)
    x = values(source)
    program = elk_ir.compile(data, chip="test-16", policy="basic", simulate=False)
    got = program(x=x)
    for output, target in names.items():
        small = x.astype(np.int8)
        wanted = modulo(small, target) if target in PACKED else small.astype(dtype(target))
        assert got[output].dtype == wanted.dtype
        assert got[output].tolist() == wanted.tolist()
