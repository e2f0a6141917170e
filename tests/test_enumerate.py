"""Plan enumeration: complete against brute force, exact in memory, legal throughout."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from elk_ir.chips.load import load_chip
from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.numerics.body import Body, Instr, dtype_of
from elk_ir.plan.buffers import (
    ALIGNMENT_BYTES,
    Source,
    execute_buffers,
    peak_bytes,
    rotating_dims,
    shift_count,
    slab_bytes,
)
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Phase, Stat
from elk_ir.plan.enumerate import enumerate_plans, smallest_plan
from elk_ir.plan.pareto import pareto_mask, spread
from elk_ir.plan.plan import Plan, Reduce, plan_errors
from elk_ir.plan.sharding import Sharding, sharding

P, R, L = DimKind.PARALLEL, DimKind.REDUCTION, DimKind.LOCAL
HBM, RESIDENT = Source.HBM, Source.RESIDENT
CHIP = load_chip("test-16")
OBJECTIVES = ("execute_cycles", "execute_bytes", "exchange_bytes", "preload_bytes")


def axes(*dims: int) -> tuple[AxisExpr, ...]:
    return tuple(AxisExpr(((d, 1),)) for d in dims)


def contract(m: int, n: int, k: int, bias: bool = False, dtype: str = "float16") -> Operator:
    operands = [Access((m, k), dtype, axes(0, 2)), Access((k, n), dtype, axes(2, 1))]
    if bias:
        operands.append(Access((n,), dtype, axes(1), Phase.APPLY))
    return Operator(
        "contract",
        (Dim("m", m), Dim("n", n), Dim("k", k, R)),
        tuple(operands),
        (Access((m, n), dtype, axes(0, 1)),),
        (Stat("sum", (0, 1), "float32", 0.0),),
        (),
        2.0,
    )


def attention(b: int, s: int, kv: int, e: int) -> Operator:
    low = float("-inf")
    return Operator(
        "attention",
        (Dim("b", b), Dim("s", s), Dim("kv", kv, R), Dim("e", e, L), Dim("d", e, L)),
        (
            Access((b, s, e), "float16", axes(0, 1, 4)),
            Access((b, kv, e), "float16", axes(0, 2, 4)),
            Access((b, kv, e), "float16", axes(0, 2, 3)),
        ),
        (Access((b, s, e), "float16", axes(0, 1, 3)),),
        (
            Stat("max", (0, 1), "float32", low),
            Stat("sum", (0, 1), "float32", 0.0),
            Stat("out", (0, 1, 3), "float32", 0.0),
        ),
        (("scale", 1.0),),
        4.0,
    )


def rms_norm(m: int, k: int) -> Operator:
    stats = tuple(Stat(n, (0,), "float32", 0.0) for n in ("count", "mean", "squares"))
    return Operator(
        "normalize",
        (Dim("m", m), Dim("k", k, R)),
        (
            Access((m, k), "float16", axes(0, 1), Phase.BOTH),
            Access((k,), "float16", axes(1), Phase.APPLY),
        ),
        (Access((m, k), "float16", axes(0, 1)),),
        stats,
        (("form", "rms"), ("epsilon", 1e-5), ("affine", ("scale",))),
        3.0,
    )


def added(m: int, n: int) -> Operator:
    """A map that adds a row, broadcast over m."""
    return Operator(
        "map",
        (Dim("m", m), Dim("n", n)),
        (Access((m, n), "float16", axes(0, 1)), Access((n,), "float16", axes(1))),
        (Access((m, n), "float16", axes(0, 1)),),
        (),
        (("body", Body(2, (Instr("add", (0, 1)),), (2,))),),
        1.0,
    )


def convolution(channels: int, out: int, width: int, window: int) -> Operator:
    return Operator(
        "contract",
        (Dim("o", out), Dim("x", width), Dim("c", channels, R), Dim("w", window, L)),
        (
            Access(
                (channels, width + window - 1),
                "float16",
                (AxisExpr(((2, 1),)), AxisExpr(((1, 1), (3, 1)))),
            ),
            Access((out, channels, window), "float16", axes(0, 2, 3)),
        ),
        (Access((out, width), "float16", axes(0, 1)),),
        (Stat("sum", (0, 1), "float32", 0.0),),
        (),
        2.0,
    )


def merged_heads(m: int, h: int, d: int) -> Operator:
    """A transpose into (m, h · d): the result merges two dimensions."""
    return Operator(
        "map",
        (Dim("m", m), Dim("h", h), Dim("d", d)),
        (Access((h, m, d), "float16", axes(1, 0, 2)),),
        (Access((m, h * d), "float16", (AxisExpr(((0, 1),)), AxisExpr(((1, d), (2, 1))))),),
        (),
        (("body", Body(1, (), (0,))),),
    )


# ---------------------------------------------------------------------- the space, by brute force


def tuples(op: Operator, v: int, limit: int) -> list[tuple[int, ...]]:
    """Factor tuples over the dimensions of operand v with a product of at most `limit`."""
    choices = [
        range(1, limit + 1) if d in op.operands[v].dims else (1,) for d in range(len(op.dims))
    ]
    return [t for t in itertools.product(*choices) if prod(t) <= limit]


def every_plan(op: Operator, sources: tuple[Source, ...], cores: int) -> Iterator[Plan]:
    """All legal plans. Only what can't be legal for lack of cores is left out beforehand."""
    rank = len(op.dims)
    for grid in itertools.product(*(range(1, min(cores, max(1, e)) + 1) for e in op.extents)):
        if prod(grid) > cores:
            continue
        states = []
        for v, access in enumerate(op.operands):
            share = prod(grid[d] for d in range(rank) if d not in access.dims)
            pairs = []
            for p in tuples(op, v, share):
                below = [x for x in tuples(op, v, share) if all(b % a == 0 for a, b in zip(x, p))]
                pairs += [(x, p) for x in below if sources[v] is HBM or x == p]
            states.append(pairs)
        ends = [(Reduce.ROOT, None), (Reduce.ALL, None)]
        ends += [(Reduce.SCATTER, d) for d in (None, *range(rank))]
        for chosen in itertools.product(*states):
            execute = tuple(x for x, _ in chosen)
            preload = tuple(p for _, p in chosen)
            rings = [d for d in range(rank) if any(x[d] > 1 for x in execute)]
            for order in itertools.permutations(rings):
                for reduce, scatter in ends:
                    plan = Plan(grid, execute, preload, reduce, scatter, order or None)
                    if not plan_errors(op, plan, cores):
                        yield plan


