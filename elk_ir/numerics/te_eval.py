"""Run a te module on numpy arrays: the reference against which the levels below are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import ElkError, UsageError
from elk_ir.numerics.compiled import prepare
from elk_ir.numerics.states import entering, leaving
from elk_ir.numerics.views import Prepared

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp
    from xdsl.ir import Block, Operation, SSAValue

    from elk_ir.dialects.te.interface import StructuredOp
    from elk_ir.dialects.te.structure import AppendOp, GlobalOp, LoadOp, RepeatOp, UpdateOp
    from elk_ir.dialects.weight import WeightAttr

LoadWeight = Callable[["WeightAttr"], np.ndarray]

Observe = Callable[["Operation", int, "Mapping[SSAValue, Any]"], None]
"""Receives an operation that was run, the iteration of the loop around it (0 outside of loops), and
the arrays of its operands, results and everything else in scope."""


def evaluate_te(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    *,
    load_weight: LoadWeight,
    observe: Observe | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of `func.func @main` by ONNX name, for `inputs` by ONNX name.

    States start from the inputs that they replace (or from zeros) and are returned under the names
    of the outputs that they replace. `load_weight` yields the elements of a weight on disk;
    `observe` is called after each operation with results. Raises UsageError when an input is
    missing or has another shape or type.
    """
    return Evaluator(module, load_weight=load_weight)(inputs, observe)


class _State:
    """The layers of one state, each a buffer of the whole capacity."""

    def __init__(self, op: GlobalOp, inputs: Mapping[str, np.ndarray]) -> None:
        from elk_ir.dialects.types import shape_dtype
        from elk_ir.numerics.body import dtype_of

        assert op.axis is not None and op.length is not None
        shape, dtype = shape_dtype(op.type)
        self.axis, self.length = op.axis.value.data, op.length.value.data
        self.filled = [self.length] * op.layers
        self.outputs = _names(op.outputs, op.layers)
        self.buffers = [np.zeros(shape, dtype=dtype_of(dtype)) for _ in range(op.layers)]
        wanted = list(shape)
        wanted[self.axis] = self.length
        self.op = op
        for layer, name in enumerate(_names(op.inputs, op.layers)):
            if name in inputs:
                inputs = {**inputs, name: entering(op, layer, np.asarray(inputs[name]))}
            if name:
                filled = self.buffers[layer][self._part(0, self.length)]
                filled[...] = _input(inputs, name, wanted, dtype)

    def _part(self, start: int, stop: int) -> tuple[slice, ...]:
        return (*[slice(None)] * self.axis, slice(start, stop))

    def append(self, layer: int, entries: np.ndarray) -> None:
        """Write `entries` behind what was there when the run started."""
        stop = self.length + entries.shape[self.axis]
        self.buffers[layer][self._part(self.length, stop)] = entries
        self.filled[layer] = stop

    def update(self, layer: int, entries: np.ndarray, rows: np.ndarray) -> None:
        """Write `entries` over rows of the axis, those of negative numbers counted from the end.
        Raises UsageError for a row that does not exist."""
        capacity = self.buffers[layer].shape[self.axis]
        rows = np.where(rows < 0, rows + capacity, rows)
        if rows.size and (rows.min() < 0 or rows.max() >= capacity):
            name = self.op.sym_name.data
            raise UsageError(f"row {rows.max()} of state @{name} is written, which has {capacity}")
        self.buffers[layer][(*[slice(None)] * self.axis, rows)] = entries

    def read(self, layer: int, shape: Sequence[int]) -> np.ndarray:
        """The first `shape[axis]` entries (a copy: later appends don't show through)."""
        return self.buffers[layer][self._part(0, shape[self.axis])].copy()

    def results(self) -> dict[str, np.ndarray]:
        """Filled parts by the names of the outputs that the state replaces."""
        return {
            name: leaving(self.op, layer, self.buffers[layer][self._part(0, self.filled[layer])])
            for layer, name in enumerate(self.outputs)
            if name
        }


def _names(attr: Any, layers: int) -> list[str]:
    names = [] if attr is None else [a.data for a in attr.data]
    return names + [""] * (layers - len(names))


