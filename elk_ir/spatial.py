"""Spatial pipelining of a model on an ICCA chip: times of stages from the scheduler's own model.

The algorithm is in `elk_ir/schedule/pipeline.py`; here the layers of a model are planned and
scheduled on the part of the chip that a stage has. docs/scheduling.md says what is modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost.shapes import itemsize
from elk_ir.errors import CapacityError, ElkError
from elk_ir.plan.buffers import Source
from elk_ir.schedule.basic import Step
from elk_ir.schedule.model import Program, Schedule, evaluate
from elk_ir.schedule.pipeline import Network, Pipeline, balance, stage_chip, transfer_s
from elk_ir.schedule.resident import choose_resident

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.dialects.icca.ops import ExecuteOp
    from elk_ir.tools.cmd_compare import Prepared

BATCH = "batch"
"""The symbolic dimension that micro-batches divide."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Layers:
    """The layer loop of a scheduled module: one body, its executes, and the rest of the program."""

    program: Program
    schedule: Schedule
    executes: tuple[ExecuteOp, ...]
    weights: tuple[bool, ...]
    """Per execute, whether weights are all that it preloads."""
    count: int
    before_s: float
    behind_s: float
    carried_bytes: int
    """Of the tensors that one layer hands on to the next one."""


def spatial_results(
    model: str,
    chip: Chip,
    stages: Sequence[int],
    *,
    dims: Mapping[str, int] | None = None,
    kv_capacity: int | None = None,
    policy: str = "elk-full",
    micro_batches: int | None = None,
    say: Say = lambda _: None,
) -> list[dict[str, Any]]:
    """What each number of stages makes of a model: JSON objects with `stages`, the times of
    `elk_ir.schedule.pipeline.Pipeline` and rates; one that does not fit has `error`.

    micro_batches: how many are under way (default: as many as stages). If `dims` binds `batch`,
    they divide it; else each of them is as large as the model's own batch, and that many more
    users are served. Raises ElkError for a model that can't be compiled.
    """
    found: list[dict[str, Any]] = []
    for count in stages:
        say(f"{count} stages")
        base = {"policy": f"spatial-{count}", "stages": count, "chip": chip.name}
        try:
            found.append(
                base
                | _result(model, chip, count, dict(dims or {}), kv_capacity, policy, micro_batches)
            )
        except CapacityError as error:
            # What would change a stage is no answer to how many stages there should be.
            found.append({**base, "error": str(error.without_changes())})
        except ElkError as error:
            found.append({**base, "error": str(error)})
    return found


def _result(
    model: str,
    chip: Chip,
    stages: int,
    dims: dict[str, int],
    kv_capacity: int | None,
    policy: str,
    micro_batches: int | None,
) -> dict[str, Any]:
    from elk_ir.passes.icca_schedule import schedule_by_name
    from elk_ir.tools.cmd_compare import prepare

    if stages < 1:
        raise ElkError(f"{stages} stages are no pipeline")
    flowing = stages if micro_batches is None else micro_batches
    if flowing < 1:
        raise ElkError(f"{flowing} micro-batches are none")
    divided = BATCH in dims
    if divided:
        whole = dims[BATCH]
        if whole % flowing:
            raise ElkError(
                f"a batch of {whole} does not divide into {flowing} micro-batches",
                hint="another number of micro-batches or stages",
            )
        dims[BATCH] = whole // flowing
    machine = stage_chip(chip, stages)
    prepared = prepare(model, machine, dims, kv_capacity)
    module = prepared.module.clone()
    scheduling = schedule_by_name(module, policy, tables=prepared.tables, solved=prepared.solved)
    layers = _layers(module, scheduling.schedules)
    network = Network(
        layers.count,
        evaluate(layers.program, layers.schedule).time_s,
        lambda n: _resident_s(layers, prepared, n),
        layers.before_s,
        layers.behind_s,
    )
    if stages == 1:
        network = replace(network, resident_s=lambda _: None)
    pipeline = Pipeline(
        balance(network, stages),
        flowing,
        transfer_s(chip, machine.cores, layers.carried_bytes) if stages > 1 else 0.0,
    )
    runs = 1 if divided else flowing
    return {
        "model": prepared.model,
        "executable": False,
        "cores_per_stage": machine.cores,
        "layers_per_stage": [s.layers for s in pipeline.stages],
        "resident_stages": sum(s.resident for s in pipeline.stages),
        "micro_batches": flowing,
        "runs_at_once": runs,
        "time_s": pipeline.interval_s,
        "run_s": pipeline.interval_s / runs,
        "latency_s": pipeline.interval_s,
        "flow_s": pipeline.latency_s,
        "fill_s": pipeline.fill_s,
        "cycle_s": pipeline.cycle_s,
        "transfer_s": pipeline.transfer_s,
        "stage_s": [s.seconds for s in pipeline.stages],
    }


