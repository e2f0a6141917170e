"""The machine as plain data: what a `*.toml` chip file says, checked, plus what follows from it.

Nothing here knows about IR; `elk_ir.dialects.chip` turns a `Chip` into `#icca.chip` and back.
`docs/chips.md` explains every field. Units are in the names: bytes, cycles of `clock_hz`, s, J, W.
Bandwidths are one-directional and decimal (1 GB/s = 1e9 bytes/s).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from elk_ir.chips.checks import contradictions, controller_positions
from elk_ir.chips.sections import (
    SECTIONS,
    Energy,
    Hbm,
    Network,
    NorthPole,
    Section,
    checked_arguments,
    specs,
)
from elk_ir.chips.spec import FieldSpec, Value, choice, count, flag, quantity, text
from elk_ir.errors import ChipError

_DTYPES = {
    "fp32": ("fp32", "f32", "float32"),
    "fp16": ("fp16", "f16", "float16", "bf16", "bfloat16"),
    "int8": ("int8", "uint8", "i8", "si8", "ui8"),
    "int4": ("int4", "uint4", "i4", "si4", "ui4"),
    "int2": ("int2", "uint2", "i2", "si2", "ui2"),
}
_CANONICAL_DTYPE = {alias: name for name, aliases in _DTYPES.items() for alias in aliases}


def _macs(type_name: str) -> Mapping[str, FieldSpec]:
    return quantity(
        f"{type_name} multiply-adds one core starts per cycle (a multiply-add is two operations)",
        "MAC/cycle",
        1 / 64,
        1e6,
        zero="the cores cannot multiply this type",
    )


@dataclass(frozen=True, kw_only=True)
class Chip(Section):
    """A machine: one or more equal chips of equal cores. Raises ChipError when it is impossible."""

    name: str = field(metadata=text("what reports call it"))
    description: str = field(default="", metadata=text("one line for people"))

    chips: int = field(metadata=count("chips in the machine", 1, 65536, "chips"))
    cores_per_chip: int = field(metadata=count("cores of one chip", 1, 1_000_000, "cores"))
    sram_per_core_bytes: int = field(
        metadata=count("memory of one core", 1024, 10**12, "bytes"),
    )
    reserved_per_core_bytes: int = field(
        metadata=count("of which code, stack and exchange tables take", 0, 10**12, "bytes"),
    )
    clock_hz: float = field(metadata=quantity("of the cores and networks", "Hz", 1e3, 1e12))

    macs_per_cycle_fp32: float = field(default=0.0, metadata=_macs("fp32"))
    macs_per_cycle_fp16: float = field(default=0.0, metadata=_macs("fp16 (and bf16)"))
    macs_per_cycle_int8: float = field(default=0.0, metadata=_macs("int8"))
    macs_per_cycle_int4: float = field(default=0.0, metadata=_macs("int4"))
    macs_per_cycle_int2: float = field(default=0.0, metadata=_macs("int2"))
    cost_model: str = field(
        default="ipu-mk2",
        metadata=text(
            "whose tile costs apply: a set of formulas by name (`ipu-mk2`, `roofline`,"
            " `northpole`), or a file written by `elk profile fit`"
        ),
    )

    local_bytes_per_cycle: float = field(
        metadata=quantity("what a core reads from its own SRAM", "bytes/cycle", 1 / 64, 1e6)
    )
    port_sharing: str = field(
        metadata=choice(
            "how remote traffic at rho of the SRAM port slows a compute phase that uses phi of it:"
            " by max(1, phi + rho) (`shared`) or by 1 + rho (`stall`)",
            "shared",
            "stall",
        )
    )
    landing_steals_sram: bool = field(
        metadata=flag("whether arriving preloads count as such remote traffic too")
    )
    preload_during_compute: bool = field(
        metadata=flag("whether preloads may land in a core while it computes")
    )
    exchange_overlaps_compute: bool = field(
        metadata=flag("whether a core computes one ring step while it receives the next")
    )
    preload_sram: str = field(
        default="shared",
        metadata=choice(
            "whether preloads and the running operator share the SRAM; `separate` (each has all of"
            " it) only serves the Ideal reference",
            "shared",
            "separate",
        ),
    )
    sync_cycles: float = field(
        metadata=quantity("one barrier over the cores of an operator", "cycles", 0, 1e9)
    )

    network: Network
    hbm: Hbm | None = None
    energy: Energy = field(default_factory=Energy)
    northpole: NorthPole | None = None

    transistors_per_chip: int = field(
        default=0, metadata=count("transistors of one chip", 1, 10**15, "", "unknown")
    )
    die_area_per_chip_mm2: float = field(
        default=0.0, metadata=quantity("silicon of one chip", "mm²", 1, 1e5, "unknown")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = list(contradictions(self))
        if problems:
            raise ChipError(problems[0], details=tuple(problems[1:]))

    # ---- what follows from the fields -------------------------------------------------------

    @property
    def cores(self) -> int:
        """Cores of the whole machine."""
        return self.chips * self.cores_per_chip

    @property
    def cards(self) -> int:
        """Cards of a NorthPole machine (one chip each)."""
        return self.chips

    @property
    def usable_sram_per_core_bytes(self) -> int:
        """What a program may use of one core: capacity less what is reserved."""
        return self.sram_per_core_bytes - self.reserved_per_core_bytes

    @property
    def usable_sram_bytes(self) -> int:
        """The same over all cores."""
        return self.cores * self.usable_sram_per_core_bytes

    def macs_per_cycle(self, dtype: str) -> float:
        """Multiply-adds a core starts per cycle on `dtype` (`fp16`, `f16`, `int8`, `i8`, …).

        0 when the cores cannot multiply it. Raises ChipError for an unknown type name.
        """
        name = _CANONICAL_DTYPE.get(dtype)
        if name is None:
            known = ", ".join(_CANONICAL_DTYPE)
            raise ChipError(f"no multiply rate is defined for type '{dtype}'", hint=f"use {known}")
        return getattr(self, f"macs_per_cycle_{name}")

    def mac_energy_j(self, dtype: str) -> float:
        """Joules of one multiply-add on `dtype`. Raises ChipError for an unknown type name."""
        self.macs_per_cycle(dtype)
        return getattr(self.energy, f"mac_{_CANONICAL_DTYPE[dtype]}_j")

    def peak_flops_per_s(self, dtype: str) -> float:
        """Operations per second of all cores (two per multiply-add)."""
        return 2.0 * self.cores * self.clock_hz * self.macs_per_cycle(dtype)

    @property
    def local_sram_bytes_per_s(self) -> float:
        """What one core reads from its own SRAM, in bytes/s."""
        return self.local_bytes_per_cycle * self.clock_hz

    @property
    def sram_bytes_per_s(self) -> float:
        """The same over all cores."""
        return self.cores * self.local_sram_bytes_per_s

    @property
    def sync_s(self) -> float:
        """One barrier, in seconds."""
        return self.sync_cycles / self.clock_hz

    @property
    def all_ports_in_bytes_per_s(self) -> float:
        """All cores receiving at once, in bytes/s."""
        return self.cores * self.network.port_in_bytes_per_s

    @property
    def links_per_chip(self) -> int:
        """Directed links between neighbouring cores of a chip; 0 on an all-to-all network."""
        net = self.network
        if net.topology == "mesh2d":
            return 2 * (net.rows * (net.cols - 1) + net.cols * (net.rows - 1))
        if net.topology == "torus2d":
            # A ring of n cores has n links a direction; a "ring" of one has none.
            along_rows = net.rows * net.cols if net.cols > 1 else 0
            along_cols = net.rows * net.cols if net.rows > 1 else 0
            return 2 * (along_rows + along_cols)
        return 0

    @property
    def network_bytes_per_s(self) -> float:
        """All that the on-chip networks carry at once: ports if all-to-all, else every link."""
        if self.network.topology == "all-to-all":
            return self.all_ports_in_bytes_per_s
        return self.chips * self.links_per_chip * self.network.link_bytes_per_s

    @property
    def bisection_bytes_per_s(self) -> float:
        """What crosses one chip's middle in one direction, in bytes/s.

        All-to-all: half the cores sending (or receiving) at port speed. Mesh: the links of the cut
        across the longer side; a torus has twice as many.
        """
        net = self.network
        if net.topology == "all-to-all":
            port = min(net.port_in_bytes_per_s, net.port_out_bytes_per_s)
            return (self.cores_per_chip // 2) * port
        wrap = 2 if net.topology == "torus2d" else 1
        # Cutting a side of one core is impossible, so a 1 × n mesh is cut along n.
        return wrap * min(net.rows, net.cols) * net.link_bytes_per_s

    @property
    def chip_egress_bytes_per_s(self) -> float:
        """What one chip can send to the others, in bytes/s (its ports when no link is stated)."""
        net = self.network
        return net.inter_chip_link_bytes_per_s or self.cores_per_chip * net.port_out_bytes_per_s

    @property
    def hbm_bytes_per_s(self) -> float:
        """Sustained HBM bandwidth of the machine; 0 without HBM."""
        return self.hbm.bandwidth_bytes_per_s if self.hbm else 0.0

    @property
    def hbm_pools(self) -> int:
        """Independent HBM pools: 0 without HBM, else 1 or one a chip."""
        if self.hbm is None:
            return 0
        return self.chips if self.hbm.pools == "per-chip" else 1

    @property
    def hbm_egress_bytes_per_s(self) -> float:
        """What all HBM controllers can put on the networks, in bytes/s."""
        if self.hbm is None:
            return 0.0
        controllers = self.chips * self.hbm.controllers_per_chip
        return controllers * self.hbm.controller_egress_bytes_per_s

    def core_position(self, core: int) -> tuple[int, int, int]:
        """(chip, row, column) of a core of the machine, numbered chip by chip, row by row.

        On an all-to-all network without a shape the row is 0.
        """
        chip, local = divmod(core, self.cores_per_chip)
        cols = self.network.cols or self.cores_per_chip
        return chip, local // cols, local % cols

    def controller_positions(self) -> tuple[tuple[int, int], ...]:
        """(row, column) of the core to which each HBM controller of a chip attaches, in order.

        Empty on an all-to-all network (they attach to the switch) and without HBM. Controllers
        spread evenly over the sites of their placement, and equally over two edges.
        """
        if self.hbm is None:
            return ()
        return controller_positions(self.network, self.hbm)

    # ---- changed copies -------------------------------------------------------------------

    def with_fields(self, changes: Mapping[str, Value]) -> Chip:
        """A copy with fields changed, sections by dotted name (`hbm.bandwidth_bytes_per_s`).

        Raises ChipError for an unknown field or an impossible result.
        """
        data = self.to_dict()
        for path, value in changes.items():
            *section, name = path.split(".")
            target = data
            for part in section:
                target = target.get(part)
                if not isinstance(target, dict):
                    raise ChipError(f"chip '{self.name}' has no section '{part}' ({path})")
            target[name] = value
        return Chip.from_dict(data)

    def scaled(self, speed: float) -> Chip:
        """The same chip with every rate times `speed` and every latency divided by it."""
        changes: dict[str, Value] = {}
        for path, spec, value in self.values():
            if spec.unit in ("Hz", "bytes/s"):
                changes[path] = value * speed
            elif spec.unit == "s":
                changes[path] = value / speed
        return self.with_fields(changes)

    def ideal(self) -> Chip:
        """Elk's Ideal machine: preloads have a network and an SRAM of their own."""
        return self.with_fields({"network.preload_network": "separate", "preload_sram": "separate"})

    # ---- as plain data -------------------------------------------------------------------

    def values(self) -> Iterator[tuple[str, FieldSpec, Any]]:
        """Every field that holds a value, as (dotted name, spec, value)."""
        for prefix, section in self.sections():
            for item, spec in specs(type(section)):
                yield prefix + item.name, spec, getattr(section, item.name)

    def sections(self) -> Iterator[tuple[str, Section]]:
        """The chip itself (prefix '') and the sections it has (prefixes like 'hbm.')."""
        yield "", self
        for name in SECTIONS:
            section = getattr(self, name)
            if section is not None:
                yield f"{name}.", section

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises ChipError for an unknown, missing or wrong field, naming all of them at once.
        """
        problems: list[str] = []
        arguments: dict[str, Any] = {}
        for name, section in SECTIONS.items():
            values = data.get(name)
            if values is None:
                continue
            if not isinstance(values, Mapping):
                problems.append(f"{name} = {values!r}: must be a section")
                continue
            checked = checked_arguments(section, values, f"{name}.", problems)
            arguments[name] = checked
        top = {key: value for key, value in data.items() if key not in SECTIONS}
        arguments |= checked_arguments(cls, top, "", problems)
        if "network" not in data:
            problems.append("section 'network' is missing")
        if problems:
            raise ChipError(problems[0], details=tuple(problems[1:]))
        for name, section in SECTIONS.items():
            if name in arguments:
                arguments[name] = section(**arguments[name])
        return cls(**arguments)

    def content_hash(self) -> str:
        """SHA-256 (hex) of every field but `name` and `description`: equal machines, equal hash."""
        data = self.to_dict()
        del data["name"], data["description"]
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
