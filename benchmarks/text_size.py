"""How long the emitted Poplar C++ of a model is for few cores and for many.

    python benchmarks/text_size.py [--chips SMALL,LARGE] [MODEL.onnx …]

Compiles each model for both chips as `elk compile` does and prints a row for it: characters of the
two programs, and by how much the second is longer; behind the table, how many of them are helpers
that are copied into every program that needs them. Without models: those of tests/models, and some
of other architectures beside the checkout, where they are there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import elk_ir
from elk_ir.targets.ipu import cpp_common
from elk_ir.targets.ipu.poplar_cpp import emit_cpp

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT.parent / "shared" / "models" / "tiny"
OTHERS = (
    "bert_sdpa_static_dynamo",
    "dit_tiny_static_dynamo",
    "gemma2_decode_static_dynamo",
    "opt_decode_static_dynamo",
    "vit_static_dynamo",
    "llama2_prefill_static_dynamo",
    "mixtral5_batched_mm_decode_static_dynamo",
    "resnet50_w8_static_dynamo",
    "yolo_tiny_static_dynamo",
)


def default_models() -> list[Path]:
    """The bundled models, and those of OTHERS that exist."""
    bundled = sorted((ROOT / "tests" / "models").glob("*.onnx"))
    return bundled + [p for n in OTHERS if (p := TINY / f"{n}.onnx").exists()]


def helper_characters(program: str) -> int:
    """Characters of the helper files that a program contains."""
    files = (Path(cpp_common.__file__).parent / "codelets").iterdir()
    texts = (path.read_text(encoding="utf-8").rstrip() for path in sorted(files) if path.is_file())
    return sum(len(text) for text in texts if text in program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--chips", default="test-16,ipu-pod4-hbm")
    options = parser.parse_args(arguments)
    chips = options.chips.split(",")
    if len(chips) != 2:
        parser.error(f"--chips takes two chips, not {len(chips)}")
    print(f"| model | {chips[0]} | {chips[1]} | difference |")
    print("|---|---|---|---|")
    helpers: list[int] = []
    for model in options.models or default_models():
        texts = [emit_cpp(elk_ir.compile(model, chip=c).target) for c in chips]
        helpers += map(helper_characters, texts)
        small, large = map(len, texts)
        row = f"{small:,} | {large:,} | {100 * (large / small - 1):+.1f} %"
        print(f"| `{model.stem}` | {row} |", flush=True)
    if helpers:
        print(f"\nhelpers: {min(helpers):,} to {max(helpers):,} characters of each program")
    return 0


if __name__ == "__main__":
    sys.exit(main())
