"""What it costs to embed the compiler: a large graph, PyTorch's front door, threads.

    python benchmarks/embedding.py [--torch-python PYTHON] [--only detector|torch|threads ...]

Prints CPU seconds, children included. PYTHON is an interpreter whose environment has elk-ir[torch],
where this one has not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
DETECTOR = ROOT.parent / "shared" / "models" / "pretrained" / "ch_PP-OCRv4_det_infer.onnx"
SRAM_BYTES = 4 << 20
AIM_S = 30.0


def spent_s() -> float:
    """CPU seconds of this process and of its children so far."""
    return sum(os.times()[:4])


def detector(emit: Callable[[str], None]) -> None:
    """`elk_ir.compile` of the pretrained text detector at 320 × 320, in a process for each policy,
    so that none finds what another has worked out."""
    if not DETECTOR.exists():
        emit("detector: needs ../shared/models/pretrained")
        return
    for policy in ("basic", "search"):
        command = [sys.executable, __file__, "--compile-detector", policy]
        emit(subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip())


def compile_detector(emit: Callable[[str], None], policy: str) -> None:
    """One row of `detector`; imports are part of it."""
    import onnx

    import elk_ir

    nodes = len(onnx.load(DETECTOR, load_external_data=False).graph.node)
    chip = replace(elk_ir.load_chip("test-64"), sram_per_core_bytes=SRAM_BYTES)
    start = time.process_time()
    program = elk_ir.compile(
        DETECTOR, chip=chip, policy=policy, input_shapes={"x": (1, 3, 320, 320)}
    )
    used = time.process_time() - start
    report = program.report
    emit(
        f"detector, {nodes} nodes, {len(report['operators'])} operators, {policy}:"
        f" {used:.1f} CPU s (aim {AIM_S:.0f}), {report['time_s'] * 1e3:.3f} ms on 64 cores"
    )


def torch(emit: Callable[[str], None], python: str) -> None:
    """examples/torch_compile.py: a CNN and a transformer, beside PyTorch's own numbers."""
    probe = [python, "-c", "import onnxscript, torch; print(torch.__version__)"]
    found = subprocess.run(probe, capture_output=True, text=True, check=False)
    if found.returncode:
        emit("torch.compile: PyTorch or onnxscript is missing (pip install 'elk-ir[torch]')")
        return
    start = spent_s()
    example = [python, str(ROOT / "examples" / "torch_compile.py")]
    printed = subprocess.run(example, capture_output=True, text=True, check=True).stdout
    emit(f"torch.compile, PyTorch {found.stdout.strip()}: {spent_s() - start:.1f} CPU s")
    for line in printed.splitlines():
        emit(f"  {line}")


def threads(emit: Callable[[str], None]) -> None:
    """Different models in turn, and at once with a thread each: are the bytes equal?"""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_threads import INTERVALS_S, JOBS, compiled

    with tempfile.TemporaryDirectory() as folder:
        start = spent_s()
        want = compiled(Path(folder) / "turn", "turn", INTERVALS_S[0])
        emit(f"{len(JOBS)} models one after the other: {spent_s() - start:.1f} CPU s")
        for interval_s in INTERVALS_S:
            start = spent_s()
            got = compiled(Path(folder) / str(interval_s), "once", interval_s)
            differ = [name for name in want.keys() | got.keys() if want.get(name) != got.get(name)]
            emit(
                f"at once, threads changing every {interval_s * 1e3:g} ms:"
                f" {spent_s() - start:.1f} CPU s, {len(differ)} of {len(want)} files differ"
            )


def main(emit: Callable[[str], None] = print) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=["detector", "torch", "threads"])
    parser.add_argument("--compile-detector", metavar="POLICY", help="this row alone, here")
    args = parser.parse_args()
    if args.compile_detector is not None:
        compile_detector(emit, args.compile_detector)
        return
    if "detector" in args.only:
        detector(emit)
    if "torch" in args.only:
        torch(emit, args.torch_python)
    if "threads" in args.only:
        threads(emit)


if __name__ == "__main__":
    main()
