"""Byte-address allocation: lifetimes, the checker, and the allocator against both."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elk_ir.errors import CapacityError
from elk_ir.memory import offsets
from elk_ir.memory.check import check, peak
from elk_ir.memory.lifetimes import Buffer, Loop, Problem
from elk_ir.memory.offsets import allocate

LOOP = Loop(4, 12)


@st.composite
def buffers(draw: st.DrawFn, index: int) -> Buffer:
    size = draw(st.integers(0, 40))
    align = draw(st.sampled_from([1, 4, 8, 8, 8]))
    name = f"b{index}"
    if draw(st.booleans()):
        start = draw(st.integers(0, 14))
        end = draw(st.integers(start, 15))
        return Buffer(name, size, start, end, alignment_bytes=align)
    start = draw(st.integers(LOOP.start, LOOP.end - 1))
    length = draw(st.integers(1, LOOP.period))
    wraps = start + length > LOOP.end
    return Buffer(
        name,
        size,
        start,
        start + length - (LOOP.period if wraps and draw(st.booleans()) else 0),
        alignment_bytes=align,
        cyclic=True,
        entry=draw(st.sampled_from([None, 2])) if wraps else None,
        exit=draw(st.sampled_from([None, 13])) if wraps else None,
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 14) -> Problem:
    count = draw(st.integers(0, most))
    found = tuple(draw(buffers(index)) for index in range(count))
    if draw(st.integers(0, 3)) == 0:
        found = (Buffer("pinned", 24, 0, 15, fixed_offset_bytes=16), *found)
    return Problem(found, draw(st.sampled_from([64, 100, 160, 1000])), loops=(LOOP,))


def occupied_points(problem: Problem, buffer: Buffer) -> set[int]:
    return {t for begin, end in problem.intervals(buffer) for t in range(begin, end)}


@settings(max_examples=100, deadline=None)
@given(problems())
def test_allocation_never_violates_the_checker(problem: Problem) -> None:
    found = allocate(problem, time_budget_s=0.02)
    wrong = check(problem, found.offsets_bytes)
    if found.height_bytes <= problem.capacity_bytes:
        assert wrong == []
    assert {violation.kind for violation in wrong} <= {"out-of-capacity"}
    assert found.lower_bound_bytes <= found.height_bytes
    assert peak(problem)[1] <= found.height_bytes
    assert found == allocate(problem, time_budget_s=0.02)


@settings(max_examples=100, deadline=None)
@given(problems(), st.data())
def test_checker_agrees_with_brute_force(problem: Problem, data: st.DataObject) -> None:
    offsets = {b.name: 4 * data.draw(st.integers(0, 30)) for b in problem.buffers}
    points = {b.name: occupied_points(problem, b) for b in problem.buffers}
    space = {
        b.name: set(range(offsets[b.name], offsets[b.name] + b.size_bytes)) for b in problem.buffers
    }
    expected = {
        frozenset((a.name, b.name))
        for a in problem.buffers
        for b in problem.buffers
        if a.name < b.name and points[a.name] & points[b.name] and space[a.name] & space[b.name]
    }
    overlaps = [v for v in check(problem, offsets) if v.kind == "overlap"]
    assert {frozenset((v.name, v.other)) for v in overlaps} == expected
    assert len(overlaps) == len(expected)
    for violation in overlaps:
        assert violation.time_range and violation.bytes_range and violation.other
        times = set(range(*violation.time_range))
        assert times and times <= points[violation.name] & points[violation.other]
        shared = space[violation.name] & space[violation.other]
        assert set(range(*violation.bytes_range)) == shared


@settings(max_examples=100, deadline=None)
@given(problems())
def test_peak_agrees_with_brute_force(problem: Problem) -> None:
    totals = [
        sum(b.size_bytes for b in problem.buffers if t in occupied_points(problem, b))
        for t in range(16)
    ]
    when, live_bytes, live = peak(problem)
    assert live_bytes == max(totals)
    assert sum(b.size_bytes for b in live) == totals[when] == live_bytes
    assert [b.size_bytes for b in live] == sorted((b.size_bytes for b in live), reverse=True)


def minimum_height(problem: Problem) -> int:
    """Brute force: with alignment 1, first fit in some order is optimal."""
    live = [(b, occupied_points(problem, b)) for b in problem.buffers]
    live = [(b, points) for b, points in live if points]
    best = sum(b.size_bytes for b, _ in live)
    for order in permutations(live):
        placed: list[tuple[int, int, set[int]]] = []
        for buffer, points in order:
            at = 0
            for low, high in sorted((x, y) for x, y, others in placed if points & others):
                if low >= at + buffer.size_bytes:
                    break
                at = max(at, high)
            placed.append((at, at + buffer.size_bytes, points))
        best = min(best, max((high for _, high, _ in placed), default=0))
    return best


@settings(max_examples=80, deadline=None)
@given(st.lists(buffers(0), min_size=1, max_size=6))
def test_tiny_problems_are_solved_to_optimality(found: list[Buffer]) -> None:
    plain = tuple(
        replace(buffer, name=f"b{index}", alignment_bytes=1) for index, buffer in enumerate(found)
    )
    best = minimum_height(Problem(plain, 1 << 20, loops=(LOOP,)))
    found_best = allocate(Problem(plain, 1 << 20, loops=(LOOP,)), minimize=True)
    assert (found_best.height_bytes, found_best.optimal) == (best, True)
    assert allocate(Problem(plain, best, loops=(LOOP,))).height_bytes == best
    if best:
        assert allocate(Problem(plain, best - 1, loops=(LOOP,))).lower_bound_bytes == best


@settings(max_examples=100, deadline=None)
@given(problems(10), st.integers(0, 3))
def test_search_obeys_alignment_and_fixed_offsets(problem: Problem, seed: int) -> None:
    found = allocate(problem, minimize=True, seed=seed, time_budget_s=0.1)
    wrong = check(replace(problem, capacity_bytes=found.height_bytes), found.offsets_bytes)
    assert wrong == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(4, 40))
def test_guillotine_cuts_are_put_together_again(seed: int, pieces: int) -> None:
    """A full rectangle of time and bytes, cut into pieces, fits with no byte to spare."""
    random = Random(seed)
    boxes = [(0, 24, 0, 1 << 10)]
    while len(boxes) < pieces:
        begin, end, low, high = boxes.pop(random.randrange(len(boxes)))
        if random.random() < 0.5 and end - begin > 1:
            cut = random.randrange(begin + 1, end)
            boxes += [(begin, cut, low, high), (cut, end, low, high)]
        elif high - low > 1:
            cut = random.randrange(low + 1, high)
            boxes += [(begin, end, low, cut), (begin, end, cut, high)]
        else:
            boxes.append((begin, end, low, high))
    random.shuffle(boxes)
    problem = Problem(
        tuple(Buffer(f"b{k}", h - o, s, e, None, 1) for k, (s, e, o, h) in enumerate(boxes)),
        1 << 10,
    )
    found = allocate(problem)
    assert check(problem, found.offsets_bytes) == []
    assert found.height_bytes == 1 << 10 and found.optimal


def test_injected_errors_are_found() -> None:
    """Moving a buffer of a full memory by any amount breaks a rule, and the checker says which."""
    problem = Problem(
        tuple(Buffer(f"b{k}", 32, k % 3, 3 + k % 2, group="g") for k in range(8)), 256
    )
    found = allocate(problem)
    assert check(problem, found.offsets_bytes) == []
    for name, offset in found.offsets_bytes.items():
        for moved in (offset - 8, offset + 8, offset + 4):
            broken = {**found.offsets_bytes, name: moved}
            assert any(name in (v.name, v.other) for v in check(problem, broken))


SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "minimalloc"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the instances in ../shared/data/minimalloc")
@pytest.mark.parametrize("instance", "ADEFHIJ")  # the benchmark runs all eleven
def test_hard_instances_fit_their_capacity(instance: str) -> None:
    with open(SHARED / f"{instance}.1048576.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    problem = Problem(
        tuple(Buffer(r["id"], int(r["size"]), int(r["lower"]), int(r["upper"])) for r in rows),
        1 << 20,
    )
    found = allocate(problem, time_budget_s=60, require_fit=True)
    assert check(problem, found.offsets_bytes) == []


def crowded(seed: int) -> Problem:
    """A loop that carries buffers, and many short-lived ones around it."""
    random = Random(seed)
    found: list[Buffer] = []
    for k in range(random.randint(6, 9)):
        start, length = random.randrange(20, 60), random.randint(8, 30)
        size = random.randint(1, 9) * 64
        if start + length > 60:
            entry, exit_ = random.randrange(2, 20), random.randrange(60, 80)
            found.append(
                Buffer(f"c{k}", size, start, start + length, cyclic=True, entry=entry, exit=exit_)
            )
        else:
            found.append(Buffer(f"c{k}", size, start, start + length))
    for k in range(random.randint(14, 24)):
        start = random.choice([random.randrange(0, 18), random.randrange(60, 90)])
        end = min(start + random.randint(3, 12), 20 if start < 20 else 100)
        found.append(Buffer(f"o{k}", random.randint(1, 9) * 64, start, end))
    problem = Problem(tuple(found), 1, loops=(Loop(20, 60),))
    return replace(problem, capacity_bytes=peak(problem)[1])


def test_what_lives_in_loops_is_placed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few steps, some programs that fit without a byte to spare fit only that way."""
    problems = [crowded(seed) for seed in range(60)]
    allocated = [allocate(p, time_budget_s=0.01) for p in problems]
    for problem, found in zip(problems, allocated, strict=True):
        wrong = check(replace(problem, capacity_bytes=found.height_bytes), found.offsets_bytes)
        assert not wrong
    fits = sum(a.height_bytes <= p.capacity_bytes for a, p in zip(allocated, problems, strict=True))
    monkeypatch.setattr(offsets, "_loops_first", lambda _problem, state, *_: state)
    alone = [allocate(p, time_budget_s=0.01) for p in problems]
    assert all(a.height_bytes <= b.height_bytes for a, b in zip(allocated, alone, strict=True))
    assert fits > sum(
        a.height_bytes <= p.capacity_bytes for a, p in zip(alone, problems, strict=True)
    )


