"""Scalar bodies of float32 on narrow operands and results; free of IR.

A body stays one of float32: what is narrow is cast where it enters and where it leaves. Finite
numbers that the narrow type lacks become its largest (`LARGEST`), so that a mask of -3.4e38 stays
finite: a softmax over nothing but -inf is not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from elk_ir.numerics.body import Body
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.quant.integers import LARGEST

WIDE = "float32"

_ORDERED = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


def narrow_body(
    body: Body,
    before: Sequence[str],
    after: Sequence[str],
    results: Sequence[str],
    large: Sequence[bool],
    narrowed_to: str,
) -> tuple[Body, list[bool]]:
    """`body`, whose inputs had types `before`, on inputs of types `after` with results of types
    `results`, of which some are `narrowed_to` that were float32; and which results may be its
    largest number in place of a larger one.

    large: which inputs may. What is computed from those, or from constants that are too large,
    saturates; anything else overflows to infinity, as on fp16 tensors of a model.
    """
    graph = BodyGraph()
    values: list[int] = []
    narrow: set[int] = set()
    much: set[int] = set()
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        node = graph.input(i, new)
        if new != old:
            node = graph.emit("cast", (node,), old)
            narrow.add(node)
        if large[i]:
            much.add(node)
        values.append(node)
    limit = LARGEST[narrowed_to]
    for instr in body.instrs:
        if instr.op == "const":
            assert instr.value is not None and instr.dtype is not None
            values.append(graph.const(instr.value, instr.dtype))
            continue
        args = [values[a] for a in instr.args]
        if instr.op in _ORDERED and any(a in narrow for a in args):
            # A tensor that was compared with its own -3.4e38 still is.
            args = [_nearest(graph, a, limit) for a in args]
        values.append(graph.emit(instr.op, args, instr.dtype))
    made: list[int] = []
    flags: list[bool] = []
    for r, to in zip(body.results, results, strict=True):
        node = values[r]
        narrowed = graph.nodes[node].dtype == WIDE and to == narrowed_to
        flags.append(narrowed and _exceeds(graph, node, much, limit))
        if narrowed:
            node = _saturating(graph, node, narrow, much, limit)
        made.append(graph.emit("cast", (node,), to))
    built, _ = graph.build(made, range(body.inputs))
    return built, flags


def casting_body(source: str, target: str) -> Body:
    """A cast between float types; to a narrower one finite numbers saturate."""
    graph = BodyGraph()
    x = graph.input(0, source)
    if target in LARGEST:
        inside = _clamped(graph, x, LARGEST[target])
        x = graph.emit("select", (graph.emit("isinf", (x,)), x, inside))
    body, _ = graph.build([graph.emit("cast", (x,), target)], [0])
    return body


def _is_beyond(graph: BodyGraph, node: int, limit: float) -> bool:
    number = graph.constant(node) if graph.nodes[node].dtype == WIDE else None
    return number is not None and isfinite(number) and abs(number) > limit


def _nearest(graph: BodyGraph, node: int, limit: float) -> int:
    """A constant beyond the limit as the limit; any other node as it is."""
    if not _is_beyond(graph, node, limit):
        return node
    number = graph.constant(node)
    assert number is not None
    return graph.const(limit if number > 0 else -limit, WIDE)


def _exceeds(graph: BodyGraph, node: int, much: set[int], limit: float) -> bool:
    """Whether a node is computed from numbers that are too large."""
    return any(n in much or _is_beyond(graph, n, limit) for n in graph.reached([node]))


def _saturating(graph: BodyGraph, node: int, narrow: set[int], much: set[int], limit: float) -> int:
    """The node, within the limit if numbers that are too large are in it."""
    if node in narrow or not _exceeds(graph, node, much, limit):
        return node
    if graph.nodes[node].op == "select":
        condition, *branches = graph.nodes[node].args
        kept = [_saturating(graph, b, narrow, much, limit) for b in branches]
        return graph.emit("select", (condition, *kept))
    if graph.constant(node) is not None:
        return _nearest(graph, node, limit)
    return _clamped(graph, node, limit)


def _clamped(graph: BodyGraph, node: int, limit: float) -> int:
    low, high = graph.const(-limit, WIDE), graph.const(limit, WIDE)
    return graph.emit("min", (graph.emit("max", (node, low)), high))
