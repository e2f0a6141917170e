"""The scheduler's model of a program: operators, their options, and how long an order takes.

Rules (docs/scheduling.md): preloads run one after another in the order of issue; an execute blocks
every later preload and execute; a preload blocks only its own execute. Within an execute, compute
and exchange alternate so finely that they progress together; while its exchanges run, a preload
shares the ingress port with them as the chip says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.schedule.options import Table


@dataclass(frozen=True)
class Rules:
    """What the evaluation of a schedule depends on, of a chip."""

    capacity_bytes: int
    barrier_s: float
    """Both barriers of an exchange phase."""
    latency_s: float
    """From the issue of a preload to its first byte, if the queue is empty."""
    exchange_first: bool
    separate_network: bool
    separate_sram: bool
    beside_compute: bool
    """Preloads land while tiles compute."""
    steal: float
    """Slowdown of compute for each unit of landing rate over port rate; 0 where landing is free."""
    static_w: float = 0.0

    @staticmethod
    def of(chip: Chip) -> Rules:
        """The rules of `chip`."""
        net = chip.network
        latency = chip.hbm.latency_s if chip.hbm is not None else 0.0
        steal = 0.0
        if chip.landing_steals_sram:
            steal = net.port_in_bytes_per_s / chip.local_sram_bytes_per_s
        return Rules(
            capacity_bytes=chip.usable_sram_per_core_bytes,
            barrier_s=2.0 * chip.sync_s + net.transfer_latency_cycles / chip.clock_hz,
            latency_s=latency + net.transfer_latency_cycles / chip.clock_hz,
            exchange_first=net.transfer_sharing == "exchange-first",
            separate_network=net.preload_network == "separate",
            separate_sram=chip.preload_sram == "separate",
            beside_compute=chip.preload_during_compute,
            steal=steal,
            static_w=chip.energy.static_power_per_chip_w * chip.chips,
        )


class Edge(NamedTuple):
    """Where a resident operand comes from: (operator, result), -1 for outside of the program.
    `back`: the operator of the previous iteration."""

    producer: int
    result: int
    back: bool = False


@dataclass(frozen=True, eq=False)
class Op:
    """One operator: its options, and where its resident operands come from.

    resident_bytes: what tensors of others take while it runs. loads: it has preloads.
    smallest_bytes: the least execute_bytes of any plan at all, for the message when none fits.
    earliest: the first place at which its preload may be issued; -1: anywhere, and in a periodic
    program also an iteration ahead. ahead: its preload must be issued an iteration ahead.
    phases: exchange phases of re-layouts and inserted entries, each with its barriers. single: at
    most one tensor is preloaded.
    """

    label: str
    table: Table
    inputs: tuple[Edge, ...] = ()
    loads: bool = True
    resident_bytes: int = 0
    smallest_bytes: int = 0
    earliest: int = -1
    ahead: bool = False
    phases: int = 0
    single: bool = False


class Store(NamedTuple):
    """What is written to HBM on the queue of the preloads, and waited for after one execute.

    place: the first execute in front of which it can be issued (the number of operators: behind
    the last one, and waited for at once). seconds: of HBM. movable: whether it may be issued later.
    """

    place: int
    seconds: float
    movable: bool = True


@dataclass(frozen=True, eq=False)
class Program:
    """Operators in order; `periodic`: the whole list is the body of a loop."""

    ops: tuple[Op, ...]
    rules: Rules
    periodic: bool = False
    stores: tuple[Store, ...] = ()
    repeats: int = 16
    """Iterations of the loop: what finding a better body is worth."""
    addresses_bytes: int | None = None
    """Bytes within which preloads of a loop must find addresses (`elk_ir.schedule.pack`); None as
    long as nobody has seen that room alone does not do."""
    copies: int = 1
    """Of the list in the body of the loop, each with addresses of its own (`elk_ir.schedule.fold`).
    """
    readers: tuple[tuple[tuple[int, int], ...], ...] = field(init=False)
    """Per operator, (reader, its input) of each of its results."""
    makers: tuple[tuple[int, ...], ...] = field(init=False)
    """Per operator, itself and the operators that make its resident operands."""
    known: list[dict[tuple[int, ...], Load]] = field(init=False, repr=False)
    """Loads by operator and the choices that they depend on."""

    def __post_init__(self) -> None:
        found: list[list[tuple[int, int]]] = [[] for _ in self.ops]
        for i, op in enumerate(self.ops):
            for e, edge in enumerate(op.inputs):
                if edge.producer >= 0:
                    found[edge.producer].append((i, e))
        object.__setattr__(self, "readers", tuple(tuple(r) for r in found))
        makers = (
            (i, *(e.producer for e in op.inputs if e.producer >= 0))
            for i, op in enumerate(self.ops)
        )
        object.__setattr__(self, "makers", tuple(makers))
        object.__setattr__(self, "known", [{} for _ in self.ops])

    @cached_property
    def key(self) -> object:
        """Equal for programs of which every schedule takes equally long and equally many bytes, as
        long as their tables exist; they may differ in the addresses asked for."""
        ops = tuple(
            (
                id(op.table),
                op.inputs,
                op.loads,
                op.resident_bytes,
                op.earliest,
                op.ahead,
                op.phases,
                op.single,
            )
            for op in self.ops
        )
        return ops, self.rules, self.periodic, self.stores

    @property
    def addresses_key(self) -> object:
        """What is asked for of the addresses."""
        return None if self.addresses_bytes is None else (self.addresses_bytes, self.copies)


class Turn(NamedTuple):
    """A part of an execute: compute and an exchange that alternate finely, or one of them.

    ingress: the part of the ingress port that the exchange alone fills.
    """

    compute_s: float
    exchange_s: float
    ingress: float = 1.0


class Load(NamedTuple):
    """One operator with its plan chosen, and those of its neighbours known."""

    compute_s: float
    exchange_s: float
    """Rings, distribution and reduction: they fill the ingress port."""
    relayout_s: float
    ingress_s: float
    """What re-layouts occupy the ingress port for; at most relayout_s."""
    preload_s: float
    landing_s: float
    loads: bool
    turns: tuple[Turn, ...] = ()
    """What an execute does, in order; together compute_s, exchange_s and relayout_s."""

    @property
    def alone_s(self) -> float:
        """The time of its execute without preloads beside it."""
        return self.compute_s + self.exchange_s + self.relayout_s


def load_of(program: Program, choice: Sequence[int], i: int) -> Load:
    """Operator i under `choice`, re-layouts of its operands included."""
    key = tuple([choice[k] for k in program.makers[i]])
    found = program.known[i].get(key)
    if found is None:
        found = program.known[i][key] = _load(program, choice, i)
    return found


def _load(program: Program, choice: Sequence[int], i: int) -> Load:
    op = program.ops[i]
    table, c = op.table, choice[i]
    relayout = ingress = 0.0
    for e, edge in enumerate(op.inputs):
        into = float(table.slice_s[e, c])
        out = 0.0
        if edge.producer >= 0:
            piece = program.ops[edge.producer].table.pieces[edge.result, choice[edge.producer]]
            out = float(table.spread[e, c] * piece)
        relayout += max(into, out)
        ingress += into
    compute = float(table.compute_s[c]) + op.phases * program.rules.barrier_s
    exchange = float(table.exchange_s[c])
    return Load(
        compute,
        exchange,
        relayout,
        ingress,
        float(table.preload_s[c]),
        float(table.landing_s[c]),
        op.loads,
        _turns(table, c, compute, exchange, Turn(0.0, relayout, ingress / max(relayout, 1e-30))),
    )


def _turns(
    table: Table, c: int, compute: float, exchange: float, relayout: Turn
) -> tuple[Turn, ...]:
    """The parts of an execute: re-layouts, distribution, tiles with their rings, reduction, and
    what is left to be computed behind it."""
    before = behind = closing = 0.0
    if table.turns_s is not None:
        before, behind, closing = table.turns_s[:, c].tolist()
    found = (
        relayout,
        Turn(0.0, before),
        Turn(compute - closing, max(0.0, exchange - before - behind)),
        Turn(0.0, behind),
        Turn(closing, 0.0),
    )
    return tuple(t for t in found if t.compute_s + t.exchange_s > 0.0)


def loads_of(program: Program, choice: Sequence[int]) -> list[Load]:
    """All operators under `choice`."""
    return [load_of(program, choice, i) for i in range(len(program.ops))]


Loads = Sequence[Load] | Mapping[int, Load]
"""The loads of all operators, by number."""

# ---------------------------------------------------------------------- time


@dataclass
class Clock:
    """The state of an evaluation: the time, and the queue of preloads.

    queue: operators whose preloads have been issued and not landed, with their time of first byte;
    left: the part of the first one that has not landed.
    """

    now: float = 0.0
    queue: list[tuple[int, float]] = field(default_factory=list)
    left: float = 1.0
    landed: set[int] = field(default_factory=set)

    def copy(self) -> Clock:
        """An independent copy."""
        return Clock(self.now, list(self.queue), self.left, set(self.landed))


def shared(rules: Rules, landing: float, ingress: float) -> tuple[float, float]:
    """Rates (parts of its own speed) of a preload that alone uses `landing` of the ingress port,
    and an exchange that alone uses `ingress` of it."""
    if rules.separate_network or landing + ingress <= 1.0:
        return 1.0, 1.0
    if rules.exchange_first or ingress <= 0.5:
        return (1.0 - ingress) / landing, 1.0
    if landing <= 0.5:
        return 1.0, (1.0 - landing) / ingress
    return 0.5 / landing, 0.5 / ingress


def issue(clock: Clock, loads: Loads, j: int, rules: Rules) -> None:
    """Issue the preload of operator j."""
    if loads[j].loads:
        clock.queue.append((j, clock.now + rules.latency_s))


def wait(clock: Clock, loads: Loads, j: int) -> None:
    """Until the preload of operator j has landed, nothing else running."""
    if not loads[j].loads:
        return
    while j not in clock.landed:
        head, start = clock.queue.pop(0)
        clock.now = max(clock.now, start) + clock.left * loads[head].preload_s
        clock.left = 1.0
        clock.landed.add(head)
    clock.landed.discard(j)


def execute(clock: Clock, loads: Loads, i: int, rules: Rules) -> None:
    """Wait for operator i's preload, then run it, preloads landing meanwhile."""
    load = loads[i]
    if load.loads:
        wait(clock, loads, i)
    for k, turn in enumerate(load.turns):
        if not clock.queue:
            clock.now += sum(t.compute_s + t.exchange_s for t in load.turns[k:])
            return
        _take(clock, loads, turn, rules)


