"""Elk's evaluation grid under every policy.

    python benchmarks/paper_grid.py [--models 13b,opt] [--batch 32] [--kv 2048] [--variant NAME]

Llama-2-13B, OPT-30B, Gemma-2-27B and Llama-2-70B, batch 16/32/64, KV length 2,048/4,096, from the
full-size graphs, on `ipu-pod4-hbm` or a variant of it. Prints milliseconds, HBM use, a layer's time
in steady state beside its HBM time and its lower bound, and CPU seconds. Variants: `mesh`,
`landing` (preloads steal SRAM cycles), `slow` (the published core-to-core constant), `sync` (no
preload while tiles compute), `first` (exchanges before preloads).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elk_ir.chips import Chip, load_chip
from elk_ir.compiler import quiet_collector
from elk_ir.errors import ElkError
from elk_ir.tools.cmd_compare import DEFAULT, compare, prepare

FULL = Path(__file__).resolve().parents[2] / "shared" / "models" / "full"
MODELS = {
    "13b": "llama2-13b_L40_dyn_fp16_op20.onnx",
    "opt": "opt-30b_L48_dyn_fp16_op20.onnx",
    "gemma": "gemma2-27b_L46_dyn_fp16_op20.onnx",
    "70b": "llama2-70b_L80_dyn_fp16_op20.onnx",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "mesh": {},
    "landing": {"landing_steals_sram": True},
    "slow": {"network.exchange_overhead_factor": 0.28 / 0.241},
    "sync": {"preload_during_compute": False},
    "first": {"network.transfer_sharing": "exchange-first"},
}


def chip_of(variant: str | None) -> Chip:
    """The machine of a variant."""
    if variant == "mesh":
        return load_chip("ipu-pod4-hbm-mesh")
    chip = load_chip("ipu-pod4-hbm")
    return chip.with_fields(VARIANTS[variant]) if variant else chip


HEAD = (
    "| case | policy | ms | HBM use | network | layer µs | HBM µs | bound µs | bound/time"
    " | of ideal | SRAM | edit | CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(case: str, r: dict[str, Any], ideal_s: float | None) -> str:
    """One line of the table."""
    if "error" in r:
        return f"| {case} | {r['policy']} | {r['error'].splitlines()[0]} |" + " |" * 10
    layer = r.get("layer_time_s")
    micro = [r.get(k, 0.0) * 1e6 for k in ("layer_time_s", "layer_hbm_s", "layer_lower_bound_s")]
    ratio = r["layer_lower_bound_s"] / layer if layer else r["lower_bound_s"] / r["time_s"]
    of_ideal = f"{ideal_s / r['time_s']:.1%}" if ideal_s else ""
    return (
        f"| {case} | {r['policy']} | {r['time_s'] * 1e3:.3f} | {r['hbm_utilization']:.1%}"
        f" | {r['network_utilization']:.1%} | {micro[0]:.1f} | {micro[1]:.1f} | {micro[2]:.1f}"
        f" | {ratio:.1%} | {of_ideal}"
        f" | {r['sram_peak_bytes'] / r['sram_capacity_bytes']:.0%}"
        f" | {r.get('preload_edit_distance', 0.0):.1f} | {r['compile_cpu_s']:.1f} |"
    )


def measure(
    names: Sequence[str],
    policies: Sequence[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    variant: str | None,
) -> None:
    """Print a line for each case and policy."""
    chip = chip_of(variant)
    print(HEAD, flush=True)
    for name in names:
        for batch in batches:
            for length in lengths:
                case = f"{name} {batch}/{length}"
                dims = {"batch": batch, "past_sequence_length": length - 1}
                try:
                    with quiet_collector():
                        prepared = prepare(str(FULL / MODELS[name]), chip, dims)
                        results = list(compare(prepared, policies))
                except ElkError as error:
                    print(f"| {case} | {str(error).splitlines()[0]} |", flush=True)
                    continue
                ideal = next((r.get("time_s") for r in results if r["policy"] == "ideal"), None)
                for result in results:
                    print(row(case, result, ideal), flush=True)


def main() -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--policies", default=",".join(DEFAULT))
    parser.add_argument("--batch", default="16,32,64")
    parser.add_argument("--kv", default="2048,4096")
    parser.add_argument("--variant", choices=VARIANTS)
    args = parser.parse_args()
    if not FULL.is_dir():
        print("the full-size graphs are not here (../shared/models/full)", file=sys.stderr)
        return 1
    measure(
        args.models.split(","),
        args.policies.split(","),
        [int(n) for n in args.batch.split(",")],
        [int(n) for n in args.kv.split(",")],
        args.variant,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
