"""Systematic search for offsets that fit a capacity (see docs/memory.md, "The search").

Partial solutions grow from the bottom up. Every unplaced buffer has a lowest offset it can still
get; every section (set of buffers live at one time) has a floor, the smallest of these. One step
takes a section whose lowest buffers have nothing that could still slip below them, and branches on
which of them is placed at the floor, or on none: then each of them must come to rest on a buffer
that is not placed yet, which lifts its lowest offset. This is complete because any solution can be
pushed down until every buffer rests on another one or on the bottom of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elk_ir.memory.graph import Sections

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

Rule = Literal["lowest", "narrowest", "tightest", "mixed"]
"""Which section to decide next: the lowest floor, the fewest choices, the least slack, or least
slack plus a share of the floor. Each wins on some instances, so the caller varies them."""
RULES: tuple[Rule, ...] = ("lowest", "mixed", "narrowest", "tightest")


@dataclass(frozen=True, eq=False)
class _Part:
    """Buffers that still have to be placed and interact: n buffers, s sections, f memberships.

    ``ids`` are indices in the graph, in order of preference.
    """

    ids: Ints  # n
    size: Ints  # n, bytes, rounded up to the common alignment
    latest: Ints  # n, highest allowed offset, bytes
    align: Ints | None  # n, or None when rounded sizes keep all offsets aligned
    near: Bools  # n x n, whether two buffers are live together
    belongs: Bools  # n x s
    flat: Ints  # f, the members of all sections, one section after another
    starts: Ints  # s, where each section begins in flat
    flat_section: Ints  # f, the section of each entry of flat
    own: Ints  # f, the sections of all buffers, one buffer after another
    own_starts: Ints  # n, where each buffer begins in own
    sections: Ints  # s, indices in the graph
    wraps: Bools  # n, whether the buffer's time has a hole


@dataclass(frozen=True, eq=False)
class _Node:
    part: _Part
    lowest: Ints  # n, lowest possible offset; the capacity marks placed buffers
    rest: Ints  # s, unplaced bytes of each section
    links: Ints  # s - 1, unplaced buffers live on both sides of a border between sections
    left: int  # unplaced buffers


_Choice = tuple[_Node, int, Ints, Ints]
"""A node, the buffer placed (-1: none), and the lowest offsets and unplaced bytes after it."""


@dataclass(eq=False)
class _Any:
    """One of the choices has to work."""

    options: list[_Choice]
    position: int = 0


@dataclass(eq=False)
class _All:
    """Independent parts, each of which has to be solved."""

    options: list[_Node]
    position: int = 0


@dataclass(frozen=True)
class Outcome:
    """``offsets`` (bytes, by index) when solved; ``exhausted`` when proved to have no solution;
    neither when the steps ran out. ``blame`` counts, for each section, the branches it refuted."""

    offsets: list[int] | None
    exhausted: bool
    steps: int
    blame: Floats


class Search:
    """Looks for offsets of one graph within ``capacity_bytes``; `run` may be called repeatedly."""

    def __init__(self, graph: Sections, capacity_bytes: int) -> None:
        self._graph = graph
        self._capacity = capacity_bytes
        count = len(graph.size)
        exact = np.array(graph.size, dtype=np.int64)
        self._size = np.array(graph.rounded, dtype=np.int64)
        # Rounding up counts padding above the topmost buffer that need not exist.
        self._limit = capacity_bytes + int((self._size - exact).max(initial=0))
        fixed = np.array(graph.fixed, dtype=np.int64)
        pinned = fixed >= 0
        self._latest = np.where(pinned, np.minimum(fixed, capacity_bytes - exact), -1)
        self._latest[~pinned] = capacity_bytes - exact[~pinned]
        self._first = np.where(pinned, fixed, 0)
        self._align = np.where(pinned, 1, np.array(graph.align, dtype=np.int64))
        steps = set(self._align.tolist())
        self._uneven = any(
            value % step for step in steps for value in (*graph.rounded, *self._first.tolist())
        )
        self._belongs = np.zeros((count, len(graph.members)), dtype=bool)
        for index, section in enumerate(graph.members):
            self._belongs[list(section), index] = True
        self._near = np.zeros((count, count), dtype=bool)
        for index, others in enumerate(graph.neighbours):
            self._near[index, list(others)] = True
        starts = np.diff(self._belongs.astype(np.int8), axis=1, prepend=0) == 1
        self._wraps = starts.sum(axis=1) > 1
        self._offsets: list[int] = []
        self._blame: Floats = np.zeros(0)
        self._weight: Floats = np.zeros(0)
        self._rule: Rule = "lowest"

    def run(self, order: Sequence[int], rule: Rule, steps: int, weight: Floats) -> Outcome:
        """Depth-first search for at most ``steps`` nodes; buffers early in ``order`` go lower.

        ``weight``: for each section a share of the capacity that its slack is reduced by when
        ``rule`` compares sections.
        """
        self._blame = np.zeros(len(self._graph.members))
        self._offsets = [0] * len(self._graph.size)
        self._weight, self._rule = weight, rule
        if (self._first > self._latest).any():
            return Outcome(None, True, 0, self._blame)
        ids = np.array(order, dtype=np.int64)
        stack: list[_Any | _All] = [_All(self._split(self._root(ids, self._first[ids])))]
        answer: bool | None = None  # of the frame that was popped last
        used = 0
        while stack:
            frame = stack[-1]
            conjunction = isinstance(frame, _All)
            if answer is not None and answer != conjunction:
                stack.pop()
                continue
            if frame.position == len(frame.options):
                stack.pop()
                answer = conjunction
                continue
            answer = None
            frame.position += 1
            if isinstance(frame, _Any):
                stack.append(_All(self._apply(*frame.options[frame.position - 1])))
                continue
            used += 1
            if used > steps:
                return Outcome(None, False, steps, self._blame)
            stack.append(_Any(self._expand(frame.options[frame.position - 1])))
        return Outcome(self._offsets if answer else None, not answer, used, self._blame)

    def _root(self, ids: Ints, lowest: Ints) -> _Node:
        """All of ``ids`` unplaced, as arrays of their own."""
        belongs = self._belongs[ids]
        sections = np.flatnonzero(belongs.any(axis=0))
        belongs = belongs[:, sections]
        # A section contained in the one before or after it says nothing new.
        within_left = ~(belongs[:, 1:] & ~belongs[:, :-1]).any(axis=0)
        within_right = ~(belongs[:, :-1] & ~belongs[:, 1:]).any(axis=0)
        keep = np.ones(len(sections), dtype=bool)
        keep[1:] &= ~within_left
        keep[:-1] &= ~within_right | within_left
        sections, belongs = sections[keep], belongs[:, keep]
        flat_section, flat = np.nonzero(belongs.T)
        own_buffer, own = np.nonzero(belongs)
        part = _Part(
            ids=ids,
            size=self._size[ids],
            latest=self._latest[ids],
            align=self._align[ids] if self._uneven else None,
            near=self._near[np.ix_(ids, ids)],
            belongs=belongs,
            flat=flat,
            starts=np.searchsorted(flat_section, np.arange(len(sections))),
            flat_section=flat_section,
            own=own,
            own_starts=np.searchsorted(own_buffer, np.arange(len(ids))),
            sections=sections,
            wraps=self._wraps[ids],
        )
        rest = (belongs * part.size[:, None]).sum(axis=0)
        links = np.count_nonzero(belongs[:, :-1] & belongs[:, 1:], axis=0)
        return _Node(part, lowest, rest, links, len(ids))

    def _apply(self, node: _Node, buffer: int, lowest: Ints, rest: Ints) -> list[_Node]:
        """The parts that remain after a choice."""
        part = node.part
        if buffer < 0:
            return [_Node(part, lowest, rest, node.links, node.left)]
        self._offsets[int(part.ids[buffer])] = int(node.lowest[buffer])
        row = part.belongs[buffer]
        links = node.links - (row[:-1] & row[1:])
        child = _Node(part, lowest, rest, links, node.left - 1)
        falls_apart = np.count_nonzero(links) < np.count_nonzero(node.links)
        if falls_apart or child.left < 0.6 * len(part.ids):
            return self._split(child)
        return [child]

    def _split(self, node: _Node) -> list[_Node]:
        """Independent parts of a node, smallest first; lone buffers are placed at once."""
        part = node.part
        live = np.flatnonzero(node.lowest < self._capacity)
        if not len(live):
            return []
        borders = np.flatnonzero(node.links == 0)
        belongs = part.belongs[live]
        piece = np.searchsorted(borders, belongs.argmax(axis=1), side="left")
        wraps = np.flatnonzero(part.wraps[live])
        if len(wraps):
            # A buffer with a hole in its time ties the pieces on both sides together.
            last = belongs.shape[1] - 1 - belongs[wraps, ::-1].argmax(axis=1)
            label = np.arange(len(borders) + 1)
            far = np.searchsorted(borders, last, side="left")
            for one, other in zip(piece[wraps].tolist(), far.tolist(), strict=True):
                label[label == label[other]] = label[one]
            piece = label[piece]
        nodes: list[_Node] = []
        for group in (live[piece == p] for p in np.unique(piece)):
            if len(group) == 1:
                self._offsets[int(part.ids[group[0]])] = int(node.lowest[group[0]])
            elif len(group) == len(part.ids):
                nodes.append(node)
            else:
                nodes.append(self._root(part.ids[group], node.lowest[group]))
        return sorted(nodes, key=lambda item: item.left)

    def _expand(self, node: _Node) -> list[_Choice]:
        """The choices for one section that are not refuted at once, preferred ones first."""
        part, lowest, capacity = node.part, node.lowest, self._capacity
        top = lowest + part.size
        np.putmask(top, lowest >= capacity, 2 * capacity + 1)
        chosen = self._lowest_of_one_section(node, top)
        number = len(chosen)
        rows = np.arange(number)
        # A row for each choice: all others come to lie above; the last row is "none of them".
        table = np.empty((number + 1, len(lowest)), dtype=np.int64)
        near = part.near[chosen]
        np.maximum(lowest, np.where(near, top[chosen][:, None], 0), out=table[:number])
        table[number] = lowest
        table[number, chosen] = np.where(near, top, 2 * capacity + 1).min(axis=1)
        if part.align is not None:
            table = -(-table // part.align) * part.align
        late = (table > part.latest) & (lowest < capacity)
        late[rows, chosen] = False
        np.minimum(table, capacity, out=table)
        table[rows, chosen] = capacity
        rest = np.empty((number + 1, len(node.rest)), dtype=np.int64)
        rest[:number] = node.rest - part.belongs[chosen] * part.size[chosen][:, None]
        rest[number] = node.rest
        need = np.minimum.reduceat(table.take(part.flat, axis=1), part.starts, axis=1) + rest
        fits = need.max(axis=1) <= self._limit
        if not fits.all():
            worst = part.sections[need[~fits].argmax(axis=1)]
            np.add.at(self._blame, worst, 1.0 / (number + 1))
        fits &= ~late.any(axis=1)
        return [
            (node, int(chosen[k]) if k < number else -1, table[k], rest[k])
            for k in np.flatnonzero(fits).tolist()
        ]

    def _lowest_of_one_section(self, node: _Node, top: Ints) -> Ints:
        """The unplaced buffers at the floor of the section to decide next, preferred ones first.

        ``top``: for each buffer the lowest possible end, beyond the capacity when placed.
        """
        part, lowest, capacity = node.part, node.lowest, self._capacity
        members = lowest[part.flat]
        floor = np.minimum.reduceat(members, part.starts)
        at_floor = members == floor[part.flat_section]
        # The lowest end of any neighbour: at or below the offset, it could slip under the buffer.
        ceiling = np.minimum.reduceat(top[part.flat], part.starts)
        under = np.minimum.reduceat(ceiling[part.own], part.own_starts)
        loose = (under <= lowest)[part.flat] & at_floor
        # The section with the lowest floor of all is never barred, so there is always one.
        barred = np.logical_or.reduceat(loose, part.starts) | (floor >= capacity)
        slack = (self._limit - node.rest - floor) / capacity - self._weight[part.sections]
        match self._rule:
            case "lowest":
                score = 1e6 * (floor / capacity) + slack
            case "mixed":
                score = 0.3 * (floor / capacity) + slack
            case "narrowest":
                count = np.add.reduceat(at_floor, part.starts, dtype=np.int64)
                score = count + (slack > 0) + slack
            case "tightest":
                score = slack
        np.putmask(score, barred, np.inf)
        section = int(score.argmin())
        begin = int(part.starts[section])
        end = int(part.starts[section + 1]) if section + 1 < len(part.starts) else len(part.flat)
        return part.flat[begin:end][at_floor[begin:end]]
