"""`elk explore SWEEP.toml -o results.sqlite`, `elk explore show results.sqlite`: design spaces."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from elk_ir.errors import ElkError, UsageError
from elk_ir.output import write_text
from elk_ir.tools.elk_options import add_json_flag, print_json, progress, short, table

if TYPE_CHECKING:
    from elk_ir.explore.run import Summary
    from elk_ir.explore.store import Row
    from elk_ir.explore.table import Cell

_EVERY_S = 5.0
"""How often progress is written where stderr is no terminal."""


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explore",
        help="sweep over chips, models and policies, and look at the results",
        usage="elk explore SWEEP.toml -o RESULTS.sqlite [--jobs N | --cluster ADDRESS]\n"
        "       elk explore show RESULTS.sqlite [--pivot ROW,COL,VALUE] [--pareto A,B,…]"
        " [--csv FILE]",
        description="Computes every point of a sweep (docs/explore.md has the format) and writes"
        " each into a SQLite file as it finishes; a run that was stopped goes on where it was, and"
        " two runs can share a file. `show` prints, pivots and exports such a file.",
    )
    parser.add_argument("what", metavar="SWEEP.toml | show")
    parser.add_argument("results", nargs="?", metavar="RESULTS.sqlite", help="with show: the file")
    running = parser.add_argument_group("running a sweep")
    running.add_argument("-o", "--output", metavar="RESULTS.sqlite", help="the file to write")
    running.add_argument(
        "--jobs", type=int, metavar="N", help="processes (default: one a core of this machine)"
    )
    running.add_argument(
        "--cluster", metavar="ADDRESS", help="a Dask scheduler (tcp://HOST:PORT) to compute on"
    )
    running.add_argument(
        "--retry-failures", action="store_true", help="compute points again that have failed"
    )
    showing = parser.add_argument_group("showing results")
    showing.add_argument("--sweep", metavar="NAME", help="only the points of this sweep")
    showing.add_argument(
        "--pivot", metavar="ROW,COL,VALUE", help="one field by two others, as a table"
    )
    showing.add_argument(
        "--pareto",
        metavar="A,B,…",
        help="mark the points that no other beats in all of these (time, energy, area, or any"
        " field)",
    )
    showing.add_argument("--fields", metavar="A,B,…", help="the fields of a result to show")
    showing.add_argument("--csv", metavar="FILE", help="write all fields of all points")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Runs or shows. Raises ElkError for a sweep, a file or a cluster that is no good."""
    if args.what == "show":
        return _show(args)
    return _run(args)


# ---------------------------------------------------------------------- running


def _run(args: argparse.Namespace) -> int:
    for flag in ("results", "sweep", "pivot", "pareto", "fields", "csv"):
        if getattr(args, flag) is not None:
            name = flag if flag == "results" else f"--{flag}"
            raise UsageError(f"{name}: only for `elk explore show`")
    if args.output is None:
        raise UsageError("-o RESULTS.sqlite is needed to run a sweep")
    if args.cluster is not None and args.jobs is not None:
        raise UsageError("--jobs and --cluster exclude each other")
    from elk_ir.explore.run import default_jobs, explore
    from elk_ir.explore.sweep import load_sweep

    sweep = load_sweep(args.what)
    jobs = default_jobs() if args.jobs is None else args.jobs
    with _spoken() as say:
        summary = explore(
            sweep,
            args.output,
            jobs=jobs,
            cluster=args.cluster,
            retry_failures=args.retry_failures,
            say=say,
        )
    if args.json:
        print_json({"sweep": sweep.name, "output": args.output, **_fields(summary)})
    else:
        sys.stdout.write(_told(sweep.name, args.output, summary))
    return 0


def _fields(summary: Summary) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(summary)


def _told(name: str, output: str, summary: Summary) -> str:
    from elk_ir.explore.run import duration

    line = f"{name}: {summary.points:,} points in {output}; {summary.computed:,} computed now"
    if summary.before:
        line += f", {summary.before:,} were there"
    if summary.elsewhere:
        line += f", {summary.elsewhere:,} by another run"
    line += f", in {duration(summary.wall_s)}"
    if summary.failed:
        line += f"; {summary.failed:,} failed (`elk explore show {output}` says why)"
    return line + "\n"


