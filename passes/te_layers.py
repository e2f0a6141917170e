"""Finding identical layers in an unrolled block.

A *cut* is a place where exactly one value that depends on the model's stream (the embedding, say)
is still to be read: the residual stream between two sublayers. What lies between two cuts is a
*segment*; equal segments have equal keys, in which weights and states are abstracted. A run of
segments that repeats with a period is a candidate for a loop, which is then checked operation by
operation. What the layers share (rotary tables, masks) does not depend on the stream and stays
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from elk_ir.dialects.te import AppendOp, GatherOp, LoadOp, UpdateOp
from elk_ir.passes.te_support import is_pure

MAX_PERIOD = 512
MAX_STREAMS = 16
_SYMBOLS = ("source", "state")


class Signatures:
    """What an operation computes apart from which values, weights and states it reads."""

    def __init__(self) -> None:
        self._attributes: dict[Attribute, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._ops: dict[Operation, int] = {}

    def number(self, key: Hashable) -> int:
        """The same number for equal keys."""
        return self._keys.setdefault(key, len(self._keys))

    def _attribute(self, attribute: Attribute) -> int:
        return self._attributes.setdefault(attribute, len(self._attributes))

    def of(self, op: Operation) -> int:
        """The signature of an operation."""
        found = self._ops.get(op)
        if found is None:
            key = (
                op.name,
                tuple(
                    (k, self._attribute(v))
                    for k, v in sorted(op.properties.items())
                    if k not in _SYMBOLS
                ),
                tuple(self._attribute(r.type) for r in op.results),
            )
            found = self._ops[op] = self.number(key)
        return found


@dataclass(frozen=True)
class Stream:
    """The cuts of a block: cut i lies behind operation `positions[i]`, where only `values[i]` of
    what depends on the stream is still to be read."""

    ops: Sequence[Operation]
    dependent: frozenset[SSAValue]
    positions: Sequence[int]
    values: Sequence[SSAValue]

    def segment(self, i: int, j: int) -> list[Operation]:
        """Operations on the stream between cuts i and j."""
        inside = self.ops[self.positions[i] + 1 : self.positions[j] + 1]
        return [op for op in inside if self.depends(op)]

    @cached_property
    def sizes(self) -> list[int]:
        """Operations on the stream between neighbouring cuts."""
        return [len(self.segment(i, i + 1)) for i in range(len(self.values) - 1)]

    def depends(self, op: Operation) -> bool:
        """Whether an operation reads something that depends on the stream."""
        return any(v in self.dependent for v in op.operands)


def stream_from(block: Block, ops: Sequence[Operation], source: SSAValue) -> Stream:
    """The stream that starts with `source`."""
    dependent = {source}
    last_use: dict[SSAValue, int] = {source: -1}
    for i, op in enumerate(ops):
        hit = False
        for v in op.operands:
            if v in dependent:
                last_use[v] = i
                hit = True
        if hit:
            for r in op.results:
                dependent.add(r)
                last_use[r] = -1
    start = -1 if isinstance(source, BlockArgument) else ops.index(source.owner)  # pyright: ignore[reportArgumentType]
    positions, values = [start], [source]
    live = {source}
    for i in range(start + 1, len(ops)):
        op = ops[i]
        touched = False
        for v in op.operands:
            if v in dependent:
                touched = True
                if last_use[v] <= i:
                    live.discard(v)
        if not touched:
            continue
        for r in op.results:
            if last_use[r] > i:
                live.add(r)
        if len(live) == 1:
            (only,) = live
            if only is not values[-1]:
                positions.append(i)
                values.append(only)
    return Stream(ops, frozenset(dependent), positions, values)


def streams(block: Block, minimum: int) -> list[Stream]:
    """Streams of a block that may repeat, the most rewarding first.

    They are ranked by the repetitions among the sizes of their segments and the types of their
    cuts, which costs little to know."""
    ops = list(block.ops)
    sources: list[SSAValue] = [r for op in ops if isinstance(op, GatherOp) for r in op.results]
    sources += [a for a in block.args if a.uses]
    ranked: list[tuple[int, Stream]] = []
    for source in sources[:MAX_STREAMS]:
        stream = stream_from(block, ops, source)
        sizes = stream.sizes
        outlines: dict[tuple[int, Attribute], int] = {}
        keys = [
            outlines.setdefault((size, value.type), len(outlines))
            for size, value in zip(sizes, stream.values[1:], strict=True)
        ]
        best = next(runs(keys, sizes, minimum), None)
        if best is not None:
            ranked.append((best.saved, stream))
    return [stream for _, stream in sorted(ranked, key=lambda pair: -pair[0])]


def segment_keys(stream: Stream, signatures: Signatures) -> list[int]:
    """A number a segment: equal for segments that compute the same from the cut before them, from
    what does not depend on the stream, and from any weights and states."""
    outside: dict[SSAValue, int] = {}

    def key_of(value: SSAValue) -> int:
        found = outside.get(value)
        if found is None:
            # An argument, or the result of an operation in front of the first cut.
            found = outside[value] = signatures.number(("value", value))
        return found

    for op in stream.ops:
        if stream.depends(op):
            continue
        signature = signatures.of(op)
        if isinstance(op, LoadOp):
            outside[op.result] = signatures.number(("load", signature))
        elif is_pure(op):
            operands = tuple(key_of(v) for v in op.operands)
            for r in op.results:
                outside[r] = signatures.number(("pure", signature, operands, r.index))
    keys: list[int] = []
    for i in range(len(stream.values) - 1):
        local: dict[SSAValue, int] = {stream.values[i]: 0}
        rows: list[Hashable] = []
        for op in stream.segment(i, i + 1):
            operands = tuple(
                ("local", local.get(v, -1)) if v in stream.dependent else ("outside", key_of(v))
                for v in op.operands
            )
            rows.append((signatures.of(op), operands))
            for r in op.results:
                local[r] = len(local)
        rows.append(local.get(stream.values[i + 1], -1))
        keys.append(signatures.number(("segment", tuple(rows))))
    return keys


@dataclass(frozen=True, slots=True)
class Run:
    """`count` repetitions of `period` segments from cut `start`; `saved` operations fewer."""

    start: int
    period: int
    count: int
    saved: int


def runs(keys: Sequence[int], sizes: Sequence[int], minimum: int) -> Iterator[Run]:
    """Repetitions among segments, the most rewarding first. `sizes`: operations a segment."""
    total = [0]
    for size in sizes:
        total.append(total[-1] + size)
    found: list[Run] = []
    n = len(keys)
    for period in range(1, min(n // 2, MAX_PERIOD) + 1):
        i = 0
        while i + period < n:
            j = i
            while j + period < n and keys[j] == keys[j + period]:
                j += 1
            count = (j - i) // period + 1
            if count >= minimum:
                size = total[i + period] - total[i]
                found.append(Run(i, period, count, (count - 1) * size))
            i = j + 1
    return iter(sorted(found, key=lambda r: (-r.saved, r.period, r.start)))


@dataclass(frozen=True)
class Layer:
    """One repetition: its operations in the order in which the stream reads them, and its cuts."""

    ops: Sequence[Operation]
    entry: SSAValue
    exit: SSAValue


def layers_of(stream: Stream, run: Run) -> list[Layer]:
    """The layers of a run, each with the operations beside the stream that only it reads."""
    cuts = [run.start + i * run.period for i in range(run.count + 1)]
    on_stream = [stream.segment(a, b) for a, b in pairwise(cuts)]
    where: dict[Operation, int] = {op: i for i, ops in enumerate(on_stream) for op in ops}
    owned: dict[Operation, int] = {}
    for op in reversed(stream.ops):
        if op in where or not is_pure(op) or stream.depends(op):
            continue
        if op is stream.values[0].owner:
            continue
        layers = {
            where.get(use.operation, owned.get(use.operation, -1))
            for r in op.results
            for use in r.uses
        }
        owned[op] = layers.pop() if len(layers) == 1 else -1
    found: list[Layer] = []
    for i, ops in enumerate(on_stream):
        order: dict[Operation, None] = {}

        def visit(op: Operation, i: int = i, order: dict[Operation, None] = order) -> None:
            if op in order:
                return
            for v in op.operands:
                beside = v.owner
                if isinstance(beside, Operation) and owned.get(beside, -1) == i:
                    visit(beside)
            order[op] = None

        for op in ops:
            visit(op)
        found.append(Layer(list(order), stream.values[cuts[i]], stream.values[cuts[i + 1]]))
    return found


def same_layer(
    first: Layer, other: Layer, signatures: Signatures, check: Callable[[Operation], bool]
) -> bool:
    """Whether two layers compute the same from their entry, up to the weights and states that
    their loads and appends name. `check` refuses operations that can't be in a loop."""
    if len(first.ops) != len(other.ops):
        return False
    pairs: dict[SSAValue, SSAValue] = {first.entry: other.entry}
    inside = {r for op in other.ops for r in op.results} | {other.entry}
    for a, b in zip(first.ops, other.ops, strict=True):
        if signatures.of(a) != signatures.of(b) or not check(a):
            return False
        for v, w in zip(a.operands, b.operands, strict=True):
            if v in pairs:
                if pairs[v] is not w:
                    return False
            elif v is not w or w in inside:
                return False
        for r, s in zip(a.results, b.results, strict=True):
            pairs[r] = s
    return pairs.get(first.exit) is other.exit


def loopable(op: Operation) -> bool:
    """Whether an operation can be put into a loop over layers."""
    return is_pure(op) or isinstance(op, AppendOp | UpdateOp)
