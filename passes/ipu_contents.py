"""What variables hold, followed through an ipu program: elements in a ring, points in a sum.

A ring shift moves blocks from core to core, so that what a slot holds depends on the step. And a
sum may be complete only after its partial results have met. Both are followed here for every core,
step by step, without values: where each block of a rotating variable begins, and how many points of
the reduction each statistic covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from elk_ir.diagnostics import fail_at
from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import Ref, VertexPhase
from elk_ir.passes.ipu_support import Variable, misplaced, refs, title
from elk_ir.plan.domain import Operator, Phase
from elk_ir.plan.moves import moves

Boxes = tuple[np.ndarray, np.ndarray]
"""Origins (cores, slots…, rank) and bounds (cores, slots…, rank, 2) of blocks."""


def check_contents(
    program: ipu.ProgramOp,
    variables: Mapping[str, Variable],
    codelets: Mapping[str, Operator],
    rotating: set[str],
) -> None:
    """Fail if a vertex is given a block of a ring that is not its own, or applies a sum that lacks
    points of its reduction or has some twice. Declarations and references are valid.

    rotating: the variables that a ring shift writes.
    """
    _Contents(variables, codelets, rotating).block(program.body.block)


@dataclass
class _Contents:
    variables: Mapping[str, Variable]
    codelets: Mapping[str, Operator]
    rotating: set[str]
    moved: dict[str, Boxes] = field(default_factory=dict)
    """What variables that take part in a ring hold now."""
    points: dict[str, np.ndarray] = field(default_factory=dict)
    """Points of the reduction in each part of a statistic: (cores, slots…, parts)."""

    def fail(self, op: Operation, message: str) -> None:
        """Stop at the first thing that is wrong."""
        fail_at(op, f"ipu-verify-program: {message}")

    def block(self, block: Block, index: SSAValue | None = None, step: int = 0) -> None:
        """Follow operations; `index` is the ring step and has the value `step`. The iterations of a
        loop over layers are alike: one is followed."""
        for op in block.ops:
            match op:
                case ipu.RepeatOp():
                    inner = op.body.block.args[0]
                    first, count = op.first.value.data, op.count.value.data
                    if not any(getattr(o, "step", None) is inner for o in op.body.block.ops):
                        count = min(count, 1)
                    for t in range(first, first + count):
                        self.block(op.body.block, inner, t)
                case ipu.CopyStartOp():
                    self.moved.pop(op.target.root_reference.data, None)
                case ipu.FillOp():
                    name = op.target.root_reference.data
                    self.moved.pop(name, None)
                    self.points[name] = self.nothing(name)
                case ipu.ReshardOp():
                    self.reshard(op)
                case ipu.ExchangeOp():
                    self.exchange(op, step)
                case ipu.CopyOp():
                    self.copy(op, step)
                case ipu.ExecuteOp():
                    self.execute(op, step)
                case _:
                    pass

    # ------------------------------------------------------------------ rings

    def boxes(self, name: str) -> Boxes:
        """What a variable holds."""
        layout = self.variables[name].layout
        return self.moved.get(name, (layout.origins, layout.bounds))

    def place(self, reference: Ref, step: int) -> tuple[int | slice, ...]:
        """The slots of a reference at a step."""
        if not reference.slots:
            return ()
        return tuple(
            slice(None) if e is None else int(e.evaluate(t=step, c=0, s=0)) for e in reference.slots
        )

    def exchange(self, op: ipu.ExchangeOp, step: int) -> None:
        """The landing buffer holds the sender's blocks."""
        source = op.source.data
        cores = np.arange(self.variables[op.target.data.name].layout.cores)
        senders = np.broadcast_to(op.map.data.evaluate(c=cores, t=step, s=0), cores.shape)
        place = self.place(source, step)
        origins, bounds = (b[(slice(None), *place)][senders] for b in self.boxes(source.name))
        self.moved[op.target.data.name] = origins, bounds

    def copy(self, op: ipu.CopyOp, step: int) -> None:
        """The slots hold what the landing buffer held."""
        target = op.target.data
        place = (slice(None), *self.place(target, step))
        new: list[np.ndarray] = []
        pairs = zip(self.boxes(target.name), self.boxes(op.source.data.name), strict=True)
        for old, landed in pairs:
            array = old.copy()
            if array[place].size == landed.size:
                array[place] = landed.reshape(array[place].shape)
            new.append(array)
        self.moved[target.name] = new[0], new[1]

    def check_operands(self, op: ipu.ExecuteOp, box: Boxes, step: int) -> None:
        """The blocks of rotating operands are the images of the iteration box."""
        codelet = self.codelets[op.codelet.root_reference.data]
        other = Phase.APPLY if op.phase.data is VertexPhase.LOCAL else Phase.LOCAL
        operands = [a for a in codelet.operands if a.phase is not other]
        for reference, access in zip(refs(op.ins), operands, strict=False):
            name = reference.data.name
            if name not in self.rotating:
                continue
            place = (slice(0, len(box[0])), *self.place(reference.data, step))
            origins, bounds = (b[place] for b in self.boxes(name))
            size = op.iterate.data.block_shape
            variable = self.variables[name]
            wrong = misplaced(op, "operand", variable, access, origins, bounds, box, size)
            if wrong is not None:
                self.fail(op, f"{wrong} at step {step}")

    # ------------------------------------------------------------------ sums

    def nothing(self, name: str) -> np.ndarray:
        """No points, in any part of a statistic: (cores, slots…, parts), with a part for each index
        along the first axis of a block (which numbers partial results, where there are any)."""
        layout = self.variables[name].layout
        return np.zeros((layout.cores, *layout.slots, layout.block_shape[0] if layout.axes else 1))

    def reshard(self, op: ipu.ReshardOp) -> None:
        """Parts of a statistic arrive with the points that they cover."""
        source, target = op.source.root_reference.data, op.target.root_reference.data
        self.moved.pop(target, None)
        held = self.points.get(source)
        if held is None or op.axis is not None:
            self.points.pop(target, None)
            return
        plan = moves(self.variables[source].layout, self.variables[target].layout)
        # Parts follow each other in memory: an element's number says which one it belongs to.
        s_part, t_part = (
            element // prod(self.variables[name].layout.block_shape[1:])
            for element, name in ((plan.source_element, source), (plan.target_element, target))
        )
        held = held.reshape(len(held), -1)
        new = self.nothing(target)
        points = np.full((len(new), new[0].size), np.inf)
        # A part is as complete as the least complete of the pieces that it is made of.
        np.minimum.at(points, (plan.target_core, t_part), held[plan.source_core, s_part])
        self.points[target] = np.where(np.isinf(points), 0, points).reshape(new.shape)

    def execute(self, op: ipu.ExecuteOp, step: int) -> None:
        """A vertex: what it is given, and what it adds to a sum."""
        codelet, layout = self.codelets[op.codelet.root_reference.data], op.iterate.data
        at = tuple(int(e.data.evaluate(t=step, c=0, s=0)) for e in op.at)
        box = layout.origins[(slice(None), *at)], layout.bounds[(slice(None), *at)]
        extent = box[1][..., 1] - box[1][..., 0]
        busy = np.asarray((extent > 0).all(axis=1))
        match op.phase.data:
            case VertexPhase.LOCAL:
                self.check_operands(op, box, step)
                new = np.where(busy, extent[:, list(codelet.reductions)].prod(axis=1), 0)
                for stat in refs(op.stats):
                    name = stat.data.name
                    if name in self.points:
                        points = self.points[name] = self.points[name].copy()
                        place = (slice(0, len(new)), *self.place(stat.data, step))
                        points[place] += new.reshape(-1, *[1] * (points[place].ndim - 1))
            case VertexPhase.COMBINE:
                for stat, part in zip(refs(op.stats), refs(op.ins), strict=False):
                    name, parts = stat.data.name, self.points.get(part.data.name)
                    if parts is None:
                        self.points.pop(name, None)
                        continue
                    old = self.points.get(name)
                    if old is None or step == 0 or op.step is None:
                        old = self.nothing(name)
                    total = old.copy()
                    from_, to = (
                        (slice(0, len(box[0])), *self.place(r.data, step)) for r in (part, stat)
                    )
                    sums = parts[from_].reshape(len(box[0]), -1).sum(axis=1)
                    total[to] = sums.reshape(-1, *[1] * (total[to].ndim - 1))
                    self.points[name] = total
            case VertexPhase.APPLY:
                self.check_operands(op, box, step)
                for reference in refs(op.stats):
                    self.check_sum(op, reference.data, codelet, busy, step)
        for reference in refs(op.outs):
            self.moved.pop(reference.data.name, None)
            self.points.pop(reference.data.name, None)

    def check_sum(
        self, op: ipu.ExecuteOp, reference: Ref, codelet: Operator, busy: np.ndarray, step: int
    ) -> None:
        """A statistic covers its reduction when it is applied."""
        points = self.points.get(reference.name)
        if points is None:
            return
        need = prod(codelet.extents[d] for d in codelet.reductions)
        place = (slice(0, len(busy)), *self.place(reference, step))
        have = points[place].reshape(len(busy), -1).min(axis=1)
        wrong = busy & (have != need)
        if wrong.any():
            core = int(np.flatnonzero(wrong)[0])
            dims = ", ".join(codelet.dims[d].name for d in codelet.reductions)
            self.fail(
                op,
                f"{title(op)}: {self.variables[reference.name].where} covers"
                f" {int(have[core])} of {need} points of {dims} on core {core}",
            )
