"""Which layers on which cards, how many users, in how many micro-batches, and what limits them.

Layers are packed on cards so that the slowest stage is as fast as the cards allow; a layer that no
card holds is cut at its block borders, a block that no card holds is shared by several cards
(tensor parallelism), and so is the output layer, which has cards of its own. Every card must hold
its weights and the KV caches of all users; so must every core.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elk_ir.chips import Chip
from elk_ir.errors import CapacityError, ElkError
from elk_ir.northpole.bytes import FP16_BYTES, NOTHING, Resident, block_resident, ceil_div
from elk_ir.northpole.network import Block, Network, Precision
from elk_ir.northpole.timing import Assumptions, Cost, Rates, block_cost, card_of, total_cost


@dataclass(frozen=True)
class Stage:
    """Blocks that run one after another on the same `cards`; `resident` is for each of them."""

    name: str
    cards: tuple[int, ...]
    blocks: tuple[Block, ...]
    head: bool
    resident: Resident

    @property
    def phases(self) -> int:
        """Dependent phases of a token."""
        return sum(b.phases for b in self.blocks)


@dataclass(frozen=True)
class Mapping:
    """A network on cards. `users_by_memory` fit; `mini_batch` of them run, in `micro_batches`.

    `limit` says what decided; `table` has the mini-batch for neighbouring numbers of micro-batches.
    Bytes are for each card.
    """

    network: Network
    chip: Chip
    precision: Precision
    assumptions: Assumptions
    stages: tuple[Stage, ...]
    context: int
    users_by_memory: int
    mini_batch: int
    micro_batches: int
    limit: str
    table: tuple[tuple[int, int], ...]

    @property
    def micro_batch(self) -> int:
        """Users of a micro-batch (the largest one)."""
        return ceil_div(self.mini_batch, self.micro_batches)

    @property
    def cards(self) -> int:
        """Cards in use."""
        return sum(len(s.cards) for s in self.stages)

    @property
    def layer_stages(self) -> tuple[Stage, ...]:
        """All but the output layer's."""
        return tuple(s for s in self.stages if not s.head)

    def card_bytes(self, stage: Stage) -> int:
        """Bytes that live on each card of `stage`."""
        return stage.resident.fixed_bytes + self.mini_batch * stage.resident.kv_bytes_per_user

    def core_bytes(self, stage: Stage) -> int:
        """Bytes that live on the fullest core of `stage`."""
        per_user = stage.resident.core_kv_bytes_per_user
        return stage.resident.core_fixed_bytes + self.mini_batch * per_user

    def cost(self, stage: Stage) -> Cost:
        """Cost of the stage for one micro-batch and token."""
        return _stage_cost(self, stage, self.micro_batch)

    def framebuffer_bytes(self, stage: Stage) -> int:
        """Inputs and outputs of a micro-batch, two of each (one moves while the other is used)."""
        return self.micro_batch * user_framebuffer_bytes(stage, self.assumptions)


def user_framebuffer_bytes(stage: Stage, assumptions: Assumptions) -> int:
    """What one user of a micro-batch takes of a card's framebuffer, two of each."""
    first, last = stage.blocks[0], stage.blocks[-1]
    out_bits = assumptions.logit_bits if stage.head else assumptions.residual_bits
    size = first.in_elements * assumptions.residual_bits
    size += ceil_div(last.out_elements, len(stage.cards) if stage.head else 1) * out_bits
    return 2 * ceil_div(size, 8)


def _stage_cost(mapping: Mapping, stage: Stage, rows: float) -> Cost:
    rates = Rates.of(mapping.chip)
    return total_cost(
        [
            block_cost(
                block,
                rates,
                mapping.precision,
                mapping.assumptions,
                head=block is mapping.network.head,
                ways=len(stage.cards),
                rows=rows,
                context=mapping.context,
            )
            for block in stage.blocks
        ]
    )


@dataclass(frozen=True)
class _Unit:
    """What is packed: blocks that stay together on `ways` cards."""

    name: str
    blocks: tuple[Block, ...]
    ways: int
    resident: Resident
    seconds: float


