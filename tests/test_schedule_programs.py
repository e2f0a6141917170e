"""Scheduled programs compute the same numbers, and take as long as the scheduler's model says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import parse, run_passes
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

import elk_ir
from elk_ir.chips import Chip, load_chip
from elk_ir.compiler import compile_model, context, import_source, pipeline, split_at
from elk_ir.compiler import run_passes as run_passes_on
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import PreloadOp, RepeatOp
from elk_ir.errors import CapacityError
from elk_ir.memory.lifetimes import Problem
from elk_ir.memory.offsets import Allocation
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes import icca_schedule
from elk_ir.passes.icca_fit import CHIP, least_bytes
from elk_ir.passes.icca_schedule import schedule_by_name, schedule_module
from elk_ir.passes.icca_schedule_model import tables_of
from elk_ir.passes.icca_support import chip_of, program_of
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.schedule.model import evaluate
from elk_ir.schedule.policies import EXECUTABLE, Effort, policy
from elk_ir.sim.run import simulate

MODELS = Path(__file__).parent / "models"
LLAMA = "llama2_decode_static_dynamo"
GEMMA = "gemma2_decode_static_dynamo_op23"


def chip_with(name: str, usable_bytes: int | None) -> Chip:
    """A built-in chip, with less SRAM."""
    chip = load_chip(name)
    if usable_bytes is None:
        return chip
    reserved = chip.reserved_per_core_bytes
    return chip.with_fields({"sram_per_core_bytes": usable_bytes + reserved})


def check_numbers(model: str, chip: Chip, name: str) -> elk_ir.Program:
    """Compile, verify, run; the outputs are the framework's."""
    path = MODELS / f"{model}.onnx"
    given = read_npz(path.with_suffix(".npz"), "in/")
    program = compile_model(
        path,
        chip=chip,
        policy=name,
        input_shapes={k: v.shape for k, v in given.items()},
        time_budget_s=0.1,
    )
    outputs = program.run(check_inputs(given, program.signature.inputs))
    expected = read_npz(path.with_suffix(".npz"), "out/")
    for comparison in compare_outputs(outputs, expected):
        assert comparison.ok, f"{name}: {comparison}"
    assert program.report["policy"] == name
    return program


SHRUNK = [pytest.param(name, 9000, id=f"{name}-shrunk") for name in ("static", "elk-dyn", "search")]
ROOMY = [
    pytest.param(name, None, id=name, marks=() if name == "elk-full" else pytest.mark.slow)
    for name in EXECUTABLE
]


@pytest.mark.parametrize(("name", "usable_bytes"), [*SHRUNK, *ROOMY])
def test_numbers_under_every_policy(name: str, usable_bytes: int | None) -> None:
    program = check_numbers(LLAMA, chip_with("test-16", usable_bytes), name)
    assert program.report["sram_peak_bytes"] <= program.report["sram_capacity_bytes"]


def test_numbers_on_more_cores() -> None:
    check_numbers(GEMMA, load_chip("test-64"), "elk-dyn")


def test_numbers_with_preloads_around_the_loop() -> None:
    program = check_numbers(LLAMA, load_chip("test-64"), "search")
    loops = [o for o in program_of(program.icca).walk() if isinstance(o, RepeatOp)]
    assert any(isinstance(v.type, HandleType) for loop in loops for v in loop.inits)


# ---------------------------------------------------------------------- time

LAYERS = 12
ROWS, WIDTH, INNER = 8, 256, 512


def layers(number: int = LAYERS) -> str:
    """A loop of a norm and two products, with weights that fill much of the SRAM."""
    x, h = f"tensor<{ROWS}x{WIDTH}xf32>", f"tensor<{ROWS}x{INNER}xf32>"
    up, down = f"{WIDTH}x{INNER}xf32", f"{INNER}x{WIDTH}xf32"
    dims = f"m = {ROWS}, n = {INNER}, k = {WIDTH} reduce"
    back = f"m = {ROWS}, n = {WIDTH}, k = {INNER} reduce"
    maps = "[(m, k), (k, n)] -> [(m, n)]"
    norm = '{form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"}'
    return f"""
te.global weight @g stack {number} : tensor<{WIDTH}xf32> = dense<1.0> : tensor<{number}x{WIDTH}xf32>
te.global weight @u stack {number} : tensor<{up}> = dense<0.5> : tensor<{number}x{up}>
te.global weight @d stack {number} : tensor<{down}> = dense<0.5> : tensor<{number}x{down}>
func.func @main(%x: {x} {{onnx.name = "x"}}) -> ({x} {{onnx.name = "y"}}) {{
  %y = te.repeat {number} iter(%x) {{
  ^bb0(%l: index, %h: {x}):
    %g = te.load @g[%l] : tensor<{WIDTH}xf32>
    %n = te.normalize(%h, %g) <(m = {ROWS}, k = {WIDTH} reduce), [(m, k), (k)] -> [(m, k)]> {norm}
      : ({x}, tensor<{WIDTH}xf32>) -> {x} loc("norm")
    %u = te.load @u[%l] : tensor<{up}>
    %a = te.contract(%n, %u) <({dims}), {maps}> : ({x}, tensor<{up}>) -> {h} loc("up")
    %d = te.load @d[%l] : tensor<{down}>
    %b = te.contract(%a, %d) <({back}), {maps}> : ({h}, tensor<{down}>) -> {x} loc("down")
    te.yield %b : {x}
  }} : ({x}) -> {x}
  func.return %y : {x}
}}
"""


