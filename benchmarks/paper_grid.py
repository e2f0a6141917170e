"""Elk's evaluation grid under every policy, and variants of the machine.

    python benchmarks/paper_grid.py [--jobs 2] [--results grid.jsonl] [--models 13b,opt]
        [--batch 32] [--kv 2048] [--variants mesh,slow | none] [--policies NAMES] [--tables]

Llama-2-13B, OPT-30B, Gemma-2-27B and Llama-2-70B, batch 16/32/64, KV length 2,048/4,096, from the
full-size graphs, on `ipu-pod4-hbm`; and static, elk-full and search on variants of it: the `mesh`,
and at batch 32, KV 2,048 (if chosen) `landing` (preloads steal SRAM cycles), `slow` (the published
core-to-core constant), `sync` (no preload while tiles compute), `first` (exchanges before
preloads; not by default). One line as each case finishes; then the tables of docs/scheduling.md.

With `--results`, every case is a line of JSON in that file (of one version of the code: begin a
new file after a change). A case that it has, with the policies asked for, is not run again, so a
run that was stopped goes on where it stopped. `--tables` prints the tables of a file and runs
nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from elk_ir.chips import Chip, load_chip
from elk_ir.errors import ElkError
from elk_ir.process import quiet_collector
from elk_ir.tools.cmd_compare import DEFAULT, compare, prepare

FULL = Path(__file__).resolve().parents[2] / "shared" / "models" / "full"
MODELS = {
    "13b": "llama2-13b_L40_dyn_fp16_op20.onnx",
    "opt": "opt-30b_L48_dyn_fp16_op20.onnx",
    "gemma": "gemma2-27b_L46_dyn_fp16_op20.onnx",
    "70b": "llama2-70b_L80_dyn_fp16_op20.onnx",
}
NAMES = {"13b": "Llama-2-13B", "opt": "OPT-30B", "gemma": "Gemma-2-27B", "70b": "Llama-2-70B"}
VARIANTS: dict[str, dict[str, Any]] = {
    "mesh": {},
    "landing": {"landing_steals_sram": True},
    "slow": {"network.exchange_overhead_factor": 0.28 / 0.241},
    "sync": {"preload_during_compute": False},
    "first": {"network.transfer_sharing": "exchange-first"},
}
WHAT = {
    "mesh": "mesh",
    "landing": "landing steals SRAM cycles",
    "slow": "core-to-core constant 0.28 instead of 0.241",
    "sync": "no preload while tiles compute",
    "first": "exchanges before preloads",
}
FEW = ("static", "elk-full", "search")
"""Policies on variants."""
HBM_AIMS = {"13b": 0.95, "opt": 0.95, "gemma": 0.85, "70b": 0.80}
"""Use of HBM at batch 32, KV 2,048 that is aimed at."""
HBM_BOUND = 1.005
"""A bound within this factor of the HBM time is the HBM time."""
BUSY_PORTS, FULL_SRAM = 0.05, 0.95
"""Ports are named where exchanges wait for them for this part of the time, the SRAM where so much
of a core's is in use, or bytes are held back for addresses."""


def chip_of(variant: str | None) -> Chip:
    """The machine of a variant."""
    if variant == "mesh":
        return load_chip("ipu-pod4-hbm-mesh")
    chip = load_chip("ipu-pod4-hbm")
    return chip.with_fields(VARIANTS[variant]) if variant else chip


@dataclass(frozen=True)
class Case:
    """A model at a batch and a KV length, on a variant of the machine (empty: none)."""

    model: str
    batch: int
    kv: int
    variant: str = ""

    def __str__(self) -> str:
        text = f"{NAMES[self.model]} {self.batch}/{self.kv:,}"
        return f"{text} {self.variant}" if self.variant else text


@dataclass(frozen=True)
class Done:
    """What the policies made of a case, by name: results of `elk compare`, an `error` for a policy
    that fits in no way. error: why the model could not be prepared."""

    case: Case
    results: dict[str, dict[str, Any]]
    error: str = ""

    def complete(self, policies: Iterable[str]) -> bool:
        """Whether it says something of all `policies`."""
        return bool(self.error) or set(policies) <= set(self.results)

    @property
    def best(self) -> dict[str, Any] | None:
        """The result of `search`; None if it has none."""
        found = self.results.get("search")
        return None if found is None or "error" in found else found

    @property
    def ratio(self) -> float | None:
        """Bound over time of `search`: of a layer in steady state, or of the program."""
        if self.best is None:
            return None
        if "layer_time_s" in self.best:
            return self.best["layer_lower_bound_s"] / self.best["layer_time_s"]
        return self.best["lower_bound_s"] / self.best["time_s"]

    @property
    def hbm_bound(self) -> bool:
        """Whether no other bound than HBM's binds."""
        found = self.best or {}
        hbm, bound = found.get("layer_hbm_s", 0.0), found.get("layer_lower_bound_s", 0.0)
        return bound <= HBM_BOUND * hbm