@contextmanager
def _spoken() -> Iterator[Callable[[str], None]]:
    """Progress on a terminal, and every few seconds as a line where there is none."""
    if sys.stderr.isatty():
        with progress() as shown:
            yield shown
        return
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            last = time.monotonic()
            print(f"elk: {line}", file=sys.stderr, flush=True)

    yield say


# ---------------------------------------------------------------------- showing


def _show(args: argparse.Namespace) -> int:
    if args.results is None:
        raise UsageError("elk explore show: which file?", hint="elk explore show RESULTS.sqlite")
    if args.output is not None or args.jobs is not None or args.cluster is not None:
        raise UsageError("-o, --jobs and --cluster: only to run a sweep")
    from elk_ir.explore.store import Store
    from elk_ir.explore.table import flat, on_front, pivot, to_csv

    store = Store(args.results, create=False)
    try:
        rows = store.rows(args.sweep)
    finally:
        store.close()
    if not rows:
        where = "" if args.sweep is None else f" of a sweep called {args.sweep!r}"
        raise ElkError(f"there are no points{where}", where=args.results)
    records = [flat(row) for row in rows]
    front = None
    if args.pareto is not None:
        front = on_front(records, _names(args.pareto))
        records = [{**r, "on_front": f} for r, f in zip(records, front, strict=True)]
    pivoted = None
    if args.pivot is not None:
        names = _names(args.pivot)
        if len(names) != 3:
            raise UsageError("--pivot takes three fields: ROW,COL,VALUE")
        pivoted = pivot(records, *names)
    if args.csv is not None:
        write_text(args.csv, to_csv(records))
    if args.json:
        print_json(_object(rows, records, pivoted))
    elif pivoted is not None:
        sys.stdout.write(_pivot_text(_names(str(args.pivot)), *pivoted))
    else:
        asked = None if args.fields is None else _names(args.fields)
        sys.stdout.write(_text(rows, records, asked, _names(args.pareto or "")))
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _object(
    rows: Sequence[Row],
    records: Sequence[dict[str, Cell]],
    pivoted: tuple[list[Cell], list[Cell], list[list[Cell]]] | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "points": [
            {
                "sweep": row.sweep,
                "settings": row.settings,
                "status": row.status,
                "error": row.error,
                "result": row.result,
                **({"on_front": r["on_front"]} if "on_front" in r else {}),
            }
            for row, r in zip(rows, records, strict=True)
        ]
    }
    if pivoted is not None:
        found["pivot"] = dict(zip(("rows", "columns", "values"), pivoted, strict=True))
    return found


def _text(
    rows: Sequence[Row],
    records: Sequence[dict[str, Cell]],
    fields: Sequence[str] | None,
    objectives: Sequence[str],
) -> str:
    from elk_ir.explore.table import FIELDS, named, varying

    many = len({row.sweep for row in rows}) > 1
    settings = varying(rows) or ["model", "chip"]
    wanted = [f for f in FIELDS if any(f in r for r in records)]
    if any("tokens_per_s" in r for r in records):
        wanted += ["tokens_per_s", "energy_per_token_j"]
    if fields is not None:
        wanted = [named(records, f) for f in fields]
    wanted = list(dict.fromkeys([*wanted, *(named(records, f) for f in objectives)]))
    marked = "on_front" in records[0]
    head = [*(["front"] if marked else []), *(["sweep"] if many else []), *settings, *wanted]
    lines = []
    for row, record in zip(rows, records, strict=True):
        cells: list[object] = ["*" if record["on_front"] else ""] if marked else []
        cells += [row.sweep] if many else []
        cells += [_cell(record.get(n)) for n in settings]
        if row.status == "ok":
            cells += [_cell(record.get(n)) for n in wanted]
        elif wanted:
            reason = short((row.error or "").split("\n")[0], 60)
            cells += [f"failed: {reason}", *[""] * (len(wanted) - 1)]
        lines.append(cells)
    text = table(head, lines) + "\n"
    failed = sum(row.status != "ok" for row in rows)
    return text + f"{len(rows):,} points, {failed:,} failed\n"


def _pivot_text(
    names: Sequence[str], rows: list[Cell], columns: list[Cell], cells: list[list[Cell]]
) -> str:
    row, column, value = names
    head = [f"{row} \\ {column}", *(_cell(c) for c in columns)]
    lines = [[_cell(r), *(_cell(v) for v in line)] for r, line in zip(rows, cells, strict=True)]
    return f"{value}\n" + table(head, lines) + "\n"


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
