"""Loops whose bodies are several layers: the numbers, the stacks, and one layer's schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    Weights,
    check_both_landings,
    lower,
    parse,
    planned,
    random_array,
    run,
    run_passes,
)
from test_full_size_machine import parts
from test_layer_loop import PLANS, arrays, layers
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir import Attribute

from elk_ir.dialects import ipu
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.icca.ops import ExecuteOp, HbmOp, RepeatOp
from elk_ir.dialects.types import shape_dtype
from elk_ir.frontend.weights import WeightRef, every_layer
from elk_ir.memory.lifetimes import Problem
from elk_ir.memory.offsets import Allocation
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.passes import icca_schedule
from elk_ir.passes.icca_schedule import schedule_by_name, schedule_module
from elk_ir.passes.icca_schedule_model import Scheduling, runs_of, tables_of
from elk_ir.passes.icca_support import program_of
from elk_ir.passes.icca_unroll_layers import unroll_layers
from elk_ir.schedule.fold import folded, unfolded
from elk_ir.schedule.model import Edge, Program, Schedule, Store, evaluate, occupied
from elk_ir.schedule.pack import overflow_bytes
from elk_ir.schedule.policies import EXECUTABLE, Effort, policy
from elk_ir.weight_source import WeightSource

ROOT = Path(__file__).resolve().parents[1]
ON_CHIP = "convert-te-to-icca{chip=test-16}"


class Unrolled(Weights):
    """Weights of `count` layers, and of the stacks that have every `factor`-th of them."""

    def __init__(self, count: int, factor: int):
        super().__init__()
        self.count, self.factor = count, factor

    def __call__(self, op: ipu.RemoteOp) -> np.ndarray:
        name, _, k = op.sym_name.data.partition(".")
        if name not in self.values:
            shape, dtype = shape_dtype(op.type)
            rng = np.random.default_rng([*name.encode()])
            array = random_array(rng, (self.count, *shape), dtype)
            self.values[name] = (array / np.sqrt(shape[-2])).astype(array.dtype)
        return self.values[name][int(k) :: self.factor] if k else self.values[name]


def dense(value: Attribute | None) -> np.ndarray:
    """The value of a weight that is written in the IR."""
    assert isinstance(value, DenseIntOrFPElementsAttr)
    return array_from_dense(value)


@pytest.mark.parametrize(("count", "factor"), [(4, 2), (5, 2), (7, 3), (2, 2), (6, 6)])
@pytest.mark.parametrize("policies", [None, "basic", "elk-full"])
def test_numbers(count: int, factor: int, policies: str | None) -> None:
    """With layers left over or none, by hand-written plans and scheduled: states and weights are
    those of each layer."""
    unroll = f"icca-unroll-layers{{factor={factor}}}"
    if policies is None:
        module = run_passes(planned(layers(count), PLANS), unroll)
    else:
        module = run_passes(
            parse(layers(count)), f"{ON_CHIP},{unroll},icca-schedule{{policy={policies}}}"
        )
    (loop,) = (op for op in module.walk() if isinstance(op, RepeatOp))
    labels = [op.label.data for op in loop.body.block.ops if isinstance(op, ExecuteOp)]
    assert labels.count("keys") == factor
    weights = Unrolled(count, factor)
    inputs, outputs = arrays(count, weights, lower(module))
    check_both_landings(module, inputs, outputs, weights, 2e-5)


def test_values_and_names_are_split() -> None:
    """Every stack has its layers' names, constants and steps."""
    module = run_passes(parse(layers(5)), f"{ON_CHIP},icca-unroll-layers")
    found = {op.sym_name.data: op for op in module.walk() if isinstance(op, HbmOp)}
    assert {n: found[n].layers for n in ("wk.0", "wk.1", "kv.0", "kv.1")} == {
        "wk.0": 3,
        "wk.1": 2,
        "kv.0": 3,
        "kv.1": 2,
    }
    names = {
        name: [[n.data for n in group or ()] for group in (op.inputs, op.outputs)]
        for name, op in found.items()
        if name.startswith("kv")
    }
    assert names == {
        "kv.0": [["past0", "past2", "past4"], ["present0", "present2", "present4"]],
        "kv.1": [["past1", "past3"], ["present1", "present3"]],
    }


