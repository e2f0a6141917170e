"""A partition plan: how one operator is spread over the cores (docs/plans.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from elk_ir.plan.domain import Access, AxisExpr, DimKind, Operator, Phase


class Reduce(StrEnum):
    """Where the result of a split reduction ends up."""

    SCATTER = "scatter"
    ROOT = "root"
    ALL = "all"


@dataclass(frozen=True)
class Plan:
    """Grid, execute-state and preload-state factors, and what happens to partial results.

    grid: cores along each iteration dimension.
    execute: x_{v,d}, for each operand v and each dimension d; 1 where v does not depend on d.
    preload: p_{v,d}, the same shape; x_{v,d} divides p_{v,d}.
    scatter_dim: the dimension along which a scattered reduction leaves its pieces.
    ring_order: dimensions with rings, outermost first; None orders them by position.
    """

    grid: tuple[int, ...]
    execute: tuple[tuple[int, ...], ...]
    preload: tuple[tuple[int, ...], ...]
    reduce: Reduce = Reduce.SCATTER
    scatter_dim: int | None = None
    ring_order: tuple[int, ...] | None = None

    @property
    def cores(self) -> int:
        """Cores that take part; the others idle."""
        return prod(self.grid)


def simple_plan(
    op: Operator,
    grid: tuple[int, ...],
    reduce: Reduce = Reduce.SCATTER,
    scatter_dim: int | None = None,
) -> Plan:
    """The plan on `grid` in which every core holds its whole slice of every operand."""
    ones = tuple((1,) * len(op.dims) for _ in op.operands)
    plan = Plan(grid, ones, ones, reduce, scatter_dim)
    return with_default_scatter(op, plan)


def with_default_scatter(op: Operator, plan: Plan) -> Plan:
    """`plan` with a scatter dimension chosen where it needs one and has none: the dimension with
    the largest tile that every result has, or a reduction to `all` where there is none."""
    split = reduction_ways(op, plan) > 1
    if op.broadcasts_back:
        return _replace(plan, Reduce.ALL, None) if split else _replace(plan, plan.reduce, None)
    if not split or plan.reduce is not Reduce.SCATTER:
        return _replace(plan, plan.reduce, None)
    if plan.scatter_dim is not None:
        return plan
    tiles = tuple(-(-e // f) for e, f in zip(op.extents, plan.grid, strict=True))
    candidates = [d for d in scatter_candidates(op) if all(tiles[e] <= 1 for e in outer_of(op, d))]
    if not candidates:
        return _replace(plan, Reduce.ALL, None)
    best = max(candidates, key=lambda d: (-(-op.extents[d] // plan.grid[d]), d))
    return _replace(plan, Reduce.SCATTER, best)


def _replace(plan: Plan, reduce: Reduce, scatter_dim: int | None) -> Plan:
    return Plan(plan.grid, plan.execute, plan.preload, reduce, scatter_dim, plan.ring_order)


def scatter_candidates(op: Operator) -> list[int]:
    """Dimensions along which every result can be cut: a whole axis of it, or part of one that
    merges dimensions (if what is further out there has one point a core: `outer_of`)."""
    return [
        d
        for d, dim in enumerate(op.dims)
        if dim.kind is not DimKind.REDUCTION
        and all(d in r.simple or merged_axis(r, d) is not None for r in op.results)
    ]


def merged_axis(access: Access, d: int) -> AxisExpr | None:
    """The axis of a result that merges dimension d with others; None if there is none, or if d
    occurs elsewhere too."""
    found = [axis for axis in access.axes for e, _ in axis.terms if e == d]
    if len(found) != 1 or len(found[0].terms) < 2 or found[0].offset:
        return None
    return found[0]


def outer_of(op: Operator, d: int) -> frozenset[int]:
    """The dimensions outside of d in the result axes that merge it: cutting along d leaves one
    contiguous piece only where their tiles have one point."""
    found: set[int] = set()
    for result in op.results:
        axis = merged_axis(result, d)
        if axis is not None:
            own = next(k for e, k in axis.terms if e == d)
            found |= {e for e, k in axis.terms if k > own}
    return frozenset(found)


def reduction_ways(op: Operator, plan: Plan) -> int:
    """R: cores among which each reduction is split."""
    return prod(plan.grid[d] for d in op.reductions)


def normal_form(extent: int, factor: int) -> int:
    """The least grid factor with the same tile: ceil(L / ceil(L / f))."""
    if extent == 0:
        return 1
    return -(-extent // -(-extent // factor))


def ring_steps(op: Operator, plan: Plan) -> tuple[int, ...]:
    """n_d: ring steps along each dimension, the largest execute-state factor."""
    return tuple(max((x[d] for x in plan.execute), default=1) for d in range(len(op.dims)))


def plan_errors(op: Operator, plan: Plan, cores: int) -> list[str]:
    """Every reason why `plan` is not a legal plan of `op` on a chip of `cores` cores."""
    names = [d.name for d in op.dims]
    rank = len(op.dims)
    errors: list[str] = []
    if len(plan.grid) != rank:
        return [f"the grid has {len(plan.grid)} factors for {rank} dimensions"]
    if len(plan.execute) != len(op.operands) or len(plan.preload) != len(op.operands):
        return [f"the plan describes {len(plan.execute)} operands of {len(op.operands)}"]
    for d, dim in enumerate(op.dims):
        f = plan.grid[d]
        if f < 1 or (f > dim.extent and f > 1):
            errors.append(f"grid factor {f} of {dim.name} is outside 1..{max(1, dim.extent)}")
        elif f != normal_form(dim.extent, f):
            errors.append(
                f"grid factor {f} of {dim.name} (extent {dim.extent}) leaves cores without work:"
                f" its normal form is {normal_form(dim.extent, f)}"
            )
        if dim.kind is DimKind.LOCAL and f > 1:
            errors.append(f"{dim.name} is iterated inside a core and can't be split")
    if plan.cores > cores:
        errors.append(f"the grid needs {plan.cores} cores, the chip has {cores}")
    if errors:
        return errors
    steps = ring_steps(op, plan)
    tiles = tuple(-(-e // f) for e, f in zip(op.extents, plan.grid, strict=True))
    rotating: dict[int, list[int]] = {}
    for v, access in enumerate(op.operands):
        x, p = plan.execute[v], plan.preload[v]
        share = prod(plan.grid[d] for d in range(rank) if d not in access.dims)
        for d in range(rank):
            if x[d] < 1 or p[d] % x[d]:
                errors.append(
                    f"operand {v}: execute {x[d]} does not divide preload {p[d]} on {names[d]}"
                )
            if (x[d] > 1 or p[d] > 1) and d not in access.simple:
                errors.append(
                    f"operand {v} has no axis of its own for {names[d]} and can't be cut there"
                )
            if x[d] > 1:
                rotating.setdefault(d, []).append(v)
                if access.phase is not Phase.LOCAL:
                    errors.append(f"operand {v} is read after the reduction and can't rotate")
            if p[d] > max(1, tiles[d]):
                errors.append(f"operand {v}: {p[d]} pieces of a tile of {tiles[d]} on {names[d]}")
        if share % prod(p):
            errors.append(
                f"operand {v}: {prod(p)} preload pieces do not divide {share} sharing cores"
            )
    if len(op.operands) > 2 and any(len(v) > 1 for v in rotating.values()):
        errors.append("operators of three or more operands rotate at most one operand per axis")
    for d, moving in rotating.items():
        if not op.stats:
            errors.append(f"{op.kind} has one body and no ring steps ({names[d]})")
        for v in moving:
            if steps[d] % plan.execute[v][d]:
                errors.append(
                    f"{names[d]}: {plan.execute[v][d]} does not divide {steps[d]} ring steps"
                )
        if op.dims[d].kind is DimKind.LOCAL:
            errors.append(f"{names[d]} is iterated inside a core and can't rotate")
        elif op.dims[d].kind is DimKind.PARALLEL and any(d not in s.dims for s in op.stats):
            errors.append(
                f"{names[d]} can't rotate: a statistic that lacks it would be merged once a step"
            )
        if any(d in a.dims and d not in a.simple for a in (*op.operands, *op.results)):
            errors.append(f"{names[d]} is part of a composite index and can't rotate")
        if op.broadcasts_back:
            errors.append(f"{op.kind} reads its operands after the reduction and can't rotate")
        if len(moving) == 2:
            if _lacking(op, plan, moving[0]) & _lacking(op, plan, moving[1]):
                errors.append(
                    f"operands {moving} rotate on {names[d]} but share a missing dimension"
                )
        if len(moving) > 2:
            errors.append(f"more than two operands rotate on {names[d]}")
        if d in {i for s in op.stats for i in s.dims} and any(
            d not in r.simple for r in op.results
        ):
            errors.append(f"{names[d]} is not a whole axis of every result and can't rotate")
    for d, e in ((d, e) for d in rotating for e in rotating if d != e):
        for v, w in ((v, w) for v in rotating[d] for w in rotating[e] if v != w):
            if e in op.operands[v].dims and _lacking(op, plan, v) & _lacking(op, plan, w):
                # v's neighbours along d would hold different blocks along e in the same slots.
                errors.append(
                    f"operands {v} and {w} rotate on {names[d]} and {names[e]} but share a"
                    " missing dimension"
                )
    for r in op.results:
        for axis in r.axes:
            if (reason := _inexact(axis.terms, tiles, op.extents)) is not None:
                errors.append(f"result index {reason}")
    ways = reduction_ways(op, plan)
    if op.broadcasts_back and ways > 1 and plan.reduce is not Reduce.ALL:
        errors.append(f"{op.kind} needs its statistics on all cores (reduce all)")
    if ways > 1 and plan.reduce is Reduce.SCATTER:
        if plan.scatter_dim is None or plan.scatter_dim not in scatter_candidates(op):
            errors.append("the scatter dimension is not an axis of every result, or part of one")
        else:
            errors += [
                f"scattering along {names[plan.scatter_dim]} cuts a merged axis whose outer"
                f" {names[d]} has {tiles[d]} points a core"
                for d in sorted(outer_of(op, plan.scatter_dim))
                if tiles[d] > 1
            ]
    return errors


def _lacking(op: Operator, plan: Plan, v: int) -> set[int]:
    """Split dimensions on which operand v does not depend."""
    dims = op.operands[v].dims
    return {i for i in range(len(op.dims)) if i not in dims and plan.grid[i] > 1}


def _inexact(
    terms: tuple[tuple[int, int], ...], tiles: tuple[int, ...], extents: tuple[int, ...]
) -> str | None:
    """Why the image of a tile under a composite result axis is not one contiguous box."""
    if len(terms) < 2:
        return None
    ordered = sorted(terms, key=lambda term: -term[1])
    partial = False
    for d, _ in ordered:
        if partial and tiles[d] != extents[d]:
            return "is not contiguous: an inner dimension is split under an outer one"
        if tiles[d] > 1:
            partial = True
    return None
