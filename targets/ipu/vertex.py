"""One compute set on the virtual machine: a codelet's kernel on every core at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Attribute

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import RefAttr, VertexPhase
from elk_ir.numerics.kernels import KERNELS, Tile
from elk_ir.plan.domain import Access, AxisExpr, Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu.machine import Sram, TrapError, Variable, written_word


class Machine(Protocol):
    """What a vertex needs of the machine that it runs on."""

    sram: Sram
    codelets: dict[str, Operator]
    filled: dict[str, int]

    def slots(self, attr: RefAttr, step: int) -> tuple[Variable, tuple[int | slice, ...]]:
        """The variable that a reference names, and the slots of it at a ring step."""
        ...

    def hidden(self, state: str) -> int:
        """Entries in front of the filled ones in the window of a state."""
        ...

    def variable(self, name: SymbolRefAttr | str) -> Variable:
        """The variable of that name. Traps if there is none."""
        ...


class Vertex:
    """One compute set: its codelet's kernel on every core at once, masks computed once a step."""

    def __init__(self, machine: Machine, op: ipu.ExecuteOp):
        self.machine, self.op = machine, op
        name = op.codelet.root_reference.data
        if name not in machine.codelets:
            raise TrapError(f"no codelet is called @{name}")
        self.operator = machine.codelets[name]
        self.kernel = KERNELS[self.operator.kind]
        self.iterate: Layout = op.iterate.data
        self.phase = op.phase.data
        self.tiles: dict[tuple[int, ...], Tile] = {}
        self.masks: dict[tuple[object, ...], np.ndarray | None] = {}

    def tile(self, at: tuple[int, ...]) -> Tile:
        """The iteration box of each core in the slots `at`."""
        if at not in self.tiles:
            for slot, count in zip(at, self.iterate.slots, strict=True):
                if not 0 <= slot < count:
                    raise TrapError(f"iteration slot {slot} of {count}")
            origin = self.iterate.origins[(slice(None), *at)]
            bounds = self.iterate.bounds[(slice(None), *at)]
            valid = bounds[..., 1] - origin
            valid = np.where(bounds[..., 1] > bounds[..., 0], valid, 0)
            self.tiles[at] = Tile(self.operator, self.iterate.block_shape, origin, valid)
        tile = self.tiles[at]
        state = self.operator.param.get("state")
        hidden = self.machine.hidden(state) if state in self.machine.filled else 0
        if hidden != tile.hidden:
            tile = self.tiles[at] = replace(tile, hidden=hidden)
        return tile

    def mask(self, key: tuple[object, ...], tile: Tile, access: Access) -> np.ndarray | None:
        """Which elements of a block the valid iteration points touch; None for all of them."""
        if key not in self.masks:
            self.masks[key] = _image_mask(tile, access)
        return self.masks[key]

    def run(self, step: int) -> None:
        """Run the vertex at a ring step."""
        at = tuple(int(e.data.evaluate(t=step, c=0, s=0)) for e in self.op.at)
        tile = self.tile(at)
        if self.phase is VertexPhase.COMBINE:
            self.combine(tile, at, step)
            return
        wanted = Phase.APPLY if self.phase is VertexPhase.LOCAL else Phase.LOCAL
        blocks: list[np.ndarray] = []
        references = iter(self.op.ins)
        for v, access in enumerate(self.operator.operands):
            if access.phase is wanted:
                blocks.append(np.zeros(0))
                continue
            blocks.append(self.read(next(references), step, tile, access, ("in", v, at)))
        if self.phase is VertexPhase.LOCAL:
            self.local(tile, at, step, blocks)
        else:
            self.apply(tile, at, step, blocks)

    def read(
        self, attr: Attribute, step: int, tile: Tile, access: Access, key: tuple[object, ...]
    ) -> np.ndarray:
        """A block of an operand, its invalid elements replaced by the neutral value."""
        assert isinstance(attr, RefAttr)
        name = f"vertex @{self.op.sym_name.data}"
        variable, slots = self.machine.slots(attr, step)
        sram = self.machine.sram
        sram.reading(variable, name)
        block = variable.view[(slice(None), *slots)]
        shadow = variable.shadow[(slice(None), *slots)]
        if block.shape != (tile.cores, *access.block_shape(tile.size)):
            raise TrapError(
                f"{name} expects a block of {access.block_shape(tile.size)}, the variable has"
                f" {block.shape[1:]}",
                where=variable.where,
            )
        mask = self.mask(key, tile, access)
        sram.check_written(variable, shadow, mask, name)
        if mask is None:
            return block
        neutral = 0 if access.neutral is None else access.neutral
        return np.where(mask, block, np.asarray(neutral).astype(block.dtype))

    def statistic(
        self, attr: Attribute, step: int, i: int, tile: Tile, at: tuple[int, ...]
    ) -> tuple[Variable, np.ndarray, np.ndarray, np.ndarray | None]:
        """Variable, view, shadow and mask of statistic i (without a leading axis of one)."""
        assert isinstance(attr, RefAttr)
        stat = self.operator.stats[i]
        variable, slots = self.machine.slots(attr, step)
        view = variable.view[(slice(None), *slots)]
        shadow = variable.shadow[(slice(None), *slots)]
        if view.ndim == len(stat.dims) + 2:
            view, shadow = view[:, 0], shadow[:, 0]
        access = Access(
            tuple(self.operator.extents[d] for d in stat.dims),
            stat.dtype,
            tuple(_simple(d) for d in stat.dims),
        )
        return variable, view, shadow, self.mask(("stat", i, at), tile, access)

    def local(self, tile: Tile, at: tuple[int, ...], step: int, blocks: list[np.ndarray]) -> None:
        """Add one sub-tile to the statistics."""
        name = f"vertex @{self.op.sym_name.data}"
        new = self.kernel.local(tile, blocks)
        old: list[np.ndarray] = []
        views: list[np.ndarray] = []
        for i, attr in enumerate(self.op.stats):
            variable, view, shadow, mask = self.statistic(attr, step, i, tile, at)
            self.machine.sram.reading(variable, name)
            self.machine.sram.check_written(variable, shadow, mask, name)
            old.append(view)
            views.append(view)
        for view, value in zip(views, self.kernel.combine(self.operator, old, new), strict=True):
            view[...] = value

    def combine(self, tile: Tile, at: tuple[int, ...], step: int) -> None:
        """Merge the partials gathered along the first axis, in order."""
        name = f"vertex @{self.op.sym_name.data}"
        parts: list[np.ndarray] = []
        operands: list[Variable] = []
        for i, attr in enumerate(self.op.ins):
            assert isinstance(attr, RefAttr)
            variable, slots = self.machine.slots(attr, step)
            operands.append(variable)
            self.machine.sram.reading(variable, name)
            view = variable.view[(slice(None), *slots)]
            shadow = variable.shadow[(slice(None), *slots)]
            stat = self.operator.stats[i]
            access = Access(
                tuple(self.operator.extents[d] for d in stat.dims),
                stat.dtype,
                tuple(_simple(d) for d in stat.dims),
            )
            mask = self.mask(("stat", i, at), tile, access)
            wide = None if mask is None else np.broadcast_to(mask[:, None], view.shape)
            self.machine.sram.check_written(variable, shadow, wide, name)
            neutral = np.asarray(stat.neutral).astype(view.dtype)
            parts.append(view if wide is None else np.where(wide, view, neutral))
        merged = [p[:, 0] for p in parts]
        for r in range(1, parts[0].shape[1]):
            merged = self.kernel.combine(self.operator, merged, [p[:, r] for p in parts])
        for i, (attr, value) in enumerate(zip(self.op.stats, merged, strict=True)):
            assert isinstance(attr, RefAttr)
            self.begin(attr, step, name)
            for operand in operands:
                if not operand.live:
                    raise TrapError(f"{name} overwrites its own operand", where=operand.where)
            variable, view, shadow, mask = self.statistic(attr, step, i, tile, at)
            _write(view, shadow, value, mask)

    def begin(self, attr: RefAttr, step: int, name: str) -> None:
        """The first block of a variable starts it anew; further ones add to it."""
        if step == 0 or self.op.step is None:
            variable = self.machine.variable(attr.data.name)
            self.machine.sram.begin(variable, name)

    def apply(self, tile: Tile, at: tuple[int, ...], step: int, blocks: list[np.ndarray]) -> None:
        """Results from statistics and operands."""
        name = f"vertex @{self.op.sym_name.data}"
        stats: list[np.ndarray] = []
        for i, attr in enumerate(self.op.stats):
            variable, view, shadow, mask = self.statistic(attr, step, i, tile, at)
            self.machine.sram.reading(variable, name)
            self.machine.sram.check_written(variable, shadow, mask, name)
            stats.append(view)
        with np.errstate(all="ignore"):
            results = self.kernel.apply(tile, stats, blocks)
        for i, (attr, value) in enumerate(zip(self.op.outs, results, strict=True)):
            assert isinstance(attr, RefAttr)
            live = self.live_inputs(step)
            self.begin(attr, step, name)
            for variable in live:
                if not variable.live:
                    raise TrapError(f"{name} overwrites its own operand", where=variable.where)
            variable, slots = self.machine.slots(attr, step)
            view = variable.view[(slice(None), *slots)]
            shadow = variable.shadow[(slice(None), *slots)]
            mask = self.mask(("out", i, at), tile, self.operator.results[i])
            if view.shape != value.shape:
                raise TrapError(
                    f"{name} yields {value.shape[1:]}, the variable holds {view.shape[1:]}",
                    where=variable.where,
                )
            _write(view, shadow, value, mask)

    def live_inputs(self, step: int) -> list[Variable]:
        """Variables that this vertex reads."""
        return [
            self.machine.slots(attr, step)[0]
            for attr in (*self.op.ins, *self.op.stats)
            if isinstance(attr, RefAttr)
        ]