def binds(found: dict[str, Any]) -> str:
    """What a program takes its time for: HBM, or executes (the longer of the two alone), and what
    keeps it from running them beside each other."""
    if "layer_time_s" not in found:
        return "–"
    names = ["HBM" if found["layer_hbm_s"] > found["layer_execute_s"] else "execution"]
    if found["breakdown_s"]["network_stall"] > BUSY_PORTS * found["time_s"]:
        names.append("ports")
    full = found["sram_peak_bytes"] > FULL_SRAM * found["sram_capacity_bytes"]
    if full or found["held_back_bytes"]:
        names.append("SRAM")
    return ", ".join(names)


# ---------------------------------------------------------------------- runs


def run(case: Case, policies: Sequence[str]) -> Done:
    """One case under `policies`, in this process."""
    dims = {"batch": case.batch, "past_sequence_length": case.kv - 1}
    try:
        with quiet_collector():
            prepared = prepare(str(FULL / MODELS[case.model]), chip_of(case.variant), dims)
            results = {r["policy"]: r for r in compare(prepared, policies)}
    except ElkError as error:
        return Done(case, {}, str(error))
    return Done(case, results)


def line_of(done: Done) -> str:
    """What is printed when a case finishes."""
    if done.error:
        return f"{done.case}: {done.error.splitlines()[0]}"
    cpu_s = sum(r.get("schedule_cpu_s", 0.0) for r in done.results.values())
    cpu_s += min((r["compile_cpu_s"] - r["schedule_cpu_s"] for r in timed(done)), default=0.0)
    best, ratio = done.best, done.ratio
    if best is None or ratio is None:
        texts = [
            f"{name} {r['error'].splitlines()[0] if 'error' in r else milliseconds(done, name)}"
            for name, r in done.results.items()
        ]
        return f"{done.case}: {', '.join(texts)} ({cpu_s:.0f} CPU s)"
    return (
        f"{done.case}: search {best['time_s'] * 1e3:.3f} ms, bound/time {ratio:.1%},"
        f" HBM {best['hbm_utilization']:.1%} ({cpu_s:.0f} CPU s)"
    )


def timed(done: Done) -> list[dict[str, Any]]:
    """The results that are no errors."""
    return [r for r in done.results.values() if "error" not in r]


def load(path: Path | None) -> dict[Case, Done]:
    """The cases of a results file; later lines replace earlier ones, a last one that was cut short
    is left out."""
    found: dict[Case, Done] = {}
    if path is None or not path.exists():
        return found
    for text in path.read_text().splitlines():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue
        case = Case(**row["case"])
        found[case] = Done(case, row["results"], row["error"])
    return found


def save(path: Path | None, done: Done) -> None:
    """Add a case to a results file."""
    if path is None:
        return
    row = {"case": asdict(done.case), "results": done.results, "error": done.error}
    before = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write(("" if before.endswith("\n") or not before else "\n") + json.dumps(row) + "\n")


