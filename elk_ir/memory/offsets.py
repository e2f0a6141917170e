"""Byte addresses for buffers with known lifetimes (see docs/memory.md).

`allocate` tries a portfolio of first-fit orders, which takes milliseconds; only when none of them
fits the capacity does a systematic search run (`elk_ir.memory.search`), restarted with different
rules, orders and section weights. Effort is counted in search steps, never in wall-clock time, so
the same problem and seed give the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elk_ir.errors import CapacityError
from elk_ir.memory.check import peak
from elk_ir.memory.graph import Sections, sections_of
from elk_ir.memory.lifetimes import Buffer, Problem
from elk_ir.memory.search import RULES, Floats, Search

STEPS_PER_SECOND = 3000
"""Search steps that a second of budget buys; measured on one slow core, 150 to 450 buffers."""

FIRST_TRY_STEPS = 800
"""Steps of the first search; the limit then grows (an unlucky start is left early)."""


@dataclass(frozen=True)
class Allocation:
    """Offsets by buffer name, the bytes they span, and how good that is.

    ``optimal``: no lower height exists (proved). ``lower_bound_bytes``: no allocation is lower; it
    is the largest live total, the top of a fixed buffer, or what an exhausted search has refuted.
    ``steps``: search steps spent, 0 when first fit was good enough.
    """

    offsets_bytes: dict[str, int]
    height_bytes: int
    optimal: bool
    lower_bound_bytes: int
    steps: int = 0


def allocate(
    problem: Problem,
    *,
    time_budget_s: float = 10.0,
    seed: int = 0,
    require_fit: bool = False,
    minimize: bool = False,
) -> Allocation:
    """Offsets for all buffers of ``problem``, within its capacity if the search can find them.

    ``time_budget_s`` is converted to a number of steps (`STEPS_PER_SECOND`). Without ``minimize``
    the first allocation that fits is returned; with it, the rest of the budget goes into lowering
    the height. If nothing fits, the lowest allocation found is returned (the first-fit one when the
    live bytes alone exceed the capacity), or with ``require_fit`` CapacityError is raised.
    Raises ValueError when fixed buffers overlap each other.
    """
    graph = sections_of(problem)
    _refuse_fixed_overlaps(graph)
    state = _first(graph)
    steps = int(time_budget_s * STEPS_PER_SECOND)
    goal = state.bound if minimize else problem.capacity_bytes
    # Without `minimize` a search is pointless when even the live bytes exceed the capacity.
    if state.height > goal >= state.bound:
        state = _lower(graph, state, goal, problem.capacity_bytes, steps, seed)
        if state.height > problem.capacity_bytes >= state.bound:
            state = _loops_first(problem, state, steps, seed)
    if require_fit and state.height > problem.capacity_bytes:
        raise _does_not_fit(problem, state)
    named = {buffer.name: buffer.fixed_offset_bytes or 0 for buffer in problem.buffers}
    named.update(zip(graph.names, state.offsets, strict=True))
    return Allocation(named, state.height, state.height <= state.bound, state.bound, state.used)


def _loops_first(problem: Problem, state: _State, steps: int, seed: int) -> _State:
    """``state``, or what is lower: the buffers that live in loops get their offsets alone, and what
    is around them theirs beside these. Loops are the tightest part of a program as a rule, and what
    is around them has no end of orders in which they do not fit."""
    within, around = loop_buffers(problem)
    if not within or not around:
        return state
    inner = sections_of(replace(problem, buffers=within))
    found = _placed(inner, problem.capacity_bytes, steps, seed)
    if found.height > problem.capacity_bytes:
        return replace(state, used=state.used + found.used)
    known = dict(zip(inner.names, found.offsets, strict=True))
    pinned = tuple(
        replace(b, fixed_offset_bytes=known.get(b.name, b.fixed_offset_bytes))
        for b in problem.buffers
    )
    whole = _placed(
        sections_of(replace(problem, buffers=pinned)), problem.capacity_bytes, steps, seed
    )
    used = state.used + found.used + whole.used
    if whole.height >= state.height:
        return replace(state, used=used)
    return _State(whole.offsets, whole.height, state.bound, used)


def _placed(graph: Sections, capacity: int, steps: int, seed: int) -> _State:
    """Offsets within the capacity, or the lowest first fit where none are found."""
    state = _first(graph)
    if state.height > capacity >= state.bound:
        found, _, used = _solve(graph, capacity, steps, seed)
        if found is not None:
            return _State(found, _height(graph, found), state.bound, used)
        state = replace(state, used=used)
    return state


def _first(graph: Sections) -> _State:
    """The lowest of a few first fits."""
    offsets = min(
        (first_fit(graph, order) for order in _greedy_orders(graph)),
        key=lambda found: _height(graph, found),
    )
    return _State(offsets, _height(graph, offsets), graph.lower_bound_bytes)


def loop_buffers(problem: Problem) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """The buffers that live at some time of a loop, and the others."""
    within = {
        b.name
        for b in problem.buffers
        if any(
            start < loop.end and loop.start < end
            for start, end in problem.intervals(b)
            for loop in problem.loops
        )
    }
    return (
        tuple(b for b in problem.buffers if b.name in within),
        tuple(b for b in problem.buffers if b.name not in within),
    )


def first_fit(graph: Sections, order: Iterable[int]) -> list[int]:
    """Place each buffer of ``order`` at the lowest free address; fixed ones are there already."""
    size, align, neighbours = graph.size, graph.align, graph.neighbours
    offsets = list(graph.fixed)  # -1: not placed yet
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


@dataclass(frozen=True)
class _State:
    """The best offsets so far, their height, the proven bound, and the steps spent."""

    offsets: list[int]
    height: int
    bound: int
    used: int = 0


def _height(graph: Sections, offsets: Sequence[int]) -> int:
    return max((o + s for o, s in zip(offsets, graph.size, strict=True)), default=0)


def _lower(
    graph: Sections, state: _State, goal: int, capacity: int, steps: int, seed: int
) -> _State:
    """Lower ``state`` to ``goal``, or as far as the steps allow.

    The capacity comes first, then the goal itself, then heights halfway between what failed and
    what is known.
    """
    attempt = max(capacity, state.bound) if state.height > capacity else goal
    failed = goal - 1  # the largest height that was given up
    while state.height > max(goal, state.bound) and state.used < steps:
        share = steps // 8
        if attempt == capacity:
            share = (steps - state.used) * 3 // 4 + 1
        elif attempt == goal:
            share = (steps - state.used + 1) // 2
        found, refuted, used = _solve(graph, attempt, min(share, steps - state.used), seed)
        bound = max(state.bound, attempt + 1) if refuted else state.bound
        if found is not None:
            state = _State(found, _height(graph, found), bound, state.used + used)
        else:
            state = _State(state.offsets, state.height, bound, state.used + used)
            failed = max(failed, attempt)
        low = max(failed + 1, bound, goal)
        if failed < goal:
            attempt = goal
        elif state.height - low < max(1, state.height // 500) and not refuted:
            break
        else:
            attempt = (low + state.height - 1) // 2
    return state


def _solve(
    graph: Sections, height: int, steps: int, seed: int
) -> tuple[list[int] | None, bool, int]:
    """Offsets within ``height`` bytes, whether there are none (proved), and the steps spent.

    Restarts: every rule with every order, ties between sections going to the earlier or the later
    one, twice; then orders by tightness in which sections count for more the more branches they
    have refuted. Step limits double after each round.
    """
    search = Search(graph, height)
    random = np.random.default_rng(seed)
    totals = np.array([sum(graph.size[i] for i in section) for section in graph.members])
    tightness = totals / max(1, height)
    blame: Floats = np.zeros(len(graph.members))
    late: Floats = np.linspace(0.0, 1e-5, len(graph.members))  # only breaks ties
    used, limit, attempt = 0, FIRST_TRY_STEPS, 0
    plain = _search_orders(graph, tightness)
    combinations = 2 * len(RULES) * len(plain)
    while used < steps:
        which, rule = divmod(attempt % (combinations // 2), len(RULES))
        ties = late if attempt // (combinations // 2) % 2 else 0 * late
        if attempt < 2 * combinations:
            order, weight = plain[which], ties
        else:
            scale = blame / max(float(blame.max()), 1e-9)
            bias = 0.3 * scale * random.random(len(scale))
            order, weight = _search_orders(graph, tightness + 2 * bias)[which], bias + ties
        outcome = search.run(order, RULES[rule], min(limit, steps - used), weight)
        used += outcome.steps
        if outcome.offsets is not None or outcome.exhausted:
            return outcome.offsets, outcome.exhausted, used
        blame = 0.8 * blame + outcome.blame / max(float(outcome.blame.sum()), 1e-9)
        attempt += 1
        if attempt % combinations == 0:
            limit *= 2
    return None, False, used


def _greedy_orders(graph: Sections) -> list[list[int]]:
    """Largest first, largest area first, longest first, earliest first."""
    everyone = range(len(graph.size))
    size, width = graph.size, graph.width
    return [
        sorted(everyone, key=lambda i: (-size[i], -width[i], i)),
        sorted(everyone, key=lambda i: (-size[i] * width[i], i)),
        sorted(everyone, key=lambda i: (-width[i], -size[i], i)),
        sorted(everyone, key=lambda i: (graph.sections[i][0], -size[i], i)),
    ]


def _search_orders(graph: Sections, tightness: np.ndarray) -> list[list[int]]:
    """Tightest section first, then longest or largest area; ``tightness`` is by section."""
    everyone = range(len(graph.size))
    width = graph.width
    area = [s * w for s, w in zip(graph.size, width, strict=True)]
    tight = [max(tightness[s] for s in sections) for sections in graph.sections]
    return [
        sorted(everyone, key=lambda i: (-tight[i], -width[i], -area[i], i)),
        sorted(everyone, key=lambda i: (-tight[i], -area[i], -width[i], i)),
    ]


def _refuse_fixed_overlaps(graph: Sections) -> None:
    for i, offset in enumerate(graph.fixed):
        for j in graph.neighbours[i]:
            if offset < 0 or j >= i or graph.fixed[j] < 0:
                continue
            if offset < graph.fixed[j] + graph.size[j] and graph.fixed[j] < offset + graph.size[i]:
                raise ValueError(f"fixed buffers {graph.names[j]!r} and {graph.names[i]!r} overlap")


def _does_not_fit(problem: Problem, state: _State) -> CapacityError:
    _, live_bytes, live = peak(problem)
    owner = next((buffer.group for buffer in live if buffer.group), None)
    if live_bytes > problem.capacity_bytes:
        hint = "less must be live at once: a plan that holds less, or fewer preloads at a time"
    else:
        hint = (
            f"the live bytes fit ({live_bytes}), their addresses do not: shrink or drop "
            f"{state.height - problem.capacity_bytes} bytes, or allow more search"
        )
    return CapacityError(
        operator=owner or (live[0].name if live else "program"),
        core=None,
        needed_bytes=state.height,
        available_bytes=problem.capacity_bytes,
        largest=tuple((buffer.name, buffer.size_bytes) for buffer in live[:5]),
        hint=hint,
    )
