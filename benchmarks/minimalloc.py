"""Byte-address allocation on the hard instances of google/minimalloc.

    python benchmarks/minimalloc.py [--minimize] [--budget SECONDS] [--seed N] [INSTANCE ...]

For each instance: buffers, the most live bytes (a lower bound), the first-fit height, our height,
minimalloc's own height and CPU time from the reference table (its machine, compiled C++), and our
search steps and CPU seconds. Every result goes through the independent checker. Exits with 1 when
an allocation overlaps or fewer than nine instances fit.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from elk_ir.memory.check import check, peak
from elk_ir.memory.lifetimes import Buffer, Problem
from elk_ir.memory.offsets import allocate

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
CAPACITY_BYTES = 1 << 20


def load(path: Path) -> Problem:
    """Read ``id,lower,upper,size`` rows; times are half-open, sizes in bytes."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return Problem(
        tuple(Buffer(r["id"], int(r["size"]), int(r["lower"]), int(r["upper"])) for r in rows),
        CAPACITY_BYTES,
    )


def reference() -> dict[str, dict[str, str]]:
    """Minimalloc's own results by instance."""
    with (DATA / "reference" / "minimalloc_best.csv").open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["name"]: row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description="allocate google/minimalloc's hard instances")
    parser.add_argument("instances", nargs="*", help="names (default: all)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds worth of steps each")
    parser.add_argument("--minimize", action="store_true", help="go below the capacity")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not DATA.is_dir():
        print("error: the instances are not there (../shared/data/minimalloc)", file=sys.stderr)
        return 1
    best = reference()
    print(
        "| instance | buffers | max live | first fit | height | minimalloc | steps | CPU s |",
        end="",
    )
    print(" minimalloc CPU s |\n|" + " --- |" * 9)
    fitting, broken = 0, 0
    paths = sorted((DATA / "minimalloc").glob("*.csv"))
    chosen = [p for p in paths if not options.instances or p.name[0] in options.instances]
    for path in chosen:
        problem, name = load(path), path.name.split(".")[0]
        greedy = allocate(problem, time_budget_s=0)
        began = time.process_time()
        found = allocate(
            problem, time_budget_s=options.budget, seed=options.seed, minimize=options.minimize
        )
        cpu_s = time.process_time() - began
        wrong = check(problem, found.offsets_bytes)
        broken += any(v.kind != "out-of-capacity" for v in wrong)
        fitting += not wrong
        print(
            f"| {name} | {len(problem.buffers)} | {peak(problem)[1]:,} | {greedy.height_bytes:,} "
            f"| {found.height_bytes:,}{' (optimal)' if found.optimal else ''} "
            f"| {int(best[name]['best']):,} | {found.steps:,} | {cpu_s:.2f} "
            f"| {best[name]['cpu_s']} |",
            flush=True,
        )
    print(f"\n{fitting} of {len(chosen)} within {CAPACITY_BYTES:,} bytes; {broken} with overlaps")
    return 0 if not broken and fitting >= min(9, len(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
