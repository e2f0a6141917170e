"""The figures of Elk's evaluation: data, a picture, and a sentence beside the published trend.

    python benchmarks/paper/figures.py [-o DIR] [--only A,B,…] [--jobs N] [--publish DIR] [--tiny]
                                       [--page-only]

Runs the sweeps of this folder into `DIR/results.sqlite` and the motivating curves into
`DIR/curves.json` (it goes on where it stopped), and writes `paper.md` with, for each figure, a
table, a picture (`paper/NAME.svg`) and whether the data show the published trend; rows of sweeps
are in `paper/NAME.csv`. `--publish docs` puts these there instead of into DIR. The full-size graphs
are in ../shared/models/full. `--page-only` computes nothing. `--tiny` tries the machinery on a
bundled model, the test chips and cheap policies: trends are not judged then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import curves
import trends
from charts import bar_chart, line_chart
from curves import Curve
from trends import HBM, PORT, Record, Records, Verdict, by_line, cases_of, mean, policies
from used import Used

from elk_ir.errors import ElkError
from elk_ir.explore.run import explore
from elk_ir.explore.store import Row, Store
from elk_ir.explore.sweep import Axis, Sweep, load_sweep
from elk_ir.explore.table import flat, to_csv
from elk_ir.explore.task import tasks_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FULL = HERE.parents[2] / "shared" / "models" / "full"
TINY_MODEL = ROOT / "tests" / "models" / "statickv_scatter_dynamo.onnx"
TINY_CHIPS = {
    "ipu-pod4-hbm": "test-16",
    "ipu-pod4-hbm-mesh": "test-16-mesh",
    "ipu-hbm": "test-16",
    "wormhole-galaxy": "test-16-mesh",
    "h100-32": "test-16",
    "wormhole": "test-16-mesh",
    "h100": "test-16",
}
LAYER = ("llama2-13b_L40_dyn_fp16_op20.onnx", {"batch": 32, "past_sequence_length": 2047})
COMPILED = (
    "llama2-13b_L40_dyn_fp16_op20.onnx",
    "gemma2-27b_L46_dyn_fp16_op20.onnx",
    "opt-30b_L48_dyn_fp16_op20.onnx",
    "llama2-70b_L80_dyn_fp16_op20.onnx",
)

COLUMNS = (
    "time_s",
    "lower_bound_s",
    "hbm_utilization",
    "network_utilization",
    "flops_per_s",
    "breakdown_s.preload_only",
    "breakdown_s.execute_only",
    "breakdown_s.overlapped",
    "breakdown_s.network_stall",
    "energy_j",
    "preload_edit_distance",
    "sram_peak_bytes",
    "cores",
    "status",
    "error",
)
"""Of a result, what the page's CSV files have; `elk explore show --csv` has all."""


@dataclass(frozen=True)
class Figure:
    """A picture of a sweep. x and lines are fields of a row; `draw` is one of _DRAW."""

    name: str
    file: str
    published: str
    judge: Callable[[Records, Mapping[str, Records]], Verdict]
    x: str = ""
    lines: tuple[str, ...] = ()
    draw: str = "lines"
    scale: float = 1.0
    unit: str = ""


