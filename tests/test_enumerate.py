"""Plan enumeration: complete against brute force, exact in memory, legal throughout."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from elk_ir.chips.chip import Chip
from elk_ir.chips.load import load_chip
from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.numerics.body import Body, Instr, dtype_of
from elk_ir.plan import search
from elk_ir.plan.batch import Batch, Machine, Open, evaluate, plan_at
from elk_ir.plan.buffers import (
    ALIGNMENT_BYTES,
    Source,
    execute_buffers,
    peak_bytes,
    rotating_dims,
    shift_count,
    slab_bytes,
)
from elk_ir.plan.candidates import grid_factors, grids
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Phase, Stat
from elk_ir.plan.enumerate import PlanFront, enumerate_plans, smallest_plan
from elk_ir.plan.pareto import covered, pareto_mask, spread
from elk_ir.plan.plan import Plan, Reduce, normal_form, plan_errors, with_default_scatter
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


def merged_attention(b: int, g: int, kv: int, e: int) -> Operator:
    """Attention of g heads that share keys, its heads merged with their values in the result."""
    low = float("-inf")
    return Operator(
        "attention",
        (Dim("b", b), Dim("g", g), Dim("kv", kv, R), Dim("e", e, L), Dim("d", e, L)),
        (
            Access((b, g, e), "float16", axes(0, 1, 4)),
            Access((b, kv, e), "float16", axes(0, 2, 4)),
            Access((b, kv, e), "float16", axes(0, 2, 3)),
        ),
        (Access((b, g * e), "float16", (AxisExpr(((0, 1),)), AxisExpr(((1, e), (3, 1))))),),
        (
            Stat("max", (0, 1), "float32", low),
            Stat("sum", (0, 1), "float32", 0.0),
            Stat("out", (0, 1, 3), "float32", 0.0),
        ),
        (("scale", 1.0),),
        4.0,
    )


def rms_norm(m: int, k: int) -> Operator:
    stats = (Stat("squares", (0,), "float32", 0.0),)
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
                below = [
                    x
                    for x in tuples(op, v, share)
                    if all(b % a == 0 for a, b in zip(x, p, strict=True))
                ]
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
    op: Operator, plan: Plan, sources: tuple[Source, ...], cost: CostModel, chip: Chip
) -> tuple[float, int, int, int]:
    """(cycles, peak bytes, exchange bytes, preload bytes) of one plan, written from docs/plans.md
    on the layouts of `sharding`."""
    s = sharding(op, plan)
    sync = chip.sync_cycles
    span = chip.network.exchange_span_factor if plan.cores > chip.cores_per_chip else 1.0
    buffers = execute_buffers(op, plan, sources, (False,) * len(op.operands))
    cycles = 0.0
    # Distribution.
    spread_bytes, kept = 0, 0
    for v, access in enumerate(op.operands):
        if sources[v] is not HBM or plan.preload[v] == plan.execute[v]:
            continue
        held = layout(s.execute_layout(v).elements, access.dtype)
        piece = layout(s.preload_layout(v).elements, access.dtype)
        pieces = prod(plan.preload[v]) // prod(plan.execute[v])
        moved = held if access.phase is Phase.APPLY else min((pieces - 1) * piece, held)
        spread_bytes += moved
        kept += min(piece, held - moved)
    if spread_bytes:
        flow = one(cost.exchange_cycles, spread_bytes) * span
        port = 2 * (spread_bytes + kept) / chip.local_bytes_per_cycle
        cycles += max(flow, port) + 2 * sync
    # Rings.
    ring_bytes = 0
    kept_dims = {d for t in op.stats for d in t.dims} | op.result_dims
    blocks = prod(n for d, n in enumerate(s.rings) if d in kept_dims)
    if op.stats:
        for i, stat in enumerate(op.stats):
            whole = layout(s.stat_layout(i).elements, stat.dtype)
            cycles += float(cost.fill_cycles(np.asarray([whole]))[0])
        step = float(cost.tile_cycles(op, np.asarray([s.block]))[0])
        cycles += s.steps * step
        for d in s.ring_order:
            slabs = [
                slab_bytes(s, v, d) for v in range(len(op.operands)) if d in rotating_dims(s, v)
            ]
            slab = sum(slabs)
            copies = sum(float(cost.copy_cycles(np.asarray([b]))[0]) for b in slabs)
            cycles += shift_count(s, d) * copies
            ring_bytes += shift_count(s, d) * slab
            shift = float(cost.shift_cycles(np.asarray([slab]))[0]) * span
            if chip.exchange_overlaps_compute:
                # The computation that a shift hides is counted once.
                cycles += shift_count(s, d) * (max(step, shift) + sync - step)
            else:
                cycles += shift_count(s, d) * (shift + 2 * sync)
    # Reduction.
    reduction = 0
    if op.stats and s.ways > 1:
        merged = [s.merged_layout(i).elements for i in range(len(op.stats))]
        reduction = sum(
            e * (s.ways - 1) * dtype_of(t.dtype).itemsize
            for e, t in zip(merged, op.stats, strict=True)
        )
        own = sum(e * dtype_of(t.dtype).itemsize for e, t in zip(merged, op.stats, strict=True))
        flow = one(cost.exchange_cycles, reduction) * span
        cycles += max(flow, 2 * (reduction + own) / chip.local_bytes_per_cycle) + 2 * sync
        ways, elements = np.asarray([s.ways]), np.asarray([sum(merged) // blocks])
        cycles += blocks * float(cost.combine_cycles(op, ways, elements)[0])
    # Apply, block by block of the piece that the reduction leaves.
    box = apply_box(s)
    cycles += blocks * float(cost.apply_cycles(op, np.asarray([box]))[0])
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
        box.append(1 if whole else axis.block)
    return box


CASES = {
    "product": (contract(24, 40, 96), (RESIDENT, HBM), 6),
    "product-primes": (contract(5, 7, 31), (HBM, HBM), 7),
    "product-bias": (contract(12, 64, 24, bias=True), (RESIDENT, HBM, HBM), 4),
    "product-vector": (contract(1, 90, 160), (RESIDENT, HBM), 8),
    "product-square": (contract(64, 64, 64), (RESIDENT, RESIDENT), 8),
    "attention": (attention(2, 6, 20, 16), (RESIDENT, HBM, HBM), 3),
    "attention-merged": (merged_attention(2, 3, 20, 4), (RESIDENT, RESIDENT, RESIDENT), 8),
    "norm": (rms_norm(3, 100), (RESIDENT, HBM), 8),
    "map": (added(50, 60), (RESIDENT, HBM), 8),
    "convolution": (convolution(16, 12, 20, 3), (RESIDENT, HBM), 6),
    "merged": (merged_heads(2, 3, 4), (RESIDENT,), 8),
}


CHIPS = {
    "test-16": CHIP,
    # Shifts that cost little make rings worth while; on two chips exchanges are slower.
    "cheap": CHIP.with_fields({"sync_cycles": 2.0, "network.port_in_bytes_per_s": 64e9}),
    "overlapped": CHIP.with_fields({"exchange_overlaps_compute": True, "sync_cycles": 5.0}),
}


def chip_of(name: str, cores: int) -> Chip:
    return CHIPS[name].with_fields({"cores_per_chip": cores})


@pytest.mark.parametrize(
    ("name", "chip_name"),
    [
        *((name, "test-16") for name in CASES),
        ("product-primes", "cheap"),
        ("product-square", "cheap"),
        ("product-primes", "overlapped"),
    ],
)
def test_front_equals_brute_force(name: str, chip_name: str) -> None:
    op, sources, cores = CASES[name]
    chip = chip_of(chip_name, cores)
    cost = device_model(chip)
    plans = every_plan(op, sources, cores)
    every = np.asarray([scalar_costs(op, p, sources, cost, chip) for p in plans])
    expected = np.unique(every[pareto_mask(every)].round(6), axis=0)
    front = enumerate_plans(op, chip, sources, cost, keep=10**6)
    found = table_of(front)
    np.testing.assert_allclose(np.unique(found.round(6), axis=0), expected, rtol=1e-9)
    assert front.complete and front.tolerance == 0
    for i, plan in enumerate(front):
        assert plan_errors(op, plan, cores) == []
        np.testing.assert_allclose(scalar_costs(op, plan, sources, cost, chip), found[i], rtol=1e-9)


def table_of(front: PlanFront) -> np.ndarray:
    return np.stack([getattr(front, name) for name in OBJECTIVES], axis=1)


# ---------------------------------------------------------------------- larger spaces

LARGE = {
    "product": (contract(24, 60, 96), (RESIDENT, HBM)),
    "square": (contract(64, 128, 128), (RESIDENT, RESIDENT)),
    "primes": (contract(17, 53, 97), (HBM, HBM)),
    "bias": (contract(16, 96, 64, bias=True), (RESIDENT, HBM, HBM)),
    "attention": (attention(4, 16, 64, 32), (RESIDENT, HBM, HBM)),
    "attention-merged": (merged_attention(4, 6, 64, 32), (RESIDENT, HBM, HBM)),
    "convolution": (convolution(16, 24, 30, 3), (RESIDENT, HBM)),
    "norm": (rms_norm(7, 500), (RESIDENT, HBM)),
}


@pytest.mark.parametrize("name", LARGE)
def test_pruning_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch and bound finds the front of the whole space, here on 32 cores."""
    op, sources = LARGE[name]
    chip = chip_of("cheap", 32)
    cost = device_model(chip)
    pruned = search.search(op, Machine.of(chip), sources, cost, None, OBJECTIVES, None)

    def nothing(front: np.ndarray, costs: np.ndarray) -> np.ndarray:
        return np.zeros(costs.shape[1], dtype=bool)

    monkeypatch.setattr(search, "covered", nothing)
    whole = search.search(op, Machine.of(chip), sources, cost, None, OBJECTIVES, None, 0.0)
    assert whole.considered > pruned.considered
    tables = [np.unique(f.costs.table(OBJECTIVES).T.round(6), axis=0) for f in (pruned, whole)]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-12)


