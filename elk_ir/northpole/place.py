"""Which core of which card computes what of an operator: partition plans for the 16 × 16 arrays.

A stage of several cards is one array of `ways` × cores. A dimension that is *divided* among the
cards has a grid factor that is a multiple of `ways`; its coordinate over that multiple is the card.
An operator without such a dimension runs on every card of its stage, on copies of its operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elk_ir.northpole.bytes import ceil_div, placement
from elk_ir.northpole.network import Task, head_dims
from elk_ir.plan.domain import DimKind, Operator
from elk_ir.plan.plan import Plan, normal_form, plan_errors, simple_plan
from elk_ir.plan.sharding import Sharding


@dataclass(frozen=True)
class Division:
    """A plan for all cards of a stage, and the dimension that is divided among them (None: every
    card computes the whole operator)."""

    plan: Plan
    dim: int | None = None


def division_errors(plan: Plan, ways: int, dim: int | None) -> list[str]:
    """Why `plan` can't be laid on `ways` cards, each with an equal part of the grid along `dim`."""
    if dim is None:
        return []
    if not 0 <= dim < len(plan.grid):
        return [f"no dimension {dim} to divide among cards"]
    if plan.grid[dim] % ways:
        return [f"a grid of {plan.grid[dim]} along the divided dimension is not for {ways} cards"]
    return []


def where(s: Sharding, ways: int, dim: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Card of the stage, and core of that card, of each core number of a plan: (plan.cores,) each.
    Without a divided dimension all numbers are cores of card 0, and the others do the same."""
    number = np.arange(s.plan.cores)
    if dim is None or ways == 1:
        return np.zeros_like(number), number
    coordinate = np.broadcast_to(s.coordinate(dim).evaluate(c=number, s=0), number.shape)
    card = coordinate // (s.plan.grid[dim] // ways)
    core = np.empty_like(number)
    for w in range(ways):
        mine = card == w
        core[mine] = np.arange(int(mine.sum()))
    return card, core


def choose_division(
    op: Operator,
    task: Task,
    *,
    weights: Sequence[int],
    states: Mapping[int, int],
    divided: Sequence[tuple[int, int]],
    ways: int,
    context: int,
    cores: int,
) -> Division:
    """How the cores share `op`, as the stage map counted it.

    Weights are cut along reduction and outputs, caches (`states`, each with the axis of its
    positions) along heads and positions, everything else along its largest dimensions. `divided`
    are the (operand, axis) pairs that the cards of a stage already hold in parts: where a product
    sums over such an axis, each card multiplies what it has and the sums cross; elsewhere the
    outputs are divided.
    """
    rows, cols = placement(task, ways, context, cores)
    # Scales of a norm are weights that nothing is multiplied with on the matrix units.
    held = [*(weights if task.matrix is not None else ()), *states]
    dims = sorted({d for v in held for d in op.operands[v].dims}) if held else []
    inner = [d for d in dims if op.dims[d].kind is DimKind.REDUCTION]
    outer = [d for d in dims if op.dims[d].kind is DimKind.PARALLEL]
    if states:
        # Users share cores: a cache is cut along heads and positions only.
        inner = sorted({d for v, j in states.items() for d, _ in op.operands[v].axes[j].terms})
        outer = list(head_dims(op, states))
        rows, cols = cols, rows
    for dim in _candidates(op, divided, ways, inner, outer, bool(states), bool(held)):
        for f, g in ((rows, cols), (1, cols), (rows, 1), (1, 1)):
            found = (
                _grid(op, inner, outer, f, g, ways, dim)
                if task.matrix is not None or states
                else _spread(op, cores, ways, dim)
            )
            if found is not None:
                return Division(found, dim)
    return Division(simple_plan(op, (1,) * len(op.dims)), None)


def _candidates(
    op: Operator,
    divided: Sequence[tuple[int, int]],
    ways: int,
    inner: Sequence[int],
    outer: Sequence[int],
    state: bool,
    held: bool,
) -> Iterator[int | None]:
    """Dimensions to divide among the cards, the best first; None, the last, divides nothing."""
    if ways > 1:
        touched = {d for v, axis in divided for d, _ in op.operands[v].axes[axis].terms}
        size = lambda d: (-op.extents[d], d)  # noqa: E731
        if held:
            summed = [] if state else [d for d in inner if d in touched]
            order = [*sorted(summed, key=size), *sorted(outer, key=size)]
            order += sorted(inner, key=size)
        else:
            order = sorted(touched, key=size)
        yield from (
            d for d in order if op.extents[d] >= ways and op.dims[d].kind is not DimKind.LOCAL
        )
    yield None


def _legal(op: Operator, grid: Sequence[int], ways: int, dim: int | None) -> Plan | None:
    plan = simple_plan(op, tuple(grid))
    if division_errors(plan, ways, dim) or plan_errors(op, plan, plan.cores):
        return None
    return plan


def _grid(
    op: Operator,
    inner: Sequence[int],
    outer: Sequence[int],
    rows: int,
    cols: int,
    ways: int,
    dim: int | None,
) -> Plan | None:
    """`rows` parts of the reduction by `cols` parts of the outputs on each card."""
    grid = [1] * len(op.dims)
    for dims, parts in ((inner, rows), (outer, cols)):
        for d in sorted(dims, key=lambda d: (-op.extents[d], d)):
            extent = ceil_div(op.extents[d], ways) if d == dim else op.extents[d]
            grid[d] = normal_form(extent, min(extent, parts))
            parts //= grid[d]
    if dim is not None:
        fine = _divisible(op.extents[dim], grid[dim], ways)
        if fine is None:
            return None
        grid[dim] = fine
    return _legal(op, grid, ways, dim)


def _divisible(extent: int, parts: int, ways: int) -> int | None:
    """The largest grid factor of at most `parts` a card that is a multiple of `ways` and leaves no
    core without work."""
    for p in range(parts, 0, -1):
        if normal_form(extent, p * ways) == p * ways:
            return p * ways
    return None


def _spread(op: Operator, cores: int, ways: int, dim: int | None) -> Plan | None:
    """Work that holds nothing: its parallel dimensions over the cores, the largest first, then its
    reductions, as far as that is legal."""
    grid = [1] * len(op.dims)
    if dim is not None:
        grid[dim] = ways
    best = _legal(op, grid, ways, dim)
    if best is None:
        return None
    order = sorted(
        (d for d in range(len(op.dims)) if op.dims[d].kind is not DimKind.LOCAL),
        key=lambda d: (op.dims[d].kind is DimKind.REDUCTION, -op.extents[d], d),
    )
    left = cores
    for d in order:
        if op.dims[d].kind is DimKind.REDUCTION and not op.broadcasts_back and left < cores:
            continue
        own = ways if d == dim else 1
        extent = op.extents[d]
        parts: int | None = normal_form(extent, max(1, min(extent, left)))
        if own > 1:
            parts = _divisible(extent, min(ceil_div(extent, ways), left), ways)
        if parts is None or parts <= own:
            continue
        trial = [*grid]
        trial[d] = parts
        plan = _legal(op, trial, ways, dim)
        if plan is not None:
            best, grid, left = plan, trial, left // (parts // own)
    return best
