"""Compile every full-size graph for `ipu-pod4-hbm`, weights absent: time, memory, what comes out.

    python benchmarks/full_size.py [--models DIR] [--jobs N] [NAME ...]

Graphs with symbolic dimensions are bound to batch 32 and a KV length of 2,048. Each is compiled in
a process of its own; CPU seconds and memory are its report's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def compile_one(model: Path, chip: str, policy: str | None) -> dict[str, object] | str:
    """The report of one compilation, or the last line of its message."""
    command = [str(BIN / "elk"), "compile", str(model), "--chip", chip, "--json"]
    if "_dyn_" in model.name:
        command += ["--dim", "batch=32", "--dim", "past_sequence_length=2047"]
    if policy is not None:
        command += ["--policy", policy]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([*command, "-o", folder], capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return json.loads(run.stdout)
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return f"exit {run.returncode}: {lines[0] if lines else 'no message'}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models" / "full")
    parser.add_argument("--chip", default="ipu-pod4-hbm")
    parser.add_argument("--policy")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    models = sorted(args.models.glob("*.onnx"))
    if args.names:
        models = [m for m in models if any(n in m.name for n in args.names)]
    if not models:
        print(f"no models in {args.models.name}: nothing to compile")
        return
    print(f"{'model':52} {'CPU s':>6} {'MB':>6} {'ms':>8} {'bound':>8} {'HBM':>6} {'SRAM':>7}")
    with ThreadPoolExecutor(args.jobs) as pool:
        reports = pool.map(lambda model: compile_one(model, args.chip, args.policy), models)
        print_rows(models, reports)


def print_rows(models: Iterable[Path], reports: Iterable[dict[str, object] | str]) -> None:
    """A line a model, as they finish, in order."""
    for model, report in zip(models, reports, strict=True):
        if isinstance(report, str):
            print(f"{model.stem:52} {report}", flush=True)
            continue
        number = {k: float(v) for k, v in report.items() if isinstance(v, int | float)}
        print(
            f"{model.stem:52} {number['compile_cpu_s']:6.1f}"
            f" {number['compile_peak_rss_bytes'] / 1e6:6.0f}"
            f" {1e3 * number.get('time_s', float('nan')):8.3f}"
            f" {1e3 * number.get('lower_bound_s', float('nan')):8.3f}"
            f" {number.get('hbm_utilization', float('nan')):6.1%}"
            f" {number['sram_peak_bytes'] / number['sram_capacity_bytes']:7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