def _input(
    inputs: Mapping[str, np.ndarray], name: str, shape: Sequence[int], dtype: str
) -> np.ndarray:
    from elk_ir.numerics.body import dtype_of

    if name not in inputs:
        raise UsageError(f"input {name!r} is missing", hint=f"given: {', '.join(inputs)}")
    array = np.asarray(inputs[name])
    if list(array.shape) != list(shape):
        raise UsageError(
            f"input {name!r} has shape {list(array.shape)}, the program takes {list(shape)}"
        )
    if array.dtype != dtype_of(dtype):
        raise UsageError(f"input {name!r} has type {array.dtype}, the program takes {dtype}")
    return array


class Evaluator:
    """A te module that is prepared once and runs many times: `evaluator(inputs)`.

    Operators are functions from arrays to arrays (`compiled.prepare`), and SSA values are places in
    a list. Weights are loaded when they are first read, and kept.
    """

    def __init__(self, module: ModuleOp, *, load_weight: LoadWeight) -> None:
        from xdsl.dialects.func import FuncOp

        from elk_ir.dialects.te.structure import GlobalOp

        self.load_weight = load_weight
        self.globals: dict[str, GlobalOp] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.states: dict[str, _State] = {}
        self.observe: Observe | None = None
        self.place: dict[SSAValue, int] = {}
        main: FuncOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, GlobalOp):
                self.globals[op.sym_name.data] = op
            elif isinstance(op, FuncOp) and op.sym_name.data == "main":
                main = op
        if main is None:
            raise UsageError("the module has no function @main")
        self.main = main
        self.body = self._block(main.body.block)

    def __call__(
        self, inputs: Mapping[str, np.ndarray], observe: Observe | None = None
    ) -> dict[str, np.ndarray]:
        """As `evaluate_te`."""
        from elk_ir.dialects.te.structure import GlobalKind
        from elk_ir.dialects.types import shape_dtype

        self.observe = observe
        self.states = {
            name: _State(op, inputs)
            for name, op in self.globals.items()
            if op.kind.data is GlobalKind.STATE
        }
        block = self.main.body.block
        frame: list[Any] = [None] * len(self.place)
        names = _attr_names(self.main.arg_attrs, len(block.args), "arg")
        for arg, name in zip(block.args, names, strict=True):
            frame[self.place[arg]] = _input(inputs, name, *shape_dtype(arg))
        with np.errstate(all="ignore"):
            returned = self.body(frame, 0)
        names = _attr_names(self.main.res_attrs, len(returned), "result")
        # What is a view of an input or a weight would change with it.
        arrays = [a if a.base is None and a.flags.c_contiguous else a.copy() for a in returned]
        results = dict(zip(names, arrays, strict=True))
        for state in self.states.values():
            results |= state.results()
        return results

    # ------------------------------------------------------------------ preparing

    def _places(self, values: Iterable[SSAValue]) -> list[int]:
        return [self.place.setdefault(v, len(self.place)) for v in values]

    def _block(self, block: Block) -> Callable[[list[Any], int], list[Any]]:
        """A function that runs the block on a list of values, in an iteration of the loop around
        it; it gives the operands of the terminator."""
        from xdsl.dialects.func import ReturnOp

        from elk_ir.dialects.te.structure import YieldOp

        self._places(block.args)
        steps: list[tuple[Operation, _Step]] = []
        returned: list[int] = []
        for op in block.ops:
            if isinstance(op, ReturnOp | YieldOp):
                returned = self._places(op.operands)
                break
            steps.append((op, self._step(op)))

        def run(frame: list[Any], iteration: int) -> list[Any]:
            for op, step in steps:
                step(frame)
                if self.observe is not None:
                    self.observe(op, iteration, _Scope(self.place, frame))
            return [frame[i] for i in returned]

        return run

    def _step(self, op: Operation) -> _Step:
        from elk_ir.dialects.te.interface import StructuredOp
        from elk_ir.dialects.te.structure import AppendOp, LoadOp, RepeatOp, UpdateOp

        if isinstance(op, StructuredOp):
            return self._structured(op)
        if isinstance(op, LoadOp):
            return self._load(op)
        if isinstance(op, AppendOp):
            return self._append(op)
        if isinstance(op, UpdateOp):
            return self._update(op)
        if isinstance(op, RepeatOp):
            return self._repeat(op)
        raise UsageError(f"{op.name} is not an operation of te", where="te evaluation")

    def _structured(self, op: StructuredOp) -> _Step:
        run = prepare(op.operator(), [v for v, a in enumerate(op.ins) if self._is_constant(a)])
        if op.name == "te.gather":
            run = _located(run, op)
        ins, outs = self._places(op.ins), self._places(op.outs)
        if len(outs) == 1:
            (out,) = outs

            def single(frame: list[Any]) -> None:
                (frame[out],) = run([frame[i] for i in ins])

            return single

        def step(frame: list[Any]) -> None:
            for out, array in zip(outs, run([frame[i] for i in ins]), strict=True):
                frame[out] = array

        return step

    def _is_constant(self, value: SSAValue) -> bool:
        """Whether a value is a weight, the same one each time."""
        from elk_ir.dialects.te.structure import LoadOp

        load = value.owner
        if not isinstance(load, LoadOp):
            return False
        source = self.globals[load.source.string_value()]
        return source.value is not None and source.stack is None

    def _repeat(self, op: RepeatOp) -> _Step:
        body = self._block(op.body.block)
        arguments = self._places(op.body.block.args)
        inits, outs, count = self._places(op.inits), self._places(op.outs), op.count.value.data

        def step(frame: list[Any]) -> None:
            carried = [frame[i] for i in inits]
            for layer in range(count):
                for i, value in zip(arguments, [layer, *carried], strict=True):
                    frame[i] = value
                carried = body(frame, layer)
            for i, value in zip(outs, carried, strict=True):
                frame[i] = value

        return step

    def _layer(self, index: SSAValue | None) -> Callable[[list[Any]], int]:
        """The layer that an operation in a loop takes; 0 outside."""
        if index is None:
            return lambda frame: 0
        (place,) = self._places([index])
        return lambda frame: int(frame[place])

    def _load(self, op: LoadOp) -> _Step:
        from elk_ir.dialects.types import shape_dtype

        name, layer, (out,) = (
            op.source.string_value(),
            self._layer(op.layer),
            self._places([op.result]),
        )
        shape = shape_dtype(op.result)[0]
        if self.globals[name].value is None:

            def read(frame: list[Any]) -> None:
                frame[out] = self.states[name].read(layer(frame), shape)

            return read
        stacked = self.globals[name].stack is not None

        def load(frame: list[Any]) -> None:
            array = self.weights.get(name)
            if array is None:
                array = self._weight(name)
            frame[out] = array[layer(frame)] if stacked else array

        return load

    def _weight(self, name: str) -> np.ndarray:
        from elk_ir.dialects.element_types import array_from_dense
        from elk_ir.dialects.weight import WeightAttr

        value = self.globals[name].value
        assert value is not None
        if isinstance(value, WeightAttr):
            array = np.asarray(self.load_weight(value))
        else:
            array = array_from_dense(value)
        self.weights[name] = array
        return array

    def _append(self, op: AppendOp) -> _Step:
        from elk_ir.dialects.types import shape_dtype

        name, layer = op.state.string_value(), self._layer(op.layer)
        entries, out = self._places([op.entries, op.result])
        shape = shape_dtype(op.result)[0]

        def step(frame: list[Any]) -> None:
            state, at = self.states[name], layer(frame)
            state.append(at, frame[entries])
            frame[out] = state.read(at, shape)

        return step

    def _update(self, op: UpdateOp) -> _Step:
        name, layer = op.state.string_value(), self._layer(op.layer)
        entries, rows = self._places([op.entries, op.rows])

        def step(frame: list[Any]) -> None:
            self.states[name].update(layer(frame), frame[entries], frame[rows])

        return step


_Step = Callable[[list[Any]], None]


class _Scope(Mapping["SSAValue", Any]):
    """The arrays of the values in scope, by value."""

    def __init__(self, place: Mapping[SSAValue, int], frame: list[Any]) -> None:
        self._place, self._frame = place, frame

    def __getitem__(self, value: SSAValue) -> Any:
        return self._frame[self._place[value]]

    def __iter__(self) -> Iterator[SSAValue]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


def _attr_names(attrs: Any, count: int, what: str) -> list[str]:
    """`onnx.name` of each argument or result, `arg0`, … where there is none."""
    names = [f"{what}{i}" for i in range(count)]
    for i, entry in enumerate(() if attrs is None else attrs.data):
        if (name := entry.data.get("onnx.name")) is not None:
            names[i] = name.data
    return names


def _located(run: Prepared, op: Operation) -> Prepared:
    """`run`, which names the node that `op` came from if an index is out of range."""

    def located(tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            return run(tensors)
        except ElkError as error:
            from elk_ir.dialects.location import node_name

            raise ElkError(error.what, where=node_name(op)) from None

    return located
