"""The `Timeline` of an `ipu` program, and its simulation: what every reported time comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Block, Operation

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.dialects import ipu
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.ipu.attrs import Ref, RefAttr, VertexPhase
from elk_ir.dialects.location import node_name
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Operator
from elk_ir.plan.layout import Layout
from elk_ir.sim import SimResult, Timeline, simulate
from elk_ir.sim.builder import Builder, Shift


@dataclass(frozen=True)
class _Variable:
    layout: Layout
    dtype: str
    size_bytes: int


@dataclass
class _Run:
    """Ring shifts that follow one another directly: exchanges into landing buffers, and copies."""

    exchanges: list[ipu.ExchangeOp] = field(default_factory=list)
    copies: list[ipu.CopyOp] = field(default_factory=list)


class _Extraction:
    def __init__(self, module: ModuleOp, cores: int, cost: CostModel):
        self.builder = Builder(cores, cost)
        self.variables: dict[str, _Variable] = {}
        self.codelets: dict[str, Operator] = {}
        self.program: ipu.ProgramOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, ipu.VarOp):
                self.variables[op.sym_name.data] = _Variable(
                    op.layout.data, shape_dtype(op.type)[1], op.bytes.value.data
                )
            elif isinstance(op, ipu.CodeletOp):
                self.codelets[op.sym_name.data] = op.structured.operator()
            elif isinstance(op, ipu.ProgramOp):
                self.program = op

    def extract(self) -> Timeline:
        if self.program is None:
            raise ElkError(
                "the module has no ipu.program", hint="lower it with convert-icca-to-ipu first"
            )
        self.block(self.program.body.block)
        return self.builder.finish()

    # ------------------------------------------------------------------ names

    def var(self, name: SymbolRefAttr | str) -> tuple[str, _Variable]:
        """A variable, made known to the builder."""
        key = name if isinstance(name, str) else name.root_reference.data
        variable = self.variables.get(key)
        if variable is None:
            raise ElkError(f"no ipu.var is called @{key}")
        self.builder.variable(key, variable.size_bytes)
        return key, variable

    def names(self, refs: Sequence[Attribute]) -> list[str]:
        """The variables that references name."""
        return [self.var(r.data.name)[0] for r in refs if isinstance(r, RefAttr)]

    def ref_bytes(self, ref: Ref) -> int:
        """Bytes of the slots that a reference names, on a core."""
        _, variable = self.var(ref.name)
        slots = variable.layout.slots
        if ref.slots:
            slots = tuple(n for n, s in zip(slots, ref.slots, strict=True) if s is None)
        return prod(slots) * prod(variable.layout.block_shape) * itemsize(variable.dtype)

    # ------------------------------------------------------------------ structure

    def block(self, block: Block) -> None:
        """The operations of the program or of a loop over layers, in order."""
        pending: list[Operation] = []
        for op in block.ops:
            if isinstance(op, ipu.RowOp):
                continue
            if isinstance(op, _ASYNCHRONOUS):
                self.loose(pending)
                self.asynchronous(op)
            elif isinstance(op, ipu.RepeatOp) and _holds_operators(op):
                self.loose(pending)
                with self.builder.repeat(op.count.value.data):
                    self.block(op.body.block)
            else:
                pending.append(op)
                last = _apply_in(op)
                if last is not None:
                    label = last.sym_name.data.rpartition(".")[0]
                    with self.builder.operator(label, node_name(last)):
                        self.steps(pending)
                    pending = []
        self.loose(pending)

    def loose(self, pending: list[Operation]) -> None:
        """Steps that belong to no execute (only in programs written by hand)."""
        self.steps(pending)
        pending.clear()

    def steps(self, ops: Sequence[Operation]) -> None:
        """The steps of one execute; ring shifts that directly follow one another join."""
        run = _Run()
        for op in ops:
            if isinstance(op, ipu.ExchangeOp):
                if not _joins(run, op):
                    self.shifts(run)
                    run = _Run()
                run.exchanges.append(op)
            elif isinstance(op, ipu.CopyOp) and _lands(run, op):
                run.copies.append(op)
            else:
                self.shifts(run)
                run = _Run()
                self.step(op)
        self.shifts(run)

    def shifts(self, run: _Run) -> None:
        """One exchange phase of all shifts in the run, then their copies."""
        if not run.exchanges:
            return
        moves: list[Shift] = []
        for exchange in run.exchanges:
            source, landing = exchange.source.data, exchange.target.data
            copy = next((c for c in run.copies if c.source.data.name == landing.name), None)
            target = landing.name if copy is None else copy.target.data.name
            for name in (source.name, landing.name, target):
                self.var(name)
            moves.append(
                Shift(
                    source.name,
                    landing.name,
                    target,
                    exchange.map.data,
                    self.variables[landing.name].layout.cores,
                    self.ref_bytes(source),
                )
            )
        self.builder.shift(moves)

    # ------------------------------------------------------------------ single operations

    def asynchronous(self, op: Operation) -> None:
        """Transfers from and to HBM."""
        b = self.builder
        if isinstance(op, ipu.CopyStartOp):
            name, v = self.var(op.target)
            limit = None
            if op.axis is not None and op.limit is not None:
                limit = (op.axis.value.data, op.limit.value.data)
            b.preload(name, op.source.root_reference.data, v.layout, v.dtype, limit, node_name(op))
        elif isinstance(op, ipu.StoreStartOp):
            name, v = self.var(op.source)
            b.store(name, op.target.root_reference.data, v.layout, v.dtype, node_name(op))
        elif isinstance(op, ipu.StoreWaitOp):
            b.store_wait(self.var(op.source)[0])

    def step(self, op: Operation) -> None:
        """One operation of an execute."""
        b = self.builder
        if isinstance(op, ipu.CopyWaitOp):
            b.wait(self.var(op.target)[0])
        elif isinstance(op, ipu.FillOp):
            name, v = self.var(op.target)
            b.fill(name, v.layout.cores)
        elif isinstance(op, ipu.ReshardOp):
            self.reshard(op)
        elif isinstance(op, ipu.CopyOp):
            source, v = self.var(op.source.data.name)
            target, _ = self.var(op.target.data.name)
            b.copy(source, target, v.layout.cores, self.ref_bytes(op.target.data))
        elif isinstance(op, ipu.ExecuteOp):
            self.vertex(op)
        elif isinstance(op, ipu.RepeatOp):
            with b.repeat(op.count.value.data):
                self.steps(list(op.body.block.ops))
        elif not isinstance(op, ipu.RowOp):
            raise ElkError(f"{op.name} has no place in an ipu program")

    def reshard(self, op: ipu.ReshardOp) -> None:
        """A change of layout; its kind follows from the roles in the variables' names."""
        source, s = self.var(op.source)
        target, t = self.var(op.target)
        roles = (_role(source), _role(target))
        if op.axis is not None and op.start is not None:
            axis, start = op.axis.value.data, op.start.value.data
            self.builder.reshard("insert", source, s.layout, target, t.layout, t.dtype, axis, start)
            return
        kind = _KINDS.get(roles, "relayout")
        self.builder.reshard(kind, source, s.layout, target, t.layout, t.dtype)

    def vertex(self, op: ipu.ExecuteOp) -> None:
        """A compute set."""
        name = op.codelet.root_reference.data
        if name not in self.codelets:
            raise ElkError(f"no codelet is called @{name}")
        ins, stats, outs = (self.names(list(refs)) for refs in (op.ins, op.stats, op.outs))
        phase, ways = op.phase.data, 1
        kills, uses = outs, [*ins, *stats]
        if phase is VertexPhase.COMBINE:
            ways = self.variables[ins[0]].layout.shape[0]
            kills, uses = stats, ins
        self.builder.vertex(str(phase), self.codelets[name], op.iterate.data, ways, kills, uses)


