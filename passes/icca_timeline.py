"""The `Timeline` of a planned icca program: what schedulers and searches simulate.

It follows the order in which convert-icca-to-ipu lowers, without building any IR, and needs no
byte offsets. The timeline of the lowered program is equal, event for event.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import (
    ExecuteOp,
    HbmOp,
    InsertOp,
    PreloadOp,
    RepeatOp,
    StoreOp,
    YieldOp,
)
from elk_ir.dialects.location import node_name
from elk_ir.dialects.types import shape_dtype
from elk_ir.passes.icca_liveness import store_barrier, store_end
from elk_ir.passes.icca_support import (
    buffers_of,
    chip_of,
    consumer_of,
    defining_preloads,
    hbm_tensors,
    in_place,
    layout_of,
    program_of,
    sharding_of,
    symbol,
    tensor_of,
    yield_of,
)
from elk_ir.plan.buffers import Source, rotating_dims
from elk_ir.plan.domain import Phase
from elk_ir.plan.layout import Layout
from elk_ir.plan.sharding import Sharding
from elk_ir.sim.builder import Builder, Shift
from elk_ir.sim.timeline import Timeline


class _Extraction:
    def __init__(self, module: ModuleOp, cores: int, cost: CostModel):
        self.builder = Builder(cores, cost)
        self.program = program_of(module)
        self.hbm: dict[str, HbmOp] = hbm_tensors(module)
        self.prefix: dict[ExecuteOp, str] = {}
        self.prefixes: set[str] = set()
        self.results: dict[SSAValue, str] = {}
        self.handles: dict[SSAValue, tuple[str, int, Layout]] = {}
        self.carried: dict[SSAValue, str] = {}
        self.waits: dict[Operation, list[str]] = {}
        self.tails: dict[Block, list[str]] = {}

    def extract(self) -> Timeline:
        self.block(self.program.body.block)
        return self.builder.finish()

    def enter(self, execute: ExecuteOp) -> str:
        """The prefix of the names of an execute's buffers."""
        if execute not in self.prefix:
            self.prefix[execute] = symbol(execute.label.data, self.prefixes)
        return self.prefix[execute]

    # ------------------------------------------------------------------ structure

    def block(self, block: Block) -> None:
        """The operations of a block, in order."""
        for op in block.ops:
            waits = self.waits.pop(op, [])
            if isinstance(op, RepeatOp | YieldOp):
                self.store_waits(waits)
                waits = []
            if isinstance(op, PreloadOp):
                self.preload(op)
            elif isinstance(op, ExecuteOp):
                label = self.enter(op)
                with self.builder.operator(label, node_name(op)):
                    _Execute(self, op).steps()
            elif isinstance(op, StoreOp):
                self.store(op)
            elif isinstance(op, RepeatOp):
                self.repeat(op)
            self.store_waits(waits)
        self.store_waits(self.tails.pop(block, []))

    def store_waits(self, names: list[str]) -> None:
        """Wait for stores, in order."""
        for name in names:
            self.builder.store_wait(name)

    def repeat(self, op: RepeatOp) -> None:
        """A loop over layers; carried values are the buffers in which they entered it."""
        for arg, init, out in zip(op.body.block.args[1:], op.inits, op.outs, strict=True):
            if not isinstance(init.type, HandleType):
                self.results[arg] = self.results[out] = self.results[init]
        for value, init in zip(yield_of(op).values, op.inits, strict=True):
            if not isinstance(init.type, HandleType):
                self.carried[value] = self.results[init]
        with self.builder.repeat(op.count.value.data):
            self.block(op.body.block)

    # ------------------------------------------------------------------ HBM

    def handle(self, value: SSAValue) -> tuple[str, int, Layout]:
        """Name, bytes and layout of the buffer into which the preloads of a handle land."""
        group = [p.result for p in defining_preloads(value)]
        for preload in group:
            if preload in self.handles:
                return self.handles[preload]
        execute, v = consumer_of(value)
        sizes = {(b.role, b.index): b.size_bytes for b in buffers_of(execute)}
        name = f"{self.enter(execute)}.preload{v}"
        entry = (name, sizes["preload", v], sharding_of(execute).preload_layout(v))
        for preload in group:
            self.handles[preload] = entry
        return entry

    def preload(self, op: PreloadOp) -> None:
        """Start filling the consumer's buffer."""
        name, size, layout = self.handle(op.result)
        self.builder.variable(name, size)
        source = op.source.root_reference.data
        hbm = self.hbm[source]
        limit = None
        if hbm.axis is not None and hbm.length is not None:
            limit = (hbm.axis.value.data, hbm.length.value.data)
        dtype = shape_dtype(tensor_of(op.result))[1]
        self.builder.preload(name, source, layout, dtype, limit, node_name(op))

    def store(self, op: StoreOp) -> None:
        """Start a store; it is waited for where the lowering does."""
        name = self.results[op.source]
        dtype = shape_dtype(tensor_of(op.source))[1]
        target = op.target.root_reference.data
        self.builder.store(name, target, layout_of(op.source), dtype, node_name(op))
        until = store_end(op) or store_barrier(op)
        block = op.parent_block()
        if until is not None:
            self.waits.setdefault(until, []).append(name)
        elif block is not None:
            self.tails.setdefault(block, []).append(name)


