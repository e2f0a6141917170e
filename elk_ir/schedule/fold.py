"""A loop whose body holds several copies of one layer, scheduled as a loop of that layer.

What is left to be decided is one layer's; only addresses see the copies: a preload that the loop
carries lies elsewhere in every copy (`elk_ir.schedule.pack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elk_ir.schedule.model import Edge, Op, Program, Schedule, Store, store_places


def folded(program: Program) -> Program:
    """The program of one copy, where the body of a loop is several equal ones, of the smallest
    layer that can be; else `program` itself.

    Copies are equal if their operators have the same tables and read from the same places, within a
    copy or from the one before it. Of resident bytes the most of all copies counts.
    """
    count = len(program.ops)
    if not program.periodic or program.copies != 1:
        return program
    for size in range(1, count // 2 + 1):
        if count % size == 0:
            found = _folded(program, size)
            if found is not None:
                return found
    return program


def _folded(program: Program, size: int) -> Program | None:
    copies = len(program.ops) // size
    tables = [op.table for op in program.ops]
    if any(tables[i] is not tables[i % size] for i in range(len(tables))):
        return None
    ops: list[Op] = []
    for i in range(size):
        found = [_op(program, i + k * size, size) for k in range(copies)]
        first = found[0]
        if first is None:
            return None
        for op in found[1:]:
            if op is None or _shape(op) != _shape(first):
                return None
        ops.append(
            replace(
                first,
                resident_bytes=max(op.resident_bytes for op in found if op is not None),
                earliest=max(op.earliest for op in found if op is not None),
            )
        )
    stores = _stores(program, size)
    if stores is None:
        return None
    return replace(
        program,
        ops=tuple(ops),
        stores=stores,
        repeats=program.repeats * copies,
        copies=copies,
    )


def _op(program: Program, i: int, size: int) -> Op | None:
    """Operator i as one of a single copy; None if it reads what is further away than the copy
    before its own."""
    op = program.ops[i]
    inputs: list[Edge] = []
    for edge in op.inputs:
        if edge.producer < 0:
            inputs.append(edge)
            continue
        producer = edge.producer - len(program.ops) * edge.back
        distance = i // size - producer // size
        if distance not in (0, 1):
            return None
        inputs.append(Edge(producer % size, edge.result, distance == 1))
    earliest = op.earliest if op.earliest < 0 else max(0, op.earliest - i // size * size)
    return replace(op, inputs=tuple(inputs), earliest=earliest)


def _shape(op: Op) -> tuple[object, ...]:
    return op.inputs, op.loads, op.ahead, op.phases, op.single


def _stores(program: Program, size: int) -> tuple[Store, ...] | None:
    """The stores of one copy, None if copies have others. They follow an execute: the one at
    `size` belongs to the first copy, not to the second one."""
    copies = len(program.ops) // size
    groups: list[list[Store]] = [[] for _ in range(copies)]
    for store in program.stores:
        k = max(0, store.place - 1) // size
        groups[k].append(store._replace(place=store.place - k * size))
    first = groups[0]
    for group in groups[1:]:
        if [s[:2] for s in group] != [s[:2] for s in first]:
            return None
    return tuple(
        store._replace(movable=all(group[n].movable for group in groups))
        for n, store in enumerate(first)
    )


def unfolded(program: Program, schedule: Schedule) -> Schedule:
    """A schedule of a folded program for all copies: what it issues ahead is issued in the copy
    before, and by the first copy in the iteration before."""
    size, copies = len(program.ops), program.copies

    def each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(v + k * size for k in range(copies) for v in values)

    return Schedule(
        schedule.choice * copies,
        each(schedule.issue),
        # Of what is issued at one place, the order is that of the one layer.
        tuple(j + k * size for j in schedule.order for k in range(copies)),
        each(store_places(program, schedule)),
    )
