"""ONNX's node tests on the virtual machine of a 16-core chip: counts, failures, operator table.

    python benchmarks/onnx_conformance.py [--core] [--operator NAME ...] [--case NAME ...]
        [--again | --new] [--budget-s SECONDS] [--results FILE] [--docs] [--list OUTCOME]

Results are kept in a file, case by case; `--again` runs only what did not pass in it, `--new` what
has no result (with the other selections: of those). `--docs` writes docs/operators.md from it,
`--list` prints the cases with an outcome. Without a selection, and without --docs or --list, every
case is run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from elk_ir.conformance import (
    PASSES,
    Outcome,
    Result,
    is_core,
    model_of,
    node_cases,
    operator_of,
    run_case,
)
from elk_ir.operator_page import operator_page

DOCS = Path(__file__).parent.parent / "docs" / "operators.md"
RESULTS = Path(__file__).parent.parent / "build" / "onnx_conformance.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description="ONNX's node tests on the virtual machine")
    parser.add_argument("--core", action="store_true", help="only the cases that count")
    parser.add_argument("--operator", nargs="*", default=[], help="only cases of these operators")
    parser.add_argument("--case", nargs="*", default=[], help="only these cases")
    parser.add_argument("--again", action="store_true", help="only what did not pass")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", action="store_true", help="write docs/operators.md")
    parser.add_argument("--list", choices=[o.value for o in Outcome], action="append")
    parser.add_argument("--limit-s", type=float, default=60.0, help="CPU seconds a case")
    parser.add_argument("--new", action="store_true", help="only cases without a result")
    parser.add_argument("--budget-s", type=float, help="stop after this much CPU time")
    options = parser.parse_args()
    results = read(options.results)
    if not (options.list or (options.docs and not options.again)):
        run(options, results)
    for result in results.values():
        if options.list and result.outcome in options.list:
            if not options.core or result.core:
                print(f"{result.outcome:<12} {result.case}: {result.detail}")
    summary(results)
    if options.docs:
        DOCS.write_text(operator_page(list(results.values())), encoding="utf-8")
    return any(r.outcome in (Outcome.WRONG, Outcome.CRASH) for r in results.values())


def read(path: Path) -> dict[str, Result]:
    """Results of earlier runs by case; of several of one case the last counts."""
    results: dict[str, Result] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            fields["outcome"] = Outcome(fields["outcome"])
            results[fields["case"]] = Result(**fields)
    return results


def run(options: argparse.Namespace, results: dict[str, Result]) -> None:
    """Run the selected cases, appending each result to the file."""
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with open(options.results, "a", encoding="utf-8") as stream:
        for case in node_cases():
            old = results.get(case.name)
            if options.case and case.name not in options.case:
                continue
            if options.operator and operator_of(case) not in options.operator:
                continue
            if options.core and not is_core(model_of(case)):
                continue
            if options.budget_s is not None and time.process_time() > options.budget_s:
                break
            if options.new and old is not None:
                continue
            if options.again and old is not None and old.outcome in PASSES:
                continue
            result = results[case.name] = run_case(case, limit_s=options.limit_s)
            stream.write(json.dumps(asdict(result)) + "\n")
            stream.flush()
            if result.outcome not in (*PASSES, Outcome.HOST) and (
                old is None or old.outcome != result.outcome
            ):
                print(f"{result.outcome:<12} {result.case}: {result.detail}", file=sys.stderr)


def summary(results: dict[str, Result]) -> None:
    """Counts of the core cases and of all."""
    for label, chosen in (
        ("core", [r for r in results.values() if r.core]),
        ("all", list(results.values())),
    ):
        counts = Counter(r.outcome for r in chosen)
        passed = sum(counts[o] for o in PASSES)
        parts = ", ".join(f"{counts[o]} {o.value}" for o in Outcome if counts[o])
        print(f"{label}: {passed} of {len(chosen)} pass ({parts})")


if __name__ == "__main__":
    sys.exit(main())
