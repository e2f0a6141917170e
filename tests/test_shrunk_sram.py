"""The same graph with less and less SRAM: plans are forced to rotate, split and preload in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import elk_ir
from elk_ir.chips import Chip, load_chip
from elk_ir.errors import CapacityError, ElkError
from elk_ir.passes.icca_support import executes, program_of
from elk_ir.plan.plan import reduction_ways, ring_steps

MODEL = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"


def plan_features(program: elk_ir.Program) -> Iterator[str]:
    """What the plans of a compiled program make use of."""
    for execute in executes(program_of(program.icca)):
        assert execute.plan is not None
        op, plan = execute.operator(), execute.plan.plan
        if max(ring_steps(op, plan)) > 1:
            yield "ring"
        if reduction_ways(op, plan) > 1:
            yield "split reduction"
        if plan.preload != plan.execute:
            yield "partial preload"


def smallest_sram_bytes(low: int, high: int) -> int:
    """The least usable SRAM, to 64 bytes, with which the graph compiles."""
    while high - low > 64:
        middle = (low + high) // 128 * 64
        try:
            elk_ir.compile(MODEL, chip=chip_with(middle), policy="basic")
        except (CapacityError, ElkError):
            low = middle
        else:
            high = middle
    return high


def chip_with(usable_bytes: int) -> Chip:
    """`test-64` with the given usable SRAM."""
    base = load_chip("test-64")
    reserved = base.reserved_per_core_bytes
    return base.with_fields({"sram_per_core_bytes": usable_bytes + reserved})


def run(program: elk_ir.Program, model: Path = MODEL) -> float:
    """The largest error of an output, relative to its largest value."""
    with np.load(model.with_suffix(".npz")) as data:
        inputs = {k[3:]: data[k] for k in data.files if k.startswith("in/")}
        expected = {k[4:]: data[k] for k in data.files if k.startswith("out/")}
    outputs = program.run(inputs)
    return max(float(np.abs(outputs[k] - v).max() / np.abs(v).max()) for k, v in expected.items())


def test_plans_rotate_and_split_when_sram_is_short() -> None:
    roomy = elk_ir.compile(MODEL, chip="test-64", policy="basic")
    peak = roomy.report["sram_peak_bytes"]
    least = smallest_sram_bytes(peak // 2, peak)
    assert least < peak
    tight = elk_ir.compile(MODEL, chip=chip_with(least), policy="basic")
    assert tight.report["sram_peak_bytes"] <= least
    assert {"ring", "split reduction"} <= set(plan_features(tight))
    assert run(tight) < 1e-4


SLOW_HBM = """
extends = "test-16"
sram_per_core_bytes = {sram}

[hbm]
bandwidth_bytes_per_s = {bandwidth}
"""


def slow_hbm(folder: Path, usable: int, bandwidth: float) -> Path:
    """A file of a chip like test-16 with so many usable bytes a core, and a slow HBM."""
    path = folder / f"usable-{usable}.toml"
    sram = usable + load_chip("test-16").reserved_per_core_bytes
    path.write_text(SLOW_HBM.format(sram=sram, bandwidth=bandwidth), encoding="utf-8")
    return path


def test_plans_rotate_split_and_preload_in_part(tmp_path: Path) -> None:
    """With a slow HBM it pays to be ahead: SRAM is shrunk, and nothing else, until what waits is
    cut finer than what executes, operands rotate and reductions are split, all in one program."""
    wanted = {"ring", "split reduction", "partial preload"}
    roomy = elk_ir.compile(MODEL, chip=slow_hbm(tmp_path, 61_440, 1e9), policy="elk-dyn")
    assert not {"ring", "partial preload"} & set(plan_features(roomy))
    tight = roomy
    for usable in range(12_400, 9_600, -400):
        tight = elk_ir.compile(MODEL, chip=slow_hbm(tmp_path, usable, 1e9), policy="elk-dyn")
        assert tight.report["sram_peak_bytes"] <= usable
        if wanted <= set(plan_features(tight)):
            break
    assert wanted <= set(plan_features(tight))
    assert run(roomy) < 1e-4
    assert run(tight) < 1e-4


POOR = """
extends = "test-64"
sram_per_core_bytes = {sram}
sync_cycles = 10

[hbm]
bandwidth_bytes_per_s = 2e9
multicast = false
"""


@pytest.mark.parametrize(
    "policy", ["basic", "elk-dyn", pytest.param("elk-full", marks=pytest.mark.slow)]
)
def test_room_held_back_leaves_the_smallest_plan(tmp_path: Path, policy: str) -> None:
    """What elk-dyn preloads ahead finds no addresses here, and holding back as much as is missing
    would leave no room for an operator by itself."""
    path = tmp_path / "poor.toml"
    sram = 2304 + load_chip("test-64").reserved_per_core_bytes
    path.write_text(POOR.format(sram=sram), encoding="utf-8")
    program = elk_ir.compile(MODEL, chip=path, policy=policy)
    assert program.report["sram_peak_bytes"] <= 2304
    assert run(program) < 1e-4


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ElkError, match=r"needs [\d,]+ bytes"):
        elk_ir.compile(MODEL, chip=chip_with(1024), policy="basic")
