"""Greedy decoding: one program run again and again on state that stays in HBM.

The graph decodes one token per run. It is compiled once for the longest cache of all steps; a run
with a shorter one reads a window whose end is filled (docs/decoding.md). The host feeds the chosen
token and its position back, and extends the attention mask if the graph takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.compiler import compile_model
from elk_ir.errors import ElkError, ModelError
from elk_ir.numerics.tensors import TensorSpec

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.program import Program


@dataclass(frozen=True)
class Cache:
    """A state of the program: its symbol, the graph inputs it replaces, the axis along which it
    grows and the entries that are filled at first."""

    symbol: str
    inputs: tuple[str, ...]
    axis: int
    filled: int


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of a decoding graph are for.

    masks: inputs with one entry per cache entry, and the axis. caches: inputs whose next value is
    an output of the same shape (static caches that are no state of the program).
    """

    token: str
    positions: tuple[str, ...]
    masks: tuple[tuple[str, int], ...]
    caches: tuple[tuple[str, str], ...]
    logits: str


class Decoder:
    """A program, the machine it runs on, and what is fed back between its runs."""

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, np.ndarray],
        roles: Roles,
        caches: Sequence[Cache],
        random_weights: int | None = None,
    ):
        self.program, self.roles = program, roles
        self.inputs = {k: np.asarray(v) for k, v in inputs.items()}
        filled = {c.symbol: c.filled for c in caches}
        self.machine = program.interpreter(random_weights=random_weights, filled=filled)
        self._window = {spec.name: spec for spec in program.signature.inputs}
        self._started = False
        self._last: Mapping[str, np.ndarray] = {}

    def step(self) -> dict[str, np.ndarray]:
        """Decode one token: the outputs of this run, among them the logits. Those that are caches
        are the machine's own memory: copy them before the next step if they are to be kept.

        Raises ElkError when the cache is full.
        """
        roles = self.roles
        given = dict(self.inputs)
        for name, axis in roles.masks:
            # Entries in front of the filled ones are masked.
            missing = self._window[name].shape[axis] - given[name].shape[axis]
            widths = [(missing if i == axis else 0, 0) for i in range(given[name].ndim)]
            given[name] = np.pad(given[name], widths)
        self._keep_caches(given)
        self.machine.fill(given, again=self._started)
        self._started = True
        self.machine.execute()
        outputs = self.machine.outputs()
        logits = outputs[roles.logits]
        token = self.inputs[roles.token]
        following = logits.reshape(token.shape[0], -1, logits.shape[-1])[:, -1].argmax(-1)
        self.inputs[roles.token] = following.astype(token.dtype).reshape(token.shape)
        for name in roles.positions:
            self.inputs[name] = self.inputs[name] + 1
        for name, axis in roles.masks:
            new = np.ones_like(np.take(self.inputs[name], [0], axis))
            self.inputs[name] = np.concatenate([self.inputs[name], new], axis)
        self._last = outputs
        return outputs

    def _keep_caches(self, given: dict[str, np.ndarray]) -> None:
        """Static caches are what the last run made of them: in HBM, if the machine can leave them
        there."""
        from elk_ir.targets.ipu.interpreter import Interpreter

        for name, output in self.roles.caches if self._started else ():
            if isinstance(self.machine, Interpreter):
                self.machine.carry(output, name)
                del given[name]
            else:
                given[name] = self._last[output]

    @property
    def tokens(self) -> np.ndarray:
        """The tokens chosen by the last step: (batch,)."""
        return self.inputs[self.roles.token].reshape(-1)


