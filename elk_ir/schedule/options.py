"""The plans of one operator as a scheduler sees them: bytes, seconds and traffic, in arrays.

From a plan front (or the one plan that an operator already has) to a `Table`. All times are
seconds on the given chip, without anybody else using its ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import CoreRates
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.batch import Batch, Geometry, Machine, evaluate, turns
from elk_ir.plan.buffers import Source
from elk_ir.plan.domain import Operator
from elk_ir.plan.enumerate import PlanFront
from elk_ir.plan.plan import Plan, Reduce
from elk_ir.plan.sharding import Sharding


@dataclass(frozen=True, eq=False)
class Table:
    """The options of one operator; arrays have one entry an option, bytes are per core.

    execute_bytes: peak while it runs, its own preload-state included. preload_bytes: what waits
    in preload-state. compute_s: the time outside exchange flows (compute, barriers, latencies).
    exchange_s: what rings, distribution and reductions occupy a port for. preload_s: its preload
    alone, the slowest of HBM, controllers and ingress; landing_s: its part at the ingress port.
    energy_j: dynamic energy that depends on the plan. family: equal where grid, execute-state and
    reduction are (options of a family differ in the preload-state only). slice_s (inputs, n):
    ingress of a resident operand's re-layout; spread (inputs, n): egress seconds of the same per
    byte of the producer's piece; pieces (results, n): bytes that a core holds of a result.
    """

    execute_bytes: np.ndarray
    preload_bytes: np.ndarray
    compute_s: np.ndarray
    exchange_s: np.ndarray
    preload_s: np.ndarray
    landing_s: np.ndarray
    energy_j: np.ndarray
    family: np.ndarray
    slice_s: np.ndarray
    spread: np.ndarray
    pieces: np.ndarray
    hbm_s: float
    plans: tuple[Plan, ...]
    turns_s: np.ndarray | None = None
    """(3, n): of exchange_s what is distributed before the tiles and what is reduced behind them,
    and of compute_s what follows the reduction. None: everything alternates finely."""
    byte_s: np.ndarray | float = 0.0
    """Seconds of the ingress port that a byte of an exchange takes."""

    def __len__(self) -> int:
        return len(self.plans)

    def take(self, rows: np.ndarray) -> Table:
        """The options at `rows`."""
        return Table(
            **{
                name: getattr(self, name)[..., rows]
                for name in Table.__dataclass_fields__
                if name not in ("hbm_s", "plans", "turns_s", "byte_s")
            },
            turns_s=None if self.turns_s is None else self.turns_s[:, rows],
            byte_s=self.byte_s[rows] if isinstance(self.byte_s, np.ndarray) else self.byte_s,
            hbm_s=self.hbm_s,
            plans=tuple(self.plans[int(i)] for i in rows),
        )


def front_table(front: PlanFront, chip: Chip, sources: Sequence[Source], cost: CostModel) -> Table:
    """The table of a plan front, and of further preload-states of its plans: on the front another
    plan is better than those, but once an execution plan is chosen they are all there is."""
    op, budget = front.op, chip.usable_sram_per_core_bytes
    plans = list(front)
    known = set(plans)
    extra = [p for plan in plans for p in preload_states(op, plan, sources) if p not in known]
    costs = [
        evaluate(op, Machine.of(chip), tuple(sources), cost, b) for _, b in _batches(op, extra)
    ]
    order = np.concatenate([rows for rows, _ in _batches(op, extra)] or [np.zeros(0, np.int64)])

    def column(name: str) -> np.ndarray:
        own = np.asarray(getattr(front, name))
        if not costs:
            return own
        more = np.concatenate([getattr(c, name) for c in costs])
        return np.concatenate([own, more[np.argsort(order)]])

    table = _table(
        op,
        chip,
        sources,
        (*plans, *extra),
        column("execute_bytes"),
        column("preload_bytes"),
        column("execute_cycles"),
        column("exchange_bytes"),
        cost,
    )
    return table.take(np.flatnonzero(table.execute_bytes <= budget)) if extra else table


def preload_states(op: Operator, plan: Plan, sources: Sequence[Source]) -> list[Plan]:
    """`plan` with the preloads of its large operands cut into q pieces more, for a few q: each
    along the dimension that leaves the smallest piece."""
    loaded = [v for v, s in enumerate(sources) if s is Source.HBM]
    sizes = {v: prod(op.operands[v].shape) * itemsize(op.operands[v].dtype) for v in loaded}
    large = [v for v in loaded if 4 * sizes[v] >= max(sizes.values())]
    free = {v: sharing(plan, op, v) // prod(plan.execute[v]) for v in large}
    found: list[Plan] = []
    for q in _PIECES:
        preload = list(plan.preload)
        for v in large:
            if free[v] % q == 0:
                cut = _cut(op, plan, v, q)
                preload[v] = cut or preload[v]
        if tuple(preload) != plan.preload:
            found.append(replace(plan, preload=tuple(preload)))
    return found


_PIECES = (2, 3, 4, 6, 8, 12, 16, 32)


def sharing(plan: Plan, op: Operator, v: int) -> int:
    """S_v: cores that need the same slice of operand v."""
    dims = op.operands[v].dims
    return prod(f for d, f in enumerate(plan.grid) if d not in dims)


def _cut(op: Operator, plan: Plan, v: int, q: int) -> tuple[int, ...] | None:
    """Preload-state factors of operand v with q pieces of its execute-state; None if no dimension
    is long enough."""
    best: tuple[int, int] | None = None
    for d in op.operands[v].simple:
        tile = -(-op.extents[d] // plan.grid[d])
        block = -(-tile // plan.execute[v][d])
        if plan.execute[v][d] * q <= tile and block >= q:
            waste = -(-block // q) * q - block
            if best is None or waste < best[0]:
                best = (waste, d)
    if best is None:
        return None
    return tuple(x * (q if d == best[1] else 1) for d, x in enumerate(plan.execute[v]))


def _table(
    op: Operator,
    chip: Chip,
    sources: Sequence[Source],
    plans: tuple[Plan, ...],
    execute_bytes: np.ndarray,
    preload_bytes: np.ndarray,
    execute_cycles: np.ndarray,
    exchange_bytes: np.ndarray,
    cost: CostModel,
) -> Table:
    rates = CoreRates.of(chip)
    n = len(plans)
    cores = np.asarray([p.cores for p in plans], dtype=np.int64)
    span = np.where(cores > chip.cores_per_chip, chip.network.exchange_span_factor, 1.0)
    byte_in = span / (rates.in_bytes * chip.clock_hz)
    byte_out = span / (rates.out_bytes * chip.clock_hz)
    exchange_s = exchange_bytes * byte_in
    seconds = execute_cycles / chip.clock_hz
    compute_s = np.maximum(seconds - exchange_s, 0.0)
    resident = [v for v, s in enumerate(sources) if s is Source.RESIDENT]
    slice_s, spread = np.zeros((len(resident), n)), np.zeros((len(resident), n))
    pieces = np.zeros((len(op.results), n))
    controller_s, turns_s = np.zeros(n), np.zeros((3, n))
    loaded = [v for v, s in enumerate(sources) if s is Source.HBM]
    read = [op.operands[v].read_elements(op.extents) for v in loaded]
    hbm_bytes = sum(n * itemsize(op.operands[v].dtype) for n, v in zip(read, loaded, strict=True))
    for rows, batch in _batches(op, plans):
        g = Geometry.of(op, batch)
        for e, v in enumerate(resident):
            access = op.operands[v]
            held = np.broadcast_to(np.asarray(g.held(v)), rows.shape) * itemsize(access.dtype)
            # Of a tensor of which only a part is read (rows of a merged product), its holders send.
            total = max(1, access.read_elements(op.extents) * itemsize(access.dtype))
            slice_s[e, rows] = held * byte_in[rows]
            spread[e, rows] = g.cores * held / total * byte_out[rows]
        before, behind, closing = turns(op, tuple(sources), cost, batch)
        turns_s[0, rows], turns_s[1, rows] = before * byte_in[rows], behind * byte_in[rows]
        turns_s[2, rows] = np.minimum(closing / chip.clock_hz, compute_s[rows])
        for r, result in enumerate(op.results):
            pieces[r, rows] = np.asarray(g.result(result)) * itemsize(result.dtype)
        if chip.hbm is not None:
            strides = np.asarray([Sharding(op, plans[i]).strides for i in rows]).T
            for v in loaded:
                controller_s[rows] += _controller_bytes(g, strides, v, chip)
    if chip.hbm is not None:
        egress = chip.hbm.controllers_per_chip * chip.hbm.controller_egress_bytes_per_s
        controller_s /= egress
    hbm_s = hbm_bytes / chip.hbm_bytes_per_s if chip.hbm is not None else 0.0
    landing_s = preload_bytes / chip.network.port_in_bytes_per_s
    if chip.hbm is None:
        landing_s = np.zeros(n)
    energy = chip.energy
    moved = exchange_bytes * cores * (energy.network_byte_j + 2.0 * energy.sram_byte_j)
    landing = preload_bytes * cores * (energy.network_byte_j + energy.sram_byte_j)
    families: dict[tuple[object, ...], int] = {}
    keys = [(p.grid, p.execute, p.reduce, p.scatter_dim, p.ring_order) for p in plans]
    family = np.asarray([families.setdefault(k, len(families)) for k in keys], dtype=np.int64)
    return Table(
        execute_bytes=np.asarray(execute_bytes, dtype=np.int64),
        preload_bytes=np.asarray(preload_bytes, dtype=np.int64),
        compute_s=compute_s,
        exchange_s=exchange_s,
        preload_s=np.maximum(np.maximum(landing_s, controller_s), hbm_s),
        landing_s=landing_s,
        energy_j=moved + landing,
        family=family,
        slice_s=slice_s,
        spread=spread,
        pieces=pieces,
        hbm_s=hbm_s,
        plans=plans,
        turns_s=turns_s,
        byte_s=byte_in,
    )


def _batches(op: Operator, plans: Sequence[Plan]) -> list[tuple[np.ndarray, Batch]]:
    """Plans by columns, those with equal ends of reductions together; rows say which they are."""
    groups: dict[tuple[Reduce, int | None], list[int]] = {}
    for i, plan in enumerate(plans):
        groups.setdefault((plan.reduce, plan.scatter_dim), []).append(i)
    found: list[tuple[np.ndarray, Batch]] = []
    for (reduce, scatter), rows in groups.items():
        grid = np.asarray([plans[i].grid for i in rows], dtype=np.int64).T
        grid = grid.reshape(len(op.dims), len(rows))
        execute: dict[tuple[int, int], np.ndarray] = {}
        ratio: dict[tuple[int, int], np.ndarray] = {}
        for v in range(len(op.operands)):
            for d in range(len(op.dims)):
                x = np.asarray([plans[i].execute[v][d] for i in rows], dtype=np.int64)
                p = np.asarray([plans[i].preload[v][d] for i in rows], dtype=np.int64)
                if (x > 1).any():
                    execute[v, d] = x
                if (p > x).any():
                    ratio[v, d] = p // x
        found.append((np.asarray(rows), Batch(grid, execute, ratio, reduce, scatter)))
    return found


def _controller_bytes(g: Geometry, strides: np.ndarray, v: int, chip: Chip) -> np.ndarray:
    """Bytes of operand v that the controllers of the busiest chip send for its preload.

    With multicast one copy of every block that cores of the chip hold, else all copies. A chip
    holds consecutive cores: along dimension d they have min(f_d, cores / stride_d) coordinates.
    """
    op, batch = g.op, g.batch
    size = itemsize(op.operands[v].dtype)
    ratios = [q for (u, _), q in batch.ratio.items() if u == v]
    piece = np.asarray(g.piece(v) if ratios else g.held(v)) * size
    here = np.minimum(g.cores, chip.cores_per_chip)
    assert chip.hbm is not None
    if not chip.hbm.multicast:
        return here * piece
    dims = op.operands[v].dims
    kept, ranks = np.ones(batch.size), np.ones(batch.size)
    for d in range(len(op.dims)):
        seen = np.minimum(batch.grid[d], np.maximum(1.0, here / strides[d]))
        if d in dims:
            kept = kept * seen
        else:
            ranks = ranks * seen
    pieces = prod((q for q in ratios), start=np.asarray(g.rotation(v)))
    return np.minimum(here, kept * np.minimum(ranks, pieces)) * piece


def plan_table(
    op: Operator, plan: Plan, chip: Chip, sources: Sequence[Source], cost: CostModel
) -> Table:
    """The table of an operator whose plan is given."""
    ((_, batch),) = _batches(op, [plan])
    costs = evaluate(op, Machine.of(chip), tuple(sources), cost, batch)
    return _table(
        op,
        chip,
        sources,
        (plan,),
        costs.execute_bytes,
        costs.preload_bytes,
        costs.execute_cycles,
        costs.exchange_bytes,
        cost,
    )


def waiting_table(preload_bytes: int) -> Table:
    """The table of something that only waits: a preload for a loop that follows."""
    zero, row = np.zeros(1), np.zeros((0, 1))
    return Table(
        execute_bytes=np.asarray([preload_bytes], dtype=np.int64),
        preload_bytes=np.asarray([preload_bytes], dtype=np.int64),
        compute_s=zero,
        exchange_s=zero,
        preload_s=zero,
        landing_s=zero,
        energy_j=zero,
        family=np.zeros(1, dtype=np.int64),
        slice_s=row,
        spread=row,
        pieces=row,
        hbm_s=0.0,
        plans=(Plan((), (), ()),),
    )
