"""Plan enumeration of a full-size decoder: operator, plans considered, front size, CPU seconds.

    OPENBLAS_NUM_THREADS=1 python benchmarks/enumerate_plans.py [--chip NAME] [--batch N] [--kv N]

The operators are the unique ones of Llama-2-13B decoding (hidden 5,120, 40 heads of 128, FFN
13,824, vocabulary 32,000): products separate and merged, attention, norm, elementwise maps.
"""

from __future__ import annotations

import argparse
import time

from elk_ir.chips.load import load_chip
from elk_ir.cost.device import device_model
from elk_ir.numerics.body import Body, Instr
from elk_ir.plan.buffers import Source
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Phase, Stat
from elk_ir.plan.enumerate import enumerate_plans

HIDDEN, HEADS, HEAD, FFN, VOCABULARY = 5120, 40, 128, 13824, 32000
HALF, SINGLE = "float16", "float32"
HBM, RESIDENT = Source.HBM, Source.RESIDENT


def axes(*dims: int) -> tuple[AxisExpr, ...]:
    """The dimensions, each a whole axis."""
    return tuple(AxisExpr(((d, 1),)) for d in dims)


def product(m: int, n: int, k: int) -> Operator:
    """(m x k) by (k x n)."""
    return Operator(
        "contract",
        (Dim("m", m), Dim("n", n), Dim("k", k, DimKind.REDUCTION)),
        (Access((m, k), HALF, axes(0, 2)), Access((k, n), HALF, axes(2, 1))),
        (Access((m, n), HALF, axes(0, 1)),),
        (Stat("sum", (0, 1), SINGLE, 0.0),),
        (),
        2.0,
    )


def attention(batch: int, kv: int) -> Operator:
    """One query a sequence against `kv` keys, with an additive mask."""
    low = float("-inf")
    local = DimKind.LOCAL
    return Operator(
        "attention",
        (
            Dim("b", batch),
            Dim("h", HEADS),
            Dim("s", 1),
            Dim("kv", kv, DimKind.REDUCTION),
            Dim("d", HEAD, local),
            Dim("e", HEAD, local),
        ),
        (
            Access((batch, HEADS, 1, HEAD), HALF, axes(0, 1, 2, 4)),
            Access((batch, HEADS, kv, HEAD), HALF, axes(0, 1, 3, 4)),
            Access((batch, HEADS, kv, HEAD), HALF, axes(0, 1, 3, 5)),
            Access((batch, 1, kv), HALF, axes(0, 2, 3)),
        ),
        (Access((batch, HEADS, 1, HEAD), HALF, axes(0, 1, 2, 5)),),
        (
            Stat("max", (0, 1, 2), SINGLE, low),
            Stat("sum", (0, 1, 2), SINGLE, 0.0),
            Stat("out", (0, 1, 2, 5), SINGLE, 0.0),
        ),
        (("scale", HEAD**-0.5),),
        4.0,
    )


def norm(m: int, k: int) -> Operator:
    """RMSNorm of m rows with a weight of k."""
    return Operator(
        "normalize",
        (Dim("m", m), Dim("k", k, DimKind.REDUCTION)),
        (
            Access((m, k), HALF, axes(0, 1), Phase.BOTH),
            Access((k,), HALF, axes(1), Phase.APPLY),
        ),
        (Access((m, k), HALF, axes(0, 1)),),
        (Stat("squares", (0,), SINGLE, 0.0),),
        (("form", "rms"), ("epsilon", 1e-5), ("affine", ("scale",))),
        3.0,
    )


def elementwise(m: int, n: int, *ops: str) -> Operator:
    """A map of two (m, n) tensors through a chain of binary operations."""
    instrs = tuple(Instr(op, (i + 1 if i else 0, 1)) for i, op in enumerate(ops))
    access = Access((m, n), HALF, axes(0, 1))
    body = Body(2, instrs, (len(ops) + 1,))
    dims = (Dim("m", m), Dim("n", n))
    return Operator(
        "map", dims, (access, access), (access,), (), (("body", body),), float(len(ops))
    )


def operators(batch: int, kv: int) -> dict[str, tuple[Operator, tuple[Source, ...]]]:
    """Name, operator and where its operands come from."""
    weight = (RESIDENT, HBM)
    return {
        "Q, K, V merged": (product(batch, 3 * HIDDEN, HIDDEN), weight),
        "Q or O projection": (product(batch, HIDDEN, HIDDEN), weight),
        "gate and up merged": (product(batch, 2 * FFN, HIDDEN), weight),
        "gate or up": (product(batch, FFN, HIDDEN), weight),
        "down": (product(batch, HIDDEN, FFN), weight),
        "output layer": (product(batch, VOCABULARY, HIDDEN), weight),
        "attention": (attention(batch, kv), (RESIDENT, HBM, HBM, RESIDENT)),
        "RMSNorm": (norm(batch, HIDDEN), weight),
        "residual": (elementwise(batch, HIDDEN, "add"), (RESIDENT, RESIDENT)),
        "gating": (elementwise(batch, FFN, "mul", "add", "mul"), (RESIDENT, RESIDENT)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="CPU time of plan enumeration")
    parser.add_argument("--chip", default="ipu-pod4-hbm")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--kv", type=int, default=2048)
    args = parser.parse_args()
    chip = load_chip(args.chip)
    cost = device_model(chip)
    print(f"{chip.name}: {chip.cores:,} cores, batch {args.batch}, KV {args.kv:,}\n")
    columns = ("plans", 10), ("front", 6), ("tolerance", 9), ("fastest us", 10), ("CPU s", 6)
    print(f"{'operator':<20} " + " ".join(f"{name:>{width}}" for name, width in columns))
    total_s = 0.0
    for name, (op, sources) in operators(args.batch, args.kv).items():
        start = time.process_time()
        front = enumerate_plans(op, chip, sources, cost)
        cpu_s = time.process_time() - start
        total_s += cpu_s
        fastest_us = front.execute_cycles[0] / chip.clock_hz * 1e6 if len(front) else float("nan")
        print(
            f"{name:<20} {front.considered:>10,} {len(front):>6,} {front.tolerance:>9.2f}"
            f" {fastest_us:>10.2f} {cpu_s:>6.2f}"
        )
    print(f"{'total':<20} {'':>10} {'':>6} {'':>9} {'':>10} {total_s:>6.2f}")


if __name__ == "__main__":
    main()
