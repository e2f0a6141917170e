"""Every measurement that the documentation states, in one run: `make bench`.

    python benchmarks/performance.py [-o docs/performance.md] [--only WORD ...] [--list]

Runs the other scripts one after the other, on an otherwise idle machine, and writes what they print
into one page, with the date, the processor and the versions. A script that fails is in the page as
what it printed, and makes this one exit with 1. Scripts that need ../shared say so where it is
missing. The long ones (paper grid, sweeps, fuzzing) have commands and pages of their own.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LARGE = tuple(
    f"{name}_fp16.onnx"
    for name in (
        "llama2-13b_L40_b32_s1_kv2048",
        "llama2-70b_L80_b32_s1_kv2048",
        "gemma2-27b_L46_b32_s1_kv2048",
        "opt-30b_L48_b32_s1_kv2048",
        "dit-xl2_L28_b8_s1_kv2048",
        "granite-3b-8blike_L14_b1_s2048_kv2048",
    )
)


@dataclass(frozen=True)
class Section:
    """A script, its arguments, and what its table says."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()
    about: str = ""

    @property
    def command(self) -> str:
        """As one would type it."""
        return " ".join(("python", f"benchmarks/{self.script}.py", *self.arguments))


SECTIONS = (
    Section(
        "The spine",
        "spine",
        about="CPU seconds of the commands on the bundled Llama-2 decode graph. Aims: help and"
        " import under 0.5, compile under 5, run under 3.",
    ),
    Section(
        "Full-size models, basic",
        "full_size",
        ("--policy", "basic", *LARGE),
        "From the ONNX file to an allocated program on ipu-pod4-hbm.",
    ),
    Section(
        "Full-size models, elk-full",
        "full_size",
        ("--policy", "elk-full", *LARGE[:2]),
        "Aims: 20 and 40 CPU s, under 2 GB.",
    ),
    Section(
        "Full-size models, search",
        "full_size",
        LARGE[:2],
        "The default policy. Aims: under three times elk-full.",
    ),
    Section(
        "Workloads of KULeuven Stream",
        "full_size",
        ("--models", "../shared/models/stream", "--chip", "ipu-hbm"),
        "Its published files on our chip. Its own chips (four cores, no HBM) can't be made from"
        " what is public, so cycles are not compared; it takes 16 to 47 s for the ones it solves.",
    ),
    Section(
        "Simulation speed",
        "sim_speed",
        about="CPU seconds of simulating compiled programs; 1,000 more identical layers beside.",
    ),
    Section(
        "More layers", "layers", about="Aim: twice the layers, under 1.5 times the CPU seconds."
    ),
    Section(
        "Plan enumeration",
        "enumerate_plans",
        about="Every unique operator of Llama-2-13B.",
    ),
    Section(
        "Interpreters",
        "interpreters",
        about="CPU milliseconds of one evaluation of every tiny model, beside onnxruntime and"
        " ONNX's reference evaluator: the shortest of many runs after a first one, in which each"
        " prepares what does not depend on the inputs.",
    ),
    Section(
        "Byte addresses",
        "minimalloc",
        about="The instances of google/minimalloc, beside the heights that it publishes.",
    ),
    Section(
        "The simulator against other simulators",
        "sim_measured",
        about="Network patterns of BookSim 2 and HBM of DRAMsim3.",
    ),
    Section(
        "Embedding",
        "embedding",
        about="A pretrained text detector, PyTorch's front door, and models compiled by several"
        " threads at once ([embedding](embedding.md)).",
    ),
    Section("NorthPole", "northpole_report", about="docs/targets/northpole.md explains the rows."),
)


def processor() -> str:
    """The processor's name, and how many of them this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), name)
    return f"{name}, {len(os.sched_getaffinity(0))} of its processors"


def versions() -> str:
    """Python, and the packages that matter for speed."""
    names = ("elk-ir", "xdsl", "numpy", "onnx", "onnxruntime", "lightgbm")
    found = [f"{n} {importlib.metadata.version(n)}" for n in names]
    return ", ".join([f"Python {platform.python_version()}", *found])


def run(section: Section) -> tuple[str, bool]:
    """The section as Markdown, and whether its script succeeded."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, f"benchmarks/{section.script}.py", *section.arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = done.stdout.rstrip()
    if done.returncode:
        text += f"\nexit {done.returncode}\n" + "\n".join(done.stderr.splitlines()[-5:])
    spent = f"{cpu_s:.0f} CPU s, {time.monotonic() - start:.0f} s"
    parts = [f"## {section.title}", f"`{section.command}` ({spent})"]
    if section.about:
        parts.append(section.about)
    parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts), not done.returncode


def main() -> None:
    """Run the sections and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--only", nargs="+", default=[], help="words of the titles to run")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    chosen = [
        s for s in SECTIONS if not args.only or any(w.lower() in s.title.lower() for w in args.only)
    ]
    if args.list:
        for section in chosen:
            print(f"{section.title:40} {section.command}")
        return
    page = [
        "# Performance",
        "Written by `make bench` (`benchmarks/performance.py`): each table is what the command"
        " above it printed. CPU seconds are comparable between machines, seconds are not.",
        f"- {datetime.date.today().isoformat()}\n- {processor()}\n- {versions()}",
    ]
    failed = []
    for section in chosen:
        print(f"{section.title} …", flush=True)
        text, fine = run(section)
        page.append(text)
        if not fine:
            failed.append(section.title)
    temporary = args.output.with_suffix(".tmp")
    temporary.write_text("\n\n".join(page) + "\n", encoding="utf-8")
    temporary.replace(args.output)
    print(f"wrote {args.output.name}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