def test_the_evaluator_agrees() -> None:
    """The same outputs from icca as before, to the last bit."""
    inputs = {"x": random_array(np.random.default_rng(1), (1, 16), "float32")}
    inputs |= {
        f"past{i}": random_array(np.random.default_rng(i + 2), (3, 16), "float32") for i in range(5)
    }

    def outputs(passes: str) -> dict[str, np.ndarray]:
        module = run_passes(parse(layers(5)), passes)
        return evaluate_icca(module, inputs, load_weight=dense)

    plain, wide = outputs(ON_CHIP), outputs(f"{ON_CHIP},icca-unroll-layers{{factor=3}}")
    assert plain.keys() == wide.keys()
    for name, wanted in plain.items():
        assert wide[name].tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize(
    ("count", "recipe"),
    [
        (6, ("stack",)),
        (6, ("transpose 1 0", "stack")),
        (6, ("concat 0 2", "stack 3")),
        (6, ("stack", "transpose 0 2 1")),  # no layer can be had alone
    ],
)
def test_every_layer_of_a_weight(count: int, recipe: tuple[str, ...], tmp_path: Path) -> None:
    ref = WeightRef(parts(tmp_path, count), recipe)
    source = WeightSource(tmp_path)
    whole = source.load_ref(ref)
    for first in range(2):
        found = source.load_ref(every_layer(ref, len(whole), first, 2))
        np.testing.assert_array_equal(found, whole[first::2])


@pytest.mark.parametrize("name", EXECUTABLE)
def test_the_schedule_that_needs_two_addresses(name: str) -> None:
    """The loop of the lit test, under every policy: the same numbers, and no slower than without
    unrolling."""
    text = (ROOT / "lit_tests/passes/icca_schedule_unroll.mlir").read_text()
    module = run_passes(parse(text), ON_CHIP)
    plain = module.clone()
    scheduling = schedule_by_name(module, name, effort=Effort(200))
    alone = schedule_module(plain, policy(name, effort=Effort(200)), keep_plans=False, retries=True)
    assert scheduling.time_s <= alone.time_s * (1.0 + 1e-9)
    unrolled = [p.copies for p, _ in scheduling.schedules if p.periodic]
    assert unrolled == [1 if name == "basic" else 2]
    weights = Unrolled(6, 2)
    x = random_array(np.random.default_rng(0), (1, 64), "float16")
    (wanted,) = run(lower(plain), {"x": x}, weights).outputs.values()
    check_both_landings(lower(module), {"x": x}, {"y": wanted}, weights, 4e-3)


# ---------------------------------------------------------------------- folding


def program_and_twice(count: int = 6) -> tuple[Program, Program]:
    """The model of a loop, and that of the same loop with two layers in its body."""
    found: list[Program] = []
    known = None
    for factor in (1, 2):
        module = run_passes(parse(layers(count)), ON_CHIP)
        if factor > 1:
            assert unroll_layers(module, factor) == 1
        known = known or tables_of(module)
        scheduling = Scheduling(module, policy("basic"), False, [0] * 64, 0, known)
        scheduling.hbm = {op.sym_name.data: op for op in module.walk() if isinstance(op, HbmOp)}
        scheduling.number = {
            op: i for i, op in enumerate(o for o in module.walk() if isinstance(o, ExecuteOp))
        }
        (run,) = (r for r in runs_of(program_of(module).body.block) if r.body_of and r.executes)
        found.append(scheduling.program(run, periodic=True))
    return found[0], found[1]


def test_two_equal_layers_are_one() -> None:
    one, two = program_and_twice()
    assert len(two.ops) == 2 * len(one.ops)
    found = folded(two)
    assert found.copies == 2 and found.repeats == one.repeats
    assert found.key == one.key
    assert folded(one) is one and folded(found) is found


