"""The cores of a stage's cards: values in pieces, moves between pieces, one operator at a time.

A `Spread` value has one block for each core, and a core computes from its own blocks only: what it
needs of others is moved, element by element, as the layouts of producer and consumer say, over the
networks of the card or over PCIe to another card. A misplaced weight or a wrong move therefore
changes the numbers. Elements that nothing was moved to are poison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from elk_ir.dialects import northpole
from elk_ir.northpole.place import where
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.numerics.kernels import KERNELS
from elk_ir.numerics.tiles import Tile, image_mask
from elk_ir.plan.domain import Access, AxisExpr, Operator, Phase
from elk_ir.plan.layout import Layout, replicated
from elk_ir.plan.moves import moves
from elk_ir.plan.sharding import Sharding
from elk_ir.targets.northpole.memory import bits_of, shard


@dataclass(frozen=True)
class Place:
    """Where the numbers of a plan are: card of the stage and core of the card, (cores,) each.
    `everywhere`: every card of the stage has the same."""

    card: tuple[int, ...]
    core: tuple[int, ...]
    everywhere: bool


FRAMEBUFFER = Place((0,), (-1,), True)
"""The buffer of each card, from which every core can be reached."""


@dataclass(frozen=True)
class Spread:
    """A tensor in blocks: `data` (cores, block…), in `layout`, at `place`."""

    data: np.ndarray
    layout: Layout
    place: Place


@dataclass
class Traffic:
    """Bytes that moved: between a card's cores (`activation_bytes` operands, `partial_bytes`
    partial results), between framebuffers and cores, and between cards of one stage."""

    activation_bytes: int = 0
    partial_bytes: int = 0
    framebuffer_bytes: int = 0
    card_bytes: int = 0


@lru_cache(maxsize=1024)
def whole_layout(shape: tuple[int, ...]) -> Layout:
    """A tensor in one piece."""
    return replicated(shape)


def buffered(array: np.ndarray) -> Spread:
    """A whole tensor in the framebuffer of every card of a stage."""
    return Spread(array[None], whole_layout(array.shape), FRAMEBUFFER)


def poison(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of what no operator should read: NaN, or the largest integer."""
    if is_float(dtype.name):
        return np.full(shape, np.nan, dtype=np.float32).astype(dtype)
    if dtype.kind == "b":
        return np.ones(shape, dtype=dtype)
    if dtype.kind in "iu":
        return np.full(shape, np.iinfo(dtype).max, dtype=dtype)
    return np.full(shape, 7 if dtype.name == "int4" else 1, dtype=np.int8).astype(dtype)


@dataclass(frozen=True)
class Route:
    """A move that was worked out once: where each element comes from and goes to, and the elements
    that cross between cores, between framebuffer and cores, and between cards. It keeps what it was
    made for, so that the identity of that stays its own."""

    kept: tuple[object, ...]
    source: tuple[np.ndarray, np.ndarray]
    target: tuple[np.ndarray, np.ndarray]
    between_cores: int
    framebuffer: int
    between_cards: int


_ROUTES: dict[tuple[int, ...], Route] = {}
_MOST_ROUTES = 20_000


def _route(
    source: Spread, target: Layout, place: Place, ways: int, axis: int | None, start: int
) -> Route:
    # By identity: hashing layouts costs more than a small move.
    objects = (source.layout, source.place, target, place)
    key = (*map(id, objects), ways, -1 if axis is None else axis, start)
    found = _ROUTES.get(key)
    if found is None:
        a, b, c, d = moves(source.layout, target, axis, start).flat()
        counts = _crossing(source.place, place, ways, a, c)
        if len(_ROUTES) >= _MOST_ROUTES:
            _ROUTES.clear()
        found = _ROUTES[key] = Route(objects, (a, b), (c, d), *counts)
    return found


def move(
    source: Spread,
    target: Layout,
    place: Place,
    ways: int,
    traffic: Traffic,
    *,
    into: np.ndarray | None = None,
    axis: int | None = None,
    start: int = 0,
    partial: bool = False,
) -> np.ndarray:
    """The blocks of `target` at `place`, filled from those of `source`: (cores, block…).

    With `axis` the source is the part of the target that begins at `start` along it, and the rest
    of `into` stays. Counts what crosses.
    """
    if source.layout is target and source.place is place and into is None and axis is None:
        return source.data
    data = into
    if data is None:
        data = poison((target.cores, *target.block_shape), source.data.dtype)
    route = _route(source, target, place, ways, axis, start)
    pieces = source.data.reshape(source.layout.cores, -1)
    data.reshape(target.cores, -1)[route.target] = pieces[route.source]
    bits = bits_of(source.data.dtype.name)
    traffic.framebuffer_bytes += route.framebuffer * bits // 8
    traffic.card_bytes += route.between_cards * bits // 8
    if partial:
        traffic.partial_bytes += route.between_cores * bits // 8
    else:
        traffic.activation_bytes += route.between_cores * bits // 8
    return data


def _crossing(
    source: Place, target: Place, ways: int, a: np.ndarray, c: np.ndarray
) -> tuple[int, int, int]:
    """Elements that cross between cores of a card, between framebuffers and cores, and between
    cards, when core numbers `a` of a place send one each to `c` of another."""
    buffer = FRAMEBUFFER in (source, target)
    everywhere = source.everywhere and target.everywhere
    framebuffer = a.size * (ways if everywhere else 1) if buffer else 0
    from_card, from_core = np.asarray(source.card)[a], np.asarray(source.core)[a]
    to_card, to_core = np.asarray(target.card)[c], np.asarray(target.core)[c]
    cores = cards = 0
    # What is wanted everywhere is wanted once a card; what is everywhere is taken from the own one.
    for w in range(ways) if target.everywhere else (None,):
        here = to_card if w is None else np.full_like(to_card, w)
        away = np.zeros(here.shape, dtype=bool) if source.everywhere else from_card != here
        cards += int(away.sum())
        cores += 0 if buffer else int((~away & (from_core != to_core)).sum())
    return cores, framebuffer, cards


