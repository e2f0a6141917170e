"""One stage of an appliance: what stays on its cards, and how a micro-batch passes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from elk_ir.dialects import northpole
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.location import node_name
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError, UsageError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.states import entering, leaving
from elk_ir.plan.layout import Layout
from elk_ir.targets.northpole.cores import (
    FRAMEBUFFER,
    Core,
    Place,
    Spread,
    Traffic,
    buffered,
    core_of,
    move,
    whole_layout,
    zeros,
)
from elk_ir.targets.northpole.memory import reader


class Tensors(Protocol):
    """Where weights come from when the appliance is loaded."""

    tensors: dict[str, northpole.TensorOp]

    def weight(self, name: str, layer: int) -> np.ndarray:
        """One layer of a weight."""
        ...


@dataclass
class _Cache:
    """A state's layer of one micro-batch on the cores that read it.

    The program reads a window of `length` + new entries, of which the last ones are new. `given`
    entries lie at the end of the first `length`; those that later passes make go in front of them,
    one after another, so that nothing that is there has to move: softmax does not mind the order.
    `passed` passes have appended, the last of which still has its entry where it was made.
    """

    spread: Spread
    given: int
    passed: int = 0

    @property
    def filled(self) -> int:
        """Entries in front of which nothing is read, not counting those of the pass under way."""
        return self.given + max(0, self.passed - 1)


class StageRunner:
    """The cards of one `northpole.stage`."""

    def __init__(
        self,
        op: northpole.StageOp,
        blocks: Mapping[str, northpole.BlockOp],
        store: Tensors,
    ) -> None:
        self.op, self.store, self.name = op, store, op.sym_name.data
        self.cards = tuple(op.cards.get_values())
        self.ways = len(op.cards)
        self.traffic = Traffic()
        self._blocks = blocks
        self.weights: dict[tuple[str, int, Layout, Place], Spread] = {}
        self.products: set[tuple[str, int, Layout, Place]] = set()
        self._caches: dict[tuple[str, int, int], _Cache] = {}
        self._states = self._find_states()
        self._reserved: dict[int, int] = {}
        self.state_inputs = {
            n for name, layer in self._states if (n := _named(store.tensors[name], layer, True))
        }

    # ------------------------------------------------------------------ loading

    def _calls(self) -> list[tuple[northpole.BlockOp, int]]:
        return [
            (self._blocks[c.block.root_reference.data], c.layer.value.data) for c in self.op.calls
        ]

    def _core(self, op: northpole.ExecuteOp) -> Core:
        return core_of(op, self.ways)

    def place(self) -> None:
        """Put every weight on the cores that multiply with it."""
        for block, number in self._calls():
            for op in northpole.contents(block.body):
                if isinstance(op, northpole.ExecuteOp):
                    for v, value in enumerate(op.ins):
                        owner = value.owner
                        if isinstance(owner, northpole.ResidentOp):
                            self._place(op, v, owner, 0 if owner.layer is None else number)

    def _place(
        self, op: northpole.ExecuteOp, v: int, owner: northpole.ResidentOp, layer: int
    ) -> None:
        name = owner.source.root_reference.data
        if self.store.tensors[name].kind.data is not HbmKind.WEIGHT:
            return
        core = self._core(op)
        layout = core.inputs[v]
        key = (name, layer, layout, core.place)
        if core.operator.kind == "contract" and v < 2:  # others are its epilogue's
            self.products.add(key)
        if key in self.weights:
            return
        loading = Traffic()  # over the weight network, once, before anything runs
        array = np.asarray(self.store.weight(name, layer))
        data = move(buffered(array), layout, core.place, self.ways, loading)
        self.weights[key] = Spread(data, layout, core.place)

    # ------------------------------------------------------------------ caches

    def _find_states(self) -> dict[tuple[str, int], tuple[Layout, Place]]:
        """Where each state's layer lies: as its reader needs it, or as its writer makes it."""
        found: dict[tuple[str, int], tuple[Layout, Place]] = {}
        for block, number in self._calls():
            for op in northpole.contents(block.body):
                if isinstance(op, northpole.AppendOp):
                    name = op.state.root_reference.data
                elif isinstance(op, northpole.ResidentOp):
                    name = op.source.root_reference.data
                    if self.store.tensors[name].kind.data is not HbmKind.STATE:
                        continue
                else:
                    continue
                key = (name, 0 if op.layer is None else number)
                use = reader(op.result)
                if use is not None:
                    core = self._core(use[0])
                    found[key] = (core.inputs[use[1]], core.place)
                elif key not in found:
                    shape, _ = shape_dtype(self.store.tensors[name].type)
                    found[key] = (whole_layout(tuple(shape)), Place((0,), (0,), True))
        return found

    def labels(self) -> list[tuple[str | None, int, str | None, str]]:
        """Of each state's layer here: the graph input that it replaces, the axis of its entries,
        the graph output, and its name on the cards."""
        found: list[tuple[str | None, int, str | None, str]] = []
        for name, layer in self._states:
            op = self.store.tensors[name]
            axis = 0 if op.axis is None else op.axis.value.data
            found.append((_named(op, layer, True), axis, _named(op, layer, False), name))
        return found

    def _cache(self, name: str, layer: int, micro_batch: int) -> _Cache:
        key = (name, layer, micro_batch)
        if key not in self._caches:
            layout, place = self._states[name, layer]
            dtype = shape_dtype(self.store.tensors[name].type)[1]
            self._caches[key] = _Cache(Spread(zeros(layout, dtype), layout, place), 0)
        return self._caches[key]

    def clear(self, micro_batch: int) -> None:
        """Forget a micro-batch."""
        for key in [k for k in self._caches if k[2] == micro_batch]:
            del self._caches[key]
        self._reserved.pop(micro_batch, None)

    def fill(self, micro_batch: int, given: Mapping[str, np.ndarray]) -> None:
        """Start a micro-batch from the caches that are given, by the names of graph inputs."""
        self.clear(micro_batch)
        for name, layer in self._states:
            op = self.store.tensors[name]
            label = _named(op, layer, True)
            if label is None or label not in given:
                continue
            assert op.axis is not None and op.length is not None
            axis, length = op.axis.value.data, op.length.value.data
            array = entering(op, layer, given[label])
            shape, dtype = shape_dtype(op.type)
            entries = array.shape[axis] if array.ndim == len(shape) else -1
            wanted = (*shape[:axis], entries, *shape[axis + 1 :])
            if array.shape != wanted or entries > length or array.dtype != dtype_of(dtype):
                raise UsageError(
                    f"input {label!r} is {array.dtype}{list(array.shape)}, the program takes"
                    f" {dtype}{list(shape)} with up to {length} entries along axis {axis}"
                )
            cache = self._cache(name, layer, micro_batch)
            cache.given = entries
            if entries:
                self._write(cache, buffered(array), axis, length - entries)

    def reserve(self, micro_batch: int) -> None:
        """Count a pass that will append. Raises ElkError when a cache has no room for it."""
        passes = self._reserved.get(micro_batch, 0) + 1
        for name, layer in self._states:
            op = self.store.tensors[name]
            assert op.length is not None and op.axis is not None
            length = op.length.value.data
            given = self._cache(name, layer, micro_batch).given
            if passes > 1 and given + passes - 1 > length:
                capacity = shape_dtype(op.type)[0][op.axis.value.data]
                raise ElkError(
                    f"the cache '{name}' of micro-batch {micro_batch} is full: it holds {capacity}"
                    f" entries, {given} given and {passes} appended",
                    hint="compile with a larger --kv-capacity, or reset the micro-batch",
                )
        self._reserved[micro_batch] = passes

    def _write(self, cache: _Cache, entries: Spread, axis: int, start: int) -> None:
        spread = cache.spread
        move(
            entries,
            spread.layout,
            spread.place,
            self.ways,
            self.traffic,
            into=spread.data,
            axis=axis,
            start=start,
        )

    def _append(self, op: northpole.AppendOp, layer: int, micro_batch: int, x: Spread) -> Spread:
        """New entries at the end of the window, those of the pass before moved to their slot."""
        name = op.state.root_reference.data
        cache, tensor = self._cache(name, layer, micro_batch), self.store.tensors[name]
        assert tensor.axis is not None
        axis, start = tensor.axis.value.data, op.start.value.data
        if cache.passed:
            if x.layout.shape[axis] != 1:
                raise ElkError(
                    f"'{name}' takes {x.layout.shape[axis]} entries a pass: one pass only",
                    where=node_name(op),
                )
            slot = start - 1 - cache.given - (cache.passed - 1)
            self._write(cache, self._entry(cache.spread, axis, start), axis, slot)
        cache.passed += 1
        self._write(cache, x, axis, start)
        return cache.spread

    def _entry(self, spread: Spread, axis: int, at: int) -> Spread:
        """One entry of a cache, gathered from the cores that hold it."""
        whole = self._whole(spread)
        return buffered(np.take(whole, [at], axis=axis))

    def _whole(self, spread: Spread) -> np.ndarray:
        target = whole_layout(spread.layout.shape)
        return move(spread, target, FRAMEBUFFER, self.ways, self.traffic)[0]

    def states(self, micro_batch: int) -> dict[str, np.ndarray]:
        """The filled part of every state that is a graph output, entries in the order in which they
        came."""
        result: dict[str, np.ndarray] = {}
        for name, layer in self._states:
            op = self.store.tensors[name]
            label = _named(op, layer, False)
            if label is None:
                continue
            assert op.axis is not None and op.length is not None
            axis, length = op.axis.value.data, op.length.value.data
            cache = self._cache(name, layer, micro_batch)
            whole = self._whole(cache.spread)
            order = self._order(cache, length, whole.shape[axis])
            result[label] = leaving(op, layer, np.take(whole, order, axis=axis))
        return result

    @staticmethod
    def _order(cache: _Cache, length: int, capacity: int) -> np.ndarray:
        """Slots of the filled entries, the oldest first."""
        given = np.arange(length - cache.given, length)
        made = length - cache.given - 1 - np.arange(max(0, cache.passed - 1))
        new = np.arange(length, capacity) if cache.passed else np.arange(0)
        return np.concatenate([given, made, new])

    # ------------------------------------------------------------------ a pass

    def run(
        self, micro_batch: int, frame: Mapping[SSAValue, np.ndarray]
    ) -> dict[SSAValue, np.ndarray]:
        """One micro-batch through the stage: from what was sent here to what leaves it."""
        assert self.op.body is not None
        values: dict[SSAValue, np.ndarray] = {}
        for arg, operand in zip(self.op.body.block.args, self.op.ins, strict=True):
            if operand not in frame:
                raise ElkError(f"{self.name}: a value was not sent here")
            values[arg] = frame[operand]
        for op in northpole.contents(self.op.body):
            if isinstance(op, northpole.CallOp):
                outs = self._call(op, micro_batch, [values[v] for v in op.ins])
                values.update(zip(op.outs, outs, strict=True))
            elif isinstance(op, northpole.YieldOp):
                return {r: values[v] for r, v in zip(self.op.outs, op.values, strict=True)}
        return {}

    def _call(
        self, call: northpole.CallOp, micro_batch: int, ins: list[np.ndarray]
    ) -> list[np.ndarray]:
        block = self._blocks[call.block.root_reference.data].body.block
        number = call.layer.value.data
        values: dict[SSAValue, Spread] = {
            arg: buffered(x) for arg, x in zip(block.args[1:], ins, strict=True)
        }
        for op in block.ops:
            if isinstance(op, northpole.AppendOp):
                layer = 0 if op.layer is None else number
                values[op.result] = self._append(op, layer, micro_batch, values[op.entries])
            elif isinstance(op, northpole.ExecuteOp):
                outs = self._execute(op, number, micro_batch, values)
                values.update(zip(op.outs, outs, strict=True))
            elif isinstance(op, northpole.YieldOp):
                return [self._whole(values[v]) for v in op.values]
        return []

    def _execute(
        self,
        op: northpole.ExecuteOp,
        number: int,
        micro_batch: int,
        values: Mapping[SSAValue, Spread],
    ) -> list[Spread]:
        core = self._core(op)
        ins: list[Spread] = []
        for v, value in enumerate(op.ins):
            owner = value.owner
            if isinstance(owner, northpole.ResidentOp):
                ins.append(self._resident(owner, core, v, number, micro_batch))
            else:
                ins.append(values[value])
        hidden, state = 0, core.operator.param.get("state")
        if state is not None:
            layer = next((k[1] for k in self._states if k == (state, number)), 0)
            cache, length = self._cache(state, layer, micro_batch), self._length(state)
            hidden = length - cache.filled
            if len(ins) > 3 and cache.passed > 1:
                ins[3] = self._reordered(op, core, ins[3], cache, length)
        return core.run(ins, self.traffic, hidden)

    def _length(self, name: str) -> int:
        length = self.store.tensors[name].length
        assert length is not None
        return length.value.data

    def _resident(
        self, owner: northpole.ResidentOp, core: Core, v: int, number: int, micro_batch: int
    ) -> Spread:
        name = owner.source.root_reference.data
        layer = 0 if owner.layer is None else number
        if self.store.tensors[name].kind.data is HbmKind.STATE:
            return self._cache(name, layer, micro_batch).spread
        return self.weights[name, layer, core.inputs[v], core.place]

    def _reordered(
        self, op: northpole.ExecuteOp, core: Core, mask: Spread, cache: _Cache, length: int
    ) -> Spread:
        """A mask with its entries where the cache has them."""
        (kv,) = core.operator.reductions
        access = core.operator.operands[3]
        axis = next((j for j, a in enumerate(access.axes) if a.simple_dim == kv), None)
        if axis is None:
            return mask
        whole = self._whole(mask)
        if (whole == np.take(whole, [0], axis=axis)).all():
            return mask
        if not isinstance(op.ins[3], BlockArgument):
            raise ElkError(
                "a mask that the cards compute depends on the order of cache entries, which the"
                " cards do not keep while they decode",
                where=node_name(op),
            )
        capacity = whole.shape[axis]
        order = np.arange(capacity)
        filled = self._order(cache, length, capacity)
        order[filled] = np.arange(capacity - filled.size, capacity)
        return buffered(np.take(whole, order, axis=axis))


def _named(op: northpole.TensorOp, layer: int, entering_: bool) -> str | None:
    """The graph input or output that a state's layer replaces."""
    names = op.inputs if entering_ else op.outputs
    if names is None or layer >= len(names.data):
        return None
    return names.data[layer].data or None
