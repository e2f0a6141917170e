"""`elk compare MODEL.onnx --chip CHIP`: every scheduling policy on the same model and machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elk_ir.tools.elk_options import (
    add_compile_flags,
    add_json_flag,
    dims_of,
    print_json,
    progress,
    table,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.chips import Chip
    from elk_ir.errors import CapacityError
    from elk_ir.passes.icca_schedule_model import Scheduling, Tables
    from elk_ir.schedule.policies import Solved
    from elk_ir.sim.record import Frame
    from elk_ir.sim.result import SimResult

Say = Callable[[str], None]

DEFAULT = ("basic", "static", "elk-dyn", "elk-full", "search", "ideal")
"""Policies that are compared."""


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="compare scheduling policies",
        description="Compiles a model with every policy and simulates the programs: same machine,"
        " same plans to choose from, same simulator. `ideal` is a reference: elk-full on a chip"
        " whose preloads have a network and an SRAM of their own. Nothing is executed.",
    )
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument(
        "--policies", metavar="A,B,…", help=f"which policies (default: {','.join(DEFAULT)})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search")
    parser.add_argument(
        "--stages",
        metavar="N,M,…",
        help="also: the cores as a pipeline of so many stages, each with some of the layers",
    )
    add_compile_flags(parser, chip_required=True)
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Compiles, simulates and reports. Raises ElkError for what can't be compiled."""
    from elk_ir.errors import UsageError
    from elk_ir.process import quiet_collector
    from elk_ir.schedule.policies import EXECUTABLE, REFERENCE

    names = args.policies.split(",") if args.policies else list(DEFAULT)
    if args.policy is not None:
        names = [args.policy]
    unknown = [n for n in names if n not in (*EXECUTABLE, REFERENCE)]
    if unknown:
        known = ", ".join((*EXECUTABLE, REFERENCE))
        raise UsageError(f"unknown policy {unknown[0]!r}", hint=f"the policies are: {known}")
    stages = stages_of(args.stages)
    with progress() as say, quiet_collector():
        prepared = prepare(
            args.model,
            args.chip,
            dims_of(args),
            args.kv_capacity,
            say,
            args.attention_chunks,
            args.floats,
        )
        results = list(
            compare(prepared, names, args.time_budget, args.seed, say, args.objective or "time")
        )
        spatial: list[dict[str, Any]] = []
        if stages:
            from elk_ir.spatial import spatial_results

            spatial = spatial_results(
                args.model,
                prepared.chip,
                stages,
                dims=dims_of(args),
                kv_capacity=args.kv_capacity,
                say=say,
            )
    if args.json:
        found = {"model": prepared.model, "chip": prepared.chip.name, "results": results}
        print_json(found | ({"spatial": spatial} if stages else {}))
    else:
        sys.stdout.write(text(prepared, results))
        if stages:
            from elk_ir.spatial import spatial_text

            sys.stdout.write(spatial_text(spatial))
    return 0


def stages_of(given: str | None) -> list[int]:
    """The numbers of stages in `--stages`. Raises UsageError for what is no such list."""
    from elk_ir.errors import UsageError

    found = [] if given is None else given.split(",")
    if not all(n.isdecimal() and int(n) > 0 for n in found):
        raise UsageError(f"--stages {given}: numbers of stages, like 1,2,4")
    return [int(n) for n in found]


# ---------------------------------------------------------------------- compiling


@dataclass
class Prepared:
    """A model in icca without plans, and the plans of its operators, shared by all policies."""

    model: str
    chip: Chip
    module: ModuleOp
    tables: Tables
    cpu_s: float
    solved: Solved = field(default_factory=dict)
    """What the policies found: `search` begins with it."""
    explain: Callable[[CapacityError], None] | None = None
    """Lets an error find out what would fit; None: nobody wants to know."""


def prepare(
    model: str,
    chip: str | Chip,
    dims: Mapping[str, int],
    kv_capacity: int | None = None,
    say: Say = lambda _: None,
    attention_chunks: int | None = None,
    floats: str | None = None,
) -> Prepared:
    """Everything that comes before scheduling. Raises ElkError for what can't be compiled."""
    from elk_ir.compiler import (
        check_hbm,
        context,
        explain_capacity,
        import_source,
        pipeline,
        resolve_chip,
        run_passes,
        split_at,
    )
    from elk_ir.errors import ElkError
    from elk_ir.passes.icca_schedule_model import tables_of

    started = time.process_time()
    machine = resolve_chip(chip)
    if machine.hbm is None:
        raise ElkError(
            f"chip {machine.name!r} has no HBM, so there is nothing to preload and to schedule",
            hint="choose a chip with HBM (`elk chips` lists them)",
        )
    module, source = import_source(model, machine, dims=dims, progress=say)
    passes = pipeline(
        machine, kv_capacity=kv_capacity, attention_chunks=attention_chunks, floats=floats
    )
    front, _ = split_at(passes, "icca-schedule")
    run_passes(context(), module, front, model=source.name, progress=say)
    check_hbm(module, machine)

    cpu_s = time.process_time() - started
    return Prepared(
        source.name,
        machine,
        module,
        tables_of(module),
        cpu_s,
        explain=lambda error: explain_capacity(error, model, passes, dims),
    )


