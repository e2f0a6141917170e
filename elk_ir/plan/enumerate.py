"""All partition plans of an operator, reduced to those worth knowing: the front (docs/plans.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost.model import CostModel
from elk_ir.numerics.body import dtype_of
from elk_ir.plan.batch import Batch, Costs, concatenate_costs, evaluate, plan_at
from elk_ir.plan.buffers import Source
from elk_ir.plan.candidates import cuttable, expand_factors, grids, rotatable
from elk_ir.plan.domain import Operator
from elk_ir.plan.pareto import pareto_mask
from elk_ir.plan.plan import Plan, Reduce, scatter_candidates


@dataclass(frozen=True)
class PlanFront:
    """The plans of one operator that no other plan dominates, fastest first.

    Arrays have one entry a plan; bytes are per core. execute_bytes: peak while executing, without
    what other operators preload. preload_bytes: held in preload-state before, which is also what
    a preload brings into each core. exchange_bytes: rings, distribution and reduction into a core.
    landing_bytes: what preloads bring into all cores together (copies x bytes). hbm_bytes: read
    from HBM, each byte once, the same for all plans. `considered`: plans evaluated.
    """

    op: Operator
    execute_bytes: np.ndarray
    preload_bytes: np.ndarray
    exchange_bytes: np.ndarray
    execute_cycles: np.ndarray
    compute_cycles: np.ndarray
    landing_bytes: np.ndarray
    cores: np.ndarray
    hbm_bytes: int
    considered: int
    _batches: tuple[Batch, ...]
    _batch: np.ndarray
    _row: np.ndarray

    def __len__(self) -> int:
        return self.execute_bytes.shape[0]

    def plan(self, i: int) -> Plan:
        """The exact plan of entry i."""
        return plan_at(self.op, self._batches[int(self._batch[i])], int(self._row[i]))

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(i) for i in range(len(self)))


def enumerate_plans(
    op: Operator,
    chip: Chip,
    sources: tuple[Source, ...],
    cost: CostModel,
    *,
    budget_bytes: int | None = None,
    keep: int = 4096,
) -> PlanFront:
    """The front of `op` on `chip`: plans that execute within `budget_bytes` a core (default: what
    the chip has), at most `keep` of them; empty when none fits."""
    budget = chip.usable_sram_per_core_bytes if budget_bytes is None else budget_bytes
    return _front(op, chip, tuple(sources), cost, budget, keep)


def smallest_plan(
    op: Operator, chip: Chip, sources: tuple[Source, ...], cost: CostModel
) -> tuple[Plan, int]:
    """The plan with the least peak bytes a core, and those bytes, whatever the chip has."""
    front = _front(op, chip, tuple(sources), cost, 2**62, 2**31)
    best = int(np.lexsort((front.execute_cycles, front.execute_bytes))[0])
    return front.plan(best), int(front.execute_bytes[best])


@lru_cache(maxsize=512)
def _front(
    op: Operator,
    chip: Chip,
    sources: tuple[Source, ...],
    cost: CostModel,
    budget: int,
    keep: int,
) -> PlanFront:
    batches: list[Batch] = []
    costs: list[Costs] = []
    considered = 0
    for batch in _base(op, chip):
        for wide in (batch, *_variants(op, sources, batch)):
            found = evaluate(op, chip, sources, cost, wide)
            considered += wide.size
            rows = np.flatnonzero(found.execute_bytes <= budget)
            rows = rows[pareto_mask(found.take(rows).table())]
            batches.append(wide.take(rows))
            costs.append(found.take(rows))
    return _collect(op, sources, batches, costs, considered, keep)


def _collect(
    op: Operator,
    sources: tuple[Source, ...],
    batches: list[Batch],
    costs: list[Costs],
    considered: int,
    keep: int,
) -> PlanFront:
    """The front over all batches, fastest plan first."""
    table = concatenate_costs(costs)
    owner = np.concatenate([np.full(b.size, i) for i, b in enumerate(batches)])
    row = np.concatenate([np.arange(b.size) for b in batches])
    cores = np.concatenate([b.grid.prod(axis=0) for b in batches])
    best = np.flatnonzero(pareto_mask(table.table()))
    best = best[np.lexsort((best, *table.take(best).table().T[::-1]))][:keep]
    table = table.take(best)
    unique_bytes = sum(
        prod(a.shape) * dtype_of(a.dtype).itemsize
        for a, s in zip(op.operands, sources, strict=True)
        if s is Source.HBM
    )
    return PlanFront(
        op=op,
        execute_bytes=table.execute_bytes,
        preload_bytes=table.preload_bytes,
        exchange_bytes=table.exchange_bytes,
        execute_cycles=table.execute_cycles,
        compute_cycles=table.compute_cycles,
        landing_bytes=table.preload_bytes * cores[best],
        cores=cores[best],
        hbm_bytes=unique_bytes,
        considered=considered,
        _batches=tuple(batches),
        _batch=owner[best],
        _row=row[best],
    )


def _base(op: Operator, chip: Chip) -> Iterator[Batch]:
    """All grids, with every way to leave a split reduction."""
    grid = grids(op, chip.cores)
    split = np.ones(grid.shape[1], dtype=bool)
    split &= grid[list(op.reductions)].prod(axis=0) > 1
    if not split.all():
        yield Batch(grid[:, ~split])
    if not split.any():
        return
    candidates = [] if op.broadcasts_back else scatter_candidates(op)
    for d in candidates:
        yield Batch(grid[:, split], scatter_dim=d)
    if not candidates:
        yield Batch(grid[:, split], reduce=Reduce.ALL)


def _shared(op: Operator, v: int, batch: Batch) -> np.ndarray:
    """S_v: cores that need the same slice of operand v."""
    dims = [d for d in range(len(op.dims)) if d not in op.operands[v].dims]
    return batch.grid[dims].prod(axis=0)


def _variants(op: Operator, sources: tuple[Source, ...], batch: Batch) -> Iterator[Batch]:
    """Rings of one operand along one axis, and preloads cut along one axis."""
    for v in range(len(op.operands)):
        shared = _shared(op, v, batch)
        for d in cuttable(op, v):
            tile = -(-op.extents[d] // batch.grid[d])
            if (v, d) in rotatable(op):
                rows, factors = expand_factors(shared, [tile], 1)
                yield _with(batch.take(rows), {(v, d): factors[0]}, {})
                if sources[v] is Source.HBM:
                    rows, factors = expand_factors(shared, [tile, tile], 2)
                    fits = factors[0] * factors[1] <= tile[rows]
                    factors = factors[:, fits]
                    ring, ratio = {(v, d): factors[0]}, {(v, d): factors[1]}
                    yield _with(batch.take(rows[fits]), ring, ratio)
            elif sources[v] is Source.HBM:
                rows, factors = expand_factors(shared, [tile], 1)
                yield _with(batch.take(rows), {}, {(v, d): factors[0]})


def _with(
    batch: Batch,
    execute: dict[tuple[int, int], np.ndarray],
    ratio: dict[tuple[int, int], np.ndarray],
) -> Batch:
    return Batch(
        batch.grid,
        {**batch.execute, **execute},
        {**batch.ratio, **ratio},
        batch.reduce,
        batch.scatter_dim,
    )
