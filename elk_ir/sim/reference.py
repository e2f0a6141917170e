"""A slow second simulator: every core, link and iteration on its own. For tests on small chips.

It shares nothing with the engine but the `Timeline` and the chip: paths are walked hop by hop,
trees are sets of links, loops are unrolled, times are absolute, and the fair point of two transfers
is found by checking the definition on every candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from elk_ir.chips.chip import Chip
from elk_ir.errors import ElkError
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
    Sync,
    Timeline,
)

LIMIT = 64
Resource = tuple[object, ...]
Loads = dict[Resource, float]


@dataclass
class Reference:
    """Result: time, the four parts of it, and the bytes that crossed each resource (as loaded:
    exchanges with the chip's overhead)."""

    time_s: float = 0.0
    preload_only_s: float = 0.0
    execute_only_s: float = 0.0
    overlapped_s: float = 0.0
    network_stall_s: float = 0.0
    bytes: dict[Resource, float] = field(default_factory=dict)


@dataclass
class _Flow:
    """A transfer: seconds of each resource, latency, remote bytes at each core's SRAM port."""

    loads: Loads
    latency_s: float
    port: dict[int, float]
    key: tuple[int, bool] = (0, False)
    ready_s: float = 0.0
    left: float = 1.0

    @property
    def alone_s(self) -> float:
        return max(self.loads.values(), default=0.0)


def path(chip: Chip, source: int, target: int) -> list[Resource]:
    """The links from core to core: along the row of the source, then along the column."""
    net = chip.network
    chip_number, row, col = chip.core_position(source)
    _, row1, col1 = chip.core_position(target)
    links: list[Resource] = []

    def step(at: int, end: int, size: int) -> int:
        if net.topology == "mesh2d":
            return 1 if end > at else -1
        return 1 if (end - at) % size * 2 <= size else -1

    while col != col1:
        move = step(col, col1, net.cols)
        links.append(("link", chip_number, row, col, "E" if move > 0 else "W"))
        col = (col + move) % net.cols
    while row != row1:
        move = step(row, row1, net.rows)
        links.append(("link", chip_number, row, col, "S" if move > 0 else "N"))
        row = (row + move) % net.rows
    return links


class _Run:
    def __init__(self, chip: Chip):
        if chip.cores > LIMIT:
            raise ElkError(f"the reference simulator is for {LIMIT} cores, not {chip.cores}")
        self.chip = chip
        self.result = Reference()
        self.queue: list[_Flow] = []
        self.landed: Counter[tuple[int, bool]] = Counter()
        self.now = 0.0

    # ------------------------------------------------------------------ loads

    def rate(self, resource: Resource) -> float:
        """Bytes per second of a resource."""
        chip, net, hbm = self.chip, self.chip.network, self.chip.hbm
        match resource[0]:
            case "in":
                return net.port_in_bytes_per_s
            case "out":
                return net.port_out_bytes_per_s
            case "sram":
                return chip.local_bytes_per_cycle * chip.clock_hz
            case "link":
                return net.link_bytes_per_s
            case "chip_in" | "chip_out":
                return net.inter_chip_link_bytes_per_s
            case "controller":
                assert hbm is not None
                return hbm.controller_egress_bytes_per_s
            case _:
                assert hbm is not None
                return hbm.bandwidth_bytes_per_s / chip.hbm_pools

    def seconds(self, size: Loads) -> Loads:
        """Bytes to seconds; they are booked as moved."""
        for resource, amount in size.items():
            self.result.bytes[resource] = self.result.bytes.get(resource, 0.0) + amount
        return {r: amount / self.rate(r) for r, amount in size.items() if amount > 0}

    def exchange(self, event: Exchange) -> _Flow:
        """The flow of an exchange."""
        chip, net, t = self.chip, self.chip.network, event.traffic
        factor = net.exchange_overhead_factor
        if event.span > chip.cores_per_chip:
            factor *= net.exchange_span_factor
        size: Loads = {}
        port: dict[int, float] = {}
        hops = 0
        crossing = False

        def add(resource: Resource, amount: float) -> None:
            size[resource] = size.get(resource, 0.0) + amount

        pairs = zip(t.source.values, t.target.values, t.size_bytes.values, strict=True)
        for a, b, n in ((int(a), int(b), float(n)) for a, b, n in pairs):
            add(("out", a), n * factor)
            add(("in", b), n * factor)
            for core in (a, b):
                add(("sram", core), n)
                port[core] = port.get(core, 0.0) + n
            chip_a, chip_b = a // chip.cores_per_chip, b // chip.cores_per_chip
            if net.topology != "all-to-all":
                links = path(chip, a, b)
                hops = max(hops, len(links))
                for link in links:
                    add(link, n * factor)
            if chip_a != chip_b:
                crossing = True
                if net.inter_chip_link_bytes_per_s:
                    add(("chip_out", chip_a), n * factor)
                    add(("chip_in", chip_b), n * factor)
        for core, n in enumerate(t.local_bytes.values):
            if n:
                add(("sram", core), 2.0 * float(n))
        latency = (net.transfer_latency_cycles + hops * net.hop_latency_cycles) / chip.clock_hz
        if crossing:
            latency += net.inter_chip_latency_s
        return _Flow(self.seconds(size), latency if t.total_bytes else 0.0, port)

    def transfer(self, event: Preload | Store) -> _Flow:
        """The flow of a preload or a store."""
        chip, net, hbm = self.chip, self.chip.network, self.chip.hbm
        key = (event.variable, isinstance(event, Store))
        d = event.delivery
        if hbm is None:
            return _Flow({}, 0.0, {}, key)
        held = [(i // d.slots, int(b)) for i, b in enumerate(d.holders.values.tolist()) if b >= 0]
        if isinstance(event, Store):
            first: dict[int, int] = {}
            for core, block in held:
                first.setdefault(block, core)
            held = [(core, block) for block, core in first.items()]
        sizes = [float(n) for n in d.block_bytes.values]
        size: Loads = {}
        port: dict[int, float] = {}
        count = hbm.controllers_per_chip
        meshed = net.topology != "all-to-all"
        sites = chip.controller_positions() if meshed else ()
        hops = 0

        def add(resource: Resource, amount: float) -> None:
            size[resource] = size.get(resource, 0.0) + amount

        for core, block in held:
            add(("out" if isinstance(event, Store) else "in", core), sizes[block])
            if chip.landing_steals_sram:
                add(("sram", core), sizes[block])
                port[core] = port.get(core, 0.0) + sizes[block]
        for number in range(chip.chips):
            base = number * chip.cores_per_chip
            here = [(c, b) for c, b in held if base <= c < base + chip.cores_per_chip]
            unique = {b for _, b in here}
            multicast = hbm.multicast and not isinstance(event, Store)
            sent = sum(sizes[b] for b in unique) if multicast else sum(sizes[b] for _, b in here)
            if hbm.pools == "per-chip":
                needed = sum(sizes[b] for b in unique)
                if not isinstance(event, Store):
                    needed = min(needed, float(d.hbm_bytes))
                add(("hbm", number), needed)
            if not meshed:
                for k in range(count):
                    add(("controller", number, k), sent / count)
                continue
            at = [base + row * net.cols + col for row, col in sites]
            for block in unique:
                cores = [c for c, b in here if b == block]
                homes = sorted({k for c in cores for k in self.homes(c, at)})
                for k in homes:
                    tree: set[Resource] = set()
                    part = sizes[block] / len(homes)
                    for core in cores:
                        ends = (core, at[k]) if isinstance(event, Store) else (at[k], core)
                        links = path(chip, *ends)
                        hops = max(hops, len(links))
                        for link in links:
                            if not multicast or link not in tree:
                                add(link, part)
                        tree.update(links)
                    add(("controller", number, k), part if multicast else part * len(cores))
        if hbm.pools == "one":
            add(("hbm", 0), float(d.hbm_bytes))
        latency = (net.transfer_latency_cycles + hops * net.hop_latency_cycles) / chip.clock_hz
        return _Flow(self.seconds(size), latency + hbm.latency_s, port, key)

    def homes(self, core: int, sites: list[int]) -> list[int]:
        """The nearest controller of each edge that has any."""
        net, hbm = self.chip.network, self.chip.hbm
        assert hbm is not None
        tall = net.rows > net.cols
        placement = hbm.controller_placement
        upright = placement == ("long-edges" if tall else "short-edges")
        edges: dict[object, list[int]] = {}
        for k, site in enumerate(sites):
            _, row, col = self.chip.core_position(site)
            edge: object = ("column", col)
            if placement == "corners":
                edge = (row, col)
            elif not upright and row in (0, net.rows - 1):
                edge = ("row", row)
            edges.setdefault(edge, []).append(k)
        return [
            min(numbers, key=lambda k: len(path(self.chip, sites[k], core)))
            for numbers in edges.values()
        ]

    # ------------------------------------------------------------------ sharing

    def rates(self, p: _Flow | None, e: _Flow | None) -> tuple[float, float]:
        """Parts a second of the preload and of the exchange."""
        x = 1.0 / p.alone_s if p is not None else 0.0
        y = 1.0 / e.alone_s if e is not None else 0.0
        if p is None or e is None or self.chip.network.preload_network == "separate":
            return x, y
        every = sorted({*p.loads, *e.loads}, key=repr)
        table = [(p.loads.get(r, 0.0), e.loads.get(r, 0.0)) for r in every]

        def feasible(x: float, y: float) -> bool:
            return all(a * x + b * y <= 1.0 + 1e-12 for a, b in table)

        if feasible(x, y):
            return x, y
        if self.chip.network.transfer_sharing == "exchange-first":
            left = min((1.0 - b * y) / a for a, b in table if a > 0)
            return (0.0 if left < 1e-12 * x else left), y
        points = [(0.5 / a, 0.5 / b) for a, b in table if a > 0 and b > 0]
        unique = sorted(set(table))
        for (a0, b0), (a1, b1) in combinations(unique, 2):
            det = a0 * b1 - a1 * b0
            if abs(det) > 1e-15 * max(a0 * b1, a1 * b0):
                points.append(((b1 - b0) / det, (a0 - a1) / det))
        best: tuple[float, float] | None = None
        for px, py in points:
            if px <= 0 or py <= 0 or not feasible(px, py):
                continue
            tight = [(a * px, b * py) for a, b in table if a * px + b * py >= 1.0 - 1e-9]
            if any(a >= b - 1e-9 for a, b in tight) and any(b >= a - 1e-9 for a, b in tight):
                best = (px, py)
                break
        assert best is not None
        return best

    # ------------------------------------------------------------------ time

    def advance(
        self,
        delay: float = 0.0,
        exchange: _Flow | None = None,
        lead: float = 0.0,
        work: dict[int, tuple[float, float]] | None = None,
        until: tuple[int, bool] | None = None,
    ) -> None:
        """Let time pass until everything given is over. lead: before the exchange's first byte.
        work: seconds at full speed and φ of each core that computes."""
        end_delay = self.now + delay
        first_byte = self.now + lead
        todo = {core: left for core, (left, _) in (work or {}).items()}
        local = self.chip.local_bytes_per_cycle * self.chip.clock_hz
        while True:
            while self.queue and self.queue[0].ready_s <= self.now and not self.queue[0].loads:
                self.landed[self.queue.pop(0).key] += 1
            if until is not None and self.landed[until]:
                return
            busy = exchange is not None and exchange.left > 0
            if until is None and self.now >= end_delay and not busy and not todo:
                return
            head = self.queue[0] if self.queue else None
            moving = head if head is not None and head.ready_s <= self.now else None
            if todo and not self.chip.preload_during_compute:
                moving = None
            active = exchange if busy and self.now >= first_byte else None
            x, y = self.rates(moving, active)
            slow: dict[int, float] = {}
            for core in todo:
                rho = 0.0
                if moving is not None:
                    rho += x * moving.port.get(core, 0.0) / local
                if active is not None:
                    rho += y * active.port.get(core, 0.0) / local
                phi = (work or {})[core][1]
                stall = self.chip.port_sharing == "stall"
                slow[core] = 1.0 + rho if stall else max(1.0, phi + rho)
                if rho == 0.0:
                    slow[core] = 1.0
            ends: list[float] = []
            if head is not None and head.ready_s > self.now:
                ends.append(head.ready_s)
            if self.now < end_delay:
                ends.append(end_delay)
            if busy and self.now < first_byte:
                ends.append(first_byte)
            if moving is not None and x > 0:
                ends.append(self.now + moving.left / x)
            if active is not None and y > 0:
                ends.append(self.now + active.left / y)
            if todo:
                ends.append(self.now + max(todo[c] * slow[c] for c in todo))
            end = min(ends)
            dt = end - self.now
            self.book(dt, until is not None, moving if x > 0 else None, active, y, todo, slow)
            self.now = end
            near = 1e-15 * max(1.0, abs(end)) + 1e-13 * dt
            if moving is not None and x > 0:
                moving.left -= dt * x
                if moving.left / x <= near:
                    self.landed[self.queue.pop(0).key] += 1
            if active is not None and y > 0:
                active.left -= dt * y
                if active.left / y <= near:
                    active.left = 0.0
            todo = {c: left - dt / slow[c] for c, left in todo.items()}
            if todo and max(todo.values()) <= near:
                todo = {}

    def book(
        self,
        dt: float,
        waiting: bool,
        moving: _Flow | None,
        active: _Flow | None,
        y: float,
        todo: dict[int, float],
        slow: dict[int, float],
    ) -> None:
        """Add a step to the four parts of the time."""
        r = self.result
        lost = dt * (1.0 - y * active.alone_s) if active is not None else 0.0
        if todo:
            core = max(todo, key=lambda c: todo[c] * slow[c])
            lost = max(lost, dt * (1.0 - 1.0 / slow[core]))
        if waiting:
            r.preload_only_s += dt
        elif moving is not None:
            r.overlapped_s += dt - lost
            r.network_stall_s += lost
        else:
            r.execute_only_s += dt

    # ------------------------------------------------------------------ events

    def run(self, events: Iterator[tuple[Leaf, Leaf | None]]) -> Reference:
        """Run unrolled events; each comes with the one that follows it in its group."""
        skip: Leaf | None = None
        for event, following in events:
            if event is skip:
                skip = None
                continue
            match event:
                case Preload() | Store():
                    flow = self.transfer(event)
                    flow.ready_s = self.now + flow.latency_s
                    if isinstance(event, Preload):
                        self.landed[flow.key] = 0
                    self.queue.append(flow)
                case PreloadWait() | StoreWait():
                    key = (event.variable, isinstance(event, StoreWait))
                    self.advance(until=key)
                    self.landed[key] -= 1
                case Sync():
                    self.advance(delay=event.count * self.chip.sync_s)
                case Exchange():
                    self.phase(event, None)
                case Compute():
                    beside = (
                        following
                        if self.chip.exchange_overlaps_compute
                        and isinstance(following, Exchange)
                        and following.beside
                        and following.traffic.total_bytes
                        else None
                    )
                    if beside is None:
                        self.advance(work=self.work(event))
                    else:
                        self.phase(beside, event)
                        skip = beside
        while self.queue:
            self.advance(until=self.queue[-1].key)
        self.result.time_s = self.now
        return self.result

    def phase(self, event: Exchange, beside: Compute | None) -> None:
        """An exchange with its barriers."""
        flow = self.exchange(event)
        if not event.traffic.total_bytes:
            if flow.loads:
                self.advance(exchange=flow)
            return
        if beside is None:
            self.advance(delay=self.chip.sync_s)
            self.advance(delay=flow.latency_s)
            self.advance(exchange=flow)
        else:
            self.advance(exchange=flow, lead=flow.latency_s, work=self.work(beside))
        self.advance(delay=self.chip.sync_s)

    def work(self, event: Compute) -> dict[int, tuple[float, float]]:
        """Seconds at full speed and φ of every core that computes."""
        found: dict[int, tuple[float, float]] = {}
        pairs = zip(event.cycles.values.tolist(), event.sram_bytes.values.tolist(), strict=True)
        for core, (cycles, moved) in enumerate(pairs):
            if cycles > 0:
                phi = min(1.0, moved / (cycles * self.chip.local_bytes_per_cycle))
                found[core] = (cycles / self.chip.clock_hz, phi)
        return found


def _unrolled(events: tuple[Event, ...]) -> Iterator[tuple[Leaf, Leaf | None]]:
    for i, event in enumerate(events):
        if isinstance(event, Repeat):
            for _ in range(event.count):
                yield from _unrolled(event.events)
        elif isinstance(event, Operator):
            yield from _unrolled(event.events)
        else:
            following = events[i + 1] if i + 1 < len(events) else None
            leaf = following if not isinstance(following, Repeat | Operator) else None
            yield event, leaf


def simulate_reference(timeline: Timeline, chip: Chip) -> Reference:
    """Simulate core by core and link by link. Raises ElkError for more than 64 cores."""
    return _Run(chip).run(_unrolled(timeline.events))