def _take(clock: Clock, loads: Loads, turn: Turn, rules: Rules) -> None:
    """A part of an execute, preloads landing meanwhile."""
    compute, exchange, ingress = turn
    whole = compute + exchange
    todo = 1.0
    while todo > 0.0:
        if not clock.queue:
            clock.now += todo * whole
            return
        head, start = clock.queue[0]
        if clock.now < start:
            part = min(todo, (start - clock.now) / whole)
            clock.now += part * whole
            todo -= part
            if part * whole < 1e-15:
                clock.queue[0] = (head, clock.now)
            continue
        preload, landing = loads[head].preload_s, loads[head].landing_s
        if preload <= 0.0:
            clock.queue.pop(0)
            clock.left = 1.0
            clock.landed.add(head)
            continue
        landing /= preload
        busy, moved = compute * (1.0 + rules.steal * landing), 0.0
        if rules.beside_compute:
            moved = busy
        else:
            busy = compute
        if exchange > 0.0:
            x_p, x_e = shared(rules, landing, ingress)
            busy += exchange / x_e
            moved += exchange / x_e * x_p
        step = moved / preload
        part = todo if step <= 0.0 else min(todo, clock.left / step)
        clock.now += part * busy
        todo -= part
        clock.left -= part * step
        if clock.left <= 1e-12:
            clock.queue.pop(0)
            clock.left = 1.0
            clock.landed.add(head)
        if todo <= 1e-12:
            return


