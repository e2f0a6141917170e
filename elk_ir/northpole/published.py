"""Published figures, each with its source, and what our model says about them.

Sources: [hpec] Appuswamy et al., "Breakthrough low-latency, high-energy-efficiency LLM inference
performance using NorthPole", IEEE HPEC 2024. [rack] "A Scalable NorthPole System with End-to-End
Vertical Integration for Low-Latency and Energy-Efficient LLM Inference", arXiv 2511.15950, 2025.
[sci] Modha et al., "Neural inference at the frontier of energy, space, and time", Science 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elk_ir.chips import Chip
from elk_ir.northpole.gpus import Compared, GpuTable, Row, compare, row_of
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import Decoder, parse_precision
from elk_ir.northpole.pipeline import fit_phase_overhead, simulate, with_chip
from elk_ir.northpole.timing import Assumptions, Rates, with_overhead

GRANITE_3B = Decoder("granite-3b", 14, 4096, 14336, 32, 8, 49152)
"""The model of [hpec]: 14 layers of the width of an 8B model."""

GRANITE_8B = Decoder("granite-3.3-8b", 40, 4096, 12800, 32, 8, 49152)
"""Granite-3.3-8B with the layers, widths and heads of the 3.0 and 3.1 models of that size, whose
configuration files are public; that of 3.3 was not seen."""

LLAMA_7B = Decoder("llama-7b", 32, 4096, 11008, 32, 32, 32000)
"""The model of most published GPU figures."""

DECODERS = {d.name: d for d in (GRANITE_3B, GRANITE_8B, LLAMA_7B)}
"""Models that exist as figures, by the name that points of GPUs have."""

TOKENS_PER_S = 28_356.0
"""[hpec] the throughput that `phase_overhead_s` is fitted on."""

CONTEXT = 2048
POWER_W = 672.0

INTER_TOKEN_8B_S = 2.8e-3
"""[rack] a user's time between tokens, 28 users, context 2,048."""

USERS_8B = 28

RESNET50_FRAMES_PER_S = 42_460.0
"""[sci] ResNet-50 on one chip; batch and precision are not published."""

RESNET50_MACS = 4.09e9
"""Multiply-adds of one 224 × 224 image."""


@dataclass(frozen=True)
class HeldOut:
    """A prediction of a figure that nothing was fitted on; `error` is predicted / published - 1."""

    precision: str
    cards: int
    stages: int
    micro_batches: int
    predicted_s: float
    published_s: float
    error: float


def fitted_chip(chip: Chip, assumptions: Assumptions | None = None) -> Chip:
    """`chip` with the phase overhead fitted on [hpec]'s throughput (14 + 2 cards, w4a4)."""
    mapping = map_network(
        GRANITE_3B.network(CONTEXT), chip, parse_precision("w4a4"), assumptions=assumptions
    )
    return with_overhead(chip, fit_phase_overhead(mapping, TOKENS_PER_S))


def held_out(
    chip: Chip, precision: str = "w4a4", assumptions: Assumptions | None = None
) -> HeldOut:
    """Granite-3.3-8B with 28 users on a third of the rack of [rack], 96 cards of `chip`.

    The mapping is not known to us: w4a4 takes a card a layer; with an 8-bit cache (w4a8, which a
    review of [rack] names as what it is about) attention and MLP of a layer are on two cards.
    """
    network = GRANITE_8B.network(CONTEXT)
    mapping = map_network(
        network,
        chip,
        parse_precision(precision),
        cards=96,
        users=USERS_8B,
        assumptions=assumptions,
    )
    seconds = simulate(mapping).inter_token_s
    return HeldOut(
        precision,
        mapping.cards,
        len(mapping.stages),
        mapping.micro_batches,
        seconds,
        INTER_TOKEN_8B_S,
        seconds / INTER_TOKEN_8B_S - 1,
    )


@dataclass(frozen=True)
class Sensitivity:
    """What an assumption does: `tokens_per_s` of the 3B model without refitting, and the overhead
    and held-out error if it is refitted."""

    what: str
    value: float
    tokens_per_s: float
    refitted_overhead_s: float
    held_out_error: float


