"""Byte addresses for buffers with known lifetimes (see docs/memory.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elk_ir.memory.graph import Sections, sections_of
from elk_ir.memory.lifetimes import Problem


@dataclass(frozen=True)
class Allocation:
    """Offsets by buffer name, the bytes they span, and how good that is.

    ``optimal`` means that no lower height exists (proved); ``lower_bound_bytes`` is the proven
    bound: the largest live total, or the top of a fixed buffer.
    """

    offsets_bytes: dict[str, int]
    height_bytes: int
    optimal: bool
    lower_bound_bytes: int


def first_fit(graph: Sections, order: Iterable[int]) -> list[int]:
    """Place each buffer of ``order`` at the lowest free address; fixed ones are placed first."""
    count = len(graph.size)
    offsets = [-1] * count
    for i in range(count):
        if graph.fixed[i] >= 0:
            offsets[i] = graph.fixed[i]
    size, align, neighbours = graph.size, graph.align, graph.neighbours
    for i in order:
        if graph.fixed[i] >= 0:
            continue
        taken = sorted([(offsets[j], size[j]) for j in neighbours[i] if offsets[j] >= 0])
        at, step, need = 0, align[i], size[i]
        for low, length in taken:
            if low >= at + need:
                break
            if low + length > at:
                at = -(-(low + length) // step) * step
        offsets[i] = at
    return offsets


def allocate(
    problem: Problem,
    *,
    time_budget_s: float | None = None,
    seed: int = 0,
    require_fit: bool = False,
) -> Allocation:
    """Offsets for all buffers of ``problem``.

    Raises CapacityError if ``require_fit`` and the result does not fit the capacity.
    """
    del time_budget_s, seed
    graph = sections_of(problem)
    best: list[int] = []
    best_height = -1
    for order in _orders(graph):
        offsets = first_fit(graph, order)
        height = max((o + s for o, s in zip(offsets, graph.size, strict=True)), default=0)
        if best_height < 0 or height < best_height:
            best, best_height = offsets, height
    named = {b.name: b.fixed_offset_bytes or 0 for b in problem.buffers}
    named.update(zip(graph.names, best, strict=True))
    height = max(best_height, 0)
    if require_fit and height > problem.capacity_bytes:
        raise _does_not_fit(problem, height)
    return Allocation(named, height, height <= graph.lower_bound_bytes, graph.lower_bound_bytes)


def _orders(graph: Sections) -> list[list[int]]:
    everyone = range(len(graph.size))
    size, width = graph.size, graph.width
    return [
        sorted(everyone, key=lambda i: (-size[i], -width[i], i)),
        sorted(everyone, key=lambda i: (-size[i] * width[i], i)),
        sorted(everyone, key=lambda i: (-width[i], -size[i], i)),
        sorted(everyone, key=lambda i: (graph.sections[i][0], -size[i], i)),
    ]


def _does_not_fit(problem: Problem, height: int) -> Exception:
    from elk_ir.errors import CapacityError
    from elk_ir.memory.check import peak

    _, live_bytes, live = peak(problem)
    owner = next((buffer.group for buffer in live if buffer.group), None)
    return CapacityError(
        operator=owner or (live[0].name if live else "program"),
        core=None,
        needed_bytes=max(height, live_bytes),
        available_bytes=problem.capacity_bytes,
        largest=tuple((buffer.name, buffer.size_bytes) for buffer in live[:5]),
        hint="use a plan with less execution space, or fewer preloads at once",
    )