class Core:
    """An operator on all cores that have a part of it; what depends on its plan is derived once."""

    def __init__(self, op: northpole.ExecuteOp, ways: int) -> None:
        self.ways = ways
        self.s: Sharding = shard(op)
        self.operator: Operator = self.s.op
        self.kernel = KERNELS[self.operator.kind]
        card, core = where(self.s, ways, op.divided)
        self.place = Place(
            tuple(int(x) for x in card), tuple(int(x) for x in core), op.divided is None
        )
        rows = range(len(self.operator.stats))
        self.inputs = [self.s.execute_layout(v) for v in range(len(self.operator.operands))]
        self.partials = [self.s.stat_layout(i) for i in rows]
        self.gathered = [self.s.gathered_layout(i) for i in rows]
        self.results = [self.s.result_layout(i) for i in range(len(self.operator.results))]
        self.local_tile = _tile(self.operator, self.s.iteration_layout())
        self.apply_tile = _tile(self.operator, self.s.apply_layout())
        self.masks: dict[tuple[str, int, bool], np.ndarray | None] = {}

    def run(self, ins: Sequence[Spread], traffic: Traffic, hidden: int = 0) -> list[Spread]:
        """Results from operands; entries below `hidden` of a cache are not filled."""
        operator = self.operator
        held = [move(x, self.inputs[v], self.place, self.ways, traffic) for v, x in enumerate(ins)]
        stats: list[np.ndarray] = []
        with np.errstate(all="ignore"):
            if operator.stats:
                tile = replace(self.local_tile, hidden=hidden)
                blocks = self.blocks(held, tile, Phase.APPLY, last=False)
                stats = self.merge(self.kernel.local(tile, blocks), traffic)
            tile = replace(self.apply_tile, hidden=hidden)
            skipped = Phase.LOCAL if operator.stats else None
            results = self.kernel.apply(tile, stats, self.blocks(held, tile, skipped, last=True))
        return [Spread(data, self.results[i], self.place) for i, data in enumerate(results)]

    def blocks(
        self, held: Sequence[np.ndarray], tile: Tile, skipped: Phase | None, *, last: bool
    ) -> list[np.ndarray]:
        """Operand blocks with neutral values where the tile has no points."""
        found: list[np.ndarray] = []
        for v, access in enumerate(self.operator.operands):
            if access.phase is skipped:
                found.append(np.zeros(0))
                continue
            mask = self.mask(("in", v, last), tile, access)
            found.append(held[v] if mask is None else _filled(held[v], mask, access.neutral))
        return found

    def mask(self, key: tuple[str, int, bool], tile: Tile, access: Access) -> np.ndarray | None:
        if key not in self.masks:
            self.masks[key] = image_mask(tile, access)
        return self.masks[key]

    def merge(self, partial: list[np.ndarray], traffic: Traffic) -> list[np.ndarray]:
        """Partial results over the network to the cores that finish them, and their sum there, in
        the order of the parts."""
        s, operator = self.s, self.operator
        if s.ways == 1:
            return partial
        gathered: list[np.ndarray] = []
        for i, (stat, value) in enumerate(zip(operator.stats, partial, strict=True)):
            source = Spread(value[:, None], self.partials[i], self.place)
            data = move(source, self.gathered[i], self.place, self.ways, traffic, partial=True)
            access = Access(
                tuple(operator.extents[d] for d in stat.dims),
                stat.dtype,
                tuple(AxisExpr(((d, 1),)) for d in stat.dims),
            )
            mask = self.mask(("stat", i, True), self.apply_tile, access)
            gathered.append(data if mask is None else _filled(data, mask[:, None], stat.neutral))
        merged = [g[:, 0] for g in gathered]
        for r in range(1, s.ways):
            merged = self.kernel.combine(operator, merged, [g[:, r] for g in gathered])
        return merged


_CORES: WeakKeyDictionary[northpole.ExecuteOp, Core] = WeakKeyDictionary()


def core_of(op: northpole.ExecuteOp, ways: int) -> Core:
    """The operator on the cores of its block's `ways` cards; one for all layers and appliances."""
    found = _CORES.get(op)
    if found is None or found.ways != ways:
        found = _CORES[op] = Core(op, ways)
    return found


def _filled(block: np.ndarray, mask: np.ndarray, neutral: float | None) -> np.ndarray:
    value = np.asarray(0 if neutral is None else neutral).astype(block.dtype)
    return np.where(mask, block, value)


def _tile(operator: Operator, layout: Layout) -> Tile:
    at = (slice(None), *[0] * len(layout.slots))
    origin, bounds = layout.origins[at], layout.bounds[at]
    valid = np.where(bounds[..., 1] > bounds[..., 0], bounds[..., 1] - origin, 0)
    return Tile(operator, layout.block_shape, origin, valid)


def zeros(layout: Layout, dtype: str) -> np.ndarray:
    """An empty cache in `layout`."""
    return np.zeros((layout.cores, *layout.block_shape), dtype=dtype_of(dtype))
