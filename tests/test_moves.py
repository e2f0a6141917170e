"""Layouts, rings, distribution, reduction and re-layout against their definition, core by core.

The definition (DESIGN section 4) is written down again here with integers and sets, one core at a
time, and shares nothing with the expressions and interval algebra of `elk_ir.plan`.
"""

from __future__ import annotations

import itertools
import os
from math import prod

import numpy as np
import pytest
from helpers import parse
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from operators import CASES, plans

from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.plan import domain
from elk_ir.plan.domain import Access, Operator
from elk_ir.plan.expr import CORE, const
from elk_ir.plan.layout import AxisLayout, Cut, Layout
from elk_ir.plan.moves import moves
from elk_ir.plan.plan import Plan, Reduce
from elk_ir.plan.sharding import Sharding

Box = tuple[tuple[int, int], ...]
SETTINGS = settings(
    max_examples=int(os.environ.get("ELK_EXAMPLES", "20")),
    derandomize="ELK_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# ---------------------------------------------------------------------- the definition


def digits(number: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major digits."""
    out = []
    for size in reversed(sizes):
        out.append(number % size)
        number //= size
    return tuple(reversed(out))


class Definition:
    """What each core holds, from the definition."""

    def __init__(self, op: Operator, plan: Plan):
        self.op, self.plan = op, plan
        self.rank = len(op.dims)
        self.tile = [-(-e // f) for e, f in zip(op.extents, plan.grid, strict=True)]
        self.steps = [max([x[d] for x in plan.execute], default=1) for d in range(self.rank)]
        self.block = [-(-t // n) for t, n in zip(self.tile, self.steps, strict=True)]
        self.ways = prod(plan.grid[d] for d in op.reductions)

    def place(self, core: int) -> tuple[int, ...]:
        """Grid coordinates of a core: digits of its number, those of the dimensions that the
        largest operand has first, each by position."""
        operands = self.op.operands
        sizes = [prod(a.shape) * itemsize(a.dtype) for a in operands]
        has = operands[sizes.index(max(sizes))].dims if sizes else range(self.rank)
        order = [d for d in range(self.rank) if d in has]
        order += [d for d in range(self.rank) if d not in has]
        found = digits(core, tuple(self.plan.grid[d] for d in order))
        return tuple(found[order.index(d)] for d in range(self.rank))

    def number(self, core: int, dims: list[int]) -> int:
        """Rank of a core among those that differ only in `dims`."""
        g, rank = self.place(core), 0
        for d in dims:
            rank = rank * self.plan.grid[d] + g[d]
        return rank

    def rank_of(self, core: int, v: int) -> int:
        """Rank among the cores that share operand v's slice."""
        return self.number(core, [d for d in range(self.rank) if d not in self.op.operands[v].dims])

    def piece(self, core: int, v: int) -> tuple[int, ...]:
        """Index of the execute-state piece, a dimension."""
        x = self.plan.execute[v]
        return digits(self.rank_of(core, v) % prod(x), x)

    def sub_piece(self, core: int, v: int) -> tuple[int, ...]:
        """Index of the preload sub-piece within the piece."""
        x, p = self.plan.execute[v], self.plan.preload[v]
        q = tuple(b // a for a, b in zip(x, p, strict=True))
        return digits(self.rank_of(core, v) // prod(x) % prod(q), q)

    def start(self, core: int, d: int) -> int:
        """Ring block along d with which a core begins (skewed where several operands rotate)."""
        total = 0
        for v, x in enumerate(self.plan.execute):
            if x[d] > 1:
                total += self.piece(core, v)[d] * (self.steps[d] // x[d])
        return total % self.steps[d]

    def interval(self, core: int, d: int, block: int) -> tuple[int, int]:
        """Points of ring block `block` of the core's tile along d."""
        lo = self.place(core)[d] * self.tile[d]
        hi = min(lo + self.tile[d], self.op.extents[d])
        lo = lo + block * self.block[d]
        return lo, min(lo + self.block[d], hi)

    def scattered(self, core: int, d: int, interval: tuple[int, int]) -> tuple[int, int]:
        """The part of an interval that a scattered reduction leaves on a core."""
        if self.ways == 1 or self.plan.reduce is not Reduce.SCATTER or d != self.plan.scatter_dim:
            return interval
        size = -(-self.block[d] // self.ways)
        lo = interval[0] + self.number(core, list(self.op.reductions)) * size
        return lo, min(lo + size, interval[1])

    def iteration(self, core: int, blocks: dict[int, int]) -> Box:
        """The iteration box of a core for a choice of ring blocks."""
        return tuple(self.interval(core, d, blocks.get(d, 0)) for d in range(self.rank))


def image(access: Access, box: Box) -> Box:
    """Indices that an access reaches from an iteration box, clipped to the tensor."""
    if any(hi <= lo for lo, hi in box):
        return tuple((0, 0) for _ in access.shape)
    out = []
    for axis, extent in zip(access.axes, access.shape, strict=True):
        ends = [k * (box[d][0] if k > 0 else box[d][1] - 1) for d, k in axis.terms]
        far = [k * (box[d][1] - 1 if k > 0 else box[d][0]) for d, k in axis.terms]
        lo, hi = axis.offset + sum(ends), axis.offset + sum(far) + 1
        out.append((max(0, lo), min(hi, extent)))
    return tuple(out)


def boxes(layout: Layout) -> dict[tuple[int, tuple[int, ...]], Box]:
    """The box of every core and slot, empty ones left out."""
    found = {}
    for core in range(layout.cores):
        if layout.guard is not None and layout.guard.evaluate(c=core) != 0:
            continue
        for slot in itertools.product(*(range(n) for n in layout.slots)):
            box = tuple((int(a), int(b)) for a, b in layout.bounds[(core, *slot)])
            if all(b > a for a, b in box):
                found[core, slot] = box
    return found


def inside(box: Box, other: Box) -> bool:
    return all(a >= c and b <= d for (a, b), (c, d) in zip(box, other, strict=True))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in box)))


@st.composite
def planned(draw: st.DrawFn, kinds: list[str]) -> tuple[Operator, Plan]:
    case = draw(CASES[draw(st.sampled_from(kinds))])
    module = parse(case.text((False,) * len(case.operands)))
    op = [o for o in module.walk() if isinstance(o, StructuredOp)][-1].operator()
    return op, draw(plans(op, draw(st.sampled_from([6, 8, 16]))))


ALL = sorted(CASES)
RINGS = ["attention", "contract", "gather", "reduce"]


# ---------------------------------------------------------------------- rings


@pytest.mark.parametrize("kinds", [ALL, RINGS, ["contract"]])
def test_rings(kinds: list[str]) -> None:
    """Every point is computed once; at each step each core has the blocks that it computes with."""

    @SETTINGS
    @given(planned(kinds))
    def run(case: tuple[Operator, Plan]) -> None:
        op, plan = case
        s, definition = Sharding(op, plan), Definition(op, plan)
        computed = np.zeros(op.extents, dtype=np.int64)
        # What each core holds, by operand and slot; shifted below as the rings turn.
        held = [boxes(s.execute_layout(v)) for v in range(len(op.operands))]
        local = [v for v, a in enumerate(op.operands) if a.phase is not domain.Phase.APPLY]
        for v in local:
            check_start(definition, s, v, held[v])
        for step in range(s.steps):
            for core in range(plan.cores):
                blocks = {
                    d: (definition.start(core, d) + s.position(d, step)) % s.rings[d]
                    for d in range(len(op.dims))
                }
                box = definition.iteration(core, blocks)
                at = tuple(s.position(d, step) % n for d, n in enumerate(s.rings))
                mine = s.iteration_layout().bounds[(core, *at)]
                if all(b > a for a, b in box):
                    assert tuple(map(tuple, mine.tolist())) == box
                    computed[tuple(slice(a, b) for a, b in box)] += 1
                    for v in local:
                        wanted = image(op.operands[v], box)
                        slot = slot_of(s, v, step)
                        if all(b > a for a, b in wanted):
                            assert inside(wanted, held[v][core, slot])
                else:
                    assert (mine[:, 1] <= mine[:, 0]).any()
            for d in s.shifts_after(step):
                for v in range(len(op.operands)):
                    if plan.execute[v][d] > 1:
                        held[v] = shifted(s, v, d, step, held[v])
        assert (computed == 1).all()

    run()


def slot_of(s: Sharding, v: int, step: int) -> tuple[int, ...]:
    """The slot of operand v that is read at a step: position modulo window."""
    access = s.op.operands[v]
    dims = {j: d for d, j in access.simple.items()}
    return tuple(
        s.position(dims[j], step) % s.window(v, dims[j]) if j in dims else 0
        for j in range(len(access.axes))
    )


def shifted(
    s: Sharding, v: int, d: int, step: int, held: dict[tuple[int, tuple[int, ...]], Box]
) -> dict[tuple[int, tuple[int, ...]], Box]:
    """After one shift: each core has its ring neighbour's block in the consumed slot."""
    axis = s.op.operands[v].simple[d]
    slot = s.position(d, step) % s.window(v, d)
    cores = np.arange(s.plan.cores)
    source = np.broadcast_to(s.ring_source(v, d).evaluate(c=cores), cores.shape)
    assert sorted(source.tolist()) == cores.tolist(), "a shift is a permutation of the cores"
    out = {key: box for key, box in held.items() if key[1][axis] != slot}
    for core in cores.tolist():
        for (sender, where), box in held.items():
            if sender == source[core] and where[axis] == slot:
                out[core, where] = box
    return out


def check_start(
    definition: Definition, s: Sharding, v: int, held: dict[tuple[int, tuple[int, ...]], Box]
) -> None:
    """Slot j holds ring block start + j; the window is the piece of the operand's rank."""
    access = s.op.operands[v]
    for core in range(s.plan.cores):
        piece = definition.piece(core, v)
        for d, j in access.simple.items():
            window = s.rings[d] // s.plan.execute[v][d]
            blocks = [(definition.start(core, d) + i) % s.rings[d] for i in range(window)]
            if sum(x[d] > 1 for x in s.plan.execute) == 1 and s.plan.execute[v][d] > 1:
                assert blocks == [piece[d] * window + i for i in range(window)]
            for (who, slot), box in held.items():
                if who == core:
                    assert box[j] == definition.interval(core, d, blocks[slot[j]])


# ---------------------------------------------------------------------- distribution


def test_distribution() -> None:
    """Preload pieces are those of the definition, make up every execute piece, and arrive once."""

    @SETTINGS
    @given(planned(ALL))
    def run(case: tuple[Operator, Plan]) -> None:
        op, plan = case
        s, definition = Sharding(op, plan), Definition(op, plan)
        for v, access in enumerate(op.operands):
            if plan.preload[v] == plan.execute[v]:
                assert s.preload_layout(v) == s.execute_layout(v)
                continue
            have, want = boxes(s.preload_layout(v)), boxes(s.execute_layout(v))
            for (core, slot), box in have.items():
                sub = definition.sub_piece(core, v)
                for d, j in access.simple.items():
                    q = plan.preload[v][d] // plan.execute[v][d]
                    if q == 1:
                        continue
                    block = (definition.start(core, d) + slot[j]) % s.rings[d]
                    lo, hi = definition.interval(core, d, block)
                    size = -(-definition.block[d] // q)
                    start = lo + sub[d] * size
                    assert box[j] == (start, min(start + size, hi))
            for core in range(plan.cores):
                peers = [c for c in range(plan.cores) if same_piece(definition, core, c, v)]
                wanted = set().union(*(elements(b) for (c, _), b in want.items() if c == core))
                found = set().union(*(elements(b) for (c, _), b in have.items() if c in peers))
                assert wanted <= found
            check_moves(s.preload_layout(v), s.execute_layout(v))

    run()


def same_piece(definition: Definition, a: int, b: int, v: int) -> bool:
    dims = definition.op.operands[v].dims
    g, h = definition.place(a), definition.place(b)
    return all(g[d] == h[d] for d in dims) and (
        definition.op.operands[v].phase is domain.Phase.APPLY
        or definition.piece(a, v) == definition.piece(b, v)
    )


# ---------------------------------------------------------------------- reduction


def test_reduction() -> None:
    """Each partial goes once to whoever merges it; results are where scatter, root or all says."""

    @SETTINGS
    @given(planned(["attention", "contract", "convolution", "gather", "reduce", "softmax"]))
    def run(case: tuple[Operator, Plan]) -> None:
        op, plan = case
        s, definition = Sharding(op, plan), Definition(op, plan)
        reductions = list(op.reductions)
        for i, stat in enumerate(op.stats):
            full = np.zeros((s.ways, *(op.extents[d] for d in stat.dims)), dtype=np.int64)
            for (core, _), box in boxes(s.stat_layout(i)).items():
                rank = definition.number(core, reductions)
                assert box[0] == (rank, rank + 1)
                full[tuple(slice(a, b) for a, b in box)] += 1
            assert (full >= 1).all()
            check_moves(s.stat_layout(i), s.gathered_layout(i))
            merged = boxes(s.merged_layout(i))
            for (core, slot), box in boxes(s.gathered_layout(i)).items():
                assert box[0] == (0, s.ways)
                assert merged[core, slot[1:]] == box[1:]
            for (core, slot), box in merged.items():
                rank = definition.number(core, reductions)
                assert rank == 0 or plan.reduce is not Reduce.ROOT or s.ways == 1
                for d, got, j in zip(stat.dims, box, slot, strict=True):
                    block = (definition.start(core, d) + j) % s.rings[d]
                    whole = definition.interval(core, d, block)
                    assert got == definition.scattered(core, d, whole)
        for i, result in enumerate(op.results):
            covered = np.zeros(result.shape, dtype=np.int64)
            for box in boxes(s.result_layout(i)).values():
                covered[tuple(slice(a, b) for a, b in box)] += 1
            assert (covered >= 1).all()
            if s.ways > 1 and plan.reduce is Reduce.SCATTER and not op.broadcasts_back:
                lacking = [d for d in range(len(op.dims)) if d not in result.dims]
                copies = prod(plan.grid[d] for d in lacking if d not in reductions)
                assert (covered == copies).all()

    run()


# ---------------------------------------------------------------------- re-layout


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """A layout of nested cuts over up to 12 cores, with gaps, copies, halos and a guard."""
    cores = draw(st.integers(1, 12))
    axes, left, stride = [], cores, 1
    for extent in shape:
        factor = draw(st.sampled_from([f for f in (1, 2, 3, 4) if f <= left]))
        left //= factor
        size = -(-extent // factor)
        cuts = []
        if factor > 1:
            cuts.append(Cut((CORE // stride) % factor * size, size))
            stride *= factor
            if size > 1 and draw(st.booleans()):
                cuts.append(Cut((CORE // stride) % 2 * -(-size // 2), -(-size // 2)))
        elif draw(st.booleans()):
            cuts.append(Cut(const(-1), extent + 2))
        axes.append(AxisLayout(extent, tuple(cuts)))
    guard = (CORE // stride) % 2 if draw(st.booleans()) else None
    return Layout(cores, tuple(axes), guard)


def address(layout: Layout, core: int, slot: tuple[int, ...], index: tuple[int, ...]) -> int:
    """Where an element lies: row-major over slots, then over a full block."""
    at = 0
    for s, n in zip(slot, layout.slots, strict=True):
        at = at * n + s
    for j, i in enumerate(index):
        at = at * layout.block_shape[j] + (i - int(layout.origins[(core, *slot)][j]))
    return at


def check_moves(source: Layout, target: Layout, axis: int | None = None, start: int = 0) -> None:
    """Every element of every target box that some core holds arrives once, from a core that holds
    it, from the same core where possible."""

    def move(index: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i + (start if j == axis else 0) for j, i in enumerate(index))

    ids: dict[tuple[int, int], tuple[int, ...]] = {}
    holders: dict[tuple[int, ...], set[int]] = {}
    for (core, slot), box in boxes(source).items():
        for index in elements(box):
            ids[core, address(source, core, slot, index)] = move(index)
            holders.setdefault(move(index), set()).add(core)
    arrived: dict[tuple[int, int], tuple[int, ...]] = {}
    for a, b, c, d in zip(
        *(x.tolist() for x in moves(source, target, axis, start).flat()), strict=True
    ):
        assert (c, d) not in arrived, "an element arrives twice"
        arrived[c, d] = ids[a, b]
        assert a == c or c not in holders[ids[a, b]], "an element moves although it is here"
    wanted = {
        (core, address(target, core, slot, index)): index
        for (core, slot), box in boxes(target).items()
        for index in elements(box)
        if index in holders
    }
    assert arrived == wanted


@SETTINGS
@given(st.data())
def test_relayout(data: st.DataObject) -> None:
    """Any layout into any other, and entries into a larger tensor."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=0, max_size=3)))
    axis, start, wide = None, 0, shape
    if shape and data.draw(st.booleans()):
        axis = data.draw(st.integers(0, len(shape) - 1))
        start = data.draw(st.integers(0, 3))
        wide = tuple(n + start + 1 if j == axis else n for j, n in enumerate(shape))
    check_moves(data.draw(layouts(shape)), data.draw(layouts(wide)), axis, start)


@pytest.mark.parametrize("kinds", [ALL])
def test_relayout_between_operators(kinds: list[str]) -> None:
    """From the results of an operator under one plan to the same under another."""

    @SETTINGS
    @given(st.data())
    def run(data: st.DataObject) -> None:
        op, plan = data.draw(planned(kinds))
        other = data.draw(plans(op, 16))
        for i in range(len(op.results)):
            check_moves(Sharding(op, plan).result_layout(i), Sharding(op, other).result_layout(i))

    run()
