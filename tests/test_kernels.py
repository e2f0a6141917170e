"""Kernels and layouts: any operator under any plan gives what it gives on whole tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operators import CASES, F32, I64, Case, plans
from sharded import Run

from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.numerics.compiled import prepare
from elk_ir.numerics.kernels import run_whole
from elk_ir.plan.domain import Operator

CORES = 12


def extents(most: int) -> st.SearchStrategy[int]:
    """Extents from 1 on."""
    return st.integers(1, most)


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    """Rows of a table replaced by (or combined with) updates."""
    rows, m, d = draw(extents(9)), draw(extents(9)), draw(extents(4))
    update = draw(st.sampled_from(["set", "add", "mul", "max", "min"]))
    return Case(
        "te.scatter",
        f"<(r = {rows}, d = {d}, u = {m} reduce), [(r, d), (u), (u, d)] -> [(r, d)]>",
        f"{{rows = 0 : i64, update = #te<update {update}>}}",
        (((rows, d), F32), ((m,), I64), ((m, d), F32)),
        (((rows, d), F32),),
        integers=rows,
    )


@st.composite
def element_scatters(draw: st.DrawFn) -> Case:
    """Single elements replaced; the index may be smaller than the data."""
    rows, n, m = draw(extents(7)), draw(extents(7)), draw(extents(7))
    front = draw(st.integers(1, n))
    return Case(
        "te.scatter",
        f"<(r = {rows}, n = {n}, u = {m} reduce), [(r, n), (u, n), (u, n)] -> [(r, n)]>",
        "{rows = 0 : i64, update = #te<update set>}",
        (((rows, n), F32), ((m, front), I64), ((m, front), F32)),
        (((rows, n), F32),),
        integers=rows,
    )


@st.composite
def arg_reductions(draw: st.DrawFn) -> Case:
    """Positions of extremes, with ties."""
    m, n = draw(extents(6)), draw(extents(12))
    flags = ", ".join(f"{flag} = true" for flag in ("smallest", "last") if draw(st.booleans()))
    return Case(
        "te.argreduce",
        f"<(m = {m}, n = {n} reduce), [(m, n)] -> [(m)]>",
        f"{{{flags}}}",
        (((m, n), I64),),
        (((m,), I64),),
        integers=3,
    )


@st.composite
def top_ks(draw: st.DrawFn) -> Case:
    """The largest or smallest few, with ties."""
    m, n = draw(extents(8)), draw(extents(8))
    k = draw(st.integers(1, n))
    smallest = ", smallest = true" if draw(st.booleans()) else ""
    return Case(
        "te.topk",
        f"<(m = {m}, n = {n} local, k = {k} local), [(n, m)] -> [(m, k), (m, k)]>",
        f"{{n = 1 : i64, k = 2 : i64{smallest}}}",
        (((n, m), I64),),
        (((m, k), I64), ((m, k), I64)),
        integers=4,
    )


@st.composite
def scans(draw: st.DrawFn) -> Case:
    """Running sums."""
    m, n = draw(extents(8)), draw(extents(8))
    flags = "".join(f", {flag} = true" for flag in ("exclusive", "reverse") if draw(st.booleans()))
    return Case(
        "te.scan",
        f"<(m = {m}, n = {n} local), [(m, n)] -> [(m, n)]>",
        f"{{n = 1 : i64, combiner = #te<combiner sum>{flags}}}",
        (((m, n), F32),),
        (((m, n), F32),),
    )


@st.composite
def grouped_reductions(draw: st.DrawFn) -> Case:
    """Reductions over part of a composite axis, which a neighbour's elements lie next to."""
    g, c, m = draw(extents(5)), draw(extents(7)), draw(extents(3))
    combiner = draw(st.sampled_from(["sum", "prod", "max", "min"]))
    return Case(
        "te.reduce",
        f"<(m = {m}, g = {g}, c = {c} reduce), [(m, {c}*g + c)] -> [(m, g)]>",
        f"{{combiner = #te<combiner {combiner}>}}",
        (((m, g * c), F32),),
        (((m, g), F32),),
    )


