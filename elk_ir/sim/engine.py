"""The event-driven simulation of a `Timeline` on a chip.

One HBM queue moves preloads and stores one after another, in the order in which they were issued;
beside it the cores run the program's exchanges, compute sets and barriers in order. Between two
events all rates are constant: a step of the simulation ends where the next thing ends. Iterations
of a loop that begin in equal states take equal times, so they are simulated until a state comes
back, and the rest is added in one go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.errors import ElkError
from elk_ir.sim.flows import Coflow
from elk_ir.sim.machine import machine_of
from elk_ir.sim.record import Frame, Row, Segment, Slice
from elk_ir.sim.timeline import (
    Compute,
    Event,
    Exchange,
    Leaf,
    Operator,
    Preload,
    PreloadWait,
    Repeat,
    Store,
    StoreWait,
    Timeline,
    leaves,
)

_SAME = 1e-12
"""States closer than this (parts of a transfer, or of the iteration's time) count as equal."""
_MEMORY = 6
"""Iterations that a state is compared with: steady states of longer periods are unrolled."""


@dataclass(frozen=True)
class Totals:
    """Seconds of a run by what overlapped, and the bytes that the engine has moved."""

    preload_only_s: float = 0.0
    execute_only_s: float = 0.0
    overlapped_s: float = 0.0
    network_stall_s: float = 0.0
    hbm_bytes: float = 0.0
    exchange_bytes: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0

    @property
    def time_s(self) -> float:
        """All of the time."""
        return self.preload_only_s + self.execute_only_s + self.overlapped_s + self.network_stall_s


class _Transfer:
    """An entry of the HBM queue."""

    __slots__ = ("coflow", "elapsed_s", "key", "left", "name", "node", "wait_s")

    def __init__(self, key: tuple[int, bool], coflow: Coflow, name: str, node: str):
        self.key, self.coflow, self.name, self.node = key, coflow, name, node
        self.left = 1.0
        self.wait_s = coflow.latency_s
        self.elapsed_s = 0.0


class _Tile:
    """What is left of a compute set: seconds at full speed, one entry a class of cores."""

    __slots__ = ("left", "phi", "reach")

    def __init__(self, left: np.ndarray, phi: np.ndarray, reach: float):
        self.left, self.phi, self.reach = left, phi, reach


State = tuple[tuple[object, ...], tuple[float, ...]]


class Engine:
    """One run of a timeline on a chip."""

    def __init__(self, timeline: Timeline, chip: Chip):
        if timeline.cores != chip.cores:
            raise ElkError(
                f"the program is for {timeline.cores} cores, the chip '{chip.name}' has"
                f" {chip.cores}"
            )
        self.chip, self.timeline = chip, timeline
        self.machine = machine_of(chip)
        # Ids are safe as keys: the timeline keeps its events alive.
        self.of_event: dict[int, Coflow] = {}
        self.tiles: dict[int, tuple[np.ndarray, np.ndarray, float, float]] = {}
        self.contended = chip.landing_steals_sram or chip.exchange_overlaps_compute
        self.classes = self._core_classes() if self.contended else np.zeros(0, dtype=np.int64)
        self.queue: list[_Transfer] = []
        # Several stores of one buffer can be under way, each with a wait of its own.
        self.landed: Counter[tuple[int, bool]] = Counter()
        self.now = 0.0
        self.frame = Frame()
        self.totals = [0.0] * 8
        self.spent: dict[str, float] = {}
        self.queue_events = 0
        self.live_bytes = 0

    # ------------------------------------------------------------------ preparation

    def _core_classes(self) -> np.ndarray:
        """One core of each class of cores that no event tells apart."""
        ids = np.zeros(self.chip.cores, dtype=np.int64)
        seen: set[int] = set()
        for leaf, _ in leaves(self.timeline.events):
            if isinstance(leaf, Compute):
                columns = [leaf.cycles.values, leaf.sram_bytes.values]
            elif isinstance(leaf, Preload | Store | Exchange):
                columns = [self._coflow(leaf).port_bytes]
            else:
                continue
            for column in columns:
                if id(column) in seen:
                    continue
                seen.add(id(column))
                values = np.unique(column, return_inverse=True)[1].reshape(-1)
                ids = np.unique(ids * (values.max() + 1) + values, return_inverse=True)[1]
                ids = ids.reshape(-1)
        return np.unique(ids, return_index=True)[1]

    def _coflow(self, event: Preload | Store | Exchange) -> Coflow:
        found = self.of_event.get(id(event))
        if found is None:
            found = self.of_event[id(event)] = self.machine.coflow(event)
        return found

    def _tile(self, event: Compute) -> tuple[np.ndarray, np.ndarray, float, float]:
        """(seconds, φ) of each class of cores, the longest of them, busy part of the cores."""
        found = self.tiles.get(id(event))
        if found is None:
            cycles, moved = event.cycles.values, event.sram_bytes.values
            longest = event.cycles.maximum
            busy = float(cycles.mean()) / longest if longest > 0 else 0.0
            cycles, moved = cycles[self.classes], moved[self.classes]
            with np.errstate(divide="ignore", invalid="ignore"):
                phi = moved / (cycles * self.chip.local_bytes_per_cycle)
            phi = np.minimum(np.where(cycles > 0, phi, 0.0), 1.0)
            clock = self.chip.clock_hz
            found = self.tiles[id(event)] = (cycles / clock, phi, longest / clock, busy)
        return found

    # ------------------------------------------------------------------ program

    def run(self) -> tuple[float, Totals, Frame]:
        """(time, totals, records). The run ends when the last transfer is complete, too."""
        self._block(self.timeline.events)
        while self.queue:
            self._advance(until=self.queue[-1].key)
        return self.now, Totals(*self.totals), self.frame

    def _block(self, events: Sequence[Event]) -> None:
        skip = False
        for i, event in enumerate(events):
            if skip:
                skip = False
            elif isinstance(event, Operator):
                self._operator(event)
            elif isinstance(event, Repeat):
                self._repeat(event)
            else:
                self.live_bytes = event.live_bytes
                following = events[i + 1] if i + 1 < len(events) else None
                skip = self._leaf(event, following)

    def _operator(self, event: Operator) -> None:
        start, outer, self.spent = self.now, self.spent, {}
        self._block(event.events)
        spent = tuple(sorted(self.spent.items(), key=lambda item: (-item[1], item[0])))
        bound = spent[0][0] if spent else ""
        self.frame.rows.append(Row(event.label, event.node, start, self.now, bound, spent))
        name = event.label
        self.frame.slices.append(Slice("execute", name, event.node, start, self.now, bound))
        self.spent = outer

    def _leaf(self, event: Leaf, following: Event | None) -> bool:
        """Run one event; True if the one that follows has run with it."""
        if isinstance(event, Compute):
            if (
                self.chip.exchange_overlaps_compute
                and isinstance(following, Exchange)
                and following.beside
                and following.traffic.total_bytes
            ):
                self._exchange(following, event)
                return True
            self._compute(event)
        elif isinstance(event, Exchange):
            self._exchange(event, None)
        elif isinstance(event, Preload | Store):
            self._issue(event)
        elif isinstance(event, PreloadWait | StoreWait):
            self._wait((event.variable, isinstance(event, StoreWait)))
        else:
            self._sync(event.count)
        return False

    def _issue(self, event: Preload | Store) -> None:
        key = (event.variable, isinstance(event, Store))
        self.queue_events += 1
        if isinstance(event, Preload):
            self.landed[key] = 0
        self.queue.append(_Transfer(key, self._coflow(event), event.name, event.node))

    def _wait(self, key: tuple[int, bool]) -> None:
        while not self.landed[key]:
            if not any(t.key == key for t in self.queue):
                raise ElkError("the program waits for a transfer that it never started")
            self._advance(until=key)
        self.landed[key] -= 1
        self.queue_events += 1

    def _sync(self, count: float) -> None:
        seconds = count * self.chip.sync_s
        if seconds > 0:
            self._advance(delay=seconds, category="sync")
            self.totals[7] += seconds

    def _compute(self, event: Compute) -> None:
        seconds, phi, longest, busy = self._tile(event)
        if longest > 0:
            start = self.now
            self._advance(tile=_Tile(seconds, phi, longest), busy=busy)
            self._slice("execute", event.kind, "", start)

    def _exchange(self, event: Exchange, beside: Compute | None) -> None:
        coflow = self._coflow(event)
        start = self.now
        if not event.traffic.total_bytes:
            # Nothing leaves its core: a copy in its own memory, without a barrier.
            if coflow.alone_s > 0:
                self._advance(exchange=coflow)
                self._slice("execute", event.kind, "", start)
            return
        if beside is None:
            self._sync(1)
            if coflow.latency_s > 0:
                self._advance(delay=coflow.latency_s, category="latency")
            start = self.now
            self._advance(exchange=coflow)
        else:
            seconds, phi, longest, busy = self._tile(beside)
            self._advance(
                exchange=coflow,
                exchange_delay=coflow.latency_s,
                tile=_Tile(seconds, phi, longest),
                busy=busy,
            )
            self._slice("execute", beside.kind, "", start)
        self._slice("network", event.kind, self.machine.resources.kind(coflow.bottleneck), start)
        self._sync(1)

    def _slice(self, track: str, name: str, detail: str, start: float) -> None:
        self.frame.slices.append(Slice(track, name, "", start, self.now, detail))

    # ------------------------------------------------------------------ time

    def _advance(
        self,
        *,
        delay: float = 0.0,
        category: str = "",
        exchange: Coflow | None = None,
        exchange_delay: float = 0.0,
        tile: _Tile | None = None,
        busy: float = 0.0,
        until: tuple[int, bool] | None = None,
    ) -> None:
        """Let time pass until the activity is over: a delay, an exchange, a compute set, both of
        them, or until a transfer has landed."""
        left = 1.0 if exchange is not None else 0.0
        waiting = until is not None
        computing = tile is not None
        while True:
            head = self.queue[0] if self.queue else None
            flowing = head if head is not None and head.wait_s <= 0.0 else None
            if flowing is not None and flowing.coflow.alone_s <= 0.0:
                self._finish(flowing)
                if until == flowing.key:
                    return
                continue
            moving = left > 0.0 and exchange_delay <= 0.0
            x_p = x_e = 0.0
            if flowing is not None and (self.chip.preload_during_compute or not computing):
                x_p = 1.0 / flowing.coflow.alone_s
            if moving and exchange is not None:
                x_e = 1.0 / exchange.alone_s
                if x_p > 0.0 and flowing is not None:
                    x_p, x_e = self.machine.share(flowing.coflow, exchange)
            slow: np.ndarray | None = None
            # The soonest of everything that can end.
            dt = np.inf
            if head is not None and head.wait_s > 0.0:
                dt = head.wait_s
            if x_p > 0.0 and flowing is not None:
                dt = min(dt, flowing.left / x_p)
            if delay > 0.0:
                dt = min(dt, delay)
            if exchange_delay > 0.0:
                dt = min(dt, exchange_delay)
            if moving and x_e > 0.0:
                dt = min(dt, left / x_e)
            if computing and tile is not None:
                slow = self._slowdown(tile, flowing, x_p, exchange, x_e)
                reach = tile.reach if slow is None else float((tile.left * slow).max())
                dt = min(dt, reach)
            if not np.isfinite(dt):
                raise ElkError("the simulation is stuck: nothing that is awaited can proceed")
            self._account(
                dt,
                waiting,
                category,
                flowing,
                x_p,
                exchange,
                x_e,
                tile if computing else None,
                slow,
                busy,
            )
            # Progress; what ends in this step ends exactly.
            for t in self.queue:
                if t.wait_s > 0.0:
                    t.wait_s = 0.0 if t.wait_s <= dt else t.wait_s - dt
            if head is not None and flowing is None and head.wait_s <= 0.0:
                self.queue_events += 1
            done_p = False
            if x_p > 0.0 and flowing is not None:
                done_p = flowing.left / x_p <= dt
                flowing.left -= dt * x_p
            if flowing is not None:
                flowing.elapsed_s += dt
            if moving and x_e > 0.0:
                left = 0.0 if left / x_e <= dt else left - dt * x_e
            if exchange_delay > 0.0:
                exchange_delay = 0.0 if exchange_delay <= dt else exchange_delay - dt
            if delay > 0.0:
                delay = 0.0 if delay <= dt else delay - dt
            if computing and tile is not None:
                if slow is None:
                    computing = tile.reach > dt
                    tile.reach -= dt
                    tile.left = tile.left - dt
                else:
                    computing = float((tile.left * slow).max()) > dt
                    tile.left = tile.left - dt / slow
                    tile.reach = float(tile.left.max())
            self.now += dt
            if done_p and flowing is not None:
                self._finish(flowing)
                if until == flowing.key:
                    return
            if not waiting and delay <= 0.0 and left <= 0.0 and not computing:
                return

    def _finish(self, transfer: _Transfer) -> None:
        self.queue.pop(0)
        self.landed[transfer.key] += 1
        self.queue_events += 1
        kind = self.machine.resources.kind(transfer.coflow.bottleneck)
        name = f"store {transfer.name}" if transfer.key[1] else transfer.name
        start = self.now - transfer.elapsed_s
        self.frame.slices.append(Slice("hbm", name, transfer.node, start, self.now, kind))

    def _slowdown(
        self,
        tile: _Tile,
        flowing: _Transfer | None,
        x_p: float,
        exchange: Coflow | None,
        x_e: float,
    ) -> np.ndarray | None:
        """How many times as long compute takes on each class of cores; None for once."""
        if not self.contended:
            return None
        rho = np.zeros(self.classes.size)
        if flowing is not None and x_p > 0.0:
            rho = rho + x_p * flowing.coflow.port_bytes[self.classes]
        if exchange is not None and x_e > 0.0:
            rho = rho + x_e * exchange.port_bytes[self.classes]
        if not rho.any():
            return None
        rho /= self.chip.local_sram_bytes_per_s
        if self.chip.port_sharing == "stall":
            return 1.0 + rho
        return np.maximum(1.0, tile.phi + rho)

    def _account(
        self,
        dt: float,
        waiting: bool,
        category: str,
        flowing: _Transfer | None,
        x_p: float,
        exchange: Coflow | None,
        x_e: float,
        tile: _Tile | None,
        slow: np.ndarray | None,
        busy: float,
    ) -> None:
        """Book a step of `dt` seconds."""
        totals = self.totals
        hbm = network = 0.0
        if x_p > 0.0 and flowing is not None:
            coflow = flowing.coflow
            totals[4] += dt * x_p * coflow.hbm_bytes
            hbm = x_p * self._mean(coflow, "hbm")
            network = x_p * self._mean(coflow, "network")
        lost = 0.0
        if x_e > 0.0 and exchange is not None:
            totals[5] += dt * x_e * exchange.network_bytes
            network += x_e * self._mean(exchange, "network")
            slowed = 1.0 - x_e * exchange.alone_s
            lost = dt * slowed if slowed > _SAME else 0.0
        if tile is not None:
            totals[6] += dt
            if slow is not None:
                critical = int((tile.left * slow).argmax())
                lost = max(lost, dt * (1.0 - 1.0 / float(slow[critical])))
        if waiting:
            totals[0] += dt
            category = "hbm latency"
            if flowing is not None:
                category = self.machine.resources.kind(flowing.coflow.bottleneck)
        elif x_p > 0.0:
            totals[2] += dt - lost
            totals[3] += lost
        else:
            totals[1] += dt
        if not category:
            category = "compute"
            if tile is None and exchange is not None:
                category = self.machine.resources.kind(exchange.bottleneck)
        self.spent[category] = self.spent.get(category, 0.0) + dt
        computing = busy if tile is not None else 0.0
        self.frame.segment(
            Segment(self.now, self.now + dt, hbm, network, computing, self.live_bytes)
        )

    def _mean(self, coflow: Coflow, what: str) -> float:
        return self.machine.resources.mean_seconds(coflow, what)

    # ------------------------------------------------------------------ loops

    def _repeat(self, loop: Repeat) -> None:
        history: list[tuple[State, float, list[float], dict[str, float]]] = []
        i = 0
        while i < loop.count:
            state = self._state()
            scale = history[-1][1] if history else 0.0
            period = self._period(history, state, scale)
            if period and loop.count - i >= period:
                self._jump(history, period, (loop.count - i) // period)
                i += (loop.count - i) // period * period
                history.clear()
                if i >= loop.count:
                    break
                state = self._state()
            events = self.queue_events
            head = self.queue[0] if self.queue else None
            before = (head.left, head.wait_s) if head else (0.0, 0.0)
            totals, spent = list(self.totals), dict(self.spent)
            duration = self._pass(loop.events)
            history.append((state, duration, totals, spent))
            i += 1
            if self.queue_events == events and i < loop.count:
                skipped = self._skip(history[-1], head, before, loop.count - i)
                if skipped:
                    i += skipped
                    history.clear()

    def _pass(self, events: Sequence[Event]) -> float:
        """One iteration, in a frame and a time of its own; its duration."""
        outer, begin = self.frame, self.now
        self.frame, self.now = Frame(), 0.0
        self._block(events)
        inner, duration = self.frame, self.now
        outer.inner.append((begin, 1, duration, inner))
        self.frame, self.now = outer, begin + duration
        return duration

    def _state(self) -> State:
        """Everything that the future depends on, in relative times."""
        keys = tuple((t.key, id(t.coflow)) for t in self.queue)
        values = tuple(v for t in self.queue for v in (t.left, t.wait_s))
        return (keys, tuple(sorted((+self.landed).items()))), values

    def _period(
        self,
        history: list[tuple[State, float, list[float], dict[str, float]]],
        state: State,
        scale: float,
    ) -> int:
        """How many iterations ago the state was the same; 0 if it is new."""
        for ago, (old, _, _, _) in enumerate(reversed(history[-_MEMORY:]), start=1):
            if old[0] != state[0]:
                continue
            pairs = zip(old[1], state[1], strict=True)
            if all(
                abs(a - b) <= _SAME * (1.0 if i % 2 == 0 else scale)
                for i, (a, b) in enumerate(pairs)
            ):
                return ago
        return 0

    def _jump(
        self,
        history: list[tuple[State, float, list[float], dict[str, float]]],
        period: int,
        times: int,
    ) -> None:
        """Add `times` repetitions of the last `period` iterations."""
        _, _, totals, spent = history[-period]
        passes = self.frame.inner[-period:]
        cycle = sum(duration for _, _, duration, _ in passes)
        self._add_times(totals, spent, times)
        if period == 1:
            self.frame.inner.append((self.now, times, cycle, passes[0][3]))
        else:
            group = Frame()
            begin = 0.0
            for _, _, duration, frame in passes:
                group.inner.append((begin, 1, duration, frame))
                begin += duration
            self.frame.inner.append((self.now, times, cycle, group))
        self.now += cycle * times

    def _skip(
        self,
        last: tuple[State, float, list[float], dict[str, float]],
        head: _Transfer | None,
        before: tuple[float, float],
        remaining: int,
    ) -> int:
        """After an iteration in which the queue saw no event: repeat it while the transfer at the
        head of the queue has enough left. Returns how many iterations were added."""
        _, duration, totals, spent = last
        times = remaining
        if duration <= 0.0:
            return 0
        if head is not None:
            moved, waited = before[0] - head.left, before[1] - head.wait_s
            room = np.inf
            if moved > 0.0:
                room = head.left / moved
            elif waited > 0.0:
                room = head.wait_s / waited
            times = int(min(float(remaining), np.floor(room) - 1.0))
            if times <= 0:
                return 0
            head.left -= times * moved
            if head.wait_s <= 0.0:
                head.elapsed_s += times * duration
        for t in self.queue:
            t.wait_s = max(0.0, t.wait_s - times * duration)
        self._add_times(totals, spent, times)
        frame = self.frame.inner[-1][3]
        self.frame.inner.append((self.now, times, duration, frame))
        self.now += times * duration
        return times

    def _add_times(self, totals: list[float], spent: dict[str, float], times: int) -> None:
        for k, value in enumerate(totals):
            self.totals[k] += (self.totals[k] - value) * times
        for key, value in self.spent.items():
            self.spent[key] = value + (value - spent.get(key, 0.0)) * times
