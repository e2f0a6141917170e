"""The costs of many plans of one operator at once: bytes, cycles and traffic (docs/plans.md).

A `Batch` describes plans by columns. Factors that are one throughout are left out, so that
plain grids cost next to nothing. Memory equals `buffers.execute_buffers` to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.buffers import ALIGNMENT_BYTES, PHASES, ExecPhase, Source
from elk_ir.plan.domain import Access, Operator, Phase
from elk_ir.plan.plan import Plan, Reduce

Key = tuple[int, int]
"""(operand, dimension)."""
Column = np.ndarray | int


@dataclass(frozen=True)
class Batch:
    """`size` plans of one operator.

    grid: int64 (dims, size). execute[v, d]: x_{v,d}; ratio[v, d]: p_{v,d} / x_{v,d}; absent keys
    are one. `reduce` and `scatter_dim` hold for the rows whose reduction is split.
    """

    grid: np.ndarray
    execute: Mapping[Key, np.ndarray] = field(default_factory=dict)
    ratio: Mapping[Key, np.ndarray] = field(default_factory=dict)
    reduce: Reduce = Reduce.SCATTER
    scatter_dim: int | None = None

    @property
    def size(self) -> int:
        """Plans in the batch."""
        return self.grid.shape[1]

    def take(self, rows: np.ndarray) -> Batch:
        """The plans at `rows` (indices or a mask)."""
        return Batch(
            self.grid[:, rows],
            {key: column[rows] for key, column in self.execute.items()},
            {key: column[rows] for key, column in self.ratio.items()},
            self.reduce,
            self.scatter_dim,
        )


@dataclass(frozen=True)
class Costs:
    """Columns of costs, one entry a plan: bytes are int64 and per core, cycles float64."""

    execute_bytes: np.ndarray
    preload_bytes: np.ndarray
    exchange_bytes: np.ndarray
    execute_cycles: np.ndarray
    compute_cycles: np.ndarray
    landing_bytes: np.ndarray
    cores: np.ndarray

    def take(self, rows: np.ndarray) -> Costs:
        """The entries at `rows`."""
        return Costs(*(getattr(self, name)[rows] for name in COLUMNS))

    def table(self, names: tuple[str, ...]) -> np.ndarray:
        """float64 (len(names), n): the columns to be minimised."""
        return np.stack([np.asarray(getattr(self, name), dtype=np.float64) for name in names])


COLUMNS = (
    "execute_bytes",
    "preload_bytes",
    "exchange_bytes",
    "execute_cycles",
    "compute_cycles",
    "landing_bytes",
    "cores",
)


def concatenate_costs(parts: list[Costs]) -> Costs:
    """All rows of `parts`, in order."""
    return Costs(*(np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS))


def ceil_div(a: Column, b: Column) -> Column:
    """⌈a / b⌉ for positive b."""
    return -(-a // b)


def aligned(size_bytes: Column) -> Column:
    """Rounded up to the buffer alignment."""
    return ceil_div(size_bytes, ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Geometry:
    """Columns that follow from a batch: tiles, rings, blocks, reduction ways."""

    op: Operator
    batch: Batch
    tile: list[Column]
    rings: list[Column]
    block: list[Column]
    ways: np.ndarray
    cores: np.ndarray

    @staticmethod
    def of(op: Operator, batch: Batch) -> Geometry:
        """The geometry of every plan of `batch`."""
        tile: list[Column] = [ceil_div(e, batch.grid[d]) for d, e in enumerate(op.extents)]
        rings: list[Column] = [1] * len(tile)
        for (_, d), x in sorted(batch.execute.items()):
            rings[d] = x if isinstance(rings[d], int) else np.maximum(rings[d], x)
        block = [
            t if isinstance(n, int) else ceil_div(t, n) for t, n in zip(tile, rings, strict=True)
        ]
        ways = batch.grid[list(op.reductions)].prod(axis=0)
        return Geometry(op, batch, tile, rings, block, ways, batch.grid.prod(axis=0))

    def sharing(self, v: int) -> np.ndarray:
        """S_v: cores that need the same slice of operand v."""
        dims = self.op.operands[v].dims
        return self.batch.grid[[d for d in range(len(self.op.dims)) if d not in dims]].prod(axis=0)

    def scattered(self, d: int) -> Column:
        """b_d, or the piece of it that a scattered reduction leaves."""
        if d != self.batch.scatter_dim or self.batch.reduce is not Reduce.SCATTER:
            return self.block[d]
        return ceil_div(self.block[d], self.ways)

    def rotation(self, v: int) -> Column:
        """x_v."""
        return prod(x for (u, _), x in self.batch.execute.items() if u == v)

    def image(self, axis_terms: tuple[tuple[int, int], ...], phase: Phase) -> Column:
        """Points of a composite axis under the whole tile; of what is read with the results, under
        the piece that a scattered reduction leaves."""
        size: Column = 1
        for d, k in axis_terms:
            extent = self.scattered(d) if phase is Phase.APPLY else self.tile[d]
            size = size + abs(k) * (extent - 1)
        return size

    def result_blocks(self) -> Column:
        """Blocks into which rings cut the results, written one after another."""
        kept = {d for stat in self.op.stats for d in stat.dims} | self.op.result_dims
        return prod(self.rings[d] for d in sorted(kept))

    def held(self, v: int) -> Column:
        """Elements of operand v in execute-state."""
        if self.op.operands[v].phase is Phase.APPLY:
            return self._elements(v, lambda d: self.rings[d] * self.scattered(d))
        return self._elements(v, lambda d: self.window(v, d) * self.block[d])

    def piece(self, v: int) -> Column:
        """Elements of operand v in preload-state, where it is not the execute-state."""
        ratio = self.batch.ratio
        return self._elements(
            v, lambda d: self.window(v, d) * ceil_div(self.block[d], ratio.get((v, d), 1))
        )

    def _elements(self, v: int, along: Callable[[int], Column]) -> Column:
        """Elements of a block of operand v that is as long as `along` says on the axes of one
        dimension, and the image of the tile on others."""
        access = self.op.operands[v]
        total: Column = 1
        for axis in access.axes:
            d = axis.simple_dim
            if d is None or d not in access.simple:
                total = total * self.image(axis.terms, access.phase)
            else:
                total = total * along(d)
        return total

    def window(self, v: int, d: int) -> Column:
        """w_{v,d}: ring blocks along d that operand v holds."""
        x = self.batch.execute.get((v, d))
        return self.rings[d] if x is None else self.rings[d] // x

    def statistic(self, i: int, scatter: bool) -> Column:
        """Elements of statistic i on a core, whole or the piece that it merges."""
        total: Column = 1
        for d in self.op.stats[i].dims:
            total = total * (self.rings[d] * (self.scattered(d) if scatter else self.block[d]))
        return total

    def result(self, access: Access) -> Column:
        """Elements of a result on a core."""
        total: Column = 1
        for axis in access.axes:
            d = axis.simple_dim
            if d is not None and d in access.simple:
                total = total * (self.rings[d] * self.scattered(d))
            elif len(axis.terms) > 1:
                total = total * self._merged_axis(axis.terms)
            else:
                total = total * self.image(axis.terms, Phase.LOCAL)
        return total

    def _merged_axis(self, terms: tuple[tuple[int, int], ...]) -> np.ndarray:
        """An axis that merges dimensions: the outermost one with more than one point counts."""
        size = np.zeros(self.batch.size, dtype=np.int64)
        open_ = np.ones(self.batch.size, dtype=bool)
        for d, k in sorted(terms, key=lambda term: -term[1]):
            size = np.where(open_, self.scattered(d) * k, size)
            open_ &= np.asarray(self.tile[d]) <= 1
        return size


@dataclass(frozen=True)
class Machine:
    """What the costs of a plan depend on, of a chip: equal machines share fronts.

    span_factor: times an exchange's cycles on grids of more than `cores_per_chip` cores.
    sram_bytes: a core's SRAM port, bytes a cycle.
    """

    cores: int
    cores_per_chip: int
    sync_cycles: float
    overlaps: bool
    span_factor: float
    landing_counts: bool
    sram_bytes: float

    @staticmethod
    def of(chip: Chip) -> Machine:
        """The machine that `chip` is. All copies that land cost something where controllers send
        each of them, or where they share links."""
        multicast = chip.hbm is None or chip.hbm.multicast
        return Machine(
            cores=chip.cores,
            cores_per_chip=chip.cores_per_chip,
            sync_cycles=chip.sync_cycles,
            overlaps=chip.exchange_overlaps_compute,
            span_factor=chip.network.exchange_span_factor,
            landing_counts=not multicast or chip.network.topology != "all-to-all",
            sram_bytes=chip.local_bytes_per_cycle,
        )


@dataclass(frozen=True)
class Open:
    """What a batch leaves undecided: operands that may still rotate, and preloads that may still
    be cut. `evaluate` then gives lower bounds over everything that may follow."""

    rings: frozenset[int] = frozenset()
    cuts: frozenset[int] = frozenset()


DECIDED = Open()


def evaluate(
    op: Operator,
    machine: Machine,
    sources: tuple[Source, ...],
    cost: CostModel,
    batch: Batch,
    undecided: Open = DECIDED,
) -> Costs:
    """The costs of every plan of `batch`, all assumed legal; lower bounds of what is undecided."""
    n = batch.size
    g = Geometry.of(op, batch)
    m = _memory(g, sources, undecided)
    factor = np.where(g.cores > machine.cores_per_chip, machine.span_factor, 1.0)
    tiles = _columns(g.block, n)
    if not op.stats:
        local = np.zeros(n)
    elif undecided.rings:
        local = cost.floor_cycles(op, tiles)
    else:
        local = cost.tile_cycles(op, tiles)
    ring_total, compute, cycles = _ring(g, machine, cost, local, m.slabs, factor)
    exchange = ring_total
    for moved, own in (m.distribution, m.reduction):
        if moved is not None:
            # What comes, goes and is copied within the core passes its SRAM port.
            port = 2.0 * (moved + own) / machine.sram_bytes
            flow = np.maximum(cost.exchange_cycles(moved, moved) * factor, port)
            cycles = cycles + np.where(moved > 0, flow + 2.0 * machine.sync_cycles, 0.0)
            exchange = exchange + moved
    after = _closing(op, cost, g, m, undecided)
    for size in m.statistics:
        after = after + cost.fill_cycles(size)
    return Costs(
        execute_bytes=m.peak,
        preload_bytes=m.preload,
        exchange_bytes=exchange,
        execute_cycles=cycles + after,
        compute_cycles=compute + after,
        landing_bytes=m.preload * g.cores,
        cores=g.cores,
    )


def _closing(
    op: Operator, cost: CostModel, g: Geometry, m: _Memory, undecided: Open = DECIDED
) -> np.ndarray:
    """Cycles behind the reduction: partial results are merged, and results written, block by
    block."""
    n, blocks = g.batch.size, g.result_blocks()
    after = blocks * cost.apply_cycles(op, _columns(_apply_box(g), n))
    if m.merged_elements is not None:
        combined = cost.combine_cycles(op, g.ways, m.merged_elements // blocks)
        if undecided.rings:  # smaller blocks may be aligned better, by a factor of two at most
            combined = 0.5 * combined
        after = after + np.where(g.ways > 1, blocks * combined, 0.0)
    return after


def turns(
    op: Operator, sources: tuple[Source, ...], cost: CostModel, batch: Batch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every plan: bytes that are distributed before its tiles are computed, bytes that are
    reduced behind them, and cycles behind the reduction. What else it exchanges are rings."""
    g = Geometry.of(op, batch)
    m = _memory(g, sources, DECIDED)
    nothing = np.zeros(batch.size)
    before, behind = (
        nothing if f[0] is None else nothing + f[0] for f in (m.distribution, m.reduction)
    )
    return before, behind, nothing + _closing(op, cost, g, m)