def compare(
    prepared: Prepared,
    names: Sequence[str],
    time_budget_s: float | None = None,
    seed: int = 0,
    say: Say = lambda _: None,
    objective: str = "time",
) -> Iterator[dict[str, Any]]:
    """One result a policy, in the order given; a policy that fits in no way has only `error`.
    objective: time or energy."""
    from elk_ir.errors import CapacityError

    refused = False
    for name in names:
        say(name)
        try:
            yield _result(prepared, name, time_budget_s, seed, objective == "energy")
        except CapacityError as error:
            if refused or prepared.explain is None:
                error = error.without_changes()  # they are the same for every policy
            else:
                prepared.explain(error)
            refused = True
            yield {
                "policy": name,
                "model": prepared.model,
                "chip": prepared.chip.name,
                "error": str(error),
            }


def _result(
    prepared: Prepared, name: str, time_budget_s: float | None, seed: int, energy: bool
) -> dict[str, Any]:
    from elk_ir.dialects.chip import ChipAttr
    from elk_ir.passes.icca_allocate import allocate_module
    from elk_ir.passes.icca_schedule import schedule_by_name, steps_of
    from elk_ir.passes.icca_schedule_model import Tables
    from elk_ir.passes.icca_timeline import timeline_of
    from elk_ir.process import peak_rss_bytes
    from elk_ir.schedule.policies import REFERENCE, Effort
    from elk_ir.sim.run import simulate

    started = time.process_time()
    module, chip, tables = prepared.module.clone(), prepared.chip, prepared.tables
    if name == REFERENCE:
        chip = chip.ideal()
        module.attributes["icca.chip"] = ChipAttr.from_chip(chip)
        tables = Tables(chip, tables.cost, tables.known)
    effort = Effort(steps_of(time_budget_s), seed)
    scheduling = schedule_by_name(
        module, name, energy=energy, effort=effort, tables=tables, solved=prepared.solved
    )
    if name == REFERENCE:
        cpu_s = time.process_time() - started
        result = simulate(timeline_of(module), chip)
    else:
        from elk_ir.compiler import context
        from elk_ir.passes.convert_icca_to_ipu import ConvertIccaToIpuPass
        from elk_ir.targets.ipu.timeline import simulate_module

        allocate_module(module)
        cpu_s = time.process_time() - started
        ConvertIccaToIpuPass().apply(context(), module)
        result = simulate_module(module, chip)
    return _fields(prepared, name, scheduling, result, module) | {
        "compile_cpu_s": prepared.cpu_s + cpu_s,
        "schedule_cpu_s": cpu_s,
        "compile_peak_rss_bytes": peak_rss_bytes(),
    }


def _fields(
    prepared: Prepared, name: str, scheduling: Scheduling, result: SimResult, module: ModuleOp
) -> dict[str, Any]:
    from elk_ir.dialects.icca.ops import RepeatOp
    from elk_ir.passes.icca_support import program_of
    from elk_ir.schedule.model import evaluate
    from elk_ir.schedule.reorder import edit_distance

    attributes = module.attributes
    slack = attributes.get("icca.schedule_slack_bytes")
    outside = attributes.get("icca.schedule_outside_slack_bytes")
    peak = attributes.get("icca.sram_peak_bytes")
    fields: dict[str, Any] = {
        "policy": name,
        "model": prepared.model,
        "chip": prepared.chip.name,
        "executable": name != "ideal",
        "time_s": result.time_s,
        "lower_bound_s": result.bounds_s["hbm"],
        "program_lower_bound_s": result.lower_bound_s,
        "breakdown_s": result.breakdown.to_json(),
        "hbm_utilization": result.hbm_utilization,
        "network_utilization": result.network_utilization,
        "flops_per_s": result.flops_per_s,
        "energy_j": result.energy_j,
        "hbm_bytes": result.bytes_by_resource["hbm"],
        "sram_peak_bytes": getattr(getattr(peak, "value", None), "data", result.sram_peak_bytes),
        "sram_capacity_bytes": result.sram_capacity_bytes,
        "held_back_bytes": getattr(getattr(slack, "value", None), "data", 0),
        "held_back_outside_bytes": getattr(getattr(outside, "value", None), "data", 0),
    }
    loops = [o for o in program_of(prepared.module).walk() if isinstance(o, RepeatOp)]
    layers = max((o.count.value.data for o in loops), default=0)
    bodies = [(p, s) for p, s in scheduling.schedules if p.periodic]
    period = _period(result.frame)
    if bodies and period is not None:
        program, schedule = max(bodies, key=lambda b: len(b[0].ops))
        period /= program.copies
        hbm_s = sum(op.table.hbm_s for op in program.ops if op.loads)
        bound = lower_bound_s(program)
        model = evaluate(program, schedule)
        heavy = [j for j in schedule.order if program.ops[j].loads]
        outside = max(0.0, fields["lower_bound_s"] - layers * hbm_s)
        fields["lower_bound_s"] = max(fields["lower_bound_s"], outside + (layers - 1) * bound)
        fields |= {
            "layers": layers,
            "layers_per_iteration": program.copies,
            "layer_time_s": period,
            "layer_hbm_s": hbm_s,
            "layer_lower_bound_s": bound,
            "layer_model_s": model.time_s,
            "layer_execute_s": model.execute_s,
            "preload_edit_distance": edit_distance(heavy),
        }
    return fields


