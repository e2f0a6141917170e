"""A program as the simulator sees it: plain frozen data, no IR, loops kept as loops.

A `Timeline` is extracted from icca (for search) and from ipu (for the report); the two are equal,
event for event. Sizes are bytes, compute is cycles of the chip's clock, cores are numbered as on
the machine. Nothing here depends on bandwidths: those come with the chip when it is simulated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np


class Vector:
    """An immutable one-dimensional array that compares and hashes by content."""

    __slots__ = ("_hash", "values")

    def __init__(self, values: np.ndarray):
        values = np.ascontiguousarray(values)
        assert values.ndim == 1
        values.flags.writeable = False
        self.values = values
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Vector) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.values.size, self.values.tobytes()))
        return self._hash

    def __len__(self) -> int:
        return self.values.size

    def __repr__(self) -> str:
        groups = ", ".join(f"{n} x {v:g}" for v, n in self.classes())
        return f"Vector({groups})"

    def classes(self) -> list[tuple[float, int]]:
        """(value, how many cores have it), ascending: the classes of symmetric cores."""
        values, counts = np.unique(self.values, return_counts=True)
        return [(float(v), int(n)) for v, n in zip(values, counts, strict=True)]

    @property
    def maximum(self) -> float:
        """The largest entry; 0 of an empty vector."""
        return float(self.values.max()) if self.values.size else 0.0


@dataclass(frozen=True)
class Traffic:
    """Bytes from core to core. `source`, `target` and `size_bytes`, integers as narrow as their
    values allow, list the transfers, a core never sending to itself; `local_bytes` is what each of
    `cores` cores moves within its own memory."""

    cores: int
    source: Vector
    target: Vector
    size_bytes: Vector
    local_bytes: Vector

    @property
    def ingress(self) -> np.ndarray:
        """Bytes into each core: float64 (cores,)."""
        return np.bincount(self.target.values, self.size_bytes.values, minlength=self.cores)

    @property
    def egress(self) -> np.ndarray:
        """Bytes out of each core: float64 (cores,)."""
        return np.bincount(self.source.values, self.size_bytes.values, minlength=self.cores)

    @cached_property
    def digest(self) -> bytes:
        """Equal for equal transfers: what is known of many is kept without their lists."""
        found = hashlib.blake2b(digest_size=16)
        for vector in (self.source, self.target, self.size_bytes, self.local_bytes):
            found.update(f"{vector.values.dtype.str}{vector.values.size},".encode())
            found.update(vector.values.data)
        return found.digest()

    @property
    def nbytes(self) -> int:
        """Bytes that this description takes."""
        vectors = (self.source, self.target, self.size_bytes, self.local_bytes)
        return sum(vector.values.nbytes for vector in vectors)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes that leave their core."""
        return int(self.size_bytes.values.sum(dtype=np.int64))


