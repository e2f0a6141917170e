"""Emitted programs on a machine without HBM: emulated transfers take the simulator's time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from cpp_program import BuiltProgram, needs_compiler
from helpers import lower, planned, random_array
from numpy.random import default_rng
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips.chip import Chip
from elk_ir.dialects import ipu
from elk_ir.passes.icca_support import chip_of
from elk_ir.sim import simulate
from elk_ir.sim.timeline import Operator, Preload, PreloadWait, Store, StoreWait, Timeline, leaves
from elk_ir.targets.ipu.cpp_emulation import Emulation
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.timeline import timeline_of

# Weights of 256 and 192 KiB: their transfers take longer than the broadcast of a word.
TEXT = """
te.global weight @wq : tensor<256x256xf32> = dense<0.5> : tensor<256x256xf32>
te.global weight @wo : tensor<256x192xf32> = dense<0.25> : tensor<256x192xf32>
func.func @main(
    %h: tensor<32x256xf32> {onnx.name = "h"}
  ) -> (tensor<32x192xf32> {onnx.name = "y"}) {
  %wq = te.load @wq : tensor<256x256xf32>
  %q = te.contract(%h, %wq) <(m = 32, n = 256, k = 256 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32> loc("q")
  %wo = te.load @wo : tensor<256x192xf32>
  %o = te.contract(%q, %wo) <(m = 32, n = 192, k = 256 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<32x256xf32>, tensor<256x192xf32>) -> tensor<32x192xf32> loc("o")
  func.return %o : tensor<32x192xf32>
}
"""
PLANS = (
    'icca-set-plan{op=q grid="n=16"},'
    'icca-set-plan{op=o grid="n=8,k=2" exec="1:k=1" preload="1:k=1" reduce=root}'
)
H = {"h": random_array(default_rng(0), (32, 256), "float32")}


def modelled(module: ModuleOp, chip: Chip) -> dict[str, float]:
    """Cycles of each transfer of a program, simulated with nothing beside it."""
    ops = [op for op in module.walk() if isinstance(op, ipu.CopyStartOp | ipu.StoreStartOp)]
    events = [e for e, _ in leaves(timeline_of(module).events) if isinstance(e, Preload | Store)]
    found: dict[str, float] = {}
    for op, event in zip(ops, events, strict=True):
        wait = PreloadWait if isinstance(event, Preload) else StoreWait
        alone = Timeline(chip.cores, (event, Operator("", "", (wait(event.variable),))))
        if isinstance(op, ipu.CopyStartOp):
            name = op.target.root_reference.data
        else:
            name = f"{op.source.root_reference.data}.store"
        found[name] = simulate(alone, chip).time_s * chip.clock_hz
    return found


def emulated(record: Path) -> dict[str, float]:
    """Cycles of each transfer by the virtual clock: the controller's wait and the broadcast."""
    found: dict[str, float] = defaultdict(float)
    for line in record.read_text().splitlines():
        _, cycles, name = line.split(" ", 2)
        transfer, _, part = name.rpartition(".")
        if part in ("hbm", "broadcast"):
            found[transfer] += float(cycles)
    return found


@needs_compiler
@pytest.mark.parametrize("chip", [pytest.param("test-16", marks=pytest.mark.slow), "test-2x8"])
def test_transfers_take_the_simulated_time(
    chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them within 2 %, on one chip and on two with a controller each."""
    module = lower(planned(TEXT, PLANS, chip=chip))
    machine = chip_of(module)
    wanted = modelled(module, machine)
    assert min(wanted.values()) > Emulation(machine).broadcast_cycles
    built = BuiltProgram(f"#define ELK_EMULATE_HBM\n{emit_cpp(module)}", tmp_path)
    assert not built.warnings
    monkeypatch.setenv("ELK_TIMES", str(tmp_path / "times"))
    result = built.run(module, H)
    assert result.returncode == 0, result.stderr
    got = emulated(tmp_path / "times")
    assert set(got) == set(wanted)
    for name, cycles in wanted.items():
        assert got[name] == pytest.approx(cycles, rel=0.02), name


def test_the_text_says_what_it_cannot_do() -> None:
    """Whoever reads the emitted text learns that emulation is for timing only."""
    text = emit_cpp(lower(planned(TEXT, PLANS)))
    assert "For timing only: no tile can carry data at the speed of HBM" in text
