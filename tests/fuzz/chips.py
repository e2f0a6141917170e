"""Random machines: 1 to 64 cores, any network, small memories, slow links, with and without HBM."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from elk_ir.chips import Chip
from elk_ir.errors import ChipError

CORES = (1, 2, 3, 4, 6, 7, 8, 12, 13, 16, 16, 31, 36, 48, 64)
SRAM_KIB = (256, 64, 128, 512, 32, 16, 8, 4, 2)
"""The first are what drawing shrinks to; the last hold hardly anything."""
RATES = (8e9, 64e9, 1e12, 1e8, 1e6, 1e3)

Draw = st.DrawFn


def _mesh(draw: Draw, cores: int) -> tuple[int, int]:
    rows = draw(st.sampled_from([r for r in range(1, cores + 1) if cores % r == 0]))
    return rows, cores // rows


@st.composite
def chips(draw: Draw, *, hbm: bool | None = None, roomy: bool = False) -> Chip:
    """A valid chip. hbm: whether it has HBM (None: either). roomy: SRAM that any of the small
    programs here fits, so that plans and not capacities are what is tested."""
    cores = draw(st.sampled_from(CORES))
    sizes = SRAM_KIB[:4] if roomy else SRAM_KIB
    sram = draw(st.sampled_from(sizes)) * 1024
    topology = draw(st.sampled_from(["all-to-all", "all-to-all", "mesh2d", "torus2d"]))
    rate = st.sampled_from(RATES)
    network: dict[str, Any] = {
        "topology": topology,
        "port_in_bytes_per_s": draw(rate),
        "port_out_bytes_per_s": draw(rate),
        "transfer_sharing": draw(st.sampled_from(["max-min", "exchange-first"])),
        "transfer_latency_cycles": draw(st.sampled_from([0.0, 10.0, 1e4])),
    }
    if topology != "all-to-all":
        network["rows"], network["cols"] = _mesh(draw, cores)
        network["link_bytes_per_s"] = draw(rate)
    data: dict[str, Any] = {
        "name": "fuzz",
        "chips": draw(st.sampled_from([1, 1, 1, 2])) if cores <= 32 else 1,
        "cores_per_chip": cores,
        "sram_per_core_bytes": sram,
        "reserved_per_core_bytes": draw(st.sampled_from([0, 0, sram // 16, sram // 2])),
        "clock_hz": 1e9,
        "macs_per_cycle_fp32": 16,
        "macs_per_cycle_fp16": 64,
        "macs_per_cycle_int8": draw(st.sampled_from([64, 64, 0])),
        "cost_model": draw(st.sampled_from(["ipu-mk2", "ipu-mk2", "roofline"])),
        "local_bytes_per_cycle": 16,
        "port_sharing": draw(st.sampled_from(["shared", "stall"])),
        "landing_steals_sram": draw(st.booleans()),
        "preload_during_compute": draw(st.booleans()),
        "exchange_overlaps_compute": draw(st.booleans()),
        "sync_cycles": draw(st.sampled_from([100, 0, 100_000])),
        "network": network,
    }
    if hbm or (hbm is None and draw(st.sampled_from([True, True, True, False]))):
        data["hbm"] = {
            "capacity_bytes": draw(st.sampled_from([1 << 30, 1 << 30, 1 << 14])),
            "bandwidth_bytes_per_s": draw(rate),
            "latency_s": draw(st.sampled_from([0.0, 1e-7, 1e-4])),
            "pools": draw(st.sampled_from(["one", "one", "per-chip"])),
            "controllers_per_chip": draw(st.sampled_from([1, 2])),
            "controller_placement": "switch"
            if topology == "all-to-all"
            else draw(st.sampled_from(["long-edges", "corners"])),
            "controller_egress_bytes_per_s": draw(rate),
            "multicast": draw(st.booleans()),
        }
    try:
        return Chip.from_dict(data)
    except ChipError:
        # Two controllers do not fit the edges of a mesh of one row.
        data["hbm"]["controllers_per_chip"] = 1
        return Chip.from_dict(data)


def to_toml(chip: Chip) -> str:
    """The chip as a file that `--chip` takes."""
    data = chip.to_dict()
    sections = {k: v for k, v in data.items() if isinstance(v, dict)}
    lines = [f"{k} = {_value(v)}" for k, v in data.items() if k not in sections]
    for name, section in sections.items():
        lines += ["", f"[{name}]", *(f"{k} = {_value(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