FIGURES = (
    Figure(
        "decode-latency",
        "decode_latency.toml",
        "Elk-Full is 1.87x Basic, 1.37x Static and 94.84 % of Ideal, on average. (In Elk's public"
        " code Basic, Static and Elk-Dyn get 5 GB/s a core, a share of 0.7 of the network and one"
        " contention mode, Elk-Full and Ideal 5.5 GB/s, 0.99 and the better of two. Here all"
        " policies run on one machine, with fused attention and merged products.)",
        trends.judge_policies,
        draw="cases",
    ),
    Figure(
        "latency-breakdown",
        "decode_latency.toml",
        "HBM use rises from Basic over Static and Elk-Dyn to Elk-Full, which comes close to Ideal.",
        trends.judge_use,
        draw="breakdown",
    ),
    Figure(
        "hbm-bandwidth",
        "hbm_bandwidth.toml",
        "More HBM bandwidth helps with diminishing returns; a mesh congests earlier than"
        " all-to-all.",
        trends.judge_hbm,
        HBM,
        ("chip", "policy"),
        scale=1e-12,
        unit="TB/s of HBM",
    ),
    Figure(
        "network-hbm",
        "network_hbm.toml",
        "Network and HBM must scale together.",
        trends.judge_scaling,
        HBM,
        ("policy", PORT),
        scale=1e-12,
        unit="TB/s of HBM",
    ),
    Figure(
        "core-count",
        "core_count.toml",
        "Decoding gets faster with cores until memory bounds it.",
        trends.judge_cores,
        "cores",
        ("policy",),
        unit="cores",
    ),
    Figure(
        "core-count-dit",
        "core_count_dit.toml",
        "DiT-XL is compute-bound: it gains from cores, and less than LLMs from Elk.",
        trends.judge_dit,
        "cores",
        ("policy",),
        unit="cores",
    ),
    Figure(
        "training",
        "training.toml",
        "Training gains more from FLOPS than from bandwidth: cheap memory suffices.",
        trends.judge_training,
        "macs_per_cycle_fp16",
        ("policy", HBM),
        unit="fp16 multiply-adds a cycle",
    ),
    Figure(
        "other-chips",
        "other_chips.toml",
        "Nothing: other inter-core connected chips are the paper's future work.",
        trends.judge_chips,
        PORT,
        ("chip", "policy"),
        draw="factors",
        scale=1e-9,
        unit="times the chip's own network",
    ),
    Figure(
        "other-chips-dit",
        "other_chips_dit.toml",
        "Nothing.",
        trends.judge_chips,
        PORT,
        ("chip", "policy"),
        draw="factors",
        scale=1e-9,
        unit="times the chip's own network",
    ),
)

CURVES = (
    "execution-space",
    "preload-space",
    "preload-traffic",
    "network-demand",
    "cost-model",
    "compile-time",
)


# ---------------------------------------------------------------------- pictures and tables

Table = tuple[list[str], list[list[str]]]


def _lines(figure: Figure, records: Records) -> tuple[str, Table]:
    lines = {
        name: {x * figure.scale: y * 1e3 for x, y in points.items()}
        for name, points in by_line(records, figure.x, figure.lines).items()
    }
    return line_chart(lines, figure.name, figure.unit, "ms"), _pivot(figure.unit, lines)


def _pivot(unit: str, lines: Mapping[str, Mapping[float, float]]) -> Table:
    xs = sorted({x for points in lines.values() for x in points})
    head = [f"ms, by {unit}", *(f"{x:.4g}" for x in xs)]
    return head, [
        [name, *(f"{points[x]:.3g}" if x in points else "" for x in xs)]
        for name, points in lines.items()
    ]


def _factors(figure: Figure, records: Records) -> tuple[str, Table]:
    """Lines over multiples of each chip's own network; the table has more of the multiple 1."""
    own: dict[str, list[float]] = {}
    for r in records:
        own.setdefault(str(r["chip"]), []).append(float(r[figure.x]))
    # The multiples are the sweep's: from 0.5 upwards, so half a chip's port is the least.
    scaled = [{**r, figure.x: float(r[figure.x]) / min(own[str(r["chip"])]) / 2} for r in records]
    lines = {
        name: {x: y * 1e3 for x, y in points.items()}
        for name, points in by_line(scaled, figure.x, figure.lines).items()
    }
    head, rows = _pivot(figure.unit, lines)
    head += ["lower bound, ms", "HBM in use", "waiting for HBM", "executing, HBM idle", "J a run"]
    at_one = {
        ", ".join(trends.short(r[n]) for n in figure.lines): r for r in scaled if r[figure.x] == 1
    }
    for row in rows:
        r = at_one.get(row[0])
        if r is not None:
            time_s = float(r["time_s"])
            row += [
                f"{float(r['lower_bound_s']) * 1e3:.3g}",
                f"{float(r['hbm_utilization']):.0%}",
                f"{float(r['breakdown_s.preload_only']) / time_s:.0%}",
                f"{float(r['breakdown_s.execute_only']) / time_s:.0%}",
                f"{float(r['energy_j']):.3g}",
            ]
    return line_chart(lines, figure.name, figure.unit, "ms"), (head, rows)


