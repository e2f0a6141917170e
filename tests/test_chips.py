"""The machine description: built-in chips, the loader's messages, `#icca.chip`, `elk chips`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Dialect
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from elk_ir.chips import Chip, Energy, Hbm, Network, NorthPole, builtin_chips, load_chip
from elk_ir.chips.describe import describe, peaks, si
from elk_ir.chips.load import chip_from_toml
from elk_ir.chips.sections import SECTIONS, Section, specs
from elk_ir.dialects.chip import ChipAttr
from elk_ir.errors import ChipError
from elk_ir.tools import cmd_chips

DOCS = Path(__file__).parent.parent / "docs" / "chips.md"
REQUIRED = {
    "ipu-pod4-hbm",
    "ipu-pod4-hbm-mesh",
    "ipu-pod4-hbm-links",
    "ipu-pod4-hbm-sync",
    "ipu-hbm",
    "ipu-mk2",
    "test-16",
    "test-64",
    "northpole",
    "northpole-16",
}
every_chip = pytest.mark.parametrize("name", builtin_chips())


def parse_attribute(text: str) -> Any:
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(Dialect("icca", [], [ChipAttr]))
    return Parser(context, text).parse_attribute()


# ---- built-in chips ---------------------------------------------------------------------------


def test_the_chips_of_the_design_are_there() -> None:
    assert set(builtin_chips()) >= REQUIRED


@every_chip
def test_toml_chip_attribute_chip_is_exact(name: str) -> None:
    chip = load_chip(name)
    assert chip.name == name
    attribute = ChipAttr.from_chip(chip)
    again = parse_attribute(str(attribute))
    assert again == attribute
    assert hash(again) == hash(attribute)
    assert again.to_chip() == chip
    assert again.to_chip().content_hash() == chip.content_hash()
    assert Chip.from_dict(json.loads(json.dumps(chip.to_dict()))) == chip


@every_chip
def test_controllers_do_not_throttle_the_hbm_of_a_builtin(name: str) -> None:
    chip = load_chip(name)
    assert chip.hbm_egress_bytes_per_s >= chip.hbm_bytes_per_s


@every_chip
def test_every_number_of_a_builtin_is_explained_by_a_comment(name: str) -> None:
    from elk_ir import chips

    lines = (Path(chips.__file__).parent / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    numbers = [line for line in lines if re.match(r"\w+ = [\d.]", line)]
    bare = [line for line in numbers if "#" not in line]
    # The test chips say once, at their top, that all their numbers are invented; some tables
    # (energies, both directions of a port) say it at their first line.
    if not name.startswith("test-"):
        allowed = {"cols", "port_out_bytes_per_s", "chips", "mac_int8_j", "mac_int4_j"}
        allowed |= {"mac_int2_j"}
        assert [line for line in bare if line.split()[0] not in allowed] == []


def test_elks_machine() -> None:
    chip = load_chip("ipu-pod4-hbm")
    assert chip.cores == 5888
    assert chip.usable_sram_per_core_bytes == 584 * 1024
    # 2 × 5,888 × 1.325e9 × 64 and × 16.
    assert chip.peak_flops_per_s("fp16") == pytest.approx(998.6e12, rel=1e-4)
    assert chip.peak_flops_per_s("f32") == pytest.approx(249.65e12, rel=1e-4)
    assert chip.network_bytes_per_s == 5888 * 5.5e9
    assert chip.bisection_bytes_per_s == 736 * 5.5e9
    assert chip.sram_bytes_per_s == pytest.approx(5888 * 16 * 1.325e9)
    assert chip.hbm_bytes_per_s == 16e12
    assert chip.sync_s == pytest.approx(118 / 1.325e9)
    assert chip.preload_during_compute
    assert not load_chip("ipu-pod4-hbm-sync").preload_during_compute
    # Not stated: as the ports.
    assert chip.chip_egress_bytes_per_s == 1472 * 5.5e9
    assert load_chip("ipu-pod4-hbm-links").chip_egress_bytes_per_s == 160e9
    assert load_chip("ipu-mk2").hbm is None
    assert load_chip("ipu-mk2").hbm_pools == 0


def test_published_exchange_rate() -> None:
    chip = load_chip("ipu-pod4-hbm-exchange")
    cycles_per_byte = (
        chip.network.exchange_overhead_factor * chip.clock_hz / chip.network.port_in_bytes_per_s
    )
    assert cycles_per_byte == pytest.approx(0.28, rel=1e-4)


def test_northpole() -> None:
    chip = load_chip("northpole-16")
    assert chip.cards == 16
    # 288 cards are published as 115 POPS at INT4, one card's memory as 13 TB/s.
    assert chip.peak_flops_per_s("int4") * 18 == pytest.approx(115e15, rel=0.06)
    assert chip.sram_bytes_per_s / 16 == pytest.approx(13e12, rel=0.01)
    assert chip.usable_sram_bytes == 16 * 192_000_000
    # 109.05 MB of weights a layer and 2.097 MB of KV a user: 39 users fit, as published.
    room = 192_000_000 - (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) // 2
    assert room // (2048 * 2 * 1024 // 2) == 39


def test_variants_differ_only_where_they_say() -> None:
    base = dict(load_chip("ipu-pod4-hbm").to_dict())
    for name, changed in (
        ("ipu-pod4-hbm-sync", {"preload_during_compute"}),
        ("ipu-pod4-hbm-links", {"network"}),
        ("ipu-pod4-hbm-mesh", {"network", "hbm", "energy"}),
        ("ipu-hbm", {"chips", "hbm"}),
    ):
        fields = load_chip(name).to_dict()
        different = {key for key in base if fields[key] != base[key]}
        assert different == changed | {"name", "description"}


# ---- derived quantities -----------------------------------------------------------------------


def mesh(topology: str, rows: int, cols: int, **hbm: Any) -> Chip:
    changes = {
        "cores_per_chip": rows * cols,
        "network.topology": topology,
        "network.rows": rows,
        "network.cols": cols,
    }
    changes |= {f"hbm.{key}": value for key, value in hbm.items()}
    return load_chip("test-16-mesh").with_fields(changes)


def brute_force_links(topology: str, rows: int, cols: int) -> int:
    count = 0
    for row in range(rows):
        for col in range(cols):
            for step_row, step_col, size in (
                (1, 0, rows),
                (-1, 0, rows),
                (0, 1, cols),
                (0, -1, cols),
            ):
                inside = 0 <= row + step_row < rows and 0 <= col + step_col < cols
                count += inside if topology == "mesh2d" else size > 1
    return count


@pytest.mark.parametrize("topology", ["mesh2d", "torus2d"])
@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (1, 8), (2, 3), (3, 5), (2, 2)])
def test_links_by_brute_force(topology: str, rows: int, cols: int) -> None:
    chip = mesh(topology, rows, cols, controllers_per_chip=1)
    assert chip.links_per_chip == brute_force_links(topology, rows, cols)
    assert chip.network_bytes_per_s == chip.links_per_chip * chip.network.link_bytes_per_s


def test_bisection() -> None:
    assert mesh("mesh2d", 4, 4).bisection_bytes_per_s == 4 * 16e9
    assert mesh("mesh2d", 2, 8).bisection_bytes_per_s == 2 * 16e9
    assert mesh("torus2d", 4, 4).bisection_bytes_per_s == 8 * 16e9
    assert load_chip("test-16").bisection_bytes_per_s == 8 * 8e9


def test_controller_positions() -> None:
    def positions(placement: str, controllers: int, rows: int, cols: int) -> tuple[Any, ...]:
        chip = mesh(
            "mesh2d",
            rows,
            cols,
            controller_placement=placement,
            controllers_per_chip=controllers,
        )
        return chip.controller_positions()

    assert positions("long-edges", 4, 4, 4) == ((0, 1), (0, 3), (3, 1), (3, 3))
    assert positions("long-edges", 2, 4, 2) == ((2, 0), (2, 1))
    assert positions("short-edges", 2, 2, 4) == ((1, 0), (1, 3))
    assert positions("corners", 4, 3, 5) == ((0, 0), (0, 4), (2, 0), (2, 4))
    assert load_chip("test-16").controller_positions() == ()
    assert load_chip("northpole").controller_positions() == ()
    everywhere = load_chip("ipu-pod4-hbm-mesh").controller_positions()
    assert sorted(everywhere) == sorted((row, col) for row in (0, 31) for col in range(46))


@given(st.integers(1, 7), st.integers(1, 7), st.data())
@settings(max_examples=60, deadline=None)
def test_controllers_sit_on_distinct_edge_cores(rows: int, cols: int, data: Any) -> None:
    placement = data.draw(
        st.sampled_from(["long-edges", "short-edges", "all-edges", "corners"]), label="placement"
    )
    controllers = data.draw(st.integers(1, 2 * (rows + cols)), label="controllers")
    try:
        chip = mesh(
            "mesh2d",
            rows,
            cols,
            controller_placement=placement,
            controllers_per_chip=controllers,
        )
    except ChipError as error:
        assert controllers > 1  # one always fits
        assert "hbm.controllers_per_chip" in str(error)
        return
    positions = chip.controller_positions()
    assert len(set(positions)) == controllers
    for row, col in positions:
        assert row in (0, rows - 1) or col in (0, cols - 1)


def test_core_positions_count_row_by_row_and_chip_by_chip() -> None:
    chip = load_chip("ipu-pod4-hbm-mesh")
    assert chip.core_position(0) == (0, 0, 0)
    assert chip.core_position(47) == (0, 1, 1)
    assert chip.core_position(1472 + 45) == (1, 0, 45)
    assert load_chip("ipu-pod4-hbm").core_position(1473) == (1, 0, 1)


def test_types() -> None:
    chip = load_chip("test-16")
    assert chip.macs_per_cycle("bf16") == chip.macs_per_cycle("f16") == 64
    assert chip.macs_per_cycle("uint8") == 64
    assert chip.peak_flops_per_s("int2") == 0
    assert chip.mac_energy_j("f32") == 1.69e-12
    with pytest.raises(ChipError, match="no multiply rate is defined for type 'f64'"):
        chip.peak_flops_per_s("f64")


def test_changed_copies() -> None:
    chip = load_chip("test-16")
    faster = chip.with_fields({"hbm.bandwidth_bytes_per_s": 1e12, "chips": 2})
    assert (faster.hbm_bytes_per_s, faster.cores) == (1e12, 32)
    assert chip.hbm_bytes_per_s == 64e9
    with pytest.raises(ChipError, match=r"unknown field 'hbm.bandwith_bytes_per_s'; did you mean"):
        chip.with_fields({"hbm.bandwith_bytes_per_s": 1})
    with pytest.raises(ChipError, match="'ipu-mk2' has no section 'hbm'"):
        load_chip("ipu-mk2").with_fields({"hbm.latency_s": 1})
    ideal = chip.ideal()
    assert (ideal.network.preload_network, ideal.preload_sram) == ("separate", "separate")
    assert "Ideal" in describe(ideal)


@every_chip
def test_scaling_speed_scales_every_rate_and_latency(name: str) -> None:
    chip = load_chip(name)
    fast = chip.scaled(4.0)
    assert fast.clock_hz == 4 * chip.clock_hz
    assert fast.sync_s == pytest.approx(chip.sync_s / 4)
    for (path, spec, old), (_, _, new) in zip(chip.values(), fast.values(), strict=True):
        if path.endswith("bytes_per_s"):
            assert new == 4 * old, path
        elif path.endswith("_s") and spec.unit == "s":
            assert new == old / 4, path
    assert fast.scaled(0.25) == chip


def test_hash_is_of_the_machine_and_not_of_its_name() -> None:
    chip = load_chip("test-16")
    renamed = dataclasses.replace(chip, name="other", description="something else")
    assert renamed.content_hash() == chip.content_hash()
    for path, spec, value in chip.values():
        if spec.kind == "float" and value:
            assert chip.with_fields({path: value * 1.001 + 0.0}).content_hash() != (
                chip.content_hash()
            ), path
    # Whole floats and ints are the same number, so they are the same machine.
    assert dataclasses.replace(chip, clock_hz=1_000_000_000) == chip
    hashes = {load_chip(name).content_hash() for name in builtin_chips()}
    assert len(hashes) == len(builtin_chips())


@given(
    st.floats(1e3, 1e12),
    st.floats(1e3, 1e18),
    st.floats(0, 1e-3),
    st.floats(1 / 64, 1e6),
)
@settings(max_examples=50, deadline=None)
def test_any_float_survives_the_attribute(
    clock: float, bandwidth: float, latency: float, macs: float
) -> None:
    chip = load_chip("test-16").with_fields(
        {
            "clock_hz": clock,
            "hbm.bandwidth_bytes_per_s": bandwidth,
            "hbm.latency_s": latency,
            "energy.hbm_byte_j": latency,
            "macs_per_cycle_fp16": macs,
        }
    )
    assert parse_attribute(str(ChipAttr.from_chip(chip))).to_chip() == chip


# ---- the attribute ------------------------------------------------------------------------------


def test_attribute_reads_like_a_dictionary() -> None:
    text = str(ChipAttr.from_chip(load_chip("test-16-mesh")))
    assert text.startswith('#icca.chip<"test-16-mesh", {description = ')
    assert 'network = {topology = "mesh2d", rows = 4, cols = 4, ' in text
    assert "latency_s = 1.0e-07" in text


def test_attribute_defaults_and_errors() -> None:
    text = str(ChipAttr.from_chip(load_chip("test-16")))
    shorter = text.replace(", die_area_per_chip_mm2 = 0.0", "").replace(
        "1000000000.0", "1000000000"
    )
    assert parse_attribute(shorter).to_chip() == load_chip("test-16")
    for old, new, message in (
        ("chips = 1,", "chips = 0,", "chips = 0: must be a whole number from 1 to 65536 chips"),
        ("chips = 1,", "chips = 1, chips = 2,", "field 'chips' is given twice"),
        ("chips = 1,", "chips = 1, chipz = 2,", "did you mean 'chips'"),
        ("chips = 1,", "", "field 'chips' is missing"),
        ("chips = 1,", "chips = [],", "'{' expected"),
        ("{description", '{name = "x", description', "name stands before its fields"),
        ("rows = 0", "rows = 5", "5 × 0 = 0 cores"),
    ):
        assert old in text
        with pytest.raises(ParseError) as caught:
            parse_attribute(text.replace(old, new, 1))
        assert message in str(caught.value)


# ---- words ------------------------------------------------------------------------------------


@every_chip
def test_every_chip_is_explained(name: str) -> None:
    chip = load_chip(name)
    text = describe(chip)
    assert text.startswith(f"{name}: ")
    assert all(len(line) <= 88 for line in text.splitlines())
    assert ("HBM holds" in text) == (chip.hbm is not None)
    for paragraph in text.split("\n\n")[:-1]:
        assert "  " not in paragraph.replace("\n", " ")
    for key, value in peaks(chip).items():
        assert math.isfinite(value), key
        assert re.search(r"cores$|_bytes$|_per_s$|_s$|_per_hbm_byte$", key), key


def test_words_follow_the_fields() -> None:
    text = " ".join(describe(load_chip("ipu-pod4-hbm")).split())
    for part in (
        "4 chips of 1,472 cores (5,888 in all) at 1.325 GHz",
        "624 KiB of SRAM, of which 40 KiB are reserved",
        "584 KiB are usable",
        "5.5 GB/s into and out of each core",
        "exchanges that span chips cost 1.25 times as much",
        "HBM holds 576 GB and sustains 16 TB/s (one pool for all chips)",
        "peak fp16 998.6 TFLOPS",
        "network, all at once 32.38 TB/s",
        "bisection of a chip 4.048 TB/s",
        "Preloads land while cores compute",
    ):
        assert part in text
    assert "No preload lands" in describe(load_chip("ipu-pod4-hbm-sync"))
    assert "32 × 46 mesh with 64 GB/s" in describe(load_chip("ipu-pod4-hbm-mesh"))
    assert "160 GB/s to the others" in describe(load_chip("ipu-pod4-hbm-links"))
    stalled = load_chip("test-16").with_fields({"port_sharing": "stall"})
    assert "stalls compute" in describe(stalled)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (16e12, "16 TB"),
        (999.9e9, "999.9 GB"),
        (999.99e9, "1 TB"),
        (5.5e9, "5.5 GB"),
        (1, "1 B"),
        (2e-7, "200 nB"),
        (7.2e-13, "0.72 pB"),
    ],
)
def test_prefixes(value: float, shown: str) -> None:
    assert si(value, "B") == shown


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    cmd_chips.add_parser(parser.add_subparsers())
    assert cmd_chips.run(parser.parse_args(["chips", *arguments])) == 0
    return capsys.readouterr().out


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    listing = command(capsys)
    assert [line.split()[0] for line in listing.splitlines()[: len(builtin_chips())]] == list(
        builtin_chips()
    )
    assert command(capsys, "test-16") == describe(load_chip("test-16"))
    data = json.loads(command(capsys, "test-16", "--json"))
    assert data["chip"] == "test-16"
    assert Chip.from_dict(data["fields"]) == load_chip("test-16")
    assert data["derived"]["peak_fp16_flops_per_s"] == 2 * 16 * 64 * 1e9
    assert data["content_hash"] == load_chip("test-16").content_hash()
    everything = json.loads(command(capsys, "--json"))
    assert [entry["chip"] for entry in everything["chips"]] == list(builtin_chips())
    path = tmp_path / "mine.toml"
    path.write_text('extends = "ipu-hbm"\ndescription = "mine"\n', encoding="utf-8")
    assert command(capsys, str(path)).startswith("mine: mine\n")


# ---- fields and their documentation -------------------------------------------------------------

UNIT_IN_NAME = {
    "bytes": "_bytes",
    "bytes/s": "_bytes_per_s",
    "bytes/cycle": "_bytes_per_cycle",
    "MAC/cycle": "macs_per_cycle_",
    "cycles": "_cycles",
    "Hz": "_hz",
    "s": "_s",
    "J": "_j",
    "W": "_w",
    "mm²": "_mm2",
    "chips": "chips",
    "cores": "cores",
    "rows": "rows",
    "cols": "cols",
    "columns": "cols",
    "controllers": "controllers",
}
ALL_SECTIONS: list[tuple[str, type[Section]]] = [
    ("", Chip),
    *((f"{k}.", v) for k, v in SECTIONS.items()),
]


def documented_row(prefix: str, field: dataclasses.Field[Any], spec: Any) -> str:
    """The line of docs/chips.md that a field must have."""
    if field.default is dataclasses.MISSING:
        default = "required"
    elif spec.kind == "str":
        default = f"`{json.dumps(field.default)}`"
    else:
        default = f"`{field.default:g}`"
    allowed = spec.allowed().replace("'", "`")
    return f"| `{prefix}{field.name}` | {allowed} | {default} | {spec.meaning} |"


def test_units_are_in_the_names() -> None:
    for prefix, section in ALL_SECTIONS:
        for field, spec in specs(section):
            if spec.unit:
                assert UNIT_IN_NAME[spec.unit] in field.name, prefix + field.name
            elif spec.kind == "float":
                assert field.name.endswith("_factor")


def test_every_field_is_documented() -> None:
    lines = set(DOCS.read_text(encoding="utf-8").splitlines())
    for prefix, section in ALL_SECTIONS:
        for field, spec in specs(section):
            row = documented_row(prefix, field, spec)
            assert row in lines, f"docs/chips.md lacks this line:\n{row}"
    assert {Network, Hbm, Energy, NorthPole} == set(SECTIONS.values())


def test_every_chip_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in builtin_chips():
        assert f"`{name}`" in text


def test_the_example_of_the_documentation_loads() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert chip_from_toml(block, "mine.toml").cores > 0
