"""`elk-full`: elk-dyn over the orders in which preloads may be issued.

Only heavy loaders are permuted, within one layer, and all identical layers have the same order.
Orders grow one preload at a time; one in which some execute has to hold more than fits before its
own preload is issued is dropped with all that begin like it. Those that are left are ranked with
the plans of the unpermuted schedule, and the scheduler runs on the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from elk_ir.errors import CapacityError
from elk_ir.schedule.allocate import Fronts, Weights
from elk_ir.schedule.fill import fill
from elk_ir.schedule.inductive import elk_dyn, unhindered
from elk_ir.schedule.model import Program, Schedule, evaluate

HEAVY = 0.02
"""Heavy loaders: at least this part of the bytes that all preloads read."""
DISPLACED = 4
"""The most places by which a heavy loader moves."""
RANKED = 512
"""Orders of a layer that are ranked; an eighth of them where no loop repeats the result."""
SCHEDULED = 6
"""Orders that the scheduler runs on; a third of them there."""


def elk_full(program: Program, weights: Weights, first: Schedule | None = None) -> Schedule:
    """The best schedule over preload orders. first: what elk_dyn finds, if that is known. Raises
    CapacityError where elk_dyn does."""
    best = elk_dyn(program, weights) if first is None else first
    times = evaluate(program, best)
    time = times.time_s
    if program.ops and unhindered(program, Fronts.of(program, weights), best, times):
        return best
    ranked: list[tuple[float, tuple[int, ...]]] = []
    most, scheduled = (RANKED, SCHEDULED) if program.periodic else (RANKED // 8, SCHEDULED // 3)
    for order in islice(orders(program, best.choice), most):
        schedule = fill(program, best.choice, order)
        if schedule is not None:
            ranked.append((evaluate(program, schedule).time_s, tuple(order)))
            if ranked[-1][0] < time:
                time, best = ranked[-1][0], schedule
    ranked.sort()
    for _, order in ranked[:scheduled]:
        try:
            schedule = elk_dyn(program, weights, order=order, slacks=(0.1,))
        except CapacityError:
            continue  # with this order some execute has no room, with the first one all have
        found = evaluate(program, schedule).time_s
        if found < time:
            time, best = found, schedule
    return best


def reordered(program: Program, choice: Sequence[int]) -> Schedule | None:
    """With plans given, the best order and places of preloads; None if no order fits."""
    best: tuple[float, Schedule] | None = None
    start = fill(program, choice)
    if start is not None:
        best = (evaluate(program, start).time_s, start)
    for order in islice(orders(program, choice), RANKED):
        schedule = fill(program, choice, order)
        if schedule is None:
            continue
        time = evaluate(program, schedule).time_s
        if best is None or time < best[0] * (1.0 - 1e-9):
            best = (time, schedule)
    return None if best is None else best[1]


def heavy_loaders(program: Program) -> list[int]:
    """The operators whose preloads are worth moving, in order."""
    total = sum(op.table.hbm_s for op in program.ops if op.loads)
    return [i for i, op in enumerate(program.ops) if op.loads and op.table.hbm_s > HEAVY * total]


def orders(program: Program, choice: Sequence[int]) -> Iterator[list[int]]:
    """Orders of all preloads in which heavy loaders change places, the others staying in front of
    the heavy loader that they precede. Valid ones only, nearest to the given order first."""
    heavy = heavy_loaders(program)
    for most in range(1, DISPLACED + 1):
        for permutation in _permutations(program, choice, heavy, most, [], set()):
            if max((abs(k - p) for k, p in enumerate(permutation)), default=0) == most:
                yield _expanded(program, heavy, permutation)


def _expanded(program: Program, heavy: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """All operators: light ones keep their place relative to executes, so each is issued before
    the first heavy loader in the new order that executes after it."""
    order: list[int] = []
    light = [i for i in range(len(program.ops)) if i not in set(heavy)]
    for place, p in enumerate(permutation):
        rest = [heavy[q] for q in permutation[place:]]
        first = min(rest)
        while light and light[0] < first:
            order.append(light.pop(0))
        order.append(heavy[p])
    return order + light


def _permutations(
    program: Program,
    choice: Sequence[int],
    heavy: Sequence[int],
    most: int,
    begun: list[int],
    used: set[int],
) -> Iterator[list[int]]:
    """Permutations by inductive extension, pruned by displacement and by memory."""
    place = len(begun)
    if place == len(heavy):
        yield list(begun)
        return
    for p in range(len(heavy)):
        if p in used or abs(p - place) > most:
            continue
        if not _holds(program, choice, heavy, [*begun, p]):
            continue
        begun.append(p)
        used.add(p)
        yield from _permutations(program, choice, heavy, most, begun, used)
        begun.pop()
        used.discard(p)


def _holds(
    program: Program, choice: Sequence[int], heavy: Sequence[int], begun: Sequence[int]
) -> bool:
    """Whether what the order begins with fits: the operators that it issues ahead of their turn
    wait while those that are passed over execute, in their smallest states and plans."""
    last = begun[-1]
    i = heavy[last]
    early = [heavy[p] for p in begun[:-1] if p > last]
    if not early:
        return True
    table = program.ops[i].table
    held = sum(int(program.ops[j].table.preload_bytes.min()) for j in early)
    own = int(table.execute_bytes.min()) + program.ops[i].resident_bytes
    return held + own <= program.rules.capacity_bytes


def edit_distance(order: Sequence[int]) -> float:
    """Mean number of places by which preloads of `order` are away from the order of executes."""
    ranked = sorted(order)
    if not ranked:
        return 0.0
    place = {j: k for k, j in enumerate(ranked)}
    return sum(abs(place[j] - k) for k, j in enumerate(order)) / len(ranked)
