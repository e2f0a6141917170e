"""One compute set on the virtual machine: a codelet's kernel on many cores at once.

Cores are independent of each other within a compute set, so a kernel runs on batches of them whose
temporary arrays stay within `BATCH_BYTES`: a full-size program on thousands of cores would need
several times its SRAM otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_Arrays = Sequence[np.ndarray]

_NOTHING = np.zeros(0)
"""What a kernel gets for an operand of its other phase."""


@dataclass(frozen=True)
class _Places:
    """What a vertex works on at a ring step: the slots of its iteration, and its blocks."""

    at: tuple[int, ...]
    ins: Blocks
    stats: Blocks
    outs: Blocks


@dataclass(frozen=True)
class _Block:
    """A block of some cores that a vertex reads or writes: its shadow, which of its elements count
    (None: all of them), and what stands for the others."""

    variable: Variable
    slots: tuple[int | slice, ...]
    view: np.ndarray
    shadow: np.ndarray
    mask: np.ndarray | None
    neutral: np.ndarray


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
            blocks = [
                _NOTHING if block is None else self.read(block, cores)
                for block in self.operands(tile, key, cores, places.ins)
            ]
            if self.phase is VertexPhase.LOCAL:
                self.local(tile, key, cores, places.stats, blocks)
            else:
                self.apply(tile, key, cores, places, blocks)

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
    ) -> Iterator[_Block | None]:
        """The blocks of the operands of this phase; None for the others. Traps at one that is not
        as large as the tile's."""
        other = Phase.APPLY if self.phase is VertexPhase.LOCAL else Phase.LOCAL
        references = iter(ins)
        for v, access in enumerate(self.operator.operands):
            if access.phase is other:
                yield None
                continue
            variable, slots = next(references)
            view = variable.view[(cores, *slots)]
            if view.shape != (tile.cores, *access.block_shape(tile.size)):
                raise TrapError(
                    f"{self.name} expects a block of {access.block_shape(tile.size)} on"
                    f" {tile.cores} cores, the variable has {view.shape[1:]} on {view.shape[0]}",
                    where=variable.where,
                )
            mask = self.mask(("in", v, key), tile, access)
            neutral = 0 if access.neutral is None else access.neutral
            yield _block(variable, slots, cores, mask, neutral)

    def partials(
        self, tile: Tile, key: tuple[object, ...], cores: slice, ins: Blocks
    ) -> Iterator[_Block]:
        """The blocks of statistics gathered along their first axis."""
        for i, (variable, slots) in enumerate(ins):
            mask = self.mask(("stat", i, key), tile, self.stat_access(i))
            if mask is not None:
                mask = np.broadcast_to(mask[:, None], variable.view[(cores, *slots)].shape)
            yield _block(variable, slots, cores, mask, self.operator.stats[i].neutral)

    def statistics(
        self, tile: Tile, key: tuple[object, ...], cores: slice, stats: Blocks
    ) -> Iterator[_Block]:
        """The blocks of statistics, without a leading axis of one."""
        for i, (stat, (variable, slots)) in enumerate(zip(self.operator.stats, stats, strict=True)):
            mask = self.mask(("stat", i, key), tile, self.stat_access(i))
            block = _block(variable, slots, cores, mask, stat.neutral)
            if block.view.ndim == len(stat.dims) + 2:
                block = replace(block, view=block.view[:, 0], shadow=block.shadow[:, 0])
            yield block

    def results(
        self, tile: Tile, key: tuple[object, ...], cores: slice, outs: Blocks
    ) -> Iterator[_Block]:
        """The blocks of the results. Traps at one that is not as large as the tile's."""
        for i, (access, (variable, slots)) in enumerate(
            zip(self.operator.results, outs, strict=True)
        ):
            block = _block(variable, slots, cores, self.mask(("out", i, key), tile, access), 0)
            if block.view.shape != (tile.cores, *access.block_shape(tile.size)):
                raise TrapError(
                    f"{self.name} yields {access.block_shape(tile.size)}, the variable holds"
                    f" {block.view.shape[1:]}",
                    where=variable.where,
                )
            yield block

    def stat_access(self, i: int) -> Access:
        """Where a statistic lies in the iteration domain."""
        stat = self.operator.stats[i]
        shape = tuple(self.operator.extents[d] for d in stat.dims)
        return Access(shape, stat.dtype, tuple(_simple(d) for d in stat.dims))

    def written(self, block: _Block, cores: slice) -> np.ndarray:
        """A block as it is. Traps if it is not written where it counts."""
        self.machine.sram.check_written(
            block.variable, block.shadow, block.mask, self.name, cores.start
        )
        return block.view

    def read(self, block: _Block, cores: slice) -> np.ndarray:
        """The same with the neutral value where it does not count."""
        view = self.written(block, cores)
        return view if block.mask is None else np.where(block.mask, view, block.neutral)

    # ------------------------------------------------------------------ phases

    def local(
        self, tile: Tile, key: tuple[object, ...], cores: slice, stats: Blocks, blocks: _Arrays
    ) -> None:
        """Add one sub-tile to the statistics."""
        new = self.kernel.local(tile, blocks)
        old = [self.written(b, cores) for b in self.statistics(tile, key, cores, stats)]
        for view, value in zip(old, self.kernel.combine(self.operator, old, new), strict=True):
            view[...] = value

    def combine(
        self, tile: Tile, key: tuple[object, ...], cores: slice, ins: Blocks, stats: Blocks
    ) -> None:
        """Merge the partials gathered along the first axis, in order."""
        parts = [self.read(block, cores) for block in self.partials(tile, key, cores, ins)]
        merged = [p[:, 0] for p in parts]
        for r in range(1, parts[0].shape[1]):
            merged = self.kernel.combine(self.operator, merged, [p[:, r] for p in parts])
        for block, value in zip(self.statistics(tile, key, cores, stats), merged, strict=True):
            _write(block, value)

    def apply(
        self, tile: Tile, key: tuple[object, ...], cores: slice, places: _Places, blocks: _Arrays
    ) -> None:
        """Results from statistics and operands."""
        values = [self.written(b, cores) for b in self.statistics(tile, key, cores, places.stats)]
        with np.errstate(all="ignore"):
            results = self.kernel.apply(tile, values, blocks)
        for block, value in zip(self.results(tile, key, cores, places.outs), results, strict=True):
            _write(block, value)


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

    def _held(self, block: _Block) -> np.ndarray:
        """Which elements of a block its variable's layout holds."""
        variable = block.variable
        held = (elements_of(variable.layout) >= 0).reshape(variable.view.shape)
        return held[(self.cores, *block.slots)].reshape(block.view.shape)

    def _read(self, block: _Block) -> np.ndarray:
        """A block as it is, checked before each run."""
        held, needed = self._held(block), block.mask
        inside = bool((held if needed is None else held | ~needed).all())
        self.reads.append(_Read(block.variable, block.shadow, needed, inside))
        return block.view

    def _masked(self, block: _Block) -> np.ndarray:
        """The same, or a copy of it with the neutral value where it does not count."""
        view, mask = self._read(block), block.mask
        if mask is None:
            return view
        made = np.full(view.shape, block.neutral)
        self.steps.append(lambda: np.copyto(made, view, where=mask))
        return made

    def _operands(self, ins: Blocks) -> list[np.ndarray]:
        return [
            _NOTHING if block is None else self._masked(block)
            for block in self.vertex.operands(self.tile, self.key, self.cores, ins)
        ]

    def _statistics(self, stats: Blocks) -> list[np.ndarray]:
        found = self.vertex.statistics(self.tile, self.key, self.cores, stats)
        return [self._read(block) for block in found]

    def _written(self, block: _Block) -> _Written:
        variable, view, shadow, mask = block.variable, block.view, block.shadow, block.mask
        word = np.asarray(written_word(view.dtype.itemsize), dtype=shadow.dtype)
        one = prod(variable.layout.slots) == 1 and view.shape[0] == variable.layout.cores
        return _Written(
            variable,
            view,
            shadow,
            mask,
            word if mask is None else mask * word,
            one and (mask is None or bool((mask | ~self._held(block)).all())),
        )

    # ------------------------------------------------------------------ phases

    def _local(self, places: _Places) -> Callable[[], None]:
        vertex, tile, kernel = self.vertex, self.tile, self.vertex.kernel
        blocks = self._operands(places.ins)
        views = self._statistics(places.stats)
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
        where = (self.tile, self.key, self.cores)
        parts = [self._masked(b) for b in self.vertex.partials(*where, places.ins)]
        targets = [self._written(b) for b in self.vertex.statistics(*where, places.stats)]
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
        views = self._statistics(places.stats)
        targets = [
            self._written(block)
            for block in vertex.results(tile, self.key, self.cores, places.outs)
        ]
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


def _block(
    variable: Variable,
    slots: tuple[int | slice, ...],
    cores: slice,
    mask: np.ndarray | None,
    neutral: float,
) -> _Block:
    view = variable.view[(cores, *slots)]
    shadow = variable.shadow[(cores, *slots)]
    return _Block(variable, slots, view, shadow, mask, np.asarray(neutral).astype(view.dtype))


def _simple(d: int) -> AxisExpr:
    return AxisExpr(((d, 1),))


def _write(block: _Block, value: np.ndarray) -> None:
    """Write a block where it counts, and mark that as written."""
    word = written_word(block.view.dtype.itemsize)
    if block.mask is None:
        block.view[...] = value
        block.shadow[...] = word
    else:
        np.copyto(block.view, value, where=block.mask, casting="unsafe")
        np.copyto(block.shadow, np.asarray(word, dtype=block.shadow.dtype), where=block.mask)
