"""`elk compile MODEL.onnx --chip CHIP -o DIR`: a program, and what it will take."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from elk_ir.tools.elk_options import (
    add_compile_flags,
    add_host_flag,
    add_json_flag,
    add_quantize_flags,
    bindings_of,
    compile_from_args,
    compile_set_from_args,
    print_json,
    progress,
    set_summary,
    summary,
)

if TYPE_CHECKING:
    from elk_ir.program import Program
    from elk_ir.program_set import ProgramSet


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="compile a model for a chip",
        description="Compiles an ONNX model and writes program.mlir, target.mlir and report.json"
        " into a folder (with several values of --dim: into a folder for each). Weights are"
        " referred to, not copied, and need not exist.",
    )
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write; made if need be")
    add_compile_flags(parser, chip_required=True)
    add_quantize_flags(parser)
    add_host_flag(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Compiles, writes and reports. Raises ElkError for what can't be compiled."""
    from elk_ir.errors import UsageError

    if args.output is None and not args.json:
        raise UsageError("-o DIR is needed", hint="or --json, which prints the report only")
    with progress() as say:
        several = len(bindings_of(args)) > 1
        made: Program | ProgramSet = (
            compile_set_from_args(args, say, simulate=True)
            if several
            else compile_from_args(args, say, simulate=True)
        )
        if args.output is not None:
            say("writing the program")
            made.save(args.output)
    report = {**made.report, "output": args.output}
    if args.json:
        print_json(report)
    else:
        text = set_summary(report) if several else summary(report)
        sys.stdout.write(text + f"\n  written to     {args.output}\n")
    return 0
