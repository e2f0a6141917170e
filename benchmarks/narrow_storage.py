"""What narrower storage costs and gains: weights and KV caches as int8 or fp8, fp32 graphs as fp16.

    python benchmarks/narrow_storage.py [--tiny MODEL.onnx] [--full MODEL.onnx] [--policy P]
        [--schemes w8a16,…] [--wide MODEL.onnx] [--floats f16,…] [--chip CHIP]
        [--hbm-tb-per-s 16,4] [--json]

A small decoder with weights is run on the virtual machine, calibrated on its own inputs, and its
outputs are compared with those of the framework that exported it (the .npz beside it). A full-size
decoder without weights is compiled and simulated (`unit` calibration): bytes and times are those
of a trained model, numbers are not; on its chip, and with other bandwidths of HBM. Then the same
for graphs of fp32 compiled with other floats (`--floats`), with and without narrow storage on top:
a small one, and Llama-2-13B built by `elk_ir.frontend.decoder_graph`. Prints a row for each
storage, or one JSON object.
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
from elk_ir.frontend.decoder_graph import DecoderConfig, decoder_graph
from elk_ir.numerics.tensors import read_npz
from elk_ir.quantizer import Quantization

ROOT = Path(__file__).parent.parent
MODELS = ROOT.parent / "shared" / "models"
TINY = MODELS / "tiny" / "llama3gqa_decode_static_dynamo_fp16.onnx"
FULL = MODELS / "full" / "llama2-13b_L40_b32_s1_kv2048_fp16_op23.onnx"
SCHEMES = ("", "w8a16", "w8a16kv8", "wf8a16", "wf8a16kvf8")
WIDE = MODELS / "tiny" / "llama3gqa_decode_static_dynamo.onnx"
FLOATS = ("", "f16", "bf16", "f16+w8a16kv8")
FULL_FLOATS = ("", "f16")
"""bf16 has the bytes and times of f16."""
LLAMA2_13B = DecoderConfig(5120, 40, 40, 40, 128, 13824, 32000, dtype="float32")
FULL_DIMS = {"batch": 32, "past_sequence_length": 2047}


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


def parts(kind: str, own: str) -> tuple[str | None, str, str]:
    """(floats, scheme, their name in words) of "f16+w8a16", "f16", "w8a16" or "", where `own` are
    the model's floats."""
    floats, _, scheme = kind.rpartition("+")
    if scheme in ("f16", "bf16"):
        floats, scheme = scheme, ""
    return floats or None, scheme, {"": own, "f16": "fp16"}.get(floats, floats)


def storage(kind: str, own: str) -> tuple[str, str]:
    """What weights and caches are stored as, in words."""
    _, scheme, plain = parts(kind, own)
    if not scheme:
        return plain, plain
    weights, _, caches = scheme.partition("a16")
    names = {"w8": "int8", "w4": "int4", "wf8": "fp8", "kv8": "int8", "kv4": "int4", "kvf8": "fp8"}
    return names.get(weights, weights), names.get(caches, plain)


def measure(model: Path | DecoderConfig, kind: str, own: str, chip: Chip, policy: str) -> Row:
    """Compile and simulate a model of `own` floats with one storage; run it if its expected outputs
    are there."""
    if isinstance(model, Path):
        graph, name, dims, data = model, model.stem, {}, model.with_suffix(".npz")
    else:
        graph, name, dims, data = decoder_graph(model), "llama2-13b", FULL_DIMS, Path()
    inputs = read_npz(data, "in/") if data.is_file() else None
    floats, scheme, _ = parts(kind, own)
    quantize = Quantization(scheme, "unit" if inputs is None else inputs) if scheme else None
    program = compile_model(
        graph, chip=chip, policy=policy, dims=dims, quantize=quantize, floats=floats
    )
    error = relative = None
    if inputs is not None:
        logits = next(s.name for s in program.signature.outputs if "logits" in s.name)
        want = read_npz(data, "out/")[logits].astype(np.float32)
        got = program.run(inputs)[logits].astype(np.float32)
        error = float(np.abs(got - want).max())
        relative = float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
    report = program.report
    bytes_ = report["hbm_bytes"], report["hbm_footprint_bytes"]
    about = (name, chip.hbm_bytes_per_s, *storage(kind, own))
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
    parser.add_argument("--wide", type=Path, default=WIDE, help="as --tiny, of fp32")
    parser.add_argument("--floats", default=",".join(FLOATS), help="storage of fp32 graphs")
    parser.add_argument("--policy", default="elk-dyn")
    parser.add_argument("--chip", default="ipu-pod4-hbm", help="the machine of the full-size model")
    parser.add_argument(
        "--hbm-tb-per-s", default="16,4", help="bandwidths of that machine's HBM, in TB/s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    full = load_chip(args.chip)
    schemes, floats = args.schemes.split(","), args.floats.split(",")
    chips = [
        full.with_fields({"hbm.bandwidth_bytes_per_s": float(n) * 1e12})
        for n in args.hbm_tb_per_s.split(",")
    ]
    cases: list[tuple[Path | DecoderConfig, str, Chip, list[str]]] = [
        (args.tiny, "fp16", load_chip("test-64"), schemes),
        *((args.full, "fp16", chip, schemes) for chip in chips),
        (args.wide, "fp32", load_chip("test-64"), floats),
        *((LLAMA2_13B, "fp32", chip, [f for f in floats if f in FULL_FLOATS]) for chip in chips),
    ]
    for model, own, chip, kinds in cases:
        if isinstance(model, Path) and not model.exists():
            print(f"{model}: no such file, left out", file=sys.stderr)
            continue
        if not args.json:
            rate = f"{chip.hbm_bytes_per_s / 1e12:g} TB/s of HBM"
            name = model.stem if isinstance(model, Path) else "Llama-2-13B of fp32"
            print(f"\n{name} on {chip.name}, {rate}, policy {args.policy}\n")
            print("| weights | caches | largest error (rms) | moved in a step | held | ms a step |")
            print("|---|---|---|---|---|---|")
        first: Row | None = None
        for kind in kinds:
            try:
                row = measure(model, kind, own, chip, args.policy)
            except ElkError as error:
                print(f"{own} as {kind or 'it is'}: {error}", file=sys.stderr)
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
