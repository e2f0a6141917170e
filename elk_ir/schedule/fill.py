"""As many preloads ahead as fit: from plans and an order to the places of issue."""

from __future__ import annotations

from collections.abc import Sequence

from elk_ir.schedule.model import Program, Schedule, first_place, last_place, settled

AHEAD = 24
"""The most operators that are preloaded ahead in a program without a loop."""


def fill(
    program: Program,
    choice: Sequence[int],
    order: Sequence[int] | None = None,
    limits: Sequence[int] | None = None,
) -> Schedule | None:
    """The schedule that issues every preload as early as what waits with it fits, in `order`
    (default: that of the operators). limits: bytes of waiting preloads beside each execute
    (default: what its plan leaves of the capacity).

    None if a preload does not fit even when nothing waits that need not.
    """
    count = len(program.ops)
    ordered = list(order or range(count))
    position = [0] * count
    for k, j in enumerate(ordered):
        position[j] = k
    sizes = [
        int(op.table.preload_bytes[c]) if op.loads else 0
        for op, c in zip(program.ops, choice, strict=True)
    ]
    if limits is None:
        limits = room_bytes(program, choice)
    reach = [_reach(program, ordered, position, sizes, limits[i], i) for i in range(count)]
    if None in reach:
        return None
    return place(program, choice, [r for r in reach if r is not None], ordered)


def room_bytes(program: Program, choice: Sequence[int]) -> list[int]:
    """Bytes that each execute leaves for preloads that wait."""
    capacity = program.rules.capacity_bytes
    if program.rules.separate_sram:
        return [capacity] * len(program.ops)
    return [
        capacity - op.resident_bytes - int(op.table.execute_bytes[c])
        for op, c in zip(program.ops, choice, strict=True)
    ]


def _reach(
    program: Program,
    ordered: Sequence[int],
    position: Sequence[int],
    sizes: Sequence[int],
    limit: int,
    i: int,
) -> int | None:
    """The last position of the (periodic) order that may be issued before execute i, so that what
    waits beside it stays within `limit`."""
    count = len(ordered)
    least = max((position[j] for j in range(i + 1) if program.ops[j].loads), default=-1)
    if program.periodic and i == count - 1:
        must = [position[j] + count for j in range(count) if program.ops[j].ahead]
        least = max([least, *must])
    held = 0
    last = count - 1 if not program.periodic else 2 * count - 1
    for at in range(last + 1):
        lap, j = divmod(at, count)
        j = ordered[j]
        k = j + lap * count
        if program.ops[j].loads and k > i:
            if at > least and (k - i > AHEAD or first_place(program, j) + lap * count > i):
                return at - 1
            held += sizes[j]
            if held > limit:
                return at - 1 if at > least else None
    return last


def place(
    program: Program, choice: Sequence[int], reach: Sequence[int], ordered: Sequence[int]
) -> Schedule:
    """The schedule in which reach[i] is the last position of the order issued before execute i."""
    count = len(program.ops)
    issued = [0] * count
    for position, j in enumerate(ordered):
        at, first = last_place(program, j), first_place(program, j)
        while at > first:
            before, shift = at - 1, 0
            if before < 0:
                before, shift = before + count, count
            if reach[before] - shift < position:
                break
            at -= 1
        issued[j] = at
    return settled(program, Schedule(tuple(choice), tuple(issued), tuple(ordered)))
