"""The smaller tables of docs/scheduling.md: spills, stages, attention in chunks, the model.

    python benchmarks/scheduling_tables.py [spills] [stages] [chunks] [model] [--policy search]

Tables named are printed, all without a name. `spills`: a tiny training step in less and less SRAM,
run on the virtual machine (seconds). `stages`: spatial pipelining beside the temporal program under
elk-dyn (some CPU minutes). `chunks`: attention over a KV cache whole and in chunks under `--policy`
(about a CPU minute a case and column). `model`: a steady layer as the scheduler's model sees it and
as the simulator does, under every policy (some CPU minutes). Models come from ../shared/models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.process import quiet_collector
from elk_ir.schedule.policies import EXECUTABLE
from elk_ir.spatial import spatial_results
from elk_ir.tools.cmd_compare import compare, prepare

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
TRAINING = MODELS / "tiny" / "train_llama-tiny_L2_b2_s16_fp32.onnx"
SRAM_BYTES = (16_000, 10_000, 8_000)
"""Usable bytes a core of `test-64`."""

POD = "ipu-pod4-hbm"
STAGES = (1, 2, 4, 8)
PIPELINED = (
    ("granite-3b, 14 layers", "granite-3b-8blike_L14_dyn_fp16_op20.onnx"),
    ("Llama-2-13B, 40 layers", "llama2-13b_L40_dyn_fp16_op20.onnx"),
)
CHUNKED = (
    ("Llama-2-13B", "llama2-13b_L40_dyn_fp16_op20.onnx", 32, 4096),
    ("Llama-2-13B", "llama2-13b_L40_dyn_fp16_op20.onnx", 64, 2048),
    ("Llama-2-13B", "llama2-13b_L40_dyn_fp16_op20.onnx", 64, 4096),
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx", 32, 2048),
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx", 32, 4096),
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx", 64, 2048),
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx", 64, 4096),
    ("Gemma-2-27B", "gemma2-27b_L46_dyn_fp16_op20.onnx", 64, 4096),
)
MODELED = (
    ("Llama-2-13B", "llama2-13b_L40_dyn_fp16_op20.onnx"),
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx"),
    ("Gemma-2-27B", "gemma2-27b_L46_dyn_fp16_op20.onnx"),
    ("Llama-2-70B", "llama2-70b_L80_dyn_fp16_op20.onnx"),
)


def row(*cells: str) -> None:
    """A line of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def head(*cells: str) -> None:
    """The first two lines of a table."""
    row(*cells)
    print("|" + "---|" * len(cells))


def spills(_: str) -> None:
    """A training step whose activations wait in HBM where SRAM is short."""
    given, expected = (read_npz(TRAINING.with_suffix(".npz"), part) for part in ("in/", "out/"))
    head("SRAM a core, bytes", "spilled, bytes", "to and from HBM, bytes", "time, µs", "error")
    base = load_chip("test-64")
    for usable in SRAM_BYTES:
        chip = base.with_fields({"sram_per_core_bytes": usable + base.reserved_per_core_bytes})
        program = elk_ir.compile(TRAINING, chip=chip, policy="basic")
        attr = program.icca.attributes.get("icca.spilled_bytes")
        spilled = 0 if attr is None else int(getattr(attr, "value").data)  # noqa: B009
        outputs = program.run(check_inputs(given, program.signature.inputs))
        error = max(
            float(abs(outputs[name] - value).max() / max(abs(value).max(), 1e-30))
            for name, value in expected.items()
        )
        report = program.report
        row(
            f"{usable:,}",
            f"{spilled:,}",
            f"{report['hbm_bytes']:,}",
            f"{report['time_s'] * 1e6:.1f}",
            f"{error:.1e}",
        )


def decoder(model: str, batch: int, kv: int, policy: str, chunks: int | None) -> dict[str, Any]:
    """What a policy makes of a decode step on the pod: a result of `elk compare`, or an `error`."""
    dims = {"batch": batch, "past_sequence_length": kv - 1}
    try:
        with quiet_collector():
            prepared = prepare(str(MODELS / "full" / model), POD, dims, attention_chunks=chunks)
            (result,) = compare(prepared, (policy,))
    except ElkError as error:
        return {"error": str(error)}
    ops = (op.name for op in prepared.module.walk())
    return {**result, "attentions": sum(name == "te.attention" for name in ops)}


def milliseconds(result: dict[str, Any]) -> str:
    """The time of a decode step."""
    return "does not fit" if "error" in result else f"{result['time_s'] * 1e3:.3f}"


def stages(_: str) -> None:
    """Spatial pipelining: a model of time."""
    head("model", "simulated, temporal", *(f"{n} stages" if n > 1 else "1 stage" for n in STAGES))
    for name, model in PIPELINED:
        temporal = decoder(model, 32, 2048, "elk-dyn", None)
        dims = {"batch": 32, "past_sequence_length": 2047}
        with quiet_collector():
            found = spatial_results(
                str(MODELS / "full" / model), load_chip(POD), STAGES, dims=dims, policy="elk-dyn"
            )
        row(name, milliseconds(temporal), *map(milliseconds, found))


def chunks(policy: str) -> None:
    """Attention whole and cut along the batch."""
    head("case", "whole", "chunks", "ms", "layer, µs", "bound/time", "HBM use", "CPU s")
    for name, model, batch, kv in CHUNKED:
        whole, cut = (decoder(model, batch, kv, policy, n) for n in (1, None))
        cells = ["–"] * 4
        if "layer_time_s" in cut:
            layer_s = cut["layer_time_s"]
            cells = [
                f"{layer_s * 1e6:.1f}",
                f"{cut['layer_lower_bound_s'] / layer_s:.1%}",
                f"{cut['hbm_utilization']:.1%}",
                f"{cut['compile_cpu_s']:.0f}",
            ]
        parts = str(cut.get("attentions", "–"))
        row(f"{name} {batch}/{kv:,}", milliseconds(whole), parts, milliseconds(cut), *cells)


def model(_: str) -> None:
    """A layer in its steady state, twice."""
    head("case", "policy", "layer in the model, µs", "simulated, µs", "model is off by")
    for name, file in MODELED:
        dims = {"batch": 32, "past_sequence_length": 2047}
        with quiet_collector():
            results = compare(prepare(str(MODELS / "full" / file), POD, dims), EXECUTABLE)
            for result in results:
                if "layer_time_s" not in result:
                    continue
                seen, known = result["layer_time_s"], result["layer_model_s"]
                row(
                    f"{name} 32/2,048",
                    result["policy"],
                    f"{known * 1e6:.1f}",
                    f"{seen * 1e6:.1f}",
                    f"{known / seen - 1:+.1%}",
                )


TABLES: dict[str, Callable[[str], None]] = {
    "spills": spills,
    "stages": stages,
    "chunks": chunks,
    "model": model,
}


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="default: all")
    parser.add_argument("--policy", default="search", help="of the table of chunks")
    args = parser.parse_args(words)
    for name in args.tables or TABLES:
        print(f"\n{name}\n")
        TABLES[name](args.policy)


if __name__ == "__main__":
    main()
