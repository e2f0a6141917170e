"""A thousand points of a small model: what a point costs, and what sharing plans saves.

    python benchmarks/thousand.py [-o DIR] [--jobs N] [--uncached N] [--page FILE]

Runs thousand.toml into `DIR/thousand.sqlite` (it goes on where it stopped), then computes N of the
points again, each as if it were the first (nothing kept of other points). Prints a paragraph, a
table and a picture; `--page docs/explore.md` puts them between the marks in that page, the picture
into `images` beside it. CPU seconds are those of the computing processes, imports left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.charts import line_chart

from elk_ir.explore import evaluate
from elk_ir.explore.run import explore
from elk_ir.explore.store import Row, Store
from elk_ir.explore.sweep import load_sweep
from elk_ir.explore.table import flat, on_front
from elk_ir.explore.task import Task, dispatch_order, tasks_of

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- thousand: begin -->", "<!-- thousand: end -->"
HBM, PORT, SRAM = (
    "hbm.bandwidth_bytes_per_s",
    "network.port_in_bytes_per_s",
    "sram_per_core_bytes",
)


def uncached(tasks: Sequence[Task], count: int) -> list[float]:
    """CPU seconds of `count` points, evenly spread, with nothing kept from one to the next."""
    evaluate.evaluate(tasks[0])  # imports are not a point's
    found = []
    for task in tasks[:: max(1, len(tasks) // max(1, count))][:count]:
        evaluate.forget()
        found.append(evaluate.evaluate(task).cpu_s)
    return found


def picture(rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    """Time over HBM bandwidth of each port bandwidth (basic, all of the SRAM), and as a table."""
    records = [flat(row) for row in rows if row.status == "ok"]
    most = max(float(r[SRAM] or 0) for r in records)
    lines: dict[str, dict[float, float]] = {}
    for r in records:
        if float(r[SRAM] or 0) == most and r["policy"] == "basic":
            line = lines.setdefault(f"ports of {float(r[PORT] or 0) / 1e9:g} GB/s", {})
            line[float(r[HBM] or 0) / 1e9] = float(r["time_s"] or 0) * 1e6
    xs = sorted({x for points in lines.values() for x in points})
    shown = xs[:: max(1, len(xs) // 6)]
    table = [["µs, at GB/s of HBM", *(f"{x:.3g}" for x in shown)]]
    table += [[n, *(f"{points[x]:.1f}" for x in shown)] for n, points in lines.items()]
    return line_chart(lines, "Time of a run, basic", "GB/s of HBM", "µs"), table


def text(tasks: Sequence[Task], rows: Sequence[Row], alone: Sequence[float]) -> tuple[str, str]:
    """The paragraph with its table, and the picture."""
    costs = sorted(row.cpu_s for row in rows)
    median = statistics.median(costs)
    records = [flat(row) for row in rows]
    front = sum(on_front(records, ["time", "energy", "area"]))
    failed = sum(row.status != "ok" for row in rows)
    svg, table = picture(rows)
    lines = [
        f"`python benchmarks/thousand.py`: {len(rows):,} points of {len(tasks):,}"
        f" ({failed} failed) took {sum(costs):.0f} CPU s, {sum(costs) / len(costs):.2f} a point,"
        f" half of them at most {median:.2f}, one in ten more than"
        f" {costs[int(0.9 * len(costs))]:.2f}; at most"
        f" {max(row.peak_rss_bytes for row in rows) / 1e6:.0f} MB a process. They have"
        f" {len({t.group for t in tasks})} different sets of plan fronts."
    ]
    if alone:
        lines.append(
            f"With nothing kept between points {len(alone)} of them took"
            f" {statistics.median(alone):.2f} CPU s each (median). "
            f"{front} points are on the front of time, energy and area."
        )
    lines += ["", "![Time over HBM bandwidth](images/thousand.svg)", ""]
    head, *body = table
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines) + "\n", svg


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", default="thousand", metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--uncached", type=int, default=10, metavar="N")
    parser.add_argument("--page", metavar="FILE")
    args = parser.parse_args(argv)
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    sweep = load_sweep(HERE / "thousand.toml")
    path = folder / "thousand.sqlite"
    explore(sweep, str(path), jobs=args.jobs, say=lambda line: print(line, file=sys.stderr))
    store = Store(path, create=False)
    rows = store.rows(sweep.name)
    store.close()
    tasks = dispatch_order(tasks_of(sweep))
    told, svg = text(tasks, rows, uncached(tasks, args.uncached))
    print(told)
    if args.page:
        page = Path(args.page)
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n{told}{END}{after}", encoding="utf-8")
        (page.parent / "images" / "thousand.svg").write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
