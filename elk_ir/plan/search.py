"""Branch and bound over the plans of one operator (docs/plans.md).

Levels: grids with what a split reduction leaves; then the ring factors of one operand after the
other; then the cut factors of one preload after the other. A batch of partial plans is bounded
(`evaluate` with what is `Open`), and rows are dropped that exceed the budget or that some plan
already found equals or beats in every objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.batch import (
    DECIDED,
    Batch,
    Costs,
    Geometry,
    Machine,
    Open,
    concatenate_costs,
    evaluate,
)
from elk_ir.plan.buffers import Source
from elk_ir.plan.candidates import (
    cuttable,
    expand_factors,
    factorisation_count,
    grids,
    rotatable,
)
from elk_ir.plan.domain import Operator
from elk_ir.plan.pareto import covered, pareto_mask
from elk_ir.plan.plan import Reduce, outer_of, scatter_candidates

_CHUNK = 1 << 13
_EXPANDED = 1 << 18
LADDER = (
    (1_000_000, 0.01),
    (2_000_000, 0.02),
    (3_000_000, 0.05),
    (4_000_000, 0.1),
    (6_000_000, 0.3),
)
"""Once so many plans have been considered, the tolerance rises to so much: a bound on time."""


@dataclass(frozen=True)
class Found:
    """The front: costs by row, and the batch and row that each comes from."""

    costs: Costs
    batches: tuple[Batch, ...]
    batch: np.ndarray
    row: np.ndarray
    considered: int
    tolerance: float

    def locate(self, i: int) -> tuple[Batch, int]:
        """The batch and the row in it of entry i."""
        return self.batches[int(self.batch[i])], int(self.row[i])


@dataclass(frozen=True)
class _Step:
    """One level: the ring factors of operand v along `dims`, or the cut factors of its preload."""

    v: int
    dims: tuple[int, ...]
    ring: bool


def search(
    op: Operator,
    machine: Machine,
    sources: tuple[Source, ...],
    cost: CostModel,
    budget: int | None,
    objectives: tuple[str, ...],
    reduce: Reduce | None,
    tolerance: float | None = None,
) -> Found:
    """The non-dominated plans of `op` in `objectives` that fit `budget` bytes a core.

    With a tolerance every plan left out has one in the answer that is at most that much worse:
    in cycles and landing bytes relative to the plan's own, in other bytes to its execute bytes.
    None: exact, but rising by `LADDER` in spaces that are too large; fast plans come first.
    """
    return _Search(op, machine, sources, cost, budget, objectives, tolerance).run(reduce)


class _Search:
    def __init__(
        self,
        op: Operator,
        machine: Machine,
        sources: tuple[Source, ...],
        cost: CostModel,
        budget: int | None,
        objectives: tuple[str, ...],
        tolerance: float | None,
    ) -> None:
        self.op, self.machine, self.sources, self.cost = op, machine, sources, cost
        self.budget, self.objectives = budget, objectives
        self.columns = grids(op, machine.cores)
        self.steps = self.plan_steps()
        self.ladder = LADDER if tolerance is None else ()
        self.tolerance = tolerance or 0.0
        self.batches: list[Batch] = []
        self.costs: list[Costs] = []
        self.archive = np.zeros((len(objectives), 0))
        self.considered = 0

    # ------------------------------------------------------------------ levels

    def plan_steps(self) -> tuple[_Step, ...]:
        """What is to be decided, in order: the operands that hold most first, as deciding them
        sharpens bounds most; how a preload is cut last, as nothing else depends on it."""
        pairs = rotatable(self.op)
        rings = [
            _Step(v, tuple(d for u, d in pairs if u == v), True)
            for v in sorted({v for v, _ in pairs})
        ]
        cuts = [
            _Step(v, tuple(cuttable(self.op, v)), False)
            for v in range(len(self.op.operands))
            if self.sources[v] is Source.HBM and cuttable(self.op, v)
        ]
        geometry = Geometry.of(self.op, Batch(self.columns))

        def size(step: _Step) -> float:
            held = geometry.held(step.v) * itemsize(self.op.operands[step.v].dtype)
            return -float(np.log(np.maximum(held, 1)).sum())

        return (*sorted(rings, key=size), *cuts)

    def run(self, reduce: Reduce | None) -> Found:
        """All levels, grids with the least bound of cycles first."""
        undecided = self.undecided(0)
        pending: list[tuple[float, Batch]] = []
        for batch in _base(self.op, self.columns, reduce):
            self.add(batch)
            bound = self.evaluate(batch, undecided)
            rows = self.promising(bound)
            rows = rows[np.argsort(bound.execute_cycles[rows], kind="stable")]
            for start in range(0, rows.size, _CHUNK):
                chunk = rows[start : start + _CHUNK]
                pending.append((float(bound.execute_cycles[chunk[0]]), batch.take(chunk)))
        if self.steps:
            for _, batch in sorted(pending, key=lambda item: item[0]):
                self.grow(batch, 0)
        return self.result()

    def grow(self, batch: Batch, level: int) -> None:
        """Decide step `level` of every row of `batch` in every way, and go on with those."""
        step = self.steps[level]
        undecided = self.undecided(level + 1)
        for part in self.portions(batch, step):
            wide = _expand(self.op, part, step)
            if level + 1 == len(self.steps):
                self.add(wide)
                continue
            bound = self.evaluate(wide, undecided)
            rows = self.promising(bound)
            if rows.size:
                self.grow(wide.take(rows), level + 1)

    def undecided(self, level: int) -> Open:
        """What the steps from `level` on will decide."""
        later = self.steps[level:]
        return Open(
            frozenset(s.v for s in later if s.ring),
            frozenset(s.v for s in later if not s.ring),
        )

    def portions(self, batch: Batch, step: _Step) -> Iterator[Batch]:
        """`batch` in pieces that do not grow beyond a bounded number of rows."""
        numbers = _free_sharing(self.op, batch, step)
        room = np.ones(batch.size)
        for cap in _caps(self.op, batch, step):
            room *= np.minimum(cap, numbers)
        ends = np.cumsum(np.minimum(_counts(numbers, len(step.dims)), room))
        start = 0
        while start < batch.size:
            base = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, base + _EXPANDED, side="right")))
            yield batch if stop - start == batch.size else batch.take(np.arange(start, stop))
            start = stop

    # ------------------------------------------------------------------ archive

    def evaluate(self, batch: Batch, undecided: Open) -> Costs:
        """Costs or bounds of a batch."""
        self.considered += batch.size
        for count, tolerance in self.ladder:
            if self.considered > count:
                self.tolerance = max(self.tolerance, tolerance)
        return evaluate(self.op, self.machine, self.sources, self.cost, batch, undecided)

    def promising(self, costs: Costs) -> np.ndarray:
        """Rows that fit and that no plan found so far equals or beats."""
        table = costs.table(self.objectives)
        rows = np.arange(table.shape[1])
        if self.budget is not None:
            rows = np.flatnonzero(costs.execute_bytes <= self.budget)
        table = table[:, rows]
        if self.tolerance:
            slack = {"execute_cycles": "execute_cycles", "landing_bytes": "landing_bytes"}
            columns = tuple(slack.get(name, "execute_bytes") for name in self.objectives)
            table = table + self.tolerance * costs.take(rows).table(columns)
        return rows[~covered(self.archive, table)]

    def add(self, batch: Batch) -> None:
        """Put the best of a batch of decided plans among those found."""
        costs = self.evaluate(batch, DECIDED)
        rows = self.promising(costs)
        if not rows.size:
            return
        rows = rows[pareto_mask(costs.take(rows).table(self.objectives).T)]
        found = costs.take(rows)
        self.batches.append(batch.take(rows))
        self.costs.append(found)
        archive = np.hstack([self.archive, found.table(self.objectives)])
        self.archive = archive[:, pareto_mask(archive.T)]

    def result(self) -> Found:
        """The front of all plans found, in the order in which they were found."""
        if not self.costs:
            nothing = np.zeros(0, dtype=np.int64)
            columns = [nothing] * len(Costs.__dataclass_fields__)
            return Found(Costs(*columns), (), nothing, nothing, self.considered, self.tolerance)
        costs = concatenate_costs(self.costs)
        batch = np.concatenate([np.full(b.size, i) for i, b in enumerate(self.batches)])
        row = np.concatenate([np.arange(b.size) for b in self.batches])
        rows = np.flatnonzero(pareto_mask(costs.table(self.objectives).T))
        return Found(
            costs.take(rows),
            tuple(self.batches),
            batch[rows],
            row[rows],
            self.considered,
            self.tolerance,
        )


def _base(op: Operator, columns: np.ndarray, reduce: Reduce | None) -> Iterator[Batch]:
    """All grids, with every way to leave a split reduction that may be on the front.

    Scattering is never worse than `root` or `all`; those are used where nothing can be scattered
    or where the caller asks for one of them.
    """
    split = columns[list(op.reductions)].prod(axis=0) > 1
    if not split.all():
        yield Batch(columns[:, ~split])
    if not split.any():
        return
    if op.broadcasts_back:
        reduce = Reduce.ALL
    candidates = scatter_candidates(op) if reduce in (None, Reduce.SCATTER) else []
    left = split.copy()
    for d in candidates:
        legal = split.copy()
        for e in outer_of(op, d):
            legal &= columns[e] >= op.extents[e]  # one point a core
        left &= ~legal
        if legal.any():
            yield Batch(columns[:, legal], scatter_dim=d)
    if left.any() and reduce is not Reduce.SCATTER:
        yield Batch(columns[:, left], reduce=reduce or Reduce.ALL)


def _counts(numbers: np.ndarray, parts: int) -> np.ndarray:
    """factorisation_count of every number."""
    values, inverse = np.unique(numbers, return_inverse=True)
    return np.asarray([factorisation_count(int(v), parts) for v in values])[inverse]


def _free_sharing(op: Operator, batch: Batch, step: _Step) -> np.ndarray:
    """How many ways operand v can still be cut: S_v / x_v."""
    dims = op.operands[step.v].dims
    shared = batch.grid[[d for d in range(len(op.dims)) if d not in dims]].prod(axis=0)
    for (u, _), x in batch.execute.items():
        if u == step.v:
            shared = shared // x
    return shared


def _caps(op: Operator, batch: Batch, step: _Step) -> list[np.ndarray]:
    """The most pieces along each dimension of `step`: a point of the tile each."""
    caps: list[np.ndarray] = []
    for d in step.dims:
        tile = -(-op.extents[d] // batch.grid[d])
        x = batch.execute.get((step.v, d))
        caps.append(np.maximum(tile if x is None else tile // x, 1))
    return caps


def _expand(op: Operator, batch: Batch, step: _Step) -> Batch:
    """Every row of `batch` with every choice that `step` has."""
    shared = _free_sharing(op, batch, step)
    v = step.v
    if (shared == 1).all():
        return batch
    rows, factors = expand_factors(shared, _caps(op, batch, step))
    if not step.ring:
        best = _least_pieces(op, batch, step, rows, factors)
        rows, factors = rows[best], factors[:, best]
    wide = batch.take(rows)
    new = {(v, d): f for d, f in zip(step.dims, factors, strict=True) if (f > 1).any()}
    if not step.ring:
        return replace(wide, ratio={**wide.ratio, **new})
    legal = _lockstep(op, wide, v, new)
    wide = replace(wide, execute={**wide.execute, **new})
    return wide if legal.all() else wide.take(legal)


def _lockstep(
    op: Operator, batch: Batch, v: int, new: dict[tuple[int, int], np.ndarray]
) -> np.ndarray:
    """Rows in which operand v may rotate together with those that already do: two operands of a
    two-operand operator, one's factor dividing the other's, no split dimension missing in both."""
    legal = np.ones(batch.size, dtype=bool)
    for (u, d), x in batch.execute.items():
        for e, z in ((e, z) for (_, e), z in new.items() if u != v and e != d):
            # Rings on two axes: the neighbours of one must agree on where the other starts.
            if e in op.operands[u].dims or d in op.operands[v].dims:
                legal &= ~((x > 1) & (z > 1)) | _apart(op, batch, u, v)
        y = new.get((v, d))
        if y is None:
            continue
        both = (x > 1) & (y > 1)
        if len(op.operands) > 2:
            legal &= ~both
            continue
        divides = (np.maximum(x, y) % np.minimum(x, y)) == 0
        apart = _apart(op, batch, u, v)
        legal &= ~both | (divides & apart)
    return legal


def _apart(op: Operator, batch: Batch, u: int, v: int) -> np.ndarray:
    """Rows in which no split dimension is missing in both operands."""
    neither = [
        e
        for e in range(len(op.dims))
        if e not in op.operands[u].dims and e not in op.operands[v].dims
    ]
    return batch.grid[neither].prod(axis=0) == 1


def _least_pieces(
    op: Operator, batch: Batch, step: _Step, rows: np.ndarray, factors: np.ndarray
) -> np.ndarray:
    """Of all ways to cut a preload into the same number of pieces, the one with the smallest
    piece (the first of equals): positions, ascending. No other cost depends on the choice."""
    if len(step.dims) == 1:
        return np.arange(rows.size)
    g = Geometry.of(op, batch)
    piece = np.ones(rows.size, dtype=np.int64)
    total = np.ones(rows.size, dtype=np.int64)
    for d, q in zip(step.dims, factors, strict=True):
        block = np.broadcast_to(np.asarray(g.block[d]), (batch.size,))
        piece *= -(-block[rows] // q)
        total *= q
    keys = rows * (int(total.max(initial=1)) + 1) + total
    order = np.lexsort((piece, keys))
    first = np.ones(rows.size, dtype=bool)
    first[1:] = np.diff(keys[order]) != 0
    return np.sort(order[first])