def test_tolerance_keeps_a_stand_in_for_every_plan() -> None:
    op, sources = LARGE["product"]
    chip = chip_of("cheap", 64)
    cost = device_model(chip)
    exact = enumerate_plans(op, chip, sources, cost, keep=10**6, tolerance=0.0)
    loose = enumerate_plans(op, chip, sources, cost, keep=10**6, tolerance=0.1)
    assert len(loose) < len(exact) and loose.considered < exact.considered
    ours, theirs = table_of(loose), table_of(exact)
    slack = 0.1 * theirs[:, [0, 1, 1, 1]]
    for row, room in zip(theirs, slack, strict=True):
        assert (ours <= row + room + 1e-6).all(axis=1).any()


def random_plans(op: Operator, sources: tuple[Source, ...], cores: int, seed: int) -> list[Plan]:
    """Random legal plans, whether worth while or not."""
    rng = random.Random(seed)
    columns = grids(op, cores)
    plans: list[Plan] = []
    for _ in range(700):
        grid = tuple(int(f) for f in columns[:, rng.randrange(columns.shape[1])])
        execute, preload = [], []
        for v, access in enumerate(op.operands):
            share = prod(grid[d] for d in range(len(grid)) if d not in access.dims)
            x, p = [1] * len(grid), [1] * len(grid)
            for d in rng.sample(sorted(access.dims), len(access.dims)):
                rest = [i for i in range(1, share + 1) if share % i == 0 and i <= 12]
                p[d] = rng.choice(rest)
                x[d] = rng.choice([i for i in range(1, p[d] + 1) if p[d] % i == 0])
                if sources[v] is RESIDENT:
                    p[d] = x[d]
                share //= p[d]
            execute.append(tuple(x))
            preload.append(tuple(p))
        plan = with_default_scatter(op, Plan(grid, tuple(execute), tuple(preload)))
        if not plan_errors(op, plan, cores):
            plans.append(plan)
    return list(dict.fromkeys(plans))


