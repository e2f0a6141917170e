"""Run one operator under a plan on numpy arrays, following `elk_ir/plan/sharding.py` to the letter.

No machine, no program: blocks are cut out of the whole operands by the layouts, rotated between
cores by the ring sources, and results are put together by the layouts. Whatever lies outside a
core's box is the access's neutral value; elements of a composite axis that belong to a neighbour's
tile are left in place, as they are in a core's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.kernels import KERNELS, Tile
from elk_ir.plan.domain import Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.plan.plan import Plan
from elk_ir.plan.sharding import Sharding, sharding


def cut(tensor: np.ndarray, layout: Layout, neutral: float | None) -> np.ndarray:
    """All blocks of a tensor: (cores, slots…, block…), `neutral` outside of their boxes."""
    shape = (layout.cores, *layout.slots, *layout.block_shape)
    blocks = np.full(shape, 0 if neutral is None else neutral, dtype=tensor.dtype)
    for at in _blocks(layout):
        box, place = _box(layout, at)
        blocks[(*at, ...)][place] = tensor[box]
    return blocks


def put(blocks: np.ndarray, layout: Layout, tensor: np.ndarray, written: np.ndarray) -> None:
    """Write blocks (cores, slots…, block…) into a tensor, counting writes."""
    for at in _blocks(layout):
        box, place = _box(layout, at)
        tensor[box] = blocks[(*at, ...)][place]
        written[box] += 1


def _blocks(layout: Layout) -> Iterator[tuple[int, ...]]:
    return product(*(range(n) for n in (layout.cores, *layout.slots)))


def _box(layout: Layout, at: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    bounds, origin = layout.bounds[at], layout.origins[at]
    box = tuple(slice(int(lo), int(hi)) for lo, hi in bounds)
    place = tuple(
        slice(int(lo - o), int(max(hi, lo) - o)) if hi > lo else slice(0, 0)
        for (lo, hi), o in zip(bounds, origin, strict=True)
    )
    return box, place


def tile_at(op: Operator, layout: Layout, slots: Sequence[int]) -> Tile:
    """The iteration box of every core in the given slots."""
    at = (slice(None), *slots)
    origin, bounds = layout.origins[at], layout.bounds[at]
    valid = np.where(bounds[..., 1] > bounds[..., 0], bounds[..., 1] - origin, 0)
    return Tile(op, layout.block_shape, origin, valid)


class Run:
    """One operator under one plan."""

    def __init__(self, op: Operator, plan: Plan, tensors: Sequence[np.ndarray]) -> None:
        self.op, self.plan, self.tensors = op, plan, tensors
        self.sharding: Sharding = sharding(op, plan)
        self.kernel = KERNELS[op.kind]

    def results(self) -> list[np.ndarray]:
        """The whole results. Asserts that each element is written."""
        merged = self._merge(self._local()) if self.op.stats else []
        return self._apply(merged)

    def _local(self) -> list[np.ndarray]:
        s, op = self.sharding, self.op
        iterate = s.iteration_layout()
        held = {
            v: cut(self.tensors[v], s.execute_layout(v), a.neutral)
            for v, a in enumerate(op.operands)
            if a.phase is not Phase.APPLY
        }
        partials = [
            np.full(
                (s.plan.cores, *s.stat_layout(i).slots, *s.stat_layout(i).block_shape),
                stat.neutral,
                dtype=dtype_of(stat.dtype),
            )
            for i, stat in enumerate(op.stats)
        ]
        dims = range(len(op.dims))
        for step in range(s.steps):
            position = [s.position(d, step) for d in dims]
            slots = [p % n for p, n in zip(position, s.rings, strict=True)]
            tile = tile_at(op, iterate, slots)
            blocks = [
                held[v][self._operand_slots(v, position)] if v in held else np.zeros(0)
                for v in range(len(op.operands))
            ]
            new = self.kernel.local(tile, blocks)
            views = [
                p[(slice(None), 0, *(slots[d] for d in stat.dims))][:, 0]
                for p, stat in zip(partials, op.stats, strict=True)
            ]
            combined = self.kernel.combine(op, views, new)
            for view, value in zip(views, combined, strict=True):
                view[...] = value
            for d in s.shifts_after(step):
                self._shift(held, d, position)
        return partials

    def _operand_slots(self, v: int, position: Sequence[int]) -> tuple[int | slice, ...]:
        access = self.op.operands[v]
        slots: list[int | slice] = [slice(None)]
        for j, axis in enumerate(access.axes):
            d = axis.simple_dim
            own = d is not None and access.simple.get(d) == j
            slots.append(position[d] % self.sharding.window(v, d) if own and d is not None else 0)
        return tuple(slots)

    def _shift(self, held: dict[int, np.ndarray], d: int, position: Sequence[int]) -> None:
        """Every rotating operand's next block along d takes the slot of the consumed one."""
        cores = np.arange(self.plan.cores)
        for v, blocks in held.items():
            if self.plan.execute[v][d] == 1:
                continue
            source = np.broadcast_to(
                self.sharding.ring_source(v, d).evaluate(c=cores, s=0), cores.shape
            )
            axis = self.op.operands[v].simple[d]
            slot = position[d] % self.sharding.window(v, d)
            at = (slice(None),) * (1 + axis) + (slot,)
            blocks[at] = blocks[at][source]

    def _merge(self, partials: list[np.ndarray]) -> list[np.ndarray]:
        """Partials to the cores that merge them, merged in order: (cores, slots…, block…)."""
        s, op = self.sharding, self.op
        gathered: list[np.ndarray] = []
        for i, stat in enumerate(op.stats):
            layout = s.stat_layout(i)
            whole = np.full(layout.shape, stat.neutral, dtype=dtype_of(stat.dtype))
            put(partials[i], layout, whole, np.zeros(layout.shape, dtype=np.int64))
            blocks = cut(whole, s.gathered_layout(i), stat.neutral)
            # (cores, 1, slots…, R, block…): the parts first.
            blocks = np.moveaxis(blocks[:, 0], 1 + len(stat.dims), 0)
            gathered.append(blocks)
        merged = [g[0].copy() for g in gathered]
        every = {d: s.rings[d] for stat in op.stats for d in stat.dims}
        for digits in product(*(range(n) for n in every.values())):
            slot = dict(zip(every, digits, strict=True))
            at = [(slice(None), *(slot[d] for d in stat.dims)) for stat in op.stats]
            total = [g[0][i] for g, i in zip(gathered, at, strict=True)]
            for r in range(1, s.ways):
                parts = [g[r][i] for g, i in zip(gathered, at, strict=True)]
                total = self.kernel.combine(op, total, parts)
            for target, i, value in zip(merged, at, total, strict=True):
                target[i] = value
        return merged

    def _apply(self, merged: list[np.ndarray]) -> list[np.ndarray]:
        s, op = self.sharding, self.op
        iterate = s.apply_layout()
        layouts = [s.result_layout(i) for i in range(len(op.results))]
        outs = [np.zeros(r.shape, dtype=dtype_of(r.dtype)) for r in op.results]
        written = [np.zeros(r.shape, dtype=np.int64) for r in op.results]
        held = {
            v: cut(self.tensors[v], s.execute_layout(v), a.neutral)
            for v, a in enumerate(op.operands)
            if a.phase is not Phase.LOCAL
        }
        blocks_of = [
            np.zeros((la.cores, *la.slots, *la.block_shape), dtype=o.dtype)
            for la, o in zip(layouts, outs, strict=True)
        ]
        for slots in product(*(range(n) for n in iterate.slots)):
            tile = tile_at(op, iterate, slots)
            stats = [
                m[(slice(None), *(slots[d] for d in stat.dims))]
                for m, stat in zip(merged, op.stats, strict=True)
            ]
            blocks = [
                held[v][self._result_slots(a, slots)] if v in held else np.zeros(0)
                for v, a in enumerate(op.operands)
            ]
            results = self.kernel.apply(tile, stats, blocks)
            for access, target, value in zip(op.results, blocks_of, results, strict=True):
                target[self._result_slots(access, slots)] = value
        for out, count, layout, blocks in zip(outs, written, layouts, blocks_of, strict=True):
            put(blocks, layout, out, count)
            assert (count > 0).all(), "an element of the result is held by no core"
        return outs

    @staticmethod
    def _result_slots(access, slots: Sequence[int]) -> tuple[int | slice, ...]:
        at: list[int | slice] = [slice(None)]
        for j, axis in enumerate(access.axes):
            d = axis.simple_dim
            at.append(slots[d] if d is not None and access.simple.get(d) == j else 0)
        return tuple(at)