# ---------------------------------------------------------------------- schedules


@dataclass(frozen=True)
class Schedule:
    """A plan for every operator, and where its preload is issued.

    issue[j]: the execute in front of which the preload of operator j starts; at most j, and
    negative (by at most the period) in a periodic program: an iteration ahead. order: the operators
    in the order of issue, for those issued at the same place. stores: where each store is issued,
    in front of the preloads at the same place; empty: as early as it can be.
    """

    choice: tuple[int, ...]
    issue: tuple[int, ...]
    order: tuple[int, ...]
    stores: tuple[int, ...] = ()

    def queue(self, count: int) -> list[list[int]]:
        """Per execute, the operators whose preloads are issued in front of it, in order."""
        places: list[list[int]] = [[] for _ in range(count)]
        for j in self.order:
            places[self.issue[j] % count].append(j)
        return places


@dataclass(frozen=True)
class Times:
    """What a schedule takes: one period in steady state, or the whole list."""

    time_s: float
    preload_s: float
    """Preloads alone, one after another."""
    execute_s: float
    """Executes alone, one after another."""


_SETTLED = 1e-7
"""Iterations that differ by no more than this part of them are steady."""


def evaluate(program: Program, schedule: Schedule, most: int = 10) -> Times:
    """The time of a schedule; a periodic one until two iterations take equally long."""
    loads = loads_of(program, schedule.choice)
    return evaluate_loads(program, loads, schedule, most)


