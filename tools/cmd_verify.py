"""`elk verify MODEL.onnx --chip CHIP`: level by level, which pass changes the numbers."""

from __future__ import annotations

import argparse
import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

from elk_ir.tools.elk_options import (
    add_compile_flags,
    add_input_flags,
    add_json_flag,
    dims_of,
    mapping_of,
    print_json,
    progress,
    table,
)

if TYPE_CHECKING:
    from elk_ir.verify import Verification

DISAGREE = 3


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        help="find the pass that changes the numbers",
        description="Runs a model at every level of the pipeline on the same inputs, compares each"
        " with ONNX's own evaluation, and names the first pass after which the numbers change"
        " (exit code 3).",
    )
    parser.add_argument("model", metavar="MODEL.onnx")
    add_input_flags(parser)
    parser.add_argument(
        "--expect",
        metavar="OUT.npz",
        help="outputs of the framework that made the model: checks the import as well",
    )
    parser.add_argument(
        "--before-schedule",
        metavar="PASSES",
        help="passes to run just before icca-schedule, which then keeps the plans they set"
        " (icca-set-plan); written as for `elk-opt -p`",
    )
    add_compile_flags(parser, chip_required=True)
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Verifies and reports. Raises ElkError for what can't be compiled."""
    from elk_ir.errors import UsageError
    from elk_ir.numerics.tensors import read_npz
    from elk_ir.verify import verify_levels

    if args.inputs is not None and args.random_inputs is not None:
        raise UsageError("--inputs and --random-inputs exclude each other")
    inputs = None if args.inputs is None else read_npz(args.inputs, "in/")
    expected = None if args.expect is None else read_npz(args.expect, "out/")
    with progress() as say:
        result = verify_levels(
            args.model,
            chip=args.chip,
            inputs=inputs,
            random_inputs_seed=args.random_inputs or 0,
            random_weights=args.random_weights,
            policy=args.policy,
            target=args.target,
            mapping=mapping_of(args),
            dims=dims_of(args),
            kv_capacity=args.kv_capacity,
            attention_chunks=args.attention_chunks,
            floats=args.floats,
            expected=expected,
            before_schedule=args.before_schedule,
            progress=say,
        )
    if args.json:
        print_json(_json(result))
    else:
        sys.stdout.write(_text(result))
    return 0 if result.culprit is None else DISAGREE


def _json(result: Verification) -> dict[str, Any]:
    failed = result.failed
    worst = max((c.max_abs_error for c in result.checks), default=0.0)
    return {
        "model": result.model,
        "chip": result.chip,
        "agree": result.culprit is None,
        "max_abs_error": worst if isfinite(worst) else None,
        "culprit": result.culprit,
        "node": None if failed is None else failed.node,
        "failure": None if failed is None else failed.failure,
        "checks": [
            {
                "after": c.after,
                "level": c.level,
                "ok": c.ok,
                "max_abs_error": c.max_abs_error if isfinite(c.max_abs_error) else None,
                "outputs": [e.to_json() for e in c.errors],
            }
            for c in result.checks
        ],
    }


def _text(result: Verification) -> str:
    rows = []
    for check in result.checks:
        worst = check.worst
        allowed = "" if worst is None else f"{worst.allowed:.3g}"
        error = "" if worst is None else f"{worst.max_abs_error:.3g}"
        rows.append((check.after, check.level, error, allowed, "ok" if check.ok else "DIFFERS"))
    text = f"{result.model} for {result.chip}\n"
    text += table(("after", "level", "max_abs_error", "allowed", ""), rows) + "\n"
    failed = result.failed
    if failed is None:
        return text + "every level agrees with the model\n"
    text += f"the numbers change after {result.culprit}"
    if failed.worst is not None:
        text += f": output {failed.worst.name!r} is off by {failed.worst.max_abs_error:.3g}"
    text += "\n"
    if failed.node is not None:
        text += f"  first at node {failed.node!r}\n"
    if failed.failure is not None:
        text += "".join(f"  {line}\n" for line in failed.failure.split("\n"))
    return text