def align(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def scalar_costs(
    op: Operator, plan: Plan, sources: tuple[Source, ...], cost: CostModel
) -> tuple[float, int, int, int]:
    """(cycles, peak bytes, exchange bytes, preload bytes) of one plan, written from docs/plans.md
    on the layouts of `sharding`."""
    s = sharding(op, plan)
    sync = CHIP.sync_cycles
    buffers = execute_buffers(op, plan, sources, (False,) * len(op.operands))
    cycles = 0.0
    # Distribution.
    spread_bytes = 0
    for v, access in enumerate(op.operands):
        if sources[v] is not HBM or plan.preload[v] == plan.execute[v]:
            continue
        held = layout(s.execute_layout(v).elements, access.dtype)
        piece = layout(s.preload_layout(v).elements, access.dtype)
        pieces = prod(plan.preload[v]) // prod(plan.execute[v])
        spread_bytes += held if access.phase is Phase.APPLY else min((pieces - 1) * piece, held)
    if spread_bytes:
        cycles += one(cost.exchange_cycles, spread_bytes) + 2 * sync
    # Rings.
    ring_bytes = 0
    if op.stats:
        step = float(cost.tile_cycles(op, np.asarray([s.block]))[0])
        cycles += s.steps * step
        for d in s.ring_order:
            slab = sum(
                slab_bytes(s, v, d) for v in range(len(op.operands)) if d in rotating_dims(s, v)
            )
            ring_bytes += shift_count(s, d) * slab
            cycles += shift_count(s, d) * (
                float(cost.shift_cycles(np.asarray([slab]))[0]) + 2 * sync
            )
    # Reduction.
    reduction = 0
    if op.stats and s.ways > 1:
        merged = [s.merged_layout(i).elements for i in range(len(op.stats))]
        reduction = sum(
            e * (s.ways - 1) * dtype_of(t.dtype).itemsize
            for e, t in zip(merged, op.stats, strict=True)
        )
        cycles += one(cost.exchange_cycles, reduction) + 2 * sync
        ways, elements = np.asarray([s.ways]), np.asarray([sum(merged)])
        cycles += float(cost.combine_cycles(op, ways, elements)[0])
    # Apply, over the piece that the reduction leaves.
    box = apply_box(s)
    cycles += float(cost.apply_cycles(op, np.asarray([box]))[0])
    preload = sum(b.size_bytes for b in buffers if b.role == "preload")
    return cycles, peak_bytes(buffers), spread_bytes + ring_bytes + reduction, preload


def layout(elements: int, dtype: str) -> int:
    return align(elements * dtype_of(dtype).itemsize)


def one(fn, size: int) -> float:
    return float(fn(np.asarray([size]), np.asarray([size]))[0])


def apply_box(s: Sharding) -> list[int]:
    box = []
    for d, axis in enumerate(s.apply_layout().axes):
        whole = d in s.op.reductions and not s.op.broadcasts_back
        box.append(1 if whole else axis.slots * axis.block)
    return box


CASES = {
    "product": (contract(24, 40, 96), (RESIDENT, HBM), 8),
    "product-primes": (contract(5, 7, 31), (HBM, HBM), 7),
    "product-bias": (contract(12, 64, 24, bias=True), (RESIDENT, HBM, HBM), 6),
    "product-vector": (contract(1, 90, 160), (RESIDENT, HBM), 8),
    "product-square": (contract(64, 64, 64), (RESIDENT, RESIDENT), 8),
    "attention": (attention(2, 12, 20, 16), (RESIDENT, HBM, HBM), 5),
    "norm": (rms_norm(3, 100), (RESIDENT, HBM), 8),
    "map": (added(50, 60), (RESIDENT, HBM), 8),
    "convolution": (convolution(16, 12, 20, 3), (RESIDENT, HBM), 6),
    "merged": (merged_heads(2, 3, 4), (RESIDENT,), 8),
}


@pytest.mark.parametrize("name", CASES)
def test_front_equals_brute_force(name: str) -> None:
    op, sources, cores = CASES[name]
    chip = CHIP.with_fields({"cores_per_chip": cores})
    cost = device_model(chip)
    every = np.asarray([scalar_costs(op, p, sources, cost) for p in every_plan(op, sources, cores)])
    expected = np.unique(every[pareto_mask(every)].round(6), axis=0)
    front = enumerate_plans(op, chip, sources, cost, keep=10**6)
    found = np.stack([getattr(front, name) for name in OBJECTIVES], axis=1)
    np.testing.assert_allclose(np.unique(found.round(6), axis=0), expected, rtol=1e-9)
    for i, plan in enumerate(front):
        assert plan_errors(op, plan, cores) == []
        np.testing.assert_allclose(scalar_costs(op, plan, sources, cost), found[i], rtol=1e-9)
