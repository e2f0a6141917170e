"""Who holds what: every layout that a plan implies, at every step.

This is the one place that says which box of a tensor each core holds (docs/plans.md). The
verifier, the virtual machine, the simulator and the emitters derive from it.

Notation, for an operator with grid f and tile t: g_d is a core's coordinate along d; an operand v
that lacks some dimensions is shared by the cores that differ only in those, and r_v is a core's
rank among them. The execute-state cuts the slice into x_v = prod x_{v,d} pieces, piece r mod x_v
being held; the preload-state cuts each of them further. A ring along d has n_d = max_v x_{v,d}
steps over blocks of ceil(t_d / n_d); an operand holds a window of w = n_d / x_{v,d} of them. The
window starts at block b0 = (sum over rotating v of e_{v,d} w_{v,d}) mod n_d (Cannon's skew) and
moves one block a step. Slot j of a window holds block (b0 + j) mod n_d at the start, and the
arriving block takes the slot of the one just consumed, so at step position p every operand is
read at slot p mod w on every core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TypeVar

from elk_ir.cost.shapes import itemsize
from elk_ir.plan.domain import Access, Operator, Phase
from elk_ir.plan.expr import CORE, SLOT, Expr, const
from elk_ir.plan.layout import AxisLayout, Cut, Layout
from elk_ir.plan.plan import Plan, Reduce, reduction_ways, ring_steps

StepT = TypeVar("StepT", int, Expr)


@dataclass(frozen=True)
class Sharding:
    """The layouts of `op` under `plan`; pure, cached by `sharding()`."""

    op: Operator
    plan: Plan

    # ------------------------------------------------------------------ geometry

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """t_d: points of a full tile along each dimension."""
        return tuple(-(-e // f) for e, f in zip(self.op.extents, self.plan.grid, strict=True))

    @cached_property
    def rings(self) -> tuple[int, ...]:
        """n_d: ring steps along each dimension."""
        return ring_steps(self.op, self.plan)

    @cached_property
    def block(self) -> tuple[int, ...]:
        """Points of the sub-tile that one ring step computes."""
        return tuple(-(-t // n) for t, n in zip(self.tile, self.rings, strict=True))

    @cached_property
    def ring_order(self) -> tuple[int, ...]:
        """Dimensions with more than one ring step, outermost first."""
        order = self.plan.ring_order or tuple(range(len(self.rings)))
        return tuple(d for d in order if self.rings[d] > 1)

    @property
    def steps(self) -> int:
        """n: ring steps in all."""
        return prod(self.rings)

    @property
    def ways(self) -> int:
        """R: cores among which each reduction is split."""
        return reduction_ways(self.op, self.plan)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Core-number stride of each grid dimension; `core_order` says which vary fastest."""
        strides = [1] * len(self.plan.grid)
        stride = 1
        for d in reversed(core_order(self.op)):
            strides[d] = stride
            stride *= self.plan.grid[d]
        return tuple(strides)

    def coordinate(self, d: int) -> Expr:
        """g_d of core c."""
        return (CORE // self.strides[d]) % self.plan.grid[d]

    def _rank(self, dims: Sequence[int]) -> Expr:
        """Row-major rank of a core among those that differ only in `dims`."""
        strides = _strides(tuple(self.plan.grid[d] for d in dims))
        rank = const(0)
        for d, stride in zip(dims, strides, strict=True):
            if self.plan.grid[d] > 1:
                rank = rank + self.coordinate(d) * stride
        return rank

    # ------------------------------------------------------------------ sharing and rings

    def missing(self, v: int) -> tuple[int, ...]:
        """Split dimensions on which operand v does not depend."""
        dims = self.op.operands[v].dims
        return tuple(d for d in range(len(self.op.dims)) if d not in dims and self.plan.grid[d] > 1)

    def sharing(self, v: int) -> int:
        """S_v: cores that need the same slice of operand v."""
        return prod(self.plan.grid[d] for d in self.missing(v))

    def copies(self, v: int) -> int:
        """Copies of each preloaded byte of operand v that cross the cores' ports: S_v / p_v."""
        return self.sharing(v) // prod(self.plan.preload[v])

    def execute_digit(self, v: int, d: int) -> Expr:
        """e_{v,d}: index along d of the execute-state piece that a core starts with."""
        x = self.plan.execute[v]
        if x[d] == 1:
            return const(0)
        return (self._rank(self.missing(v)) // _strides(x)[d]) % x[d]

    def preload_digit(self, v: int, d: int) -> Expr:
        """Index along d of the preload sub-piece within a core's execute-state piece."""
        x, p = self.plan.execute[v], self.plan.preload[v]
        q = tuple(b // a for a, b in zip(x, p, strict=True))
        if q[d] == 1:
            return const(0)
        return (self._rank(self.missing(v)) // (prod(x) * _strides(q)[d])) % q[d]

    def window(self, v: int, d: int) -> int:
        """w_{v,d}: ring blocks along d that operand v holds."""
        return self.rings[d] // self.plan.execute[v][d]

    def ring_start(self, d: int) -> Expr:
        """b0: the ring block along d with which a core starts."""
        start = const(0)
        for v, x in enumerate(self.plan.execute):
            if x[d] > 1:
                start = start + self.execute_digit(v, d) * self.window(v, d)
        return start % self.rings[d]

    def ring_source(self, v: int, d: int) -> Expr:
        """The core from which a core receives operand v's next block along d."""
        x = self.plan.execute[v]
        missing = self.missing(v)
        stride = _strides(x)[d]
        digit = self.execute_digit(v, d)
        rank = self._rank(missing) + ((digit + 1) % x[d]) * stride + digit * -stride
        source = const(0)
        local = _strides(tuple(self.plan.grid[i] for i in missing))
        for i in range(len(self.op.dims)):
            if self.plan.grid[i] == 1:
                continue
            if i in missing:
                g = (rank // local[missing.index(i)]) % self.plan.grid[i]
            else:
                g = self.coordinate(i)
            source = source + g * self.strides[i]
        return source

    def step_digits(self, step: int) -> dict[int, int]:
        """Loop indices of the nested rings at flat step `step`, by dimension."""
        sizes = tuple(self.rings[d] for d in self.ring_order)
        return {
            d: (step // s) % n
            for d, s, n in zip(self.ring_order, _strides(sizes), sizes, strict=True)
        }

    def position(self, d: int, step: StepT) -> StepT:
        """Blocks by which the window along d has moved at flat step `step`.

        An inner ring does not shift back when an outer one advances: it goes on from where it is.
        """
        if self.rings[d] == 1:
            return step * 0
        i = self.ring_order.index(d)
        inner = prod(self.rings[e] for e in self.ring_order[i + 1 :])
        outer = step // (inner * self.rings[d])
        return outer * (self.rings[d] - 1) + (step // inner) % self.rings[d]

    def shifts_after(self, step: int) -> tuple[int, ...]:
        """Dimensions whose windows move between flat step `step` and the next one."""
        if step + 1 >= self.steps:
            return ()
        before, after = self.step_digits(step), self.step_digits(step + 1)
        return tuple(d for d in self.ring_order if after[d] > before[d])

    # ------------------------------------------------------------------ layouts

    def _chain(
        self,
        d: int,
        slots: int = 1,
        sub: tuple[Expr, int] | None = None,
        extent: int | None = None,
    ) -> AxisLayout:
        """Cuts of a whole axis along d: tile, then ring block, then one of `sub[1]` pieces.

        The axis may be shorter than the dimension (the first operand of a concatenation)."""
        cuts = [Cut(self.coordinate(d) * self.tile[d], self.tile[d])]
        size = self.tile[d]
        if self.rings[d] > 1:
            size = self.block[d]
            block = (self.ring_start(d) + SLOT) % self.rings[d]
            cuts.append(Cut(block * size, size))
        if sub is not None and sub[1] > 1:
            size = -(-size // sub[1])
            cuts.append(Cut(sub[0] * size, size))
        extent = self.op.extents[d] if extent is None else extent
        return AxisLayout(extent, _drop_trivial(cuts, extent), slots)

    def _composite(self, access: Access, j: int, exact: bool) -> AxisLayout:
        """The image of a tile along an axis that is not one whole dimension."""
        axis = access.axes[j]
        axis_extent = access.shape[j]
        if exact:
            cuts: list[Cut] = []
            for d, k in sorted(axis.terms, key=lambda term: -term[1]):
                cuts.append(Cut(self.coordinate(d) * (self.tile[d] * k), self.tile[d] * k))
                if d == self._scatter:
                    piece = -(-self.tile[d] // self.ways) * k
                    cuts.append(Cut(self._rank(self.op.reductions) * piece, piece))
                if self.tile[d] > 1:
                    break
            return AxisLayout(axis_extent, _drop_trivial(cuts, axis_extent))
        start, size = const(axis.offset), 1
        for d, k in axis.terms:
            extent = self.tile[d]
            start = start + self.coordinate(d) * (extent * k)
            if d == self._scatter and access.phase is Phase.APPLY:
                # Read with the results: only the piece that the reduction leaves here.
                extent = -(-extent // self.ways)
                start = start + self._rank(self.op.reductions) * (extent * k)
            if k < 0:
                start = start + const((extent - 1) * k)
            size += abs(k) * (extent - 1)
        return AxisLayout(axis_extent, (Cut(start, size),))

    def _access_layout(self, access: Access, v: int | None, preload: bool) -> Layout:
        axes: list[AxisLayout] = []
        for j, axis in enumerate(access.axes):
            d = axis.simple_dim
            if d is None or d not in access.simple:
                axes.append(self._composite(access, j, exact=v is None and len(axis.terms) > 1))
                continue
            slots = self.rings[d] if v is None else self.window(v, d)
            sub = None
            if v is not None and preload:
                ratio = self.plan.preload[v][d] // self.plan.execute[v][d]
                sub = (self.preload_digit(v, d), ratio)
            elif d == self._scatter and (v is None or access.phase is Phase.APPLY):
                sub = (self._rank(self.op.reductions), self.ways)
            axes.append(self._chain(d, slots, sub, access.shape[j]))
        # Pieces of a preload lie on all sharing cores, also where only a root needs the whole.
        rooted = v is None or (access.phase is Phase.APPLY and not preload)
        guard = self._root_guard if rooted else None
        return Layout(self.plan.cores, tuple(axes), guard)

    @property
    def _scatter(self) -> int | None:
        scattered = self.ways > 1 and self.plan.reduce is Reduce.SCATTER
        return self.plan.scatter_dim if scattered else None

    @property
    def _root_guard(self) -> Expr | None:
        rooted = self.ways > 1 and self.plan.reduce is Reduce.ROOT
        return self._rank(self.op.reductions) if rooted else None

    def execute_layout(self, v: int) -> Layout:
        """What each core holds of operand v when the ring starts (or when `apply` reads it)."""
        access = self.op.operands[v]
        layout = self._access_layout(access, v, preload=False)
        if access.phase is Phase.APPLY:
            # Read block by block with the results: every ring block of the result is needed.
            axes = [
                AxisLayout(a.extent, a.cuts, self.rings[d])
                if (d := access.axes[j].simple_dim) is not None and d in access.simple
                else a
                for j, a in enumerate(layout.axes)
            ]
            layout = Layout(layout.cores, tuple(axes), layout.guard)
        return layout

    def preload_layout(self, v: int) -> Layout:
        """What a preload of operand v delivers to each core."""
        if self.plan.preload[v] == self.plan.execute[v]:
            return self.execute_layout(v)
        return self._access_layout(self.op.operands[v], v, preload=True)

    def iteration_layout(self) -> Layout:
        """The iteration box of each core; slot p along d is the sub-tile of ring position p."""
        return Layout(
            self.plan.cores,
            tuple(self._chain(d, self.rings[d]) for d in range(len(self.op.dims))),
        )

    def apply_layout(self) -> Layout:
        """The iteration box over which each core runs `apply`: the iteration box, or the piece of
        it that a scattered reduction leaves. Reduction dimensions outside the result are whole."""
        axes: list[AxisLayout] = []
        for d in range(len(self.op.dims)):
            if d in self.op.reductions and not self.op.broadcasts_back:
                axes.append(AxisLayout(self.op.extents[d]))
            else:
                sub = (self._rank(self.op.reductions), self.ways) if d == self._scatter else None
                axes.append(self._chain(d, self.rings[d], sub))
        return Layout(self.plan.cores, tuple(axes), self._root_guard)

    def result_layout(self, i: int) -> Layout:
        """What each core holds of result i."""
        return self._access_layout(self.op.results[i], None, preload=False)

    def stat_layout(self, i: int) -> Layout:
        """Partial statistic i, as a tensor [R, dims…]: each core holds its own partial."""
        rank = AxisLayout(
            self.ways, _drop_trivial([Cut(self._rank(self.op.reductions), 1)], self.ways)
        )
        return Layout(self.plan.cores, (rank, *self._stat_axes(i, scatter=False)))

    def gathered_layout(self, i: int) -> Layout:
        """All R partials of the piece of statistic i that each core merges."""
        return Layout(
            self.plan.cores,
            (AxisLayout(self.ways), *self._stat_axes(i, scatter=True)),
            self._root_guard,
        )

    def merged_layout(self, i: int) -> Layout:
        """Statistic i after merging, without the leading axis."""
        return Layout(self.plan.cores, self._stat_axes(i, scatter=True), self._root_guard)

    def _stat_axes(self, i: int, scatter: bool) -> tuple[AxisLayout, ...]:
        axes: list[AxisLayout] = []
        for d in self.op.stats[i].dims:
            scattered = scatter and d == self._scatter
            sub = (self._rank(self.op.reductions), self.ways) if scattered else None
            axes.append(self._chain(d, self.rings[d], sub))
        return tuple(axes)


@lru_cache(maxsize=8192)
def sharding(op: Operator, plan: Plan) -> Sharding:
    """The layouts of `op` under `plan`. Assumes that `plan_errors` found nothing."""
    return Sharding(op, plan)


@lru_cache(maxsize=4096)
def core_order(op: Operator) -> tuple[int, ...]:
    """The grid's dimensions from that whose neighbours are farthest apart to that whose neighbours
    are neighbouring cores: those of the largest operand by position, then those that it lacks. So
    the cores that share a slice of it are neighbours, and a chip holds few copies of what another
    chip holds."""
    sizes = [prod(a.shape) * itemsize(a.dtype) for a in op.operands]
    if not sizes:
        return tuple(range(len(op.dims)))
    dims = op.operands[max(range(len(sizes)), key=sizes.__getitem__)].dims
    return tuple(sorted(range(len(op.dims)), key=lambda d: (d not in dims, d)))


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return tuple(strides)


def _drop_trivial(cuts: list[Cut], extent: int) -> tuple[Cut, ...]:
    """`cuts` without those that keep the whole interval."""
    kept: list[Cut] = []
    size = extent
    for cut in cuts:
        if cut.start == const(0) and cut.size == size:
            continue
        kept.append(cut)
        size = cut.size
    return tuple(kept)
