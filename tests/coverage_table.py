"""Coverage by package, from the file that `coverage json` writes: `make coverage`."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

LINES = ("covered_lines", "num_statements")
BRANCHES = ("covered_branches", "num_branches")


def table(text: str) -> str:
    """Markdown: lines and branches that were run, of those there are, one row a folder."""
    packages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, data in json.loads(text)["files"].items():
        for package in (str(Path(name).parent), "all"):
            packages[package].update({k: data["summary"][k] for k in (*LINES, *BRANCHES)})
    rows = ["| package | lines | run | branches | run |", "|---|---:|---:|---:|---:|"]
    whole = packages.pop("all")
    for package, counts in (*sorted(packages.items()), ("all", whole)):
        shares = " | ".join(f"{counts[of]:,} | {_percent(counts, run, of)}" for run, of in PAIRS)
        rows.append(f"| `{package}` | {shares} |")
    return "\n".join(rows) + "\n"


PAIRS = (LINES, BRANCHES)


def _percent(counts: Counter[str], run: str, of: str) -> str:
    return f"{100 * counts[run] / counts[of]:.1f}%" if counts[of] else ""


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1]).read_text()))
