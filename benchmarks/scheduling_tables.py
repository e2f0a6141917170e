"""The smaller tables of docs/scheduling.md: spills, stages, attention in chunks, the model, parts
of a layer, fragmentation.

    python benchmarks/scheduling_tables.py [TABLE ...] [--policy search]

Tables named are printed, all without a name. `spills`: a tiny training step in less and less SRAM,
run on the virtual machine (seconds). `stages`: spatial pipelining beside the temporal program under
elk-dyn (some CPU minutes). `chunks`: attention over a KV cache whole and in chunks under `--policy`
(about a CPU minute a case and column); `numbers`: the same of one case in 1, 2, 4 and 8 of them.
`model`: a steady layer as the scheduler's model sees it and as the simulator does, under every
policy (some CPU minutes). `parts`: what its executes take alone, by kind, under `--policy`.
`fragmentation`: schedules that need no addresses beside those that have them, under `--policy` (a
CPU minute a case). Models come from ../shared/models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.memory.offsets import allocate
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_schedule import ALLOCATION_S, schedule_by_name, schedule_module
from elk_ir.passes.icca_schedule_model import Scheduling, resident_bytes
from elk_ir.passes.icca_support import executes, program_of
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.process import quiet_collector
from elk_ir.schedule.policies import EXECUTABLE, Policy, Solved, policy
from elk_ir.sim.bounds import longest_loop
from elk_ir.sim.machine import machine_of
from elk_ir.sim.timeline import Compute, Exchange, Sync, leaves
from elk_ir.spatial import spatial_results
from elk_ir.tools.cmd_compare import Prepared, compare, prepare

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
FRAGMENTED = (
    ("OPT-30B", "opt-30b_L48_dyn_fp16_op20.onnx", 64, 2048),
    ("Gemma-2-27B", "gemma2-27b_L46_dyn_fp16_op20.onnx", 64, 2048),
    ("Llama-2-13B", "llama2-13b_L40_dyn_fp16_op20.onnx", 64, 2048),
    ("Llama-2-70B", "llama2-70b_L80_dyn_fp16_op20.onnx", 32, 2048),
    ("Llama-2-70B", "llama2-70b_L80_dyn_fp16_op20.onnx", 32, 4096),
    ("Llama-2-70B", "llama2-70b_L80_dyn_fp16_op20.onnx", 64, 4096),
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


def numbers(name: str) -> None:
    """Attention of one case in more and more chunks."""
    head("Llama-2-13B 64/2,048", "chunks", "ms")
    for count in (1, 2, 4, 8):
        result = decoder("llama2-13b_L40_dyn_fp16_op20.onnx", 64, 2048, name, count)
        row(name, str(count), milliseconds(result))


def parts(name: str) -> None:
    """What the executes of a layer take, each kind of phase alone: microseconds."""
    kinds: list[str] = ["local", "shift", "relayout", "insert", "distribute", "reduce"]
    kinds += ["combine", "apply", "fill", "copy", "sync"]
    head("case", *kinds)
    for title, file in MODELED:
        with quiet_collector():
            prepared = prepare(
                str(MODELS / "full" / file), POD, {"batch": 32, "past_sequence_length": 2047}
            )
            module = prepared.module.clone()
            scheduling = schedule_by_name(module, name, tables=prepared.tables)
            layers = max(p.copies for p, _ in scheduling.schedules)
            chip = load_chip(POD)
            loop, machine = longest_loop(timeline_of(module)), machine_of(chip)
        assert loop is not None
        spent: dict[str, float] = dict.fromkeys(kinds, 0.0)
        for leaf, times in leaves(loop.events):
            if isinstance(leaf, Compute):
                spent[leaf.kind] += times * leaf.cycles.maximum / chip.clock_hz
            elif isinstance(leaf, Exchange):
                coflow = machine.coflow(leaf)
                spent[leaf.kind] += times * (coflow.alone_s + coflow.latency_s)
                spent["sync"] += times * 2 * chip.sync_s if leaf.traffic.total_bytes else 0.0
            elif isinstance(leaf, Sync):
                spent["sync"] += times * leaf.count * chip.sync_s
        row(f"{title} 32/2,048", *(f"{1e6 * spent[kind] / layers:.1f}" for kind in kinds))


def fragmentation(name: str) -> None:
    """The model's time of schedules whose live bytes fit, and of those that have addresses, with
    one layer a turn of the loop and where it may be unrolled."""
    head("case", "no addresses, ms", "bytes too many", "one layer, ms", "may unroll, ms", "layers")
    for title, file, batch, kv in FRAGMENTED:
        dims = {"batch": batch, "past_sequence_length": kv - 1}
        with quiet_collector():
            prepared = prepare(str(MODELS / "full" / file), POD, dims)
            solved: Solved = {}
            chosen = policy(name, solved=solved)
            free = without_addresses(prepared, chosen)
            one, several = (
                schedule_module(
                    prepared.module.clone(),
                    chosen,
                    keep_plans=False,
                    tables=prepared.tables,
                    retries=name != EXECUTABLE[-1],
                    unroll=unroll,
                )
                for unroll in (False, True)
            )
        over = allocate(liveness(free.module).problem, time_budget_s=ALLOCATION_S).height_bytes
        row(
            f"{title} {batch}/{kv:,}",
            f"{free.time_s * 1e3:.2f}",
            f"{max(0, over - load_chip(POD).usable_sram_per_core_bytes):,}",
            f"{one.time_s * 1e3:.2f}",
            f"{several.time_s * 1e3:.2f}",
            str(max(p.copies for p, _ in several.schedules)),
        )


def without_addresses(prepared: Prepared, chosen: Policy) -> Scheduling:
    """The schedule of a policy that only looks at live bytes."""
    count = sum(1 for _ in executes(program_of(prepared.module)))
    resident = [0] * count
    while True:
        module = prepared.module.clone()
        found = Scheduling(module, chosen, False, resident, 0, prepared.tables)
        found.run()
        taken = resident_bytes(liveness(module), found, count)
        known = [max(a, b) for a, b in zip(resident, taken, strict=True)]
        if known == resident:
            return found
        resident = known


TABLES: dict[str, Callable[[str], None]] = {
    "spills": spills,
    "stages": stages,
    "chunks": chunks,
    "numbers": numbers,
    "model": model,
    "parts": parts,
    "fragmentation": fragmentation,
}


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="default: all")
    parser.add_argument(
        "--policy", default="search", help="of chunks, numbers, parts and fragmentation"
    )
    args = parser.parse_args(words)
    for name in args.tables or TABLES:
        print(f"\n{name}\n")
        TABLES[name](args.policy)


if __name__ == "__main__":
    main()