def _layers(module: ModuleOp, schedules: Sequence[tuple[Program, Schedule]]) -> _Layers:
    """The loop that runs longest. Raises ElkError for a program without one."""
    from elk_ir.dialects.icca.attrs import HbmKind
    from elk_ir.dialects.icca.ops import RepeatOp
    from elk_ir.dialects.types import shape_dtype
    from elk_ir.passes.icca_schedule_model import pending_preloads, runs_of
    from elk_ir.passes.icca_support import defining_preloads, hbm_tensors, program_of

    hbm = hbm_tensors(module)
    runs = runs_of(program_of(module).body.block)
    bodies = [r for r in runs if r.body_of is not None and r.executes]
    straight = [
        r
        for r in runs
        if r.body_of is None
        and (r.executes or (isinstance(r.before, RepeatOp) and pending_preloads(r.before)))
    ]
    periodic = [pair for pair in schedules if pair[0].periodic]
    rest = [pair for pair in schedules if not pair[0].periodic]
    if not periodic or len(periodic) != len(bodies):
        raise ElkError(
            "the program has no loop of identical layers, which stages could share",
            hint="spatial pipelining is for models whose layers roll into a loop (elk compile)",
        )
    times = [evaluate(*pair).time_s for pair in periodic]
    k = max(range(len(times)), key=lambda i: periodic[i][0].repeats * times[i])
    program, schedule = periodic[k]
    loop = bodies[k].body_of
    assert isinstance(loop, RepeatOp)
    # Layers peeled off behind the loop are layers: they only stand elsewhere.
    peeled = program.repeats - program.copies * loop.count.value.data
    others = [p.repeats * t for (p, _), t in zip(periodic, times, strict=True)]
    before_s = sum(others) - others[k]
    behind_s = -peeled * times[k]
    for pair, run in zip(rest, straight, strict=True):
        seconds = evaluate(*pair).time_s
        if isinstance(run.before, RepeatOp):
            before_s += seconds
        else:
            behind_s += seconds
    executes = tuple(bodies[k].executes[: len(program.ops)])
    weights = tuple(
        all(
            hbm[p.source.root_reference.data].kind.data is HbmKind.WEIGHT and p.rows is None
            for v, s in zip(e.ins, e.sources, strict=False)
            if s is Source.HBM
            for p in defining_preloads(v)
        )
        and Source.HBM in e.sources
        for e in executes
    )
    carried = [v.type for v in loop.outs if not v.type.name.startswith("icca.")]
    size = sum(prod(shape) * itemsize(dtype) for shape, dtype in map(shape_dtype, carried))
    return _Layers(
        program,
        schedule,
        executes,
        weights,
        program.repeats,
        before_s,
        behind_s,
        size,
    )


