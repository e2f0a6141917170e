"""A run of the mapped network: prompts, then token after token, through cards, links and the host.

Micro-batches follow one another through the stages; a micro-batch starts its next token when the
host has handled its last one, so a user's tokens are a chain and bubbles appear where fewer
micro-batches than stages are in flight. Prompts pass in chunks that the framebuffer holds. A stage,
a link and the host each serve one micro-batch at a time, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from elk_ir.chips import Chip
from elk_ir.errors import ElkError
from elk_ir.northpole.bytes import ceil_div
from elk_ir.northpole.mapping import Mapping, Stage
from elk_ir.northpole.timing import Cost, Rates, card_of, prefill_s, with_overhead

HOST = "host"


@dataclass(frozen=True)
class Run:
    """A simulated run of one mini-batch, from the first prompt token to the last generated one.

    Times are seconds, `latency_per_token_s` is mini-batch over throughput (the published metric),
    `inter_token_s` the mean time between a user's tokens while generating, `slot_s` the slowest
    stage for one micro-batch at mean context and `slot_roofline_s` the same without phase
    overheads. Utilisations are shares of the generation time; `bubble_share` is what the layer
    stages idle of it. `link_utilization` is of the busiest link, `host_link_utilization` of what
    the host forwards.
    """

    cards: int
    mini_batch: int
    micro_batches: int
    prompt_tokens: int
    generated_tokens: int
    prompt_time_s: float
    generation_time_s: float
    tokens_per_s: float
    latency_s: float
    latency_per_token_s: float
    inter_token_s: float
    slot_s: float
    slot_roofline_s: float
    stage_utilization: tuple[float, ...]
    bubble_share: float
    link_utilization: float
    host_link_utilization: float
    product_utilization: float
    framebuffer_bytes: int
    power_w: float
    energy_per_token_j: float
    tokens_per_s_per_w: float
    tokens_per_s_per_card: float
    tokens_per_s_per_transistor: float


@dataclass(frozen=True)
class Interval:
    """A micro-batch on a stage, for pictures."""

    stage: int
    micro_batch: int
    token: int
    start_s: float
    end_s: float


class _Resources:
    """When each stage and link is free again, and how long it has been busy."""

    def __init__(self, stages: int) -> None:
        self.stage_free = [0.0] * (stages + 1)
        self.link_free = [0.0] * (stages + 1)
        self.stage_busy = [0.0] * (stages + 1)
        self.link_busy = [0.0] * (stages + 1)

    def pass_through(
        self,
        start: float,
        seconds: list[float],
        sends: list[float],
        latency: float,
        seen: Callable[[int, float, float], None] | None = None,
    ) -> float:
        """Send one piece of work through all stages; the last one is the host. Returns its end.

        Link i leads into stage i.
        """
        time = start
        for i, (send, work) in enumerate(zip(sends, seconds, strict=True)):
            if work == 0.0 and send == 0.0:
                continue
            time = max(time, self.link_free[i]) + send
            self.link_free[i] = time
            self.link_busy[i] += send
            begin = max(time + latency, self.stage_free[i])
            time = begin + work
            self.stage_free[i] = time
            self.stage_busy[i] += work
            if seen is not None:
                seen(i, begin, time)
        return time

    def round(
        self, ready: list[float], seconds: list[float], sends: list[float], latency: float
    ) -> None:
        """`pass_through` for every micro-batch in order, each from when it is `ready` and until
        then when it is again: stage after stage, which gives the same times in a fraction of the
        work."""
        for i, (send, work) in enumerate(zip(sends, seconds, strict=True)):
            if work == 0.0 and send == 0.0:
                continue
            link, stage = self.link_free[i], self.stage_free[i]
            for m, time in enumerate(ready):
                link = (time if time > link else link) + send
                arrived = link + latency
                stage = (arrived if arrived > stage else stage) + work
                ready[m] = stage
            self.link_free[i], self.stage_free[i] = link, stage
            self.link_busy[i] += send * len(ready)
            self.stage_busy[i] += work * len(ready)


@dataclass(frozen=True)
class _Times:
    """What the simulation needs of a mapping."""

    stages: tuple[Stage, ...]
    costs: tuple[Cost, ...]
    sends: list[float]
    send_bytes: list[int]
    latency_s: float
    overhead_s: float
    host_s: float

    def seconds(self, context: float) -> list[float]:
        """Of every stage and the host, for one token at `context`."""
        return [c.seconds(context, self.overhead_s) for c in self.costs] + [self.host_s]


def send_bytes(mapping: Mapping) -> list[int]:
    """Bytes of a micro-batch and token into each stage, and from the last one to the host."""
    rows, given = mapping.micro_batch, mapping.assumptions
    widths = [s.blocks[0].in_elements * given.residual_bits for s in mapping.stages]
    widths.append(mapping.stages[-1].blocks[-1].out_elements * given.logit_bits)
    return [ceil_div(rows * bits, 8) for bits in widths]


def _times(mapping: Mapping) -> _Times:
    rates, given = Rates.of(mapping.chip), mapping.assumptions
    stages = mapping.stages
    sizes = send_bytes(mapping)
    sends = [rates.send_s(size, given.route) for size in sizes]
    # The host sends the first residual and receives the outputs directly, from all cards of the
    # last stage at once.
    sends[0] = rates.send_s(sizes[0])
    sends[-1] = rates.send_s(sizes[-1], ways=len(stages[-1].cards))
    return _Times(
        stages,
        tuple(mapping.cost(s) for s in stages),
        sends,
        sizes,
        rates.latency_s(given.route),
        rates.card.phase_overhead_s,
        given.host_time_s,
    )


def chunk_tokens(mapping: Mapping) -> int:
    """Prompt tokens of a micro-batch that pass a card at once: what its framebuffer holds of the
    residual, in and out, two of each."""
    width = max(s.blocks[0].in_elements + s.blocks[-1].out_elements for s in mapping.layer_stages)
    size = 2 * mapping.micro_batch * ceil_div(width * mapping.assumptions.residual_bits, 8)
    return max(1, card_of(mapping.chip).framebuffer_bytes // size)


def _prefill(mapping: Mapping, times: _Times, resources: _Resources, prompt: int) -> list[float]:
    """Run the prompts; returns when each micro-batch has its first token."""
    given = mapping.assumptions
    size = min(prompt, chunk_tokens(mapping))
    ready = [0.0] * mapping.micro_batches
    for m in range(mapping.micro_batches):
        for first in range(0, prompt, size):
            tokens = min(size, prompt - first)
            last = first + tokens == prompt
            seconds: list[float] = []
            sends = [s * tokens for s in times.sends[:-1]]
            for i, (stage, cost) in enumerate(zip(times.stages, times.costs, strict=True)):
                if stage.head:  # only the last token's logits are needed
                    seconds.append(cost.seconds(0, times.overhead_s) if last else 0.0)
                    sends[i] = times.sends[i] if last else 0.0
                else:
                    work = prefill_s(cost, given, first, tokens)
                    seconds.append(work + stage.phases * times.overhead_s)
            seconds.append(times.host_s if last else 0.0)
            sends.append(times.sends[-1] if last else 0.0)
            ready[m] = resources.pass_through(0.0, seconds, sends, times.latency_s)
    return ready


def prompt_and_generated(mapping: Mapping) -> tuple[int, int]:
    """How the context is divided. Raises ElkError when a part would be empty."""
    prompt = round(mapping.context * mapping.assumptions.prompt_share)
    generated = mapping.context - prompt
    if prompt < 1 or generated < 2:
        raise ElkError(
            f"a context of {mapping.context} leaves {prompt} prompt and {generated} generated"
            " tokens; at least 1 and 2 are needed"
        )
    return prompt, generated


def simulate(mapping: Mapping) -> Run:
    """Simulate one mini-batch with its prompts. Raises ElkError for a graph without state."""
    if not mapping.context or not any(s.resident.kv_bytes_per_user for s in mapping.stages):
        raise ElkError(
            f"{mapping.network.name} keeps no state, so it generates no tokens",
            hint="its steady state has a rate of samples",
        )
    prompt, generated = prompt_and_generated(mapping)
    times = _times(mapping)
    resources = _Resources(len(times.stages))
    ready = _prefill(mapping, times, resources, prompt)
    prompt_end = max(ready)
    prefill_busy, prefill_links = list(resources.stage_busy), list(resources.link_busy)
    base, top = times.seconds(0.0), times.seconds(1.0)
    slope = [b - a for a, b in zip(base, top, strict=True)]
    first_ready = list(ready)
    for token in range(1, generated):
        length = prompt + token
        seconds = [a + b * length for a, b in zip(base, slope, strict=True)]
        resources.round(ready, seconds, times.sends, times.latency_s)
    end = max(ready)
    steps = generated - 1
    waits = [(a - b) / steps for a, b in zip(ready, first_ready, strict=True)]
    busy = [a - b for a, b in zip(resources.stage_busy, prefill_busy, strict=True)]
    links = [a - b for a, b in zip(resources.link_busy, prefill_links, strict=True)]
    span = end - min(first_ready)
    utilization = tuple(b / span for b in busy)
    layer_use = [u for s, u in zip(times.stages, utilization, strict=False) if not s.head]
    tokens = mapping.mini_batch * generated
    rate = tokens / end
    mean = prompt + generated / 2
    forwarded = times.send_bytes[:1] + times.send_bytes[-1:]
    if mapping.assumptions.route == "host":
        forwarded = times.send_bytes
    card = card_of(mapping.chip)
    moved = sum(forwarded) * mapping.micro_batches * steps
    power = card.measured_power_per_card_w * mapping.cards
    transistors = mapping.chip.transistors_per_chip * mapping.cards
    return Run(
        mapping.cards,
        mapping.mini_batch,
        mapping.micro_batches,
        prompt,
        generated,
        prompt_end,
        end - prompt_end,
        rate,
        end,
        mapping.mini_batch / rate,
        sum(waits) / len(waits),
        max(c.seconds(mean, times.overhead_s) for c in times.costs),
        max(c.roofline_s(mean) for c in times.costs),
        utilization,
        1 - sum(layer_use) / len(layer_use),
        max(b / span for b in links),
        moved / (card.host_bytes_per_s * span),
        _product_utilization(mapping, steps, span),
        max(mapping.framebuffer_bytes(s) for s in mapping.stages),
        power,
        power / rate,
        rate / power if power else 0.0,
        rate / mapping.cards,
        rate / transistors if transistors else 0.0,
    )


def _product_utilization(mapping: Mapping, steps: int, span: float) -> float:
    """Share of the cards' multiply-adds (at the weights' type) that generation uses."""
    macs = mapping.network.macs * mapping.mini_batch * steps
    rate = Rates.of(mapping.chip).macs_per_s(mapping.precision.product_bits)
    return macs / (rate * mapping.cards * span)


def decode_intervals(mapping: Mapping, tokens: int = 2) -> tuple[Interval, ...]:
    """The first `tokens` rounds of generation from an empty pipeline, at mean context."""
    times = _times(mapping)
    resources = _Resources(len(times.stages))
    seconds = times.seconds(mapping.context * (1 + mapping.assumptions.prompt_share) / 2)
    ready = [0.0] * mapping.micro_batches
    found: list[Interval] = []
    for token in range(tokens):
        for m in range(mapping.micro_batches):

            def seen(i: int, a: float, b: float, m: int = m, token: int = token) -> None:
                found.append(Interval(i, m, token, a, b))

            ready[m] = resources.pass_through(ready[m], seconds, times.sends, times.latency_s, seen)
    return tuple(found)


@dataclass(frozen=True)
class Steady:
    """Samples through a network without state: the slowest stage, link or host sets the rate."""

    samples_per_s: float
    latency_s: float
    slot_s: float
    slot_roofline_s: float
    peak_samples_per_s: float
    bound_by: str


def steady_state(mapping: Mapping) -> Steady:
    """Rate of samples when the pipeline is full; `peak_samples_per_s` is that of the product peak
    alone."""
    times = _times(mapping)
    seconds = times.seconds(mapping.context)
    names = [s.name for s in times.stages] + [HOST]
    slots = [(t, f"stage '{n}'") for n, t in zip(names, seconds, strict=True)]
    slots += [(t, f"link into '{n}'") for n, t in zip(names, times.sends, strict=True)]
    slot, bound_by = max(slots)
    rate = Rates.of(mapping.chip).macs_per_s(mapping.precision.product_bits) * mapping.cards
    return Steady(
        mapping.micro_batch / slot,
        sum(seconds) + sum(times.sends) + times.latency_s * len(times.sends),
        slot,
        max(c.roofline_s(mapping.context) for c in times.costs),
        rate / mapping.network.macs,
        bound_by,
    )


def fit_phase_overhead(mapping: Mapping, tokens_per_s: float) -> float:
    """The overhead of a phase with which the simulated run generates `tokens_per_s`.

    The time of a run is nearly linear in the overhead, so the secant rule takes a few simulations.
    Raises ElkError when even an overhead of zero is too slow.
    """

    def seconds(overhead: float) -> float:
        return (
            1 / simulate(replace(mapping, chip=with_overhead(mapping.chip, overhead))).tokens_per_s
        )

    wanted = 1 / tokens_per_s
    a, fa = 0.0, seconds(0.0)
    if fa > wanted:
        raise ElkError(
            f"without any overhead the pipeline makes {1 / fa:,.0f} tokens/s, fewer than the"
            f" {tokens_per_s:,.0f} to fit"
        )
    b = 5e-6
    fb = seconds(b)
    for _ in range(20):
        if abs(fb - wanted) <= 1e-6 * wanted or fb == fa:
            break
        a, b, fa = b, max(0.0, b + (wanted - fb) * (b - a) / (fb - fa)), fb
        fb = seconds(b)
    return b


def with_chip(mapping: Mapping, chip: Chip) -> Mapping:
    """The same mapping on a chip of other speeds."""
    return replace(mapping, chip=chip)