_ASYNCHRONOUS = (ipu.CopyStartOp, ipu.StoreStartOp, ipu.StoreWaitOp)
_KINDS = {("preload", "execute"): "distribute", ("partial", "gathered"): "reduce"}


def _role(name: str) -> str:
    return name.rpartition(".")[2].rstrip("0123456789")


def _apply_in(op: Operation) -> ipu.ExecuteOp | None:
    """The apply vertex that `op` is or holds; it ends an execute."""
    for inner in op.walk():
        if isinstance(inner, ipu.ExecuteOp) and inner.phase.data is VertexPhase.APPLY:
            return inner
    return None


def _holds_operators(op: ipu.RepeatOp) -> bool:
    """Whether a loop runs over layers: loops inside an execute bind the step of its vertices."""
    steps = op.body.block.args[0]
    return not any(isinstance(o, ipu.ExecuteOp) and o.step is steps for o in op.body.block.ops)


def _joins(run: _Run, op: ipu.ExchangeOp) -> bool:
    """Whether an exchange touches nothing that the run's copies have touched before it."""
    written = {c.target.data.name for c in run.copies}
    read = {c.source.data.name for c in run.copies} | {e.target.data.name for e in run.exchanges}
    return op.source.data.name not in written and op.target.data.name not in read


def _lands(run: _Run, op: ipu.CopyOp) -> bool:
    """Whether a copy takes what one of the run's exchanges brought."""
    return any(e.target.data.name == op.source.data.name for e in run.exchanges)


def chip_of(module: ModuleOp) -> Chip:
    """The chip that the module names. Raises ElkError if it names none."""
    attr = module.attributes.get("icca.chip")
    if not isinstance(attr, ChipAttr):
        raise ElkError("the module names no chip (attribute icca.chip)")
    return attr.to_chip()


def timeline_of(module: ModuleOp, cost: CostModel | None = None) -> Timeline:
    """The timeline of the module's ipu program. `cost` defaults to the chip's own model."""
    chip = chip_of(module)
    return _Extraction(module, chip.cores, cost or device_model(chip)).extract()


def simulate_module(
    module: ModuleOp, chip: Chip | None = None, cost: CostModel | None = None
) -> SimResult:
    """Simulate the module's ipu program on its chip, or on another one with as many cores
    (`chip.ideal()`, say)."""
    return simulate(timeline_of(module, cost), chip or chip_of(module))
