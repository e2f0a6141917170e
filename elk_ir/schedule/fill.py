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
    reach = _reach(program, ordered, position, sizes, limits)
    return None if reach is None else place(program, choice, reach, ordered)


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
    limits: Sequence[int],
) -> list[int] | None:
    """Per execute the last position of the (periodic) order that may be issued before it, so that
    what waits beside it stays within its limit; None if what must be issued does not fit."""
    count = len(ordered)
    loads = [op.loads for op in program.ops]
    last = 2 * count - 1 if program.periodic else count - 1
    first = [first_place(program, j) for j in range(count)]
    must = [position[j] + count for j in range(count) if program.ops[j].ahead]
    reach: list[int] = []
    least, at, held = -1, -1, 0
    for i in range(count):
        if loads[i]:
            if position[i] <= at:
                held -= sizes[i]  # it waited until now
            least = max(least, position[i])
        if must and i == count - 1:
            least = max(least, *must)
        while at < least:
            at += 1
            held += _held(ordered, sizes, loads, at, i)
        while held > limits[i] and at > least:
            held -= _held(ordered, sizes, loads, at, i)
            at -= 1
        if held > limits[i]:
            return None
        while at < last:
            lap, j = divmod(at + 1, count)
            j = ordered[j]
            k = j + lap * count
            if loads[j] and k > i:
                size = sizes[j]
                if k - i > AHEAD or first[j] + lap * count > i or held + size > limits[i]:
                    break
                held += size
            at += 1
        reach.append(at)
    return reach


def _held(
    ordered: Sequence[int], sizes: Sequence[int], loads: Sequence[bool], at: int, i: int
) -> int:
    """Bytes that the preload at position `at` holds while operator i executes."""
    lap, j = divmod(at, len(ordered))
    j = ordered[j]
    return sizes[j] if loads[j] and j + lap * len(ordered) > i else 0


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
