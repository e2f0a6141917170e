"""One compute set on the virtual machine: a codelet's kernel on many cores at once.

Cores are independent of each other within a compute set, so a kernel runs on batches of them whose
temporary arrays stay within `BATCH_BYTES`: a full-size program on thousands of cores would need
several times its SRAM otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

import numpy as np
from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Attribute

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import RefAttr, VertexPhase
from elk_ir.numerics.kernels import KERNELS
from elk_ir.numerics.tiles import Tile, image_mask
from elk_ir.plan.domain import Access, AxisExpr, Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu.machine import Sram, TrapError, Variable, written_word

BATCH_BYTES = 64 << 20
"""Temporary bytes of one batch of cores, by the estimate of `Vertex.batches`."""

KEPT_MASK_BYTES = 1 << 20
"""Masks up to this size are kept between steps and runs; larger ones are computed again."""

Blocks = Sequence[tuple[Variable, tuple[int | slice, ...]]]


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
    """One compute set: its codelet's kernel on batches of cores, masks computed once a step."""

    def __init__(self, machine: Machine, op: ipu.ExecuteOp):
        self.machine, self.op = machine, op
        name = op.codelet.root_reference.data
        if name not in machine.codelets:
            raise TrapError(f"no codelet is called @{name}")
        self.operator = machine.codelets[name]
        self.kernel = KERNELS[self.operator.kind]
        self.iterate: Layout = op.iterate.data
        self.phase = op.phase.data
        self.name = f"vertex @{op.sym_name.data}"
        self.tiles: dict[tuple[object, ...], Tile] = {}
        self.masks: dict[tuple[object, ...], np.ndarray | None] = {}

    def tile(self, at: tuple[int, ...], cores: slice) -> Tile:
        """The iteration box of some cores in the slots `at`."""
        key = (at, cores.start)
        if key not in self.tiles:
            for slot, count in zip(at, self.iterate.slots, strict=True):
                if not 0 <= slot < count:
                    raise TrapError(f"iteration slot {slot} of {count}")
            origin = self.iterate.origins[(cores, *at)]
            bounds = self.iterate.bounds[(cores, *at)]
            valid = bounds[..., 1] - origin
            valid = np.where(bounds[..., 1] > bounds[..., 0], valid, 0)
            self.tiles[key] = Tile(self.operator, self.iterate.block_shape, origin, valid)
        tile = self.tiles[key]
        state = self.operator.param.get("state")
        hidden = self.machine.hidden(state) if state in self.machine.filled else 0
        if hidden != tile.hidden:
            tile = self.tiles[key] = replace(tile, hidden=hidden)
        return tile

    def batches(self) -> list[slice]:
        """The cores, cut so that the temporaries of one batch stay small: 16 bytes for each element
        of a block that is read or written."""
        size = self.iterate.block_shape
        accesses = [*self.operator.operands, *self.operator.results]
        elements = sum(prod(a.block_shape(size)) for a in accesses)
        gathered = self.op.ins.data if self.phase is VertexPhase.COMBINE else ()
        elements += sum(self.machine.variable(r.data.name).layout.elements for r in gathered)
        elements += sum(prod(size[d] for d in stat.dims) for stat in self.operator.stats)
        cores = self.iterate.cores
        step = max(1, BATCH_BYTES // max(1, 16 * elements))
        return [slice(c, min(c + step, cores)) for c in range(0, cores, step)]

    def mask(self, key: tuple[object, ...], tile: Tile, access: Access) -> np.ndarray | None:
        """Which elements of a block the valid iteration points touch; None for all of them."""
        if key in self.masks:
            return self.masks[key]
        mask = image_mask(tile, access)
        if mask is None or mask.nbytes <= KEPT_MASK_BYTES:
            self.masks[key] = mask
        return mask

    def run(self, step: int) -> None:
        """Run the vertex at a ring step."""
        at = tuple(int(e.data.evaluate(t=step, c=0, s=0)) for e in self.op.at)
        reads = [self.source(attr, step) for attr in (*self.op.ins, *self.op.stats)]
        ins, stats = reads[: len(self.op.ins)], reads[len(self.op.ins) :]
        if self.phase is VertexPhase.LOCAL:
            self.reading(reads)
        elif self.phase is VertexPhase.APPLY:
            self.reading(reads)
            self.begin(self.op.outs.data, step, reads)
        else:
            self.reading(ins)
            self.begin(self.op.stats.data, step, ins)
        outs = [self.source(attr, step) for attr in self.op.outs]
        for cores in self.batches():
            tile = self.tile(at, cores)
            key = (at, cores.start)
            if self.phase is VertexPhase.COMBINE:
                self.combine(tile, key, cores, ins, stats)
            elif self.phase is VertexPhase.LOCAL:
                self.local(tile, key, cores, stats, self.operands(tile, key, cores, ins))
            else:
                self.apply(tile, key, cores, stats, outs, self.operands(tile, key, cores, ins))

    # ------------------------------------------------------------------ which blocks

    def source(self, attr: Attribute, step: int) -> tuple[Variable, tuple[int | slice, ...]]:
        """The variable of a reference and its slots at a step."""
        assert isinstance(attr, RefAttr)
        return self.machine.slots(attr, step)

    def reading(self, blocks: Blocks) -> None:
        """Reads of these variables begin. Traps if one of them may not be read."""
        for variable, _ in blocks:
            self.machine.sram.reading(variable, self.name)

    def begin(self, attrs: Sequence[Attribute], step: int, reads: Blocks) -> None:
        """The first block of a variable starts it anew; further ones add to it. Traps if that kills
        what the vertex reads."""
        if step != 0 and self.op.step is not None:
            return
        for attr in attrs:
            self.machine.sram.begin(self.source(attr, step)[0], self.name)
            for variable, _ in reads:
                if not variable.live:
                    raise TrapError(f"{self.name} overwrites its own operand", where=variable.where)

    def operands(
        self, tile: Tile, key: tuple[object, ...], cores: slice, ins: Blocks
    ) -> list[np.ndarray]:
        """The blocks of the operands of this phase; empty arrays for the others."""
        wanted = Phase.APPLY if self.phase is VertexPhase.LOCAL else Phase.LOCAL
        blocks: list[np.ndarray] = []
        references = iter(ins)
        for v, access in enumerate(self.operator.operands):
            if access.phase is wanted:
                blocks.append(np.zeros(0))
                continue
            variable, slots = next(references)
            blocks.append(self.read(variable, slots, tile, cores, access, ("in", v, key)))
        return blocks

    def read(
        self,
        variable: Variable,
        slots: tuple[int | slice, ...],
        tile: Tile,
        cores: slice,
        access: Access,
        key: tuple[object, ...],
    ) -> np.ndarray:
        """A block of an operand, its invalid elements replaced by the neutral value."""
        block = variable.view[(cores, *slots)]
        shadow = variable.shadow[(cores, *slots)]
        if block.shape != (tile.cores, *access.block_shape(tile.size)):
            raise TrapError(
                f"{self.name} expects a block of {access.block_shape(tile.size)} on"
                f" {tile.cores} cores, the variable has {block.shape[1:]} on {block.shape[0]}",
                where=variable.where,
            )
        mask = self.mask(key, tile, access)
        self.machine.sram.check_written(variable, shadow, mask, self.name, cores.start)
        if mask is None:
            return block
        neutral = 0 if access.neutral is None else access.neutral
        return np.where(mask, block, np.asarray(neutral).astype(block.dtype))

    def statistic(
        self,
        i: int,
        stats: Blocks,
        tile: Tile,
        cores: slice,
        key: tuple[object, ...],
    ) -> tuple[Variable, np.ndarray, np.ndarray, np.ndarray | None]:
        """Variable, view, shadow and mask of statistic i (without a leading axis of one)."""
        stat = self.operator.stats[i]
        variable, slots = stats[i]
        view = variable.view[(cores, *slots)]
        shadow = variable.shadow[(cores, *slots)]
        if view.ndim == len(stat.dims) + 2:
            view, shadow = view[:, 0], shadow[:, 0]
        mask = self.mask(("stat", i, key), tile, self.stat_access(i))
        return variable, view, shadow, mask

    def stat_access(self, i: int) -> Access:
        """Where a statistic lies in the iteration domain."""
        stat = self.operator.stats[i]
        shape = tuple(self.operator.extents[d] for d in stat.dims)
        return Access(shape, stat.dtype, tuple(_simple(d) for d in stat.dims))

    # ------------------------------------------------------------------ phases

    def local(
        self,
        tile: Tile,
        key: tuple[object, ...],
        cores: slice,
        stats: Blocks,
        blocks: list[np.ndarray],
    ) -> None:
        """Add one sub-tile to the statistics."""
        new = self.kernel.local(tile, blocks)
        old: list[np.ndarray] = []
        for i in range(len(stats)):
            variable, view, shadow, mask = self.statistic(i, stats, tile, cores, key)
            self.machine.sram.check_written(variable, shadow, mask, self.name, cores.start)
            old.append(view)
        for view, value in zip(old, self.kernel.combine(self.operator, old, new), strict=True):
            view[...] = value

    def combine(
        self,
        tile: Tile,
        key: tuple[object, ...],
        cores: slice,
        ins: Blocks,
        stats: Blocks,
    ) -> None:
        """Merge the partials gathered along the first axis, in order."""
        parts: list[np.ndarray] = []
        for i, (variable, slots) in enumerate(ins):
            view = variable.view[(cores, *slots)]
            shadow = variable.shadow[(cores, *slots)]
            mask = self.mask(("stat", i, key), tile, self.stat_access(i))
            wide = None if mask is None else np.broadcast_to(mask[:, None], view.shape)
            self.machine.sram.check_written(variable, shadow, wide, self.name, cores.start)
            neutral = np.asarray(self.operator.stats[i].neutral).astype(view.dtype)
            parts.append(view if wide is None else np.where(wide, view, neutral))
        merged = [p[:, 0] for p in parts]
        for r in range(1, parts[0].shape[1]):
            merged = self.kernel.combine(self.operator, merged, [p[:, r] for p in parts])
        for i, value in enumerate(merged):
            _, view, shadow, mask = self.statistic(i, stats, tile, cores, key)
            _write(view, shadow, value, mask)

    def apply(
        self,
        tile: Tile,
        key: tuple[object, ...],
        cores: slice,
        stats: Blocks,
        outs: Blocks,
        blocks: list[np.ndarray],
    ) -> None:
        """Results from statistics and operands."""
        values: list[np.ndarray] = []
        for i in range(len(stats)):
            variable, view, shadow, mask = self.statistic(i, stats, tile, cores, key)
            self.machine.sram.check_written(variable, shadow, mask, self.name, cores.start)
            values.append(view)
        with np.errstate(all="ignore"):
            results = self.kernel.apply(tile, values, blocks)
        for i, ((variable, slots), value) in enumerate(zip(outs, results, strict=True)):
            view = variable.view[(cores, *slots)]
            shadow = variable.shadow[(cores, *slots)]
            mask = self.mask(("out", i, key), tile, self.operator.results[i])
            if view.shape != value.shape:
                raise TrapError(
                    f"{self.name} yields {value.shape[1:]}, the variable holds {view.shape[1:]}",
                    where=variable.where,
                )
            _write(view, shadow, value, mask)


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
