"""`ipu-verify-program`: check what can be known of an ipu program without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects import ipu
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.ipu.attrs import RefAttr, VertexPhase
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import dtype_of
from elk_ir.passes.ipu_contents import check_contents
from elk_ir.passes.ipu_support import (
    Variable,
    box_at,
    misplaced,
    pairs,
    refs,
    stat_access,
    steps_of,
    title,
)
from elk_ir.plan.domain import Access, Operator, Phase
from elk_ir.plan.expr import Expr
from elk_ir.plan.moves import moves


@dataclass
class _State:
    """What is known of the variables at a point of the program."""

    live: set[str] = field(default_factory=set)
    in_flight: set[str] = field(default_factory=set)
    stores: tuple[str, ...] = ()
    killer: dict[str, str] = field(default_factory=dict)

    def key(self) -> tuple[object, ...]:
        return frozenset(self.live), frozenset(self.in_flight), self.stores


class _Checker:
    """Checks a module. Every error is raised where it is found."""

    def __init__(self, module: ModuleOp):
        chip = module.attributes.get("icca.chip")
        self.chip = chip.to_chip() if isinstance(chip, ChipAttr) else None
        self.remotes: dict[str, ipu.RemoteOp] = {}
        self.vars: dict[str, Variable] = {}
        self.codelets: dict[str, Operator] = {}
        self.program: ipu.ProgramOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, ipu.RemoteOp):
                self.remotes[op.sym_name.data] = op
            elif isinstance(op, ipu.VarOp):
                self.vars[op.sym_name.data] = self.declared(op)
            elif isinstance(op, ipu.CodeletOp):
                self.codelets[op.sym_name.data] = op.structured.operator()
            elif isinstance(op, ipu.ProgramOp):
                self.program = op
        if self.program is None:
            raise PassFailedException(
                "the module has no ipu.program: lower it with convert-icca-to-ipu first"
            )
        self.rotating: set[str] = {
            op.target.data.name for op in module.walk() if isinstance(op, ipu.CopyOp)
        }
        self.checked: set[Operation] = set()

    def fail(self, op: Operation, message: str, *notes: str) -> None:
        """Stop at the first thing that is wrong."""
        fail_at(op, f"ipu-verify-program: {message}", *notes)

    # ------------------------------------------------------------------ declarations

    def declared(self, op: ipu.VarOp) -> Variable:
        """A variable inside of the SRAM, large enough for its part of the tensor."""
        _, dtype = shape_dtype(op.type)
        var = Variable(op, op.layout.data, dtype)
        used = var.layout.elements * dtype_of(dtype).itemsize
        if used > op.bytes.value.data:
            self.fail(op, f"{var.where}: its blocks take {used} bytes")
        if var.start < 0 or var.start % dtype_of(dtype).itemsize:
            self.fail(op, f"{var.where}: byte {var.start} is no address of {dtype}")
        if self.chip is not None:
            if var.end > self.chip.usable_sram_per_core_bytes:
                self.fail(
                    op,
                    f"{var.where}: address out of range, a core of {self.chip.name} has"
                    f" {self.chip.usable_sram_per_core_bytes} usable bytes",
                )
            if var.layout.cores > self.chip.cores:
                self.fail(
                    op,
                    f"{var.where}: spread over {var.layout.cores} cores, {self.chip.name} has"
                    f" {self.chip.cores}",
                )
        return var

    def var(self, op: Operation, name: SymbolRefAttr | str) -> Variable:
        """The variable that a symbol names."""
        key = name if isinstance(name, str) else name.root_reference.data
        if key not in self.vars:
            self.fail(op, f"no variable is called @{key}")
        return self.vars[key]

    def remote(self, op: Operation, name: SymbolRefAttr) -> ipu.RemoteOp:
        """The remote buffer that a symbol names."""
        key = name.root_reference.data
        if key not in self.remotes:
            self.fail(op, f"no remote buffer is called @{key}")
        return self.remotes[key]

    # ------------------------------------------------------------------ order

    def run(self) -> None:
        """Check the program from its first to its last operation."""
        assert self.program is not None
        state = _State()
        self.block(self.program.body.block, state)
        for name in sorted(state.in_flight):
            self.fail(
                self.vars[name].op, f"a copy into {self.vars[name].where} is never waited for"
            )
        for name in state.stores:
            self.fail(
                self.vars[name].op, f"a store from {self.vars[name].where} is never waited for"
            )
        check_contents(self.program, self.vars, self.codelets, self.rotating)

    def block(self, block: Block, state: _State) -> None:
        """Follow the operations; a loop's body until its state repeats."""
        for op in block.ops:
            if isinstance(op, ipu.RepeatOp):
                for _ in range(op.count.value.data):
                    before = state.key()
                    self.block(op.body.block, state)
                    if state.key() == before:
                        break
                continue
            if op not in self.checked:
                self.checked.add(op)
                self.check(op)
            self.follow(op, state)

    def follow(self, op: Operation, state: _State) -> None:
        """What an operation reads and writes, and whether it may."""
        match op:
            case ipu.CopyStartOp():
                target = self.var(op, op.target)
                self.write(op, target, state)
                state.live.discard(target.name)
                state.in_flight.add(target.name)
            case ipu.CopyWaitOp():
                target = self.var(op, op.target)
                if target.name not in state.in_flight:
                    self.fail(op, f"waits for a copy into {target.where} that was not started")
                state.in_flight.discard(target.name)
                state.live.add(target.name)
            case ipu.StoreStartOp():
                source = self.var(op, op.source)
                self.read(op, source, state)
                state.stores = (*state.stores, source.name)
            case ipu.StoreWaitOp():
                source = self.var(op, op.source)
                if source.name not in state.stores:
                    self.fail(op, f"waits for a store from {source.where} that was not started")
                i = state.stores.index(source.name)
                state.stores = (*state.stores[:i], *state.stores[i + 1 :])
            case ipu.FillOp():
                self.write(op, self.var(op, op.target), state)
            case ipu.ReshardOp():
                source, target = self.var(op, op.source), self.var(op, op.target)
                self.read(op, source, state)
                if op.axis is not None:
                    self.read(op, target, state)
                self.write(op, target, state, source)
            case ipu.ExchangeOp():
                source = self.var(op, op.source.data.name)
                self.read(op, source, state)
                self.write(op, self.var(op, op.target.data.name), state, source)
            case ipu.CopyOp():
                source, target = (self.var(op, r.data.name) for r in (op.source, op.target))
                self.read(op, source, state)
                self.read(op, target, state)
                self.write(op, target, state, source)
            case ipu.ExecuteOp():
                read = [self.var(op, r.data.name) for r in refs(op.ins)]
                stats = [self.var(op, r.data.name) for r in refs(op.stats)]
                written = [self.var(op, r.data.name) for r in refs(op.outs)]
                if op.phase.data is VertexPhase.COMBINE:
                    written = [*stats, *written]
                else:
                    read += stats
                for var in read:
                    self.read(op, var, state)
                for var in written:
                    self.write(op, var, state, *read)
            case _:
                pass

    def read(self, op: Operation, var: Variable, state: _State) -> None:
        """A variable may be read once it is written, until its bytes are written again."""
        if var.name in state.in_flight:
            self.fail(op, f"{title(op)} reads {var.where} before the preload has landed")
        if var.name not in state.live:
            killer = state.killer.get(var.name)
            why = "that was never written" if killer is None else f"that {killer} has overwritten"
            self.fail(op, f"{title(op)} reads {var.where} {why}")

    def write(self, op: Operation, var: Variable, state: _State, *operands: Variable) -> None:
        """Writing a variable ends whatever shares bytes with it, unless someone needs that."""
        for operand in operands:
            if operand.name != var.name and operand.overlaps(var):
                self.fail(op, f"{title(op)} writes {var.where} over its operand {operand.where}")
        for name in sorted(state.in_flight):
            if self.vars[name].overlaps(var):
                self.fail(
                    op,
                    f"{title(op)} writes {var.where} while a preload is on its way into"
                    f" {self.vars[name].where}",
                )
        for name in state.stores:
            if self.vars[name].overlaps(var):
                self.fail(
                    op,
                    f"{title(op)} writes {var.where} while {self.vars[name].where} is still being"
                    " stored",
                )
        for name in [n for n in state.live if n != var.name and self.vars[n].overlaps(var)]:
            state.live.discard(name)
            state.killer[name] = title(op)
        state.live.add(var.name)

    # ------------------------------------------------------------------ each operation

    def check(self, op: Operation) -> None:
        """Types, shapes, slots and cores of one operation, for all steps."""
        match op:
            case ipu.CopyStartOp():
                self.check_remote(op, self.var(op, op.target), op.source, op.row)
            case ipu.StoreStartOp():
                self.check_remote(op, self.var(op, op.source), op.target, op.row)
            case ipu.ReshardOp():
                self.check_reshard(op)
            case ipu.ExchangeOp():
                self.check_exchange(op)
            case ipu.CopyOp():
                source, target = (self.var(op, r.data.name) for r in (op.source, op.target))
                have = prod(self.part(op, op.source, source, op.step))
                need = prod(self.part(op, op.target, target, op.step))
                if need > have or source.dtype != target.dtype:
                    self.fail(
                        op,
                        f"copies {need} elements of {target.dtype} out of {have} of {source.dtype}",
                    )
            case ipu.ExecuteOp():
                self.check_vertex(op)
            case _:
                pass

    def check_remote(
        self,
        op: ipu.CopyStartOp | ipu.StoreStartOp,
        var: Variable,
        symbol: SymbolRefAttr,
        row: SSAValue | None,
    ) -> None:
        """A copy between a remote buffer and a variable."""
        remote = self.remote(op, symbol)
        name = remote.sym_name.data
        rows = steps_of(row)
        if rows.size and (rows.min() < 0 or rows.max() >= remote.layers):
            self.fail(
                op, f"reaches rows {rows.min()} to {rows.max()} of @{name}, it has {remote.layers}"
            )
        shape, dtype = shape_dtype(remote.type)
        if isinstance(op, ipu.CopyStartOp) and op.rows is not None:
            index, _ = shape_dtype(self.remote(op, op.rows).type)
            shape = (*index, *shape[1:])
        if op.axis is not None:
            axis = op.axis.value.data
            if isinstance(op, ipu.StoreStartOp) and op.start is not None:
                end = op.start.value.data + var.layout.shape[axis]
            elif isinstance(op, ipu.CopyStartOp) and op.limit is not None:
                end = op.limit.value.data
            elif isinstance(op, ipu.StoreStartOp) and op.rows is not None:
                index, kind = shape_dtype(self.remote(op, op.rows).type)
                if index != (var.layout.shape[axis],) or dtype_of(kind).kind not in "iu":
                    self.fail(
                        op,
                        f"{title(op)} stores {var.layout.shape[axis]} rows of {var.where}; @"
                        f"{op.rows.root_reference.data} names them as {kind}{list(index)}",
                    )
                end = 0
            else:
                end = 0
            if end > shape[axis]:
                self.fail(op, f"reaches entry {end - 1} of @{name}, which has {shape[axis]}")
            # Rows may be named twice, so that there are more of them than the tensor has.
            by_rows = isinstance(op, ipu.StoreStartOp) and op.rows is not None
            if by_rows or var.layout.shape[axis] <= shape[axis]:
                shape = (*shape[:axis], var.layout.shape[axis], *shape[axis + 1 :])
        if (shape, dtype) != (var.layout.shape, var.dtype):
            self.fail(
                op,
                f"{var.where} holds {var.dtype}{list(var.layout.shape)}, @{name} gives"
                f" {dtype}{list(shape)}",
            )

    def check_reshard(self, op: ipu.ReshardOp) -> None:
        """Every element that a core has to receive is held by some core, and arrives once."""
        source, target = self.var(op, op.source), self.var(op, op.target)
        if source.dtype != target.dtype:
            self.fail(op, f"moves {source.dtype} into {target.dtype}")
        shape, wanted = source.layout.shape, target.layout.shape
        axis = None if op.axis is None else op.axis.value.data
        start = 0 if op.start is None else op.start.value.data
        fits = all(
            start + a <= b if j == axis else a == b
            for j, (a, b) in enumerate(zip(shape, wanted, strict=False))
        )
        if len(shape) != len(wanted) or not fits:
            self.fail(op, f"moves a tensor of {list(shape)} into one of {list(wanted)}")
        bounds = target.layout.bounds.copy()
        if axis is not None:
            bounds[..., axis, 0] = np.maximum(bounds[..., axis, 0], start)
            bounds[..., axis, 1] = np.minimum(bounds[..., axis, 1], start + shape[axis])
        size = np.maximum(bounds[..., 1] - bounds[..., 0], 0).prod(axis=-1)
        size = np.where(target.layout.held, size, 0)
        need = size.reshape(target.layout.cores, -1).sum(axis=1)
        plan = moves(source.layout, target.layout, axis, start)
        got = np.bincount(plan.target_core, plan.elements, target.layout.cores)
        if (got != need).any():
            core = int(np.flatnonzero(got != need)[0])
            self.fail(
                op,
                f"{title(op)}: core {core} receives {int(got[core])} elements of {int(need[core])}"
                f" that {target.where} has there",
            )

    def check_exchange(self, op: ipu.ExchangeOp) -> None:
        """The slots fit the landing buffer and every core receives from a core that exists."""
        source = self.var(op, op.source.data.name)
        target = self.var(op, op.target.data.name)
        have = prod(self.part(op, op.target, target, op.step))
        need = prod(self.part(op, op.source, source, op.step))
        if need > have or source.dtype != target.dtype:
            self.fail(
                op,
                f"{need} elements of {source.dtype} do not fit {have} of {target.dtype} in"
                f" {target.where}",
            )
        cores = np.arange(target.layout.cores)
        for step in steps_of(op.step):
            senders = np.broadcast_to(op.map.data.evaluate(c=cores, t=int(step), s=0), cores.shape)
            if senders.min() < 0 or senders.max() >= source.layout.cores:
                self.fail(
                    op,
                    f"{title(op)}: receives from core {int(senders.max())}, {source.where} is on"
                    f" {source.layout.cores} cores",
                )

    def slots(
        self,
        op: Operation,
        exprs: Sequence[Expr | None],
        counts: Sequence[int],
        step: SSAValue | None,
    ) -> list[np.ndarray | None]:
        """The slots an expression names at each step; all of them in range."""
        if len(exprs) != len(counts):
            self.fail(op, f"{title(op)}: {len(exprs)} slots for {len(counts)} axes")
        found: list[np.ndarray | None] = []
        steps = steps_of(step)
        for expr, count in zip(exprs, counts, strict=True):
            if expr is None:
                found.append(None)
                continue
            if expr.uses("c") or expr.uses("s") or (step is None and expr.uses("t")):
                self.fail(op, f"{title(op)}: slot {expr} depends on more than the step")
            values = np.broadcast_to(expr.evaluate(t=steps, c=0, s=0), steps.shape)
            if values.size and (values.min() < 0 or values.max() >= count):
                bad = int(values.max() if values.max() >= count else values.min())
                self.fail(op, f"{title(op)}: slot {expr} reaches {bad}, there are {count}")
            found.append(values)
        return found

    def part(
        self, op: Operation, reference: RefAttr, var: Variable, step: SSAValue | None
    ) -> tuple[int, ...]:
        """Shape of what a reference names on each core: slots left whole, then the block."""
        exprs = reference.data.slots
        if not exprs:
            return (*var.layout.slots, *var.layout.block_shape)
        self.slots(op, exprs, var.layout.slots, step)
        kept = (n for e, n in zip(exprs, var.layout.slots, strict=True) if e is None)
        return (*kept, *var.layout.block_shape)

    # ------------------------------------------------------------------ vertices

    def check_vertex(self, op: ipu.ExecuteOp) -> None:
        """Blocks have the shapes and places that the codelet reads and writes."""
        name = op.codelet.root_reference.data
        if name not in self.codelets:
            self.fail(op, f"no codelet is called @{name}")
        codelet, iterate = self.codelets[name], op.iterate.data
        if len(iterate.axes) != len(codelet.dims):
            self.fail(op, f"@{name} iterates over {len(codelet.dims)} dimensions")
        at = self.slots(op, [e.data for e in op.at], iterate.slots, op.step)
        stats = [stat_access(codelet, i) for i in range(len(codelet.stats))]
        expected: list[tuple[str, RefAttr, Access, bool]] = []
        phase = op.phase.data
        if phase is VertexPhase.COMBINE:
            expected += pairs("partial", refs(op.ins), stats, lead=True)
            expected += pairs("statistic", refs(op.stats), stats)
        else:
            other = Phase.APPLY if phase is VertexPhase.LOCAL else Phase.LOCAL
            operands = [a for a in codelet.operands if a.phase is not other]
            results = codelet.results if phase is VertexPhase.APPLY else ()
            if len(op.ins) != len(operands) or len(op.outs) != len(results):
                self.fail(
                    op,
                    f"{title(op)} takes {len(operands)} operands and {len(results)} results, is"
                    f" given {len(op.ins)} and {len(op.outs)}",
                )
            expected += pairs("operand", refs(op.ins), operands)
            expected += pairs("statistic", refs(op.stats), stats, lead=None)
            expected += pairs("result", refs(op.outs), results)
        if len(op.stats) != len(stats) or (phase is VertexPhase.COMBINE and op.outs.data):
            self.fail(op, f"{title(op)}: @{name} has {len(stats)} statistics")
        for what, reference, access, lead in expected:
            self.check_block(op, what, reference, access, lead, at)

    def check_block(
        self,
        op: ipu.ExecuteOp,
        what: str,
        reference: RefAttr,
        access: Access,
        lead: bool,
        at: Sequence[np.ndarray | None],
    ) -> None:
        """One block: element type, shape, and that it is the image of the iteration box."""
        var, iterate = self.var(op, reference.data.name), op.iterate.data
        if var.dtype != access.dtype:
            self.fail(op, f"{title(op)}: {what} {var.where} is {var.dtype}, not {access.dtype}")
        if var.layout.cores < iterate.cores:
            self.fail(
                op,
                f"{title(op)} runs on {iterate.cores} cores, {var.where} is on {var.layout.cores}",
            )
        skip = len(var.layout.axes) - len(access.axes)
        block = var.layout.block_shape[skip:]
        wanted = access.block_shape(iterate.block_shape)
        if block != wanted or skip not in (0, 1) or (lead and skip != 1):
            self.fail(
                op, f"{title(op)} expects a block of {wanted} as {what}, {var.where} has {block}"
            )
        slots = self.slots(op, reference.data.slots, var.layout.slots, op.step)
        if var.name in self.rotating:
            return
        for i in range(len(steps_of(op.step))):
            box = box_at(iterate, at, i)
            place = tuple(slice(None) if s is None else int(s[i]) for s in slots)
            origins = var.layout.origins[(slice(0, iterate.cores), *place)][..., skip:]
            bounds = var.layout.bounds[(slice(0, iterate.cores), *place)][..., skip:, :]
            wrong = misplaced(op, what, var, access, origins, bounds, box, iterate.block_shape)
            if wrong is not None:
                self.fail(op, wrong)


@dataclass(frozen=True)
class IpuVerifyProgramPass(ModulePass):
    """Fail unless the program obeys the rules of docs/dialects/ipu.md; change nothing.

        elk-opt model.mlir -p 'ipu-verify-program'

    Variables lie inside the SRAM; symbols exist; copies are waited for once on every path; nothing
    is read before it is written or after it is overwritten, and no bytes are touched while a copy
    is on its way into them; slots and cores are in range at every step; reshards deliver every
    element once; vertices read and write the blocks that their iteration box says, also while a
    ring moves them; sums cover every point of a reduction once (`ipu_contents`). What depends on
    values is left to the virtual machine.
    """

    name = "ipu-verify-program"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _Checker(op).run()
