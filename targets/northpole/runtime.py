"""The host's side of an appliance: load once, then put tensors in and get tensors out.

    appliance = program.appliance(micro_batches=4)
    appliance.put(0, {"input_ids": ..., "position_ids": ...})   # a pass of micro-batch 0 starts
    appliance.put(1, ...)                                       # and one of micro-batch 1 follows
    logits = appliance.get(0)["logits"]

Weights are placed when the appliance is made. Each micro-batch has caches of its own on the cards.
Stages work at the same time: a tick of the pipeline lets every stage that has something in its
framebuffer do one block of work and send it on, so several passes are under way at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, SSAValue

from elk_ir.chips import Chip
from elk_ir.compiler import Signature
from elk_ir.dialects import northpole
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ElkError, UsageError
from elk_ir.northpole.timing import card_of
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.kernels import run_whole
from elk_ir.passes.convert_icca_to_northpole import tensor_bytes
from elk_ir.passes.northpole_place import map_of
from elk_ir.plan.domain import Operator
from elk_ir.targets.northpole.memory import blocks_of, tensors_of
from elk_ir.targets.northpole.stage_runner import StageRunner

LoadWeight = Callable[[Attribute | None], np.ndarray]


class Store:
    """The tensors of a program by name, loaded when they are first asked for."""

    def __init__(self, module: ModuleOp, load: LoadWeight) -> None:
        self.tensors = tensors_of(module)
        self._load, self._kept = load, dict[str, np.ndarray]()

    def weight(self, name: str, layer: int) -> np.ndarray:
        """One layer of a weight."""
        op = self.tensors[name]
        if name not in self._kept:
            value = op.value
            whole = self._load(value) if isinstance(value, WeightAttr) else _dense(op)
            self._kept[name] = whole.reshape(op.layers, *shape_dtype(op.type)[0])
        return self._kept[name][layer]

    def forget(self) -> None:
        """Drop what was loaded: it has been placed."""
        self._kept.clear()


def _dense(op: northpole.TensorOp) -> np.ndarray:
    assert op.value is not None and not isinstance(op.value, WeightAttr)
    return array_from_dense(op.value)


@dataclass
class Pass:
    """One micro-batch on its way; `values` are those that are where they are needed next."""

    micro_batch: int
    number: int
    frames: dict[str, dict[SSAValue, np.ndarray]] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters:
    """What has happened so far: passes and ticks, the most passes at once, bytes between stages and
    the host, and the fullest framebuffer in bytes."""

    passes: int
    ticks: int
    most_in_flight: int
    pcie_bytes: int
    framebuffer_peak_bytes: int


class Appliance:
    """Cards with a program on them.

    micro_batches: independent users' groups, each with its own caches (None: the program's number).
    Raises ElkError for weights that are missing, and UsageError for wrong numbers.
    """

    def __init__(
        self,
        module: ModuleOp,
        load_weight: LoadWeight,
        chip: Chip,
        signature: Signature,
        *,
        micro_batches: int | None = None,
    ) -> None:
        program = map_of(module)
        self.signature = signature
        self.micro_batches = micro_batches or program.micro_batches.value.data
        self.batch = program.batch.value.data
        self._store = Store(module, load_weight)
        self._ops = northpole.contents(program.body)
        self._framebuffer_bytes = card_of(chip).framebuffer_bytes
        self._host = next(op for op in self._ops if isinstance(op, northpole.HostOp))
        self._host_weights: dict[str, np.ndarray] = {}
        self._operators: dict[northpole.ExecuteOp, Operator] = {}
        blocks = blocks_of(module)
        self.stages = [
            StageRunner(op, blocks, self._store)
            for op in self._ops
            if isinstance(op, northpole.StageOp)
        ]
        self._order = [northpole.HOST, *(s.name for s in self.stages), northpole.HOST]
        self._queues: list[deque[Pass]] = [deque() for _ in self.stages]
        self._done: list[deque[Pass]] = [deque() for _ in range(self.micro_batches)]
        self._waiting = [0] * self.micro_batches
        self._passes = self._ticks = self._most = self._pcie = self._peak = 0
        self._check_room(program.fit.value.data)
        for stage in self.stages:
            stage.place()
        self._place_host()
        self._store.forget()

    def _check_room(self, fit: int) -> None:
        users = self.micro_batches * self.batch
        if self.micro_batches < 1:
            raise UsageError(f"{self.micro_batches} micro-batches")
        if users > fit:
            raise ElkError(
                f"{self.micro_batches} micro-batches of {self.batch} are {users} users, the cards"
                f" hold the caches of {fit}",
                hint="fewer micro-batches, a shorter context, or fewer bits for the KV cache",
            )

    # ------------------------------------------------------------------ put and get

    def put(self, micro_batch: int, tensors: Mapping[str, np.ndarray]) -> None:
        """Start a pass of a micro-batch with graph inputs by name; it ends in `get`.

        Inputs that the cards keep as state (caches) may be given: the micro-batch then starts from
        them, with as many entries as they have. Passes of one micro-batch follow one another.
        Raises UsageError for missing or wrong inputs, ElkError when a cache is full.
        """
        self._check(micro_batch)
        given = {name: np.asarray(value) for name, value in tensors.items()}
        values = self._run_host(given)  # what is wrong with them leaves everything as it was
        states = {
            name: value
            for name, value in given.items()
            if any(name in stage.state_inputs for stage in self.stages)
        }
        if states:
            if self._waiting[micro_batch]:
                raise UsageError(f"micro-batch {micro_batch} is under way; get its outputs first")
            for stage in self.stages:
                stage.fill(micro_batch, states)
        for stage in self.stages:
            stage.reserve(micro_batch)
        while len(self._queues[0]) > 1:  # the framebuffer takes one more while one is worked on
            self.tick()
        item = Pass(micro_batch, self._passes)
        self._passes += 1
        self._waiting[micro_batch] += 1
        self._leave(northpole.HOST, item, values)
        self._queues[0].append(item)
        self._note()

    def get(self, micro_batch: int) -> dict[str, np.ndarray]:
        """The outputs by name of the oldest pass of a micro-batch that was not fetched; states are
        read from the cards once nothing of the micro-batch is under way."""
        self._check(micro_batch)
        if not self._waiting[micro_batch]:
            raise UsageError(f"no pass of micro-batch {micro_batch} was put")
        while not self._done[micro_batch]:
            self.tick()
        item = self._done[micro_batch].popleft()
        self._waiting[micro_batch] -= 1
        result = dict(item.outputs)
        if not self._waiting[micro_batch]:
            for stage in self.stages:
                result |= stage.states(micro_batch)
        return {s.name: result[s.name] for s in self.signature.outputs if s.name in result}

    def reset(self, micro_batch: int) -> None:
        """Empty the caches of a micro-batch: other users take its place."""
        self._check(micro_batch)
        for stage in self.stages:
            stage.clear(micro_batch)

    def _check(self, micro_batch: int) -> None:
        if not 0 <= micro_batch < self.micro_batches:
            raise UsageError(f"there is no micro-batch {micro_batch} of {self.micro_batches}")

    # ------------------------------------------------------------------ the pipeline

    def tick(self) -> None:
        """Every stage that has a pass in its framebuffer works on one and sends it on."""
        self._ticks += 1
        for i in reversed(range(len(self.stages))):
            if not self._queues[i]:
                continue
            item, stage = self._queues[i].popleft(), self.stages[i]
            values = stage.run(item.micro_batch, item.frames.pop(stage.name, {}))
            self._leave(stage.name, item, values)
            if i + 1 < len(self.stages):
                self._queues[i + 1].append(item)
            else:
                self._finish(item)
        self._note()

    def _leave(self, source: str, item: Pass, values: Mapping[SSAValue, np.ndarray]) -> None:
        """Carry out the sends of a place: what is not sent stays behind."""
        for op in self._ops:
            if isinstance(op, northpole.SendOp) and op.source.root_reference.data == source:
                frame = item.frames.setdefault(op.target.root_reference.data, {})
                for value, arrived in zip(op.ins, op.outs, strict=True):
                    frame[arrived] = values[value].copy()
                self._pcie += op.bytes.value.data
            elif isinstance(op, northpole.OutputOp) and op.value in values:
                self._output(op, item, values[op.value])  # of the host's own values

    def _finish(self, item: Pass) -> None:
        frame = item.frames.pop(northpole.HOST, {})
        for op in self._ops:
            if isinstance(op, northpole.OutputOp) and op.value in frame:
                self._output(op, item, frame[op.value])
        self._done[item.micro_batch].append(item)

    def _output(self, op: northpole.OutputOp, item: Pass, value: np.ndarray) -> None:
        tensor = self._store.tensors[op.target.root_reference.data]
        for name in tensor.outputs or ():
            item.outputs[name.data] = value

    def _note(self) -> None:
        under_way = sum(len(q) for q in self._queues)
        self._most = max(self._most, under_way)
        for stage, queue in zip(self.stages, self._queues, strict=True):
            size = sum(
                tensor_bytes(v.type) for item in queue for v in item.frames.get(stage.name, {})
            )
            self._peak = max(self._peak, size)
            if size > self._framebuffer_bytes:
                raise ElkError(
                    f"framebuffer of '{stage.name}': {size:,} bytes wait, it has"
                    f" {self._framebuffer_bytes:,} ({size - self._framebuffer_bytes:,} too many)"
                )

    @property
    def counters(self) -> Counters:
        """What has happened so far."""
        return Counters(self._passes, self._ticks, self._most, self._pcie, self._peak)

    # ------------------------------------------------------------------ the host

    def _place_host(self) -> None:
        for op in northpole.contents(self._host.body):
            if isinstance(op, northpole.ResidentOp):
                for ref in (op.source, op.rows):
                    name = "" if ref is None else ref.root_reference.data
                    if name and self._store.tensors[name].kind.data is HbmKind.WEIGHT:
                        self._host_weights[name] = self._store.weight(name, 0)

    def _run_host(self, inputs: Mapping[str, np.ndarray]) -> dict[SSAValue, np.ndarray]:
        """The host's operators on graph inputs; its results."""
        values: dict[SSAValue, np.ndarray] = {}
        for op in northpole.contents(self._host.body):
            if isinstance(op, northpole.ResidentOp):
                values[op.result] = self._host_value(op, inputs)
            elif isinstance(op, northpole.ExecuteOp):
                if op not in self._operators:
                    self._operators[op] = op.operator()
                with np.errstate(all="ignore"):
                    outs = run_whole(self._operators[op], [values[v] for v in op.ins])
                values.update(zip(op.outs, outs, strict=True))
            elif isinstance(op, northpole.YieldOp):
                return {r: values[v] for r, v in zip(self._host.outs, op.values, strict=True)}
        return {}

    def _host_value(self, op: northpole.ResidentOp, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        whole = self._host_tensor(op.source.root_reference.data, inputs)
        if op.rows is None:
            return whole
        index = self._host_tensor(op.rows.root_reference.data, inputs)
        rows = np.where(index < 0, index + whole.shape[0], index)
        if rows.size and (rows.min() < 0 or rows.max() >= whole.shape[0]):
            name = op.source.root_reference.data
            raise UsageError(f"an index is out of range: '{name}' has {whole.shape[0]} rows")
        return whole[rows]

    def _host_tensor(self, name: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        tensor = self._store.tensors[name]
        if tensor.kind.data is HbmKind.INPUT:
            return _input(tensor, inputs)
        return self._host_weights[name]


def _input(op: northpole.TensorOp, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    assert op.inputs is not None
    (name,) = (n.data for n in op.inputs)
    if name not in inputs:
        raise UsageError(f"input {name!r} is missing", hint=f"given: {', '.join(inputs)}")
    shape, dtype = shape_dtype(op.type)
    array = inputs[name]
    if array.shape != tuple(shape) or array.dtype != dtype_of(dtype):
        raise UsageError(
            f"input {name!r} is {array.dtype}{list(array.shape)}, the program takes"
            f" {dtype}{list(shape)}"
        )
    return array
