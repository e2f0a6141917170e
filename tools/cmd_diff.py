"""`elk diff A B`: why two programs differ in time."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from elk_ir.tools.cmd_explain import print_table
from elk_ir.tools.elk_options import add_json_flag, print_json, progress

if TYPE_CHECKING:
    from elk_ir.report.diff import Difference

_SHOWN = 15


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "diff",
        help="why two compiled programs differ in time",
        description="Simulates two compiled programs, of one model under two policies or on two"
        " chips, say, and shows where their times differ: parts of the time, what bounded the"
        " operators, and each operator with what changed in its plan (docs/report.md).",
    )
    parser.add_argument("a", metavar="A", help="a compiled program (a folder)")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--all", action="store_true", help="show all operators")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Compares. Raises ElkError for a folder that holds no program."""
    from elk_ir.program import load
    from elk_ir.report.diff import difference, to_json

    with progress() as say:
        say("loading the programs")
        a, b = load(args.a), load(args.b)
        say("simulating")
        found = difference(a, b)
    if args.json:
        print_json(to_json(found))
    else:
        _print(found, everything=args.all)
    return 0


def _print(found: Difference, *, everything: bool) -> None:
    from elk_ir.report.diff import signed
    from elk_ir.report.page import seconds

    (_, before, after) = found.totals[0]
    delta = after - before
    share = f" ({delta / before:+.1%})" if before else ""
    lines = [f"A  {found.a}", f"B  {found.b}"]
    if not found.same_model:
        lines.append("   these are different models: operators are matched by name only")
    lines.append(f"B takes {signed(delta)}{share}")
    causes = ", ".join(f"{name} {signed(value)}" for name, value in found.spent[:4])
    if causes:
        lines.append(f"by what bounded the operators: {causes}")
    sys.stdout.write("\n".join(lines) + "\n")
    rows = [
        (name, _value(name, a, seconds), _value(name, b, seconds), _change(a, b))
        for name, a, b in (*found.totals, *found.breakdown)
    ]
    print_table(("", "A", "B", "change"), rows, right=(1, 2, 3))
    pairs = [p for p in found.operators if p.delta_s or p.why]
    shown = pairs if everything else pairs[:_SHOWN]
    lines_ = [
        (
            p.operator,
            seconds(p.a.time_s) if p.a else "",
            seconds(p.b.time_s) if p.b else "",
            signed(p.delta_s),
            p.why,
        )
        for p in shown
    ]
    print_table(("operator", "A", "B", "B − A", "what changed"), lines_, right=(1, 2, 3))
    hidden = len(pairs) - len(shown)
    if hidden:
        sys.stdout.write(f"… and {hidden:,} more that differ (--all, or --json)\n")


def _value(name: str, value: float, seconds: Any) -> str:
    if name.endswith("utilization"):
        return f"{value:.1%}"
    if name.endswith("bytes"):
        return f"{value:,}"
    if name.endswith("_j"):
        return f"{value:.4g} J"
    return seconds(value)


def _change(a: float, b: float) -> str:
    return f"{(b - a) / a:+.1%}" if a else ""
