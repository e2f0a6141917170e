"""Which resident tensors wait in HBM between two uses, so that what runs meanwhile has room.

Executes are numbered in program order. A tensor is made by one of them and read by later ones; in
between it lies on every core. Where what lies there leaves too little for an execute, the tensor
whose next reader is furthest away goes to HBM (Belady's rule): it is stored right after it was
made, and from that point on every reader fetches it again. What a reader fetches is part of the
reader's own plan, and is not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Resident:
    """A tensor on chip. bytes_per_core: what each core holds of it. made: the execute that makes
    it. uses: the executes that read it, ascending. movable: whether its readers could fetch it."""

    bytes_per_core: int
    made: int
    uses: tuple[int, ...]
    movable: bool = True

    def last(self, reload_from: int | None) -> int:
        """The last execute during which it is resident, if readers from `reload_from` on fetch it
        (None: none do). A store reads its source until the next execute has ended."""
        if reload_from is None:
            return max(self.uses, default=self.made)
        kept = [u for u in self.uses if u < reload_from]
        return max([self.made + 1, *kept])


def resident_bytes(tensors: Sequence[Resident], reload_from: dict[int, int], execute: int) -> int:
    """Bytes a core of tensors that others have made while `execute` runs."""
    return sum(
        t.bytes_per_core
        for k, t in enumerate(tensors)
        if t.made < execute <= t.last(reload_from.get(k))
    )


def choose_spills(
    tensors: Sequence[Resident], own_bytes: Sequence[int], capacity_bytes: int, share: float = 1.0
) -> dict[int, int]:
    """The tensors that are spilled, by number, each with the first execute that fetches it again.

    own_bytes: the least that each execute needs for itself. share: how much of the rest tensors of
    others may take; 0 keeps nothing on chip that need not be. A tensor is spilled only if an
    execute comes between its maker and the first reader that fetches it.
    """
    found: dict[int, int] = {}
    for i, own in enumerate(own_bytes):
        room = share * max(0, capacity_bytes - own)
        while resident_bytes(tensors, found, i) > room:
            candidates = [
                (min(u for u in t.uses if u >= i), t.bytes_per_core, k)
                for k, t in enumerate(tensors)
                if k not in found
                and t.movable
                and t.bytes_per_core > 0
                and t.made + 2 <= i <= t.last(None)
            ]
            if not candidates:
                break
            found[max(candidates)[2]] = i
    return found
