"""Buffers, loops and the time they occupy: the input of byte-address allocation.

Time is a global, linear sequence of integers (program points). A program is straight-line code
with loops in it; a loop owns the half-open range ``[start, end)`` in which its body is written
down once, although it runs many times. Two kinds of buffers exist:

- a *linear* buffer is live over ``[start, end)``. Whatever is live across a loop covers its whole
  range;
- a *cyclic* buffer belongs to the software-pipelined body of a loop: written at ``start`` in one
  iteration and last read at ``end`` in the next, so it occupies ``[start, loop.end)`` and
  ``[loop.start, end)``. Its address is the same in every iteration, hence a lifetime is at most
  one period.

Either way the occupied time is a union of at most two half-open intervals, and two buffers may
share bytes exactly when these unions are disjoint. ``docs/memory.md`` describes the model.
"""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[int, int]
"""A half-open, non-empty range of time."""


@dataclass(frozen=True)
class Loop:
    """The range ``[start, end)`` of global time in which the body of a loop is written down."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"a loop must not be empty, got [{self.start}, {self.end})")

    @property
    def period(self) -> int:
        """Length of the body in units of time."""
        return self.end - self.start


@dataclass(frozen=True)
class Buffer:
    """``size_bytes`` bytes at one address, live from ``start`` until (not including) ``end``.

    ``cyclic`` buffers wrap around the innermost loop that contains ``start``: either ``end <=
    start`` (``end`` is a point of the next iteration; equal means the whole period), or ``end`` is
    beyond the loop's end and is folded back by one period. ``entry`` and ``exit`` extend a wrapping
    buffer beyond its loop: ``entry`` is when a prologue writes the value that the first iteration
    reads, ``exit`` when the code after the loop has read the value of the last iteration. The
    address is then the same before, in and after the loop.

    ``group`` names the operator that owns the buffer; messages use it.
    """

    name: str
    size_bytes: int
    start: int
    end: int
    fixed_offset_bytes: int | None = None
    alignment_bytes: int = 8
    group: str | None = None
    cyclic: bool = False
    entry: int | None = None
    exit: int | None = None

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError(f"buffer {self.name!r} has a negative size: {self.size_bytes}")
        if self.alignment_bytes < 1:
            raise ValueError(f"buffer {self.name!r}: alignment must be positive")
        if self.fixed_offset_bytes is not None and self.fixed_offset_bytes < 0:
            raise ValueError(f"buffer {self.name!r} is fixed at a negative offset")
        if not self.cyclic and self.end < self.start:
            raise ValueError(
                f"buffer {self.name!r} ends ({self.end}) before it starts ({self.start}); "
                "mark it cyclic if it lives on in the next iteration"
            )
        if not self.cyclic and (self.entry is not None or self.exit is not None):
            raise ValueError(f"buffer {self.name!r}: entry and exit are for cyclic buffers")

    def intervals(
        self, loops: tuple[Loop, ...] = (), period: int | None = None
    ) -> tuple[Interval, ...]:
        """The occupied time: at most two disjoint, non-empty intervals in ascending order.

        With ``period`` all time is one loop ``[0, period)`` and every buffer is cyclic in it.
        Raises ValueError when the buffer lives longer than one period, or is cyclic outside of
        any loop.
        """
        if period is not None:
            if self.end <= self.start and not self.cyclic:
                return ()
            return self._wrapped(Loop(0, period), self.start % period)
        if self.cyclic:
            return self._wrapped(self._innermost(loops), self.start)
        return ((self.start, self.end),) if self.start < self.end else ()

    def _innermost(self, loops: tuple[Loop, ...]) -> Loop:
        around = [loop for loop in loops if loop.start <= self.start < loop.end]
        if not around:
            raise ValueError(f"buffer {self.name!r} is cyclic but starts in no loop")
        return min(around, key=lambda loop: loop.period)

    def _wrapped(self, loop: Loop, start: int) -> tuple[Interval, ...]:
        length = self.end - self.start
        if length <= 0:
            length += loop.period
        if not 0 < length <= loop.period:
            raise ValueError(
                f"buffer {self.name!r} would live {length} units of time in a loop of "
                f"{loop.period}: more than one period needs more than one address"
            )
        end = start + length
        if end < loop.end or (end == loop.end and self.entry is None and self.exit is None):
            if self.entry is not None or self.exit is not None:
                raise ValueError(f"buffer {self.name!r} has entry or exit but does not wrap")
            return ((start, end),)
        head = (loop.start if self.entry is None else self.entry, end - loop.period)
        tail = (start, loop.end if self.exit is None else self.exit)
        if head[0] > loop.start or tail[1] < loop.end:
            raise ValueError(f"buffer {self.name!r}: entry and exit must lie outside of its loop")
        if head[0] >= head[1]:
            return (tail,)
        if head[1] >= tail[0]:
            return ((head[0], tail[1]),)
        return (head, tail)


@dataclass(frozen=True)
class Problem:
    """Buffers that share one memory of ``capacity_bytes``, and the loops their times refer to.

    ``period`` is a shorthand for programs that are nothing but one loop ``[0, period)``: all
    times are then taken modulo the period.
    """

    buffers: tuple[Buffer, ...]
    capacity_bytes: int
    period: int | None = None
    loops: tuple[Loop, ...] = ()

    def __post_init__(self) -> None:
        if self.capacity_bytes < 0:
            raise ValueError(f"negative capacity: {self.capacity_bytes}")
        if self.period is not None and self.loops:
            raise ValueError("give either one period for the whole program, or loops")
        if self.period is not None and self.period < 1:
            raise ValueError(f"the period must be positive, got {self.period}")
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.name in seen:
                raise ValueError(f"two buffers are named {buffer.name!r}")
            seen.add(buffer.name)

    def intervals(self, buffer: Buffer) -> tuple[Interval, ...]:
        """The time that ``buffer`` occupies in this problem (see `Buffer.intervals`)."""
        return buffer.intervals(self.loops, self.period)