@dataclass(frozen=True)
class Delivery:
    """What HBM brings into cores, or takes from them. Blocks are the distinct boxes of the tensor.

    holders: int32 (cores x slots,), the block in each slot of each core, -1 for none, core by
    core. block_bytes: int64, the size of each. hbm_bytes: each needed byte once.
    """

    cores: int
    slots: int
    holders: Vector
    block_bytes: Vector
    hbm_bytes: int

    @cached_property
    def ingress(self) -> np.ndarray:
        """Bytes that each core holds: float64 (cores,)."""
        sizes = np.append(self.block_bytes.values, 0)
        held = sizes[self.holders.values].reshape(self.cores, self.slots)
        return held.sum(axis=1).astype(np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes that this description takes."""
        return self.holders.values.nbytes + self.block_bytes.values.nbytes

    @cached_property
    def senders(self) -> np.ndarray:
        """The first core that holds each block: int64 (blocks,). That one sends it in a store."""
        first = np.full(len(self.block_bytes), self.cores, dtype=np.int64)
        held = self.holders.values
        core = np.arange(held.size) // self.slots
        np.minimum.at(first, held[held >= 0], core[held >= 0])
        return first

    @cached_property
    def copies(self) -> float:
        """Landing bytes per needed byte."""
        return float(self.ingress.sum()) / self.hbm_bytes if self.hbm_bytes else 0.0


@dataclass(frozen=True)
class Preload:
    """Ask for a tensor from HBM: asynchronous, one after another. `variable` identifies the
    buffer, `name` the tensor. live_bytes: SRAM in use on a core while an event runs."""

    variable: int
    name: str
    delivery: Delivery
    node: str = ""
    live_bytes: int = 0


@dataclass(frozen=True)
class PreloadWait:
    """Wait until the buffer's preload has landed on every core."""

    variable: int
    live_bytes: int = 0


@dataclass(frozen=True)
class Store:
    """Write a buffer to HBM: asynchronous, on the queue of the preloads."""

    variable: int
    name: str
    delivery: Delivery
    node: str = ""
    live_bytes: int = 0


@dataclass(frozen=True)
class StoreWait:
    """Wait until the buffer's store is complete."""

    variable: int
    live_bytes: int = 0


@dataclass(frozen=True)
class Exchange:
    """An exchange phase between two barriers. `kind`: relayout, insert, distribute, shift, reduce.

    span: cores of the operator (exchanges of one that spans chips cost more on some machines).
    beside: it may run while the compute event in front of it does, where a chip can do that.
    """

    kind: str
    traffic: Traffic
    span: int
    beside: bool = False
    live_bytes: int = 0


@dataclass(frozen=True)
class Compute:
    """A compute set. `kind`: local, combine, apply, fill, copy.

    cycles, sram_bytes: float64 for each core, 0 for idle ones; sram_bytes are read and written
    through the core's own port. macs and flops are real work over all cores; dtype a numpy name.
    """

    kind: str
    cycles: Vector
    sram_bytes: Vector
    macs: float = 0.0
    flops: float = 0.0
    dtype: str = ""
    live_bytes: int = 0


@dataclass(frozen=True)
class Sync:
    """Barriers on their own."""

    count: int = 1
    live_bytes: int = 0


@dataclass(frozen=True)
class Operator:
    """The events of one execute, named as in the program and by its ONNX node."""

    label: str
    node: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Repeat:
    """`count` times the events."""

    count: int
    events: tuple[Event, ...]


Leaf = Preload | PreloadWait | Store | StoreWait | Exchange | Compute | Sync
Event = Leaf | Operator | Repeat


@dataclass(frozen=True)
class Timeline:
    """A program for a machine of `cores` cores: events in program order."""

    cores: int
    events: tuple[Event, ...]

    @cached_property
    def peak_bytes(self) -> int:
        """The most SRAM in use on a core."""
        return max((leaf.live_bytes for leaf, _ in leaves(self.events)), default=0)

    @cached_property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM by the whole program."""
        return sum(
            leaf.delivery.hbm_bytes * times
            for leaf, times in leaves(self.events)
            if isinstance(leaf, Preload | Store)
        )

    @cached_property
    def exchange_bytes(self) -> int:
        """Bytes moved between cores by the whole program."""
        return sum(
            leaf.traffic.total_bytes * times
            for leaf, times in leaves(self.events)
            if isinstance(leaf, Exchange)
        )

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of the whole program."""
        return sum(
            leaf.flops * times for leaf, times in leaves(self.events) if isinstance(leaf, Compute)
        )


def leaves(events: tuple[Event, ...], times: int = 1) -> Iterator[tuple[Leaf, int]]:
    """Every event that is not a group, and how often it runs."""
    for event in events:
        if isinstance(event, Repeat):
            yield from leaves(event.events, times * event.count)
        elif isinstance(event, Operator):
            yield from leaves(event.events, times)
        else:
            yield event, times


def operators(events: tuple[Event, ...], times: int = 1) -> Iterator[tuple[Operator, int]]:
    """Every operator, and how often it runs."""
    for event in events:
        if isinstance(event, Repeat):
            yield from operators(event.events, times * event.count)
        elif isinstance(event, Operator):
            yield event, times
