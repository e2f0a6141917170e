"""A chip in words and in derived peaks: what `elk chips NAME` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from elk_ir.chips.chip import Chip

_DTYPES = ("fp32", "fp16", "int8", "int4", "int2")
_WIDTH = 88


def peaks(chip: Chip) -> dict[str, float | int]:
    """Derived quantities by name, each with its unit in the name; for `--json`.

    `bisection_bytes_per_s` is of one chip, all else of the whole machine.
    """
    result: dict[str, float | int] = {
        "cores": chip.cores,
        "usable_sram_per_core_bytes": chip.usable_sram_per_core_bytes,
        "usable_sram_bytes": chip.usable_sram_bytes,
        "sram_bytes_per_s": chip.sram_bytes_per_s,
    }
    for dtype in _DTYPES:
        if chip.macs_per_cycle(dtype):
            result[f"peak_{dtype}_flops_per_s"] = chip.peak_flops_per_s(dtype)
    result |= {
        "network_bytes_per_s": chip.network_bytes_per_s,
        "all_ports_in_bytes_per_s": chip.all_ports_in_bytes_per_s,
        "bisection_bytes_per_s": chip.bisection_bytes_per_s,
        "sync_s": chip.sync_s,
    }
    if chip.chips > 1:
        result["chip_egress_bytes_per_s"] = chip.chip_egress_bytes_per_s
    if chip.hbm is not None:
        result |= {
            "hbm_bytes_per_s": chip.hbm_bytes_per_s,
            "hbm_capacity_bytes": chip.hbm.capacity_bytes,
            "hbm_egress_bytes_per_s": chip.hbm_egress_bytes_per_s,
            "sram_fill_s": chip.usable_sram_bytes / chip.hbm_bytes_per_s,
        }
        if chip.macs_per_cycle("fp16"):
            balance = chip.peak_flops_per_s("fp16") / chip.hbm_bytes_per_s
            result["fp16_flops_per_hbm_byte"] = balance
    return result


def describe(chip: Chip) -> str:
    """The chip explained in words, then its derived peaks as a table; ends with a newline."""
    paragraphs = [" ".join(part) for part in (_cores(chip), _network(chip), _memory(chip))]
    if chip.northpole is not None:
        paragraphs.append(" ".join(_northpole(chip)))
    paragraphs.append(" ".join(_power(chip)))
    title = f"{chip.name}: {chip.description}" if chip.description else chip.name
    blocks = [_filled(text) for text in (title, *paragraphs) if text]
    return "\n\n".join([*blocks, _table(chip)]) + "\n"


def _filled(text: str) -> str:
    """Wrapped, but never between a number and its unit."""
    glued = re.sub(r"(?<=[0-9]) (?=[A-Za-zµ])", "\u00a0", text)
    return textwrap.fill(glued, _WIDTH).replace("\u00a0", " ")


def si(value: float, unit: str) -> str:
    """A decimal quantity with a prefix: 1.6e13 -> '16 TB/s'."""
    for factor, prefix in (
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
        (1e-9, "n"),
    ):
        # What rounds to 1,000 of the smaller prefix is shown as 1 of this one.
        if abs(value) >= factor * 0.99995:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value / 1e-12:.4g} p{unit}" if value else f"0 {unit}"


def kib(value: int) -> str:
    """Bytes of a core as KiB where that is whole, else as they are."""
    return f"{value // 1024:,} KiB" if value % 1024 == 0 else f"{value:,} bytes"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _cores(chip: Chip) -> Iterator[str]:
    holder = "card" if chip.northpole is not None else "chip"
    if chip.chips == 1:
        yield f"One {holder} of {_plural(chip.cores_per_chip, 'core')} at"
    else:
        yield (
            f"{_plural(chip.chips, holder)} of {_plural(chip.cores_per_chip, 'core')}"
            f" ({chip.cores:,} in all) at"
        )
    yield f"{si(chip.clock_hz, 'Hz')}."
    yield (
        f"A core has {kib(chip.sram_per_core_bytes)} of SRAM, of which"
        f" {kib(chip.reserved_per_core_bytes)} are reserved for code, stack and exchange tables"
        f" and {kib(chip.usable_sram_per_core_bytes)} are usable."
    )
    rates = [
        f"{chip.macs_per_cycle(dtype):g} {dtype}" for dtype in _DTYPES if chip.macs_per_cycle(dtype)
    ]
    yield f"It starts {', '.join(rates)} multiply-adds a cycle" if rates else "It has no multiplier"
    yield f"and reads {chip.local_bytes_per_cycle:g} bytes a cycle from its SRAM;"
    if chip.port_sharing == "shared":
        yield "remote traffic takes what compute leaves of that port, and slows it beyond that."
    else:
        yield "remote traffic on that port stalls compute for as long as it takes."
    when = "while it receives the next" if chip.exchange_overlaps_compute else "between exchanges"
    yield f"A core computes a ring step {when};"
    if chip.sync_cycles:
        yield f"a barrier takes {chip.sync_cycles:g} cycles ({si(chip.sync_s, 's')})."
    else:
        yield "a barrier takes no time of its own."
    yield f"Tile times come from the cost model '{chip.cost_model}'."


def _network(chip: Chip) -> Iterator[str]:
    net = chip.network
    port_in = si(net.port_in_bytes_per_s, "B/s")
    port_out = si(net.port_out_bytes_per_s, "B/s")
    ports = f"{port_in} into and {port_out} out of each core"
    if port_in == port_out:
        ports = f"{port_in} into and out of each core"
    if net.topology == "all-to-all":
        yield f"The cores of a chip hang on one switch (all-to-all): {ports}."
    else:
        shape = "mesh" if net.topology == "mesh2d" else "torus"
        yield (
            f"The cores of a chip form a {net.rows} × {net.cols} {shape} with"
            f" {si(net.link_bytes_per_s, 'B/s')} in each direction of a link, dimension-order"
            f" routing, and {ports}."
        )
    if net.preload_network == "separate":
        yield "Preloads have ports of their own, as many and as fast as those of exchanges."
    elif net.transfer_sharing == "max-min":
        yield "Preloads and exchanges share it fairly."
    else:
        yield "Exchanges go before preloads on it."
    if chip.preload_sram == "separate":
        yield "(This is an Ideal machine: preloads have an SRAM of their own.)"
    if net.exchange_overhead_factor != 1:
        yield f"A byte of an exchange costs {net.exchange_overhead_factor:g} port bytes."
    if chip.chips > 1:
        link = "Cores of two chips reach each other at port speed (assumed)"
        if net.inter_chip_link_bytes_per_s:
            link = (
                f"A chip sends {si(net.inter_chip_link_bytes_per_s, 'B/s')} to the others and"
                " receives as much"
            )
        if net.inter_chip_latency_s:
            link += f", {si(net.inter_chip_latency_s, 's')} away"
        if net.exchange_span_factor != 1:
            link += f"; exchanges that span chips cost {net.exchange_span_factor:g} times as much"
        yield f"{link}."


def _memory(chip: Chip) -> Iterator[str]:
    hbm = chip.hbm
    if hbm is None:
        yield "There is no off-chip memory: all weights and state have to stay in the cores."
        return
    pool = "one pool for all chips" if hbm.pools == "one" else "an equal pool for each chip"
    yield (
        f"HBM holds {si(hbm.capacity_bytes, 'B')} and sustains"
        f" {si(hbm.bandwidth_bytes_per_s, 'B/s')}"
    )
    if chip.chips > 1:
        yield f"({pool});"
    else:
        yield "in all;"
    yield f"the first byte takes {si(hbm.latency_s, 's')}."
    place = {
        "switch": "on the switch",
        "long-edges": "along both long edges",
        "short-edges": "along both short edges",
        "all-edges": "along all edges",
        "corners": "at the corners",
    }[hbm.controller_placement]
    copies = "one copy for all cores" if hbm.multicast else "a copy for each core"
    yield (
        f"Each chip has {_plural(hbm.controllers_per_chip, 'controller')} {place}, each sending"
        f" up to {si(hbm.controller_egress_bytes_per_s, 'B/s')}, {copies} that need it."
    )
    if chip.preload_during_compute:
        steal = "taking SRAM cycles from it" if chip.landing_steals_sram else "without slowing it"
        yield f"Preloads land while cores compute, {steal}."
    else:
        yield "No preload lands while cores compute (bulk-synchronous)."


def _northpole(chip: Chip) -> Iterator[str]:
    card = chip.northpole
    assert card is not None
    yield (
        f"A card adds a framebuffer of {si(card.framebuffer_bytes, 'B')}, a vector unit of"
        f" {card.vector_slices} × {card.vector_ways} fp16 operations and"
        f" {card.activation_slices} activation functions a core and cycle, and PCIe at"
        f" {si(card.pcie_bytes_per_s, 'B/s')} each way ({si(card.pcie_latency_s, 's')}); the host"
        f" forwards {si(card.host_bytes_per_s, 'B/s')} in all."
    )
    yield f"A dependent phase costs a calibrated {si(card.phase_overhead_s, 's')}."
    if card.measured_power_per_card_w:
        yield f"A card was measured at {card.measured_power_per_card_w:g} W."


def _power(chip: Chip) -> Iterator[str]:
    energy = chip.energy
    moved = (
        ("SRAM", energy.sram_byte_j),
        ("the network", energy.network_byte_j),
        ("HBM", energy.hbm_byte_j if chip.hbm else 0.0),
        ("a chip link", energy.chip_link_byte_j if chip.chips > 1 else 0.0),
    )
    costs = [f"{si(joules, 'J')} in {place}" for place, joules in moved if joules]
    macs = [
        f"{si(chip.mac_energy_j(dtype), 'J')} in {dtype}"
        for dtype in _DTYPES
        if chip.macs_per_cycle(dtype) and chip.mac_energy_j(dtype)
    ]
    if macs:
        yield f"A multiply-add costs {', '.join(macs)}."
    if costs:
        yield f"Moving a byte costs {', '.join(costs)}."
    if energy.static_power_per_chip_w:
        yield f"An idle chip draws {energy.static_power_per_chip_w:g} W."
    if chip.transistors_per_chip and chip.die_area_per_chip_mm2:
        yield (
            f"A chip has {chip.transistors_per_chip / 1e9:g} billion transistors on"
            f" {chip.die_area_per_chip_mm2:g} mm²."
        )


def _table(chip: Chip) -> str:
    rows: list[tuple[str, str]] = []
    for dtype in _DTYPES:
        if chip.macs_per_cycle(dtype):
            unit = "FLOPS" if dtype.startswith("fp") else "OPS"
            rows.append((f"peak {dtype}", si(chip.peak_flops_per_s(dtype), unit)))
    rows += [
        ("usable SRAM", si(chip.usable_sram_bytes, "B")),
        ("SRAM bandwidth", si(chip.sram_bytes_per_s, "B/s")),
        ("network, all at once", si(chip.network_bytes_per_s, "B/s")),
        ("bisection of a chip", si(chip.bisection_bytes_per_s, "B/s")),
    ]
    if chip.chips > 1:
        rows.append(("out of a chip", si(chip.chip_egress_bytes_per_s, "B/s")))
    if chip.hbm is not None:
        fill = chip.usable_sram_bytes / chip.hbm_bytes_per_s
        share = chip.hbm_bytes_per_s / chip.all_ports_in_bytes_per_s
        rows += [
            ("HBM bandwidth", si(chip.hbm_bytes_per_s, "B/s")),
            ("HBM over all ports", f"{share:.1%} when nothing is sent to two cores"),
            ("HBM fills the SRAM in", si(fill, "s")),
        ]
        if chip.macs_per_cycle("fp16"):
            balance = chip.peak_flops_per_s("fp16") / chip.hbm_bytes_per_s
            rows.append(("fp16 balance", f"{balance:.4g} FLOP per HBM byte"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