def _cases(figure: Figure, records: Records) -> tuple[str, Table]:
    """Decoding steps, a row a case; the bars are means over the cases of a model."""
    cases, names = cases_of(records), policies(records)
    bars: dict[str, dict[str, float]] = {}
    for model in dict.fromkeys(model for model, _, _ in cases):
        own = [found for (m, _, _), found in cases.items() if m == model]
        bars[model] = {
            name: trends.geometric([c[name]["time_s"] / c[name]["lower_bound_s"] for c in have])
            for name in names
            if (have := [c for c in own if name in c])
        }
    head = ["ms", "batch", "KV", "lower bound", *names]
    rows = []
    for (model, batch, past), found in sorted(cases.items()):
        bound = max(float(r["lower_bound_s"]) for r in found.values())
        times = [f"{found[n]['time_s'] * 1e3:.2f}" if n in found else "" for n in names]
        rows.append([model, str(batch), str(past + 1), f"{bound * 1e3:.2f}", *times])
    picture = bar_chart(
        bars, f"{figure.name}: time over lower bound, geometric means", "model", "times"
    )
    return picture, (head, rows)


PARTS = ("overlapped", "execute_only", "network_stall", "preload_only")


def _breakdown(figure: Figure, records: Records) -> tuple[str, Table]:
    """Shares of the time, utilisations and reordering by policy, means over all cases."""
    bars: dict[str, dict[str, float]] = {}
    rows = []
    for name in policies(records):
        own = [r for r in records if r["policy"] == name and r["status"] == "ok"]
        bars[name] = {
            p: mean([100 * float(r[f"breakdown_s.{p}"]) / float(r["time_s"]) for r in own])
            for p in PARTS
        }
        rows.append(
            [
                name,
                *(f"{bars[name][p]:.1f} %" for p in PARTS),
                f"{mean([float(r['hbm_utilization']) for r in own]):.1%}",
                f"{trends.UTILISATION[name]:.1%}" if name in trends.UTILISATION else "",
                f"{mean([float(r['network_utilization']) for r in own]):.1%}",
                f"{mean([float(r['flops_per_s']) for r in own]) / 1e12:.1f}",
                f"{mean([float(r.get('preload_edit_distance') or 0) for r in own]):.2f}",
            ]
        )
    head = ["policy", "overlapped", "execute only", "network stall", "preload only"]
    head += ["HBM", "HBM, published", "network", "TFLOPS", "steps a preload moves"]
    picture = bar_chart(bars, f"{figure.name}: shares of the time", "policy", "%", stacked=True)
    return picture, (head, rows)


_DRAW: dict[str, Callable[[Figure, Records], tuple[str, Table]]] = {
    "lines": _lines,
    "cases": _cases,
    "breakdown": _breakdown,
    "factors": _factors,
}


def markdown(table: Table) -> str:
    """A table."""
    head, rows = table
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


# ---------------------------------------------------------------------- the page


def section(
    name: str,
    title: str,
    published: str,
    verdict: Verdict,
    table: Table,
    files: str,
    done: str,
    small: bool,
) -> str:
    """One figure: what was published, what the data say, the picture, the table."""
    good, sentence = verdict
    word = "Tiny" if small else "Nothing to compare with" if good is None else ""
    word = word or ("Agrees" if good else "Disagrees")
    return "\n".join(
        [
            f"## {name}\n",
            f"{title}.\n",
            f"Published: {published}\n",
            f"**{word}**: {sentence}.\n",
            f"![{name}]({files}/{name}.svg)\n",
            markdown(table),
            f"{done}\n",
        ]
    )


def sweep_section(
    figure: Figure, sweep: Sweep, rows: Sequence[Row], all_records: Mapping[str, Records], out: Path
) -> str:
    """The section of a sweep's figure; its picture and CSV are written."""
    small = sweep.name.startswith("tiny-")
    records: Records = all_records[sweep.name]
    good = [r for r in records if r["status"] == "ok"]
    total = len(tasks_of(sweep))
    failed = [row for row in rows if row.status != "ok"]
    cpu = sum(row.cpu_s for row in rows)
    done = (
        f"{len(rows)} of {total} points computed, {len(failed)} failed; {cpu:.0f} CPU s"
        f" ({cpu / max(1, len(rows)):.1f} a point), at most"
        f" {max((row.peak_rss_bytes for row in rows), default=0) / 1e9:.2f} GB a process."
    )
    name = f"tiny-{figure.name}" if small else figure.name
    if rows:
        done += f" Rows: [{sweep.name}.csv](paper/{sweep.name}.csv)."
        (out / "paper" / f"{sweep.name}.csv").write_text(to_csv(_published(records)), "utf-8")
    if failed:
        done += f"\n\nThe first that failed: {(failed[0].error or '').splitlines()[0]}"
    if not good:
        return f"## {name}\n\n{sweep.description}.\n\n{done}\n"
    picture, table = _DRAW[figure.draw](figure, good)
    (out / "paper" / f"{name}.svg").write_text(picture, encoding="utf-8")
    try:
        verdict = figure.judge(good, all_records)
    except (IndexError, KeyError, ZeroDivisionError, ValueError, StopIteration):
        if len(rows) == total and not small:
            raise
        verdict = (None, "too few points to judge")
    if len(rows) < total and not small:
        verdict = (verdict[0], verdict[1] + f" (with {len(rows)} of {total} points)")
    return section(name, sweep.description, figure.published, verdict, table, "paper", done, small)