def evaluate_loads(
    program: Program, loads: Sequence[Load], schedule: Schedule, most: int = 10
) -> Times:
    """`evaluate` with the loads known."""
    rules, count = program.rules, len(program.ops)
    places = schedule.queue(count)
    stores: list[list[int]] = [[] for _ in range(count + 1)]
    for k, place in enumerate(store_places(program, schedule)):
        stores[place].append(count + k)
    queue = [*loads, *map(store_load, program.stores)]
    preload_s = sum(load.preload_s for load in loads if load.loads)
    execute_s = sum(load.alone_s for load in loads)
    clock = Clock()

    def one_pass() -> None:
        for i in range(count):
            for j in stores[i]:
                issue(clock, queue, j, rules)
            for j in places[i]:
                issue(clock, queue, j, rules)
            execute(clock, queue, i, rules)
            for j in stores[i]:
                wait(clock, queue, j)
        for j in stores[count]:
            issue(clock, queue, j, rules)
            wait(clock, queue, j)

    if not program.periodic:
        one_pass()
        return Times(clock.now, preload_s, execute_s)
    for j in [j for place in places for j in place if schedule.issue[j] < 0]:
        issue(clock, queue, j, rules)
    last, duration = -1.0, 0.0
    for _ in range(most):
        begin = clock.now
        one_pass()
        duration = clock.now - begin
        if abs(duration - last) <= _SETTLED * duration:
            break
        last = duration
    return Times(duration, preload_s, execute_s)


def store_load(store: Store) -> Load:
    """A store as an entry of the queue; it leaves through another port than preloads arrive at."""
    return Load(0.0, 0.0, 0.0, 0.0, store.seconds, 0.0, True)


def store_places(program: Program, schedule: Schedule) -> tuple[int, ...]:
    """Where each store is issued."""
    return schedule.stores or tuple(store.place for store in program.stores)


def placed_stores(program: Program, schedule: Schedule) -> Schedule:
    """The same with every store where it costs least: in front of an execute during which what is
    in the queue before it lands, too."""
    places = list(store_places(program, schedule))
    if not any(store.movable for store in program.stores):
        return schedule
    best = evaluate(program, schedule).time_s
    for k, store in enumerate(program.stores):
        for place in range(store.place, len(program.ops) + 1 if store.movable else 0):
            trial = replace(schedule, stores=(*places[:k], place, *places[k + 1 :]))
            time = evaluate(program, trial).time_s
            if time < best * (1.0 - 1e-9):
                best, schedule = time, trial
        places = list(store_places(program, schedule))
    return schedule


def queue_order(program: Program, schedule: Schedule) -> list[int]:
    """The operators in the order in which a pass over the program issues their preloads: by the
    absolute place of issue, then by the order."""
    rank = {j: k for k, j in enumerate(schedule.order)}
    return sorted(range(len(program.ops)), key=lambda j: (schedule.issue[j], rank[j]))


def settled(program: Program, schedule: Schedule) -> Schedule:
    """The same with the order made consistent with the places of issue."""
    return replace(schedule, order=tuple(queue_order(program, schedule)))


def first_place(program: Program, j: int) -> int:
    """The first execute in front of which the preload of operator j may be issued."""
    earliest = program.ops[j].earliest
    if program.periodic and earliest < 0:
        return j - len(program.ops) + 1
    return min(j, max(0, earliest))


def last_place(program: Program, j: int) -> int:
    """The last execute in front of which the preload of operator j may be issued."""
    return -1 if program.periodic and program.ops[j].ahead else j


# ---------------------------------------------------------------------- memory


def waiting(program: Program, schedule: Schedule, i: int) -> list[int]:
    """Operators whose preloads wait while operator i executes."""
    count = len(program.ops)
    found = []
    for j, at in enumerate(schedule.issue):
        if program.ops[j].loads and (at <= i < j or (at < 0 and at + count <= i)):
            found.append(j)
    return found


def occupied(program: Program, schedule: Schedule) -> list[int]:
    """Bytes in use at the peak of every execute; with an SRAM of their own, preloads do not add to
    what executes take."""
    held = [0] * len(program.ops)
    own: list[int] = []
    for j, (op, c, at) in enumerate(zip(program.ops, schedule.choice, schedule.issue, strict=True)):
        own.append(int(op.table.execute_bytes[c]) + op.resident_bytes)
        if op.loads:
            size = int(op.table.preload_bytes[c])
            for i in range(at, j):
                held[i] += size  # a negative place is one of the previous iteration
    if program.rules.separate_sram:
        return [max(a, b) for a, b in zip(own, held, strict=True)]
    return [a + b for a, b in zip(own, held, strict=True)]


def excess_bytes(program: Program, schedule: Schedule, capacity_bytes: int) -> int:
    """The most by which a schedule exceeds `capacity_bytes`; at most 0 if it fits."""
    return max(occupied(program, schedule), default=0) - capacity_bytes


def step_ranks(times: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Options worth stepping through: by falling size and rising time, the fastest first."""
    if times.size == 0:
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((sizes, times))
    falling = np.minimum.accumulate(sizes[order])
    keep = np.concatenate([[True], falling[1:] < falling[:-1]])
    return order[keep]