def compile_decoder(
    model: str | Path,
    *,
    chip: str | Path | Chip,
    inputs: Mapping[str, np.ndarray],
    steps: int,
    kv_capacity: int | None = None,
    random_weights: int | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Decoder:
    """A decoder for `steps` tokens from the state and the token that `inputs` hold.

    kv_capacity: entries the cache can hold in all (default: what the steps need). Raises ElkError
    for a graph that does not decode, or whose cache has a fixed length.
    """
    shapes = {name: value.shape for name, value in inputs.items()}

    def compiled(given: Mapping[str, Sequence[int]]) -> Program:
        return compile_model(model, chip=chip, input_shapes=given, progress=progress, **options)

    program = compiled(shapes)
    caches = find_caches(program)
    symbolic = symbolic_axes(model)
    grown = dict(shapes)
    longest = max((c.filled for c in caches), default=0) + steps - 1
    if kv_capacity is not None:
        if caches and kv_capacity < longest + 1:
            raise ElkError(
                f"{steps} steps need a cache of {longest + 1} entries, the capacity is"
                f" {kv_capacity}"
            )
        longest = kv_capacity - 1
    masks: list[tuple[str, int]] = []
    if caches:
        first = caches[0].filled
        owned = {name for c in caches for name in c.inputs}
        for cache in caches:
            for name in cache.inputs:
                if cache.filled != longest and (name, cache.axis) not in symbolic:
                    raise ModelError(
                        f"the cache {name!r} has {cache.filled} entries in this graph, fixed",
                        hint="export the graph with a symbolic cache length to decode more than"
                        " one token",
                    )
                grown[name] = _with(shapes[name], cache.axis, longest)
        for name, axis in sorted(symbolic):
            if name in shapes and name not in owned and shapes[name][axis] == first + 1:
                grown[name] = _with(shapes[name], axis, longest + 1)
                masks.append((name, axis))
        if grown != shapes:
            program = compiled(grown)
            caches = [
                Cache(c.symbol, c.inputs, c.axis, shapes[c.inputs[0]][c.axis])
                for c in find_caches(program)
            ]
        if longest > first and not masks:
            _check_masked(program, caches)
    roles = find_roles(program, masks, state_inputs(program))
    return Decoder(program, inputs, roles, caches, random_weights)


def _with(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def find_caches(program: Program) -> list[Cache]:
    """The states of a program that grow from what graph inputs hold."""
    from elk_ir.dialects.icca.attrs import HbmKind
    from elk_ir.dialects.ipu import RemoteOp
    from elk_ir.dialects.northpole import TensorOp
    from elk_ir.dialects.types import shape_dtype

    found: list[Cache] = []
    for op in program.target.body.block.ops:
        if not isinstance(op, RemoteOp | TensorOp) or op.kind.data is not HbmKind.STATE:
            continue
        if op.inputs is None or op.axis is None or op.length is None:
            continue
        names = tuple(n.data for n in op.inputs)
        axis, length = op.axis.value.data, op.length.value.data
        if length < shape_dtype(op.type)[0][axis]:
            found.append(Cache(op.sym_name.data, names, axis, length))
    return found


def state_inputs(program: Program) -> set[str]:
    """The graph inputs that only initialise states, of those that grow and of static ones."""
    from elk_ir.dialects.icca.attrs import HbmKind
    from elk_ir.dialects.ipu import RemoteOp
    from elk_ir.dialects.northpole import TensorOp

    return {
        name.data
        for op in program.target.body.block.ops
        if isinstance(op, RemoteOp | TensorOp) and op.kind.data is HbmKind.STATE
        for name in op.inputs or ()
    }


def _check_masked(program: Program, caches: Sequence[Cache]) -> None:
    """Raise unless something masks the entries that are not filled yet."""
    from elk_ir.dialects.te import AttentionOp, SoftmaxOp

    masked = {
        op.state.root_reference.data
        for op in program.target.walk()
        if isinstance(op, AttentionOp | SoftmaxOp) and op.state is not None
    }
    if caches and not masked:
        raise ModelError(
            "nothing in this graph masks cache entries that are not filled yet",
            hint="export it with an attention mask as an input, or with attention that elk"
            " recognises",
        )


def symbolic_axes(model: str | Path) -> set[tuple[str, int]]:
    """The (input, axis) pairs of a model file whose extent is a symbol."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return {
        (value.name, axis)
        for value in graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }


def find_roles(program: Program, masks: Sequence[tuple[str, int]], states: set[str]) -> Roles:
    """What each input and output is for, by name, type and shape. Raises ModelError."""
    signature = program.signature
    free = [
        s
        for s in signature.inputs
        if s.name not in states and s.name not in {name for name, _ in masks}
    ]
    integers = [s for s in free if s.dtype in ("int64", "int32")]
    positions = tuple(s.name for s in integers if "position" in s.name.lower())
    tokens = [s.name for s in integers if s.name not in positions]
    outputs = [s for s in signature.outputs if s.dtype not in ("int64", "int32")]
    named = [s for s in outputs if "logits" in s.name.lower()]
    logits = (named or outputs or [None])[0]
    if len(tokens) != 1 or logits is None:
        raise ModelError(
            f"this graph does not decode: of its inputs {len(tokens)} could be the token"
            f" ({', '.join(tokens) or 'none is an integer tensor'})",
            hint="a decoding graph takes token ids and gives logits",
        )
    used = {logits.name}
    caches: list[tuple[str, str]] = []
    for spec in free:
        if spec.name in positions or spec.name == tokens[0]:
            continue
        match = _like(spec, [o for o in signature.outputs if o.name not in used])
        if match is not None:
            used.add(match)
            caches.append((spec.name, match))
    return Roles(tokens[0], positions, tuple(masks), tuple(caches), logits.name)


def _like(spec: TensorSpec, outputs: Sequence[TensorSpec]) -> str | None:
    """The output of the same shape and type whose name is most like the input's."""
    same = [o for o in outputs if o.shape == spec.shape and o.dtype == spec.dtype]
    if not same:
        return None
    return max(same, key=lambda o: SequenceMatcher(None, o.name, spec.name).ratio()).name