def _published(records: Records) -> list[dict[str, Any]]:
    """The columns of a page's CSV file, models without their folders."""
    rows = []
    for r in records:
        settings = {k: v for k, v in r.items() if "." in k or k in ("chip", "policy")}
        kept = {k: v for k, v in settings.items() if not k.startswith("breakdown_s.")}
        rows.append({"model": trends.short(r["model"]), **kept, **{k: r.get(k) for k in COLUMNS}})
    return rows


def curve_section(curve: Curve, out: Path, small: bool) -> str:
    """The section of a curve; its picture is written."""
    name = f"tiny-{curve.name}" if small else curve.name
    (out / "paper" / f"{name}.svg").write_text(curve.picture, encoding="utf-8")
    table = (list(curve.head), [[str(v) for v in row] for row in curve.rows])
    return section(
        name,
        curve.title,
        curve.published,
        (curve.agrees, curve.sentence),
        table,
        "paper",
        f"{curve.cpu_s:.0f} CPU s.",
        small,
    )


# ---------------------------------------------------------------------- running


def tiny(sweep: Sweep) -> Sweep:
    """The sweep on a bundled model and the test chips, without dimensions, under cheap policies."""

    def small(name: str, value: Any) -> Any:
        if name == "model":
            return str(TINY_MODEL)
        if name == "policy":
            return value if value in ("basic", "ideal") else "basic"
        return TINY_CHIPS[value] if name == "chip" else value

    base = {k: small(k, v) for k, v in sweep.base.items() if not k.startswith("dim.")}
    axes = tuple(
        Axis(a.names, tuple(tuple(map(small, a.names, row)) for row in a.rows), a.range)
        for a in sweep.axes
        if not a.names[0].startswith("dim.")
    )
    return replace(sweep, name=f"tiny-{sweep.name}", base=base, axes=axes)


class Curves:
    """The curves computed so far, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Curve] = {}
        if path.is_file():
            self.known = {
                name: Curve(**{**entry, "head": tuple(entry["head"])})
                for name, entry in json.loads(path.read_text(encoding="utf-8")).items()
            }

    def add(self, curve: Curve) -> None:
        """Keep a curve."""
        self.known[curve.name] = curve
        text = json.dumps({n: asdict(c) for n, c in self.known.items()}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def compute(self, wanted: Sequence[str], small: bool) -> None:
        """The curves wanted that are not there yet."""
        missing = [n for n in wanted if n not in self.known]
        if any(n in missing for n in CURVES[:4]):
            name, dims = LAYER
            model, chip = (TINY_MODEL, "test-16") if small else (FULL / name, "ipu-pod4-hbm")
            for curve in curves.layer_curves(model, chip, {} if small else dims):
                self.add(curve)
                _say(f"{curve.name}: done")
        if "cost-model" in missing and not small:
            self.add(curves.accuracy())
        if "compile-time" in missing:
            models = [TINY_MODEL] if small else [FULL / name for name in COMPILED]
            chip, policy = ("test-16", "basic") if small else ("ipu-pod4-hbm", "elk-full")
            self.add(curves.compile_times(models, chip, policy, {} if small else LAYER[1]))


def commit() -> str:
    """The commit of this checkout, and whether anything but docs was changed; 'unknown' without
    git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!docs")
        return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def sweeps_of(wanted: Sequence[str], small: bool) -> dict[str, Sweep]:
    """The sweeps of the figures wanted, by file."""
    found: dict[str, Sweep] = {}
    for figure in FIGURES:
        if figure.name in wanted:
            sweep = load_sweep(HERE / figure.file)
            found[figure.file] = tiny(sweep) if small else sweep
    return found