@st.composite
def grouped_products(draw: st.DrawFn) -> Case:
    """A grouped convolution's channels."""
    g, c, m, n = (draw(extents(e)) for e in (4, 5, 3, 6))
    return Case(
        "te.contract",
        f"<(n = {n}, g = {g}, m = {m}, c = {c} reduce),"
        f" [(n, {c}*g + c), ({m}*g + m, c)] -> [(n, {m}*g + m)]>",
        "",
        (((n, g * c), F32), ((g * m, c), F32)),
        (((n, g * m), F32),),
    )


@st.composite
def grouped_norms(draw: st.DrawFn) -> Case:
    """Group normalisation: statistics over part of the channels and all pixels."""
    n, g, c, p = (draw(extents(e)) for e in (3, 4, 4, 5))
    return Case(
        "te.normalize",
        f"<(n = {n}, g = {g}, c = {c} reduce, p = {p} reduce),"
        f" [(n, {c}*g + c, p), ({c}*g + c)] -> [(n, {c}*g + c, p)]>",
        '{form = #te<norm_form layer>, epsilon = 1.0e-3 : f64, affine = "scale"}',
        (((n, g * c, p), F32), ((g * c,), F32)),
        (((n, g * c, p), F32),),
    )


@st.composite
def grouped_softmaxes(draw: st.DrawFn) -> Case:
    """Softmax over part of a composite axis."""
    g, c = draw(extents(4)), draw(extents(7))
    return Case(
        "te.softmax",
        f"<(g = {g}, c = {c} reduce), [({c}*g + c)] -> [(g, c)]>",
        "",
        (((g * c,), F32),),
        (((g, c), F32),),
    )


ALL = {
    **CASES,
    "arg_reduction": arg_reductions(),
    "element_scatter": element_scatters(),
    "grouped_norm": grouped_norms(),
    "grouped_product": grouped_products(),
    "grouped_reduction": grouped_reductions(),
    "grouped_softmax": grouped_softmaxes(),
    "scan": scans(),
    "scatter": scatters(),
    "top_k": top_ks(),
}


def operator_of(case: Case) -> Operator:
    """The operator of a case. Parsing it verifies it."""
    from helpers import parse

    module = parse(case.text((False,) * len(case.operands)))
    module.verify()
    (op,) = (o for o in module.walk() if isinstance(o, StructuredOp))
    return op.operator()


@pytest.mark.parametrize("kind", sorted(ALL))
def test_split_like_whole(kind: str) -> None:
    """Grids, rings, ragged tiles and split reductions do not change the numbers."""

    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(ALL[kind])
        op = operator_of(case)
        plan = data.draw(plans(op, CORES))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
        tensors = case.arrays(rng)
        for got, wanted in zip(
            Run(op, plan, tensors).results(), reference(op, tensors), strict=True
        ):
            assert got.dtype == wanted.dtype
            if wanted.dtype.kind in "iub":
                np.testing.assert_array_equal(got, wanted)
                continue
            scale = max(float(np.abs(wanted.astype(np.float64)).max(initial=0)), 1e-6)
            np.testing.assert_allclose(
                got.astype(np.float64) / scale,
                wanted.astype(np.float64) / scale,
                atol=2e-3 if case.half else 2e-5,
            )

    run()


@pytest.mark.parametrize("kind", ["element_scatter", "scatter", "top_k"])
def test_prepared_to_the_bit(kind: str) -> None:
    """Prepared for whole tensors, kinds that follow indices give the very numbers of their
    definition: with indices that repeat, count from the end or are out of range, and with an index
    that is the same in every run while the rest changes."""

    @settings(max_examples=60, derandomize=True, deadline=None, database=None)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(ALL[kind])
        case = replace(case, integers=case.integers + data.draw(st.integers(0, 2)))
        op = operator_of(case)
        rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
        first, second = case.arrays(rng), case.arrays(rng)
        kept = [1] if len(first) > 1 and data.draw(st.booleans()) else []
        for v in kept:
            second[v] = first[v]
        prepared = prepare(op, kept)
        assert prepared.__qualname__.startswith("prepare_"), "no short way"
        with np.errstate(all="ignore"):
            for tensors in (first, second):
                for got, wanted in zip(prepared(tensors), run_whole(op, tensors), strict=True):
                    assert got.dtype == wanted.dtype
                    np.testing.assert_array_equal(got, wanted)

    run()
