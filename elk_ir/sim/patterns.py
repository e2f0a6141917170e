"""From layouts to traffic: who sends how much to whom, what HBM delivers, what a core computes.

Everything is derived from the same layouts and moves that the virtual machine uses, and cached:
identical layers, and the candidates of a search, share their patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter

import numpy as np

from elk_ir.cost.device import multiplied_as
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import block_elements, itemsize, multiply_adds, volume
from elk_ir.plan.domain import Operator, Phase
from elk_ir.plan.expr import Expr
from elk_ir.plan.kept import kept
from elk_ir.plan.layout import Layout
from elk_ir.sim.timeline import Delivery, Traffic, Vector
from elk_ir.sim.transfers import transfers


def traffic_of(
    cores: int, source: np.ndarray, target: np.ndarray, size_bytes: np.ndarray
) -> Traffic:
    """Traffic of transfers (arrays of integers); a core's sends to itself become local bytes."""
    own = source == target
    local = np.bincount(target[own], size_bytes[own], minlength=cores).astype(np.int64)
    moving = ~own & (size_bytes > 0)
    # A large program has many millions of transfers, most of them small.
    number = np.min_scalar_type(cores)
    return Traffic(
        cores,
        Vector(source[moving].astype(number, copy=False)),
        Vector(target[moving].astype(number, copy=False)),
        Vector(size_bytes[moving].astype(np.min_scalar_type(size_bytes.max(initial=0)))),
        Vector(local),
    )


KEPT_BYTES = 1 << 26
"""Of each kind that a large program has many of: changes of layout, some of them with millions of
transfers, and compute sets."""

_nbytes = attrgetter("nbytes")


@kept(KEPT_BYTES, _nbytes, shared=True)
def reshard_traffic(
    cores: int, source: Layout, target: Layout, item_bytes: int, axis: int | None, start: int
) -> Traffic:
    """What a change of layout moves (as `elk_ir.plan.moves`), on a machine of `cores` cores."""
    sender, receiver, elements = transfers(source, target, axis, start)
    if int(elements.max(initial=0)) * item_bytes >= 1 << 31:
        elements = elements.astype(np.int64)
    elements *= item_bytes
    return traffic_of(cores, sender, receiver, elements)


