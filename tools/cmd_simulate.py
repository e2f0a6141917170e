"""`elk simulate DIR|MODEL.onnx [--trace trace.json]`: how long a program takes, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elk_ir.errors import UsageError
from elk_ir.tools.elk_options import (
    add_compile_flags,
    add_host_flag,
    add_json_flag,
    add_quantize_flags,
    dims_of,
    host_lines,
    print_json,
    program_from_args,
    progress,
    table,
)

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.northpole.mapping import Mapping
    from elk_ir.program import Program
    from elk_ir.sim import SimResult

_SHOWN = 12


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="how long a program takes on its chip",
        description="Simulates a compiled program (a folder), or compiles a model and simulates"
        " it: time and what it is made of, utilisations, the operators and what bounded them."
        " docs/simulator.md says how the machine is modelled and how far to trust it.",
    )
    parser.add_argument("model", metavar="DIR|MODEL.onnx")
    parser.add_argument(
        "--trace", metavar="TRACE.json", help="write a trace that Perfetto and Chrome open"
    )
    parser.add_argument(
        "--bins",
        type=int,
        default=0,
        metavar="N",
        help="with --json: utilisations and SRAM in use over time, in N equal steps",
    )
    parser.add_argument(
        "--report", metavar="R.html", help="write a page with pictures, for any browser, offline"
    )
    parser.add_argument(
        "--report-policies",
        metavar="A,B,…",
        help="with --report of a model: these policies side by side, each compiled for it",
    )
    parser.add_argument(
        "--gpus",
        metavar="FILE.toml|published",
        help="of an appliance of cards: beside published figures of GPUs, and your own in a file",
    )
    add_compile_flags(parser, chip_required=False)
    add_quantize_flags(parser)
    add_host_flag(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Simulates and reports. Raises ElkError for what can't be compiled or loaded."""
    from elk_ir.chips import load_chip
    from elk_ir.sim.trace import write_trace

    if args.bins < 0:
        raise UsageError(f"--bins {args.bins}: must not be negative")
    _check_policies(args)
    if args.chip is not None:
        _check_gpus(args, load_chip(args.chip))  # before anything is compiled
    with progress() as say:
        program = program_from_args(args, say, None)
        if program.target_name == "northpole":
            return _cards(args, program)
        _check_gpus(args, program.chip)
        say("simulating")
        result, ideal = program.simulate(), program.simulate(program.chip.ideal())
        if args.trace is not None:
            say("writing the trace")
            write_trace(result, args.trace, program=str(program.report.get("model", args.model)))
        if args.report is not None:
            _write_report(args, program, say)
    if args.json:
        print_json(_json(args, program, result, ideal))
    else:
        sys.stdout.write(_text(args, program, result, ideal))
    return 0


def _check_gpus(args: argparse.Namespace, chip: Chip) -> None:
    if args.gpus is not None and chip.northpole is None:
        raise UsageError(f"--gpus is for cards, this is a program for {chip.name}")


def _check_policies(args: argparse.Namespace) -> None:
    if args.report_policies is None:
        return
    if args.report is None:
        raise UsageError("--report-policies is for --report")
    if Path(args.model).is_dir():
        raise UsageError("--report-policies compiles: give the model, not a folder")


def _write_report(args: argparse.Namespace, program: Program, say: Callable[[str], None]) -> None:
    """The HTML page, other policies on it if they are asked for."""
    from elk_ir.report.data import report_data
    from elk_ir.report.page import write_page

    policies = None
    if args.report_policies is not None:
        from elk_ir.comparison import compare_policies

        policies = compare_policies(
            args.model,
            chip=program.chip,
            policies=args.report_policies.split(","),
            dims=dims_of(args),
            kv_capacity=args.kv_capacity,
            time_budget_s=args.time_budget,
            objective=args.objective,
            attention_chunks=args.attention_chunks,
            floats=args.floats,
            progress=say,
        )
    say("writing the report")
    write_page(report_data(program, policies), args.report)


def _cards(args: argparse.Namespace, program: Program) -> int:
    """A pipeline of cards: what its stages do in a run, as text, JSON or trace."""
    from elk_ir.northpole.report import has_state, stage_map_text
    from elk_ir.targets.northpole.read import mapping_of
    from elk_ir.targets.northpole.timeline import write_trace

    if args.report is not None:
        raise UsageError("--report shows programs of the target ipu, not of cards")
    if args.bins:
        raise UsageError("--bins: an appliance of cards has no utilisation over time")
    mapping = mapping_of(program.target)
    if args.gpus is not None and not has_state(mapping):
        raise UsageError("--gpus compares tokens, and this graph generates none")
    if args.trace is not None:
        write_trace(mapping, args.trace)
    gpus, lines = _beside_gpus(args, mapping)
    if args.json:
        print_json(simulated_fields(program) | gpus)
        return 0
    sys.stdout.write("\n".join([stage_map_text(mapping), *lines]))
    if args.trace is not None:
        print(f"trace written to {args.trace}")
    return 0


