"""Run an `ipu` program on the virtual machine: real numbers, moved byte by byte between cores.

The interpreter owns every core's SRAM (`machine.py`) and the HBM. It executes the very program
that is simulated and emitted, and traps what the machine forbids: reads of bytes never written, of
buffers overwritten while live, before a preload has landed, addresses and cores out of range.
Copies to and from HBM may land as early or as late as the rules allow (`landing`): a correct
program gives the same result either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.ipu.attrs import Ref, RefAttr, VertexPhase
from elk_ir.dialects.location import node_name
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.kernels import KERNELS, Tile
from elk_ir.plan.domain import Access, AxisExpr, Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.plan.moves import moves
from elk_ir.targets.ipu.machine import Sram, TrapError, Variable, written_word

Landing = Literal["early", "late"]
Loader = Callable[[ipu.RemoteOp], np.ndarray]
POISON = 0xA5


@dataclass
class _Transfer:
    """A copy between HBM and a variable that has been started and not yet carried out."""

    variable: Variable
    run: Callable[[], None]
    store: bool


@dataclass
class Counters:
    """Bytes moved by a run, as a check of conservation."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    exchanged_bytes: int = 0
    vertices: int = 0


class Interpreter:
    """One run of a program: `Interpreter(module, load).run(inputs)`.

    load: gives the value of a weight, of the stacked shape where it has a stack.
    landing: whether copies take effect when they start or only when they are waited for.
    filled: entries of each state (by symbol) that are filled when the run starts, if fewer than
    the program has room for. The filled part then lies at the end of the window that the program
    reads: what is in front of it reads as zero, and attention masks it.
    """

    def __init__(
        self,
        module: ModuleOp,
        load: Loader,
        *,
        cores: int,
        sram_bytes: int,
        landing: Landing = "late",
        filled: Mapping[str, int] | None = None,
    ):
        self.load, self.landing = load, landing
        self.filled: dict[str, int] = dict(filled or {})
        self.appended: dict[str, int] = {}
        self.counters = Counters()
        self.remotes: dict[str, ipu.RemoteOp] = {}
        self.codelets: dict[str, Operator] = {}
        self.hbm: dict[str, np.ndarray] = {}
        self.queue: list[_Transfer] = []
        self.storing: list[str] = []
        self.program: ipu.ProgramOp | None = None
        variables: list[ipu.VarOp] = []
        for op in module.body.block.ops:
            if isinstance(op, ipu.RemoteOp):
                self.remotes[op.sym_name.data] = op
            elif isinstance(op, ipu.VarOp):
                variables.append(op)
            elif isinstance(op, ipu.CodeletOp):
                self.codelets[op.sym_name.data] = op.structured.operator()
            elif isinstance(op, ipu.ProgramOp):
                self.program = op
        if self.program is None:
            raise ElkError(
                "the module has no ipu.program", hint="lower it with convert-icca-to-ipu first"
            )
        used = max((v.layout.data.cores for v in variables), default=1)
        if used > cores:
            raise TrapError(f"the program uses {used} cores, the chip has {cores}")
        peak = max((v.at.value.data + v.bytes.value.data for v in variables), default=0)
        if peak > sram_bytes:
            raise TrapError(f"the program uses {peak} bytes of SRAM, a core has {sram_bytes}")
        self.sram = Sram(used, peak)
        for v in variables:
            owner = "" if v.owner is None else v.owner.data
            self.sram.declare(
                v.sym_name.data,
                owner,
                v.layout.data,
                shape_dtype(v.type)[1],
                v.at.value.data,
                v.bytes.value.data,
            )
        self.index: dict[SSAValue, int] = {}
        self._prepared: dict[Operation, _Vertex] = {}

    # ------------------------------------------------------------------ running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The graph's outputs by name. Raises ElkError for wrong inputs, TrapError for a program
        that breaks the machine's rules."""
        self.fill(inputs)
        self.execute()
        return self.outputs()

    def fill(self, inputs: Mapping[str, np.ndarray], *, again: bool = False) -> None:
        """Put weights, states and inputs into HBM; `again`: inputs only, the rest stays."""
        for name, op in self.remotes.items():
            state = op.axis is not None and op.length is not None
            if state and op.length is not None:
                self.filled.setdefault(name, op.length.value.data)
            if not again or op.kind.data is HbmKind.INPUT:
                self.hbm[name] = self._fill(op, inputs)

    def execute(self) -> None:
        """Run the program once on what is in HBM; states grow by what it appends."""
        assert self.program is not None
        for name, extra in self.appended.items():
            self.filled[name] += extra
        self.appended = {}
        for name, count in self.filled.items():
            room = self._length(name)
            if count > room:
                raise ElkError(
                    f"state @{name} holds {count} entries, the program reads at most {room}",
                    hint="compile with a larger --kv-capacity",
                )
        self._block(self.program.body.block)
        for transfer in list(self.queue):
            self._flush(transfer)

    def _length(self, state: str) -> int:
        """Entries of a state that the program reads at most."""
        length = self.remotes[state].length
        assert length is not None
        return length.value.data

    def _hidden(self, state: str) -> int:
        """Entries in front of the filled ones in the window of a state."""
        return self._length(state) - self.filled[state]

    def _fill(self, op: ipu.RemoteOp, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        shape, dtype = shape_dtype(op.type)
        full = (op.layers, *shape)
        kind = op.kind.data
        if kind is HbmKind.WEIGHT:
            return self.load(op).reshape(full)
        if kind is HbmKind.OUTPUT:
            return np.zeros(full, dtype=dtype_of(dtype))
        array = np.zeros(full, dtype=dtype_of(dtype))
        names = [] if op.inputs is None else [n.data for n in op.inputs]
        for layer, name in enumerate(names):
            if name not in inputs:
                raise ElkError(f"input {name!r} is missing", hint=f"give {', '.join(names)}")
            value = np.asarray(inputs[name])
            wanted = list(shape)
            if op.axis is not None and op.length is not None:
                wanted[op.axis.value.data] = self.filled[op.sym_name.data]
            if value.shape != tuple(wanted) or value.dtype != dtype_of(dtype):
                raise ElkError(
                    f"input {name!r} is {value.dtype}{list(value.shape)},"
                    f" the program takes {dtype}{wanted}"
                )
            array[(layer, *(slice(0, n) for n in wanted))] = value
        return array

    def outputs(self) -> dict[str, np.ndarray]:
        """The graph's outputs by name; of a state, what is filled after the run."""
        outputs: dict[str, np.ndarray] = {}
        for name, op in self.remotes.items():
            for layer, output in enumerate([] if op.outputs is None else op.outputs):
                value = self.hbm[name][layer, ...]
                if name in self.appended and op.axis is not None:
                    end = self.filled[name] + self.appended[name]
                    value = value[_along(op.axis.value.data, 0, end)]
                outputs[output.data] = value
        return outputs

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, ipu.RepeatOp):
                first, count = op.first.value.data, op.count.value.data
                for i in range(first, first + count):
                    self.index[op.body.block.args[0]] = i
                    self._block(op.body.block)
            elif isinstance(op, ipu.RowOp):
                base = 0 if op.base_row is None else self.index[op.base_row]
                self.index[op.result] = base + op.offset.value.data
            else:
                try:
                    self._HANDLERS[type(op)](self, op)
                except TrapError as error:
                    if error.hint is None:
                        error.hint = f"at {op.name} of node {node_name(op)}"
                    raise

    def _value(self, index: SSAValue | None) -> int:
        return 0 if index is None else self.index[index]

    def _var(self, name: SymbolRefAttr | str) -> Variable:
        key = name if isinstance(name, str) else name.root_reference.data
        try:
            return self.sram.variables[key]
        except KeyError:
            raise TrapError(f"no variable is called @{key}") from None

    # ------------------------------------------------------------------ HBM

    def _start(self, transfer: _Transfer) -> None:
        self.queue.append(transfer)
        if self.landing == "early":
            self._flush(transfer)

    def _flush(self, transfer: _Transfer) -> None:
        """Carry out everything in the queue up to and including `transfer`, in order."""
        while self.queue:
            first = self.queue.pop(0)
            first.run()
            if first is transfer:
                return

    def _pending(self, variable: Variable, store: bool) -> _Transfer | None:
        return next((t for t in self.queue if t.variable is variable and t.store is store), None)

    def _copy_start(self, op: ipu.CopyStartOp) -> None:
        variable = self._var(op.target)
        name = op.source.root_reference.data
        if variable.in_flight:
            raise TrapError("a preload is already on its way here", where=variable.where)
        self.sram.begin(variable, f"copy_start of @{name}")
        variable.live, variable.in_flight = False, True
        self.sram.poison(variable, POISON)
        row = self._value(op.row)
        if not 0 <= row < self.hbm[name].shape[0]:
            raise TrapError(f"@{name} has no row {row}", where=variable.where)
        limit = None
        if op.axis is not None and op.limit is not None:
            limit = (op.axis.value.data, op.limit.value.data)

        def run() -> None:
            tensor = self.hbm[name][row, ...]
            if op.rows is not None:
                tensor = self._rows(tensor, op.rows.root_reference.data)
            if limit is not None and name in self.filled and self._hidden(name):
                axis, end, hidden = *limit, self._hidden(name)
                window = np.zeros_like(tensor)
                window[_along(axis, hidden, end)] = tensor[_along(axis, 0, end - hidden)]
                tensor = window
            self._land(variable, tensor, limit)

        self._start(_Transfer(variable, run, store=False))

    def _rows(self, table: np.ndarray, name: str) -> np.ndarray:
        index = self.hbm[name][0]
        index = np.where(index < 0, index + table.shape[0], index)
        if index.size and (index.min() < 0 or index.max() >= table.shape[0]):
            raise TrapError(f"@{name} asks for a row outside of 0..{table.shape[0] - 1}")
        return table[index]

    def _land(self, variable: Variable, tensor: np.ndarray, limit: tuple[int, int] | None) -> None:
        layout = variable.layout
        word = written_word(tensor.dtype.itemsize)
        fresh: set[tuple[int, ...]] = set()
        for cores, where, source, target in _boxes(layout, limit):
            data = tensor[source]
            variable.view[(cores, *where, *target)] = data
            variable.shadow[(cores, *where, *target)] = word
            box = tuple(v for s in source for v in (s.start, s.stop))
            if box not in fresh:
                fresh.add(box)
                self.counters.hbm_read_bytes += data.nbytes

    def _copy_wait(self, op: ipu.CopyWaitOp) -> None:
        variable = self._var(op.target)
        if not variable.in_flight:
            raise TrapError("waits for a preload that was not started", where=variable.where)
        transfer = self._pending(variable, store=False)
        if transfer is not None:
            self._flush(transfer)
        variable.in_flight, variable.live, variable.touched = False, True, False

    def _store_start(self, op: ipu.StoreStartOp) -> None:
        variable = self._var(op.source)
        self.sram.reading(variable, "store_start")
        name = op.target.root_reference.data
        row = self._value(op.row)
        if not 0 <= row < self.hbm[name].shape[0]:
            raise TrapError(f"@{name} has no row {row}", where=variable.where)
        shift = [0] * (self.hbm[name].ndim - 1)
        if op.axis is not None and op.start is not None:
            axis = op.axis.value.data
            shift[axis] = op.start.value.data
            if name in self.filled:
                shift[axis] -= self._hidden(name)
                end = op.start.value.data - self._length(name) + variable.layout.shape[axis]
                self.appended[name] = max(self.appended.get(name, 0), end)

        def run() -> None:
            self.sram.check_live(variable, "store")
            tensor = self.hbm[name][row, ...]
            word = written_word(tensor.dtype.itemsize)
            done: set[tuple[int, ...]] = set()
            for cores, where, source, target in _boxes(variable.layout, None):
                box = tuple(v for s in source for v in (s.start, s.stop))
                if box in done:
                    continue
                done.add(box)
                core = int(cores[0])
                if (variable.shadow[(core, *where, *target)] != word).any():
                    raise TrapError(
                        f"store to @{name} reads bytes that were never written (core {core})",
                        where=variable.where,
                    )
                region = tuple(
                    slice(s.start + d, s.stop + d) for s, d in zip(source, shift, strict=True)
                )
                data = variable.view[(core, *where, *target)]
                if tensor[region].shape != data.shape:
                    raise TrapError(f"store to @{name} is out of range", where=variable.where)
                tensor[region] = data
                self.counters.hbm_written_bytes += data.nbytes

        self.storing.append(variable.name)
        self._start(_Transfer(variable, run, store=True))

    def _store_wait(self, op: ipu.StoreWaitOp) -> None:
        variable = self._var(op.source)
        if variable.name not in self.storing:
            raise TrapError("waits for a store that was not started", where=variable.where)
        self.storing.remove(variable.name)
        transfer = self._pending(variable, store=True)
        if transfer is not None:
            self._flush(transfer)

    # ------------------------------------------------------------------ moves on chip

    def _fill_op(self, op: ipu.FillOp) -> None:
        variable = self._var(op.target)
        self.sram.begin(variable, "fill")
        value = op.value.value.data
        with np.errstate(all="ignore"):
            variable.view[...] = np.asarray(value).astype(variable.view.dtype)
        variable.shadow[...] = written_word(variable.view.dtype.itemsize)

    def _reshard(self, op: ipu.ReshardOp) -> None:
        source, target = self._var(op.source), self._var(op.target)
        name = f"reshard to @{target.name}"
        self.sram.reading(source, name)
        if op.axis is None:
            self.sram.begin(target, name)
            if not source.live:
                raise TrapError(f"{name} overwrites its own source", where=source.where)
            plan = moves(source.layout, target.layout)
        else:
            self.sram.check_live(target, name)
            assert op.start is not None
            plan = moves(source.layout, target.layout, op.axis.value.data, op.start.value.data)
        s_core, s_element, t_core, t_element = plan.flat()
        data, written = source.flat()
        into, shadow = target.flat()
        bits = written[s_core, s_element]
        missing = bits != written_word(data.dtype.itemsize)
        if missing.any():
            core = int(s_core[int(np.argmax(missing))])
            raise TrapError(
                f"{name} reads {int(missing.sum()) * data.dtype.itemsize} bytes that were never"
                f" written (core {core})",
                where=source.where,
            )
        into[t_core, t_element] = data[s_core, s_element]
        shadow[t_core, t_element] = bits
        self.counters.exchanged_bytes += int((s_core != t_core).sum()) * data.dtype.itemsize

    def _slots(self, attr: RefAttr, step: int) -> tuple[Variable, tuple[int | slice, ...]]:
        reference: Ref = attr.data
        variable = self._var(reference.name)
        if not reference.slots:
            return variable, tuple([slice(None)] * len(variable.layout.slots))
        index: list[int | slice] = []
        for expr, count in zip(reference.slots, variable.layout.slots, strict=True):
            if expr is None:
                index.append(slice(None))
                continue
            slot = int(expr.evaluate(t=step, c=0, s=0))
            if not 0 <= slot < count:
                raise TrapError(f"slot {slot} of {count}", where=variable.where)
            index.append(slot)
        return variable, tuple(index)

    def _exchange(self, op: ipu.ExchangeOp) -> None:
        step = self._value(op.step)
        source, slots = self._slots(op.source, step)
        target, _ = self._slots(op.target, step)
        name = f"exchange to @{target.name}"
        self.sram.reading(source, name)
        self.sram.begin(target, name)
        cores = np.arange(target.layout.cores)
        senders = np.broadcast_to(op.map.data.evaluate(c=cores, t=step, s=0), cores.shape)
        if senders.min() < 0 or senders.max() >= source.layout.cores:
            raise TrapError(
                f"{name}: core {int(senders.max())} of {source.layout.cores}", where=source.where
            )
        data = source.view[(slice(None), *slots)][senders].reshape(cores.size, -1)
        bits = source.shadow[(slice(None), *slots)][senders].reshape(cores.size, -1)
        into, shadow = target.flat()
        if data.shape[1] > into.shape[1]:
            raise TrapError(f"{name}: {data.shape[1]} elements do not fit", where=target.where)
        into[:, : data.shape[1]] = data
        shadow[:, : data.shape[1]] = bits
        moved = int((senders != cores).sum()) * data.shape[1]
        self.counters.exchanged_bytes += moved * data.dtype.itemsize

    def _copy(self, op: ipu.CopyOp) -> None:
        step = self._value(op.step)
        source, _ = self._slots(op.source, step)
        target, slots = self._slots(op.target, step)
        name = f"copy to @{target.name}"
        self.sram.reading(source, name)
        self.sram.check_live(target, name)
        data, bits = source.flat()
        hole = target.view[(slice(None), *slots)]
        count = int(np.prod(hole.shape[1:]))
        if count > data.shape[1]:
            raise TrapError(f"{name}: {data.shape[1]} elements for {count}", where=source.where)
        hole[...] = data[:, :count].reshape(hole.shape)
        target.shadow[(slice(None), *slots)][...] = bits[:, :count].reshape(hole.shape)

    # ------------------------------------------------------------------ compute

    def _execute(self, op: ipu.ExecuteOp) -> None:
        vertex = self._prepared.get(op)
        if vertex is None:
            vertex = self._prepared.setdefault(op, _Vertex(self, op))
        vertex.run(self._value(op.step))
        self.counters.vertices += op.iterate.data.cores

    _HANDLERS: dict[type[Operation], Callable[..., None]] = {
        ipu.CopyStartOp: _copy_start,
        ipu.CopyWaitOp: _copy_wait,
        ipu.StoreStartOp: _store_start,
        ipu.StoreWaitOp: _store_wait,
        ipu.FillOp: _fill_op,
        ipu.ReshardOp: _reshard,
        ipu.ExchangeOp: _exchange,
        ipu.CopyOp: _copy,
        ipu.ExecuteOp: _execute,
    }