@dataclass(frozen=True)
class _Memory:
    """Bytes of a batch: the peak over the phases, preloads, and what moves."""

    peak: np.ndarray
    preload: np.ndarray
    slabs: dict[int, list[np.ndarray]]
    """By ring dimension, what each operand shifts; 0 in rows where it does not rotate."""
    distribution: tuple[np.ndarray | None, np.ndarray]
    """Bytes into a core (None: in no row), and bytes that it copies from itself meanwhile."""
    reduction: tuple[np.ndarray | None, np.ndarray]
    merged_elements: np.ndarray | None
    statistics: list[np.ndarray]
    """Buffers that are filled with neutral values."""


def _memory(g: Geometry, sources: tuple[Source, ...], undecided: Open) -> _Memory:
    op, batch, n = g.op, g.batch, g.batch.size
    phases: list[np.ndarray] = [np.zeros(n, dtype=np.int64) for _ in range(PHASES)]
    preload = np.zeros(n, dtype=np.int64)
    distribution: np.ndarray | None = None
    kept = np.zeros(n, dtype=np.int64)
    slabs: dict[int, list[np.ndarray]] = {}
    for v, access in enumerate(op.operands):
        size = itemsize(access.dtype)
        elements = g.held(v)
        if v in undecided.rings:
            elements = ceil_div(elements, g.sharing(v))
        held = aligned(elements * size)
        last = ExecPhase.TILE if access.phase is Phase.LOCAL else ExecPhase.APPLY
        ratios = [q for (u, _), q in batch.ratio.items() if u == v]
        if sources[v] is Source.HBM and v in undecided.cuts:
            preload += np.minimum(held, _least_piece(g, v, v in undecided.rings) * size)
            _live(phases, held, ExecPhase.TILE, last)
        elif sources[v] is Source.HBM and ratios:
            q = prod(ratios)
            cut = q > 1
            piece = np.where(cut, aligned(g.piece(v) * size), held)
            preload += piece
            _live(phases, piece, ExecPhase.GATHER, ExecPhase.DISTRIBUTE)
            # Both states are live while one is turned into the other.
            phases[ExecPhase.DISTRIBUTE] += np.where(cut, held, 0)
            _live(phases, held, ExecPhase.TILE, last)
            moved = held
            if access.phase is not Phase.APPLY:
                moved = np.minimum((q - 1) * piece, held)
            moved = np.where(cut, moved, 0)
            distribution = moved if distribution is None else distribution + moved
            kept = kept + np.where(cut, np.minimum(piece, held - np.minimum(moved, held)), 0)
        else:
            if sources[v] is Source.HBM:
                preload += held
            _live(phases, held, ExecPhase.GATHER, last)
        landing: Column = 0
        for (u, d), x in batch.execute.items():
            if u == v:
                slab = np.where(x > 1, aligned(ceil_div(held, g.window(v, d))), 0)
                slabs.setdefault(d, []).append(slab)
                landing = np.maximum(landing, slab)
        if not undecided.rings:  # a finer ring of another operand would shrink what lands
            phases[ExecPhase.TILE] += landing
    reduction, own, merged_elements, statistics = _statistics(g, phases)
    for r in op.results:
        phases[ExecPhase.APPLY] += aligned(g.result(r) * itemsize(r.dtype))
    peak = phases[0]
    for phase in phases[1:]:
        peak = np.maximum(peak, phase)
    return _Memory(
        peak,
        preload,
        slabs,
        (distribution, kept),
        (reduction, own),
        merged_elements,
        statistics,
    )


