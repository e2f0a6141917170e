"""What no schedule of a choice of plans can beat: the bounds of `elk_ir.schedule.exhaustive`.

Every second of a schedule runs an execute, lands a preload, does both, or neither. With A and P the
seconds of what is left, each alone, and f the part of a turn of execute i during which the preload
of j > i lands,

    time = A + P + idle - sum f * saved,    sum over j of f <= 1,    sum over i of f * moved <= P_j

where `moved` is what lands of j's preload beside the whole turn, and `saved` is what the two take
less than one after the other (`overlap`: exact under all `Rules`). For prices v_j >= 0 of preload
seconds, sum f * saved <= sum P_j * v_j + sum over turns of max over j of (saved - moved * v_j)+.

Only what has been issued can land beside execute i, and it waits there until its own execute: the
set S_i of later operators fits beside execute i, and S_i without i + 1 is part of S_(i+1). The
largest sum over all chains of such sets is found operator by operator from the last (`savings`),
which bounds the time for any prices; `ascend` looks for good ones. That preloads land in a queue,
each in one piece, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elk_ir.schedule.model import (
    Clock,
    Load,
    Program,
    Rules,
    Turn,
    load_of,
    loads_of,
    shared,
)


@dataclass(frozen=True, eq=False)
class Choices:
    """C choices of plans of n operators, side by side. Sets of operators behind operator i are
    numbers whose bit b stands for operator i + 1 + b.

    alone_s, preload_s (n, C): executes and preloads (0: none). fits: per operator i, which sets
    fit beside its execute, (2^(n - 1 - i), C). saved_s, moved_s: per operator i, `overlap` of its
    turns with later preloads, (turns, n - 1 - i, C). latency_s: idle before the first execute.
    """

    alone_s: np.ndarray
    preload_s: np.ndarray
    fits: tuple[np.ndarray, ...]
    saved_s: tuple[np.ndarray, ...]
    moved_s: tuple[np.ndarray, ...]
    latency_s: float

    def take(self, columns: np.ndarray) -> Choices:
        """Those at `columns`."""
        return replace(
            self,
            alone_s=self.alone_s[:, columns],
            preload_s=self.preload_s[:, columns],
            fits=tuple(a[:, columns] for a in self.fits),
            saved_s=tuple(a[..., columns] for a in self.saved_s),
            moved_s=tuple(a[..., columns] for a in self.moved_s),
        )


def overlap(rules: Rules, turn: Turn, load: Load) -> tuple[float, float]:
    """Seconds that a whole turn with the preload of `load` landing beside it takes less than one
    after the other, and preload seconds that land."""
    if not load.loads or load.preload_s <= 0.0:
        return 0.0, 0.0
    landing = load.landing_s / load.preload_s
    busy, moved = turn.compute_s, 0.0
    if rules.beside_compute:
        busy = moved = turn.compute_s * (1.0 + rules.steal * landing)
    if turn.exchange_s > 0.0:
        x_p, x_e = shared(rules, landing, turn.ingress)
        busy += turn.exchange_s / x_e
        moved += turn.exchange_s / x_e * x_p
    return turn.compute_s + turn.exchange_s + moved - busy, moved


def beside_bytes(program: Program, choice: Sequence[int]) -> list[int]:
    """Bytes for waiting preloads beside every execute; negative where it does not fit itself."""
    room = []
    for op, c in zip(program.ops, choice, strict=True):
        left = program.rules.capacity_bytes - op.resident_bytes - int(op.table.execute_bytes[c])
        separate = program.rules.separate_sram and left >= 0
        room.append(program.rules.capacity_bytes if separate else left)
    return room


def side_by_side(program: Program, choices: Sequence[Sequence[int]]) -> Choices:
    """What the bounds need of all `choices`."""
    count, width = len(program.ops), len(choices)
    loads = [[load_of(program, choice, i) for choice in choices] for i in range(count)]
    tables = [op.table for op in program.ops]
    columns = np.asarray(choices, dtype=np.int64).reshape(width, count).T
    room = np.asarray([beside_bytes(program, c) for c in choices]).reshape(width, count).T
    known: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    fits, saved, moved = [], [], []
    for i in range(count):
        later = range(i + 1, count)
        held = np.zeros((1, width))
        for j in later:
            size = tables[j].preload_bytes[columns[j]] * program.ops[j].loads
            held = np.concatenate([held, held + size])
        fits.append(held <= room[i])
        turns = max(len(load.turns) for load in loads[i])
        pairs = np.zeros((2, turns, len(later), width))
        for j in later:
            for c, (one, other) in enumerate(zip(loads[i], loads[j], strict=True)):
                key = (id(one), j, choices[c][j])
                if key not in known:
                    known[key] = [overlap(program.rules, turn, other) for turn in one.turns]
                for t, pair in enumerate(known[key]):
                    pairs[:, t, j - i - 1, c] = pair
        saved.append(pairs[0])
        moved.append(pairs[1])
    return Choices(
        np.asarray([[load.alone_s for load in row] for row in loads]),
        np.asarray([[load.preload_s * load.loads for load in row] for row in loads]),
        tuple(fits),
        tuple(saved),
        tuple(moved),
        program.rules.latency_s * program.ops[0].loads if count else 0.0,
    )


def savings(choices: Choices, prices: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What overlap saves from execute i on, net of prices (n, C), when at least a set waits in
    front of it: per operator, (2^(n - 1 - i), C), -inf where the set cannot wait; and which sets
    wait beside execute i then."""
    count, width = prices.shape
    most: list[np.ndarray] = []
    sets: list[np.ndarray] = []
    after = np.zeros((1, width))
    for i in reversed(range(count)):
        net = choices.saved_s[i] - choices.moved_s[i] * prices[i + 1 :]
        best = np.zeros((net.shape[0], 1, width))
        for b in range(count - 1 - i):
            best = np.concatenate([best, np.maximum(best, net[:, b : b + 1])], axis=1)
        total = best.sum(axis=0) + after.repeat(2, axis=0)[: best.shape[1]]
        total[~choices.fits[i]] = -np.inf
        chosen = np.arange(len(total))[:, None].repeat(width, axis=1)
        for b in range(count - 1 - i):
            value, which = total.reshape(-1, 2, 1 << b, width), chosen.reshape(-1, 2, 1 << b, width)
            more = value[:, 1] > value[:, 0]
            np.copyto(value[:, 0], value[:, 1], where=more)
            np.copyto(which[:, 0], which[:, 1], where=more)
        most.append(total)
        sets.append(chosen)
        after = total
    return most[::-1], sets[::-1]