def _along(axis: int, start: int, end: int) -> tuple[slice, ...]:
    """The index that takes [start, end) along `axis` and everything along the others."""
    return (*[slice(None)] * axis, slice(start, end))


def _boxes(
    layout: Layout, limit: tuple[int, int] | None
) -> list[tuple[np.ndarray, tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """The distinct (slots, box) pairs of a layout: the cores that hold it, the slots, the box in
    the tensor, and where it lies in a block."""
    found: list[tuple[np.ndarray, tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]] = []
    for where in product(*(range(n) for n in layout.slots)):
        bounds = layout.bounds[(slice(None), *where)]
        origins = layout.origins[(slice(None), *where)]
        if limit is not None:
            bounds = bounds.copy()
            bounds[:, limit[0], 1] = np.minimum(bounds[:, limit[0], 1], limit[1])
        holders = np.flatnonzero(layout.held[(slice(None), *where)])
        if holders.size == 0:
            continue
        bounds, origins = bounds[holders], origins[holders]
        keys = np.concatenate([bounds.reshape(len(bounds), -1), origins], axis=1)
        unique, which = np.unique(keys, axis=0, return_inverse=True)
        order = holders[np.argsort(which.reshape(-1), kind="stable")]
        starts = np.searchsorted(np.sort(which.reshape(-1)), np.arange(len(unique) + 1))
        rank = len(layout.axes)
        for i, key in enumerate(unique):
            box, origin = key[: 2 * rank].reshape(rank, 2), key[2 * rank :]
            if rank and (box[:, 1] <= box[:, 0]).any():
                continue
            source = tuple(slice(int(a), int(b)) for a, b in box)
            target = tuple(
                slice(int(a - o), int(b - o)) for (a, b), o in zip(box, origin, strict=True)
            )
            found.append((order[starts[i] : starts[i + 1]], where, source, target))
    return found


class _Vertex:
    """One compute set: its codelet's kernel on every core at once, masks computed once a step."""

    def __init__(self, machine: Interpreter, op: ipu.ExecuteOp):
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
        hidden = self.machine._hidden(state) if state in self.machine.filled else 0
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
        variable, slots = self.machine._slots(attr, step)
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
        variable, slots = self.machine._slots(attr, step)
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
            variable, slots = self.machine._slots(attr, step)
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
            variable = self.machine._var(attr.data.name)
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
            variable, slots = self.machine._slots(attr, step)
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
            self.machine._slots(attr, step)[0]
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
