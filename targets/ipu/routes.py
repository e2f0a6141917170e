"""Moves between memories that are worked out once: where every word of a target comes from.

A word is what numpy moves at once: 1 to 16 bytes, as many as all addresses of a move allow. Moves
of up to `PREPARED_ELEMENTS` elements are prepared; larger ones, whose index would be twice the size
of their data or more, go box by box (`interpreter`, `transfers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from xdsl.ir import Operation

from elk_ir.plan.layout import Layout
from elk_ir.plan.moves import moves, row_major
from elk_ir.plan.rows import unique_rows
from elk_ir.targets.ipu.machine import WORDS, Sram, Variable, written_word

PREPARED_ELEMENTS = 1 << 18
"""Elements of the largest memory (all cores of a variable, or a tensor) whose moves are kept."""

KEPT_BYTES = 256 << 20
"""Bytes of index that one machine keeps."""


Box = tuple[np.ndarray, tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]


def words(array: np.ndarray, size: int) -> np.ndarray:
    """The bytes of a contiguous array as words of `size` bytes, in one row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).view(WORDS[size])


def widened(index: np.ndarray, item: int, offsets: Sequence[int] = ()) -> tuple[int, np.ndarray]:
    """(bytes of a word, number of the word that each word comes from, -1 for none), from the
    element that each element of a row comes from. `offsets`: further bytes that words divide."""
    rows, elements = index.shape
    for size in sorted(WORDS, reverse=True):
        wide, rest = divmod(size, item)
        if rest or elements % max(wide, 1) or any(o % size for o in offsets):
            continue
        if wide == 1:
            break
        parts = index.reshape(rows, -1, wide)
        first = parts[..., 0]
        run = (parts == first[..., None] + np.arange(wide)).all(-1) & (first % wide == 0)
        none = (parts == -1).all(-1)
        if (run | none).all():
            return size, np.where(none, -1, first // wide)
    return item, index


@lru_cache(maxsize=1024)
def boxes(layout: Layout, limit: tuple[int, int] | None) -> tuple[Box, ...]:
    """The distinct (slots, box) pairs of a layout: the cores that hold it, the slots, the box in
    the tensor, and where it lies in a block. `limit`: (axis, end), nothing is held from `end`."""
    found: list[Box] = []
    for where in product(*(range(n) for n in layout.slots)):
        bounds = layout.bounds[(slice(None), *where)]
        origins = layout.origins[(slice(None), *where)]
        if limit is not None:
            bounds = bounds.copy()
            bounds[:, limit[0], 1] = np.minimum(bounds[:, limit[0], 1], limit[1])
        holders = np.flatnonzero(layout.held[(slice(None), *where)])
        if holders.size == 0:
            continue
        bounds, origins = bounds[holders], origins[holders]
        keys = np.concatenate([bounds.reshape(len(bounds), -1), origins], axis=1)
        unique, which = unique_rows(keys)
        order = holders[np.argsort(which, kind="stable")]
        starts = np.concatenate([[0], np.bincount(which, minlength=len(unique)).cumsum()])
        rank = len(layout.axes)
        for i, key in enumerate(unique):
            box, origin = key[: 2 * rank].reshape(rank, 2), key[2 * rank :]
            if rank and (box[:, 1] <= box[:, 0]).any():
                continue
            source = tuple(slice(int(a), int(b)) for a, b in box)
            target = tuple(
                slice(int(a - o), int(b - o)) for (a, b), o in zip(box, origin, strict=True)
            )
            found.append((order[starts[i] : starts[i + 1]], where, source, target))
    return tuple(found)


@lru_cache(maxsize=1024)
def elements_of(layout: Layout, limit: tuple[int, int] | None = None) -> np.ndarray:
    """(cores, elements): the element of the tensor that lies at each place, -1 for none."""
    rank, lead = len(layout.axes), layout.origins.ndim - 1
    bounds = _limited(layout, limit)
    inside = layout.held.reshape(*layout.held.shape, *[1] * rank)
    element = np.zeros((1,) * (lead + rank), dtype=np.int64)
    for j, (block, stride) in enumerate(
        zip(layout.block_shape, row_major(layout.shape), strict=True)
    ):
        axis = [block if i == j else 1 for i in range(rank)]
        lo, hi, origin = (
            a.reshape(*a.shape, *[1] * rank)
            for a in (bounds[..., j, 0], bounds[..., j, 1], layout.origins[..., j])
        )
        position = origin + np.arange(block).reshape(axis)
        inside = inside & (position >= lo) & (position < hi)
        element = element + position * stride
    found = np.where(inside, element, -1)
    return found.reshape(layout.cores, -1)


def _limited(layout: Layout, limit: tuple[int, int] | None) -> np.ndarray:
    """The bounds of a layout, of which nothing lies behind the limit."""
    if limit is None:
        return layout.bounds
    bounds = layout.bounds.copy()
    bounds[..., limit[0], 1] = np.minimum(bounds[..., limit[0], 1], limit[1])
    return bounds


def _volume(layout: Layout, limit: tuple[int, int] | None) -> int:
    """Elements of the distinct boxes of a tensor that a layout holds."""
    held = _limited(layout, limit)[layout.held]
    if not layout.axes:
        return min(1, len(held))
    distinct, _ = unique_rows(held.reshape(len(held), -1))
    sizes = distinct.reshape(len(distinct), -1, 2)
    return int(np.maximum(sizes[..., 1] - sizes[..., 0], 0).prod(axis=1).sum())


def is_small(*layouts: Layout) -> bool:
    """Whether moves of these layouts are prepared."""
    sizes = [max(a.cores * a.elements, prod(a.shape)) if a.elements else 0 for a in layouts]
    return all(0 < n <= PREPARED_ELEMENTS for n in sizes)


@dataclass(frozen=True)
class Landed:
    """How a tensor of `layout` comes from HBM into a variable: into every place where `sources` has
    a word, or, if there are no gaps, into the whole of `view`."""

    size: int
    view: np.ndarray
    memory: np.ndarray
    sources: np.ndarray
    targets: np.ndarray | None
    shadow: np.ndarray
    pattern: np.ndarray
    complete: bool
    read_bytes: int

    def run(self, tensor: np.ndarray) -> None:
        """Land the tensor, and mark what it covers as written."""
        found = words(tensor, self.size).take(self.sources)
        if self.targets is None:
            self.view[...] = found
        else:
            self.memory[self.targets] = found
        self.shadow[...] = self.pattern  # nothing has been written since the copy began


def landed(sram: Sram, variable: Variable, limit: tuple[int, int] | None) -> Landed | None:
    """The landing of a variable; None where its address is no multiple of its elements' size.
    `complete`: it covers all that the layout holds; `read_bytes`: of the distinct boxes."""
    layout, item = variable.layout, variable.view.dtype.itemsize
    if variable.offset % item:
        return None
    index = elements_of(layout, limit)
    size, source = widened(index, item, (variable.offset, prod(layout.shape) * item))
    held, memory = index >= 0, sram.words(size)
    targets = None
    if not held.all():
        rows, columns = np.nonzero(source >= 0)
        targets = rows * memory.shape[1] + variable.offset // size + columns
        source = source[rows, columns]
    return Landed(
        size,
        sram.block(variable, size),
        memory.reshape(-1),
        source,
        targets,
        variable.flat()[1],
        _pattern(held, item),
        bool((held == (elements_of(layout) >= 0)).all()),
        item * _volume(layout, limit),
    )


@dataclass(frozen=True)
class Stored:
    """How a variable goes to HBM: `data` is the tensor; `needed` what it reads of the variable."""

    memory: np.ndarray
    sources: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    needed: np.ndarray
    written_bytes: int

    def data(self) -> np.ndarray:
        """The tensor."""
        return self.memory.take(self.sources).view(self.dtype).reshape(self.shape)


def stored(sram: Sram, variable: Variable) -> Stored | None:
    """The store of a variable; None where its layout does not hold all of its tensor. Of elements
    that several cores hold, the first one's counts."""
    layout, dtype = variable.layout, variable.view.dtype
    found = np.full(layout.shape, -1)
    needed = np.zeros((layout.cores, *layout.slots, *layout.block_shape), dtype=bool)
    place = np.arange(needed[0].size).reshape(needed.shape[1:])
    stride, first = sram.stride // dtype.itemsize, variable.offset // dtype.itemsize
    if variable.offset % dtype.itemsize:
        return None
    done: set[tuple[int, ...]] = set()
    for cores, where, source, target in boxes(layout, None):
        box = tuple(v for s in source for v in (s.start, s.stop))
        if box not in done:
            done.add(box)
            found[source] = int(cores[0]) * stride + first + place[(*where, *target)]
            needed[(int(cores[0]), *where, *target)] = True
    if (found < 0).any():
        return None
    size, source = widened(found.reshape(1, -1), dtype.itemsize)
    return Stored(
        sram.words(size).reshape(-1),
        source.reshape(-1),
        layout.shape,
        dtype,
        needed.reshape(layout.cores, -1),
        dtype.itemsize * _volume(layout, None),
    )


@dataclass(frozen=True)
class Route:
    """A change of layout on chip: words of all cores' memory, by number, into a variable; `fresh`:
    one of which nothing is written yet."""

    memory: np.ndarray
    view: np.ndarray
    sources: np.ndarray
    targets: np.ndarray | None
    needed: np.ndarray
    shadow: np.ndarray
    pattern: np.ndarray
    fresh: bool
    complete: bool
    exchanged_bytes: int

    def run(self) -> None:
        """Move the words, and mark what they cover as written."""
        found = self.memory.take(self.sources)
        if self.targets is None:
            self.view[...] = found
        else:
            self.memory[self.targets] = found
        if self.fresh:
            self.shadow[...] = self.pattern
        else:
            np.bitwise_or(self.shadow, self.pattern, out=self.shadow)


def route(
    sram: Sram, source: Variable, target: Variable, axis: int | None, start: int
) -> Route | None:
    """The transfers of `moves` between two variables; None where addresses are not multiples of
    the elements' size."""
    item = target.view.dtype.itemsize
    if source.offset % item or target.offset % item or source.view.dtype.itemsize != item:
        return None
    plan = moves(source.layout, target.layout, axis, start)
    s_core, s_element, t_core, t_element = plan.flat()
    stride = sram.stride // item
    index = np.full((target.layout.cores, target.layout.elements), -1)
    index[t_core, t_element] = s_core * stride + source.offset // item + s_element
    needed = np.zeros((source.layout.cores, source.layout.elements), dtype=bool)
    needed[s_core, s_element] = True
    covered = index >= 0
    size, wanted = widened(index, item, (target.offset,))
    memory = sram.words(size)
    targets = None
    rows, columns = np.nonzero(wanted >= 0)
    place = rows * memory.shape[1] + target.offset // size + columns
    if 2 * rows.size < wanted.size:
        targets, wanted = place, wanted[rows, columns]
    else:
        # Words that stay are copied from where they are: cheaper than writing the others singly.
        own = np.arange(target.layout.cores)[:, None] * memory.shape[1] + target.offset // size
        wanted = np.where(wanted >= 0, wanted, own + np.arange(wanted.shape[1]))
    return Route(
        memory.reshape(-1),
        sram.block(target, size),
        wanted,
        targets,
        needed,
        target.flat()[1],
        _pattern(covered, item),
        axis is None,
        axis is None and bool((covered | (elements_of(target.layout) < 0)).all()),
        int(np.count_nonzero(s_core != t_core)) * item,
    )


def _pattern(covered: np.ndarray, item: int) -> np.ndarray:
    """The shadow of what is covered; a single word if that is everything."""
    word = np.asarray(written_word(item), dtype=f"u{item}")
    return word if covered.all() else covered * word


Prepared = Landed | Stored | Route


class Routes:
    """The prepared moves of a machine, by operation."""

    def __init__(self) -> None:
        self._made: dict[Operation, Prepared | None] = {}
        self._bytes = 0

    def get(
        self, op: Operation, make: Callable[[], Prepared | None], *variables: Variable
    ) -> Prepared | None:
        """What `make` prepares for an operation, the first time; None where its variables are too
        large, what is kept is, or it gives nothing."""
        if op not in self._made:
            small = self._bytes < KEPT_BYTES and is_small(*(v.layout for v in variables))
            made = self._made[op] = make() if small else None
            if made is not None:
                targets = None if isinstance(made, Stored) else made.targets
                self._bytes += made.sources.nbytes + (0 if targets is None else targets.nbytes)
        return self._made[op]
