"""One compute set on the virtual machine: a codelet's kernel on many cores at once.

Cores are independent of each other within a compute set, so a kernel runs on batches of them whose
temporary arrays stay within `BATCH_BYTES`: a full-size program on thousands of cores would need
several times its SRAM otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Attribute

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import RefAttr, VertexPhase
from elk_ir.numerics.kernels import KERNELS
from elk_ir.numerics.tiles import BoundApply, BoundLocal, Tile, expand, image_mask, place
from elk_ir.plan.domain import Access, AxisExpr, Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu.machine import Sram, TrapError, Variable, written_word
from elk_ir.targets.ipu.routes import elements_of, is_small

BATCH_BYTES = 64 << 20
"""Temporary bytes of one batch of cores, by the estimate of `Vertex.batches`."""

KEPT_MASK_BYTES = 1 << 20
"""Masks up to this size are kept between steps and runs; larger ones are computed again."""

Blocks = Sequence[tuple[Variable, tuple[int | slice, ...]]]


@dataclass(frozen=True)
class _Places:
    """What a vertex works on at a ring step: the slots of its iteration, and its blocks."""

    at: tuple[int, ...]
    ins: Blocks
    stats: Blocks
    outs: Blocks


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
    """One compute set: its codelet's kernel on batches of cores, masks computed once a step.

    A small one is bound to its blocks the first time it runs at a step (`Bound`)."""

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
        self.places: dict[int, _Places] = {}
        self.bound: dict[int, Bound | None] = {}

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
        hidden = self.hidden()
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
        if step not in self.places:
            self.places[step] = _Places(
                tuple(int(e.data.evaluate(t=step, c=0, s=0)) for e in self.op.at),
                *([self.source(attr, step) for attr in attrs] for attrs in self._references()),
            )
        places = self.places[step]
        reads = [*places.ins, *places.stats]
        if self.phase is VertexPhase.LOCAL:
            self.reading(reads)
        elif self.phase is VertexPhase.APPLY:
            self.reading(reads)
            self.begin(places.outs, step, reads)
        else:
            self.reading(places.ins)
            self.begin(places.stats, step, places.ins)
        bound = self.bound[step] if step in self.bound else self.bind(step)
        if bound is not None and bound.hidden != self.hidden():
            bound = self.bind(step)
        if bound is not None:
            bound.run()
            return
        for cores in self.batches():
            tile = self.tile(places.at, cores)
            key = (places.at, cores.start)
            if self.phase is VertexPhase.COMBINE:
                self.combine(tile, key, cores, places.ins, places.stats)
                continue
            blocks = self.operands(tile, key, cores, places.ins)
            if self.phase is VertexPhase.LOCAL:
                self.local(tile, key, cores, places.stats, blocks)
            else:
                self.apply(tile, key, cores, places.stats, places.outs, blocks)

    def hidden(self) -> int:
        """Entries in front of the filled ones in the window of the state that this reads."""
        state = self.operator.param.get("state")
        return self.machine.hidden(state) if state in self.machine.filled else 0

    def _references(self) -> tuple[Sequence[Attribute], ...]:
        return self.op.ins.data, self.op.stats.data, self.op.outs.data

    def bind(self, step: int) -> Bound | None:
        """The vertex bound to its blocks at a step; None for one that is too large."""
        places = self.places[step]
        variables = [v for v, _ in (*places.ins, *places.stats, *places.outs)]
        small = is_small(*(v.layout for v in variables)) and len(self.batches()) == 1
        bound = self.bound[step] = Bound(self, places) if small else None
        return bound

    # ------------------------------------------------------------------ which blocks

    def source(self, attr: Attribute, step: int) -> tuple[Variable, tuple[int | slice, ...]]:
        """The variable of a reference and its slots at a step."""
        assert isinstance(attr, RefAttr)
        return self.machine.slots(attr, step)

    def reading(self, blocks: Blocks) -> None:
        """Reads of these variables begin. Traps if one of them may not be read."""
        for variable, _ in blocks:
            self.machine.sram.reading(variable, self.name)

    def begin(self, blocks: Blocks, step: int, reads: Blocks) -> None:
        """The first block of a variable starts it anew; further ones add to it. Traps if that kills
        what the vertex reads."""
        if step != 0 and self.op.step is not None:
            return
        for written, _ in blocks:
            self.machine.sram.begin(written, self.name)
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
        block, shadow = self.block(variable, slots, tile, cores, access)
        mask = self.mask(key, tile, access)
        self.machine.sram.check_written(variable, shadow, mask, self.name, cores.start)
        if mask is None:
            return block
        neutral = 0 if access.neutral is None else access.neutral
        return np.where(mask, block, np.asarray(neutral).astype(block.dtype))

    def block(
        self,
        variable: Variable,
        slots: tuple[int | slice, ...],
        tile: Tile,
        cores: slice,
        access: Access,
    ) -> tuple[np.ndarray, np.ndarray]:
        """View and shadow of a block of an operand. Traps if it is not as large as the tile's."""
        block = variable.view[(cores, *slots)]
        if block.shape != (tile.cores, *access.block_shape(tile.size)):
            raise TrapError(
                f"{self.name} expects a block of {access.block_shape(tile.size)} on"
                f" {tile.cores} cores, the variable has {block.shape[1:]} on {block.shape[0]}",
                where=variable.where,
            )
        return block, variable.shadow[(cores, *slots)]

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


