"""What the commands of `elk` share: flags of the compiler, inputs, progress, tables, JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elk_ir.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from elk_ir.compiler import Signature
    from elk_ir.program import Program
    from elk_ir.program_set import ProgramSet
    from elk_ir.quantizer import Quantization

Say = Callable[[str], None]

# Flags that say how to compile, which a program that is compiled already does not take.
_COMPILE_FLAGS = (
    "chip",
    "target",
    "policy",
    "dim",
    "kv_capacity",
    "time_budget",
    "objective",
    "attention_chunks",
    "floats",
    "precision",
    "cards",
    "users",
    "route",
    "quantize",
    "calibrate",
    "activation_steps",
    "no_host",
)


def add_compile_flags(parser: argparse.ArgumentParser, *, chip_required: bool) -> None:
    """The flags of everything that compiles a model."""
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--chip",
        required=chip_required,
        metavar="CHIP",
        help="a built-in chip (`elk chips` lists them) or the path of a chip file (.toml)",
    )
    group.add_argument(
        "--target", metavar="NAME", help="machine to lower to: ipu, northpole (default: the chip's)"
    )
    group.add_argument(
        "--policy", metavar="NAME", help="scheduling policy (default: the best one there is)"
    )
    group.add_argument(
        "--dim",
        action="append",
        metavar="NAME=VALUE",
        help="bind a symbolic dimension (repeatable); `elk compile` takes NAME=V1,V2,… as well, and"
        " makes a program for each",
    )
    group.add_argument(
        "--kv-capacity",
        type=int,
        metavar="N",
        help="entries that a KV cache can grow to (default: what this run needs)",
    )
    group.add_argument(
        "--time-budget",
        type=float,
        metavar="SECONDS",
        help="stop searching after this long and take the best program so far",
    )
    group.add_argument(
        "--objective",
        choices=("time", "energy"),
        help="what the policies minimise (default: time)",
    )
    group.add_argument(
        "--attention-chunks",
        type=int,
        metavar="N",
        help="cut attention over a KV cache into N parts of the batch, 1: leave it whole"
        " (default: what the chip's SRAM asks for)",
    )
    group.add_argument(
        "--floats",
        choices=("f16", "bf16"),
        help="store and multiply float32 tensors as fp16 or bf16, with sums in float32; inputs and"
        " outputs keep the model's types (default: leave the model's types alone)",
    )

    cards = parser.add_argument_group("mapping to NorthPole cards")
    cards.add_argument(
        "--precision",
        metavar="NAME",
        help="what the model is quantised to: w4a4, w8a8, w4a8kv8, …, or graph, the types it has"
        " (default: graph if it is quantised, else w4a4)",
    )
    cards.add_argument("--cards", type=int, metavar="N", help="cards to use (default: all)")
    cards.add_argument(
        "--users", type=int, metavar="N", help="users at once (default: as many as fit the rule)"
    )
    cards.add_argument(
        "--route", metavar="NAME", help="how cards send: direct (default), or through the host"
    )


def add_quantize_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of what compiles a model that may be quantised on the way."""
    group = parser.add_argument_group("quantising")
    group.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="quantise the model: w4a4, w8a8, w2a8, …; w4a16, w8a16kv8, wf8a16kvf8: weights and"
        " caches that are stored narrow and widened on the cores",
    )
    group.add_argument(
        "--calibrate",
        metavar="IN.npz",
        help="typical inputs, on which the steps of activations are fitted; `unit` takes"
        " activations to be of unit variance (for bytes and times, not for numbers)",
    )
    group.add_argument(
        "--activation-steps",
        choices=("tensor", "token"),
        help="one step a tensor, or one a token, computed while the program runs (default: tensor)",
    )


def add_host_flag(parser: argparse.ArgumentParser) -> None:
    """`--no-host`."""
    parser.add_argument(
        "--no-host",
        action="store_true",
        default=None,
        help="refuse nodes that the chip can't take, which otherwise run on the host",
    )


