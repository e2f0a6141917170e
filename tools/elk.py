"""`elk`: compile ONNX models for inter-core connected chips, run and check them.

    elk compile MODEL.onnx --chip CHIP -o DIR
    elk run DIR|MODEL.onnx [--chip CHIP] --inputs in.npz --expect out.npz
    elk simulate DIR|MODEL.onnx [--chip CHIP]
    elk verify MODEL.onnx --chip CHIP
    elk explore SWEEP.toml -o results.sqlite
    elk explain DIR OPERATOR
    elk diff DIR DIR
    elk chips [NAME]
    elk profile fit DATA.csv -o MODEL.txt

Exit codes: 0 done, 1 the input can't be compiled (one message says why), 2 wrong usage, 3 the
numbers disagree. docs/commands.md has every flag.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from elk_ir import __version__
from elk_ir.errors import ElkError, check_file_name
from elk_ir.tools import (
    cmd_chips,
    cmd_compare,
    cmd_compile,
    cmd_diff,
    cmd_explain,
    cmd_explore,
    cmd_profile,
    cmd_run,
    cmd_simulate,
    cmd_verify,
)
from elk_ir.tools.exits import STOPPED, say, stopped

TOOL = "elk"

COMMANDS = {
    "compile": cmd_compile,
    "run": cmd_run,
    "simulate": cmd_simulate,
    "compare": cmd_compare,
    "explain": cmd_explain,
    "diff": cmd_diff,
    "explore": cmd_explore,
    "verify": cmd_verify,
    "chips": cmd_chips,
    "profile": cmd_profile,
}


def build_parser() -> argparse.ArgumentParser:
    """The command line of `elk` with all its commands."""
    parser = argparse.ArgumentParser(
        prog=TOOL,
        description="Compiles ONNX models for inter-core connected AI chips, runs them on a virtual"
        " chip, and checks the numbers. docs/commands.md documents every flag.",
    )
    parser.add_argument("--version", action="version", version=f"{TOOL} {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        module.add_parser(subparsers)
    return parser


def render(error: ElkError) -> str:
    """`elk: error: where: what`, details and a hint below it."""
    first, *rest = str(error).split("\n")
    return "\n".join([f"{TOOL}: error: {first}", *rest])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command on `argv` (default: the process's arguments) and return its exit code."""
    try:
        given = sys.argv[1:] if argv is None else argv
        for argument in given:
            check_file_name(argument)  # a process has no such arguments, a caller of main may
        args = build_parser().parse_args(given)
        code: int = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return code
    except SystemExit as request:  # argparse: --help, --version, wrong usage
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    except ElkError as error:
        say(render(error))
        return error.exit_code
    except STOPPED as error:
        return stopped(error, TOOL)
    except Exception as error:
        if os.environ.get("ELK_TRACEBACK"):
            raise
        from elk_ir.tools.opt_diagnostics import summarize

        say(
            f"{TOOL}: error: internal error: {summarize(error)}\n"
            "  hint: this is a defect of the compiler; ELK_TRACEBACK=1 shows where"
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