def _simple(d: int) -> AxisExpr:
    return AxisExpr(((d, 1),))


def _write(
    view: np.ndarray, shadow: np.ndarray, value: np.ndarray, mask: np.ndarray | None
) -> None:
    word = written_word(view.dtype.itemsize)
    if mask is None:
        view[...] = value
        shadow[...] = word
    else:
        np.copyto(view, value, where=mask, casting="unsafe")
        np.copyto(shadow, np.asarray(word, dtype=shadow.dtype), where=mask)


def _image_mask(tile: Tile, access: Access) -> np.ndarray | None:
    """bool (cores, block…): elements inside the tensor and in the image of the valid points."""
    if tile.is_full and _inside(tile, access):
        return None
    cores = tile.cores
    shape = access.block_shape(tile.size)
    mask = np.ones((cores, *shape), dtype=bool)
    size = np.asarray(tile.size, dtype=np.int64)
    for j, axis in enumerate(access.axes):
        nominal = np.full(cores, axis.offset, dtype=np.int64)
        lo, hi = nominal.copy(), nominal + 1
        for d, k in axis.terms:
            o, n = tile.origin[:, d], tile.valid[:, d]
            nominal = nominal + k * (o if k > 0 else o + size[d] - 1)
            lo = lo + k * (o if k > 0 else o + n - 1)
            hi = hi + k * (o + n - 1 if k > 0 else o)
        lo, hi = np.maximum(lo, 0), np.minimum(hi, access.shape[j])
        index = nominal[:, None] + np.arange(shape[j])
        inside = (index >= lo[:, None]) & (index < hi[:, None])
        mask &= inside.reshape(cores, *(-1 if i == j else 1 for i in range(len(shape))))
    empty = np.zeros(cores, dtype=bool)
    for d in range(len(tile.size)):
        empty |= tile.valid[:, d] <= 0
    mask &= ~empty.reshape(cores, *[1] * len(shape))
    if mask.all():
        return None
    return mask


def _inside(tile: Tile, access: Access) -> bool:
    for j, axis in enumerate(access.axes):
        lo = np.full(tile.cores, axis.offset, dtype=np.int64)
        for d, k in axis.terms:
            o = tile.origin[:, d]
            lo = lo + k * (o if k > 0 else o + tile.size[d] - 1)
        if lo.min(initial=0) < 0 or lo.max(initial=0) + axis.size(tile.size) > access.shape[j]:
            return False
    return True
