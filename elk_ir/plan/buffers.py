"""What one execute keeps in each core's SRAM, and when: the memory model of DESIGN's plans.

An execute runs through phases; a buffer is live from the start of its first phase to the end of
its last one. Every buffer takes the same bytes on every core, full tiles included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from math import prod

from elk_ir.numerics.body import dtype_of
from elk_ir.plan.domain import Operator, Phase
from elk_ir.plan.layout import Layout
from elk_ir.plan.plan import Plan
from elk_ir.plan.sharding import Sharding, sharding

ALIGNMENT_BYTES = 8


class Source(StrEnum):
    """Where an operand comes from."""

    HBM = "hbm"
    """Preloaded: a weight, a graph input, or the filled part of a state."""
    RESIDENT = "resident"
    """On chip already, in the layout in which its producer left it."""


class ExecPhase(IntEnum):
    """The steps of an execute, in order. `icca.insert` runs in GATHER."""

    GATHER = 0
    """Wait for preloads; bring resident operands into the execute-state (relayout)."""
    DISTRIBUTE = 1
    """Preload-state to execute-state."""
    TILE = 2
    """Ring steps of the local phase."""
    EXCHANGE = 3
    """Partial statistics to the cores that merge them."""
    COMBINE = 4
    """Merging, in a fixed order."""
    APPLY = 5
    """Results from statistics and operands."""


PHASES = len(ExecPhase)


@dataclass(frozen=True, slots=True)
class ExecBuffer:
    """One buffer: `role` and `index` say what for (operand, stat or result number)."""

    role: str
    """preload | execute | landing | partial | gathered | merged | result"""
    index: int
    size_bytes: int
    first: ExecPhase
    last: ExecPhase

    @property
    def name(self) -> str:
        """`role` and number, as the IR prints it: `execute0`."""
        return f"{self.role}{self.index}"


def layout_bytes(layout: Layout, dtype: str) -> int:
    """Bytes that a core reserves for its part of a tensor, aligned."""
    size = layout.elements * dtype_of(dtype).itemsize
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@lru_cache(maxsize=65536)
def execute_buffers(
    op: Operator, plan: Plan, sources: tuple[Source, ...], in_place: tuple[bool, ...]
) -> tuple[ExecBuffer, ...]:
    """All buffers of one execute. `in_place[v]`: a resident operand whose producer's layout is
    already the execute-state, which then needs no buffer of its own."""
    s = sharding(op, plan)
    buffers: list[ExecBuffer] = []
    for v, access in enumerate(op.operands):
        held = layout_bytes(s.execute_layout(v), access.dtype)
        last = ExecPhase.TILE if access.phase is Phase.LOCAL else ExecPhase.APPLY
        if sources[v] is Source.HBM:
            if s.plan.preload[v] == s.plan.execute[v]:
                buffers.append(ExecBuffer("preload", v, held, ExecPhase.GATHER, last))
            else:
                size = layout_bytes(s.preload_layout(v), access.dtype)
                distribute = ExecPhase.DISTRIBUTE
                buffers.append(ExecBuffer("preload", v, size, ExecPhase.GATHER, distribute))
                buffers.append(ExecBuffer("execute", v, held, distribute, last))
        elif not in_place[v]:
            buffers.append(ExecBuffer("execute", v, held, ExecPhase.GATHER, last))
        landing = max((slab_bytes(s, v, d) for d in rotating_dims(s, v)), default=0)
        if landing:
            tile = ExecPhase.TILE
            buffers.append(ExecBuffer("landing", v, landing, tile, tile))
    merged = s.ways > 1
    for i, stat in enumerate(op.stats):
        size = layout_bytes(s.stat_layout(i), stat.dtype)
        end = ExecPhase.EXCHANGE if merged else ExecPhase.APPLY
        buffers.append(ExecBuffer("partial", i, size, ExecPhase.TILE, end))
        if merged:
            size = layout_bytes(s.gathered_layout(i), stat.dtype)
            exchange, combine = ExecPhase.EXCHANGE, ExecPhase.COMBINE
            buffers.append(ExecBuffer("gathered", i, size, exchange, combine))
            size = layout_bytes(s.merged_layout(i), stat.dtype)
            buffers.append(ExecBuffer("merged", i, size, combine, ExecPhase.APPLY))
    for i, result in enumerate(op.results):
        size = layout_bytes(s.result_layout(i), result.dtype)
        buffers.append(ExecBuffer("result", i, size, ExecPhase.APPLY, ExecPhase.APPLY))
    return tuple(buffers)


def rotating_dims(s: Sharding, v: int) -> tuple[int, ...]:
    """Dimensions along which operand v rotates."""
    return tuple(d for d in s.ring_order if s.plan.execute[v][d] > 1)


def slab_bytes(s: Sharding, v: int, d: int) -> int:
    """Bytes of operand v that one shift along d moves into each core: one block along d, all
    blocks held along the other axes."""
    size = layout_bytes(s.execute_layout(v), s.op.operands[v].dtype)
    slab = -(-size // s.window(v, d))
    return -(-slab // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def peak_bytes(buffers: tuple[ExecBuffer, ...]) -> int:
    """The largest sum of live buffers over the phases of one execute."""
    return max(
        (sum(b.size_bytes for b in buffers if b.first <= p <= b.last) for p in ExecPhase), default=0
    )


def shift_count(s: Sharding, d: int) -> int:
    """Shifts along d in one execute: outer rings' steps x (n_d - 1)."""
    i = s.ring_order.index(d)
    outer = prod(s.rings[e] for e in s.ring_order[:i])
    return outer * (s.rings[d] - 1)
