"""Lifetimes as sections: the compressed form of a problem that the solvers work on."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from elk_ir.memory.lifetimes import Problem


@dataclass(frozen=True)
class Sections:
    """A problem reduced to integers; index i is a buffer of non-zero size and lifetime.

    A *section* is a maximal set of buffers that are live at one moment. Sections contained in
    others constrain nothing and are dropped. ``size`` is in bytes; ``rounded`` is ``size`` rounded
    up to the common divisor of all alignments (what the next buffer has to step over);
    ``align`` the alignment; ``fixed`` the fixed offset or -1.
    """

    names: tuple[str, ...]
    size: tuple[int, ...]
    rounded: tuple[int, ...]
    align: tuple[int, ...]
    fixed: tuple[int, ...]
    width: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    """Buffers of each section, sections in the order of time."""
    sections: tuple[tuple[int, ...], ...]
    """Sections of each buffer, ascending."""
    neighbours: tuple[tuple[int, ...], ...]
    """Buffers that share a section with each buffer, without itself, ascending."""
    lower_bound_bytes: int


def sections_of(problem: Problem) -> Sections:
    """Compress ``problem``; buffers without bytes or without lifetime are left out."""
    kept = [
        (buffer, problem.intervals(buffer)) for buffer in problem.buffers if buffer.size_bytes > 0
    ]
    kept = [(buffer, time) for buffer, time in kept if time]
    count = len(kept)
    step = gcd(*(b.alignment_bytes for b, _ in kept), *(b.fixed_offset_bytes or 0 for b, _ in kept))
    step = max(step, 1)
    size = tuple(buffer.size_bytes for buffer, _ in kept)
    rounded = tuple(-(-s // step) * step for s in size)
    members = _maximal_sections([time for _, time in kept])
    sections: list[list[int]] = [[] for _ in range(count)]
    adjacent: list[int] = [0] * count
    for index, section in enumerate(members):
        mask = sum(1 << i for i in section)
        for i in section:
            sections[i].append(index)
            adjacent[i] |= mask
    bound = max(
        (sum(rounded[i] for i in s) - max(rounded[i] - size[i] for i in s) for s in members),
        default=0,
    )
    tops = [(b.fixed_offset_bytes or 0) + b.size_bytes for b, _ in kept]
    return Sections(
        names=tuple(buffer.name for buffer, _ in kept),
        size=size,
        rounded=rounded,
        align=tuple(buffer.alignment_bytes for buffer, _ in kept),
        fixed=tuple(-1 if b.fixed_offset_bytes is None else b.fixed_offset_bytes for b, _ in kept),
        width=tuple(sum(end - begin for begin, end in time) for _, time in kept),
        members=members,
        sections=tuple(tuple(s) for s in sections),
        neighbours=tuple(_bits(adjacent[i] & ~(1 << i)) for i in range(count)),
        lower_bound_bytes=max(bound, max(tops, default=0)),
    )


def _maximal_sections(times: list[tuple[tuple[int, int], ...]]) -> tuple[tuple[int, ...], ...]:
    """The distinct sets of live buffers that are not contained in another one, by time."""
    events: dict[int, tuple[int, int]] = {}  # time -> buffers that start, buffers that end
    for index, intervals in enumerate(times):
        for begin, end in intervals:
            starts, ends = events.get(begin, (0, 0))
            events[begin] = (starts | 1 << index, ends)
            starts, ends = events.get(end, (0, 0))
            events[end] = (starts, ends | 1 << index)
    live = 0
    sets: list[int] = []
    moments = sorted(events)
    for position, moment in enumerate(moments):
        starts, ends = events[moment]
        live = live & ~ends | starts
        # Only just before something ends can the set of live buffers be a maximal one.
        if position + 1 < len(moments) and events[moments[position + 1]][1]:
            sets.append(live)
    kept: list[int] = []
    by_size = sorted(range(len(sets)), key=lambda s: -sets[s].bit_count())
    maximal: list[int] = []
    for s in by_size:
        if not any(sets[s] & ~sets[other] == 0 for other in maximal):
            maximal.append(s)
    kept = [sets[s] for s in sorted(maximal)]
    return tuple(_bits(mask) for mask in kept if mask)


def _bits(mask: int) -> tuple[int, ...]:
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