def _least_piece(g: Geometry, v: int, rings_open: bool) -> Column:
    """A lower bound of the elements of operand v's preload-state, however it is cut."""
    most = g.sharing(v) if rings_open else g.sharing(v) // g.rotation(v)
    return ceil_div(g.held(v), most)


def _statistics(
    g: Geometry, phases: list[np.ndarray]
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray | None, list[np.ndarray]]:
    """Adds the statistics' buffers to `phases`; (bytes a reduction brings into a core, bytes that
    it copies within, elements that it merges, bytes of each whole statistic); the first and the
    third are None where no row splits a reduction."""
    split = g.ways > 1
    any_split = bool(split.any())
    reduction = np.zeros(g.batch.size, dtype=np.int64)
    merged = np.zeros(g.batch.size, dtype=np.int64)
    kept = np.zeros(g.batch.size, dtype=np.int64)
    sizes: list[np.ndarray] = []
    for i, stat in enumerate(g.op.stats):
        item = itemsize(stat.dtype)
        size = aligned(g.statistic(i, scatter=False) * item)
        sizes.append(np.broadcast_to(np.asarray(size), split.shape))
        _live(phases, size, ExecPhase.TILE, ExecPhase.EXCHANGE)
        if not any_split:
            _live(phases, size, ExecPhase.COMBINE, ExecPhase.APPLY)
            continue
        elements = g.statistic(i, scatter=True)
        merged += elements
        gathered = aligned(elements * g.ways * item)
        phases[ExecPhase.EXCHANGE] += np.where(split, gathered, 0)
        own = aligned(elements * item)
        phases[ExecPhase.COMBINE] += np.where(split, gathered + own, size)
        phases[ExecPhase.APPLY] += np.where(split, own, size)
        reduction += elements * (g.ways - 1) * item
        kept += elements * item
    return (reduction, kept, merged, sizes) if any_split else (None, kept, None, sizes)