def test_intervals_of_linear_and_cyclic_buffers() -> None:
    loops = (LOOP,)
    assert Buffer("a", 1, 2, 20).intervals(loops) == ((2, 20),)
    assert Buffer("a", 1, 2, 2).intervals(loops) == ()
    assert Buffer("a", 1, 10, 6, cyclic=True).intervals(loops) == ((4, 6), (10, 12))
    assert Buffer("a", 1, 10, 14, cyclic=True).intervals(loops) == ((4, 6), (10, 12))
    assert Buffer("a", 1, 6, 10, cyclic=True).intervals(loops) == ((6, 10),)
    assert Buffer("a", 1, 6, 6, cyclic=True).intervals(loops) == ((4, 12),)
    carried = Buffer("a", 1, 10, 6, cyclic=True, entry=1, exit=13)
    assert carried.intervals(loops) == ((1, 6), (10, 13))
    assert Buffer("a", 1, 8, 11).intervals(period=10) == ((0, 1), (8, 10))
    assert Buffer("a", 1, 18, 21).intervals(period=10) == ((0, 1), (8, 10))
    assert Buffer("a", 1, 3, 13).intervals(period=10) == ((0, 10),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loop(3, 3), "a loop must not be empty, got [3, 3)"),
        (lambda: Buffer("a", -1, 0, 1), "'a' has a negative size: -1"),
        (lambda: Buffer("a", 1, 0, 1, alignment_bytes=0), "'a': alignment must be positive"),
        (lambda: Buffer("a", 1, 0, 1, fixed_offset_bytes=-8), "is fixed at a negative offset"),
        (lambda: Buffer("a", 1, 3, 1), "ends (1) before it starts (3)"),
        (lambda: Buffer("a", 1, 1, 3, entry=0), "entry and exit are for cyclic buffers"),
        (lambda: Buffer("a", 1, 1, 3, exit=9), "entry and exit are for cyclic buffers"),
        (lambda: Buffer("a", 1, 0, 11).intervals(period=10), "more than one period needs"),
        (lambda: Buffer("a", 1, 1, 2, cyclic=True).intervals((LOOP,)), "but starts in no loop"),
        (lambda: Buffer("a", 1, 5, 14, cyclic=True).intervals((LOOP,)), "live 9 units of time"),
        (
            lambda: Buffer("a", 1, 5, 8, cyclic=True, entry=1).intervals((LOOP,)),
            "has entry or exit but does not wrap",
        ),
        (
            lambda: Buffer("a", 1, 8, 6, cyclic=True, entry=5).intervals((LOOP,)),
            "entry and exit must lie outside of its loop",
        ),
        (
            lambda: Buffer("a", 1, 8, 6, cyclic=True, exit=11).intervals((LOOP,)),
            "entry and exit must lie outside of its loop",
        ),
        (lambda: Problem((), -8), "negative capacity: -8"),
        (lambda: Problem((), 8, period=0), "the period must be positive, got 0"),
        (
            lambda: Problem((Buffer("a", 1, 0, 1), Buffer("a", 1, 0, 1)), 8),
            "two buffers are named 'a'",
        ),
        (lambda: Problem((), 8, period=4, loops=(LOOP,)), "either one period"),
        (
            lambda: allocate(
                Problem(tuple(Buffer(n, 8, 0, 2, fixed_offset_bytes=0) for n in "ab"), 64)
            ),
            "fixed buffers 'a' and 'b' overlap",
        ),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_cyclic_buffers_share_bytes_only_where_they_do_not_meet() -> None:
    weights = Buffer("w_next", 64, 10, 6, cyclic=True)
    inside = Buffer("scratch", 64, 6, 10)
    after = Buffer("head", 64, 11, 12)
    fits = allocate(Problem((weights, inside), 64, loops=(LOOP,)))
    assert fits.height_bytes == 64 and fits.optimal
    assert allocate(Problem((weights, after), 64, loops=(LOOP,))).height_bytes == 128


def test_the_checker_names_every_kind_of_error() -> None:
    problem = Problem(
        (
            Buffer("a", 16, 0, 4),
            Buffer("b", 16, 2, 6),
            Buffer("c", 8, 0, 6),
            Buffer("d", 8, 0, 6, fixed_offset_bytes=40),
            Buffer("e", 8, 0, 6),
        ),
        64,
    )
    wrong = check(problem, {"a": 0, "b": 8, "c": 57, "d": 48})
    assert [(v.kind, v.name, v.other) for v in wrong] == [
        ("out-of-capacity", "c", None),
        ("misaligned", "c", None),
        ("moved-fixed", "d", None),
        ("missing", "e", None),
        ("overlap", "a", "b"),
    ]
    assert str(wrong[-1]) == ("a and b share bytes [8, 16) while both are live in time [2, 4).")
    assert all(str(v).endswith(".") for v in wrong)


def test_what_does_not_fit_is_an_error_only_on_request() -> None:
    problem = Problem((Buffer("a", 48, 0, 2, group="proj"), Buffer("b", 32, 1, 3)), 64)
    assert allocate(problem).height_bytes == 80
    with pytest.raises(CapacityError, match="proj"):
        allocate(problem, require_fit=True)
