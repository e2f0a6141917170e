"""Run an `ipu` program on the virtual machine: real numbers, moved byte by byte between cores.

The interpreter owns every core's SRAM (`machine.py`) and the HBM. It executes the very program
that is simulated and emitted, and traps what the machine forbids: reads of bytes never written, of
buffers overwritten while live, before a preload has landed, addresses and cores out of range.
Copies to and from HBM may land as early or as late as the rules allow (`landing`): a correct
program gives the same result either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Block, Operation, SSAValue

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.ipu.attrs import Ref, RefAttr
from elk_ir.dialects.location import node_name
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.states import entering, leaving
from elk_ir.numerics.tensors import nearest
from elk_ir.plan.domain import Operator
from elk_ir.targets.ipu.machine import Counters, Sram, TrapError, Variable, written_word
from elk_ir.targets.ipu.routes import Landed, Route, Routes, Stored, boxes, landed, route, stored
from elk_ir.targets.ipu.transfers import as_runs, batches_between
from elk_ir.targets.ipu.vertex import Vertex

Landing = Literal["early", "late"]


class Rows(Protocol):
    """A tensor of several rows (layers) in HBM that is read row by row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, …)."""
        ...

    def __getitem__(self, row: int, /) -> np.ndarray:
        """One row."""
        ...


Loader = Callable[[ipu.RemoteOp], "np.ndarray | Rows"]
POISON = 0xA5


@dataclass
class _Transfer:
    """A copy between HBM and a variable that has been started and not yet carried out."""

    variable: Variable
    run: Callable[[], None]
    store: bool


class Interpreter:
    """A program that is prepared once and runs many times: `Interpreter(module, load).run(inputs)`.
    The module may not change in between.

    load: gives the value of a weight, of the stacked shape where it has a stack: an array, or rows
    that are read when they are copied.
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
        self._filled = dict(filled or {})
        self.filled: dict[str, int] = {}
        self.appended: dict[str, int] = {}
        self.counters = Counters()
        self.remotes: dict[str, ipu.RemoteOp] = {}
        self.codelets: dict[str, Operator] = {}
        self.hbm: dict[str, np.ndarray | Rows] = {}
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
        self._vertices: dict[Operation, Vertex] = {}
        self._routes = Routes()

    # ------------------------------------------------------------------ running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The graph's outputs by name; each run starts from the same weights and from the states
        that `inputs` give. Raises ElkError for wrong inputs, TrapError for a program that breaks
        the machine's rules."""
        self.fill(inputs)
        self.execute()
        return self.outputs()

    def fill(self, inputs: Mapping[str, np.ndarray], *, again: bool = False) -> None:
        """Put weights, states and inputs into HBM; `again`: only the inputs that are given, what
        else there is stays."""
        if not again:
            self.filled, self.appended = dict(self._filled), {}
        for name, op in self.remotes.items():
            state = op.axis is not None and op.length is not None
            if state and op.length is not None:
                self.filled.setdefault(name, op.length.value.data)
            given = any(n.data in inputs for n in op.inputs or ())
            if name in self.hbm and op.kind.data is HbmKind.WEIGHT:
                continue
            if not again or (op.kind.data is HbmKind.INPUT and given):
                self.hbm[name] = self._fill(op, inputs)

    def carry(self, output: str, into: str) -> None:
        """Make an output of the last run the input `into` of the next one, inside of HBM: their
        buffers change places. Both are tensors of one row and of one type."""
        source = next(n for n, op in self.remotes.items() if output in _names(op.outputs))
        target = next(n for n, op in self.remotes.items() if into in _names(op.inputs))
        ops = (self.remotes[source], self.remotes[target])
        if ops[0].type != ops[1].type or any(op.layers != 1 for op in ops):
            raise ElkError(f"output {output!r} cannot take the place of input {into!r}")
        self.hbm[source], self.hbm[target] = self.hbm[target], self.hbm[source]

    def execute(self) -> None:
        """Run the program once on what is in HBM, from an SRAM of which nothing is written; states
        grow by what it appends."""
        assert self.program is not None
        self.sram.clear()
        self.queue, self.storing = [], []
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
        with np.errstate(all="ignore"):
            self._block(self.program.body.block)
        for transfer in list(self.queue):
            self._flush(transfer)

    @property
    def held_bytes(self) -> int:
        """Bytes of SRAM, with its shadow, and of what lies in HBM."""
        hbm = 0
        for op in self.remotes.values():
            shape, dtype = shape_dtype(op.type)
            hbm += op.layers * prod(shape) * dtype_of(dtype).itemsize
        return 2 * self.sram.cores * self.sram.stride + hbm

    def _length(self, state: str) -> int:
        """Entries of a state that the program reads at most."""
        length = self.remotes[state].length
        assert length is not None
        return length.value.data

    def hidden(self, state: str) -> int:
        """Entries in front of the filled ones in the window of a state."""
        return self._length(state) - self.filled[state]

    def _fill(self, op: ipu.RemoteOp, inputs: Mapping[str, np.ndarray]) -> np.ndarray | Rows:
        shape, dtype = shape_dtype(op.type)
        full = (op.layers, *shape)
        kind = op.kind.data
        if kind is HbmKind.WEIGHT:
            value = self.load(op)
            return value.reshape(full) if isinstance(value, np.ndarray) else value
        if kind is HbmKind.OUTPUT:
            return np.zeros(full, dtype=dtype_of(dtype))
        if kind is HbmKind.SCRATCH and dtype_of(dtype).kind == "i":
            # As an index this is out of range until the program has stored something.
            return np.full(full, np.iinfo(dtype_of(dtype)).min, dtype_of(dtype))
        array = np.zeros(full, dtype=dtype_of(dtype))
        names = [] if op.inputs is None else [n.data for n in op.inputs]
        for layer, name in enumerate(names):
            if name not in inputs:
                raise ElkError(f"input {name!r} is missing", hint=f"give {', '.join(names)}")
            value = entering(op, layer, np.asarray(inputs[name]))
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
                value = self._row(name, layer)
                if name in self.appended and op.axis is not None:
                    end = self.filled[name] + self.appended[name]
                    value = value[_along(op.axis.value.data, 0, end)]
                outputs[output.data] = leaving(op, layer, value)
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
                except ElkError as error:
                    if error.hint is None:
                        error.hint = f"at {op.name} of node {node_name(op)}"
                    raise

    def _row(self, name: str, row: int) -> np.ndarray:
        """One row of a tensor in HBM: a view where it is held as an array."""
        tensor = self.hbm[name]
        return tensor[row, ...] if isinstance(tensor, np.ndarray) else tensor[row]

    def _value(self, index: SSAValue | None) -> int:
        return 0 if index is None else self.index[index]

    def variable(self, name: SymbolRefAttr | str) -> Variable:
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
        variable = self.variable(op.target)
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
        prepared = self._routes.get(op, lambda: landed(self.sram, variable, limit), variable)

        def run() -> None:
            tensor = self._row(name, row)
            if op.rows is not None:
                tensor = tensor[self._rows(tensor.shape[0], op.rows.root_reference.data)]
            if limit is not None and name in self.filled and self.hidden(name):
                axis, end, hidden = *limit, self.hidden(name)
                window = np.zeros_like(tensor)
                window[_along(axis, hidden, end)] = tensor[_along(axis, 0, end - hidden)]
                tensor = window
            if isinstance(prepared, Landed) and tensor.shape == variable.layout.shape:
                prepared.run(tensor)
                variable.whole = prepared.complete
                self.counters.hbm_read_bytes += prepared.read_bytes
            else:
                self._land(variable, tensor, limit)

        self._start(_Transfer(variable, run, store=False))

    def _rows(self, count: int, name: str) -> np.ndarray:
        """The rows, of `count`, that a tensor of indices names now."""
        index = self.hbm[name][0]
        wrong = index[(index < -count) | (index >= count)]
        if wrong.size:
            raise TrapError(f"@{name} asks for row {wrong[0]}, outside of 0..{count - 1}")
        return np.where(index < 0, index + count, index)

    def _land(self, variable: Variable, tensor: np.ndarray, limit: tuple[int, int] | None) -> None:
        layout = variable.layout
        word = written_word(tensor.dtype.itemsize)
        fresh: set[tuple[int, ...]] = set()
        for cores, where, source, target in boxes(layout, limit):
            data = tensor[source]
            variable.view[(cores, *where, *target)] = data
            variable.shadow[(cores, *where, *target)] = word
            box = tuple(v for s in source for v in (s.start, s.stop))
            if box not in fresh:
                fresh.add(box)
                self.counters.hbm_read_bytes += data.nbytes

    def _copy_wait(self, op: ipu.CopyWaitOp) -> None:
        variable = self.variable(op.target)
        if not variable.in_flight:
            raise TrapError("waits for a preload that was not started", where=variable.where)
        transfer = self._pending(variable, store=False)
        if transfer is not None:
            self._flush(transfer)
        variable.in_flight, variable.live, variable.touched = False, True, False

    def _store_start(self, op: ipu.StoreStartOp) -> None:
        variable = self.variable(op.source)
        self.sram.reading(variable, "store_start")
        name = op.target.root_reference.data
        row = self._value(op.row)
        if not 0 <= row < self.hbm[name].shape[0]:
            raise TrapError(f"@{name} has no row {row}", where=variable.where)
        shift = [0] * (len(self.hbm[name].shape) - 1)
        if op.axis is not None and op.start is not None:
            axis = op.axis.value.data
            shift[axis] = op.start.value.data
            if name in self.filled:
                shift[axis] -= self.hidden(name)
                end = op.start.value.data - self._length(name) + variable.layout.shape[axis]
                self.appended[name] = max(self.appended.get(name, 0), end)

        prepared = self._routes.get(op, lambda: stored(self.sram, variable), variable)

        def run() -> None:
            self.sram.check_live(variable, "store")
            tensor = self._row(name, row)
            if isinstance(prepared, Stored) and self._stored(op, prepared, variable, tensor, shift):
                return
            rows: np.ndarray | None = None
            axis = 0 if op.axis is None else op.axis.value.data
            if op.rows is not None:
                try:
                    rows = self._rows(tensor.shape[axis], op.rows.root_reference.data)
                except TrapError as error:
                    raise TrapError(
                        f"store to @{name}: {error.what}", where=variable.where
                    ) from None
            word = written_word(tensor.dtype.itemsize)
            done: set[tuple[int, ...]] = set()
            for cores, where, source, target in boxes(variable.layout, None):
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
                region: tuple[slice | np.ndarray, ...] = tuple(
                    slice(s.start + d, s.stop + d) for s, d in zip(source, shift, strict=True)
                )
                if rows is not None:
                    region = (*region[:axis], rows[source[axis]], *region[axis + 1 :])
                data = variable.view[(core, *where, *target)]
                if tensor[region].shape != data.shape:
                    raise TrapError(f"store to @{name} is out of range", where=variable.where)
                tensor[region] = data
                self.counters.hbm_written_bytes += data.nbytes

        self.storing.append(variable.name)
        self._start(_Transfer(variable, run, store=True))

    def _stored(
        self,
        op: ipu.StoreStartOp,
        prepared: Stored,
        variable: Variable,
        tensor: np.ndarray,
        shift: Sequence[int],
    ) -> bool:
        """Carry out a prepared store, if nothing stands in its way."""
        shape = prepared.shape
        if any(d < 0 or d + n > e for d, n, e in zip(shift, shape, tensor.shape, strict=True)):
            return False
        if not variable.whole and not self.sram.are_written(variable, prepared.needed):
            return False
        data = prepared.data()
        region: list[slice | np.ndarray] = [
            slice(d, d + n) for d, n in zip(shift, shape, strict=True)
        ]
        if op.rows is not None:
            axis = 0 if op.axis is None else op.axis.value.data
            try:
                rows = self._rows(tensor.shape[axis], op.rows.root_reference.data)
            except TrapError:
                return False  # it says so with the name of the tensor when it goes box by box
            if rows.shape != (shape[axis],) or shift[axis]:
                return False
            region[axis] = rows
        tensor[tuple(region)] = data
        self.counters.hbm_written_bytes += prepared.written_bytes
        return True

    def _store_wait(self, op: ipu.StoreWaitOp) -> None:
        variable = self.variable(op.source)
        if variable.name not in self.storing:
            raise TrapError("waits for a store that was not started", where=variable.where)
        self.storing.remove(variable.name)
        transfer = self._pending(variable, store=True)
        if transfer is not None:
            self._flush(transfer)

    # ------------------------------------------------------------------ moves on chip

    def _fill_op(self, op: ipu.FillOp) -> None:
        variable = self.variable(op.target)
        self.sram.begin(variable, "fill")
        value = op.value.value.data
        variable.view[...] = nearest(value, variable.view.dtype)
        variable.shadow[...] = written_word(variable.view.dtype.itemsize)
        variable.whole = True

    def _reshard(self, op: ipu.ReshardOp) -> None:
        source, target = self.variable(op.source), self.variable(op.target)
        name = f"reshard to @{target.name}"
        self.sram.reading(source, name)
        axis, start = None, 0
        if op.axis is None:
            self.sram.begin(target, name)
            if not source.live:
                raise TrapError(f"{name} overwrites its own source", where=source.where)
        else:
            self.sram.check_live(target, name)
            assert op.start is not None
            axis, start = op.axis.value.data, op.start.value.data
        prepared = self._routes.get(
            op, lambda: route(self.sram, source, target, axis, start), source, target
        )
        if isinstance(prepared, Route) and (
            source.whole or self.sram.are_written(source, prepared.needed)
        ):
            prepared.run()
            target.whole = target.whole or prepared.complete
            self.counters.exchanged_bytes += prepared.exchanged_bytes
            return
        transfers = batches_between(source.layout, target.layout, axis, start)
        data, written = source.flat()
        into, shadow = target.flat()
        item, word = data.dtype.itemsize, written_word(data.dtype.itemsize)
        for batch in transfers:
            bits = as_runs(written, batch.run)[batch.source]
            missing = bits.view(written.dtype) != word
            if missing.any():
                # (transfers, elements): the first core that lacks some, and how many in all.
                core = int(batch.source[0][int(np.argmax(missing.any(axis=1))), 0])
                raise TrapError(
                    f"{name} reads {int(missing.sum()) * item} bytes that were never written"
                    f" (core {core})",
                    where=source.where,
                )
            as_runs(into, batch.run)[batch.target] = as_runs(data, batch.run)[batch.source]
            as_runs(shadow, batch.run)[batch.target] = bits
            away = np.count_nonzero(batch.source[0] != batch.target[0])
            self.counters.exchanged_bytes += away * batch.source[1].shape[1] * batch.run * item

    def slots(self, attr: RefAttr, step: int) -> tuple[Variable, tuple[int | slice, ...]]:
        reference: Ref = attr.data
        variable = self.variable(reference.name)
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
        source, slots = self.slots(op.source, step)
        target, _ = self.slots(op.target, step)
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
        source, _ = self.slots(op.source, step)
        target, slots = self.slots(op.target, step)
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
        vertex = self._vertices.get(op)
        if vertex is None:
            vertex = self._vertices.setdefault(op, Vertex(self, op))
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


def _names(attrs: ArrayAttr[StringAttr] | None) -> list[str]:
    return [] if attrs is None else [a.data for a in attrs]


def _along(axis: int, start: int, end: int) -> tuple[slice, ...]:
    """The index that takes [start, end) along `axis` and everything along the others."""
    return (*[slice(None)] * axis, slice(start, end))
