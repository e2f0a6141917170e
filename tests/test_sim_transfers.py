"""`sim.transfers` names the same senders and sizes as `plan.moves`."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Stat
from elk_ir.plan.expr import CORE, SLOT
from elk_ir.plan.layout import AxisLayout, Cut, Layout
from elk_ir.plan.moves import moves
from elk_ir.plan.plan import Plan
from elk_ir.plan.sharding import sharding
from elk_ir.sim import transfers as module
from elk_ir.sim.patterns import delivery
from elk_ir.sim.transfers import transfers


def same(source: Layout, target: Layout, axis: int | None = None, start: int = 0) -> None:
    """Equal as sets of (sender, receiver, elements)."""
    full = moves(source, target, axis, start)
    a = np.stack([full.source_core, full.target_core, full.elements])
    b = np.stack(transfers(source, target, axis, start))
    assert np.array_equal(a[:, np.lexsort(a)], b[:, np.lexsort(b)])


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Blocks along each axis by a digit of the core number, sometimes in slots, with a halo, or
    ragged; sometimes only some cores hold anything."""
    axes: list[AxisLayout] = []
    stride = 1
    for extent in shape:
        parts = draw(st.integers(1, 3))
        size = -(-extent // parts)
        start = (CORE // stride) % parts * size
        halo = draw(st.sampled_from([0, 0, 1]))
        stride *= parts
        if draw(st.booleans()) and size > 1:
            half = -(-size // 2)
            cuts = (Cut(start, size), Cut((SLOT + CORE) % 2 * half, half))
            axes.append(AxisLayout(extent, cuts, 2))
        else:
            axes.append(AxisLayout(extent, (Cut(start + -halo * 1, size + halo),)))
    cores = stride * draw(st.integers(1, 2))
    guard = CORE % 2 if draw(st.integers(0, 3)) == 0 else None
    return Layout(cores, tuple(axes), guard)


SHAPES = st.sampled_from([(6,), (5, 4), (3, 7), (2, 3, 5), ()])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), SHAPES)
def test_random_layouts(data: st.DataObject, shape: tuple[int, ...]) -> None:
    same(data.draw(layouts(shape)), data.draw(layouts(shape)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_inserts(data: st.DataObject) -> None:
    """One row into a larger tensor."""
    same(data.draw(layouts((1, 4))), data.draw(layouts((6, 4))), 0, 5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_without_direct_tables(data: st.DataObject) -> None:
    """The way of layouts with more boxes than a direct table has entries."""
    a, b = data.draw(layouts((2, 3, 5))), data.draw(layouts((2, 3, 5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TABLE", 1)
        same(a, b)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), SHAPES)
def test_largest_blocks(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Axis by axis as from all boxes."""
    layout = data.draw(layouts(shape))
    extents = layout.bounds[..., 1] - layout.bounds[..., 0]
    extents = extents.reshape(layout.cores, prod(layout.slots), len(shape))
    assert np.array_equal(layout.largest, extents.max(axis=1))
    held = layout.held.reshape(layout.cores, -1).any(axis=1)
    assert np.array_equal(held, ~(layout.away | (layout.largest <= 0).any(axis=1)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), SHAPES)
def test_many_pieces(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """The way of more transfers than are worked on at a time."""
    a, b = data.draw(layouts(shape)), data.draw(layouts(shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", 3)
        same(a, b)


def test_delivery_counts_each_needed_byte_once() -> None:
    """A product with k cut by two rings on 2 x 3 cores: preload-state and execute-state hold the
    same tensor, copies as the plan says."""
    op = Operator(
        "contract",
        (Dim("m", 4), Dim("n", 7), Dim("k", 12, DimKind.REDUCTION)),
        (
            Access((4, 12), "float16", (AxisExpr(((0, 1),)), AxisExpr(((2, 1),)))),
            Access((12, 7), "float16", (AxisExpr(((2, 1),)), AxisExpr(((1, 1),)))),
        ),
        (Access((4, 7), "float16", (AxisExpr(((0, 1),)), AxisExpr(((1, 1),)))),),
        (Stat("sum", (0, 1), "float32", 0.0),),
    )
    ones = (1, 1, 1)
    whole = sharding(op, Plan((2, 3, 1), (ones, ones), (ones, ones)))
    d = delivery(16, whole.preload_layout(1), 2)
    assert d.hbm_bytes == 12 * 7 * 2
    assert d.copies == pytest.approx(whole.copies(1)) == 2
    cut = sharding(op, Plan((2, 3, 1), (ones, (1, 1, 2)), (ones, (1, 1, 2))))
    d = delivery(16, cut.preload_layout(1), 2)
    assert d.hbm_bytes == 12 * 7 * 2
    assert d.copies == pytest.approx(cut.copies(1)) == 1
    assert d.ingress[6:].sum() == 0
    # Only the filled part of a state moves.
    assert delivery(16, whole.preload_layout(1), 2, (0, 5)).hbm_bytes == 5 * 7 * 2


def test_delivery_of_a_halo() -> None:
    """Blocks [0, 4), [2, 6): six elements are needed, eight land."""
    layout = Layout(2, (AxisLayout(6, (Cut(CORE * 2, 4),)),))
    d = delivery(2, layout, 4)
    assert d.hbm_bytes == 24
    assert d.ingress.tolist() == [16, 16]


def test_an_operator_without_dimensions() -> None:
    """A scalar on one core: one call, no tile."""
    from elk_ir.chips import load_chip
    from elk_ir.cost.device import device_model
    from elk_ir.sim.patterns import vertex_work

    scalar = Access((), "float32", ())
    op = Operator("map", (), (scalar,), (scalar,), (), ())
    work = vertex_work(4, device_model(load_chip("test-16")), op, "apply", Layout(1, ()), 1)
    assert work.cycles.values[0] > 0
    assert work.cycles.values[1:].sum() == 0