def run_all(work: Sequence[tuple[Case, tuple[str, ...]]], jobs: int) -> Iterator[Done]:
    """Cases as they finish, each in a process of its own so that its memory is given back. One that
    fails with a defect is printed and left out."""
    with ProcessPoolExecutor(
        max_workers=jobs, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        futures = {pool.submit(run, case, policies): case for case, policies in work}
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield future.result()
            else:
                print(f"{futures[future]}: {error!r}", file=sys.stderr)
                traceback.print_exception(error, file=sys.stderr)


# ---------------------------------------------------------------------- tables


def milliseconds(done: Done, policy: str) -> str:
    """A policy's time, or a dash."""
    found = done.results.get(policy, {})
    return f"{found['time_s'] * 1e3:.3f}" if "time_s" in found else "–"


def grid_table(cases: Sequence[Done], policies: Sequence[str]) -> list[str]:
    """Times of all policies; of `search`, a layer, its HBM time, its executes alone and its bound,
    the use of HBM, and what binds."""
    tail = ["layer", "HBM", "executes", "bound", "bound/time", "HBM use", "binds"]
    lines = [
        f"| case (batch/KV) | {' | '.join([*policies, *tail])} |",
        "|---" * (1 + len(policies) + len(tail)) + "|",
    ]
    for done in cases:
        if not timed(done):
            continue
        best, cells = done.best or {}, [milliseconds(done, p) for p in policies]
        layer = [best.get(f"layer_{k}_s", 0.0) for k in ("time", "hbm", "execute", "lower_bound")]
        cells += [f"{1e6 * t:.1f}" if t else "–" for t in layer]
        cells += [percent(done.ratio), percent(best.get("hbm_utilization")), binds(best)]
        lines.append(f"| {done.case} | {' | '.join(cells)} |")
    refused = [d for d in cases if not timed(d)]
    if refused:
        lines.append("")
    for done in refused:
        why = done.error or next(r["error"] for r in done.results.values())
        lines.append(f"- {done.case}: {' '.join(why.split())}")
    return lines


def variant_table(cases: Sequence[Done]) -> list[str]:
    """Times of a few policies on variants of the machine."""
    lines = [
        f"| variant | case | {' | '.join(FEW)} | bound/time | HBM use |",
        "|---" * (4 + len(FEW)) + "|",
    ]
    order = list(VARIANTS)
    for done in sorted(cases, key=lambda d: order.index(d.case.variant)):
        if not timed(done):
            continue
        plain = Case(done.case.model, done.case.batch, done.case.kv)
        use = percent(done.best["hbm_utilization"]) if done.best else "–"
        cells = [*(milliseconds(done, p) for p in FEW), percent(done.ratio), use]
        lines.append(f"| {WHAT[done.case.variant]} | {plain} | {' | '.join(cells)} |")
    return lines


def percent(value: float | None) -> str:
    """A share, or a dash."""
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None


def summary(cases: Sequence[Done]) -> list[str]:
    """The aims of docs/scheduling.md, and what is reached."""
    ratios = [(d, d.ratio) for d in cases if d.ratio is not None]
    hbm = [r for d, r in ratios if d.hbm_bound]
    other = [r for d, r in ratios if not d.hbm_bound]
    lines = [
        f"- bound/time: {percent(mean(r for _, r in ratios))} on average of {len(ratios)} cases"
        f" of {len(cases)} (aim 96 %)",
        f"- where HBM binds: {sum(r >= 0.98 for r in hbm)} of {len(hbm)} cases reach 98 %"
        f" (average {percent(mean(hbm))})",
        f"- elsewhere: {sum(r >= 0.85 for r in other)} of {len(other)} cases reach 85 %"
        f" (average {percent(mean(other))})",
    ]
    for done in cases:
        if (done.case.batch, done.case.kv) == (32, 2048) and done.best is not None:
            lines.append(
                f"- HBM use of {done.case}: {percent(done.best['hbm_utilization'])}"
                f" (aim {HBM_AIMS[done.case.model]:.0%})"
            )
    for policy in ("basic", "static", "elk-dyn", "elk-full"):
        times = [
            d.results[policy]["time_s"] / d.best["time_s"]
            for d in cases
            if d.best is not None and "time_s" in d.results.get(policy, {})
        ]
        if (average := mean(times)) is not None:
            faster = sum(t < 1.0 for t in times)
            lines.append(
                f"- {policy} takes {average:.2f} times as long as search (faster in {faster}"
                f" of {len(times)} cases)"
            )
    for policy, published in (("basic", 1.87), ("static", 1.37)):
        ratios_to_full = [
            d.results[policy]["time_s"] / d.results["elk-full"]["time_s"]
            for d in cases
            if all("time_s" in d.results.get(p, {}) for p in (policy, "elk-full"))
        ]
        if (average := mean(ratios_to_full)) is not None:
            lines.append(
                f"- {policy} takes {average:.2f} times as long as elk-full (published: {published})"
            )
            for d in cases:
                own, full = (d.results.get(p, {}).get("time_s") for p in (policy, "elk-full"))
                if (d.case.batch, d.case.kv) == (32, 2048) and own and full:
                    lines.append(f"  - {d.case}: {own / full:.2f}")
    shares = [
        d.results["ideal"]["time_s"] / d.results["elk-full"]["time_s"]
        for d in cases
        if all("time_s" in d.results.get(p, {}) for p in ("ideal", "elk-full"))
    ]
    if shares:
        lines.append(f"- elk-full: {percent(mean(shares))} of ideal (aim 94 %)")
        for d in cases:
            full, ideal = (d.results.get(p, {}) for p in ("elk-full", "ideal"))
            if "time_s" in full and "time_s" in ideal and ideal["time_s"] < 0.94 * full["time_s"]:
                share = percent(ideal["time_s"] / full["time_s"])
                spent = full["breakdown_s"]
                alone, stall = (
                    percent(spent[part] / full["time_s"])
                    for part in ("execute_only", "network_stall")
                )
                sram = percent(full["sram_peak_bytes"] / full["sram_capacity_bytes"])
                lines.append(
                    f"  - {d.case}: {share}; it is bound by {binds(full)}; nothing lands for"
                    f" {alone} of its time, exchanges wait for {stall}; {sram} of the SRAM"
                )
    return lines


def model_errors(cases: Iterable[Done]) -> list[str]:
    """By how much the scheduler's model of a layer is off from what is simulated, by variant."""
    found: dict[str, list[float]] = {}
    for done in cases:
        for name, result in done.results.items():
            if name != "ideal" and "layer_time_s" in result:
                off = result["layer_model_s"] / result["layer_time_s"] - 1.0
                found.setdefault(done.case.variant or "all-to-all", []).append(off)
    return [
        f"- a layer by the model, {variant}: {min(off):+.1%} to {max(off):+.1%} of the simulated"
        for variant, off in found.items()
    ]


def print_tables(found: Iterable[Done], policies: Sequence[str]) -> None:
    """All tables, cases in the order of the grid."""
    models = list(NAMES)
    cases = sorted(found, key=lambda d: (models.index(d.case.model), d.case.batch, d.case.kv))
    plain = [d for d in cases if not d.case.variant]
    variants = [d for d in cases if d.case.variant]
    blocks = [[*grid_table(plain, policies), "", *summary(plain)]] if plain else []
    blocks += [variant_table(variants)] if variants else []
    blocks += [model_errors(cases)] if cases else []
    for lines in blocks:
        print("", *lines, sep="\n")


# ---------------------------------------------------------------------- the command


def chosen_work(args: argparse.Namespace) -> list[tuple[Case, tuple[str, ...]]]:
    """The cases asked for, each with its policies, the longest first."""
    models, policies = args.models.split(","), tuple(args.policies.split(","))
    batches = [int(n) for n in args.batch.split(",")]
    lengths = [int(n) for n in args.kv.split(",")]
    work = [(Case(m, b, k), policies) for m in models for b in batches for k in lengths]
    if args.only_variants:
        work = []
    few = tuple(p for p in FEW if p in policies)
    for variant in () if args.variants == "none" else args.variants.split(","):
        for batch, kv in ((b, k) for b in batches for k in lengths):
            if variant == "mesh" or (batch, kv) == (32, 2048):
                work += [(Case(m, batch, kv, variant), few) for m in models]
    return sorted(work, key=lambda w: (w[0].model != "70b", -len(w[1]), w[0].batch))


def main() -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--policies", default=",".join(DEFAULT))
    parser.add_argument("--batch", default="16,32,64")
    parser.add_argument("--kv", default="2048,4096")
    parser.add_argument("--variants", default="mesh,landing,slow,sync", help="names, or none")
    parser.add_argument("--only-variants", action="store_true", help="leave the grid out")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--results", type=Path, help="file of results, to go on from and to add to")
    parser.add_argument("--tables", action="store_true", help="print tables, run nothing")
    args = parser.parse_args()
    wrong = set(args.models.split(",")) - set(MODELS)
    if args.variants != "none":
        wrong |= set(args.variants.split(",")) - set(VARIANTS)
    wrong |= set(args.policies.split(",")) - set(DEFAULT)
    if wrong:
        parser.error(f"no such model, variant or policy: {', '.join(sorted(wrong))}")
    if not FULL.is_dir():
        print("the full-size graphs are not here (../shared/models/full)", file=sys.stderr)
        return 1
    work = chosen_work(args)
    known = load(args.results)
    found = {c: known[c] for c, policies in work if c in known and known[c].complete(policies)}
    todo = [] if args.tables else [(c, policies) for c, policies in work if c not in found]
    started = time.monotonic()
    if found:
        print(f"{len(found)} of {len(work)} cases are known", flush=True)
    for done in run_all(todo, args.jobs):
        found[done.case] = done
        save(args.results, done)
        print(f"[{time.monotonic() - started:5.0f} s] {line_of(done)}", flush=True)
    print_tables(found.values(), args.policies.split(","))
    return 0 if args.tables or len(found) == len(work) else 1


if __name__ == "__main__":
    sys.exit(main())
