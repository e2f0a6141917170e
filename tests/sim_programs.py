"""Small programs and chips for the simulator's tests: built by hand, or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import strategies as st

from elk_ir.chips import load_chip
from elk_ir.chips.chip import Chip
from elk_ir.errors import ChipError
from elk_ir.sim.patterns import traffic_of
from elk_ir.sim.timeline import (
    Compute,
    Delivery,
    Event,
    Exchange,
    Operator,
    Preload,
    PreloadWait,
    Repeat,
    Store,
    StoreWait,
    Timeline,
    Vector,
)


def chip(cores: int = 4, **changes: Any) -> Chip:
    """test-16 with other fields: 1 GHz, ports of 8 GB/s, HBM of 64 GB/s; no latencies."""
    base = {
        "cores_per_chip": cores,
        "sync_cycles": 0,
        "hbm.latency_s": 0.0,
        "network.exchange_span_factor": 1.0,
    }
    return load_chip("test-16").with_fields({**base, **{k: v for k, v in changes.items()}})


def mesh(rows: int, cols: int, **changes: Any) -> Chip:
    """The same cores on a mesh with links of 8 GB/s, controllers at the corners."""
    fields = {
        "network.topology": "mesh2d",
        "network.rows": rows,
        "network.cols": cols,
        "network.link_bytes_per_s": 8e9,
        "hbm.controllers_per_chip": 1,
        "hbm.controller_placement": "corners",
        "hbm.controller_egress_bytes_per_s": 64e9,
    }
    return chip(rows * cols, **{**fields, **changes})


def delivery(cores: int, blocks: Sequence[Sequence[int]], sizes: Sequence[int]) -> Delivery:
    """blocks[c]: the blocks that core c holds; sizes: bytes of each block."""
    slots = max(1, *(len(b) for b in blocks)) if blocks else 1
    holders = np.full((cores, slots), -1, dtype=np.int64)
    for core, held in enumerate(blocks):
        holders[core, : len(held)] = held
    used = sorted({b for held in blocks for b in held})
    total = sum(sizes[b] for b in used)
    array = np.asarray(sizes, dtype=np.int64)
    return Delivery(cores, slots, Vector(holders.reshape(-1)), Vector(array), total)


def same(cores: int, size: int) -> Delivery:
    """Every core receives a block of its own."""
    return delivery(cores, [[c] for c in range(cores)], [size] * cores)


def preload(variable: int, what: Delivery) -> Preload:
    """A preload of a weight called w<variable>."""
    return Preload(variable, f"w{variable}", what)


def exchange(
    cores: int, pairs: Sequence[tuple[int, int, int]], *, beside: bool = False
) -> Exchange:
    """Bytes (source, target, size)."""
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 3)
    traffic = traffic_of(cores, table[:, 0], table[:, 1], table[:, 2])
    return Exchange("shift", traffic, cores, beside)


def compute(cycles: Sequence[float], sram_bytes: Sequence[float] | None = None) -> Compute:
    """A compute set, cycles and port bytes of each core."""
    moved = np.zeros(len(cycles)) if sram_bytes is None else np.asarray(sram_bytes, dtype=float)
    return Compute("local", Vector(np.asarray(cycles, dtype=np.float64)), Vector(moved))


def program(cores: int, *events: Event) -> Timeline:
    """A timeline."""
    return Timeline(cores, events)


# ---------------------------------------------------------------------- drawn


@st.composite
def chips(draw: st.DrawFn, *, overlap: bool = True) -> Chip:
    """Chips of 2 to 16 cores: every topology, sharing rule and latency."""
    topology = draw(st.sampled_from(["all-to-all", "mesh2d", "torus2d"]))
    rows, cols = draw(st.sampled_from([(1, 2), (2, 2), (2, 3), (4, 3), (4, 4)]))
    count = draw(st.sampled_from([1, 1, 2]))
    rate = st.sampled_from([2e9, 3e9, 8e9])
    changes: dict[str, Any] = {
        "chips": count,
        "cores_per_chip": rows * cols,
        "sync_cycles": draw(st.sampled_from([0, 50])),
        "hbm.latency_s": draw(st.sampled_from([0.0, 1e-7])),
        "hbm.multicast": draw(st.booleans()),
        "hbm.pools": draw(st.sampled_from(["one", "per-chip"])),
        "hbm.bandwidth_bytes_per_s": draw(st.sampled_from([4e9, 16e9, 64e9])),
        "hbm.controller_egress_bytes_per_s": draw(st.sampled_from([4e9, 32e9])),
        "network.port_in_bytes_per_s": draw(rate),
        "network.port_out_bytes_per_s": draw(rate),
        "network.transfer_sharing": draw(st.sampled_from(["max-min", "exchange-first"])),
        "network.transfer_latency_cycles": draw(st.sampled_from([0, 20])),
        "network.exchange_overhead_factor": draw(st.sampled_from([1.0, 1.3])),
        "network.inter_chip_link_bytes_per_s": draw(st.sampled_from([0.0, 5e9])),
        "network.inter_chip_latency_s": draw(st.sampled_from([0.0, 3e-8])),
        "port_sharing": draw(st.sampled_from(["shared", "stall"])),
        "landing_steals_sram": draw(st.booleans()),
        "preload_during_compute": draw(st.booleans()),
        "exchange_overlaps_compute": overlap and draw(st.booleans()),
    }
    if topology != "all-to-all":
        changes |= {
            "network.topology": topology,
            "network.rows": rows,
            "network.cols": cols,
            "network.link_bytes_per_s": draw(rate),
            "network.hop_latency_cycles": draw(st.sampled_from([0, 3])),
            "hbm.controllers_per_chip": 1,
            "hbm.controller_placement": draw(st.sampled_from(PLACEMENTS)),
        }
    drawn = load_chip("test-16").with_fields(changes)
    if topology != "all-to-all":
        for more in (6, 4, 2):
            # A small mesh may not have room for as many.
            with suppress(ChipError):
                return drawn.with_fields({"hbm.controllers_per_chip": more})
    return drawn


PLACEMENTS = ("long-edges", "short-edges", "all-edges", "corners")


@st.composite
def deliveries(draw: st.DrawFn, cores: int) -> Delivery:
    """Blocks shared by some cores, larger on some than on others, on some none."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.sampled_from([64, 500, 4096]), min_size=count, max_size=count))
    block = st.integers(0, count - 1)
    blocks = [sorted(draw(st.sets(block, max_size=2))) for _ in range(cores)]
    if not any(blocks):
        blocks[0] = [0]
    kept = sorted({b for held in blocks for b in held})
    renamed = [[kept.index(b) for b in held] for held in blocks]
    return delivery(cores, renamed, [sizes[b] for b in kept])


