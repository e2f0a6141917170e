"""Speed of the spine: start-up, and one real graph from ONNX file to numbers.

    python benchmarks/spine.py

Prints CPU seconds (the least of several runs, children included) beside the aim.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "tests" / "models" / "llama2_decode_static_dynamo.onnx"
BIN = Path(sys.executable).parent


def cpu_s(command: list[str], repeat: int = 3) -> float:
    """The least CPU seconds of `repeat` runs of a command."""
    best = float("inf")
    for _ in range(repeat):
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        used = after.children_user + after.children_system
        best = min(best, used - before.children_user - before.children_system)
    return best


def main(emit: Callable[[str], None] = print) -> None:
    """Print the table."""
    npz = MODEL.with_suffix(".npz")
    elk = str(BIN / "elk")
    with tempfile.TemporaryDirectory() as folder:
        chip = ["--chip", "test-64"]
        compiled = ["compile", str(MODEL), *chip, "-o", folder]
        basic = ["--policy", "basic"]
        inputs = ["--inputs", str(npz), "--expect", str(npz)]
        rows = [
            ("elk-opt --help", 0.5, [str(BIN / "elk-opt"), "--help"]),
            ("import elk_ir", 0.5, [sys.executable, "-c", "import elk_ir"]),
            ("elk compile --policy basic", 5.0, [elk, *compiled, *basic]),
            ("elk compile, default policy", 5.0, [elk, *compiled]),
            ("elk run DIR, one decode step", 3.0, [elk, "run", folder, *inputs]),
            ("elk run MODEL --policy basic", 8.0, [elk, "run", str(MODEL), *chip, *inputs, *basic]),
        ]
        emit(f"{'what':40} {'CPU s':>7} {'aim':>6}")
        for name, aim, command in rows:
            emit(f"{name:40} {cpu_s(command):7.2f} {aim:6.1f}")


if __name__ == "__main__":
    main()