def _live(phases: list[np.ndarray], size: Column, first: int, last: int) -> None:
    for p in range(first, last + 1):
        phases[p] += size


def _columns(extents: list[Column], n: int) -> np.ndarray:
    """(n, dims) of per-dimension columns."""
    table = np.empty((len(extents), n), dtype=np.int64)
    for d, column in enumerate(extents):
        table[d] = column
    return table.T


def _apply_box(g: Geometry) -> list[Column]:
    """Extents over which a core runs `apply`, a block of the results: its iteration box, or the
    piece of it that a scattered reduction leaves; reduction dimensions only where the result has
    them."""
    return [
        1 if d in g.op.reductions and not g.op.broadcasts_back else g.scattered(d)
        for d in range(len(g.op.dims))
    ]


def _ring(
    g: Geometry,
    machine: Machine,
    cost: CostModel,
    local: np.ndarray,
    slabs: dict[int, list[np.ndarray]],
    factor: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes shifted into a core, compute cycles, compute and shift cycles) of the ring steps.

    What has landed is copied into place behind every shift. Axes nest, the one that shifts most
    bytes outermost: level l shifts (steps of the outer ones) x (n_l - 1) times.
    """
    n = g.batch.size
    if not slabs:
        return np.zeros(n, dtype=np.int64), local, local
    dims = sorted(slabs)
    sizes = np.stack([np.sum(slabs[d], axis=0) for d in dims])
    copies = np.stack(
        [sum(np.where(slab > 0, cost.copy_cycles(slab), 0.0) for slab in slabs[d]) for d in dims]
    )
    steps = np.stack([np.broadcast_to(np.asarray(g.rings[d]), (n,)) for d in dims])
    order = np.argsort(-sizes, axis=0, kind="stable")
    sizes = np.take_along_axis(sizes, order, axis=0)
    copies = np.take_along_axis(copies, order, axis=0)
    steps = np.take_along_axis(steps, order, axis=0)
    outer = np.ones(n, dtype=np.int64)
    total = np.zeros(n, dtype=np.int64)
    cycles = np.zeros(n)
    copied = np.zeros(n)
    for size, copy, step in zip(sizes, copies, steps, strict=True):
        count = outer * (step - 1)
        total += count * size
        copied += count * copy
        shift = cost.shift_cycles(size) * factor
        if machine.overlaps:
            cycles += count * (np.maximum(local, shift) + machine.sync_cycles)
        else:
            cycles += count * (local + shift + 2.0 * machine.sync_cycles)
        outer = outer * step
    return total, outer * local + copied, cycles + local + copied


def plan_at(op: Operator, batch: Batch, i: int) -> Plan:
    """The exact Plan of row i."""
    rank = len(op.dims)
    grid = tuple(int(f) for f in batch.grid[:, i])
    execute, preload = [], []
    for v in range(len(op.operands)):
        x = [int(batch.execute[v, d][i]) if (v, d) in batch.execute else 1 for d in range(rank)]
        q = [int(batch.ratio[v, d][i]) if (v, d) in batch.ratio else 1 for d in range(rank)]
        execute.append(tuple(x))
        preload.append(tuple(a * b for a, b in zip(x, q, strict=True)))
    split = prod(grid[d] for d in op.reductions) > 1
    reduce = batch.reduce if split else Reduce.SCATTER
    scatter = batch.scatter_dim if split and reduce is Reduce.SCATTER else None
    order = _ring_order(op, batch.take(np.asarray([i])))
    return Plan(grid, tuple(execute), tuple(preload), reduce, scatter, order)


def _ring_order(op: Operator, row: Batch) -> tuple[int, ...] | None:
    """Ring dimensions by bytes a shift, most first; None where that is their natural order."""
    g = Geometry.of(op, row)
    size: dict[int, int] = {}
    for (v, d), x in row.execute.items():
        if x[0] > 1:
            held = aligned(g.held(v) * itemsize(op.operands[v].dtype))
            slab = aligned(ceil_div(held, g.window(v, d)))
            size[d] = size.get(d, 0) + int(np.asarray(slab).reshape(-1)[0])
    order = sorted(size, key=lambda d: (-size[d], d))
    return None if order == sorted(order) else tuple(order)