def _period(frame: Frame) -> float | None:
    """The time of one iteration of the loop that runs most often, in its steady state; of a loop
    that never settles, the mean of its later half."""
    most = max(frame.inner, key=lambda entry: entry[1], default=None)
    if most is None or most[1] < 2:
        later = frame.inner[len(frame.inner) // 2 :]
        return sum(entry[2] for entry in later) / len(later) if len(later) > 3 else None
    _, _, cycle, inner = most
    grouped = not inner.rows and len(inner.inner) > 1
    return cycle / len(inner.inner) if grouped else cycle


def lower_bound_s(program: Any) -> float:
    """What no schedule of a layer can beat, whichever of the known plans its operators take."""
    from elk_ir.sim.bounds import Choices, plan_bound
    from elk_ir.sim.chain_bounds import chain_bound

    operators = []
    for op in program.ops:
        t = op.table
        hbm = max(t.hbm_s, 0.0) if op.loads else 0.0
        landing = t.landing_s if op.loads else t.landing_s * 0.0
        operators.append(
            Choices(
                preload_s=landing.clip(min=hbm),
                compute_s=t.compute_s,
                exchange_s=t.exchange_s,
                landing_s=landing,
                single=op.single,
            )
        )
    hbm_s = sum(op.table.hbm_s for op in program.ops if op.loads)
    chained = chain_bound(operators, _fetches(program), program.rules.barrier_s)
    return max(plan_bound(operators), chained, hbm_s)


def _fetches(program: Any) -> dict[int, Any]:
    """By operator, the resident operand from the same iteration of which most has to be fetched."""
    from elk_ir.sim.chain_bounds import Fetch

    found: dict[int, Any] = {}
    for i, op in enumerate(program.ops):
        inner = [
            (float(op.table.slice_s[e].min()), e)
            for e, x in enumerate(op.inputs)
            if 0 <= x.producer < i and not x.back
        ]
        if inner:
            e = max(inner)[1]
            edge = op.inputs[e]
            found[i] = Fetch(
                edge.producer,
                op.table.slice_s[e],
                op.table.byte_s,
                program.ops[edge.producer].table.pieces[edge.result],
            )
    return found


# ---------------------------------------------------------------------- text


def text(prepared: Prepared, results: Sequence[Mapping[str, Any]]) -> str:
    """The table for people."""
    ideal = next((r["time_s"] for r in results if r["policy"] == "ideal" and "time_s" in r), None)
    head = ["policy", "ms", "bound/time", "of ideal", "HBM", "network", "TFLOPS"]
    head += ["preload", "execute", "overlap", "stall ms", "SRAM", "edit", "CPU s"]
    rows: list[list[str]] = []
    for r in results:
        if "error" in r:
            rows.append([r["policy"], r["error"].split("\n")[0], *[""] * (len(head) - 2)])
            continue
        parts = r["breakdown_s"]
        rows.append(
            [
                r["policy"],
                f"{r['time_s'] * 1e3:.3f}",
                f"{r['lower_bound_s'] / r['time_s']:.1%}",
                f"{ideal / r['time_s']:.1%}" if ideal else "",
                f"{r['hbm_utilization']:.1%}",
                f"{r['network_utilization']:.1%}",
                f"{r['flops_per_s'] / 1e12:.1f}",
                *(f"{parts[k] * 1e3:.3f}" for k in parts),
                f"{r['sram_peak_bytes'] / r['sram_capacity_bytes']:.0%}",
                f"{r['preload_edit_distance']:.1f}" if "preload_edit_distance" in r else "",
                f"{r['compile_cpu_s']:.1f}",
            ]
        )
    title = f"{prepared.model} on {prepared.chip.name}\n"
    return title + table(head, rows) + "\n"
