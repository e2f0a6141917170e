"""An independent checker of byte addresses. It shares no code with the allocator.

Overlaps are found by sweeping the starts and ends of all lifetimes in the order of time while
keeping the live buffers sorted by address; the lifetimes themselves are derived here again from
the fields of `Buffer`, not taken from the helpers that the allocator uses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elk_ir.memory.lifetimes import Buffer, Problem

Kind = Literal["overlap", "out-of-capacity", "misaligned", "missing", "moved-fixed"]


@dataclass(frozen=True)
class Violation:
    """One broken rule; prints as a sentence.

    ``bytes_range`` and ``time_range`` are half-open and None where they make no sense (a missing
    buffer has no bytes). ``other`` is the second buffer of an overlap; ``expected`` the capacity,
    alignment or fixed offset that was not respected, in bytes.
    """

    kind: Kind
    name: str
    other: str | None = None
    bytes_range: tuple[int, int] | None = None
    time_range: tuple[int, int] | None = None
    expected: int | None = None

    def __str__(self) -> str:
        low, high = self.bytes_range or (0, 0)
        match self.kind:
            case "overlap":
                begin, end = self.time_range or (0, 0)
                return (
                    f"{self.name} and {self.other} share bytes [{low}, {high}) "
                    f"while both are live in time [{begin}, {end})."
                )
            case "out-of-capacity":
                return (
                    f"{self.name} occupies bytes [{low}, {high}) "
                    f"but the memory has only {self.expected} bytes."
                )
            case "misaligned":
                return f"{self.name} starts at byte {low}, not at a multiple of {self.expected}."
            case "moved-fixed":
                return f"{self.name} starts at byte {low} but is fixed at byte {self.expected}."
            case "missing":
                return f"{self.name} has no offset."


def _occupied(problem: Problem, buffer: Buffer) -> list[tuple[int, int]]:
    """The intervals of time in which ``buffer`` is live, written down from the definition."""
    start, end = buffer.start, buffer.end
    if problem.period is not None:
        low, high = 0, problem.period
        start, end = start % high, end % high
        if buffer.start == buffer.end and not buffer.cyclic:
            return []
    elif buffer.cyclic:
        bounds = [(x.end - x.start, x.start, x.end) for x in problem.loops if x.start <= start]
        _, low, high = min(b for b in bounds if start < b[2])
        if end > high:
            end -= high - low
    else:
        return [(start, end)] if start < end else []
    if start < end and (end < high or (buffer.entry is None and buffer.exit is None)):
        return [(start, end)]
    if end == high:
        end = low
    first = (low if buffer.entry is None else buffer.entry, end)
    second = (start, high if buffer.exit is None else buffer.exit)
    return [piece for piece in (first, second) if piece[0] < piece[1]]


def check(problem: Problem, offsets_bytes: Mapping[str, int]) -> list[Violation]:
    """Everything that is wrong with ``offsets_bytes`` (bytes, by name of the buffer).

    An empty list means that every buffer has an aligned offset within the capacity, fixed buffers
    are where they must be, and no two buffers that are live together share a byte. An overlapping
    pair is reported once, with the first common stretch of time.
    """
    found: list[Violation] = []
    events: list[tuple[int, int, int]] = []  # time, 0 ends / 1 starts, index of the buffer
    ranges: list[tuple[int, int]] = []
    for index, buffer in enumerate(problem.buffers):
        offset = offsets_bytes.get(buffer.name)
        if offset is None:
            found.append(Violation("missing", buffer.name))
            ranges.append((0, 0))
            continue
        here = (offset, offset + buffer.size_bytes)
        ranges.append(here)
        live = _occupied(problem, buffer)
        if offset < 0 or (live and here[1] > problem.capacity_bytes):
            found.append(
                Violation(
                    "out-of-capacity",
                    buffer.name,
                    bytes_range=here,
                    expected=problem.capacity_bytes,
                )
            )
        if buffer.fixed_offset_bytes is not None:
            if offset != buffer.fixed_offset_bytes:
                found.append(
                    Violation(
                        "moved-fixed",
                        buffer.name,
                        bytes_range=here,
                        expected=buffer.fixed_offset_bytes,
                    )
                )
        elif offset % buffer.alignment_bytes:
            found.append(
                Violation(
                    "misaligned", buffer.name, bytes_range=here, expected=buffer.alignment_bytes
                )
            )
        if buffer.size_bytes:
            for begin, end in _occupied(problem, buffer):
                events.append((begin, 1, index))
                events.append((end, 0, index))
    found.extend(_overlaps(problem, ranges, sorted(events)))
    return found


def _overlaps(
    problem: Problem, ranges: list[tuple[int, int]], events: list[tuple[int, int, int]]
) -> list[Violation]:
    found: list[Violation] = []
    reported: set[tuple[int, int]] = set()
    live: list[tuple[int, int, int]] = []  # first byte, end byte, index; sorted
    for time, starts, index in events:
        low, high = ranges[index]
        if not starts:
            live.remove((low, high, index))
            continue
        # Whoever shares a byte starts below `high`; buffers that are correct so far are disjoint,
        # but wrong ones may nest, so all of those below are looked at.
        for other_low, other_high, other in live[: bisect_left(live, (high, -1, -1))]:
            pair = (min(index, other), max(index, other))
            if other_high <= low or other == index or pair in reported:
                continue
            reported.add(pair)
            until = min(
                end
                for who in pair
                for begin, end in _occupied(problem, problem.buffers[who])
                if begin <= time < end
            )
            found.append(
                Violation(
                    "overlap",
                    problem.buffers[pair[0]].name,
                    problem.buffers[pair[1]].name,
                    bytes_range=(max(low, other_low), min(high, other_high)),
                    time_range=(time, until),
                )
            )
        insort(live, (low, high, index))
    return found


def peak(problem: Problem) -> tuple[int, int, tuple[Buffer, ...]]:
    """The first time of the most live bytes, these bytes, and the live buffers, largest first.

    No allocation is lower than these bytes. An empty problem has its peak at time 0.
    """
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        for begin, end in _occupied(problem, buffer):
            changes[begin] = changes.get(begin, 0) + buffer.size_bytes
            changes[end] = changes.get(end, 0) - buffer.size_bytes
    when, most, live = 0, 0, 0
    for time in sorted(changes):
        live += changes[time]
        if live > most:
            when, most = time, live
    there = [
        buffer
        for buffer in problem.buffers
        if any(begin <= when < end for begin, end in _occupied(problem, buffer))
    ]
    there.sort(key=lambda buffer: (-buffer.size_bytes, buffer.name))
    return when, most, tuple(there)
