"""CPU seconds and memory of simulating compiled programs, and what more identical layers cost.

    python benchmarks/sim_speed.py [DIR...]      folders written by `elk compile`

Without folders, Llama-2-13B and 70B are compiled with policy basic from ../shared/models/full.
One process a program, caches cold. `extract` is ipu to timeline (patterns of every exchange),
`first` the first simulation (loads of every coflow), `again` another one on the same chip. Aim:
extract and first together under 2 s for 40 layers of Llama-2-13B, 3 s for 80 of the 70B, 1 GB.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from elk_ir.sim.timeline import Event, Operator, Repeat, Timeline

FULL = Path(__file__).resolve().parents[1].parent / "shared" / "models" / "full"


def layers(timeline: Timeline) -> int:
    """Iterations of the longest loop over operators, and what is peeled off it."""
    loops = [e for e in timeline.events if _over_layers(e)]
    return max((e.count for e in loops if isinstance(e, Repeat)), default=0) + 1


def _over_layers(event: Event) -> bool:
    return isinstance(event, Repeat) and any(isinstance(e, Operator) for e in event.events)


def with_layers(timeline: Timeline, count: int) -> Timeline:
    """The same program with another number of layers."""
    return replace(
        timeline,
        events=tuple(
            replace(e, count=count - 1) if isinstance(e, Repeat) and _over_layers(e) else e
            for e in timeline.events
        ),
    )


def measure(folder: str) -> None:
    """Prints one line for the program in a folder."""
    from elk_ir.program import load
    from elk_ir.sim import simulate
    from elk_ir.targets.ipu.timeline import timeline_of

    program = load(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [time.process_time()]
    timeline = timeline_of(program.target)
    times.append(time.process_time())
    result = simulate(timeline, program.chip)
    times.append(time.process_time())
    simulate(timeline, program.chip)
    times.append(time.process_time())
    extract, first, again = (b - a for a, b in pairwise(times))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = layers(timeline)
    long = with_layers(timeline, count + 1000)
    start = time.process_time()
    more = simulate(long, program.chip)
    extra = time.process_time() - start - again
    print(
        f"{Path(folder).name}: {count} layers, {result.time_s * 1e3:.3f} ms simulated;"
        f" extract {extract:.2f} s, first {first:.2f} s, again {again:.3f} s of CPU;"
        f" peak {peak / 1e6:.2f} GB ({(peak - before) / 1e6:.2f} GB of it here);"
        f" 1,000 more layers: {extra * 1e3:+.1f} ms of CPU,"
        f" {(more.time_s - result.time_s) * 1e3:.3f} ms simulated"
    )


def main() -> int:
    """One process a folder."""
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        measure(sys.argv[2])
        return 0
    with tempfile.TemporaryDirectory() as base:
        folders = sys.argv[1:] or [str(f) for f in compiled(Path(base))]
        codes = [
            subprocess.run([sys.executable, __file__, "--one", f], check=False).returncode
            for f in folders
        ]
    return max(codes, default=0)


def compiled(base: Path) -> list[Path]:
    """The two largest decoders, compiled into folders below `base`."""
    elk = Path(sys.executable).parent / "elk"
    found = []
    for name in ("llama2-13b_L40", "llama2-70b_L80"):
        model = FULL / f"{name}_b32_s1_kv2048_fp16.onnx"
        if not model.exists():
            print(f"{model.name} is missing: not measured")
            continue
        command = [str(elk), "compile", str(model), "--chip", "ipu-pod4-hbm", "--policy", "basic"]
        subprocess.run(
            [*command, "-o", str(base / name), "--json"], check=True, capture_output=True
        )
        found.append(base / name)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
