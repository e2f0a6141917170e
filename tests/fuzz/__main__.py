"""`python -m fuzz`: a long run with a table at the end (`make fuzz`, docs/testing.md).

`python -m fuzz --add OUTPUT ...` adds up the tables of several runs, of other seeds each.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
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
    parser.add_argument("--add", nargs="+", type=Path, metavar="OUTPUT", help="add up, run nothing")
    args = parser.parse_args()
    if args.add:
        sys.stdout.write(added([path.read_text() for path in args.add]))
        return 0
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


def added(outputs: Sequence[str]) -> str:
    """The tables of several runs as one, without their operators and refusals."""
    total: Counter[str] = Counter()
    runs = cpu_s = failures = 0
    operators: set[str] = set()
    for text in outputs:
        for title, count in re.findall(r"^\| (\w+: [^|]+) \| ([\d,]+) \|$", text, re.MULTILINE):
            total[title] += int(count.replace(",", ""))
        for spent, failed in re.findall(r" (\d+) CPU s, (\d+) failures$", text, re.MULTILINE):
            runs, cpu_s, failures = runs + 1, cpu_s + int(spent), failures + int(failed)
        for listed in re.findall(r"^ONNX operators: (.+)$", text, re.MULTILINE):
            operators |= {name.rsplit(" ", 1)[0] for name in listed.split(", ")}
    onnx = sorted(name for name in operators if not name.startswith("te."))
    lines = [
        f"{runs} runs, {cpu_s:,} CPU s, {failures} failures, {len(onnx)} ONNX operators",
        "",
        "| what | count |",
        "|---|---:|",
        *(f"| {title} | {count:,} |" for title, count in total.items()),
        "",
        f"ONNX operators: {', '.join(onnx)}",
    ]
    return "\n".join(lines) + "\n"


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


if __name__ == "__main__":
    sys.exit(main())
