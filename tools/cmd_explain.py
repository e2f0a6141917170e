"""`elk explain DIR OPERATOR`: the plans of an operator, the one it has, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elk_ir.tools.elk_options import add_json_flag, print_json, progress

if TYPE_CHECKING:
    from elk_ir.report.explain import Explanation, Option

_SHOWN = 14


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="why an operator of a program has the plan it has",
        description="Enumerates the plans of an operator of a compiled program again, and says what"
        " spoke for the one that was taken and against each of the others (docs/report.md).",
    )
    parser.add_argument("folder", metavar="DIR", help="a compiled program")
    parser.add_argument(
        "operator", metavar="OPERATOR", help="its label, or the name of an ONNX node"
    )
    parser.add_argument("--all", action="store_true", help="show all plans, not a selection")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Explains. Raises ElkError for a folder or an operator that does not exist."""
    from elk_ir.program import load
    from elk_ir.report.explain import explain, to_json

    with progress() as say:
        say("loading the program")
        program = load(args.folder)
        say("enumerating plans")
        found = explain(program, args.operator)
    if args.json:
        print_json(to_json(found))
    else:
        _print(found, everything=args.all)
    return 0


def _print(found: Explanation, *, everything: bool) -> None:
    from elk_ir.report.page import seconds

    chosen = found.chosen
    extents = " × ".join(f"{n} {k}" for n, k in found.extents.items())
    nodes = ", ".join(found.nodes[:3]) + (" …" if len(found.nodes) > 3 else "")
    lines = [
        f"{found.operator}: {found.kind} over {extents}, runs {found.count:,} times",
        f"  nodes        {nodes}",
        f"  plans        {found.considered:,} considered, {len(found.options):,} worth knowing",
        f"  room         {found.room_bytes:,} of {found.capacity_bytes:,} bytes a core, the rest"
        " being others' at that time",
        f"  chosen       {grid_text(chosen.grid)} on {chosen.cores:,} cores,"
        f" {seconds(chosen.execute_s)}, by policy {found.policy}",
        f"  why          {chosen.reason}",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    options = found.options if everything else selection(found.options)
    rows = [
        (
            "→" if o.chosen else "",
            grid_text(o.grid),
            f"{o.cores:,}",
            f"{o.ring_steps:,}",
            seconds(o.execute_s),
            seconds(o.preload_s),
            f"{o.execute_bytes:,}",
            f"{o.preload_bytes:,}",
            o.reason,
        )
        for o in options
    ]
    head = ("", "grid", "cores", "steps", "execute", "preload", "bytes", "waiting", "why (not)")
    print_table(head, rows, right=(2, 3, 4, 5, 6, 7))
    hidden = len(found.options) - len(options)
    if hidden:
        sys.stdout.write(f"… and {hidden:,} more (--all, or --json)\n")


def selection(options: Sequence[Option]) -> list[Option]:
    """The chosen plan and others evenly over the rest, the fastest and the slowest among them."""
    if len(options) <= _SHOWN:
        return list(options)
    last = len(options) - 1
    wanted = {round(i * last / (_SHOWN - 2)) for i in range(_SHOWN - 1)}
    return [o for i, o in enumerate(options) if i in wanted or o.chosen]


def grid_text(grid: dict[str, int]) -> str:
    """The parts along each dimension that is cut."""
    return " × ".join(f"{n} {k}" for n, k in grid.items() if k > 1) or "one core"


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    """A table on stdout; as wide as it needs where stdout is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=240)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(title, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        # Names may hold square brackets, which are markup to rich.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