@kept(KEPT_BYTES // 2, _nbytes, shared=True)
def shift_traffic(cores: int, used: int, mapping: Expr, step: int, size_bytes: int) -> Traffic:
    """Every one of the first `used` cores reads `size_bytes` from core mapping(c)."""
    core = np.arange(used, dtype=np.int64)
    sender = np.broadcast_to(mapping.evaluate(c=core, t=step, s=0), core.shape)
    return traffic_of(cores, sender, core, np.full(used, size_bytes, dtype=np.int64))


@kept(KEPT_BYTES // 2, _nbytes, shared=True)
def merged_traffic(parts: tuple[Traffic, ...]) -> Traffic:
    """Several patterns in one phase."""
    if len(parts) == 1:
        return parts[0]
    return Traffic(
        parts[0].cores,
        Vector(np.concatenate([p.source.values for p in parts])),
        Vector(np.concatenate([p.target.values for p in parts])),
        Vector(np.concatenate([p.size_bytes.values for p in parts])),
        Vector(np.sum([p.local_bytes.values for p in parts], axis=0)),
    )


@kept(KEPT_BYTES // 2, _nbytes, shared=True)
def delivery(
    cores: int, layout: Layout, item_bytes: int, limit: tuple[int, int] | None = None
) -> Delivery:
    """What a preload into `layout` delivers (or a store takes). `limit` (axis, n): only the first
    n entries along an axis move (the filled part of a state)."""
    rank = len(layout.axes)
    slots = prod(layout.slots)
    bounds = layout.bounds.reshape(layout.cores * slots, rank, 2)
    if limit is not None:
        bounds = bounds.copy()
        bounds[:, limit[0], :] = np.minimum(bounds[:, limit[0], :], limit[1])
    ids = np.zeros(bounds.shape[0], dtype=np.int64)
    needed = 1
    elements = np.ones(bounds.shape[0], dtype=np.int64)
    empty = ~layout.held.reshape(-1) | (bounds[..., 1] <= bounds[..., 0]).any(axis=-1)
    for j, axis in enumerate(layout.axes):
        lo, hi = bounds[:, j, 0], bounds[:, j, 1]
        pairs, which = np.unique(lo * (axis.extent + 1) + hi, return_inverse=True)
        # Layouts cut axes independently, so what all blocks cover is a product of unions.
        kept = np.unique(pairs[np.unique(which.reshape(-1)[~empty])])
        needed *= _covered(*np.divmod(kept, axis.extent + 1))
        ids = np.unique(ids * pairs.size + which.reshape(-1), return_inverse=True)[1].reshape(-1)
        elements *= hi - lo
    ids[empty] = -1
    present, first, block = np.unique(ids[~empty], return_index=True, return_inverse=True)
    sizes = elements[~empty][first] * item_bytes
    holders = np.full((cores, slots), -1, dtype=np.int32)
    flat = np.full(ids.size, -1, dtype=np.int32)
    flat[~empty] = block.reshape(-1)
    holders[: layout.cores] = flat.reshape(layout.cores, slots)
    total = min(needed * item_bytes, int(sizes.sum())) if present.size else 0
    return Delivery(cores, slots, Vector(holders.reshape(-1)), Vector(sizes), total)


def _covered(lo: np.ndarray, hi: np.ndarray) -> int:
    """Elements in the union of intervals [lo, hi), ordered by lo."""
    total, end = 0, 0
    for a, b in zip(lo.tolist(), hi.tolist(), strict=True):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total


@dataclass(frozen=True)
class Work:
    """What a compute set costs each core, and what it does in all."""

    cycles: Vector
    sram_bytes: Vector
    macs: float
    flops: float
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes that this description takes."""
        return self.cycles.values.nbytes + self.sram_bytes.values.nbytes


@kept(KEPT_BYTES, _nbytes)
def vertex_work(
    cores: int, cost: CostModel, op: Operator, phase: str, iterate: Layout, ways: int
) -> Work:
    """The compute set that runs `phase` (local, combine, apply) of `op` on one block of `iterate`.

    Cores with a full tile take the model's cycles for it, edge cores those of their own tile (or
    of the padded one where that is cheaper), idle cores none. ways: partials that a combine merges.
    """
    extents = iterate.largest
    away = iterate.away | (extents <= 0).any(axis=1)
    # Encode each row of extents in one number: classes of cores by their tile.
    ids = np.zeros(iterate.cores, dtype=np.int64)
    for j, size in enumerate(iterate.block_shape):
        ids = ids * (size + 1) + extents[:, j]
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    tiles = np.concatenate([extents[first], np.asarray([iterate.block_shape], dtype=np.int64)])
    idle = (tiles <= 0).any(axis=1)
    if phase == "apply" and not op.broadcasts_back:
        tiles = tiles.copy()
        tiles[:, list(op.reductions)] = 1
    safe = np.maximum(tiles, 1)
    cycles = _cycles(cost, op, phase, safe, ways)
    moved = _moved_bytes(op, phase, safe, ways)
    cycles, moved = np.minimum(cycles, cycles[-1]), np.minimum(moved, moved[-1])
    cycles, moved = np.where(idle, 0.0, cycles), np.where(idle, 0.0, moved)
    macs, flops, dtype = _real_work(op, phase, iterate)
    which = which.reshape(-1)
    full = np.zeros((2, cores))
    full[0, : iterate.cores] = np.where(away, 0.0, cycles[which])
    full[1, : iterate.cores] = np.where(away, 0.0, moved[which])
    return Work(Vector(full[0]), Vector(full[1]), macs, flops, dtype)


def _cycles(cost: CostModel, op: Operator, phase: str, tiles: np.ndarray, ways: int) -> np.ndarray:
    match phase:
        case "local":
            return cost.tile_cycles(op, tiles)
        case "combine":
            elements = _stat_elements(op, tiles)
            return cost.combine_cycles(op, np.full(len(tiles), float(ways)), elements)
        case _:
            return cost.apply_cycles(op, tiles)


def _stat_elements(op: Operator, tiles: np.ndarray) -> np.ndarray:
    return np.sum([volume(tiles, stat.dims) for stat in op.stats], axis=0)


def _moved_bytes(op: Operator, phase: str, tiles: np.ndarray, ways: int) -> np.ndarray:
    """Bytes through the core's SRAM port: each block of operands, statistics and results once."""
    total = np.zeros(len(tiles))
    stats = sum(
        (volume(tiles, s.dims) * itemsize(s.dtype) for s in op.stats), start=np.zeros(len(tiles))
    )
    if phase == "combine":
        return (ways + 1.0) * stats
    for access in op.operands:
        skipped = Phase.APPLY if phase == "local" else Phase.LOCAL
        if access.phase is not skipped or not op.stats:
            total += block_elements(access, tiles) * itemsize(access.dtype)
    total += stats
    if phase == "apply":
        for result in op.results:
            total += block_elements(result, tiles) * itemsize(result.dtype)
    return total


def _real_work(op: Operator, phase: str, iterate: Layout) -> tuple[float, float, str]:
    """(multiply-adds, flops, type) of one step over all cores. All work of an operator counts in
    its local phase, or in the only one it has."""
    if phase != ("local" if op.stats else "apply"):
        return 0.0, 0.0, ""
    steps = prod(iterate.slots)
    whole = np.asarray([op.extents], dtype=np.int64)
    read = next((a.dtype for a in op.operands if a.phase is not Phase.APPLY), "")
    dtype = multiplied_as(read) if read else ""
    macs = float(multiply_adds(op, whole)[0]) if op.kind in _PRODUCTS else 0.0
    return macs / steps, op.flops / steps, dtype


_PRODUCTS = ("contract", "attention", "conv")


@kept(KEPT_BYTES // 2, _nbytes)
def linear_work(cores: int, used: int, cycles: float, sram_bytes: float) -> Work:
    """The same cycles and bytes on each of the first `used` cores (fills and copies)."""
    table = np.zeros((2, cores))
    table[0, :used], table[1, :used] = cycles, sram_bytes
    return Work(Vector(table[0]), Vector(table[1]), 0.0, 0.0, "")


def fill_work(cores: int, cost: CostModel, used: int, size_bytes: int) -> Work:
    """Filling `size_bytes` on each of `used` cores."""
    cycles = float(cost.fill_cycles(np.asarray([size_bytes], dtype=np.float64))[0])
    return linear_work(cores, used, cycles, float(size_bytes))


def copy_work(cores: int, cost: CostModel, used: int, sizes_bytes: Sequence[int]) -> Work:
    """Copying blocks of the given sizes, one after another, on each of `used` cores."""
    cycles = float(cost.copy_cycles(np.asarray(sizes_bytes, dtype=np.float64)).sum())
    return linear_work(cores, used, cycles, 2.0 * sum(sizes_bytes))