def sensitivity(chip: Chip) -> tuple[Sensitivity, ...]:
    """Host time, prefill utilisation and clock (380 to 425 MHz), one at a time."""
    base = fitted_chip(chip)
    cases: list[tuple[str, float, Chip, Assumptions]] = [
        ("host_time_s", t, base, Assumptions(host_time_s=t)) for t in (0.0, 20e-6, 40e-6)
    ]
    cases += [
        ("prefill_utilization", u, base, Assumptions(prefill_utilization=u)) for u in (0.25, 1.0)
    ]
    cases += [("clock_hz", hz, replace(base, clock_hz=hz), Assumptions()) for hz in (380e6, 425e6)]
    return tuple(_sensitivity(*case) for case in cases)


def _sensitivity(what: str, value: float, chip: Chip, assumptions: Assumptions) -> Sensitivity:
    mapping = map_network(
        GRANITE_3B.network(CONTEXT), chip, parse_precision("w4a4"), assumptions=assumptions
    )
    rate = simulate(mapping).tokens_per_s
    overhead = fit_phase_overhead(mapping, TOKENS_PER_S)
    refitted = with_overhead(chip, overhead)
    error = held_out(refitted, "w4a4", assumptions).error
    return Sensitivity(what, value, rate, overhead, error)


@dataclass(frozen=True)
class WhatIf:
    """One row of an answer: the question's setting, and what comes out, or why it does not fit."""

    what: str
    cards: int
    mini_batch: int
    micro_batches: int
    tokens_per_s: float
    latency_per_token_s: float
    problem: str = ""


def what_if(
    decoder: Decoder, chip: Chip, settings: tuple[tuple[str, int, int], ...]
) -> tuple[WhatIf, ...]:
    """The model under (precision, context, cards); a setting that does not fit keeps its message's
    first line."""
    from elk_ir.errors import ElkError

    rows: list[WhatIf] = []
    for precision, context, cards in settings:
        what = f"{precision}, context {context}, {cards} cards"
        try:
            mapping = map_network(
                decoder.network(context), chip, parse_precision(precision), cards=cards
            )
        except ElkError as error:
            rows.append(WhatIf(what, 0, 0, 0, 0.0, 0.0, str(error).splitlines()[0]))
            continue
        run = simulate(with_chip(mapping, chip))
        rows.append(
            WhatIf(
                what,
                mapping.cards,
                mapping.mini_batch,
                mapping.micro_batches,
                run.tokens_per_s,
                run.latency_per_token_s,
            )
        )
    return tuple(rows)


def gpu_comparisons(
    chip: Chip, table: GpuTable, precision: str = "w4a4", cards: int = 64
) -> tuple[tuple[Row, tuple[Compared, ...]], ...]:
    """Each model and workload of `table` that is known here, mapped on up to `cards` cards of
    `chip` and simulated, with the GPUs' points of the same beside it. The cards run `precision`,
    the GPUs what their source says. Raises ElkError for a model that does not fit."""
    groups: dict[tuple[str, int, float], list[Row]] = {}
    for row in table.rows:
        if row.model in DECODERS:
            prompt = row.prompt_tokens or CONTEXT // 2
            generated = row.generated_tokens or CONTEXT // 2
            key = (row.model, prompt + generated, prompt / (prompt + generated))
            groups.setdefault(key, []).append(row)
    found: list[tuple[Row, tuple[Compared, ...]]] = []
    for (model, context, share), rows in groups.items():
        mapping = map_network(
            DECODERS[model].network(context),
            chip,
            parse_precision(precision),
            cards=cards,
            assumptions=Assumptions(prompt_share=share),
        )
        ours = row_of(mapping, simulate(mapping))
        found.append((ours, compare(ours, rows)))
    return tuple(found)


def implied_utilization(chip: Chip, bits: int) -> float:
    """Share of a chip's peak that [sci]'s ResNet-50 rate takes; above 1 it was another type."""
    return RESNET50_FRAMES_PER_S * RESNET50_MACS / Rates.of(chip).macs_per_s(bits)