def bounds(choices: Choices, prices: np.ndarray, saved: np.ndarray) -> np.ndarray:
    """The least time of each choice, (C,): A + P - what prices and `savings` (C,) allow."""
    alone = choices.alone_s.sum(axis=0) + choices.latency_s
    return alone + (choices.preload_s * (1.0 - prices)).sum(axis=0) - saved


def ascend(choices: Choices, steps: int, enough_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (C,) and their prices (n, C), by `steps` of projected subgradients; choices whose
    bound is `enough_s` are left as they are."""
    count, width = choices.preload_s.shape
    # Nothing runs before the first execute that the first preload could land beside.
    prices = np.full((count, width), 0.5)
    prices[:1] = 0.0
    found, best = np.full(width, -np.inf), prices.copy()
    active = np.arange(width)
    for step in range(steps):
        saved, sets = savings(choices, prices)
        reached = bounds(choices, prices, saved[0][0] if count else np.zeros(width))
        better = reached > found[active]
        found[active[better]] = reached[better]
        best[:, active[better]] = prices[:, better]
        slope = _landed(choices, prices, sets) - choices.preload_s
        keep = found[active] < enough_s
        if not keep.any():
            break
        if not keep.all():
            active, choices = active[keep], choices.take(keep)
            prices, slope = prices[:, keep], slope[:, keep]
        length = np.sqrt((slope[1:] ** 2).sum(axis=0))
        size = 0.5 / (1.0 + step / 5.0) / np.maximum(length, 1e-30)
        prices[1:] = np.clip(prices[1:] + size * slope[1:], 0.0, 1.0)
    return found, best


def _landed(choices: Choices, prices: np.ndarray, sets: list[np.ndarray]) -> np.ndarray:
    """Preload seconds (n, C) that land beside executes where `savings` is reached."""
    count, width = prices.shape
    landed = np.zeros((count, width))
    columns, held = np.arange(width), np.zeros(width, dtype=np.int64)
    for i in range(count - 1):
        held = sets[i][held, columns]
        waits = held >> np.arange(count - 1 - i)[:, None] & 1
        net = (choices.saved_s[i] - choices.moved_s[i] * prices[i + 1 :]) * waits
        which = net.argmax(axis=1)
        for turn, j in enumerate(which):
            moved = choices.moved_s[i][turn, j, columns] * (net[turn, j, columns] > 0.0)
            landed[i + 1 + j, columns] += moved
        held = held >> 1
    return landed


@dataclass(frozen=True, eq=False)
class Rest:
    """One choice of plans, and the least time of what is left of its schedules.

    Lists by operator: sizes, room: bytes of its preload, and for others beside its execute. work_s:
    its preload; beside_s: the same net of its price. alone_s: executes from it on. saved_s: by what
    waits, `savings`. all: the operators with a preload, bit j: operator j.
    """

    program: Program
    choice: tuple[int, ...]
    loads: list[Load]
    sizes: list[int]
    room: list[int]
    work_s: list[float]
    beside_s: list[float]
    alone_s: list[float]
    saved_s: list[list[float]]
    all: int

    @staticmethod
    def of(program: Program, choice: tuple[int, ...], prices: np.ndarray) -> Rest:
        """`prices` (n) of preload seconds are those that make the bounds."""
        loads = loads_of(program, choice)
        work = [load.preload_s * load.loads for load in loads]
        saved, _ = savings(side_by_side(program, [choice]), prices[:, None])
        return Rest(
            program,
            choice,
            loads,
            [
                int(op.table.preload_bytes[c]) * op.loads
                for op, c in zip(program.ops, choice, strict=True)
            ],
            beside_bytes(program, choice),
            work,
            [s * (1.0 - v) for s, v in zip(work, prices.tolist(), strict=True)],
            [sum(load.alone_s for load in loads[i:]) for i in range(len(loads))],
            [table[:, 0].tolist() for table in saved],
            sum(1 << j for j, load in enumerate(loads) if load.loads),
        )

    def bound(self, i: int, issued: int, clock: Clock) -> float:
        """The least time in the end, in front of execute i, with the preloads of the set `issued`
        issued: what must land before it, and latency, is waited for; what else is left can land
        beside executes, at its price."""
        if i == len(self.loads):
            return clock.now
        bound = clock.now + self.alone_s[i] - self.saved_s[i][issued >> (i + 1)]
        unissued = self.all & ~issued
        bound += sum(s for j, s in enumerate(self.beside_s) if j > i and unissued >> j & 1)
        ahead = any(j == i for j, _ in clock.queue)
        if unissued >> i & 1:  # behind everything in the queue
            ahead = True
            bound += self.work_s[i]
            if not clock.queue:
                bound += self.program.rules.latency_s
        if ahead and clock.queue:
            bound += max(0.0, clock.queue[0][1] - clock.now)
        left = clock.left
        for j, _ in clock.queue:
            bound += left * (self.work_s[j] if ahead else self.beside_s[j])
            left = 1.0
            ahead = ahead and j != i
        return bound