def quantization_of(args: argparse.Namespace) -> Quantization | None:
    """What `--quantize` and its companions say. Raises UsageError for a companion alone."""
    from elk_ir.quantizer import Quantization

    if args.quantize is None:
        for flag in ("calibrate", "activation_steps"):
            if getattr(args, flag) is not None:
                raise UsageError(
                    f"--{flag.replace('_', '-')} does nothing without --quantize SCHEME"
                )
        return None
    return Quantization(
        args.quantize,
        args.calibrate,
        activations=args.activation_steps or "tensor",
        random_weights=getattr(args, "random_weights", None),
    )


def add_input_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of everything that computes numbers."""
    group = parser.add_argument_group("numbers")
    group.add_argument(
        "--inputs", metavar="IN.npz", help="input tensors by name (plain, or with the prefix in/)"
    )
    group.add_argument(
        "--random-inputs", type=int, metavar="SEED", help="make up the inputs instead"
    )
    group.add_argument(
        "--random-weights",
        type=int,
        metavar="SEED",
        help="make up weights whose file does not exist (normal, variance 1 / fan-in)",
    )


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout and nothing else"
    )


def dims_of(args: argparse.Namespace) -> dict[str, int]:
    """`--dim` as a dictionary. Raises UsageError for a malformed binding."""
    from elk_ir.frontend.xdsl_frontend import parse_dims

    return parse_dims(args.dim or ())


def bindings_of(args: argparse.Namespace) -> list[dict[str, int]]:
    """`--dim` with several values as one dictionary for each combination. Raises UsageError."""
    from elk_ir.frontend.xdsl_frontend import parse_bindings

    return parse_bindings(args.dim or ())


def given_inputs(args: argparse.Namespace) -> dict[str, np.ndarray] | None:
    """The tensors of `--inputs`, None if they are to be made up once the model is known.

    Raises UsageError unless exactly one of --inputs and --random-inputs is there.
    """
    from elk_ir.numerics.tensors import read_npz

    if args.inputs is not None and args.random_inputs is not None:
        raise UsageError("--inputs and --random-inputs exclude each other")
    if args.inputs is not None:
        return read_npz(args.inputs, "in/")
    if args.random_inputs is None:
        raise UsageError("no inputs", hint="give --inputs IN.npz or --random-inputs SEED")
    return None


def inputs_for(
    signature: Signature, given: Mapping[str, np.ndarray] | None, args: argparse.Namespace
) -> dict[str, np.ndarray]:
    """The inputs as the program takes them. Raises ElkError for a wrong name, shape or type."""
    from elk_ir.numerics.tensors import check_inputs, random_inputs

    if given is None:
        return random_inputs(signature.inputs, args.random_inputs)
    return check_inputs(given, signature.inputs, where=args.inputs)


def mapping_of(args: argparse.Namespace) -> dict[str, str | int]:
    """The options of the stage map that were given."""
    from elk_ir.compiler import NORTHPOLE_OPTIONS

    given = {name: getattr(args, name, None) for name in NORTHPOLE_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def compile_from_args(
    args: argparse.Namespace,
    say: Say,
    inputs: Mapping[str, np.ndarray] | None = None,
    *,
    simulate: bool = False,
) -> Program:
    """Compile `args.model`, binding dimensions by --dim and by the inputs' shapes; `simulate` adds
    the fields about time to its report."""
    from elk_ir.compiler import compile_model

    return compile_model(
        args.model,
        dims=dims_of(args),
        input_shapes=None if inputs is None else {n: a.shape for n, a in inputs.items()},
        **_options(args, say, simulate),
    )


def compile_set_from_args(
    args: argparse.Namespace, say: Say, *, simulate: bool = False
) -> ProgramSet:
    """Compile `args.model` for every combination of what --dim binds."""
    from elk_ir.program_set import compile_set

    return compile_set(args.model, dims=bindings_of(args), **_options(args, say, simulate))


def _options(args: argparse.Namespace, say: Say, simulate: bool) -> dict[str, Any]:
    """What `elk_ir.compile` takes, but for the model and its dimensions."""
    if args.chip is None:
        raise UsageError("--chip is needed to compile a model", hint="`elk chips` lists them")
    return {
        "chip": args.chip,
        "target": args.target,
        "policy": args.policy,
        "kv_capacity": args.kv_capacity,
        "time_budget_s": args.time_budget,
        "objective": args.objective,
        "attention_chunks": args.attention_chunks,
        "floats": args.floats,
        "mapping": mapping_of(args),
        "quantize": quantization_of(args),
        "simulate": simulate,
        "host": not getattr(args, "no_host", None),
        "progress": say,
    }


def program_from_args(
    args: argparse.Namespace, say: Say, inputs: Mapping[str, np.ndarray] | None
) -> Program:
    """Load `args.model` if it is a folder, else compile it. Of a folder with several programs, the
    one for the inputs, or the one that --dim picks."""
    from elk_ir.program import load
    from elk_ir.program_set import is_set, load_set

    if not Path(args.model).is_dir():
        return compile_from_args(args, say, inputs)
    given = [f for f in _COMPILE_FLAGS if getattr(args, f, None) not in (None, [])]
    several = given in ([], ["dim"]) and is_set(args.model)
    if given and not several:
        raise UsageError(
            f"--{given[0].replace('_', '-')} does not apply to a program that is compiled already"
        )
    say("loading the program")
    if not several:
        return load(args.model)
    programs = load_set(args.model)
    if inputs is None or args.dim:
        return programs.bound_to(dims_of(args))
    return programs.select({name: array.shape for name, array in inputs.items()})


# ---------------------------------------------------------------------- output


@contextmanager
def progress() -> Iterator[Say]:
    """A function that shows what is being done on stderr, with the time it has taken so far,
    refreshed several times a second; it does nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None)
        yield lambda line: display.update(task, description=line)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns; those that hold only numbers are right-aligned."""
    cells = [[_cell(v) for v in row] for row in rows]
    numeric = [
        all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        for i in range(len(head))
    ]
    widths = [max(len(line[i]) for line in [list(head), *cells]) for i in range(len(head))]

    def line(texts: Sequence[str]) -> str:
        parts = [
            t.rjust(w) if right else t.ljust(w)
            for t, w, right in zip(texts, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(head), *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def short(text: str, width: int = 48) -> str:
    """`text`, its middle left out if it is longer than `width`."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def summary(report: Mapping[str, Any]) -> str:
    """A compiled program in a few lines."""
    if report["target"] == "northpole":
        return _northpole_summary(report)
    operators = report["operators"]
    runs = sum(o["count"] for o in operators)
    lines = [
        f"{report['model']} for {report['chip']} ({report['target']}),"
        f" scheduled by policy {report['policy']}",
        f"  operators      {len(operators):,} ({runs:,} executes in a run)",
        *host_lines(report),
    ]
    # A target of an extension need not know these.
    if "sram_peak_bytes" in report:
        peak, capacity = report["sram_peak_bytes"], report["sram_capacity_bytes"]
        share = f"{peak / capacity:.0%}"
        lines.append(f"  SRAM           {peak:,} of {capacity:,} bytes a core ({share})")
    moved = f", {report['hbm_bytes']:,} moved in a run" if "hbm_bytes" in report else ""
    lines.append(f"  HBM            {report['hbm_footprint_bytes']:,} bytes held{moved}")
    if "time_s" in report:
        binding = max(report["bounds_s"], key=lambda name: report["bounds_s"][name])
        without = ", without what the host does" if "host" in report else ""
        lines.append(f"  time           {report['time_s']:.4g} s, simulated{without}")
        lines.append(f"  lower bound    {report['lower_bound_s']:.4g} s ({binding})")
    if "tokens_per_s" in report:
        lines.append(f"  decoding       {report['tokens_per_s']:,.1f} tokens a second")
    for state in report["states"]:
        lines.append(
            f"  state          {state['name']}: {state['layers']} x {state['dtype']}"
            f"{state['shape']}, {state['length']} of {state['capacity']} entries filled,"
            f" {state['written_bytes']:,} bytes written in a run"
        )
    return "\n".join(lines)


