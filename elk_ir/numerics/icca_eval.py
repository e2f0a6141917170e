"""Run an icca program on whole tensors: what it means, whatever its plans and addresses are.

Program order is the order of HBM accesses, so a preload that was moved in front of the store that
it depends on gives other numbers here. Shardings, rings and offsets only exist below (the virtual
machine runs those).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects import icca
from elk_ir.dialects.icca.attrs import HandleType, HbmKind
from elk_ir.dialects.location import node_name, node_names
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.kernels import run_whole
from elk_ir.numerics.states import entering, leaving

LoadValue = Callable[[Attribute | None], np.ndarray]
Trace = Callable[[tuple[str, ...], list[np.ndarray]], None]


def evaluate_icca(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    *,
    load_weight: LoadValue,
    trace: Trace | None = None,
) -> dict[str, np.ndarray]:
    """Outputs by ONNX name; those of a state in its whole capacity.

    `trace` is called with the node names and the results of each execute. Raises ElkError when an
    input is missing or the program refers to what is not there.
    """
    return _Machine(module, inputs, load_weight, trace).run()


class _Machine:
    def __init__(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        load_weight: LoadValue,
        trace: Trace | None,
    ) -> None:
        self.trace = trace
        self.tensors: dict[str, icca.HbmOp] = {}
        self.hbm: dict[str, np.ndarray] = {}
        self.values: dict[SSAValue, Any] = {}
        self.program: icca.ProgramOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, icca.HbmOp):
                self.tensors[op.sym_name.data] = op
                self.hbm[op.sym_name.data] = _fill(op, inputs, load_weight)
            elif isinstance(op, icca.ProgramOp):
                self.program = op
        if self.program is None:
            raise ElkError("the module has no icca.program")

    def run(self) -> dict[str, np.ndarray]:
        assert self.program is not None
        self.block(self.program.body.block)
        return {
            output.data: leaving(op, layer, self.hbm[name][layer])
            for name, op in self.tensors.items()
            for layer, output in enumerate(op.outputs or ())
        }

    def block(self, block: Block) -> list[Any]:
        """Run a block; the values of its terminator, if it has one."""
        for op in block.ops:
            if isinstance(op, icca.YieldOp):
                return [self.values[v] for v in op.values]
            handler = _HANDLERS.get(type(op))
            if handler is None:
                raise ElkError(f"{op.name} is not an operation of an icca program")
            handler(self, op)
        return []

    def tensor(self, name: str) -> np.ndarray:
        if name not in self.hbm:
            raise ElkError(f"no tensor in HBM is called @{name}")
        return self.hbm[name]

    def layer(self, op: icca.PreloadOp | icca.StoreOp) -> int:
        return 0 if op.layer is None else self.values[op.layer]

    def preload(self, op: icca.PreloadOp) -> None:
        source = self.tensor(op.source.root_reference.data)[self.layer(op)]
        if op.rows is not None:
            index = self.tensor(op.rows.root_reference.data)[0]
            wrong = index[(index < -source.shape[0]) | (index >= source.shape[0])]
            if wrong.size:
                name = op.source.root_reference.data
                raise ElkError(f"row {wrong[0]} of @{name}, which has {source.shape[0]}")
            source = source[np.where(index < 0, index + source.shape[0], index)]
        assert isinstance(op.result.type, HandleType)
        shape, _ = shape_dtype(op.result.type.tensor)
        self.values[op.result] = source[tuple(slice(0, n) for n in shape)].copy()

    def store(self, op: icca.StoreOp) -> None:
        name = op.target.root_reference.data
        # With the ellipsis a layer of a scalar is an array that can be written to.
        target, value = self.tensor(name)[self.layer(op), ...], self.values[op.source]
        region = [slice(0, n) for n in value.shape]
        axis = self.tensors[name].axis
        if op.start is not None and axis is not None:
            start, d = op.start.value.data, axis.value.data
            region[d] = slice(start, start + value.shape[d])
        if op.rows is not None and axis is not None:
            d = axis.value.data
            rows = self.tensor(op.rows.root_reference.data)[0]
            wrong = rows[(rows < -target.shape[d]) | (rows >= target.shape[d])]
            if wrong.size:
                raise ElkError(f"a store to @{name} has row {wrong[0]} of {target.shape[d]}")
            target[(*region[:d], rows, *region[d + 1 :])] = value
            return
        if target[tuple(region)].shape != value.shape:
            raise ElkError(f"a store to @{name} is out of range")
        target[tuple(region)] = value

    def repeat(self, op: icca.RepeatOp) -> None:
        carried = [self.values[v] for v in op.inits]
        first, args = op.first.value.data, op.body.block.args
        for i in range(first, first + op.count.value.data):
            self.values.update(zip(args, [i, *carried], strict=True))
            carried = self.block(op.body.block)
        self.values.update(zip(op.outs, carried, strict=True))

    def row(self, op: icca.LayerOp) -> None:
        base = 0 if op.base_layer is None else self.values[op.base_layer]
        self.values[op.result] = base + op.offset.value.data

    def execute(self, op: icca.ExecuteOp) -> None:
        args = op.body.block.args
        given = [self.values[v] for v in (*op.ins, *op.entries)]
        self.values.update(zip(args, given, strict=True))
        results = self.block(op.body.block)
        self.values.update(zip(op.outs, results, strict=True))
        if self.trace is not None:
            self.trace(node_names(op), results)

    def insert(self, op: icca.InsertOp) -> None:
        whole, entries = self.values[op.target].copy(), self.values[op.entries]
        axis, start = op.axis.value.data, op.start.value.data
        whole[(*[slice(None)] * axis, slice(start, start + entries.shape[axis]))] = entries
        self.values[op.result] = whole

    def stage(self, op: icca.RelayoutOp | icca.DistributeOp) -> None:
        self.values[op.result] = self.values[op.source]

    def tile(self, op: icca.TileOp) -> None:
        operator = op.structured.operator()
        try:
            results = run_whole(operator, [self.values[v] for v in op.ins])
        except ElkError as error:
            raise ElkError(error.what, where=node_name(op)) from None
        # With statistics the results are those of the icca.reduce that reads this tile.
        values = [results] * len(op.outs) if operator.stats else results
        self.values.update(zip(op.outs, values, strict=True))

    def reduce(self, op: icca.ReduceOp) -> None:
        self.values.update(zip(op.outs, self.values[op.stats[0]], strict=True))


def _fill(op: icca.HbmOp, inputs: Mapping[str, np.ndarray], load_weight: LoadValue) -> np.ndarray:
    shape, dtype = shape_dtype(op.type)
    if op.kind.data is HbmKind.WEIGHT:
        return np.asarray(load_weight(op.value)).reshape((op.layers, *shape))
    array = np.zeros((op.layers, *shape), dtype=dtype_of(dtype))
    for layer, name in enumerate(op.inputs or ()):
        if name.data not in inputs:
            raise ElkError(f"input {name.data!r} is missing")
        value = entering(op, layer, inputs[name.data])
        array[(layer, *(slice(0, n) for n in value.shape))] = value
    return array


_HANDLERS: dict[type[Operation], Callable[[_Machine, Any], None]] = {
    icca.DistributeOp: _Machine.stage,
    icca.ExecuteOp: _Machine.execute,
    icca.InsertOp: _Machine.insert,
    icca.LayerOp: _Machine.row,
    icca.PreloadOp: _Machine.preload,
    icca.ReduceOp: _Machine.reduce,
    icca.RelayoutOp: _Machine.stage,
    icca.RepeatOp: _Machine.repeat,
    icca.StoreOp: _Machine.store,
    icca.TileOp: _Machine.tile,
}