@st.composite
def exchanges(draw: st.DrawFn, cores: int) -> Exchange:
    """Irregular traffic, or a ring over the first cores."""
    core = st.integers(0, cores - 1)
    if draw(st.booleans()):
        used = draw(st.integers(2, cores)) if cores > 1 else 1
        size = draw(st.sampled_from([100, 2048]))
        pairs = [((c + 1) % used, c, size) for c in range(used)]
    else:
        pair = st.tuples(core, core, st.sampled_from([0, 64, 1000]))
        pairs = draw(st.lists(pair, min_size=1, max_size=8))
    return exchange(cores, pairs, beside=draw(st.booleans()))


@st.composite
def computes(draw: st.DrawFn, cores: int) -> Compute:
    """Full, edge and idle cores."""
    full = draw(st.sampled_from([100.0, 1500.0]))
    edge = draw(st.sampled_from([0.3, 1.0]))
    kinds = draw(st.lists(st.sampled_from([0.0, edge, 1.0]), min_size=cores, max_size=cores))
    cycles = [full * k for k in kinds]
    moved = draw(st.sampled_from([0.0, 8.0, 16.0]))
    return compute(cycles, [c * moved for c in cycles])


@st.composite
def bodies(draw: st.DrawFn, cores: int, first: int) -> tuple[list[Event], int]:
    """A few operators with preloads somewhere before them, all waited for: (events, variables)."""
    count = draw(st.integers(1, 3))
    slots: list[list[Event]] = [[] for _ in range(count)]
    operators: list[Event] = []
    stored: int | None = None
    variable = first
    for i in range(count):
        inner: list[Event] = []
        for _ in range(draw(st.integers(0, 2))):
            event = preload(variable, draw(deliveries(cores)))
            slots[draw(st.integers(0, i))].append(event)
            inner.append(PreloadWait(variable))
            variable += 1
        if draw(st.booleans()):
            inner.append(draw(exchanges(cores)))
        step = [draw(computes(cores)), draw(exchanges(cores))]
        if draw(st.booleans()):
            inner.append(Repeat(draw(st.integers(1, 4)), tuple(step)))
        else:
            inner += step
        inner.append(draw(computes(cores)))
        operators.append(Operator(f"op{i}", f"node{i}", tuple(inner)))
    events: list[Event] = []
    for before, operator in zip(slots, operators, strict=True):
        events += [*before, operator]
        if stored is not None:
            events.append(StoreWait(stored))
            stored = None
        if draw(st.booleans()):
            stored = variable
            variable += 1
            events.append(Store(stored, "out", draw(deliveries(cores))))
    if stored is not None:
        events.append(StoreWait(stored))
    return events, variable


@st.composite
def programs(draw: st.DrawFn, cores: int, *, loops: bool = True) -> Timeline:
    """A program with a loop whose first preload is issued an iteration ahead."""
    events, variable = draw(bodies(cores, 0))
    if loops:
        carried = preload(variable, draw(deliveries(cores)))
        inside, _ = draw(bodies(cores, variable + 1))
        body = [PreloadWait(variable), *inside[:1], carried, *inside[1:]]
        count = draw(st.integers(1, 12))
        events += [carried, Repeat(count, tuple(body)), PreloadWait(variable)]
    return Timeline(cores, tuple(events))
