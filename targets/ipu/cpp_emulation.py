"""Emitted programs on machines without HBM: how long each transfer from and to it would take.

On each chip one tile plays the HBM controller: it waits for the modelled time of a transfer and
then sends a word to the tiles that would receive data (docs/targets/poplar.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from elk_ir.chips.chip import Chip
from elk_ir.cost.shapes import itemsize
from elk_ir.plan.layout import Layout
from elk_ir.sim.flows import Coflow
from elk_ir.sim.machine import machine_of
from elk_ir.sim.patterns import delivery
from elk_ir.sim.timeline import Preload, Store

WORD_BYTES = 4
"""What a controller sends in place of data."""


EMULATED_VERTEX = [
    "#ifdef ELK_EMULATE_HBM",
    "POPLAR_LITE_VERTEX(HbmController, POPLAR_LITE_FIELD(word), POPLAR_LITE_FIELD(cycles));",
    "#endif",
]
"""What the small runtime must be told of the controller's vertex."""


@dataclass(frozen=True)
class Emulation:
    """The HBM of a chip as an emitted program emulates it. Times are cycles of the chip's clock."""

    chip: Chip

    def preload_cycles(self, layout: Layout, dtype: str, limit: tuple[int, int] | None) -> int:
        """From the issue of a preload until it has landed everywhere, with nothing beside it.
        limit: (axis, n) where only the first n entries along an axis are read."""
        if self.chip.hbm is None:
            return 0
        event = Preload(0, "", delivery(self.chip.cores, layout, itemsize(dtype), limit))
        return self._cycles(machine_of(self.chip).coflow(event))

    def store_cycles(self, layout: Layout, dtype: str) -> int:
        """The same of a store."""
        if self.chip.hbm is None:
            return 0
        event = Store(0, "", delivery(self.chip.cores, layout, itemsize(dtype)))
        return self._cycles(machine_of(self.chip).coflow(event))

    def _cycles(self, coflow: Coflow) -> int:
        return round((coflow.alone_s + coflow.latency_s) * self.chip.clock_hz)

    @property
    def sync_cycles(self) -> float:
        """Cycles of a barrier; an exchange is between two of them."""
        return self.chip.sync_cycles

    @property
    def port_bytes(self) -> tuple[float, float]:
        """Bytes a cycle into a core and out of it, as exchanges pay for them."""
        net, hz = self.chip.network, self.chip.clock_hz
        ports = (net.port_in_bytes_per_s, net.port_out_bytes_per_s)
        into, out = (p / hz / net.exchange_overhead_factor if p else 0.0 for p in ports)
        return into, out

    @property
    def broadcast_cycles(self) -> int:
        """What sending the word takes: the tile waits that much less."""
        rate = min((p for p in self.port_bytes if p), default=0.0)
        transfer = WORD_BYTES / rate if rate else 0.0
        return round(2 * self.sync_cycles + transfer)

    def clock(self) -> str:
        """The machine's figures as arguments of `elk::setClock`."""
        into, out = self.port_bytes
        return f"{self.sync_cycles:g}, {into!r}, {out!r}"

    def constants(self) -> list[str]:
        """What the helpers need to know of the machine."""
        return [
            "// Cycles of a word from one tile to many.",
            f"constexpr unsigned HBM_BROADCAST_CYCLES = {self.broadcast_cycles};",
        ]
