"""One icca.execute as exchanges and compute sets, for `convert-icca-to-ipu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from xdsl.dialects.builtin import (
    ArrayAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects import ipu
from elk_ir.dialects.icca import ops as icca
from elk_ir.dialects.ipu.attrs import (
    ExprAttr,
    LayoutAttr,
    VertexPhase,
    VertexPhaseAttr,
    ref,
)
from elk_ir.dialects.types import tensor_type
from elk_ir.passes.icca_support import (
    buffers_of,
    in_place,
    sharding_of,
)
from elk_ir.plan.buffers import Source, rotating_dims
from elk_ir.plan.domain import Phase
from elk_ir.plan.expr import STEP, Expr, const
from elk_ir.plan.layout import AxisLayout, Layout
from elk_ir.plan.sharding import Sharding


class Lowering(Protocol):
    """What an execute needs to know of the program around it."""

    results: dict[SSAValue, str]
    """The variables of resident values."""
    carried: dict[SSAValue, str]
    """The variables that values must be written to, because a loop carries them."""
    prefix: dict[icca.ExecuteOp, str]
    """What names of an execute's variables begin with."""

    def variable(
        self,
        execute: icca.ExecuteOp,
        role: str,
        index: int,
        type_: Attribute,
        layout: Layout,
        size: int,
    ) -> str:
        """Declare the variable of one buffer of an execute; its symbol."""
        ...

    def codelet(self, execute: icca.ExecuteOp) -> str:
        """The codelet of an execute."""
        ...

    def handle(self, value: SSAValue) -> str:
        """The variable that a preload lands in."""
        ...