def run(folder: Path, wanted: Sequence[str], jobs: int, small: bool) -> Iterator[tuple[str, float]]:
    """Compute what is missing; wall seconds of each sweep, and of the curves, of this run."""
    log = folder / "commits.json"
    known: list[str] = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else []
    log.write_text(json.dumps(list(dict.fromkeys([*known, commit()]))) + "\n", encoding="utf-8")
    for sweep in sweeps_of(wanted, small).values():
        summary = explore(
            sweep,
            str(folder / "results.sqlite"),
            jobs=jobs,
            say=lambda line, name=sweep.name: _say(f"{name}: {line}"),
        )
        yield sweep.name, summary.wall_s
    started = time.monotonic()
    Curves(folder / "curves.json").compute([n for n in CURVES if n in wanted], small)
    yield "curves", time.monotonic() - started


def page(folder: Path, out: Path, wanted: Sequence[str], small: bool) -> str:
    """The page, of what has been computed."""
    (out / "paper").mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Row]] = {}
    if (folder / "results.sqlite").is_file():
        store = Store(folder / "results.sqlite", create=False)
        for row in store.rows():
            rows.setdefault(row.sweep, []).append(row)
        store.close()
    records: dict[str, list[Record]] = {n: [flat(r) for r in rs] for n, rs in rows.items()}
    found = Curves(folder / "curves.json").known
    sweeps = sweeps_of(wanted, small)
    parts, cpu, points = [], 0.0, 0
    for figure in FIGURES:
        if figure.name in wanted:
            sweep = sweeps[figure.file]
            own = rows.get(sweep.name, [])
            records.setdefault(sweep.name, [])
            parts.append(sweep_section(figure, sweep, own, records, out))
    for sweep in sweeps.values():
        cpu += sum(row.cpu_s for row in rows.get(sweep.name, []))
        points += len(rows.get(sweep.name, []))
    for name in CURVES:
        if name in wanted and name in found:
            parts.append(curve_section(found[name], out, small))
            cpu += found[name].cpu_s
    return "\n".join([_head(folder, cpu, points, small), *parts])


def _head(folder: Path, cpu: float, points: int, small: bool) -> str:
    log = folder / "commits.json"
    known = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else []
    used, memory = Used(folder), ""
    if used.peak_bytes:
        memory = (
            f", and {used.peak_bytes / 1e9:.2f} GB of memory at the most, all processes together"
        )
        memory += " (proportional set sizes, each second)"
    note = "On a tiny model and test chips: nothing here says anything about Elk.\n\n"
    return (
        "# Elk's figures, computed\n\n"
        + (note if small else "")
        + "Written by `python benchmarks/paper/figures.py --publish docs`: tables, pictures and"
        " verdicts follow from the data. The published trends are those of Elk (MICRO'25). Times"
        " are simulated; `ideal` is Elk's Ideal machine, which can't be built. `search` has a"
        " budget of 5 seconds a point.\n\n"
        f"All of it: {cpu:,.0f} CPU s ({points} points of sweeps, and the curves), that is"
        f" {cpu / 120:.0f} minutes on two cores; it took {used.wall_s / 60:.0f}{memory}."
        f" Computed at commit {' and '.join(known) or 'unknown'}.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweeps and curves, and write the page."""
    names = [*(f.name for f in FIGURES), *CURVES]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", default="paper-figures", metavar="DIR")
    parser.add_argument("--publish", metavar="DIR", help="where the page goes (default: DIR)")
    parser.add_argument("--only", default=",".join(names), metavar="A,B,…")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    wanted = args.only.split(",")
    unknown = [n for n in wanted if n not in names]
    if unknown:
        parser.error(f"no figure is called {unknown[0]!r}; there are {', '.join(names)}")
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    out = Path(args.publish) if args.publish else folder
    try:
        if not args.page_only:
            with Used(folder) as used:
                for name, wall_s in run(folder, wanted, args.jobs, args.tiny):
                    _say(f"{name}: {wall_s:.0f} s of waiting in this run")
                    used.waited(wall_s)
        text = page(folder, out, wanted, args.tiny)
    except (ElkError, RuntimeError) as error:
        _say(f"figures: error: {error}")
        return 1
    (out / "paper.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