def set_summary(report: Mapping[str, Any]) -> str:
    """Several programs of a model, one a line."""
    rows = [
        (
            entry["folder"],
            entry.get("time_s", "-"),
            entry.get("tokens_per_s", "-"),
            entry.get("sram_peak_bytes", "-"),
            entry["hbm_footprint_bytes"],
        )
        for entry in report["programs"]
    ]
    head = (
        f"{report['model']} for {report['chip']} ({report['target']}), {len(rows)} programs,"
        f" scheduled by policy {report['policy']}\n"
    )
    columns = ("program", "time_s", "tokens_per_s", "sram_peak_bytes", "hbm_footprint_bytes")
    return head + table(columns, rows)


_SHOWN_ON_HOST = 5


def host_lines(report: Mapping[str, Any]) -> list[str]:
    """What runs on the host, if anything does: the nodes, and why."""
    if "host" not in report:
        return []
    host = report["host"]
    lines = [f"  host           {host['nodes']:,} of {host['of']:,} nodes run on the host:"]
    for row in host["why"][:_SHOWN_ON_HOST]:
        lines.append(f"                 {short(row['node'])} ({row['operator']}): {row['why']}")
    hidden = host["nodes"] - _SHOWN_ON_HOST
    return lines + ([f"                 and {hidden:,} more (report.json)"] if hidden > 0 else [])


