"""How long a stage takes, from first principles and one calibrated overhead.

Products: a core reads `local_bytes_per_cycle` of weights and multiplies each with every row of the
micro-batch, up to its peak, so the rate depends on how often a weight is reused. Softmax, norms and
epilogues run on the FP16 vector units, functions on the activation units. Each dependent phase
(broadcast, partial sums, requantise, barrier) adds `northpole.phase_overhead_s`, the one number
that is fitted. Sends between cards take bytes over PCIe bandwidth, and a latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elk_ir.chips import Chip, NorthPole
from elk_ir.errors import ChipError, ElkError
from elk_ir.northpole.bytes import ceil_div, placement
from elk_ir.northpole.network import Block, Precision, Task, Unit


@dataclass(frozen=True)
class Assumptions:
    """What is not published, by name (docs/targets/northpole.md says why each has its value).

    `prefill_utilization` is the share of the product peak reached on prompts; `host_time_s` what
    the host takes for a micro-batch's outputs (sampling, next embedding); a residual crosses cards
    in `residual_bits`, logits reach the host in `logit_bits`; `route` is `direct` (card to card)
    or `host` (every send goes through it). `prompt_share` of the context is the prompt.
    """

    prefill_utilization: float = 0.5
    host_time_s: float = 10e-6
    residual_bits: int = 16
    logit_bits: int = 16
    route: str = "direct"
    prompt_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.prefill_utilization <= 1:
            raise ElkError(f"a prefill utilisation of {self.prefill_utilization} is not in (0, 1]")
        if self.host_time_s < 0:
            raise ElkError(f"a host time of {self.host_time_s} s is negative")
        if not 0 < self.prompt_share < 1:
            raise ElkError(f"a prompt share of {self.prompt_share} is not between 0 and 1")
        if self.route not in ("direct", "host"):
            raise ElkError(f"unknown route {self.route!r}", hint="use direct or host")


def card_of(chip: Chip) -> NorthPole:
    """The NorthPole section of a chip. Raises ChipError when it has none."""
    if chip.northpole is None:
        raise ChipError(
            f"chip '{chip.name}' is no NorthPole machine: it has no [northpole] section",
            hint="use northpole-16, northpole, or a file that extends one of them",
        )
    return chip.northpole


@dataclass(frozen=True)
class Cost:
    """Seconds of a block (or stage) for one micro-batch and token, and how they grow.

    `weight_s` reads weights, `product_s` multiplies; the two overlap, so they cost the larger, task
    by task, which is `matrix_s`. The `kv_…` are for each position of the context. `phases` are not
    seconds yet. `exchange_s` joins partial results of cards that share a block.
    """

    weight_s: float = 0.0
    product_s: float = 0.0
    matrix_s: float = 0.0
    vector_s: float = 0.0
    activation_s: float = 0.0
    kv_read_s: float = 0.0
    kv_product_s: float = 0.0
    kv_matrix_s: float = 0.0
    kv_vector_s: float = 0.0
    exchange_s: float = 0.0
    phases: int = 0

    def __add__(self, other: Cost) -> Cost:
        mine, theirs = vars(self), vars(other)
        return Cost(**{name: mine[name] + theirs[name] for name in mine})

    @property
    def fixed_s(self) -> float:
        """What does not depend on the context, without phases."""
        return self.matrix_s + self.vector_s + self.activation_s + self.exchange_s

    @property
    def per_position_s(self) -> float:
        """What each position of the context adds."""
        return self.kv_matrix_s + self.kv_vector_s

    def roofline_s(self, context: float) -> float:
        """Seconds without any overhead; reading and multiplying overlap."""
        return self.fixed_s + self.per_position_s * context

    def serial_s(self, context: float) -> float:
        """The same if reading and multiplying did not overlap."""
        kv = self.kv_read_s + self.kv_product_s + self.kv_vector_s
        rest = self.vector_s + self.activation_s + self.exchange_s
        return self.weight_s + self.product_s + rest + kv * context

    def seconds(self, context: float, phase_overhead_s: float) -> float:
        """Seconds with the overhead of every phase."""
        return self.roofline_s(context) + self.phases * phase_overhead_s


@dataclass(frozen=True)
class Rates:
    """A card's speeds: multiply-adds per second, bytes and operations per second."""

    chip: Chip
    card: NorthPole

    @classmethod
    def of(cls, chip: Chip) -> Rates:
        """The speeds of one card of `chip`. Raises ChipError if it is no NorthPole machine."""
        return cls(chip, card_of(chip))

    def macs_per_s(self, bits: int) -> float:
        """Peak of all cores. Raises ChipError for a type they cannot multiply."""
        per_cycle = self.chip.macs_per_cycle(f"int{bits}")
        if not per_cycle:
            raise ChipError(f"the cores of '{self.chip.name}' cannot multiply int{bits}")
        return per_cycle * self.chip.cores_per_chip * self.chip.clock_hz

    @property
    def bytes_per_s(self) -> float:
        """All cores reading their own memory."""
        return self.chip.local_sram_bytes_per_s * self.chip.cores_per_chip

    @property
    def vector_ops_per_s(self) -> float:
        """fp16 operations of all vector units."""
        lanes = self.card.vector_slices * self.card.vector_ways
        return lanes * self.chip.cores_per_chip * self.chip.clock_hz

    @property
    def functions_per_s(self) -> float:
        """Activation functions of all cores."""
        return self.card.activation_slices * self.chip.cores_per_chip * self.chip.clock_hz

    def send_s(self, size: float, route: str = "direct", ways: int = 1) -> float:
        """Seconds that `size` bytes occupy the link (or `ways` links at once)."""
        rate = self.card.pcie_bytes_per_s * ways
        if route == "host":
            rate = min(rate, self.card.host_bytes_per_s) / 2
        return size / rate

    def latency_s(self, route: str = "direct") -> float:
        """From a card to the next."""
        return self.card.pcie_latency_s * (2 if route == "host" else 1)