def _resident_s(layers: _Layers, prepared: Prepared, count: int) -> float | None:
    """Seconds of a layer where the weights of `count` layers stay on chip; None if they do not fit.

    Plans are those in which nothing that stays rotates or is distributed. What is not a weight (a
    KV cache) is fetched as before.
    """
    steps: list[Step] = []
    rows: list[np.ndarray] = []
    wanted: list[int] = []
    tables = []
    for execute, op, weight, chosen in zip(
        layers.executes, layers.program.ops, layers.weights, layers.schedule.choice, strict=True
    ):
        table = prepared.tables.free(execute)
        if weight:
            keep = np.asarray(
                [i for i, p in enumerate(table.plans) if _still(p.execute, p.preload, execute)],
                dtype=np.int64,
            )
            copies = count
            # An index into another table says nothing here.
            chosen = chosen if op.table is table else -1
        else:
            table, keep, copies = op.table, np.asarray([chosen]), 1
        tables.append(table)
        wanted.append(chosen)
        rows.append(keep)
        held = table.preload_bytes[keep]
        steps.append(
            Step(
                op.label,
                table.execute_bytes[keep] + (copies - 1) * held,
                copies * held,
                (table.compute_s + table.exchange_s)[keep],
                resident_bytes=op.resident_bytes,
            )
        )
    room = layers.program.rules.capacity_bytes
    own = [np.flatnonzero(r == c) for r, c in zip(rows, wanted, strict=True)]
    found: list[tuple[int, ...]] = []
    if all(len(o) for o in own):
        # The plans of the layer that fetches, if they do: their re-layouts go well together.
        same = [_only(step, int(o[0])) for step, o in zip(steps, own, strict=True)]
        with suppress(CapacityError):
            choose_resident(same, room)
            found.append(layers.schedule.choice)
    with suppress(CapacityError):
        choice = choose_resident(steps, room)
        found.append(tuple(int(r[c]) for r, c in zip(rows, choice, strict=True)))
    ops = tuple(
        replace(op, table=table, loads=False, ahead=False) if weight else op
        for op, table, weight in zip(layers.program.ops, tables, layers.weights, strict=True)
    )
    program = replace(layers.program, ops=ops)
    return min(
        (evaluate(program, replace(layers.schedule, choice=c)).time_s for c in found),
        default=None,
    )


def _only(step: Step, i: int) -> Step:
    """A step of one plan."""
    return replace(
        step,
        execute_bytes=step.execute_bytes[i : i + 1],
        preload_bytes=step.preload_bytes[i : i + 1],
        execute_cycles=step.execute_cycles[i : i + 1],
    )


def _still(
    execute: Sequence[Sequence[int]], preload: Sequence[Sequence[int]], op: ExecuteOp
) -> bool:
    """Whether what a plan preloads is whole and stays where it is."""
    return all(
        max(x, default=1) == 1 and tuple(x) == tuple(p)
        for x, p, s in zip(execute, preload, op.sources, strict=True)
        if s is Source.HBM
    )


def spatial_text(results: Sequence[Mapping[str, Any]]) -> str:
    """The table for people."""
    from elk_ir.tools.elk_options import table

    head = ["stages", "cores", "layers", "on chip", "micro", "runs", "ms a run", "latency ms"]
    rows: list[list[str]] = []
    for r in results:
        if "error" in r:
            rows.append([str(r["stages"]), r["error"].split("\n")[0], *[""] * (len(head) - 2)])
            continue
        sizes = r["layers_per_stage"]
        layers = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}"
        rows.append(
            [
                str(r["stages"]),
                str(r["cores_per_stage"]),
                layers,
                f"{r['resident_stages']}/{r['stages']}",
                str(r["micro_batches"]),
                str(r["runs_at_once"]),
                f"{r['run_s'] * 1e3:.3f}",
                f"{r['latency_s'] * 1e3:.3f}",
            ]
        )
    title = (
        "spatial pipelining (a model of time; 1 stage: the same model of the temporal program)\n"
    )
    return title + table(head, rows) + "\n"