def _northpole_summary(report: Mapping[str, Any]) -> str:
    """A program of cards in a few lines."""
    share = report["sram_peak_bytes"] / report["sram_capacity_bytes"]
    fullest = max(report["stages"], key=lambda stage: stage["card_bytes"])
    precision = report["precision"]["name"]
    planned = "" if report["quantized"] else " (planned: the graph is not quantised)"
    lines = [
        f"{report['model']} for {report['chip']} (northpole), {report['policy']},"
        f" {precision}{planned}",
        f"  cards          {report['cards']}, in {len(report['stages'])} stages",
        f"  users          {report['mini_batch']} in {report['micro_batches']} micro-batches of"
        f" {report['micro_batch']}; memory admits {report['users_by_memory']}",
        f"  fullest card   {fullest['card_bytes']:,} bytes ('{fullest['name']}':"
        f" {fullest['weight_bytes']:,} weights, {fullest['kv_bytes']:,} KV)",
        f"  fullest core   {report['sram_peak_bytes']:,} of {report['sram_capacity_bytes']:,} bytes"
        f" ({share:.0%})",
        f"  limit          {report['limit']}",
    ]
    if "tokens_per_s" in report:
        lines += [
            f"  decoding       {report['tokens_per_s']:,.0f} tokens a second,"
            f" {report['latency_per_token_s'] * 1e3:.3f} ms a token and user",
            f"  run            {report['prompt_tokens']} prompt tokens in"
            f" {report['prompt_time_s']:.4g} s, {report['generated_tokens']} generated in"
            f" {report['generation_time_s']:.4g} s",
        ]
    elif "samples_per_s" in report:
        lines.append(
            f"  rate           {report['samples_per_s']:,.0f} samples a second,"
            f" {report['latency_s'] * 1e6:.1f} µs each, bound by {report['bound_by']}"
        )
    if "power_w" in report:
        lines.append(f"  power          {report['power_w']:.0f} W")
    if report["graph_batch"] != report["micro_batch"] and report["states"]:
        lines.append(
            f"  note           the program takes {report['graph_batch']} users a pass; bind the"
            f" batch to {report['micro_batch']} for whole micro-batches"
        )
    return "\n".join(lines)