def _imbalance(task: Task, ways: int, context: int, cores: int) -> float:
    """Time of the fullest core over the mean: 1 when the cut is even."""
    rows, cols = placement(task, ways, context, cores)
    if task.matrix is not None:
        k, n = task.matrix[0], ceil_div(task.matrix[1], ways)
        return ceil_div(k, rows) * ceil_div(n, cols) * cores / (k * n)
    if task.kv_elements and context:
        heads = ceil_div(task.heads, ways)
        return ceil_div(heads, rows) * ceil_div(context, cols) * cores / (heads * context)
    return 1.0


def task_cost(
    task: Task,
    rates: Rates,
    precision: Precision,
    *,
    head: bool,
    ways: int,
    rows: float,
    context: int,
) -> Cost:
    """Cost of `task` on one of `ways` cards for `rows` rows (users × tokens at once).

    `context` is the capacity of the caches, by which they are placed.
    """
    if task.unit is Unit.HOST:
        return Cost()
    skew = _imbalance(task, ways, context, rates.chip.cores_per_chip)
    bits = precision.head_bits if head else precision.product_bits
    weight_bits = precision.head_bits if head else precision.weight_bits
    weight_s = skew * task.weight_elements * weight_bits / 8 / ways / rates.bytes_per_s
    product_s = skew * task.macs * rows / ways / rates.macs_per_s(bits)
    kv_bytes = task.kv_elements * precision.kv_bits / 8
    kv_read_s = skew * kv_bytes * rows / ways / rates.bytes_per_s
    kv_product_s = skew * task.kv_macs * rows / ways / rates.macs_per_s(precision.attention_bits)
    # Norms work on the whole residual on every card that shares a block; the rest is divided.
    share = 1 if task.kind == "normalize" else ways
    return Cost(
        weight_s,
        product_s,
        max(weight_s, product_s),
        task.vector_ops * rows / share / rates.vector_ops_per_s,
        task.activation_ops * rows / share / rates.functions_per_s,
        kv_read_s,
        kv_product_s,
        max(kv_read_s, kv_product_s),
        skew * task.kv_vector_ops * rows / share / rates.vector_ops_per_s,
    )


def block_cost(
    block: Block,
    rates: Rates,
    precision: Precision,
    assumptions: Assumptions,
    *,
    head: bool,
    ways: int,
    rows: float,
    context: int,
) -> Cost:
    """Cost of a block for `rows` rows. Cards that share it sum their parts once, over PCIe, unless
    it is the output layer, whose columns the host puts side by side."""
    total = Cost(phases=block.phases)
    for task in block.tasks:
        total += task_cost(task, rates, precision, head=head, ways=ways, rows=rows, context=context)
    if ways > 1 and not head:
        size = rows * block.out_elements * assumptions.residual_bits / 8
        moved = 2 * size * (ways - 1) / ways  # reduce-scatter, then all-gather
        total += Cost(exchange_s=rates.send_s(moved) + 2 * rates.latency_s())
    return total


def prefill_s(cost: Cost, assumptions: Assumptions, first: int, tokens: int) -> float:
    """Seconds of `tokens` prompt tokens after `first`, from the cost of one token.

    Weights are reused by every token, so products count at the assumed share of the peak; each
    token attends to all before it. Phases are not included.
    """
    positions = tokens * first + tokens * (tokens + 1) / 2
    products = cost.product_s * tokens + cost.kv_product_s * positions
    vector = (cost.vector_s + cost.activation_s) * tokens + cost.kv_vector_s * positions
    exchange = cost.exchange_s * tokens
    return max(products / assumptions.prefill_utilization, cost.weight_s) + vector + exchange


def with_overhead(chip: Chip, phase_overhead_s: float) -> Chip:
    """The chip with another overhead of a phase."""
    return replace(chip, northpole=replace(card_of(chip), phase_overhead_s=phase_overhead_s))


def total_cost(costs: Sequence[Cost]) -> Cost:
    """The sum."""
    result = Cost()
    for cost in costs:
        result += cost
    return result
