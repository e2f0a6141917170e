"""`python -m fuzz`: a long run with a table at the end (`make fuzz`, docs/testing.md)."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from fuzz.campaign import Campaign, campaign
from fuzz.cases import KINDS
from fuzz.graphs import OPERATORS
from fuzz.te_programs import GENERATORS


def main() -> int:
    """Exit code 1 if anything disagreed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU time to spend")
    parser.add_argument("--wall", action="store_true", help="count wall-clock time instead")
    parser.add_argument("--seed", type=int, default=1, help="number of the first batch")
    parser.add_argument("--examples", type=int, default=25, help="cases a batch")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of cases")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    args = parser.parse_args()
    result = campaign(
        args.seconds,
        args.seed,
        args.out,
        kinds=args.kinds.split(","),
        examples=args.examples,
        say=lambda line: print(line, flush=True),
        clock=time.monotonic if args.wall else time.process_time,
    )
    sys.stdout.write(summary(result, args.seed))
    return 1 if result.failures else 0


def summary(result: Campaign, first_seed: int) -> str:
    """Counts as a table in Markdown."""
    t = result.tally
    lines = [
        f"seed {first_seed}, {t.cases['batches']} batches, {result.cpu_s:.0f} CPU s,"
        f" {len(result.failures)} failures",
        "",
        "| what | count |",
        "|---|---:|",
    ]
    for title, counter in (
        ("cases", t.cases),
        ("plans", t.plans),
        ("policies", t.policies),
        ("chips", t.chips),
        ("te", t.te),
    ):
        lines += [f"| {title}: {name} | {count:,} |" for name, count in sorted(counter.items())]
    lines.append(f"| ONNX operators | {len(t.operators)} |")
    lines += ["", "ONNX operators: " + _listed(t.operators)]
    missing = sorted({*OPERATORS} - {*t.operators})
    lines.append("not drawn: " + (", ".join(missing) or "none"))
    lines.append("te not drawn: " + (", ".join(sorted({*GENERATORS} - {*t.te})) or "none"))
    lines += ["", "refusals:", *(f"{n:6} {why}" for why, n in t.refusals.most_common())]
    return "\n".join(lines) + "\n"


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


if __name__ == "__main__":
    sys.exit(main())
