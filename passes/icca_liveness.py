"""When each buffer of an icca program is live: from IR to a memory-allocation problem.

Time runs through the program in order, loop bodies once. A preload or a store takes one point, an
execute one point per phase. A preload's buffer lives from its issue until its execute is done with
it; a result until its last reader; a store's source until the execute after the store has ended.
Values that a loop carries have one buffer at entry, around the loop and at exit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from elk_ir.dialects.icca.ops import (
    ExecuteOp,
    PreloadOp,
    ProgramOp,
    RepeatOp,
    StoreOp,
    YieldOp,
)
from elk_ir.memory.lifetimes import Buffer, Loop, Problem
from elk_ir.passes.icca_support import (
    buffers_of,
    chip_of,
    in_place,
    offset_of,
    program_of,
    set_offset,
    yield_of,
)
from elk_ir.plan.buffers import PHASES, ExecBuffer, ExecPhase
from elk_ir.plan.domain import Phase


@dataclass(frozen=True)
class Placed:
    """A buffer of the problem and the buffers of executes that lie at its address."""

    buffer: Buffer
    uses: tuple[tuple[ExecuteOp, str, int], ...]

    @property
    def offset(self) -> int | None:
        """The offset in the IR, None before allocation; -1 where the uses disagree."""
        found = {offset_of(*use) for use in self.uses}
        return found.pop() if len(found) == 1 else -1

    def place(self, offset: int) -> None:
        """Write the offset into the IR."""
        for use in self.uses:
            set_offset(*use, offset)


@dataclass
class Liveness:
    """The allocation problem of a program, tied to the IR."""

    problem: Problem
    placed: list[Placed] = field(default_factory=list)
    times: dict[Operation, int] = field(default_factory=dict)


@dataclass
class _Timeline:
    start: dict[Operation, int] = field(default_factory=dict)
    end: dict[Operation, int] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)

    def walk(self, block: Block, time: int) -> int:
        for op in block.ops:
            self.start[op] = time
            if isinstance(op, ExecuteOp):
                time += PHASES
            elif isinstance(op, RepeatOp):
                time = self.walk(op.body.block, time)
                if time > self.start[op]:
                    self.loops.append(Loop(self.start[op], time))
            elif isinstance(op, PreloadOp | StoreOp):
                time += 1
            self.end[op] = time
        return time


def store_end(store: StoreOp) -> Operation | None:
    """The execute at whose end a store is complete: the next one in the block; None where a loop
    or the end of the block comes first (the store is then waited for there)."""
    op = store.next_op
    while op is not None and not isinstance(op, RepeatOp | YieldOp):
        if isinstance(op, ExecuteOp):
            return op
        op = op.next_op
    return None


def store_barrier(store: StoreOp) -> Operation | None:
    """The loop or yield in front of which a store is waited for, if no execute follows it."""
    op = store.next_op
    while op is not None and not isinstance(op, RepeatOp | YieldOp):
        op = op.next_op
    return op


class _Collector:
    def __init__(self, module: ModuleOp):
        self.program: ProgramOp = program_of(module)
        self.capacity = chip_of(module).usable_sram_per_core_bytes
        self.time = _Timeline()
        self.last = self.time.walk(self.program.body.block, 0)
        self.placed: list[Placed] = []
        self.names: dict[str, int] = {}
        self.done: set[SSAValue] = set()

    def name(self, execute: ExecuteOp, role: str, index: int) -> str:
        base = f"{execute.label.data}.{role}{index}"
        count = self.names.get(base, 0)
        self.names[base] = count + 1
        return base if count == 0 else f"{base}#{count}"

    def add(
        self,
        execute: ExecuteOp,
        role: str,
        index: int,
        size: int,
        start: int,
        end: int,
        *,
        uses: tuple[tuple[ExecuteOp, str, int], ...] | None = None,
        entry: int | None = None,
        exit_: int | None = None,
        cyclic: bool = False,
    ) -> None:
        buffer = Buffer(
            self.name(execute, role, index),
            size,
            start,
            end,
            group=execute.label.data,
            cyclic=cyclic,
            entry=entry,
            exit=exit_,
        )
        self.placed.append(Placed(buffer, uses or ((execute, role, index),)))

    def collect(self) -> Liveness:
        for op in self.program.walk():
            if isinstance(op, ExecuteOp):
                base = self.time.start[op]
                for b in buffers_of(op):
                    if b.role == "preload":
                        self.handle(op, b)
                    elif b.role == "result":
                        self.result(op, b)
                    else:
                        start, end = base + b.first, base + b.last + 1
                        self.add(op, b.role, b.index, b.size_bytes, start, end)
        problem = Problem(
            tuple(p.buffer for p in self.placed), self.capacity, loops=tuple(self.time.loops)
        )
        return Liveness(problem, self.placed, self.time.start)

    # ------------------------------------------------------------------ handles

    def handle(self, execute: ExecuteOp, b: ExecBuffer) -> None:
        """The buffer of a preload, from issue to the last phase that reads it."""
        value = execute.ins[b.index]
        if value in self.done:
            return
        self.done.add(value)
        used = self.time.start[execute] + b.last + 1
        owner = value.owner
        if isinstance(owner, PreloadOp):
            start = 0 if owner.init is not None else self.time.start[owner]
            used = self.last if owner.init is not None else used
            self.add(execute, "preload", b.index, b.size_bytes, start, used)
            return
        loop, position = carried_by(value)
        arg, result = loop.body.block.args[position + 1], loop.outs[position]
        self.done |= {arg, result}
        inside = _handle_user(arg)
        after = _handle_user(result)
        init, yielded = loop.inits[position].owner, yield_of(loop).values[position].owner
        assert isinstance(init, PreloadOp) and isinstance(yielded, PreloadOp)
        uses = [(e, "preload", i) for e, i in (inside, after) if e is not None]
        exit_ = self.time.end[loop]
        if after[0] is not None:
            exit_ = self.time.start[after[0]] + b.last + 1
        assert inside[0] is not None
        self.add(
            inside[0],
            "preload",
            inside[1],
            b.size_bytes,
            self.time.start[yielded],
            self.time.start[inside[0]] + b.last + 1,
            uses=tuple(uses),
            entry=self.time.start[init],
            exit_=exit_,
            cyclic=True,
        )

    # ------------------------------------------------------------------ results

    def result(self, execute: ExecuteOp, b: ExecBuffer) -> None:
        """The buffer of a resident tensor, from the phase that writes it to its last reader."""
        value = execute.outs[b.index]
        start = self.time.start[execute] + b.first
        written = self.time.start[execute] + b.last + 1
        carried = _carriers(value)
        if not carried:
            end = max([written, *self.uses(value, execute.parent_block())])
            self.add(execute, "result", b.index, b.size_bytes, start, end)
            return
        # A carried value: described once, by the execute inside the loop that yields it.
        loop, position, side = carried[0]
        if side == "init":
            return
        inner = loop.inits[position].owner
        assert isinstance(inner, ExecuteOp)
        init_index = loop.inits[position]
        assert isinstance(init_index, OpResult)
        arg, result = loop.body.block.args[position + 1], loop.outs[position]
        end = max([self.time.start[loop], *self.uses(arg, loop.body.block)])
        exit_ = max([self.time.end[loop], *self.uses(result, loop.parent_block())])
        self.add(
            execute,
            "result",
            b.index,
            b.size_bytes,
            start,
            max(end, self.time.start[loop] + 1),
            uses=((execute, "result", b.index), (inner, "result", init_index.index)),
            entry=self.time.start[inner] + b.first,
            exit_=exit_,
            cyclic=True,
        )

    def uses(self, value: SSAValue, home: Block | None) -> list[int]:
        """The times at which readers of a resident value are done with it."""
        times: list[int] = []
        for use in value.uses:
            op = use.operation
            if isinstance(op, ExecuteOp):
                base = self.time.start[op]
                done = base + ExecPhase.GATHER + 1
                if use.index < len(op.ins) and in_place(op)[use.index]:
                    access = op.operator().operands[use.index]
                    last = ExecPhase.TILE if access.phase is Phase.LOCAL else ExecPhase.APPLY
                    done = base + last + 1
            elif isinstance(op, StoreOp):
                until = store_end(op)
                barrier = store_barrier(op)
                if until is not None:
                    done = self.time.end[until]
                elif barrier is not None:
                    done = self.time.start[barrier]
                else:
                    done = self.last
                done = max(done, self.time.end[op])
            elif isinstance(op, RepeatOp | YieldOp):
                done = self.time.start[op]
            else:
                continue
            # A reader inside a loop that the value enters from outside reads it every iteration.
            block = op.parent_block()
            while block is not None and block is not home:
                loop = block.parent_op()
                assert loop is not None
                if isinstance(loop, RepeatOp):
                    done = max(done, self.time.end[loop])
                block = loop.parent_block()
            times.append(done)
        return times


def carried_by(value: SSAValue) -> tuple[RepeatOp, int]:
    """The loop that carries a handle, and its position."""
    if isinstance(value, OpResult) and isinstance(value.op, RepeatOp):
        return value.op, value.index
    assert isinstance(value, BlockArgument)
    loop = value.owner.parent_op()
    assert isinstance(loop, RepeatOp)
    return loop, value.index - 1


def _handle_user(value: SSAValue) -> tuple[ExecuteOp | None, int]:
    for use in value.uses:
        if isinstance(use.operation, ExecuteOp):
            return use.operation, use.index
    return None, 0


def _carriers(value: SSAValue) -> list[tuple[RepeatOp, int, str]]:
    """Loops of which `value` is an initial or a yielded carried value."""
    found: list[tuple[RepeatOp, int, str]] = []
    for use in value.uses:
        op = use.operation
        if isinstance(op, RepeatOp):
            found.append((op, use.index, "init"))
        elif isinstance(op, YieldOp) and isinstance(parent := op.parent_op(), RepeatOp):
            found.append((parent, use.index, "yield"))
    return found


def liveness(module: ModuleOp) -> Liveness:
    """Every buffer of the module's program with its lifetime. All executes need plans."""
    return _Collector(module).collect()