def _beside_gpus(args: argparse.Namespace, mapping: Mapping) -> tuple[dict[str, Any], list[str]]:
    """The comparison with GPUs that `--gpus` asks for, as fields and as lines."""
    from elk_ir.northpole.gpus import compare, compared_fields, compared_lines, load_gpus, row_of
    from elk_ir.northpole.pipeline import simulate

    if args.gpus is None:
        return {}, []
    table = load_gpus(None if args.gpus == "published" else args.gpus)
    ours = row_of(mapping, simulate(mapping))
    found = compare(ours, table.rows)
    gaps = [{"what": m.what, "why": m.why} for m in table.missing]
    lines = [*compared_lines(ours, found, table.missing), ""]
    return {"gpus": compared_fields(found), "gpus_missing": gaps}, lines


def simulated_fields(program: Program) -> dict[str, Any]:
    """What the simulation of an appliance says, under the names of `report.json`."""
    from elk_ir.targets.northpole.compiled import time_fields
    from elk_ir.targets.northpole.read import mapping_of

    keys = ("model", "chip", "policy", "compile_cpu_s", "compile_peak_rss_bytes")
    return {
        **{key: program.report[key] for key in keys if key in program.report},
        **time_fields(mapping_of(program.target)),
    }


def _decoding(program: Program, result: SimResult) -> dict[str, float]:
    """Tokens a second and seconds a token, for graphs that decode one token for each user."""
    tokens = program.report.get("tokens_per_run")
    if not isinstance(tokens, int) or result.time_s <= 0:
        return {}
    return {
        "tokens_per_s": tokens / result.time_s,
        "latency_per_token_s": result.time_s,
        "energy_per_token_j": result.energy_j / tokens,
    }


def _json(
    args: argparse.Namespace, program: Program, result: SimResult, ideal: SimResult
) -> dict[str, Any]:
    keys = ("model", "policy", "compile_cpu_s", "compile_peak_rss_bytes", "host")
    return {
        **{key: program.report[key] for key in keys if key in program.report},
        **result.to_json(bins=args.bins),
        **_decoding(program, result),
        "ideal_time_s": ideal.time_s,
    }


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"


def _text(args: argparse.Namespace, program: Program, result: SimResult, ideal: SimResult) -> str:
    whole = result.time_s or 1.0
    binding = max(result.bounds_s, key=lambda name: result.bounds_s[name], default="")
    parts = (
        ("preload only", result.breakdown.preload_only_s),
        ("execute only", result.breakdown.execute_only_s),
        ("overlapped", result.breakdown.overlapped_s),
        ("network stall", result.breakdown.network_stall_s),
    )
    lines = [
        f"{program.report.get('model', args.model)} on {result.chip}"
        f", policy {program.report.get('policy', 'unknown')}",
        f"  time             {_seconds(result.time_s)}",
        f"  lower bound      {_seconds(result.lower_bound_s)} ({binding})",
        f"  ideal            {_seconds(ideal.time_s)} (networks of their own: a reference only)",
        *(f"  {name:<15}  {_seconds(value)}  {value / whole:6.1%}" for name, value in parts),
        f"  HBM              {result.hbm_utilization:.1%} of its bandwidth",
        f"  network          {result.network_utilization:.1%} of its bandwidth",
        f"  compute          {result.flops_per_s / 1e12:.4g} TFLOPS",
        f"  SRAM             {result.sram_peak_bytes:,} of {result.sram_capacity_bytes:,}"
        " bytes a core",
        f"  energy           {result.energy_j:.4g} J",
        *_per_token(program, result),
        *host_lines(program.report),
        "",
    ]
    lines.append(_operators(result))
    if args.trace is not None:
        lines.append(f"trace written to {args.trace}")
    if args.report is not None:
        lines.append(f"report written to {args.report}")
    return "\n".join(lines) + "\n"


def _per_token(program: Program, result: SimResult) -> list[str]:
    found = _decoding(program, result)
    if not found:
        return []
    return [
        f"  {'latency':<15}  {_seconds(found['latency_per_token_s'])} a token",
        f"  {'':<15}  {found['energy_per_token_j']:.4g} J a token",
    ]


def _operators(result: SimResult) -> str:
    """The operators that take longest, all their runs added up."""
    total: dict[tuple[str, str], list[float]] = {}
    for row in result.operators():
        entry = total.setdefault((row.label, row.bounded_by), [0.0, 0.0])
        entry[0] += row.end_s - row.start_s
        entry[1] += 1
    ranked = sorted(total.items(), key=lambda item: (-item[1][0], item[0]))
    rows = [
        (label, f"{int(runs)}", _seconds(time), f"{time / (result.time_s or 1.0):.1%}", bound)
        for (label, bound), (time, runs) in ranked[:_SHOWN]
    ]
    text = table(("operator", "runs", "time", "of all", "bounded by"), rows)
    hidden = len(ranked) - len(rows)
    return text + (f"\n… and {hidden} more (--json lists every run)" if hidden > 0 else "")
