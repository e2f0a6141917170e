"""What more identical layers cost to compile: CPU seconds and milliseconds simulated.

    python benchmarks/layers.py [--policy elk-full] [--layers 20 40 80] [--chip ipu-pod4-hbm]

A decoder of Llama-2-13B's shape with so many layers, without weights, batch 32, KV 2,048; each is
compiled in a process of its own. Aim: twice the layers, less than 1.5 times the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

CONFIG = {
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
DIMS = ("batch=32", "past_sequence_length=2047")


def compiled(layers: int, policy: str, chip: str, folder: Path) -> dict[str, float]:
    """The report of a decoder with so many layers."""
    config, model = folder / "config.json", folder / f"{layers}.onnx"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    make = [sys.executable, "-m", "elk_ir.frontend.decoder_graph", str(config), "-o", str(model)]
    subprocess.run([*make, "--layers", str(layers)], check=True, capture_output=True)
    command = [sys.executable, "-m", "elk_ir.tools.elk", "compile", str(model), "--chip", chip]
    command += ["--policy", policy, "--json", *(word for d in DIMS for word in ("--dim", d))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print a line for each number of layers, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="elk-full")
    parser.add_argument("--chip", default="ipu-pod4-hbm")
    parser.add_argument("--layers", type=int, nargs="+", default=[20, 40, 80])
    args = parser.parse_args()
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for layers in args.layers:
            report = compiled(layers, args.policy, args.chip, Path(folder))
            found.append(report["compile_cpu_s"])
            print(
                f"{layers:4} layers {report['compile_cpu_s']:6.1f} CPU s"
                f" {report['compile_peak_rss_bytes'] / 1e6:6.0f} MB"
                f" {report['time_s'] * 1e3:8.3f} ms",
                flush=True,
            )
    for (a, b), (x, y) in zip(pairwise(args.layers), pairwise(found), strict=True):
        print(f"{b / a:.1f} times the layers, {y / x:.2f} times the CPU seconds")


if __name__ == "__main__":
    main()