class _Execute:
    """The steps of one execute."""

    def __init__(self, extraction: _Extraction, execute: ExecuteOp):
        self.x, self.execute, self.b = extraction, execute, extraction.builder
        self.op = execute.operator()
        self.s: Sharding = sharding_of(execute)
        self.prefix = extraction.enter(execute)
        self.sizes = {(b.role, b.index): b.size_bytes for b in buffers_of(execute)}
        self.staged: list[str] = []

    def declare(self, role: str, index: int) -> str:
        """The name of one of the execute's buffers, made known to the builder."""
        name = f"{self.prefix}.{role}{index}"
        self.b.variable(name, self.sizes[role, index])
        return name

    def steps(self) -> None:
        """Every step, in the order of ExecPhase."""
        self.gather()
        stats: list[str] = []
        if self.op.stats:
            stats = [self.declare("partial", i) for i in range(len(self.op.stats))]
            for name in stats:
                self.b.fill(name, self.s.plan.cores)
            self.ring(stats)
            stats = self.reduce(stats)
        self.apply(stats)

    def gather(self) -> None:
        """Wait, insert, relayout, distribute."""
        local = in_place(self.execute)
        inserts = [op for op in self.execute.body.block.ops if isinstance(op, InsertOp)]
        entries = iter(self.execute.entries)
        for v, value in enumerate(self.execute.ins):
            access = self.op.operands[v]
            if self.execute.sources[v] is Source.HBM:
                name, size, layout = self.x.handle(value)
                self.b.variable(name, size)
                self.b.wait(name)
                for insert in inserts:
                    if _inserts_into(insert, self.execute.body.block.args[v]):
                        entry = next(entries)
                        self.b.reshard(
                            "insert",
                            self.x.results[entry],
                            layout_of(entry),
                            name,
                            layout,
                            access.dtype,
                            insert.axis.value.data,
                            insert.start.value.data,
                        )
                self.staged.append(name)
            elif local[v]:
                self.staged.append(self.x.results[value])
            else:
                name = self.declare("execute", v)
                self.b.reshard(
                    "relayout",
                    self.x.results[value],
                    layout_of(value),
                    name,
                    self.s.execute_layout(v),
                    access.dtype,
                )
                self.staged.append(name)
        for v, access in enumerate(self.op.operands):
            if self.execute.sources[v] is Source.HBM and ("execute", v) in self.sizes:
                name = self.declare("execute", v)
                self.b.reshard(
                    "distribute",
                    self.staged[v],
                    self.x.handle(self.execute.ins[v])[2],
                    name,
                    self.s.execute_layout(v),
                    access.dtype,
                )
                self.staged[v] = name

    # ------------------------------------------------------------------ rings

    def ring(self, stats: list[str]) -> None:
        """Ring steps of compute and shift."""
        order = self.s.ring_order
        if not order:
            self.local(stats)
            return
        inner = self.s.rings[order[-1]]
        for start in range(0, self.s.steps, inner):
            if inner > 1:
                with self.b.repeat(inner - 1):
                    self.local(stats)
                    self.shift(order[-1])
            self.local(stats)
            for d in self.s.shifts_after(start + inner - 1):
                self.shift(d)

    def local(self, stats: list[str]) -> None:
        """The local phase of one ring step."""
        uses = [
            self.staged[v] for v, a in enumerate(self.op.operands) if a.phase is not Phase.APPLY
        ]
        layout = self.s.iteration_layout()
        self.b.vertex("local", self.op, layout, 1, [], [*uses, *stats])

    def shift(self, d: int) -> None:
        """One shift of everything that rotates along d."""
        moves: list[Shift] = []
        for v, access in enumerate(self.op.operands):
            if d not in rotating_dims(self.s, v):
                continue
            layout = self.s.execute_layout(v)
            slab = layout.elements // layout.slots[access.simple[d]]
            landing = self.declare("landing", v)
            moves.append(
                Shift(
                    self.staged[v],
                    landing,
                    self.staged[v],
                    self.s.ring_source(v, d),
                    layout.cores,
                    slab * itemsize(access.dtype),
                )
            )
        self.b.shift(moves)

    # ------------------------------------------------------------------ reduction and results

    def blocks(self) -> int:
        """Blocks of the results: they are written one by one where rings cut them."""
        kept = {d for s in self.op.stats for d in s.dims} | self.op.result_dims
        return prod(n for d, n in enumerate(self.s.rings) if d in kept)

    def once_a_block(
        self, phase: str, layout: Layout, ways: int, kills: list[str], uses: list[str]
    ) -> None:
        """A compute set for each block of the results."""
        count = self.blocks()
        if count == 1:
            self.b.vertex(phase, self.op, layout, ways, kills, uses)
            return
        with self.b.repeat(count):
            self.b.vertex(phase, self.op, layout, ways, kills, uses)

    def reduce(self, partial: list[str]) -> list[str]:
        """Exchange and merge partial statistics; the merged ones."""
        if self.s.ways == 1:
            return partial
        gathered: list[str] = []
        for i, stat in enumerate(self.op.stats):
            name = self.declare("gathered", i)
            source, target = self.s.stat_layout(i), self.s.gathered_layout(i)
            self.b.reshard("reduce", partial[i], source, name, target, stat.dtype)
            gathered.append(name)
        merged = [self.declare("merged", i) for i in range(len(self.op.stats))]
        self.once_a_block("combine", self.s.apply_layout(), self.s.ways, merged, gathered)
        return merged

    def apply(self, stats: list[str]) -> None:
        """The last phase."""
        uses = [
            self.staged[v] for v, a in enumerate(self.op.operands) if a.phase is not Phase.LOCAL
        ]
        results: list[str] = []
        for i, value in enumerate(self.execute.outs):
            name = self.x.carried.get(value) or self.declare("result", i)
            self.x.results[value] = name
            results.append(name)
        self.once_a_block("apply", self.s.apply_layout(), 1, results, [*uses, *stats])


def _inserts_into(insert: InsertOp, arg: SSAValue) -> bool:
    target = insert.target
    while isinstance(owner := target.owner, InsertOp):
        target = owner.target
    return target is arg


def timeline_of(module: ModuleOp, cost: CostModel | None = None) -> Timeline:
    """The timeline of the module's icca program; all executes need plans. `cost` defaults to the
    chip's own model. Raises PassFailedException for a module without program, chip or plans."""
    chip = chip_of(module)
    return _Extraction(module, chip.cores, cost or device_model(chip)).extract()
