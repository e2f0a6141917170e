"""Run a te module on numpy arrays: the reference against which the levels below are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import UsageError
from elk_ir.numerics.kernels import run_whole
from elk_ir.numerics.states import entering, leaving

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp
    from xdsl.ir import Block, Operation, SSAValue

    from elk_ir.dialects.te.structure import AppendOp, GlobalOp, LoadOp, UpdateOp
    from elk_ir.dialects.weight import WeightAttr
    from elk_ir.plan.domain import Operator

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
    return _Machine(module, inputs, load_weight, observe).run()


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


class _Machine:
    def __init__(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        load_weight: LoadWeight,
        observe: Observe | None,
    ) -> None:
        from xdsl.dialects.func import FuncOp

        from elk_ir.dialects.te.structure import GlobalKind, GlobalOp

        self.inputs, self.load_weight, self.observe = inputs, load_weight, observe
        self.globals: dict[str, GlobalOp] = {}
        self.states: dict[str, _State] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.operators: dict[Any, Operator] = {}
        main: FuncOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, GlobalOp):
                name = op.sym_name.data
                self.globals[name] = op
                if op.kind.data is GlobalKind.STATE:
                    self.states[name] = _State(op, inputs)
            elif isinstance(op, FuncOp) and op.sym_name.data == "main":
                main = op
        if main is None:
            raise UsageError("the module has no function @main")
        self.main = main

    def run(self) -> dict[str, np.ndarray]:
        from elk_ir.dialects.types import shape_dtype

        block = self.main.body.block
        names = _attr_names(self.main.arg_attrs, len(block.args), "arg")
        values: dict[SSAValue, Any] = {
            arg: _input(self.inputs, name, *shape_dtype(arg))
            for arg, name in zip(block.args, names, strict=True)
        }
        returned = self.block(block, values)
        names = _attr_names(self.main.res_attrs, len(returned), "result")
        results = dict(zip(names, returned, strict=True))
        for state in self.states.values():
            results |= state.results()
        return results

    def block(self, block: Block, values: dict[SSAValue, Any], iteration: int = 0) -> list[Any]:
        """Run a block; yields the operands of its terminator."""
        from xdsl.dialects.func import ReturnOp

        from elk_ir.dialects.te.interface import StructuredOp
        from elk_ir.dialects.te.structure import AppendOp, LoadOp, RepeatOp, UpdateOp, YieldOp

        for op in block.ops:
            if isinstance(op, StructuredOp):
                operator = self.operators.get(op)
                if operator is None:
                    operator = self.operators[op] = op.operator()
                outs = run_whole(operator, [values[v] for v in op.ins])
                values.update(zip(op.outs, outs, strict=True))
            elif isinstance(op, LoadOp):
                values[op.result] = self.load(op, values)
            elif isinstance(op, AppendOp):
                values[op.result] = self.append(op, values)
            elif isinstance(op, UpdateOp):
                self.update(op, values)
            elif isinstance(op, RepeatOp):
                carried = [values[v] for v in op.inits]
                body = op.body.block
                for layer in range(op.count.value.data):
                    scope = dict(values)
                    scope.update(zip(body.args, [layer, *carried], strict=True))
                    carried = self.block(body, scope, layer)
                values.update(zip(op.outs, carried, strict=True))
            elif isinstance(op, ReturnOp | YieldOp):
                return [values[v] for v in op.operands]
            else:
                raise UsageError(f"{op.name} is not an operation of te", where="te evaluation")
            if self.observe is not None:
                self.observe(op, iteration, values)
        return []

    def load(self, op: LoadOp, values: Mapping[SSAValue, Any]) -> np.ndarray:
        from elk_ir.dialects.element_types import array_from_dense
        from elk_ir.dialects.types import shape_dtype
        from elk_ir.dialects.weight import WeightAttr

        name = op.source.string_value()
        layer = None if op.layer is None else int(values[op.layer])
        if name in self.states:
            return self.states[name].read(layer or 0, shape_dtype(op.result)[0])
        array = self.weights.get(name)
        if array is None:
            value = self.globals[name].value
            assert value is not None
            if isinstance(value, WeightAttr):
                array = np.asarray(self.load_weight(value))
            else:
                array = array_from_dense(value)
            self.weights[name] = array
        if self.globals[name].stack is not None:
            array = array[0 if layer is None else layer]
        return array

    def append(self, op: AppendOp, values: Mapping[SSAValue, Any]) -> np.ndarray:
        from elk_ir.dialects.types import shape_dtype

        state = self.states[op.state.string_value()]
        layer = 0 if op.layer is None else int(values[op.layer])
        state.append(layer, values[op.entries])
        return state.read(layer, shape_dtype(op.result)[0])

    def update(self, op: UpdateOp, values: Mapping[SSAValue, Any]) -> None:
        layer = 0 if op.layer is None else int(values[op.layer])
        self.states[op.state.string_value()].update(layer, values[op.entries], values[op.rows])


def _attr_names(attrs: Any, count: int, what: str) -> list[str]:
    """`onnx.name` of each argument or result, `arg0`, … where there is none."""
    names = [f"{what}{i}" for i in range(count)]
    for i, entry in enumerate(() if attrs is None else attrs.data):
        if (name := entry.data.get("onnx.name")) is not None:
            names[i] = name.data
    return names