def batch_of(plan: Plan) -> Batch:
    rank = range(len(plan.grid))
    execute, ratio = {}, {}
    for v, (x, p) in enumerate(zip(plan.execute, plan.preload, strict=True)):
        for d in rank:
            execute[v, d] = np.asarray([x[d]])
            ratio[v, d] = np.asarray([p[d] // x[d]])
    grid = np.asarray([plan.grid], dtype=np.int64).T
    return Batch(grid, execute, ratio, plan.reduce, plan.scatter_dim)


@pytest.mark.parametrize("name", LARGE)
def test_costs_and_memory_of_random_plans(name: str) -> None:
    """Any plan, not only those on fronts: bytes equal `execute_buffers`, cycles the scalar sum."""
    op, sources = LARGE[name]
    chip = CHIP.with_fields({"cores_per_chip": 24, "chips": 2})
    cost = device_model(chip)
    plans = random_plans(op, sources, chip.cores, seed=len(name))
    assert len(plans) > 20
    for plan in plans:
        batch = batch_of(plan)
        costs = evaluate(op, Machine.of(chip), sources, cost, batch)
        ordered = plan_at(op, batch, 0)
        assert ordered.execute == plan.execute and ordered.preload == plan.preload
        found = [float(getattr(costs, n)[0]) for n in OBJECTIVES]
        np.testing.assert_allclose(
            found, scalar_costs(op, ordered, sources, cost, chip), rtol=1e-9, err_msg=str(plan)
        )
    if name in ("square", "primes"):
        assert any(plan_at(op, batch_of(p), 0).ring_order for p in plans)
        assert any(sum(max(x) > 1 for x in p.execute) > 1 for p in plans)


def test_bounds_hold_for_every_descendant() -> None:
    """What is open costs at least its bound: grids against random plans on them."""
    op, sources = LARGE["primes"]
    chip = CHIP.with_fields({"cores_per_chip": 48})
    machine, cost = Machine.of(chip), device_model(chip)
    everything = Open(frozenset({0, 1}), frozenset({0, 1}))
    for plan in random_plans(op, sources, chip.cores, seed=3):
        grid = np.asarray([plan.grid], dtype=np.int64).T
        bare = Batch(grid, reduce=plan.reduce, scatter_dim=plan.scatter_dim)
        bound = evaluate(op, machine, sources, cost, bare, everything).table(OBJECTIVES)
        costs = evaluate(op, machine, sources, cost, batch_of(plan)).table(OBJECTIVES)
        assert (bound <= costs + 1e-9).all(), plan


def seven_dims() -> Operator:
    extents = (3, 5, 1, 7, 2, 11, 4)
    access = Access(extents, "float32", axes(*range(7)))
    body = Body(2, (Instr("mul", (0, 1)),), (2,))
    dims = tuple(Dim(f"d{i}", e) for i, e in enumerate(extents))
    return Operator("map", dims, (access, access), (access,), (), (("body", body),), 1.0)


@pytest.mark.parametrize(
    ("op", "sources"),
    [
        (seven_dims(), (RESIDENT, HBM)),
        (contract(1, 1, 1), (RESIDENT, HBM)),
        (contract(31, 1009, 127), (RESIDENT, HBM)),
        (contract(8, 64, 64, dtype="int8"), (RESIDENT, HBM)),
        (attention(32, 1, 2048, 128), (RESIDENT, HBM, HBM)),
        (convolution(3, 64, 224, 7), (RESIDENT, HBM)),
    ],
)
def test_legal_on_a_big_chip(op: Operator, sources: tuple[Source, ...]) -> None:
    chip = load_chip("ipu-pod4-hbm")
    front = enumerate_plans(op, chip, sources, device_model(chip), keep=40)
    assert 0 < len(front) <= 40
    assert (np.diff(front.execute_cycles) >= 0).all()
    for i, plan in enumerate(front):
        assert plan_errors(op, plan, chip.cores) == []
        buffers = execute_buffers(op, plan, sources, (False,) * len(sources))
        assert peak_bytes(buffers) == front.execute_bytes[i] <= chip.usable_sram_per_core_bytes
        assert sum(b.size_bytes for b in buffers if b.role == "preload") == front.preload_bytes[i]
        assert front.landing_bytes[i] == front.preload_bytes[i] * plan.cores


def test_budget_and_smallest_plan() -> None:
    op, sources = contract(64, 256, 512), (RESIDENT, HBM)
    cost = device_model(CHIP)
    plan, least = smallest_plan(op, CHIP, sources, cost)
    assert plan_errors(op, plan, CHIP.cores) == []
    buffers = execute_buffers(op, plan, sources, (False, False))
    assert peak_bytes(buffers) == least
    assert len(enumerate_plans(op, CHIP, sources, cost, budget_bytes=least - 1)) == 0
    only = enumerate_plans(op, CHIP, sources, cost, budget_bytes=least)
    assert len(only) > 0 and (only.execute_bytes == least).all()
    front = enumerate_plans(op, CHIP, sources, cost, keep=10**6)
    assert least <= front.execute_bytes.min()
    assert len(enumerate_plans(op, CHIP, sources, cost, keep=5)) == 5


def test_reductions_can_be_asked_for() -> None:
    op, sources = contract(4, 8, 256), (RESIDENT, HBM)
    for reduce in (Reduce.ROOT, Reduce.ALL):
        front = enumerate_plans(op, CHIP, sources, device_model(CHIP), reduce=reduce)
        split = [p for p in front if p.grid[2] > 1]
        assert split and all(p.reduce is reduce for p in split)


def test_cached_by_what_matters_of_the_chip() -> None:
    op, sources = contract(8, 16, 32), (RESIDENT, HBM)
    slower = CHIP.with_fields({"hbm.bandwidth_bytes_per_s": 1e9, "name": "slower memory"})
    first = enumerate_plans(op, CHIP, sources, device_model(CHIP))
    assert enumerate_plans(op, slower, sources, device_model(slower)) is first
    port = CHIP.with_fields({"network.port_in_bytes_per_s": 1e9})
    assert enumerate_plans(op, port, sources, device_model(port)) is not first


def test_landing_counts_without_multicast() -> None:
    """Where controllers send every copy, plans that land fewer bytes in all stay on the front."""
    op, sources = contract(24, 40, 96), (RESIDENT, HBM)
    unicast = CHIP.with_fields({"hbm.multicast": False})
    more = enumerate_plans(op, unicast, sources, device_model(unicast))
    less = enumerate_plans(op, CHIP, sources, device_model(CHIP))
    assert more.landing_bytes.min() <= less.landing_bytes.min() and len(more) >= len(less)


def test_a_statistic_without_the_dimension_forbids_a_ring() -> None:
    op = attention(2, 4, 8, 4)
    plan = Plan(
        (1, 4, 1, 1, 1), ((1,) * 5, (1,) * 5, (1, 1, 1, 4, 1)), ((1,) * 5,) * 2 + ((1, 1, 1, 4, 1),)
    )
    assert any("can't rotate" in e for e in plan_errors(op, plan, 16))


# ---------------------------------------------------------------------- Pareto


@pytest.mark.parametrize(
    ("n", "k", "levels"), [(1, 3, 5), (700, 2, 30), (1200, 4, 6), (1500, 5, 9)]
)
def test_pareto_mask_is_exact(n: int, k: int, levels: int) -> None:
    rng = np.random.default_rng(n + k)
    costs = rng.integers(0, levels, (n, k)).astype(float) + rng.integers(0, 2, (n, 1))
    expected = np.zeros(n, dtype=bool)
    for i, row in enumerate(costs):
        no_larger = (costs <= row).all(axis=1)
        better = no_larger & (costs < row).any(axis=1)
        equal_before = no_larger[:i] & ~better[:i]
        expected[i] = not better.any() and not equal_before.any()
    assert (pareto_mask(costs) == expected).all()


def test_pareto_mask_of_a_million() -> None:
    costs = np.random.default_rng(0).random((1_000_000, 4)).round(3)
    mask = pareto_mask(costs)
    front = costs[mask]
    assert 0 < front.shape[0] < 20_000
    assert covered(front.T, costs.T).all()
    assert pareto_mask(front).all()


def test_empty_and_constant_tables() -> None:
    assert pareto_mask(np.zeros((0, 4))).shape == (0,)
    assert pareto_mask(np.ones((9, 3))).tolist() == [True] + [False] * 8


def test_spread_keeps_the_extremes() -> None:
    table = np.stack([np.arange(1.0, 101.0), np.arange(100.0, 0.0, -1.0)])
    chosen = spread(table, 7)
    assert len(chosen) == 7 and {0, 99} <= set(chosen.tolist())
    assert spread(table, 100).tolist() == list(range(100))


def test_grid_factors_are_all_normal_forms() -> None:
    for extent in (0, 1, 2, 7, 12, 97, 100, 1000):
        expected = sorted({normal_form(extent, f) for f in range(1, min(extent, 300) + 1)} or {1})
        assert grid_factors(extent, 300).tolist() == [f for f in expected if f <= 300]
