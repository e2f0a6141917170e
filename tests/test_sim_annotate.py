"""`icca-annotate-cycles`: the numbers are those of the simulator, without contention."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr

from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp
from elk_ir.passes.icca_annotate_cycles import ATTRIBUTE, IccaAnnotateCyclesPass
from elk_ir.passes.icca_support import chip_of
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.sim import simulate
from elk_ir.sim.timeline import Operator

ROOT = Path(__file__).resolve().parents[1]
SLICE = ROOT / "lit_tests" / "pipelines" / "golden_slice.mlir"
PASSES = (
    "convert-te-to-icca{chip=test-16},"
    'icca-set-plan{op=q grid="m=2,n=2,k=2" exec="1:k=2" preload="1:k=2" reduce=scatter scatter=n},'
    'icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},'
    'icca-set-plan{op=norm grid="m=2,k=4"},icca-schedule{policy=basic plans=keep}'
)


def estimate(op: ExecuteOp | PreloadOp) -> dict[str, float]:
    """The attribute as plain numbers."""
    attr = op.attributes[ATTRIBUTE]
    assert isinstance(attr, DictionaryAttr)
    values: dict[str, float] = {}
    for name, value in attr.data.items():
        assert isinstance(value, FloatAttr | IntegerAttr)
        values[name] = float(value.value.data)
    return values


def test_the_slice(tmp_path: Path) -> None:
    from xdsl.context import Context
    from xdsl.parser import Parser
    from xdsl.universe import Universe

    from elk_ir.tools.elk_opt import main

    output = tmp_path / "icca.mlir"
    assert main([str(SLICE), "-p", PASSES, "-o", str(output), "--print-debuginfo"]) == 0
    ctx = Context()
    for name, factory in Universe.get_multiverse().all_dialects.items():
        ctx.register_dialect(name, factory)
    module = Parser(ctx, output.read_text()).parse_module()
    IccaAnnotateCyclesPass().apply(ctx, module)
    module.verify()
    chip = chip_of(module)
    timeline = timeline_of(module)
    found = {op.label.data: estimate(op) for op in module.walk() if isinstance(op, ExecuteOp)}
    assert set(found) == {"norm", "q", "o"}
    for event in timeline.events:
        if isinstance(event, Operator):
            # Alone, without waiting: the sum of what it is made of, as simulated.
            kept = tuple(e for e in event.events if type(e).__name__ != "PreloadWait")
            alone = simulate(type(timeline)(chip.cores, kept), chip)
            values = found[event.label]
            assert values["cycles"] == pytest.approx(alone.time_s * chip.clock_hz, rel=1e-6)
            assert values["cycles"] == pytest.approx(
                values["compute_cycles"] + values["exchange_cycles"] + values["sync_cycles"]
            )
    # q: one shift of 2,048 bytes on 8 cores, relayout 12 x 64, scattered reduction 8 x 64.
    assert found["q"]["exchange_bytes"] == 8 * 2048 + 12 * 64 + 8 * 64
    assert found["q"]["sync_cycles"] == 3 * 2 * 100
    loads = {
        op.source.root_reference.data: estimate(op)
        for op in module.walk()
        if isinstance(op, PreloadOp)
    }
    # 16 KiB over 64 GB/s and over the ports of eight cores: 256 ns both.
    assert loads["wq"] == {"cycles": 256.0, "hbm_bytes": 16384.0, "landing_bytes": 16384.0}
