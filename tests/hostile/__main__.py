"""`python -m hostile`: all malformed inputs through the commands, and a table (docs/testing.md)."""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hostile import file_inputs, onnx_inputs, text_inputs
from hostile.harness import Hostile, Measured, run, run_apart

PARTS = (onnx_inputs, text_inputs, file_inputs)


@dataclass
class Row:
    """What happened to the inputs of one kind."""

    counts: dict[str, int] = field(
        default_factory=lambda: {"refused": 0, "accepted": 0, "defect": 0}
    )
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, name: str, result: Measured) -> None:
        """Counts a case."""
        self.counts[result.outcome.kind] += 1
        self.slowest = max(self.slowest, (result.cpu_s, name))
        self.largest = max(self.largest, (result.peak_bytes, name))


def cases() -> Iterator[Hostile]:
    """The whole corpus."""
    for part in PARTS:
        yield from part.cases()


def run_all(chosen: Iterable[Hostile]) -> tuple[dict[str, Row], dict[str, str]]:
    """Rows by kind, and defects by the name of the case; one process a case."""
    rows: dict[str, Row] = {}
    defects: dict[str, str] = {}
    _warm_up()
    for case in chosen:
        folder = Path(tempfile.mkdtemp(prefix="elk-hostile-"))
        try:
            result = run_apart(case, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows.setdefault(case.name.split("/")[0], Row()).add(case.name, result)
        if result.outcome.kind == "defect":
            defects[case.name] = result.outcome.detail
            print(f"{case.name}: {result.outcome.detail}", file=sys.stderr, flush=True)
    return rows, defects


def _warm_up() -> None:
    """Imports what the commands import, once, before any case is forked."""
    for each in (onnx_inputs.case("valid", onnx_inputs.base()), next(file_inputs.programs())):
        with tempfile.TemporaryDirectory() as folder:
            run(each, Path(folder))
    gc.collect()
    gc.freeze()


def table(rows: dict[str, Row]) -> str:
    """Markdown."""
    lines = [
        "| input | count | refused with a message | accepted | defects | slowest, CPU s |"
        " peak memory, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    total = Row()
    for name, row in sorted(rows.items()):
        lines.append(_line(name, row))
        for kind, count in row.counts.items():
            total.counts[kind] += count
        total.slowest = max(total.slowest, row.slowest)
        total.largest = max(total.largest, row.largest)
    lines.append(_line("all", total))
    lines += ["", f"slowest: {total.slowest[1]}", f"largest: {total.largest[1]}"]
    return "\n".join(lines) + "\n"


def _line(name: str, row: Row) -> str:
    counts = " | ".join(f"{n:,}" for n in (sum(row.counts.values()), *row.counts.values()))
    return f"| {name} | {counts} | {row.slowest[0]:.1f} | {row.largest[0] / 2**20:,.0f} |"


def main() -> int:
    """Exit code 1 if anything was not refused clearly."""
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only one of so many cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    chosen = [c for c in cases() if args.only in c.name][args.first :: args.every]
    rows, defects = run_all(chosen)
    sys.stdout.write(table(rows))
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
