"""`compiled.prepare` computes what `kernels.run_whole` defines, on operators of real graphs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import random_array

from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.compiled import prepare
from elk_ir.numerics.kernels import run_whole
from elk_ir.numerics.tensors import read_npz
from elk_ir.plan.domain import Operator

BUNDLED = Path(__file__).parent / "models"
SHARED = Path(__file__).parent.parent.parent / "shared" / "models" / "tiny"


def operators(path: Path, *, until: str) -> set[Operator]:
    """The distinct structured operators of a graph in te, before a pass."""
    npz = path.with_suffix(".npz")
    shapes = {n: a.shape for n, a in read_npz(npz, "in/").items()} if npz.exists() else None
    chip = load_chip("test-64")
    module, source = import_source(path, chip, input_shapes=shapes)
    passes = list(pipeline(chip, policy="basic"))
    end = [p.name for p in passes].index(until)
    run_passes(context(), module, passes[:end], model=source.name)
    return {op.operator() for op in module.walk() if isinstance(op, StructuredOp)}


def check(op: Operator) -> bool:
    """Both on the same random operands; whether the operator has a short way."""
    rng = np.random.default_rng(1)
    tensors = [random_array(rng, a.shape, dtype_of(a.dtype)) for a in op.operands]
    with np.errstate(all="ignore"):
        expected = run_whole(op, tensors)
        run = prepare(op)
        for _ in range(2):  # nothing of the first run is left in the second
            for wanted, got in zip(expected, run(tensors), strict=True):
                assert got.shape == wanted.shape and got.dtype == wanted.dtype
                exact = wanted.dtype.kind in "iub"
                tolerance = 0 if exact else 4e-3 if wanted.dtype.itemsize < 4 else 2e-5
                wide, found = (np.asarray(x).astype(np.float64) for x in (wanted, got))
                scale = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
                np.testing.assert_allclose(found, wide, rtol=tolerance, atol=tolerance * scale)
    return run.__qualname__.split(".")[0] != "prepare"


def covered(found: set[Operator]) -> Counter[str]:
    """Operators by kind and by whether there was a short way."""
    return Counter(f"{op.kind} {'short' if check(op) else 'whole'}" for op in found)


@pytest.mark.parametrize("model", sorted(p.stem for p in BUNDLED.glob("*.onnx")))
def test_bundled(model: str) -> None:
    counts = covered(operators(BUNDLED / f"{model}.onnx", until="convert-te-to-icca"))
    short = sum(n for name, n in counts.items() if name.endswith("short"))
    assert short >= 0.6 * counts.total(), counts


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/models")
def test_every_tiny_graph() -> None:
    """Operators as the importer makes them and as fusions leave them; of the graphs whose inputs,
    and so whose dimensions, lie beside them."""
    graphs = [p for p in sorted(SHARED.glob("*.onnx")) if p.with_suffix(".npz").exists()]
    assert len(graphs) > 50
    for path in graphs:
        for until in ("te-canonicalize", "convert-te-to-icca"):
            for op in operators(path, until=until):
                check(op)


def test_row_that_sees_nothing_is_zero() -> None:
    """Every score is -inf under the mask: softmax would be no number, attention is zero."""
    found = operators(BUNDLED / "statickv_scatter_dynamo.onnx", until="convert-te-to-icca")
    attention = next(op for op in found if op.kind == "attention" and len(op.operands) > 3)
    rng = np.random.default_rng(2)
    tensors = [random_array(rng, a.shape, dtype_of(a.dtype)) for a in attention.operands]
    lowest = False if tensors[3].dtype == np.bool_ else -np.inf
    tensors[3] = np.full_like(tensors[3], lowest)
    with np.errstate(all="ignore"):
        (expected,), (got,) = run_whole(attention, tensors), prepare(attention)(tensors)
    assert not got.any() and not expected.any()