def _int(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


class ExecuteLowering:
    """The lowering of one execute."""

    def __init__(self, lowering: Lowering, execute: icca.ExecuteOp, target: Block):
        self.lowering, self.execute, self.target = lowering, execute, target
        self.op = execute.operator()
        self.s: Sharding = sharding_of(execute)
        self.sizes = {(b.role, b.index): b.size_bytes for b in buffers_of(execute)}
        self.vars: dict[tuple[str, int], str] = {}
        self.staged: list[str] = []

    def declare(self, role: str, index: int, dtype: str, layout: Layout) -> str:
        """Declare one of the execute's variables."""
        name = self.lowering.variable(
            self.execute,
            role,
            index,
            tensor_type(layout.shape, dtype),
            layout,
            self.sizes[role, index],
        )
        self.vars[role, index] = name
        return name

    def lower(self) -> None:
        """Emit every step, in the order of ExecPhase."""
        self.gather()
        if self.op.stats:
            stats = [
                self.declare("partial", i, stat.dtype, self.s.stat_layout(i))
                for i, stat in enumerate(self.op.stats)
            ]
            for name, stat in zip(stats, self.op.stats, strict=True):
                self.add(
                    ipu.FillOp(
                        properties={
                            "target": SymbolRefAttr(name),
                            "value": FloatAttr(float(stat.neutral), 64),
                        }
                    )
                )
            self.ring(stats)
            stats = self.reduce(stats)
        else:
            stats = []
        self.apply(stats)

    def add(self, op: Operation) -> None:
        """Append an operation to the program."""
        self.target.add_op(op)

    # ------------------------------------------------------------------ operands

    def gather(self) -> None:
        """Wait for preloads, insert entries, relayout, distribute."""
        local = in_place(self.execute)
        inserts = [op for op in self.execute.body.block.ops if isinstance(op, icca.InsertOp)]
        entries = iter(self.execute.entries)
        for v, value in enumerate(self.execute.ins):
            access = self.op.operands[v]
            if self.execute.sources[v] is Source.HBM:
                name = self.lowering.handle(value)
                self.add(ipu.CopyWaitOp(properties={"target": SymbolRefAttr(name)}))
                for insert in inserts:
                    if _inserts_into(insert, self.execute.body.block.args[v]):
                        source = self.lowering.results[next(entries)]
                        self.add(
                            ipu.ReshardOp(
                                properties={
                                    "source": SymbolRefAttr(source),
                                    "target": SymbolRefAttr(name),
                                    "axis": insert.axis,
                                    "start": insert.start,
                                }
                            )
                        )
                self.vars["preload", v] = name
                self.staged.append(name)
            elif local[v]:
                self.staged.append(self.lowering.results[value])
            else:
                name = self.declare("execute", v, access.dtype, self.s.execute_layout(v))
                self.reshard(self.lowering.results[value], name)
                self.staged.append(name)
        for v, access in enumerate(self.op.operands):
            if self.execute.sources[v] is Source.HBM and ("execute", v) in self.sizes:
                name = self.declare("execute", v, access.dtype, self.s.execute_layout(v))
                self.reshard(self.vars["preload", v], name)
                self.staged[v] = name

    def reshard(self, source: str, target: str) -> None:
        """Move a tensor into another variable's tile mapping."""
        self.add(
            ipu.ReshardOp(
                properties={"source": SymbolRefAttr(source), "target": SymbolRefAttr(target)}
            )
        )

    # ------------------------------------------------------------------ rings

    def ring(self, stats: list[str]) -> None:
        """The ring steps: the innermost ring is a loop, the outer ones are written out."""
        order = self.s.ring_order
        for v in range(len(self.op.operands)):
            dims = rotating_dims(self.s, v)
            if dims:
                self.landing(v, dims)
        if not order:
            self.local(stats, const(0), None)
            return
        inner = self.s.rings[order[-1]]
        for start in range(0, self.s.steps, inner):
            if inner > 1:
                loop = ipu.RepeatOp(start, inner - 1)
                outside, self.target = self.target, loop.body.block
                self.local(stats, STEP, loop.body.block.args[0])
                self.shift(order[-1], STEP, loop.body.block.args[0])
                self.target = outside
                self.add(loop)
            last = start + inner - 1
            self.local(stats, const(last), None)
            for d in self.s.shifts_after(last):
                self.shift(d, const(last), None)

    def landing(self, v: int, dims: Sequence[int]) -> None:
        """Declare the buffer into which operand v's shifts arrive: raw bytes of one slab."""
        access = self.op.operands[v]
        layout = self.s.execute_layout(v)
        elements = max(layout.elements // self.s.window(v, d) for d in dims)
        flat = Layout(layout.cores, (AxisLayout(elements),))
        self.declare("landing", v, access.dtype, flat)

    def slot(self, d: int, window: int, step: Expr) -> Expr:
        """The slot along d that is consumed at a flat step, in a window of `window` blocks."""
        return self.s.position(d, step) % window

    def operand_slots(self, v: int, step: Expr) -> list[Expr | None]:
        """The slots at which operand v is read at a flat step, one an axis."""
        access = self.op.operands[v]
        slots: list[Expr | None] = []
        for axis in access.axes:
            d = axis.simple_dim
            if d is None or d not in access.simple or self.s.rings[d] == 1:
                slots.append(const(0))
            elif access.phase is Phase.APPLY:
                slots.append(self.result_slot(d, step))
            else:
                slots.append(self.slot(d, self.s.window(v, d), step))
        return slots

    def shift(self, d: int, step: Expr, bound: SSAValue | None) -> None:
        """Move every operand that rotates along d by one block."""
        for v in range(len(self.op.operands)):
            if d not in rotating_dims(self.s, v):
                continue
            access = self.op.operands[v]
            axis = access.simple[d]
            slots: list[Expr | None] = [None] * len(access.axes)
            slots[axis] = self.slot(d, self.s.window(v, d), step)
            landing = self.vars["landing", v]
            self.add(
                ipu.ExchangeOp(
                    operands=[bound],
                    properties={
                        "source": ref(self.staged[v], slots),
                        "target": ref(landing),
                        "map": ExprAttr(self.s.ring_source(v, d)),
                    },
                )
            )
            self.add(
                ipu.CopyOp(
                    operands=[bound],
                    properties={
                        "source": ref(landing),
                        "target": ref(self.staged[v], slots),
                    },
                )
            )

    def local(self, stats: list[str], step: Expr, bound: SSAValue | None) -> None:
        """The local phase of one ring step."""
        at = [self.slot(d, self.s.rings[d], step) for d in range(len(self.op.dims))]
        self.vertex(
            VertexPhase.LOCAL,
            self.s.iteration_layout(),
            at,
            [
                ref(self.staged[v], self.operand_slots(v, step))
                for v, a in enumerate(self.op.operands)
                if a.phase is not Phase.APPLY
            ],
            [
                ref(name, [const(0), *(at[d] for d in stat.dims)])
                for name, stat in zip(stats, self.op.stats, strict=True)
            ],
            [],
            bound,
        )

    # ------------------------------------------------------------------ reduction and results

    def result_dims(self) -> list[int]:
        """Ring dimensions that remain in the results: those are written block by block."""
        kept = {d for s in self.op.stats for d in s.dims} | self.op.result_dims
        return [d for d in range(len(self.op.dims)) if self.s.rings[d] > 1 and d in kept]

    def result_slot(self, d: int, step: Expr) -> Expr:
        """The block along d that the flat result step `step` writes."""
        dims = self.result_dims()
        if d not in dims:
            return const(0)
        inner = prod(self.s.rings[e] for e in dims[dims.index(d) + 1 :])
        return (step // inner) % self.s.rings[d]

    def blocks(self, emit: Callable[[Expr, SSAValue | None], None]) -> None:
        """Emit once per block of the results: a loop where there are several."""
        count = prod(self.s.rings[d] for d in self.result_dims())
        if count == 1:
            emit(const(0), None)
            return
        loop = ipu.RepeatOp(0, count)
        outside, self.target = self.target, loop.body.block
        emit(STEP, loop.body.block.args[0])
        self.target = outside
        self.add(loop)

    def reduce(self, partial: list[str]) -> list[str]:
        """Exchange and merge partial statistics; the merged ones."""
        if self.s.ways == 1:
            return partial
        gathered: list[str] = []
        for i, stat in enumerate(self.op.stats):
            name = self.declare("gathered", i, stat.dtype, self.s.gathered_layout(i))
            self.reshard(partial[i], name)
            gathered.append(name)
        merged = [
            self.declare("merged", i, stat.dtype, self.s.merged_layout(i))
            for i, stat in enumerate(self.op.stats)
        ]

        def emit(step: Expr, bound: SSAValue | None) -> None:
            at = [self.result_slot(d, step) for d in range(len(self.op.dims))]
            slots = [[at[d] for d in stat.dims] for stat in self.op.stats]
            self.vertex(
                VertexPhase.COMBINE,
                self.s.apply_layout(),
                at,
                [ref(n, [const(0), *x]) for n, x in zip(gathered, slots, strict=True)],
                [ref(n, x) for n, x in zip(merged, slots, strict=True)],
                [],
                bound,
            )

        self.blocks(emit)
        return merged

    def apply(self, stats: list[str]) -> None:
        """The last phase: results from merged statistics and operands."""
        # What a loop carries on is written into the variable in which it entered the loop.
        results = [
            self.lowering.carried.get(value)
            or self.declare("result", i, r.dtype, self.s.result_layout(i))
            for i, (value, r) in enumerate(zip(self.execute.outs, self.op.results, strict=True))
        ]
        for value, name in zip(self.execute.outs, results, strict=True):
            self.lowering.results[value] = name

        def emit(step: Expr, bound: SSAValue | None) -> None:
            at = [self.result_slot(d, step) for d in range(len(self.op.dims))]
            lead = [] if self.s.ways > 1 else [const(0)]
            self.vertex(
                VertexPhase.APPLY,
                self.s.apply_layout(),
                at,
                [
                    ref(self.staged[v], self.operand_slots(v, step))
                    for v, a in enumerate(self.op.operands)
                    if a.phase is not Phase.LOCAL
                ],
                [
                    ref(name, [*lead, *(at[d] for d in stat.dims)])
                    for name, stat in zip(stats, self.op.stats, strict=True)
                ],
                [
                    ref(
                        name,
                        [at[d] if (d := a.simple_dim) is not None else const(0) for a in r.axes],
                    )
                    for name, r in zip(results, self.op.results, strict=True)
                ],
                bound,
            )

        self.blocks(emit)

    def vertex(
        self,
        phase: VertexPhase,
        iterate: Layout,
        at: Sequence[Expr],
        ins: Sequence[Attribute],
        stats: Sequence[Attribute],
        outs: Sequence[Attribute],
        bound: SSAValue | None,
    ) -> None:
        """Emit one compute set."""
        prefix = self.lowering.prefix[self.execute]
        self.add(
            ipu.ExecuteOp(
                operands=[bound],
                properties={
                    "sym_name": StringAttr(f"{prefix}.{phase}"),
                    "phase": VertexPhaseAttr(phase),
                    "codelet": SymbolRefAttr(self.lowering.codelet(self.execute)),
                    "iterate": LayoutAttr(iterate),
                    "at": ArrayAttr([ExprAttr(e) for e in at]),
                    "ins": ArrayAttr(ins),
                    "stats": ArrayAttr(stats),
                    "outs": ArrayAttr(outs),
                },
            )
        )


def _inserts_into(insert: icca.InsertOp, arg: SSAValue) -> bool:
    target = insert.target
    while isinstance(owner := target.owner, icca.InsertOp):
        target = owner.target
    return target is arg