@dataclass(frozen=True)
class _Read:
    """A block that a bound vertex reads: what of it must be written, and whether all of that lies
    inside of what its variable holds."""

    variable: Variable
    shadow: np.ndarray
    needed: np.ndarray | None
    inside: bool


@dataclass(frozen=True)
class _Written:
    """A block that a bound vertex writes: `values` (an array of its own, or the block) where `mask`
    is set, the shadow of that, and whether it is all that the variable holds."""

    variable: Variable
    view: np.ndarray
    shadow: np.ndarray
    mask: np.ndarray | None
    pattern: np.ndarray
    whole: bool

    def write(self, value: np.ndarray | None) -> None:
        """Write a block, if it is not in place, and mark it as written."""
        if self.mask is None:
            if value is not None:
                self.view[...] = value
        elif value is not None:
            np.copyto(self.view, value, where=self.mask, casting="unsafe")
        np.bitwise_or(self.shadow, self.pattern, out=self.shadow)
        self.variable.whole = self.variable.whole or self.whole


class Bound:
    """A vertex at one ring step on the very blocks that it reads and writes, as long as the state
    that it reads is filled as far: everything but the moving and the arithmetic is done once.

    What it reads is still checked against the shadow each time, unless its variable is known to be
    written whole.
    """

    def __init__(self, vertex: Vertex, places: _Places):
        self.vertex, self.hidden = vertex, vertex.hidden()
        self.sram = vertex.machine.sram
        (self.cores,) = vertex.batches()
        self.tile = vertex.tile(places.at, self.cores)
        self.key = (places.at, self.cores.start)
        self.reads: list[_Read] = []
        self.steps: list[Callable[[], object]] = []
        with np.errstate(all="ignore"):
            match vertex.phase:
                case VertexPhase.LOCAL:
                    self.work = self._local(places)
                case VertexPhase.APPLY:
                    self.work = self._apply(places)
                case _:
                    self.work = self._combine(places)

    def run(self) -> None:
        """Check, compute and write."""
        for read in self.reads:
            if not (read.inside and read.variable.whole):
                self.sram.check_written(
                    read.variable, read.shadow, read.needed, self.vertex.name, self.cores.start
                )
        for step in self.steps:
            step()
        self.work()

    # ------------------------------------------------------------------ blocks

    def _held(self, variable: Variable, slots: tuple[int | slice, ...]) -> np.ndarray:
        """Which elements of a block the variable's layout holds."""
        held = (elements_of(variable.layout) >= 0).reshape(variable.view.shape)
        return held[(self.cores, *slots)]

    def _read(
        self, variable: Variable, held: np.ndarray, shadow: np.ndarray, needed: np.ndarray | None
    ) -> None:
        inside = bool((held if needed is None else held | ~needed).all())
        self.reads.append(_Read(variable, shadow, needed, inside))

    def _masked(self, view: np.ndarray, mask: np.ndarray | None, neutral: object) -> np.ndarray:
        """A block, or a copy of it with the neutral value outside of the mask."""
        if mask is None:
            return view
        made = np.full(view.shape, np.asarray(neutral).astype(view.dtype))
        self.steps.append(lambda: np.copyto(made, view, where=mask))
        return made

    def _operands(self, ins: Blocks) -> list[np.ndarray]:
        vertex, tile = self.vertex, self.tile
        other = Phase.APPLY if vertex.phase is VertexPhase.LOCAL else Phase.LOCAL
        blocks: list[np.ndarray] = []
        references = iter(ins)
        for v, access in enumerate(vertex.operator.operands):
            if access.phase is other:
                blocks.append(np.zeros(0))
                continue
            variable, slots = next(references)
            block, shadow = vertex.block(variable, slots, tile, self.cores, access)
            mask = vertex.mask(("in", v, self.key), tile, access)
            self._read(variable, self._held(variable, slots), shadow, mask)
            neutral = 0 if access.neutral is None else access.neutral
            blocks.append(self._masked(block, mask, neutral))
        return blocks

    def _statistics(self, stats: Blocks, *, read: bool) -> list[_Written]:
        found: list[_Written] = []
        for i, (variable, slots) in enumerate(stats):
            _, view, shadow, mask = self.vertex.statistic(i, stats, self.tile, self.cores, self.key)
            held = self._held(variable, slots).reshape(view.shape)
            if read:
                self._read(variable, held, shadow, mask)
            found.append(_written(variable, view, shadow, mask, held))
        return found

    # ------------------------------------------------------------------ phases

    def _local(self, places: _Places) -> Callable[[], None]:
        vertex, tile, kernel = self.vertex, self.tile, self.vertex.kernel
        blocks = self._operands(places.ins)
        views = [s.view for s in self._statistics(places.stats, read=True)]
        operator = vertex.operator
        if isinstance(kernel, BoundLocal):
            values = kernel.bind_local(tile, blocks)
        else:
            values = partial(kernel.local, tile, blocks)

        def work() -> None:
            for view, value in zip(views, kernel.combine(operator, views, values()), strict=True):
                view[...] = value

        return work

    def _combine(self, places: _Places) -> Callable[[], None]:
        kernel, operator = self.vertex.kernel, self.vertex.operator
        parts: list[np.ndarray] = []
        for i, (variable, slots) in enumerate(places.ins):
            view = variable.view[(self.cores, *slots)]
            shadow = variable.shadow[(self.cores, *slots)]
            access = self.vertex.stat_access(i)
            mask = self.vertex.mask(("stat", i, self.key), self.tile, access)
            wide = None if mask is None else np.broadcast_to(mask[:, None], view.shape)
            self._read(variable, self._held(variable, slots), shadow, wide)
            parts.append(self._masked(view, wide, operator.stats[i].neutral))
        targets = self._statistics(places.stats, read=False)
        count = parts[0].shape[1]
        slices = [[p[:, r] for p in parts] for r in range(count)]

        def work() -> None:
            merged = slices[0]
            for part in slices[1:]:
                merged = kernel.combine(operator, merged, part)
            for target, value in zip(targets, merged, strict=True):
                target.write(value)

        return work

    def _apply(self, places: _Places) -> Callable[[], None]:
        vertex, tile, kernel = self.vertex, self.tile, self.vertex.kernel
        blocks = self._operands(places.ins)
        views = [s.view for s in self._statistics(places.stats, read=True)]
        targets: list[_Written] = []
        for i, (variable, slots) in enumerate(places.outs):
            access = vertex.operator.results[i]
            view = variable.view[(self.cores, *slots)]
            shadow = variable.shadow[(self.cores, *slots)]
            if view.shape != (tile.cores, *access.block_shape(tile.size)):
                raise TrapError(
                    f"{vertex.name} yields {access.block_shape(tile.size)}, the variable holds"
                    f" {view.shape[1:]}",
                    where=variable.where,
                )
            mask = vertex.mask(("out", i, self.key), tile, access)
            targets.append(_written(variable, view, shadow, mask, self._held(variable, slots)))
        if not isinstance(kernel, BoundApply):
            apply = partial(kernel.apply, tile, views, blocks)

            def work() -> None:
                for target, value in zip(targets, apply(), strict=True):
                    target.write(value)

            return work
        values, dims = kernel.bind_apply(tile, views, blocks)
        into: list[tuple[np.ndarray, list[int], np.ndarray | None]] = []
        for target, access in zip(targets, vertex.operator.results, strict=True):
            own = sorted(access.dims)
            # A block of its own where a mask follows, or zeros between what is written.
            direct = target.mask is None and prod(tile.size[d] for d in own) == target.view[0].size
            made = target.view if direct else np.zeros(target.view.shape, target.view.dtype)
            into.append((expand(made, access, tile.size), own, None if direct else made))

        def packed() -> None:
            for target, value, (points, own, made) in zip(targets, values(), into, strict=True):
                place(points, value, dims, own)
                target.write(made)

        return packed


def _written(
    variable: Variable,
    view: np.ndarray,
    shadow: np.ndarray,
    mask: np.ndarray | None,
    held: np.ndarray,
) -> _Written:
    word = np.asarray(written_word(view.dtype.itemsize), dtype=shadow.dtype)
    one = prod(variable.layout.slots) == 1 and view.shape[0] == variable.layout.cores
    return _Written(
        variable,
        view,
        shadow,
        mask,
        word if mask is None else mask * word,
        one and (mask is None or bool((mask | ~held).all())),
    )


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
