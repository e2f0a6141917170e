"""The stage map as text, JSON and picture: which layer on which card, bytes, time, bubbles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from typing import Any

from elk_ir.northpole.mapping import Mapping, Stage
from elk_ir.northpole.pipeline import (
    Interval,
    Run,
    Steady,
    chunk_tokens,
    decode_intervals,
    steady_state,
)
from elk_ir.northpole.pipeline import simulate as simulate_run
from elk_ir.northpole.timing import card_of

FORMATS = ("text", "json", "svg")


def has_state(mapping: Mapping) -> bool:
    """Whether the network keeps something for every user, so that it generates tokens."""
    return bool(mapping.context) and any(s.resident.kv_bytes_per_user for s in mapping.stages)


def _cards(stage: Stage) -> str:
    first, last = stage.cards[0], stage.cards[-1]
    return str(first) if first == last else f"{first}-{last}"


def _mean_context(mapping: Mapping) -> float:
    return mapping.context * (1 + mapping.assumptions.prompt_share) / 2


def _stage_s(mapping: Mapping, stage: Stage) -> tuple[float, float]:
    """(roofline, with overheads) for a micro-batch and token at mean context."""
    cost, context = mapping.cost(stage), _mean_context(mapping)
    overhead = card_of(mapping.chip).phase_overhead_s
    return cost.roofline_s(context), cost.seconds(context, overhead)


def stage_map_json(mapping: Mapping) -> str:
    """One JSON object; field names carry units."""
    return json.dumps(stage_map_fields(mapping), indent=2) + "\n"


def stage_map_fields(mapping: Mapping, *, simulate: bool = True) -> dict[str, Any]:
    """What the JSON says: bytes and times of stages, and (`simulate`) of the run as a whole."""
    result: dict[str, Any] = {
        "model": mapping.network.name,
        "chip": mapping.chip.name,
        "precision": asdict(mapping.precision),
        "assumptions": asdict(mapping.assumptions),
        "phase_overhead_s": card_of(mapping.chip).phase_overhead_s,
        "cards": mapping.cards,
        "context": mapping.context,
        "users_by_memory": mapping.users_by_memory,
        "mini_batch": mapping.mini_batch,
        "micro_batches": mapping.micro_batches,
        "micro_batch": mapping.micro_batch,
        "limit": mapping.limit,
        "mini_batch_by_micro_batches": {str(m): n for m, n in mapping.table},
        "stages": [_stage_json(mapping, s) for s in mapping.stages],
    }
    if simulate and has_state(mapping):
        result |= {"policy": "gpipe", **asdict(simulate_run(mapping))}
    elif simulate:
        power = card_of(mapping.chip).measured_power_per_card_w * mapping.cards
        result |= {"policy": "steady", "power_w": power, **asdict(steady_state(mapping))}
    return result


def _stage_json(mapping: Mapping, stage: Stage) -> dict[str, Any]:
    roofline, seconds = _stage_s(mapping, stage)
    return {
        "name": stage.name,
        "cards": list(stage.cards),
        "blocks": len(stage.blocks),
        "phases": stage.phases,
        "weight_bytes": stage.resident.weight_bytes,
        "constant_bytes": stage.resident.constant_bytes,
        "kv_bytes": mapping.mini_batch * stage.resident.kv_bytes_per_user,
        "card_bytes": mapping.card_bytes(stage),
        "core_bytes": mapping.core_bytes(stage),
        "framebuffer_bytes": mapping.framebuffer_bytes(stage),
        "roofline_s": roofline,
        "stage_s": seconds,
    }


def stage_map_text(mapping: Mapping) -> str:
    """The map for people."""
    return "\n".join(_lines(mapping)) + "\n"


def _lines(mapping: Mapping) -> Iterator[str]:
    core = mapping.chip.usable_sram_per_core_bytes
    capacity = core * mapping.chip.cores_per_chip
    overhead = card_of(mapping.chip).phase_overhead_s
    yield f"{mapping.network.name} on {mapping.cards} cards of {mapping.chip.name},"
    yield (
        f"{mapping.precision.name} (output layer {mapping.precision.head_bits} bits),"
        f" context {mapping.context}"
    )
    yield (
        f"mini-batch {mapping.mini_batch} = {mapping.micro_batches} micro-batches of"
        f" {mapping.micro_batch}"
    )
    yield f"limit: {mapping.limit}"
    pairs = ", ".join(f"M {m}: {n}" for m, n in mapping.table)
    yield f"mini-batch by micro-batches: {pairs}"
    yield ""
    head = f"{'cards':>7}  {'stage':<24} {'weights':>9} {'KV':>9} {'used':>6} {'core':>6}"
    yield f"{head} {'phases':>6} {'roofline':>9} {'time':>9}"
    yield f"{'':>7}  {'':<24} {'MB':>9} {'MB':>9} {'':>6} {'':>6} {'':>6} {'µs':>9} {'µs':>9}"
    for stage in mapping.stages:
        roofline, seconds = _stage_s(mapping, stage)
        kv = mapping.mini_batch * stage.resident.kv_bytes_per_user
        yield (
            f"{_cards(stage):>7}  {stage.name[:24]:<24}"
            f" {stage.resident.fixed_bytes / 1e6:>9.1f} {kv / 1e6:>9.1f}"
            f" {mapping.card_bytes(stage) / capacity:>6.0%}"
            f" {mapping.core_bytes(stage) / core:>6.0%}"
            f" {stage.phases:>6} {roofline * 1e6:>9.2f} {seconds * 1e6:>9.2f}"
        )
    yield (
        f"{'host':>7}  {'outputs, next token':<24} {'':>9} {'':>9} {'':>6} {'':>6} {'':>6} {'':>9}"
        f" {mapping.assumptions.host_time_s * 1e6:>9.2f}"
    )
    yield ""
    if has_state(mapping):
        yield from _run_lines(mapping, simulate_run(mapping))
    else:
        yield from _steady_lines(steady_state(mapping))
    yield f"a dependent phase costs {overhead * 1e6:.2f} µs (calibrated), the rest is computed"
    yield ""
    yield from diagram(mapping)


def _run_lines(mapping: Mapping, run: Run) -> Iterator[str]:
    yield (
        f"{run.tokens_per_s:,.0f} tokens/s, {run.latency_per_token_s * 1e3:.3f} ms a token"
        f" ({run.inter_token_s * 1e3:.3f} ms between tokens while generating)"
    )
    yield (
        f"{run.prompt_tokens} prompt tokens in {run.prompt_time_s * 1e3:.1f} ms (chunks of"
        f" {min(run.prompt_tokens, chunk_tokens(mapping))}), {run.generated_tokens} generated in"
        f" {run.generation_time_s * 1e3:.1f} ms"
    )
    yield (
        f"layer stages idle {run.bubble_share:.1%} of the generation, links are busy"
        f" {run.link_utilization:.1%}, the host's share {run.host_link_utilization:.1%}, products"
        f" {run.product_utilization:.1%} of the peak"
    )
    if run.power_w:
        yield (
            f"{run.power_w:.0f} W: {run.tokens_per_s_per_w:.1f} tokens/s/W,"
            f" {run.energy_per_token_j * 1e3:.1f} mJ a token;"
            f" {run.tokens_per_s_per_card:,.0f} tokens/s a card"
        )


def _steady_lines(steady: Steady) -> Iterator[str]:
    yield (
        f"{steady.samples_per_s:,.0f} samples/s, {steady.latency_s * 1e6:.1f} µs each, bound by"
        f" {steady.bound_by}"
    )
    yield f"product peak alone: {steady.peak_samples_per_s:,.0f} samples/s"


_MARKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def diagram(mapping: Mapping, width: int = 72) -> Iterator[str]:
    """Stages down, time across; a character is the micro-batch at work, `.` is a bubble."""
    intervals = decode_intervals(mapping, 2)
    end = max(i.end_s for i in intervals)
    yield f"two tokens from an empty pipeline, {end * 1e6:,.0f} µs across:"
    for stage in range(len(mapping.stages) + 1):
        row = ["."] * width
        for each in intervals:
            if each.stage == stage:
                first = int(each.start_s / end * width)
                last = max(first + 1, int(each.end_s / end * width))
                mark = _MARKS[each.micro_batch % len(_MARKS)]
                row[first:last] = [mark] * (min(last, width) - first)
        name = "host" if stage == len(mapping.stages) else _cards(mapping.stages[stage])
        yield f"{name:>7} |{''.join(row)}|"


def stage_map_svg(mapping: Mapping) -> str:
    """Cards with their memory on the left, the pipeline in time on the right."""
    return "\n".join(_svg(mapping)) + "\n"


_ROW, _LEFT, _BAR, _TIME = 22, 150, 260, 720


def _svg(mapping: Mapping) -> Iterator[str]:
    intervals = decode_intervals(mapping, 2)
    end = max(i.end_s for i in intervals)
    rows = len(mapping.stages) + 1
    height, width = 60 + _ROW * rows, _LEFT + _BAR + _TIME + 60
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="11">'
    )
    title = (
        f"{mapping.network.name}: {mapping.cards} cards, {mapping.mini_batch} users in"
        f" {mapping.micro_batches} micro-batches, {mapping.precision.name}"
    )
    yield f'<text x="10" y="18" font-size="14">{escape(title)}</text>'
    yield f'<text x="{_LEFT}" y="38">bytes of a card: weights, KV</text>'
    yield (
        f'<text x="{_LEFT + _BAR + 30}" y="38">two tokens from an empty pipeline,'
        f" {end * 1e6:,.0f} µs</text>"
    )
    capacity = mapping.chip.usable_sram_per_core_bytes * mapping.chip.cores_per_chip
    for i, stage in enumerate(mapping.stages):
        y = 46 + _ROW * i
        weights = _BAR * stage.resident.fixed_bytes / capacity
        kv = _BAR * mapping.mini_batch * stage.resident.kv_bytes_per_user / capacity
        label = f"{_cards(stage)}  {stage.name}"
        yield f'<text x="10" y="{y + 14}">{escape(label[:24])}</text>'
        yield f'<rect x="{_LEFT}" y="{y}" width="{_BAR}" height="16" fill="#eeeeee"/>'
        yield f'<rect x="{_LEFT}" y="{y}" width="{weights:.1f}" height="16" fill="#4878a8"/>'
        yield (
            f'<rect x="{_LEFT + weights:.1f}" y="{y}" width="{kv:.1f}" height="16" fill="#e0a040"/>'
        )
    yield f'<text x="10" y="{46 + _ROW * (rows - 1) + 14}">host</text>'
    for each in intervals:
        yield _svg_interval(mapping, each, end)
    yield "</svg>"


def _svg_interval(mapping: Mapping, each: Interval, end: float) -> str:
    x = _LEFT + _BAR + 30 + _TIME * each.start_s / end
    width = max(0.5, _TIME * (each.end_s - each.start_s) / end)
    hue = 360 * each.micro_batch // mapping.micro_batches
    light = 60 if each.token % 2 == 0 else 45
    return (
        f'<rect x="{x:.2f}" y="{46 + _ROW * each.stage}" width="{width:.2f}" height="16"'
        f' fill="hsl({hue},55%,{light}%)"><title>micro-batch {each.micro_batch}, token'
        f" {each.token}</title></rect>"
    )
