"""The timelines extracted from icca and from ipu are equal, event for event, on real models."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from elk_ir.chips import load_chip
from elk_ir.passes.icca_timeline import timeline_of as timeline_of_icca
from elk_ir.sim import simulate
from elk_ir.sim.timeline import Exchange, Preload, Repeat, leaves, operators
from elk_ir.sim.trace import trace_events
from elk_ir.targets.ipu.timeline import simulate_module
from elk_ir.targets.ipu.timeline import timeline_of as timeline_of_ipu

if TYPE_CHECKING:
    from elk_ir.program import Program

TINY = Path(__file__).resolve().parents[2] / "shared" / "models" / "tiny"
MODELS = sorted(p.name for p in TINY.glob("*.onnx")) if TINY.is_dir() else []
FEW = (
    "llama2_decode_static_dynamo.onnx",
    "gemma2_decode_static_dynamo.onnx",
    "resnet50_w8_static_dynamo.onnx",
    "vit_static_dynamo.onnx",
)

pytestmark = pytest.mark.skipif(not MODELS, reason="../shared/models/tiny is missing")


@lru_cache(maxsize=4)
def compiled(name: str, chip: str, policy: str | None) -> Program | str:
    """The program of a model, or why it can't be compiled (yet): not this test's business."""
    from elk_ir.compiler import compile_model
    from elk_ir.errors import ElkError

    path = TINY / name
    shapes = None
    for inputs in sorted(TINY.glob(f"{path.stem}*.npz"))[:1]:
        with np.load(inputs) as archive:
            shapes = {k[3:]: archive[k].shape for k in archive.files if k.startswith("in/")}
    try:
        return compile_model(path, chip=chip, input_shapes=shapes, policy=policy)
    except ElkError as error:
        return str(error).split("\n")[0]


def equal(name: str, chip: str, policy: str | None = None) -> None:
    """Compile, extract both timelines, compare; then simulate, which checks every bound."""
    program = compiled(name, chip, policy)
    if isinstance(program, str):
        pytest.skip(f"does not compile: {program}")
    from_icca, from_ipu = timeline_of_icca(program.icca), timeline_of_ipu(program.target)
    assert len(from_icca.events) == len(from_ipu.events)
    for a, b in zip(from_icca.events, from_ipu.events, strict=True):
        assert a == b
    result = simulate(from_ipu, program.chip)
    assert result.time_s > 0
    assert result.lower_bound_s <= result.time_s * (1 + 1e-9)
    assert result.sram_peak_bytes <= result.sram_capacity_bytes


@pytest.mark.parametrize("name", FEW)
def test_equal(name: str) -> None:
    equal(name, "test-64")


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["test-64", "test-16-mesh", "test-2x8"])
@pytest.mark.parametrize("name", MODELS)
def test_equal_on_every_tiny_model(name: str, chip: str) -> None:
    # The default policy where programs are largest; what the others add is networks.
    equal(name, chip, None if chip == "test-64" else "basic")


@pytest.fixture(scope="module")
def llama() -> Program:
    """A decode step of a tiny Llama-2."""
    program = compiled("llama2_decode_static_dynamo.onnx", "test-16", "basic")
    assert not isinstance(program, str), program
    return program


def test_hbm_bytes_are_the_tensors_bytes(llama: Program) -> None:
    """Conservation: each preload reads its tensor (or the filled part of a state) once."""
    timeline = timeline_of_ipu(llama.target)
    result = simulate_module(llama.target)
    preloaded = sum(
        leaf.delivery.hbm_bytes * n
        for leaf, n in leaves(timeline.events)
        if isinstance(leaf, Preload)
    )
    assert 0 < preloaded <= result.bytes_by_resource["hbm"] == timeline.hbm_bytes
    assert result.bytes_by_resource["exchange"] == timeline.exchange_bytes
    assert any(isinstance(leaf, Exchange) for leaf, _ in leaves(timeline.events))


def test_counters_of_the_virtual_machine(llama: Program) -> None:
    """The same bytes as those that the virtual machine moved."""
    from elk_ir.numerics.tensors import random_inputs
    from elk_ir.targets.ipu.interpreter import Interpreter

    source = llama._weights.with_seed(0)
    machine = Interpreter(
        llama.target,
        lambda remote: source.load(remote.value),
        cores=llama.chip.cores,
        sram_bytes=llama.chip.usable_sram_per_core_bytes,
    )
    machine.run(random_inputs(llama.signature.inputs, 0))
    moved = simulate_module(llama.target).bytes_by_resource
    counters = machine.counters
    assert moved["exchange"] == counters.exchanged_bytes
    assert moved["hbm"] == counters.hbm_read_bytes + counters.hbm_written_bytes


def test_operators_are_named_by_their_nodes(llama: Program) -> None:
    result = simulate_module(llama.target)
    timeline = timeline_of_ipu(llama.target)
    rows = result.operators()
    assert len(rows) == sum(n for _, n in operators(timeline.events))
    assert all(row.node and row.end_s >= row.start_s for row in rows)
    assert rows[-1].end_s <= result.time_s * (1 + 1e-12)
    assert all(a.end_s <= b.start_s * (1 + 1e-9) for a, b in pairwise(rows))
    report = result.to_json(bins=10)
    assert sum(report["breakdown_s"].values()) == pytest.approx(report["time_s"])
    assert len(report["usage"]["sram_bytes"]) == 10
    events = trace_events(result)
    bars = [e for e in events if e["ph"] == "X"]
    assert {e["cat"] for e in bars} == {"hbm", "network", "execute"}
    assert {row.node for row in rows} <= {e["name"] for e in bars}
    end = max(e["ts"] + e["dur"] for e in bars)
    assert end == pytest.approx(result.time_s * 1e6)


def test_ideal_is_no_slower(llama: Program) -> None:
    chip = load_chip("test-16")
    real = simulate_module(llama.target, chip)
    ideal = simulate_module(llama.target, chip.ideal())
    assert ideal.time_s <= real.time_s * (1 + 1e-12)
    assert ideal.breakdown.network_stall_s == 0.0


def test_layers_are_loops(llama: Program) -> None:
    timeline = timeline_of_ipu(llama.target)
    counts = [e.count for e in timeline.events if isinstance(e, Repeat)]
    unrolled = len(list(leaves(timeline.events)))
    assert unrolled < 2000, counts