@pytest.mark.parametrize("name", ["basic", "static", "search"])
def test_the_model_agrees_with_the_simulator(name: str) -> None:
    module = run_passes(parse(layers()), "convert-te-to-icca{chip=test-16}")
    scheduling = schedule_module(module, policy(name, effort=Effort(200)), keep_plans=False)
    ((program, schedule),) = [s for s in scheduling.schedules if s[0].periodic]
    result = simulate(timeline_of(module), chip_of(module))
    steady = max(result.frame.inner, key=lambda entry: entry[1])
    assert steady[1] > 1
    assert evaluate(program, schedule).time_s == pytest.approx(steady[2], rel=0.03)


@pytest.mark.parametrize("number", [2, LAYERS])
@pytest.mark.parametrize("name", ["basic", "elk-dyn"])
def test_the_model_counts_a_peeled_layer_once(name: str, number: int) -> None:
    """The time by which schedules of a whole program are compared: with two layers, of which one
    is peeled off, counting it twice would add half."""
    module = run_passes(parse(layers(number)), "convert-te-to-icca{chip=test-16}")
    scheduling = schedule_module(module, policy(name), keep_plans=False)
    (loop,) = [o for o in program_of(module).walk() if isinstance(o, RepeatOp)]
    assert loop.count.value.data == number - 1
    result = simulate(timeline_of(module), chip_of(module))
    assert scheduling.time_s == pytest.approx(result.time_s, rel=0.06)


def test_what_fragmentation_took_is_recorded() -> None:
    module = run_passes(
        parse(layers()),
        "convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn},icca-allocate",
    )
    slack = module.attributes["icca.schedule_slack_bytes"]
    peak = module.attributes["icca.sram_peak_bytes"]
    assert slack.value.data >= 0  # pyright: ignore[reportAttributeAccessIssue]
    assert peak.value.data <= 61440  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_around_loops_gives_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the loop has addresses, but not beside the rest of the program, only the rest has less,
    until that changes what it holds."""
    allocate, crowded = icca_schedule.allocate, []

    def too_high(problem: Problem, **options: Any) -> Allocation:
        found = allocate(problem, **options)
        (loop,) = problem.loops
        spans = [problem.intervals(b) for b in problem.buffers]
        around = any(all(e <= loop.start or s >= loop.end for s, e in span) for span in spans)
        if around and not crowded:
            crowded.append(problem)
        if problem in crowded:
            return replace(found, height_bytes=problem.capacity_bytes + 4096)
        return found

    module = run_passes(parse(layers()), "convert-te-to-icca{chip=test-16}")
    plain, tight = module.clone(), module
    free = schedule_module(plain, policy("elk-dyn"), keep_plans=False)
    monkeypatch.setattr(icca_schedule, "allocate", too_high)
    held = schedule_module(tight, policy("elk-dyn"), keep_plans=False)
    assert held.slack_bytes == 0 and held.outside_bytes >= 4096
    slack = tight.attributes["icca.schedule_outside_slack_bytes"]
    assert slack == IntegerAttr(held.outside_bytes, i64)
    bodies = [[s for p, s in each.schedules if p.periodic] for each in (free, held)]
    assert bodies[0] == bodies[1]


def test_everything_gives_way_where_that_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    run = icca_schedule._Rounds.run

    def refusing(self: Any, *, ask: bool, around: bool) -> Any:
        if around:
            raise CapacityError(operator="up", needed_bytes=2, available_bytes=1, largest=())
        return run(self, ask=ask, around=around)

    monkeypatch.setattr(icca_schedule._Rounds, "run", refusing)
    module = run_passes(parse(layers()), "convert-te-to-icca{chip=test-16}")
    assert schedule_module(module, policy("elk-dyn"), keep_plans=False).outside_bytes == 0


def test_the_same_input_gives_the_same_program() -> None:
    texts = set()
    for _ in range(2):
        module = run_passes(
            parse(layers()),
            "convert-te-to-icca{chip=test-16},icca-schedule{policy=search time-budget-s=0.1},"
            "icca-allocate",
        )
        texts.add(str(module))
    assert len(texts) == 1


def test_doubling_the_layers_costs_little() -> None:
    """One layer is scheduled, whatever their number: as many preloads in the program."""
    counts = []
    for number in (LAYERS, 2 * LAYERS):
        module = run_passes(
            parse(layers(number)), "convert-te-to-icca{chip=test-16},icca-schedule{policy=elk-dyn}"
        )
        counts.append(sum(1 for op in module.walk() if isinstance(op, PreloadOp)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("over", [1.05, 1.5])
def test_ideal_where_a_loop_preloads_ahead(over: float) -> None:
    """On the reference machine, what a loop has issued for the iteration that is peeled off it
    waits in the other SRAM: in little SRAM, too, the program fits and is no slower."""
    path = MODELS / "vit_static_legacy.onnx"
    chip = load_chip("test-16")
    module, source = import_source(path, chip)
    front, _ = split_at(pipeline(chip), "icca-schedule")
    run_passes_on(context(), module, front, model=source.name)
    need = least_bytes(module, tables_of(module))
    real = chip_with("test-16", int(need * over) // 8 * 8)
    times: list[float] = []
    for machine in (real, real.ideal()):
        trial = module.clone()
        trial.attributes[CHIP] = ChipAttr.from_chip(machine)
        schedule_by_name(trial, "elk-full")
        if not times:
            assert any(issued_ahead(op) for op in program_of(trial).walk())
        times.append(simulate(timeline_of(trial), machine).time_s)
    assert times[1] <= times[0]


def issued_ahead(op: Operation) -> bool:
    """Whether a loop carries a preload."""
    return isinstance(op, RepeatOp) and any(isinstance(v.type, HandleType) for v in op.inits)
