"""The memory of the virtual machine: every core's SRAM byte by byte, and what may be read.

SRAM is one array (cores x bytes) with a shadow that says which bytes have been written. Variables
overlay it. A variable becomes live when it is first written; whatever other live variable shares a
byte with it is dead from then on, and reading that one traps. While a copy from HBM is on its way
into a variable, nobody may touch the bytes of its destination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.plan.layout import Layout


class TrapError(ElkError):
    """The program did something that the machine forbids. Names the operator and the bytes."""


@dataclass
class Counters:
    """Bytes moved by a run, as a check of conservation."""

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    exchanged_bytes: int = 0
    vertices: int = 0


@dataclass
class Variable:
    """A variable and its view of the SRAM: (cores, slots…, block…)."""

    name: str
    owner: str
    layout: Layout
    dtype: str
    offset: int
    size_bytes: int
    view: np.ndarray
    shadow: np.ndarray
    overlaps: list[Variable] = field(default_factory=list)
    live: bool = False
    in_flight: bool = False
    killed_by: str | None = None
    touched: bool = False
    whole: bool = False
    """All that the layout holds is known to be written: what is read inside of it needs no check
    against the shadow. False says nothing."""

    @property
    def where(self) -> str:
        """`@name (of NODE), bytes A..B`."""
        owner = f" (of {self.owner})" if self.owner else ""
        return f"@{self.name}{owner}, bytes {self.offset}..{self.offset + self.size_bytes}"

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """View and shadow as (cores, elements)."""
        return self._flat

    @cached_property
    def _flat(self) -> tuple[np.ndarray, np.ndarray]:
        cores = self.view.shape[0]
        return self.view.reshape(cores, -1), self.shadow.reshape(cores, -1)


Hook = Callable[["Sram", Variable], None]


class Sram:
    """`cores` memories of `size_bytes` bytes.

    `on_first_read` is called before a variable is read for the first time since it became live: a
    test can corrupt it there.
    """

    def __init__(self, cores: int, size_bytes: int):
        size_bytes = -(-size_bytes // 8) * 8
        self.cores, self.size_bytes = cores, size_bytes
        self.stride = -(-size_bytes // 16) * 16
        self._memory = np.zeros((cores, self.stride), dtype=np.uint8)
        self.bytes = self._memory[:, :size_bytes]
        self.written = np.zeros((cores, size_bytes), dtype=np.bool_)
        self.variables: dict[str, Variable] = {}
        self.on_first_read: Hook | None = None

    def declare(
        self, name: str, owner: str, layout: Layout, dtype: str, offset: int, size_bytes: int
    ) -> Variable:
        """Lay a variable over the bytes from `offset`. Traps on an address out of range."""
        item = dtype_of(dtype).itemsize
        used = layout.elements * item
        variable = Variable(
            name, owner, layout, dtype, offset, size_bytes, self.bytes[:0], self.written[:0]
        )
        if offset < 0 or offset + max(used, size_bytes) > self.size_bytes:
            raise TrapError(
                f"address out of range: {self.size_bytes} bytes of SRAM", where=variable.where
            )
        if used > size_bytes:
            raise TrapError(f"{used} bytes do not fit the variable", where=variable.where)
        if layout.cores > self.cores:
            raise TrapError(
                f"{layout.cores} cores, the chip has {self.cores}", where=variable.where
            )
        shape = (layout.cores, *layout.slots, *layout.block_shape)
        window = self.bytes[: layout.cores, offset : offset + used]
        variable.view = _overlay(window, dtype_of(dtype), shape)
        shadow = self.written[: layout.cores, offset : offset + used]
        variable.shadow = _overlay(shadow, np.dtype(f"u{item}"), shape)
        for other in self.variables.values():
            if other.offset < offset + size_bytes and offset < other.offset + other.size_bytes:
                other.overlaps.append(variable)
                variable.overlaps.append(other)
        self.variables[name] = variable
        return variable

    def words(self, size: int) -> np.ndarray:
        """All memories as (cores, words of `size` bytes): 1, 2, 4, 8 or 16."""
        return self._memory.view(WORDS[size])

    def block(self, variable: Variable, size: int) -> np.ndarray:
        """The bytes of a variable as (cores, words of `size` bytes), of which its offset and size
        are multiples."""
        first, used = variable.offset // size, variable.layout.elements
        count = used * variable.view.dtype.itemsize // size
        return self.words(size)[: variable.layout.cores, first : first + count]

    def clear(self) -> None:
        """Nothing is written, no variable is live: what a program starts from."""
        self.written[...] = False
        for v in self.variables.values():
            v.live, v.in_flight, v.killed_by, v.touched, v.whole = False, False, None, False, False

    # ------------------------------------------------------------------ rules

    def begin(self, variable: Variable, by: str) -> None:
        """`variable` is written anew: it is live and empty, what shares bytes with it is dead."""
        for other in variable.overlaps:
            if other.in_flight:
                raise TrapError(
                    f"{by} writes into the destination of a preload that is on its way",
                    where=variable.where,
                    details=(f"the preload goes to {other.where}",),
                )
            if other.live:
                other.live, other.killed_by = False, by
        end = variable.offset + variable.size_bytes
        self.written[: variable.layout.cores, variable.offset : end] = False
        variable.live, variable.killed_by, variable.touched = True, None, False
        variable.whole = False

    def poison(self, variable: Variable, value: int) -> None:
        """Fill the bytes of `variable` with `value`, without marking them as written."""
        end = variable.offset + variable.size_bytes
        self.bytes[: variable.layout.cores, variable.offset : end] = value

    def check_live(self, variable: Variable, by: str) -> None:
        """Trap unless `variable` may be read."""
        if variable.in_flight:
            raise TrapError(f"{by} reads before the preload has landed", where=variable.where)
        if not variable.live:
            why = (
                f"was overwritten by {variable.killed_by}"
                if variable.killed_by
                else "was never written"
            )
            raise TrapError(f"{by} reads a buffer that {why}", where=variable.where)

    def reading(self, variable: Variable, by: str) -> None:
        """A read of `variable` begins."""
        self.check_live(variable, by)
        if not variable.touched:
            variable.touched = True
            if self.on_first_read is not None:
                self.on_first_read(self, variable)

    def are_written(self, variable: Variable, needed: np.ndarray) -> bool:
        """Whether the elements of `needed` (cores, elements) have been written."""
        shadow = variable.flat()[1]
        return not ((shadow != _ALL_WRITTEN[shadow.dtype.itemsize]) & needed).any()

    def check_written(
        self,
        variable: Variable,
        shadow: np.ndarray,
        needed: np.ndarray | None,
        by: str,
        first_core: int = 0,
    ) -> None:
        """Trap if an element (of those `needed`) has bytes that were never written. `shadow` is
        that of the cores from `first_core`."""
        full = _ALL_WRITTEN[shadow.dtype.itemsize]
        missing = shadow != full
        if needed is not None:
            missing = missing & needed
        if missing.any():
            core = int(np.argwhere(missing.reshape(missing.shape[0], -1).any(axis=1))[0, 0])
            count = int(missing[core].sum())
            raise TrapError(
                f"{by} reads {count * shadow.dtype.itemsize} bytes that were never written"
                f" (core {first_core + core})",
                where=variable.where,
            )


WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

_ALL_WRITTEN = {n: int.from_bytes(b"\x01" * n, "little") for n in (1, 2, 4, 8)}


def written_word(itemsize: int) -> int:
    """The shadow of an element all of whose bytes are written."""
    return _ALL_WRITTEN[itemsize]


def _overlay(window: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if prod(shape) == 0:
        return np.zeros(shape, dtype=dtype)
    view = window.view(dtype) if window.dtype == np.uint8 else window.view(np.uint8).view(dtype)
    view = view.reshape(shape)
    assert np.shares_memory(view, window)
    return view