@pytest.mark.parametrize("name", EXECUTABLE)
def test_a_schedule_of_one_layer_takes_half_as_long(name: str) -> None:
    """Two layers by the schedule of one: twice its time, and at most its bytes."""
    _, two = program_and_twice()
    one = folded(two)
    schedule = policy(name, effort=Effort(200))(one)
    whole = unfolded(one, schedule)
    assert evaluate(two, whole).time_s == pytest.approx(
        2 * evaluate(one, schedule).time_s, rel=1e-5
    )
    assert occupied(two, whole) == 2 * occupied(one, schedule)
    assert all(at <= j % len(two.ops) and at > -len(one.ops) for j, at in enumerate(whole.issue))


@pytest.mark.parametrize("what", ["table", "edge", "loads", "store", "far"])
def test_layers_that_differ_stay_two(what: str) -> None:
    _, two = program_and_twice()
    ops, size = list(two.ops), len(two.ops) // 2
    last = ops[-1]
    if what == "table":
        ops[-1] = replace(last, table=last.table.take(np.arange(len(last.table))))
    elif what == "edge":
        ops[-1] = replace(last, inputs=(*last.inputs[:-1], Edge(0, 0)))
    elif what == "loads":
        ops[-1] = replace(last, loads=not last.loads)
    elif what == "far":
        # The first layer reads what the one two layers before it has made.
        ops[0] = replace(ops[0], inputs=(Edge(size - 1, 0, True), *ops[0].inputs[1:]))
    stores = (*two.stores, Store(1, 1e-6)) if what == "store" else two.stores
    changed = replace(two, ops=tuple(ops), stores=stores)
    assert folded(changed) is changed


def test_copies_have_addresses_of_their_own() -> None:
    """Three preloads of which any two meet, each time elsewhere, need the sum of their bytes if
    each has one address, and less if they have two."""
    one, _ = program_and_twice()
    heavy = [j for j, op in enumerate(one.ops) if op.loads][:3]
    assert len(heavy) == 3
    table = one.ops[heavy[0]].table.take(np.array([0]))
    size = 1000
    table = replace(
        table,
        preload_bytes=np.array([size]),
        execute_bytes=np.array([size]),
    )
    empty = replace(
        table, preload_bytes=np.array([0]), execute_bytes=np.array([0]), landing_s=np.array([0.0])
    )
    ops = tuple(
        replace(
            one.ops[heavy[0]], table=table if i % 2 == 0 else empty, loads=i % 2 == 0, inputs=()
        )
        for i in range(6)
    )
    program = replace(one, ops=ops, stores=(), addresses_bytes=2 * size)
    # Each lives for three of six places and meets the next one in one of them.
    schedule = Schedule(
        (0,) * 6, tuple(j - 2 if j % 2 == 0 else j for j in range(6)), tuple(range(6))
    )
    assert max(occupied(program, schedule)) == 2 * size
    assert overflow_bytes(program, schedule) == size
    assert overflow_bytes(replace(program, copies=2), schedule) == 0


def test_loops_without_addresses_are_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one layer has room but no addresses, two layers are tried, and kept where they do."""
    module = run_passes(parse(layers(8)), ON_CHIP)
    heights = icca_schedule.allocate

    def too_high(problem: Problem, **options: Any) -> Allocation:
        found = heights(problem, **options)
        executes = sum(".execute" in b.name for b in problem.buffers)
        narrow = executes < 12
        return replace(found, height_bytes=problem.capacity_bytes + 8) if narrow else found

    monkeypatch.setattr(icca_schedule, "allocate", too_high)
    scheduling = schedule_module(module, policy("static"), keep_plans=False, unroll=True)
    (program, _), *_ = [s for s in scheduling.schedules if s[0].periodic]
    assert program.copies == 2
    loops = [op for op in module.walk() if isinstance(op, RepeatOp)]
    assert [loop.count.value.data for loop in loops] in ([3], [4])
