"""Builds a `Timeline` from a program's steps, whatever IR they come from.

The extractions from icca and from ipu call the same methods in the same order; everything that
the two must agree on is decided here: what counts as one phase, what is live when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.domain import Operator as Domain
from elk_ir.plan.expr import Expr
from elk_ir.plan.layout import Layout
from elk_ir.sim import patterns
from elk_ir.sim.timeline import (
    Compute,
    Event,
    Exchange,
    Leaf,
    Operator,
    Preload,
    PreloadWait,
    Repeat,
    Store,
    StoreWait,
    Timeline,
    Traffic,
)


@dataclass
class _Step:
    """A leaf with what it does to buffers: `kills` it writes anew, `uses` it reads or adds to."""

    event: Leaf
    kills: frozenset[int] = frozenset()
    uses: frozenset[int] = frozenset()


@dataclass
class _Group:
    """A loop (count) or an operator (label and node) under construction."""

    count: int = 1
    label: str | None = None
    node: str = ""
    items: list[_Step | _Group] = field(default_factory=list)


@dataclass(frozen=True)
class Shift:
    """One rotating operand of a ring shift: `size_bytes` from core mapping(c) into `landing`, then
    copied into `target`."""

    source: str
    landing: str
    target: str
    mapping: Expr
    used: int
    size_bytes: int
    step: int = 0


class Builder:
    """Collects the steps of one program; `finish` gives the timeline.

    Buffers are known by name to the caller and numbered in the order in which they first occur.
    """

    def __init__(self, cores: int, cost: CostModel):
        self.cores, self.cost = cores, cost
        self.numbers: dict[str, int] = {}
        self.sizes: list[int] = []
        self.stack: list[_Group] = [_Group()]

    # ------------------------------------------------------------------ structure

    def variable(self, name: str, size_bytes: int) -> int:
        """The number of a buffer of `size_bytes` a core."""
        if name not in self.numbers:
            self.numbers[name] = len(self.sizes)
            self.sizes.append(size_bytes)
        return self.numbers[name]

    @contextmanager
    def repeat(self, count: int) -> Iterator[None]:
        """What is added inside runs `count` times."""
        yield from self._nested(_Group(count))

    @contextmanager
    def operator(self, label: str, node: str) -> Iterator[None]:
        """What is added inside belongs to one execute."""
        yield from self._nested(_Group(label=label, node=node))

    def _nested(self, group: _Group) -> Iterator[None]:
        self.stack.append(group)
        yield
        self.stack.pop()
        if group.count > 0 and group.items:
            self.stack[-1].items.append(group)

    def _add(self, event: Leaf, kills: Sequence[str] = (), uses: Sequence[str] = ()) -> None:
        step = _Step(
            event,
            frozenset(self.numbers[n] for n in kills),
            frozenset(self.numbers[n] for n in uses),
        )
        self.stack[-1].items.append(step)

    # ------------------------------------------------------------------ HBM

    def preload(
        self,
        variable: str,
        name: str,
        layout: Layout,
        dtype: str,
        limit: tuple[int, int] | None,
        node: str,
    ) -> None:
        """Start filling `variable` from the HBM tensor `name`."""
        d = patterns.delivery(self.cores, layout, itemsize(dtype), limit)
        self._add(Preload(self.numbers[variable], name, d, node), kills=[variable])

    def wait(self, variable: str) -> None:
        """Wait for the preload into `variable`."""
        self._add(PreloadWait(self.numbers[variable]), uses=[variable])

    def store(self, variable: str, name: str, layout: Layout, dtype: str, node: str) -> None:
        """Start writing `variable` to the HBM tensor `name`."""
        d = patterns.delivery(self.cores, layout, itemsize(dtype))
        self._add(Store(self.numbers[variable], name, d, node), uses=[variable])

    def store_wait(self, variable: str) -> None:
        """Wait for the store from `variable`."""
        self._add(StoreWait(self.numbers[variable]), uses=[variable])

    # ------------------------------------------------------------------ exchanges

    def reshard(
        self,
        kind: str,
        source: str,
        source_layout: Layout,
        target: str,
        target_layout: Layout,
        dtype: str,
        axis: int | None = None,
        start: int = 0,
    ) -> None:
        """Move a tensor from one buffer's layout to another's; directly following ones join."""
        size = itemsize(dtype)
        traffic = patterns.reshard_traffic(
            self.cores, source_layout, target_layout, size, axis, start
        )
        span = max(source_layout.cores, target_layout.cores)
        partial = axis is not None
        kills = [] if partial else [target]
        uses = [source, target] if partial else [source]
        last = self.stack[-1].items[-1] if self.stack[-1].items else None
        reads, writes = self.numbers[source], self.numbers[target]
        if isinstance(last, _Step) and isinstance(last.event, Exchange):
            before = last.kills | last.uses
            # One phase, unless this one reads what that one writes.
            if reads not in last.kills and writes not in before and last.event.kind == kind:
                last.event = _joined(last.event, traffic, span)
                last.kills |= {self.numbers[n] for n in kills}
                last.uses |= {self.numbers[n] for n in uses}
                return
        self._add(Exchange(kind, traffic, span), kills, uses)

    def shift(self, moves: Sequence[Shift]) -> None:
        """One ring shift of all operands that rotate together: one exchange, then the copies from
        where the blocks landed to where they are read."""
        parts = tuple(
            patterns.shift_traffic(self.cores, m.used, m.mapping, m.step, m.size_bytes)
            for m in moves
        )
        landing, sources = [m.landing for m in moves], [m.source for m in moves]
        span = max(m.used for m in moves)
        traffic = patterns.merged_traffic(parts)
        self._add(Exchange("shift", traffic, span, beside=True), landing, sources)
        work = patterns.copy_work(self.cores, self.cost, span, [m.size_bytes for m in moves])
        self._compute("copy", work, (), [*landing, *(m.target for m in moves)])

    # ------------------------------------------------------------------ compute

    def fill(self, variable: str, used: int) -> None:
        """Fill a buffer on its `used` cores."""
        size = self.sizes[self.numbers[variable]]
        work = patterns.fill_work(self.cores, self.cost, used, size)
        self._compute("fill", work, [variable], ())

    def copy(self, source: str, target: str, used: int, size_bytes: int) -> None:
        """A copy within each core, into a part of `target`."""
        work = patterns.copy_work(self.cores, self.cost, used, [size_bytes])
        self._compute("copy", work, (), [source, target])

    def vertex(
        self,
        phase: str,
        op: Domain,
        iterate: Layout,
        ways: int,
        kills: Sequence[str],
        uses: Sequence[str],
    ) -> None:
        """A compute set of one phase of `op`."""
        work = patterns.vertex_work(self.cores, self.cost, op, phase, iterate, ways)
        self._compute(phase, work, kills, uses)

    def _compute(
        self, kind: str, work: patterns.Work, kills: Sequence[str], uses: Sequence[str]
    ) -> None:
        event = Compute(kind, work.cycles, work.sram_bytes, work.macs, work.flops, work.dtype)
        self._add(event, kills, uses)

    # ------------------------------------------------------------------ the end

    def finish(self) -> Timeline:
        """The timeline, with the bytes in use during every event."""
        (root,) = self.stack
        marks: dict[int, int] = {}
        self._liveness(root, frozenset(), marks)
        return Timeline(self.cores, _frozen(root.items, marks))

    def _liveness(
        self, group: _Group, after: frozenset[int], marks: dict[int, int]
    ) -> frozenset[int]:
        """Buffers live before `group` when `after` are live behind it; marks get the bytes live
        while each step runs. A loop's end is followed by its beginning."""
        around = after
        while True:
            live = around
            for item in reversed(group.items):
                if isinstance(item, _Group):
                    live = self._liveness(item, live, marks)
                else:
                    before = (live - item.kills) | item.uses
                    busy = before | live | item.kills
                    marks[id(item)] = sum(self.sizes[v] for v in busy)
                    live = before
            if group.count == 1 or live <= around:
                return live
            around |= live


def _joined(event: Exchange, traffic: Traffic, span: int) -> Exchange:
    merged = patterns.merged_traffic((event.traffic, traffic))
    return replace(event, traffic=merged, span=max(event.span, span))


def _frozen(items: Sequence[_Step | _Group], marks: dict[int, int]) -> tuple[Event, ...]:
    events: list[Event] = []
    for item in items:
        if isinstance(item, _Step):
            events.append(replace(item.event, live_bytes=marks[id(item)]))
        elif item.label is not None:
            events.append(Operator(item.label, item.node, _frozen(item.items, marks)))
        else:
            events.append(Repeat(item.count, _frozen(item.items, marks)))
    return tuple(events)
