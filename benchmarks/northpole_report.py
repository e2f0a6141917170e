"""NorthPole: the fit, the held-out prediction, sensitivities, published facts and what-ifs.

    python benchmarks/northpole_report.py [--gpus FILE.toml]

Pure arithmetic and a small simulation; a few seconds of CPU. `--gpus` adds your own points of GPUs
to those that are published (docs/targets/northpole.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.northpole.gpus import compared_lines, load_gpus
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import parse_precision
from elk_ir.northpole.pipeline import simulate
from elk_ir.northpole.published import (
    CONTEXT,
    GRANITE_3B,
    TOKENS_PER_S,
    fitted_chip,
    gpu_comparisons,
    held_out,
    implied_utilization,
    sensitivity,
    what_if,
)
from elk_ir.northpole.timing import Assumptions

SETTINGS = (
    ("w4a4", 512, 16),
    ("w4a4", 1024, 16),
    ("w4a4", 2048, 16),
    ("w4a4", 4096, 16),
    ("w4a4", 8192, 16),
    ("w4a4", 2048, 8),
    ("w2a2", 2048, 8),
    ("w8a8", 2048, 16),
    ("w8a8", 2048, 32),
)


def lines(gpus: str | None = None) -> Iterator[str]:
    """The report; `gpus` is a file with more points of GPUs."""
    table = load_gpus(gpus)
    chip = load_chip("northpole-16")
    fitted = fitted_chip(chip)
    given, found = chip.northpole, fitted.northpole
    assert given is not None
    assert found is not None
    mapping = map_network(GRANITE_3B.network(CONTEXT), fitted, parse_precision("w4a4"))
    cost, run = mapping.cost(mapping.stages[0]), simulate(mapping)
    yield f"roofline of a slot {cost.roofline_s(1536) * 1e6:.2f} µs overlapped,"
    yield f"  {cost.serial_s(1536) * 1e6:.2f} µs in turn, {cost.phases} phases; PCIe apart"
    yield (
        f"phase_overhead_s fitted on {TOKENS_PER_S:,.0f} tokens/s:"
        f" {found.phase_overhead_s * 1e6:.3f} µs (chip file: {given.phase_overhead_s * 1e6:.3f})"
    )
    yield (
        f"  {run.latency_per_token_s * 1e3:.3f} ms a token, {run.inter_token_s * 1e3:.3f} between"
        f" tokens, prompt {run.prompt_time_s * 1e3:.0f} ms, bubbles {run.bubble_share:.1%},"
        f" {run.tokens_per_s_per_w:.1f} tokens/s/W"
    )
    yield "held out: Granite-3.3-8B, 28 users, 2.8 ms between tokens"
    for precision in ("w4a4", "w4a8", "w8a8"):
        each = held_out(fitted, precision)
        yield (
            f"  {precision}: {each.cards} cards, {each.stages} stages, {each.micro_batches}"
            f" micro-batches: {each.predicted_s * 1e3:.2f} ms, error {each.error:+.1%}"
        )
    yield "sensitivity (without refitting; overhead and held-out error if refitted)"
    for case in sensitivity(chip):
        yield (
            f"  {case.what} = {case.value:g}: {case.tokens_per_s:,.0f} tokens/s;"
            f" {case.refitted_overhead_s * 1e6:.2f} µs, {case.held_out_error:+.1%}"
        )
    yield "what if (3B model)"
    for row in what_if(GRANITE_3B, fitted, SETTINGS):
        yield f"  {row.what}: " + (
            row.problem
            or f"{row.mini_batch} users in {row.micro_batches}, {row.cards} cards,"
            f" {row.tokens_per_s:,.0f} tokens/s, {row.latency_per_token_s * 1e3:.3f} ms"
        )
    yield "PCIe: card to card, or through the host"
    for route in ("direct", "host"):
        mapping = map_network(
            GRANITE_3B.network(CONTEXT),
            fitted,
            parse_precision("w4a4"),
            assumptions=Assumptions(route=route),
        )
        run = simulate(mapping)
        yield (
            f"  {route}: {run.tokens_per_s:,.0f} tokens/s, {run.latency_per_token_s * 1e3:.3f} ms a"
            f" token, links busy {run.link_utilization:.1%}, the host's share"
            f" {run.host_link_utilization:.1%}"
        )
    yield "beside published GPUs (the same model; precisions differ)"
    for ours, compared in gpu_comparisons(fitted, table):
        yield from (f"  {line}" for line in compared_lines(ours, compared))
    for gap in table.missing:
        yield f"  not here: {gap.what}: {gap.why}"
    for bits in (8, 4):
        yield (
            f"ResNet-50 at the published rate takes {implied_utilization(chip, bits):.0%} of the"
            f" int{bits} peak"
        )


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description="NorthPole: fit, prediction, comparisons")
    parser.add_argument("--gpus", metavar="FILE.toml", help="more points of GPUs")
    try:
        for line in lines(parser.parse_args().gpus):
            print(line)
    except ElkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
