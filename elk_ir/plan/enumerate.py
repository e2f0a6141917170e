"""All partition plans of an operator, reduced to those worth knowing: the front (docs/plans.md).

The space is grid x (execute-state and preload-state factors of every operand and dimension) x
what a split reduction leaves. It is searched by branch and bound: all grids, then operand by
operand the rings, then operand by operand the cuts of preloads, each level bounded from below
over everything that may follow and dropped where known plans are as good in every objective.
Nothing that belongs on the front is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.batch import Machine, plan_at
from elk_ir.plan.buffers import Source
from elk_ir.plan.domain import Operator
from elk_ir.plan.pareto import spread
from elk_ir.plan.plan import Plan, Reduce
from elk_ir.plan.search import Found, search

KEEP = 1024
"""Plans kept of a front, unless asked otherwise."""


@dataclass(frozen=True)
class PlanFront:
    """The plans of one operator that no other plan dominates, fastest first.

    Arrays have one entry a plan; bytes are per core. execute_bytes: peak while executing, without
    what other operators preload. preload_bytes: held in preload-state before, which is also what
    a preload brings into each core. exchange_bytes: rings, distribution and reduction into a core.
    landing_bytes: what preloads bring into all cores together (copies x bytes). hbm_bytes: read
    from HBM, each byte once, the same for all plans. considered: plans evaluated or bounded;
    tolerance: how much worse than a plan left out its stand-in may be (0: exact); complete: whether
    `keep` left none out.
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
    tolerance: float
    complete: bool
    _found: Found
    _rows: np.ndarray

    def __len__(self) -> int:
        return self.execute_bytes.shape[0]

    def plan(self, i: int) -> Plan:
        """The exact plan of entry i."""
        batch, row = self._found.locate(int(self._rows[i]))
        return plan_at(self.op, batch, row)

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(i) for i in range(len(self)))


def enumerate_plans(
    op: Operator,
    chip: Chip,
    sources: tuple[Source, ...],
    cost: CostModel,
    *,
    budget_bytes: int | None = None,
    keep: int = KEEP,
    reduce: Reduce | None = None,
    tolerance: float | None = None,
) -> PlanFront:
    """The front of `op` on `chip`: plans that execute within `budget_bytes` a core (default: what
    the chip has), at most `keep` of them; empty when none fits.

    `sources` says for each operand whether it is preloaded from HBM or resident. `reduce` fixes
    where split reductions leave their results; `tolerance` is that of `search`. Cached by operator,
    sources and what the costs depend on of the chip.
    """
    budget = chip.usable_sram_per_core_bytes if budget_bytes is None else budget_bytes
    return _front(op, Machine.of(chip), tuple(sources), cost, budget, keep, reduce, tolerance)


def forget_fronts() -> None:
    """Drop the fronts that `enumerate_plans` remembers."""
    _front.cache_clear()


def smallest_plan(
    op: Operator, chip: Chip, sources: tuple[Source, ...], cost: CostModel
) -> tuple[Plan, int]:
    """The plan with the least peak bytes a core (the fastest of those), and these bytes, whatever
    the chip has: for the message of an operator that fits in no plan."""
    objectives = ("execute_bytes", "execute_cycles")
    found = search(op, Machine.of(chip), tuple(sources), cost, None, objectives, None)
    best = int(np.lexsort((found.costs.execute_cycles, found.costs.execute_bytes))[0])
    batch, row = found.locate(best)
    return plan_at(op, batch, row), int(found.costs.execute_bytes[best])


@lru_cache(maxsize=512)
def _front(
    op: Operator,
    machine: Machine,
    sources: tuple[Source, ...],
    cost: CostModel,
    budget: int,
    keep: int,
    reduce: Reduce | None,
    tolerance: float | None,
) -> PlanFront:
    objectives = ["execute_cycles", "execute_bytes", "exchange_bytes", "preload_bytes"]
    if machine.landing_counts:
        objectives.append("landing_bytes")
    found = search(op, machine, sources, cost, budget, tuple(objectives), reduce, tolerance)
    table = found.costs.table(tuple(objectives))
    order = np.lexsort(table[::-1])
    rows = order[spread(table[:, order], keep)]
    costs = found.costs.take(rows)
    return PlanFront(
        op=op,
        execute_bytes=costs.execute_bytes,
        preload_bytes=costs.preload_bytes,
        exchange_bytes=costs.exchange_bytes,
        execute_cycles=costs.execute_cycles,
        compute_cycles=costs.compute_cycles,
        landing_bytes=costs.landing_bytes,
        cores=costs.cores,
        hbm_bytes=sum(
            a.read_elements(op.extents) * itemsize(a.dtype)
            for a, s in zip(op.operands, sources, strict=True)
            if s is Source.HBM
        ),
        considered=found.considered,
        tolerance=found.tolerance,
        complete=rows.size == order.size,
        _found=found,
        _rows=rows,
    )
