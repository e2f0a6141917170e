"""What a simulation leaves behind: slices, utilisation segments and operators, loops folded.

A frame is one pass over a loop's body (or the program) in its own time, which begins at 0. Frames
nest, and a frame that was extrapolated stands for `count` equal ones in a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Slice(NamedTuple):
    """A bar of the trace. `track`: hbm, network or execute; times in seconds of the frame."""

    track: str
    name: str
    node: str
    start_s: float
    end_s: float
    detail: str


class Segment(NamedTuple):
    """A stretch of constant rates: parts of HBM and network bandwidth in use, of the cores that
    compute, and bytes of SRAM in use on a core."""

    start_s: float
    end_s: float
    hbm: float
    network: float
    compute: float
    live_bytes: int


class Row(NamedTuple):
    """One operator: when it began and ended, and where its time went, by what bounded it."""

    label: str
    node: str
    start_s: float
    end_s: float
    bounded_by: str
    spent_s: tuple[tuple[str, float], ...]


@dataclass
class Frame:
    """Records of one pass. `inner`: (start, count, period, frame) of the loops' passes."""

    slices: list[Slice] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    inner: list[tuple[float, int, float, Frame]] = field(default_factory=list)

    def segment(self, segment: Segment) -> None:
        """Append a segment, or lengthen the last one if nothing changed."""
        last = self.segments[-1] if self.segments else None
        if last is not None and last[2:] == segment[2:] and last.end_s == segment.start_s:
            self.segments[-1] = last._replace(end_s=segment.end_s)
        else:
            self.segments.append(segment)

    def passes(self, start_s: float = 0.0) -> Iterator[tuple[float, Frame]]:
        """This frame and all inside it, unfolded: (start in program time, frame), in order of
        their starts within each level."""
        yield start_s, self
        for begin, count, period, frame in self.inner:
            for i in range(count):
                yield from frame.passes(start_s + begin + i * period)
