"""Weights and KV caches stored as int8 or fp8 and widened on the cores: their error and their gain.

    python benchmarks/narrow_storage.py [--tiny MODEL.onnx] [--full MODEL.onnx] [--policy P]
        [--schemes w8a16,…] [--chip CHIP] [--hbm-tb-per-s 16,4] [--json]

A small decoder with weights is run on the virtual machine, calibrated on its own inputs, and its
outputs are compared with those of the framework that exported it (the .npz beside it). A full-size
decoder without weights is compiled and simulated (`unit` calibration): bytes and times are those
of a trained model, numbers are not; on its chip, and with other bandwidths of HBM. Prints a row for
each storage, or one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from elk_ir.chips import Chip, load_chip
from elk_ir.compiler import compile_model
from elk_ir.errors import ElkError
from elk_ir.numerics.tensors import read_npz
from elk_ir.quantizer import Quantization

ROOT = Path(__file__).parent.parent
MODELS = ROOT.parent / "shared" / "models"
TINY = MODELS / "tiny" / "llama3gqa_decode_static_dynamo_fp16.onnx"
FULL = MODELS / "full" / "llama2-13b_L40_b32_s1_kv2048_fp16_op23.onnx"
SCHEMES = ("", "w8a16", "w8a16kv8", "wf8a16", "wf8a16kvf8")


@dataclass(frozen=True)
class Row:
    """One graph with one storage. The error is the largest of the logits, absolute; `error_rms`
    relative to their root mean square; None where the model has no weights."""

    model: str
    hbm_bytes_per_s: float
    weights: str
    caches: str
    max_abs_error: float | None
    error_rms: float | None
    hbm_bytes: int
    hbm_footprint_bytes: int
    time_s: float


def storage(scheme: str) -> tuple[str, str]:
    """What weights and caches are stored as, in words."""
    if not scheme:
        return "fp16", "fp16"
    weights, _, caches = scheme.partition("a16")
    names = {"w8": "int8", "w4": "int4", "wf8": "fp8", "kv8": "int8", "kv4": "int4", "kvf8": "fp8"}
    return names.get(weights, weights), names.get(caches, "fp16")


def measure(model: Path, scheme: str, chip: Chip, policy: str) -> Row:
    """Compile and simulate a model with one storage; run it if its expected outputs are there."""
    data = model.with_suffix(".npz")
    inputs = read_npz(data, "in/") if data.exists() else None
    quantize = Quantization(scheme, "unit" if inputs is None else inputs) if scheme else None
    program = compile_model(model, chip=chip, policy=policy, quantize=quantize)
    error = relative = None
    if inputs is not None:
        name = next(s.name for s in program.signature.outputs if "logits" in s.name)
        want = read_npz(data, "out/")[name].astype(np.float32)
        got = program.run(inputs)[name].astype(np.float32)
        error = float(np.abs(got - want).max())
        relative = float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
    report = program.report
    bytes_ = report["hbm_bytes"], report["hbm_footprint_bytes"]
    about = (model.stem, chip.hbm_bytes_per_s, *storage(scheme))
    return Row(*about, error, relative, *bytes_, report["time_s"])


def text(row: Row, first: Row) -> str:
    """A row of the table; times and bytes also as shares of the first one's."""
    error = "" if row.max_abs_error is None else f"{row.max_abs_error:.4f} ({row.error_rms:.1%})"
    return (
        f"| {row.weights} | {row.caches} | {error} | {row.hbm_bytes:,}"
        f" ({row.hbm_bytes / first.hbm_bytes:.0%}) | {row.hbm_footprint_bytes:,}"
        f" | {row.time_s * 1e3:.4g} ({row.time_s / first.time_s:.0%}) |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", type=Path, default=TINY, help="a decoder with weights and .npz")
    parser.add_argument("--full", type=Path, default=FULL, help="a decoder without weights")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="an empty one is the model's")
    parser.add_argument("--policy", default="elk-dyn")
    parser.add_argument("--chip", default="ipu-pod4-hbm", help="the machine of the full-size model")
    parser.add_argument(
        "--hbm-tb-per-s", default="16,4", help="bandwidths of that machine's HBM, in TB/s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    full = load_chip(args.chip)
    cases = [(args.tiny, load_chip("test-64"))]
    for n in args.hbm_tb_per_s.split(","):
        rate = {"hbm.bandwidth_bytes_per_s": float(n) * 1e12}
        cases.append((args.full, full.with_fields(rate)))
    for model, chip in cases:
        if not model.exists():
            print(f"{model}: no such file, left out", file=sys.stderr)
            continue
        if not args.json:
            rate = f"{chip.hbm_bytes_per_s / 1e12:g} TB/s of HBM"
            print(f"\n{model.stem} on {chip.name}, {rate}, policy {args.policy}\n")
            print("| weights | caches | largest error (rms) | moved in a step | held | ms a step |")
            print("|---|---|---|---|---|---|")
        first: Row | None = None
        for scheme in args.schemes.split(","):
            try:
                row = measure(model, scheme, chip, args.policy)
            except ElkError as error:
                print(f"{model.stem} as {scheme or 'it is'}: {error}", file=sys.stderr)
                return 1
            first = first or row
            rows.append(row)
            if not args.json:
                print(text(row, first), flush=True)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    if args.json:
        print(json.dumps({"results": [asdict(r) for r in rows], "cpu_s": cpu_s}))
    else:
        print(f"\n{cpu_s:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
