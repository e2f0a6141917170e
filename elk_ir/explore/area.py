"""A proxy of silicon area, so that sweeps have a third objective beside time and energy."""

from __future__ import annotations

from elk_ir.chips import Chip

SRAM_MM2_PER_BIT = 0.054e-6
"""TSMC's 7 nm high-density cell, 0.027 µm² (ISSCC 2017), at half of the array's area: assumed."""

_MK2_MM2 = 823.0  # die of an IPU MK2 (Graphcore)
_MK2_CORES = 1472
_MK2_SRAM_BYTES = 638_976  # 624 KiB a core
_MK2_MACS = 64.0  # fp16 a cycle
_MK2_PORT_BYTES = 8.3  # in and out a cycle: 5.5 GB/s each way at 1.325 GHz

LOGIC_MM2 = _MK2_MM2 / _MK2_CORES - _MK2_SRAM_BYTES * 8 * SRAM_MM2_PER_BIT
"""What an MK2 core's share of the die leaves beside its SRAM."""


def area_proxy_mm2(chip: Chip) -> float:
    """mm² of the machine if it were built like IPU MK2s: SRAM by the bit, and what is left of an
    MK2 core in halves that grow with multiply-adds and with port bytes a cycle.

    A proxy for comparing points of one sweep: HBM, links and controllers are left out, and the
    split into halves is an assumption.
    """
    net = chip.network
    macs = max(chip.macs_per_cycle_fp16, chip.macs_per_cycle_int8 / 2)
    port = (net.port_in_bytes_per_s + net.port_out_bytes_per_s) / chip.clock_hz
    core = chip.sram_per_core_bytes * 8 * SRAM_MM2_PER_BIT
    core += LOGIC_MM2 * 0.5 * (macs / _MK2_MACS + port / _MK2_PORT_BYTES)
    return chip.cores * core
