"""The parts of a chip: network, off-chip memory, energy, and what a NorthPole card adds.

Units are in the names: bytes, cycles (of the chip's clock), s, J, W. Bandwidths are one-directional
and decimal (1 GB/s = 1e9 bytes/s). `docs/chips.md` explains every field.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elk_ir.chips.spec import FieldSpec, choice, count, flag, quantity, spec_of
from elk_ir.errors import ChipError

_BW_LOW, _BW_HIGH = 1e3, 1e18


def _rate(meaning: str, zero: str = "") -> Mapping[str, FieldSpec]:
    return quantity(meaning, "bytes/s", _BW_LOW, _BW_HIGH, zero)


def _energy(meaning: str) -> Mapping[str, FieldSpec]:
    return quantity(meaning, "J", 0, 1e-3)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Checks and normalises its own fields. Raises ChipError naming field, value and range."""

    def __post_init__(self) -> None:
        for item, spec in specs(type(self)):
            value = getattr(self, item.name)
            try:
                object.__setattr__(self, item.name, spec.convert(value))
            except ValueError as error:
                raise ChipError(f"{item.name} = {value!r}: must be {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values in field order; absent sections are left out."""
        result: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Section):
                result[item.name] = value.to_dict()
            elif value is not None:
                result[item.name] = value
        return result


def specs(section: type[Section]) -> Iterator[tuple[dataclasses.Field[Any], FieldSpec]]:
    """The fields of a section that hold values (not nested sections), with their specs."""
    for item in dataclasses.fields(section):
        spec = spec_of(item)
        if spec is not None:
            yield item, spec


@dataclass(frozen=True, kw_only=True)
class Network(Section):
    """How cores reach each other, HBM controllers and other chips.

    Every core has a port (ingress and egress are separate resources). On `mesh2d` and `torus2d`
    there are links between neighbours besides, used by dimension-order routing; cores are numbered
    row by row, so core c of a chip sits at (c // cols, c % cols).
    """

    topology: str = field(
        metadata=choice(
            "what the cores of a chip hang on: one switch, or links between neighbours",
            "all-to-all",
            "mesh2d",
            "torus2d",
        )
    )
    rows: int = field(
        default=0, metadata=count("rows of cores on a chip", 1, 4096, "rows", "all-to-all")
    )
    cols: int = field(
        default=0, metadata=count("columns of cores on a chip", 1, 4096, "columns", "all-to-all")
    )
    port_in_bytes_per_s: float = field(metadata=_rate("what one core can receive"))
    port_out_bytes_per_s: float = field(metadata=_rate("what one core can send"))
    link_bytes_per_s: float = field(
        default=0.0,
        metadata=_rate("one link between two neighbours, in each direction", "no links"),
    )
    transfer_sharing: str = field(
        default="max-min",
        metadata=choice(
            "how a preload and an exchange share a port or link: fairly, or exchanges go first",
            "max-min",
            "exchange-first",
        ),
    )
    preload_network: str = field(
        default="shared",
        metadata=choice(
            "whether preloads use the same ports and links as exchanges; `separate`: each has all"
            " of them (a GPU's loads come through its cache; and the Ideal reference)",
            "shared",
            "separate",
        ),
    )
    transfer_latency_cycles: float = field(
        default=0.0,
        metadata=quantity("from the start of a transfer to its first byte", "cycles", 0, 1e6),
    )
    hop_latency_cycles: float = field(
        default=0.0, metadata=quantity("what each mesh link adds to that", "cycles", 0, 1e4)
    )
    exchange_overhead_factor: float = field(
        default=1.0,
        metadata=quantity("port bytes that one byte of an exchange costs", "", 1, 100),
    )
    exchange_span_factor: float = field(
        default=1.0,
        metadata=quantity(
            "times that again for the exchanges of an operator whose cores span chips", "", 1, 100
        ),
    )
    inter_chip_link_bytes_per_s: float = field(
        default=0.0,
        metadata=_rate("all that one chip can send to (and receive from) others", "as the ports"),
    )
    inter_chip_latency_s: float = field(
        default=0.0, metadata=quantity("what crossing to another chip adds", "s", 0, 1)
    )