@dataclass(frozen=True)
class _Problem:
    network: Network
    chip: Chip
    precision: Precision
    assumptions: Assumptions
    context: int
    cards: int
    users: int
    spread: bool

    @property
    def card_capacity(self) -> int:
        return self.chip.usable_sram_per_core_bytes * self.chip.cores_per_chip

    def resident(self, blocks: Sequence[Block], ways: int, head: bool = False) -> Resident:
        total = NOTHING
        for block in blocks:
            total += block_resident(
                block,
                self.precision,
                head=head,
                ways=ways,
                context=self.context,
                cores=self.chip.cores_per_chip,
            )
        return total

    def fits(self, resident: Resident, users: int) -> bool:
        on_card = resident.fixed_bytes + users * resident.kv_bytes_per_user
        on_core = resident.core_fixed_bytes + users * resident.core_kv_bytes_per_user
        return on_card <= self.card_capacity and on_core <= self.chip.usable_sram_per_core_bytes

    def users_that_fit(self, resident: Resident) -> int | None:
        """None: any number, as nothing is kept for a user."""
        if not resident.kv_bytes_per_user:
            return None
        card = (self.card_capacity - resident.fixed_bytes) // resident.kv_bytes_per_user
        spare = self.chip.usable_sram_per_core_bytes - resident.core_fixed_bytes
        return max(0, min(card, spare // resident.core_kv_bytes_per_user))

    def unit(self, name: str, blocks: tuple[Block, ...], ways: int) -> _Unit:
        rates = Rates.of(self.chip)
        cost = total_cost(
            [
                block_cost(
                    b,
                    rates,
                    self.precision,
                    self.assumptions,
                    head=False,
                    ways=ways,
                    rows=1,
                    context=self.context,
                )
                for b in blocks
            ]
        )
        seconds = cost.seconds(self.context, card_of(self.chip).phase_overhead_s)
        return _Unit(name, blocks, ways, self.resident(blocks, ways), seconds)


def map_network(
    network: Network,
    chip: Chip,
    precision: Precision,
    *,
    context: int | None = None,
    cards: int | None = None,
    users: int | None = None,
    assumptions: Assumptions | None = None,
) -> Mapping:
    """Map `network` on `cards` of `chip` (all), with caches of `context` positions (the graph's).

    `users` asks for a mini-batch; without it the largest one under the rule *as many micro-batches
    as layer stages, all full*. With caches, or `cards` given, layers spread over all cards; a graph
    without state otherwise takes the fewest that hold it. Raises CapacityError or ElkError, with
    numbers, when it does not fit.
    """
    assumptions = assumptions or Assumptions()
    card_of(chip)
    context = network.context if context is None else context
    spread = bool(context) or cards is not None
    cards = chip.cards if cards is None else cards
    if context < 0 or cards < 1 or (users is not None and users < 1):
        raise ElkError(f"{context} positions, {cards} cards and {users} users do not make sense")
    problem = _Problem(network, chip, precision, assumptions, context, cards, users or 1, spread)
    try:
        stages = _solve(problem)
    except ElkError as error:
        if users in (None, 1):
            raise
        # If one user fits, the users are too many rather than the cards too few.
        stages = _solve(replace(problem, users=1))
        by_memory = _users_by_memory(problem, stages)
        raise _too_many_users(problem, stages, users or 1, by_memory) from error
    by_memory = _users_by_memory(problem, stages)
    if users is not None and users > by_memory:
        raise _too_many_users(problem, stages, users, by_memory)
    layers = sum(not s.head for s in stages)
    if users is None:
        # Of thousands of users of a tiny model a few stay out: constants are counted as spread
        # evenly, and where they are on several cores the last bytes would be missing.
        taken = by_memory - by_memory // 1000
        micro_batches = min(layers, taken)
        micro_batch = min(taken // micro_batches, _framebuffer_users(chip, assumptions, stages))
        mini_batch = max(1, micro_batch) * micro_batches
    else:
        mini_batch = users
        micro_batches = ceil_div(users, ceil_div(users, layers))
    mapping = Mapping(
        network,
        chip,
        precision,
        assumptions,
        stages,
        context,
        by_memory,
        mini_batch,
        micro_batches,
        _limit(problem, stages, by_memory, mini_batch, micro_batches, users),
        micro_batch_table(by_memory, layers),
    )
    _check_framebuffer(mapping)
    return mapping


def micro_batch_table(users: int, layer_stages: int) -> tuple[tuple[int, int], ...]:
    """(micro-batches, mini-batch of whole ones) around the number of layer stages."""
    around = range(max(1, layer_stages - 2), layer_stages + 3)
    return tuple((m, users // m * m) for m in around)


def _solve(problem: _Problem) -> tuple[Stage, ...]:
    """The stages that hold `problem.users` users."""
    head_ways = _head_ways(problem)
    units = list(_units(problem, problem.cards - head_ways))
    return _stages(problem, units, head_ways)


def _head_ways(problem: _Problem) -> int:
    """Cards of the output layer; 0 when the graph has none or it shares the only card."""
    head = problem.network.head
    if head is None or problem.cards == 1:
        return 0
    for ways in range(1, problem.cards):
        if problem.fits(problem.resident([head], ways, head=True), 0):
            return ways
    resident = problem.resident([head], problem.cards, head=True)
    raise _does_not_fit(problem, head.name, resident, problem.cards)


def _units(problem: _Problem, cards: int) -> Iterator[_Unit]:
    """Layers, or their blocks where a layer is too large, or blocks shared by cards."""
    for layer in problem.network.layers:
        whole = problem.unit(layer.name, layer.blocks, 1)
        if problem.fits(whole.resident, problem.users):
            yield whole
            continue
        for block in layer.blocks:
            yield _shared(problem, block, cards)


def _shared(problem: _Problem, block: Block, cards: int) -> _Unit:
    """The block on as few cards as hold it."""
    for ways in range(1, max(2, cards + 1)):
        resident = problem.resident([block], ways)
        if problem.fits(resident, problem.users):
            return problem.unit(block.name, (block,), ways)
    ways = max(1, cards)
    raise _does_not_fit(problem, block.name, problem.resident([block], ways), ways)


def _does_not_fit(problem: _Problem, name: str, resident: Resident, ways: int) -> CapacityError:
    users = problem.users if resident.kv_bytes_per_user else 0
    kv = users * resident.kv_bytes_per_user
    core = resident.core_fixed_bytes + users * resident.core_kv_bytes_per_user
    shared = "one card" if ways == 1 else f"each of {ways} cards"
    return CapacityError(
        name,
        needed_bytes=max(core, ceil_div(resident.fixed_bytes + kv, problem.chip.cores_per_chip)),
        available_bytes=problem.chip.usable_sram_per_core_bytes,
        largest=(
            (f"weights on {shared}", resident.weight_bytes),
            (f"KV of users × positions = {users} × {problem.context} on {shared}", kv),
            (f"scales and steps on {shared}", resident.constant_bytes),
        ),
        hint="fewer bits (w4a4, w2a2), a shorter context, or more cards",
    )


def _pack(problem: _Problem, units: Sequence[_Unit], bound_s: float) -> list[list[_Unit]]:
    """Greedy: fill a stage until the bound or the memory is exceeded."""
    stages: list[list[_Unit]] = []
    for unit in units:
        if stages and stages[-1][0].ways == unit.ways:
            together = [*stages[-1], unit]
            resident = sum((u.resident for u in together), NOTHING)
            if sum(u.seconds for u in together) <= bound_s * (1 + 1e-9) and problem.fits(
                resident, problem.users
            ):
                stages[-1] = together
                continue
        stages.append([unit])
    return stages


def _cards_of(packed: Sequence[Sequence[_Unit]]) -> int:
    return sum(stage[0].ways for stage in packed)


def _stages(problem: _Problem, units: Sequence[_Unit], head_ways: int) -> tuple[Stage, ...]:
    """Units on stages: the fastest slowest stage, and of those the fewest cards. A graph without
    state takes as few cards as hold it unless a number of cards was asked for."""
    network, cards = problem.network, problem.cards - head_ways
    everything = sum(u.seconds for u in units)
    fewest = _pack(problem, units, everything)
    if _cards_of(fewest) > cards:
        needed = _cards_of(fewest) + head_ways
        weights = sum(u.resident.weight_bytes * u.ways for u in units)
        raise ElkError(
            f"{network.name} needs at least {needed} cards, {problem.cards} are there"
            f" ({needed - problem.cards} too few)",
            details=(
                f"{len(network.layers)} layers have {weights:,} bytes of weights"
                f" ({problem.precision.name}), one user's KV"
                f" {sum(u.resident.kv_bytes_per_user * u.ways for u in units):,} bytes",
                f"a card holds {problem.card_capacity:,} bytes; the output layer takes"
                f" {head_ways} cards of its own",
            ),
            hint="fewer bits (w4a4, w2a2), a shorter context, or more cards",
        )
    packed = fewest
    if problem.spread:
        sums = {0.0}
        for i in range(len(units)):
            total = 0.0
            for unit in units[i:]:
                total += unit.seconds
                sums.add(total)
        bounds = sorted(sums)
        found = bisect_left(
            bounds, True, key=lambda b: _cards_of(_pack(problem, units, b)) <= cards
        )
        packed = _pack(problem, units, bounds[found])
    stages: list[Stage] = []
    card = 0
    for group in packed:
        blocks = tuple(b for u in group for b in u.blocks)
        name = group[0].name if len(group) == 1 else f"{group[0].name} … {group[-1].name}"
        ways = group[0].ways
        resident = sum((u.resident for u in group), NOTHING)
        stages.append(Stage(name, tuple(range(card, card + ways)), blocks, False, resident))
        card += ways
    if network.head is not None and head_ways:
        resident = problem.resident([network.head], head_ways, head=True)
        own = tuple(range(card, card + head_ways))
        stages.append(Stage("output layer", own, (network.head,), True, resident))
    elif network.head is not None:
        return _one_card(problem, stages)
    return tuple(stages)


def _one_card(problem: _Problem, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The only card holds the layers and the output layer, one after another."""
    head = problem.network.head
    assert head is not None
    extra = problem.resident([head], 1, head=True)
    together = sum((s.resident for s in stages), NOTHING) + extra
    if not problem.fits(together, problem.users):
        raise _does_not_fit(problem, f"{problem.network.name} with its output layer", together, 1)
    blocks = tuple(b for s in stages for b in s.blocks)
    return (Stage("all layers", (0,), (*blocks, head), False, together),)


def _users_by_memory(problem: _Problem, stages: Sequence[Stage]) -> int:
    """Users whose caches fit everywhere; for a graph without state, the samples that the
    framebuffer and the cores hold."""
    counts = [n for s in stages if (n := problem.users_that_fit(s.resident)) is not None]
    if counts and problem.context:
        return min(counts)
    width = max(s.blocks[0].in_elements + s.blocks[-1].out_elements for s in stages)
    size = 2 * ceil_div(width * problem.assumptions.residual_bits, 8)
    available = card_of(problem.chip).framebuffer_bytes
    if size > available:
        raise ElkError(
            f"inputs and outputs of one sample need {size:,} bytes, the framebuffer has"
            f" {available:,} ({size - available:,} too many)"
        )
    return min(available // size, min(_samples_in_cores(problem, s) for s in stages))


def _samples_in_cores(problem: _Problem, stage: Stage) -> int:
    """Samples whose values fit beside the weights while the largest operator of the stage runs, its
    inputs and outputs in fp16. Raises CapacityError when not even one does."""
    size, task = max(
        (ceil_div(t.working_elements, len(stage.cards)) * FP16_BYTES, t.name)
        for b in stage.blocks
        for t in b.tasks
    )
    spare = problem.card_capacity - stage.resident.fixed_bytes
    if size > spare:
        raise CapacityError(
            task,
            needed_bytes=ceil_div(stage.resident.fixed_bytes + size, problem.chip.cores_per_chip),
            available_bytes=problem.chip.usable_sram_per_core_bytes,
            largest=(
                ("weights, scales and steps on the card", stage.resident.fixed_bytes),
                ("inputs and outputs of one sample", size),
            ),
            hint="more cards, or a smaller input",
        )
    return spare // max(1, size)


def _fullest(problem: _Problem, stages: Sequence[Stage]) -> tuple[Stage, int]:
    """The stage that admits the fewest users, and how many."""
    counted = [(problem.users_that_fit(s.resident), s) for s in stages]
    users, stage = min(((n, s) for n, s in counted if n is not None), key=lambda pair: pair[0])
    return stage, users


def _too_many_users(
    problem: _Problem, stages: Sequence[Stage], users: int, by_memory: int
) -> ElkError:
    if not problem.context or not any(s.resident.kv_bytes_per_user for s in stages):
        return ElkError(f"{users} samples at once: framebuffer and cores hold {by_memory}")
    stage, _ = _fullest(problem, stages)
    resident = stage.resident
    kv = resident.kv_bytes_per_user * users
    needed = resident.fixed_bytes + kv
    return ElkError(
        f"{users} users × {problem.context} positions need {needed:,} bytes on a card of"
        f" '{stage.name}', which has {problem.card_capacity:,}"
        f" ({max(0, needed - problem.card_capacity):,} too many): {by_memory} fit",
        details=(
            f"{resident.fixed_bytes:,} bytes are weights, scales and steps",
            f"{resident.kv_bytes_per_user:,} bytes are one user's KV",
        ),
        hint="fewer users, a shorter context, or fewer bits for the KV cache",
    )


def _limit(
    problem: _Problem,
    stages: Sequence[Stage],
    by_memory: int,
    mini_batch: int,
    micro_batches: int,
    asked: int | None,
) -> str:
    layers = sum(not s.head for s in stages)
    if not problem.context or not any(s.resident.kv_bytes_per_user for s in stages):
        return f"framebuffer and cores: {by_memory} samples; nothing is kept between samples"
    stage, _ = _fullest(problem, stages)
    resident = stage.resident
    spare = problem.card_capacity - resident.fixed_bytes
    memory = (
        f"KV memory of '{stage.name}': {spare:,} bytes beside {resident.fixed_bytes:,} of weights,"
        f" {resident.kv_bytes_per_user:,} a user at context {problem.context}: {by_memory} users"
    )
    if asked is not None:
        return f"{memory}; {asked} asked for"
    if by_memory < layers:
        return f"{memory}, fewer than the {layers} stages: the pipeline cannot be filled"
    left = by_memory - mini_batch
    if by_memory // micro_batches > mini_batch // micro_batches:
        return (
            f"{memory}; framebuffers hold micro-batches of {mini_batch // micro_batches}, so"
            f" {micro_batches} of them (one a layer stage) take {mini_batch}"
        )
    rule = f"{micro_batches} micro-batches (one a layer stage) of {mini_batch // micro_batches}"
    return f"{memory}; the rule of {rule} takes {mini_batch} and leaves room for {left}"


def _framebuffer_users(chip: Chip, assumptions: Assumptions, stages: Sequence[Stage]) -> int:
    """The largest micro-batch that every framebuffer holds."""
    return card_of(chip).framebuffer_bytes // max(
        user_framebuffer_bytes(s, assumptions) for s in stages
    )


def _check_framebuffer(mapping: Mapping) -> None:
    available = card_of(mapping.chip).framebuffer_bytes
    for stage in mapping.stages:
        needed = mapping.framebuffer_bytes(stage)
        if needed > available:
            raise ElkError(
                f"stage '{stage.name}': inputs and outputs of a micro-batch of"
                f" {mapping.micro_batch} need {needed:,} bytes, the framebuffer has {available:,}"
                f" ({needed - available:,} too many)",
                hint="more micro-batches",
            )
