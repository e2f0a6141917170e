"""The figures of Elk's evaluation as sweeps: data, a picture, and a sentence beside the trend.

    python benchmarks/paper/figures.py [-o DIR] [--only hbm-bandwidth,…] [--jobs N] [--tiny]

Runs the sweeps of this folder into `DIR/results.sqlite` (it goes on where it stopped) and writes
for each a table (`NAME.csv`), a picture (`NAME.svg`), and `figures.md` with the published trend and
whether the data show it. The full-size graphs are in ../shared/models/full. `--tiny` tries the
machinery on a bundled model, the test chips and the policies basic and ideal: trends are not
judged then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

from elk_ir.errors import ElkError
from elk_ir.explore.run import explore
from elk_ir.explore.store import Store
from elk_ir.explore.sweep import Axis, Sweep, load_sweep
from elk_ir.explore.table import flat, to_csv

HERE = Path(__file__).resolve().parent
TINY_MODEL = HERE.parents[1] / "tests" / "models" / "statickv_scatter_dynamo.onnx"
TINY_CHIPS = {"ipu-pod4-hbm": "test-16", "ipu-pod4-hbm-mesh": "test-16-mesh", "ipu-hbm": "test-16"}

Record = Mapping[str, Any]
Verdict = tuple[bool, str]
"""Whether the data agree with the published trend, and a sentence with the figures."""


@dataclass(frozen=True)
class Figure:
    """A sweep as a picture: `x` and `lines` are fields of a row; seconds of a run upwards."""

    name: str
    file: str
    x: str
    lines: tuple[str, ...]
    published: str
    judge: Callable[[Sequence[Record]], Verdict]


def by_line(
    records: Sequence[Record], x: str, lines: Sequence[str]
) -> dict[str, dict[float, float]]:
    """Seconds by x, of each line."""
    found: dict[str, dict[float, float]] = {}
    for r in records:
        if r["status"] == "ok":
            line = ", ".join(_short(r.get(n)) for n in lines) or "time"
            found.setdefault(line, {})[float(r[x])] = float(r["time_s"])
    return {n: dict(sorted(v.items())) for n, v in found.items()}


def _short(value: object) -> str:
    if isinstance(value, float) and abs(value) >= 1e6:
        return f"{value:.4g}"
    return Path(value).stem.split("_")[0] if isinstance(value, str) else str(value)


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


# ---------------------------------------------------------------------- trends

HBM = "hbm.bandwidth_bytes_per_s"
PORT = "network.port_in_bytes_per_s"


def judge_hbm(records: Sequence[Record]) -> Verdict:
    """Diminishing returns on both networks; a mesh congests earlier."""
    lines = by_line(records, HBM, ("chip",))
    good, parts, gains = True, [], []
    for name, points in lines.items():
        t = list(points.values())
        first, last = t[0] - t[1], t[-2] - t[-1]
        good = good and first > last and t[0] > t[-1]
        gains.append(t[0] / t[-1])
        parts.append(
            f"{name}: {t[0] * 1e3:.3g} → {t[-1] * 1e3:.3g} ms, the first step saves"
            f" {first / t[0]:.0%}, the last {last / t[-2]:.1%}"
        )
    if len(gains) == 2:
        good = good and gains[1] <= gains[0] * 1.001
        parts.append(f"bandwidth gains {gains[0]:.2f}x on all-to-all, {gains[1]:.2f}x on meshes")
    return good, "; ".join(parts)


def judge_scaling(records: Sequence[Record]) -> Verdict:
    """More HBM helps more with more network."""
    lines = list(by_line(records, HBM, (PORT,)).values())
    slow, fast = (p[min(p)] / p[max(p)] for p in (lines[0], lines[-1]))
    return fast >= slow, (
        f"the range of HBM gains {slow:.2f}x with the slowest network, {fast:.2f}x with the fastest"
    )


def judge_cores(records: Sequence[Record]) -> Verdict:
    """More cores are faster, less than in proportion."""
    t = next(iter(by_line(records, "cores", ()).values()))
    cores, times = list(t), list(t.values())
    gain, more = times[0] / times[-1], cores[-1] / cores[0]
    falls = all(b <= a * 1.02 for a, b in pairwise(times))
    return falls and gain > 1, f"{more:.2f} times the cores are {gain:.2f} times as fast"


def judge_policies(records: Sequence[Record]) -> Verdict:
    """elk-full against the others, by geometric means over all cases."""
    cases: dict[tuple[object, ...], dict[str, Record]] = {}
    for r in records:
        if r["status"] == "ok":
            case = (r["model"], r.get("dim.batch"), r.get("dim.past_sequence_length"))
            cases.setdefault(case, {})[str(r["policy"])] = r
    names = sorted({n for case in cases.values() for n in case})
    best = "elk-full" if "elk-full" in names else names[0]
    parts = []
    ratios: dict[str, float] = {}
    for name in names:
        both = [c for c in cases.values() if name in c and best in c]
        use = sum(float(c[name]["hbm_utilization"]) for c in both) / len(both)
        ratios[name] = geometric([c[name]["time_s"] / c[best]["time_s"] for c in both])
        parts.append(f"{name} takes {ratios[name]:.2f}x, HBM {use:.0%}")
    good = all(r >= 0.999 for n, r in ratios.items() if n != "ideal")
    return good, f"against {best}, over {len(cases)} cases: " + "; ".join(parts)


def judge_training(records: Sequence[Record]) -> Verdict:
    """Twice the multiply-adds help more than a third more bandwidth."""
    lines = by_line(records, "macs_per_cycle_fp16", (HBM,))
    cheap, *_, dear = lines.values()
    flops = cheap[min(cheap)] / cheap[max(cheap)]
    memory = cheap[min(cheap)] / dear[min(dear)]
    return (
        flops > memory,
        f"twice the multiply-adds: {flops:.2f}x; 4/3 of the bandwidth: {memory:.2f}x",
    )


FIGURES = (
    Figure(
        "hbm-bandwidth",
        "hbm_bandwidth.toml",
        HBM,
        ("chip",),
        "More HBM bandwidth helps with diminishing returns; a mesh congests earlier than"
        " all-to-all.",
        judge_hbm,
    ),
    Figure(
        "network-hbm",
        "network_hbm.toml",
        HBM,
        (PORT,),
        "Network and HBM must scale together.",
        judge_scaling,
    ),
    Figure(
        "core-count",
        "core_count.toml",
        "cores",
        (),
        "Decoding gets faster with cores until memory bounds it.",
        judge_cores,
    ),
    Figure(
        "core-count-dit",
        "core_count_dit.toml",
        "cores",
        (),
        "DiT-XL is compute-bound: it gains from cores.",
        judge_cores,
    ),
    Figure(
        "decode-latency",
        "decode_latency.toml",
        "dim.batch",
        ("model", "dim.past_sequence_length", "policy"),
        "Elk-Full is 1.87x Basic, 1.37x Static and 94.84 % of Ideal; HBM use 34.7 % (Basic),"
        " 46.42 % (Static), 51.97 % (Elk-Dyn), 62.4 % (Elk-Full), 64.38 % (Ideal).",
        judge_policies,
    ),
    Figure(
        "training",
        "training.toml",
        "macs_per_cycle_fp16",
        (HBM,),
        "Training gains more from FLOPS than from bandwidth: cheap memory suffices.",
        judge_training,
    ),
)


# ---------------------------------------------------------------------- pictures


def chart(figure: Figure, records: Sequence[Record], title: str) -> str:
    """Lines of seconds over x as SVG."""
    lines = by_line(records, figure.x, figure.lines)
    xs = [x for points in lines.values() for x in points]
    top = max(v for points in lines.values() for v in points.values())
    low, high = min(xs), max(xs)
    left, upper, wide, tall = 70, 34, 560, 300

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        return left + wide * share, upper + tall * (1 - y / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {upper + tall + 50}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{left}" y="18" font-size="13">{escape(title)}: seconds of a run</text>',
    ]
    for i in range(5):
        y = top * i / 4
        _, py = at(low, y)
        parts.append(f'<path d="M{left} {py:.1f}h{wide}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{py + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    for x in sorted(set(xs)):
        px, _ = at(x, 0)
        parts.append(
            f'<text x="{px:.1f}" y="{upper + tall + 16}" text-anchor="middle">{x:.4g}</text>'
        )
    parts.append(f'<text x="{left}" y="{upper + tall + 36}">{escape(figure.x)}</text>')
    for i, (name, points) in enumerate(lines.items()):
        color = f"hsl({i * 137.5 % 360:.0f} 60% 42%)"
        path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in points.items())
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        parts += [
            '<circle cx="{:.1f}" cy="{:.1f}" r="2.6" fill="{}"/>'.format(*at(x, y), color)
            for x, y in points.items()
        ]
        if i < 24:
            parts.append(
                f'<text x="{left + wide + 14}" y="{upper + 10 + 13 * i}" fill="{color}">'
                f"{escape(name)}</text>"
            )
    return "\n".join([*parts, "</svg>\n"])


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


def make(figure: Figure, sweep: Sweep, folder: Path, jobs: int, small: bool) -> str:
    """Run one sweep and write its table and picture; its paragraph for figures.md."""
    results = folder / "results.sqlite"
    summary = explore(
        sweep, str(results), jobs=jobs, say=lambda line: _say(f"{sweep.name}: {line}")
    )
    store = Store(results, create=False)
    rows = store.rows(sweep.name)
    store.close()
    records = [{figure.x: None, **flat(row)} for row in rows]
    if figure.x.startswith("dim."):
        records = [{**r, figure.x: r[figure.x] or 0} for r in records]
    (folder / f"{sweep.name}.csv").write_text(to_csv(records), encoding="utf-8")
    lines = [f"## {sweep.name}\n", f"{sweep.description}.\n", f"Published: {figure.published}\n"]
    failed = [row for row in rows if row.status != "ok"]
    if len(failed) == len(rows):
        lines.append(f"No point could be computed. The first: {failed[0].error}\n")
        return "\n".join(lines)
    picture = chart(figure, records, sweep.name)
    (folder / f"{sweep.name}.svg").write_text(picture, encoding="utf-8")
    lines.append(f"![{sweep.name}]({sweep.name}.svg)\n")
    try:
        good, sentence = figure.judge(records)
        verdict = "Tiny" if small else "Agrees" if good else "DISAGREES"
        lines.append(f"{verdict}: {sentence}.\n")
    except (IndexError, KeyError, ZeroDivisionError, ValueError) as error:
        lines.append(f"Too few points to judge ({type(error).__name__}).\n")
    cpu = sum(row.cpu_s for row in rows)
    peak = max(row.peak_rss_bytes for row in rows)
    lines.append(
        f"{len(rows)} points, {len(failed)} failed; {cpu:.0f} CPU s"
        f" ({cpu / len(rows):.1f} a point), {summary.wall_s:.0f} s of waiting in this run,"
        f" at most {peak / 1e9:.2f} GB a process.\n"
    )
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweeps."""
    names = [f.name for f in FIGURES]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", default="paper-figures", metavar="DIR")
    parser.add_argument("--only", default=",".join(names), metavar="A,B,…")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    wanted = args.only.split(",")
    unknown = [n for n in wanted if n not in names]
    if unknown:
        parser.error(f"no figure is called {unknown[0]!r}; there are {', '.join(names)}")
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    paragraphs = ["# Elk's figures\n"]
    if args.tiny:
        paragraphs.append("On a tiny model and test chips: nothing here says anything about Elk.\n")
    try:
        for figure in FIGURES:
            if figure.name in wanted:
                sweep = load_sweep(HERE / figure.file)
                sweep = tiny(sweep) if args.tiny else sweep
                paragraphs.append(make(figure, sweep, folder, args.jobs, args.tiny))
    except ElkError as error:
        _say(f"figures: error: {error}")
        return 1
    text = "\n".join(paragraphs)
    (folder / "figures.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
