"""The enumeration's cycles of a plan against the execute that the simulator sees.

Only re-layouts and inserted entries are left out: they depend on other operators' plans. On full
tiles of whole multiples of the buffer alignment the two are equal; where tiles are ragged, the
enumeration counts the padded, aligned tile of the busiest core for every core.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import parse, program, run_passes
from test_enumerate import batch_of, random_plans
from test_plans_on_machine import PLANS, of
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips.chip import Chip
from elk_ir.chips.load import load_chip
from elk_ir.cost.device import device_model
from elk_ir.dialects.icca.ops import ExecuteOp
from elk_ir.passes.icca_support import executes, plan_of, program_of, set_plan
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.plan.batch import Machine, evaluate, plan_at
from elk_ir.plan.plan import simple_plan
from elk_ir.sim.machine import machine_of
from elk_ir.sim.timeline import Compute, Exchange, Operator, leaves

TOLERANCE = 0.025
"""Relative; the tiles here are so small that a ragged edge counts for much."""

WHOLE = """
te.global weight @w : tensor<64x96xf16> = dense<0.5> : tensor<64x96xf16>
func.func @main(%h: tensor<48x64xf16> {onnx.name = "h"}) -> (tensor<48x96xf16> {onnx.name = "y"}) {
  %w = te.load @w : tensor<64x96xf16>
  %q = te.contract(%h, %w) <(m = 48, n = 96, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<48x64xf16>, tensor<64x96xf16>) -> tensor<48x96xf16> loc("q")
  func.return %q : tensor<48x96xf16>
}
"""
"""A product whose extents many grids divide."""


CASES = {
    "norm": (program("slice"), "norm"),
    "product": (program("slice"), "q"),
    "whole tiles": (WHOLE, "q"),
    "attention": (program("attention"), "attention"),
}
"""A te module, and the label of one of its operators."""


def icca(text: str) -> ModuleOp:
    module = run_passes(parse(text), "convert-te-to-icca{chip=test-16}")
    for execute in executes(program_of(module)):
        op = execute.operator()
        set_plan(execute, simple_plan(op, (1,) * len(op.dims)))
    return module


def simulated(module: ModuleOp, label: str, chip: Chip) -> float:
    """Cycles of one execute alone, without re-layouts."""
    machine = machine_of(chip)
    (event,) = [
        e
        for e in timeline_of(module, device_model(chip)).events
        if isinstance(e, Operator) and e.label == label
    ]
    cycles = 0.0
    for leaf, times in leaves(event.events):
        if isinstance(leaf, Compute):
            cycles += times * leaf.cycles.maximum
        elif isinstance(leaf, Exchange) and leaf.kind not in ("relayout", "insert"):
            flow = machine.coflow(leaf)
            cycles += times * (flow.alone_s + flow.latency_s) * chip.clock_hz
            if leaf.traffic.total_bytes:
                cycles += times * 2.0 * chip.sync_cycles
    return cycles


def enumerated(execute: ExecuteOp, chip: Chip) -> float:
    op = execute.operator()
    batch = batch_of(plan_of(execute))
    cost = device_model(chip)
    return float(evaluate(op, Machine.of(chip), execute.sources, cost, batch).execute_cycles[0])


def found(module: ModuleOp, label: str) -> ExecuteOp:
    (execute,) = [e for e in executes(program_of(module)) if e.label.data == label]
    return execute


def one_chip(name: str) -> Chip:
    """16 cores of a chip."""
    return load_chip(name).with_fields({"chips": 1, "cores_per_chip": 16})


@pytest.mark.parametrize("what", [w for w in PLANS if w != "ragged rings"])
def test_plans_by_hand(what: str) -> None:
    """Everything that a plan can say; rings in the order that the enumeration gives them."""
    module = run_passes(icca(program("slice")), of("q", PLANS[what][0]))
    execute = found(module, "q")
    set_plan(execute, plan_at(execute.operator(), batch_of(plan_of(execute)), 0))
    for chip in (one_chip("test-16"), one_chip("ipu-pod4-hbm")):
        ours, theirs = enumerated(execute, chip), simulated(module, "q", chip)
        assert ours == pytest.approx(theirs, rel=TOLERANCE)


@pytest.mark.parametrize("chip_name", ["test-16", "ipu-pod4-hbm"])
@pytest.mark.parametrize("case", CASES)
def test_random_plans(case: str, chip_name: str) -> None:
    """Any legal plan; most are equal, rings with copies, fills and blocks included."""
    text, label = CASES[case]
    module, chip = icca(text), one_chip(chip_name)
    execute = found(module, label)
    op = execute.operator()
    plans = random_plans(op, execute.sources, 16, seed=5)[:60]
    pairs: list[tuple[float, float]] = []
    for plan in plans:
        set_plan(execute, plan_at(op, batch_of(plan), 0))
        pairs.append((enumerated(execute, chip), simulated(module, label, chip)))
    ours, theirs = np.asarray(pairs).T
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE)
    assert (np.abs(ours / theirs - 1.0) < 1e-9).mean() > 0.4
    rotating = [any(x > 1 for state in p.execute for x in state) for p in plans]
    assert any(rotating) == (case != "norm")