@dataclass(frozen=True, kw_only=True)
class Hbm(Section):
    """Off-chip memory. Capacity and bandwidth are those of the whole machine.

    With `pools = "one"` any controller reaches all of it, and preloads cross no chip links. With
    `"per-chip"` each chip owns an equal share of both and preloads only from it: what several chips
    need is stored in, and read from, each of their pools.
    """

    capacity_bytes: int = field(metadata=count("all of it", 1, 10**18, "bytes"))
    bandwidth_bytes_per_s: float = field(
        metadata=_rate("sustained, that is with refresh already taken off")
    )
    peak_bandwidth_bytes_per_s: float = field(
        default=0.0, metadata=_rate("pin rate, from which refresh is still to come off", "unstated")
    )
    refresh_interval_s: float = field(
        default=0.0, metadata=quantity("tREFI: a refresh is due this often", "s", 1e-15, 1, "none")
    )
    refresh_duration_s: float = field(
        default=0.0, metadata=quantity("tRFC: how long it blocks", "s", 1e-15, 1, "none")
    )
    latency_s: float = field(
        metadata=quantity("from a request on an idle memory to its first byte", "s", 0, 1e-3)
    )
    pools: str = field(
        default="one",
        metadata=choice("one memory for every chip, or one for each", "one", "per-chip"),
    )
    controllers_per_chip: int = field(metadata=count("memory controllers", 1, 4096, "controllers"))
    controller_placement: str = field(
        metadata=choice(
            "where they attach: the switch of an all-to-all chip, or cores at the edges of a mesh",
            "switch",
            "long-edges",
            "short-edges",
            "all-edges",
            "corners",
        )
    )
    controller_egress_bytes_per_s: float = field(
        metadata=_rate("what one controller can put on the network")
    )
    multicast: bool = field(
        metadata=flag("a controller sends one copy to all cores that need it, not one to each")
    )

    @property
    def refresh_sustained_bytes_per_s(self) -> float:
        """Peak less refresh, peak · (1 − tRFC / tREFI) bytes/s; 0 when no peak is stated."""
        if not self.refresh_interval_s:
            return self.peak_bandwidth_bytes_per_s
        return self.peak_bandwidth_bytes_per_s * (
            1 - self.refresh_duration_s / self.refresh_interval_s
        )


@dataclass(frozen=True, kw_only=True)
class Energy(Section):
    """Joules for each multiply-add and each byte moved, and watts that flow regardless."""

    mac_fp32_j: float = field(default=0.0, metadata=_energy("one fp32 multiply-add"))
    mac_fp16_j: float = field(default=0.0, metadata=_energy("one fp16 product added in fp32"))
    mac_int8_j: float = field(default=0.0, metadata=_energy("one int8 product added in int32"))
    mac_int4_j: float = field(default=0.0, metadata=_energy("one int4 product added in int32"))
    mac_int2_j: float = field(default=0.0, metadata=_energy("one int2 product added in int32"))
    sram_byte_j: float = field(default=0.0, metadata=_energy("a byte read or written in SRAM"))
    network_byte_j: float = field(
        default=0.0, metadata=_energy("a byte carried between cores, or once per mesh link")
    )
    hbm_byte_j: float = field(default=0.0, metadata=_energy("a byte read or written in HBM"))
    chip_link_byte_j: float = field(
        default=0.0, metadata=_energy("a byte sent from chip to chip (or card to card)")
    )
    static_power_per_chip_w: float = field(
        default=0.0, metadata=quantity("drawn by a chip that does nothing", "W", 0, 1e5)
    )


@dataclass(frozen=True, kw_only=True)
class NorthPole(Section):
    """What a NorthPole card has besides cores. A card carries one chip: cards == chips."""

    framebuffer_bytes: int = field(
        metadata=count("memory beside the core array for inputs and outputs", 1, 10**12, "bytes")
    )
    vector_slices: int = field(metadata=count("slices of a core's fp16 vector unit", 1, 4096))
    vector_ways: int = field(metadata=count("fp16 operations a slice starts per cycle", 1, 64))
    activation_slices: int = field(
        metadata=count("activation functions a core starts per cycle", 1, 4096)
    )
    pcie_bytes_per_s: float = field(metadata=_rate("a card's PCIe port, in each direction"))
    pcie_latency_s: float = field(
        metadata=quantity("from one card to another, or to the host", "s", 0, 1)
    )
    host_bytes_per_s: float = field(
        metadata=_rate("what the host forwards, summed over all cards, in each direction")
    )
    phase_overhead_s: float = field(
        metadata=quantity("fixed cost of a dependent phase (calibrated, not published)", "s", 0, 1)
    )
    measured_power_per_card_w: float = field(
        default=0.0, metadata=quantity("published average of a card at work", "W", 0, 1e5)
    )


SECTIONS: dict[str, type[Section]] = {
    "network": Network,
    "hbm": Hbm,
    "energy": Energy,
    "northpole": NorthPole,
}


def checked_arguments(
    section: type[Section], values: Mapping[str, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    """Constructor arguments of a section; what is wrong with them is appended to `problems`."""
    fields = {item.name: (item, spec) for item, spec in specs(section)}
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            names = list(fields) if prefix else [*fields, *SECTIONS]
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            guess = f"; did you mean '{prefix}{close[0]}'?" if close else ""
            problems.append(f"unknown field '{prefix}{name}'{guess}")
            continue
        try:
            result[name] = fields[name][1].convert(value)
        except ValueError as error:
            problems.append(f"{prefix}{name} = {_shown(value)}: must be {error}")
    for name, (item, spec) in fields.items():
        if name not in values and item.default is dataclasses.MISSING:
            problems.append(f"field '{prefix}{name}' is missing: give {spec.allowed()}")
    return result


def _shown(value: object) -> str:
    """A value as its author wrote it in TOML (or close to)."""
    if isinstance(value, bool):
        return str(value).lower()
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
