"""From icca to the scheduler's model and back: runs of executes as programs, schedules as IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from elk_ir.chips.chip import Chip
from elk_ir.cost.device import device_model
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import ExecuteOp, HbmOp, PreloadOp, RepeatOp, StoreOp, YieldOp
from elk_ir.dialects.types import shape_dtype
from elk_ir.passes.icca_liveness import Liveness
from elk_ir.passes.icca_move_preloads import (
    carry_preloads,
    earliest_place,
    may_carry,
    may_delay,
    order_block,
    own_preloads,
    read_in,
    stores_by_place,
)
from elk_ir.passes.icca_support import (
    chip_of,
    hbm_tensors,
    plan_of,
    program_of,
    set_plan,
    yield_of,
)
from elk_ir.plan.buffers import PHASES, Source, execute_buffers
from elk_ir.plan.enumerate import enumerate_plans, smallest_plan
from elk_ir.plan.plan import Plan
from elk_ir.schedule.fold import folded, unfolded
from elk_ir.schedule.model import (
    Edge,
    Op,
    Program,
    Rules,
    Schedule,
    Store,
    evaluate,
    store_places,
)
from elk_ir.schedule.options import Table, front_table, plan_table, waiting_table
from elk_ir.schedule.pack import overflow_bytes
from elk_ir.schedule.policies import Policy


@dataclass
class Run:
    """Executes of one block with nothing but preloads, stores and layers between them, and the
    loop whose body they are or that follows them (None: the end of the block follows)."""

    executes: list[ExecuteOp]
    body_of: RepeatOp | None
    before: Operation | None


def runs_of(block: Block, body_of: RepeatOp | None = None) -> list[Run]:
    """The runs of a block, those of loops in it at their place."""
    runs: list[Run] = []
    current = Run([], body_of, None)
    for op in block.ops:
        if isinstance(op, ExecuteOp):
            current.executes.append(op)
        elif isinstance(op, RepeatOp):
            current.before = op
            runs.append(current)
            runs += runs_of(op.body.block, op)
            current = Run([], None, None)
    if isinstance(block.last_op, YieldOp):
        current.before = block.last_op
    runs.append(current)
    if any(isinstance(op, RepeatOp) for op in block.ops):
        # The body of an outer loop is not one run: nothing is carried around it.
        for run in runs:
            if run.body_of is body_of:
                run.body_of = None
    return runs


class Tables:
    """The tables of executes: of all their plans, or of the one that they have."""

    def __init__(self, chip: Chip, cost: CostModel, known: dict[object, Table] | None = None):
        self.chip, self.cost = chip, cost
        self.known: dict[object, Table] = {} if known is None else known
        self.least: dict[object, tuple[Plan, int]] = {}

    def free(self, execute: ExecuteOp) -> Table:
        """All plans worth knowing of an execute."""
        key = (execute.operator(), execute.sources)
        if key not in self.known:
            front = enumerate_plans(key[0], self.chip, key[1], self.cost)
            self.known[key] = front_table(front, self.chip, key[1], self.cost)
        return self.known[key]

    def fixed(self, execute: ExecuteOp) -> Table:
        """The plan that an execute has."""
        key = (execute.operator(), execute.sources, plan_of(execute))
        if key not in self.known:
            self.known[key] = plan_table(key[0], key[2], self.chip, key[1], self.cost)
        return self.known[key]

    def smallest(self, execute: ExecuteOp) -> tuple[Plan, int]:
        """The plan with the least bytes in which an execute could run, and these bytes, whether the
        chip has them or not."""
        key = (execute.operator(), execute.sources)
        table = self.known.get(key)
        if table is not None and len(table):
            order = np.lexsort((table.compute_s + table.exchange_s, table.execute_bytes))
            best = int(order[0])
            return table.plans[best], int(table.execute_bytes[best])
        if key not in self.least:
            self.least[key] = smallest_plan(key[0], self.chip, key[1], self.cost)
        return self.least[key]


def exchange_phases(execute: ExecuteOp) -> int:
    """Phases in which resident operands are brought into place: neighbouring ones share a phase,
    every inserted entry has its own."""
    sources = execute.sources
    starts = sum(
        s is Source.RESIDENT and (v == 0 or sources[v - 1] is not Source.RESIDENT)
        for v, s in enumerate(sources)
    )
    return starts + len(execute.entries)


def preload_size(execute: ExecuteOp, operand: int) -> int:
    """Bytes a core of one operand in preload-state."""
    local = (False,) * len(execute.ins)
    buffers = execute_buffers(execute.operator(), plan_of(execute), execute.sources, local)
    wanted = ("preload", operand)
    return next(b.size_bytes for b in buffers if (b.role, b.index) == wanted)


def _carried(value: SSAValue) -> bool:
    """Whether a value is a handle that a loop carries."""
    owner = value.owner
    if isinstance(owner, Block):
        owner = owner.parent_op()
    return isinstance(value.type, HandleType) and isinstance(owner, RepeatOp)


def carried_bytes(execute: ExecuteOp) -> int:
    """Bytes of the preloads that a loop in front of an execute has issued for it."""
    seen: set[SSAValue] = set()
    total = 0
    for v, value in enumerate(execute.ins):
        if isinstance(value, OpResult) and _carried(value) and value not in seen:
            seen.add(value)
            total += preload_size(execute, v)
    return total


def pending_preloads(loop: RepeatOp) -> list[PreloadOp]:
    """The preloads in front of a loop that fill the handles it carries."""
    return [v.owner for v in loop.inits if isinstance(v.owner, PreloadOp)]


@dataclass
class Scheduling:
    """One attempt to schedule a module with a policy.

    keep: executes keep the plans they have. resident_bytes: by the number of an execute in the
    program as it was given, what other tensors take while it runs. slack_bytes: held back, and
    outside_bytes more of them outside of loops.
    bare_fits: its plans have addresses with nothing ahead and stores where they are.
    addresses_bytes: within these, preloads of loops must find addresses (None: not looked at).
    """

    module: ModuleOp
    policy: Policy
    keep: bool
    resident_bytes: Sequence[int]
    slack_bytes: int
    tables: Tables
    bare_fits: bool = False
    addresses_bytes: int | None = None
    outside_bytes: int = 0
    fixed: set[ExecuteOp] = field(default_factory=set)
    number: dict[ExecuteOp, int] = field(default_factory=dict)
    schedules: list[tuple[Program, Schedule]] = field(default_factory=list)
    """Of loops first, of one layer where the body has several copies of it."""
    time_s: float = 0.0
    """What the model says: iterations of loops times their steady state, and the rest, to which an
    iteration that was peeled off belongs."""
    hbm: Mapping[str, HbmOp] = field(default_factory=dict)
    read: dict[Block, frozenset[str]] = field(default_factory=dict)
    """Of blocks, the HBM tensors that their preloads read."""

    @property
    def separate(self) -> bool:
        """Whether preloads have an SRAM of their own: a reference machine."""
        return self.tables.chip.preload_sram == "separate"

    @property
    def without_addresses(self) -> bool:
        """Whether a loop's schedule has no addresses in the model, although they were asked for."""
        return any(overflow_bytes(program, schedule) > 0 for program, schedule in self.schedules)

    def run(self) -> None:
        """Choose and write plans and places into the module. Raises CapacityError."""
        program = program_of(self.module)
        self.hbm = hbm_tensors(self.module)
        for i, op in enumerate(o for o in program.walk() if isinstance(o, ExecuteOp)):
            self.number[op] = i
            # What a loop carries already ties the plans of several executes.
            if op.plan is not None and (self.keep or any(_carried(v) for v in op.ins)):
                self.fixed.add(op)
        for run in runs_of(program.body.block):
            if run.body_of is not None:
                self.tie(run.body_of, inwards=True)
                self.loop(run)
        for run in runs_of(program.body.block):
            if run.body_of is None:
                self.straight(run)

    # ------------------------------------------------------------------ programs

    def program(self, run: Run, periodic: bool) -> Program:
        """The model of a run."""
        index = {execute: i for i, execute in enumerate(run.executes)}
        ops: list[Op] = []
        for execute in run.executes:
            table = (
                self.tables.fixed(execute) if execute in self.fixed else self.tables.free(execute)
            )
            own, ahead = self.preloads(execute, periodic)
            places = [earliest_place(p, self.hbm) for p in own]
            earliest = max(places, default=-1)
            if periodic and not ahead and earliest < 0 and run.body_of is not None:
                carried = all(may_carry(p, run.body_of, self.hbm) for p in own)
                earliest = -1 if carried else 0
            ops.append(
                Op(
                    execute.label.data,
                    table,
                    inputs=tuple(
                        self.edge(v, index)
                        for v, s in zip(execute.ins, execute.sources, strict=False)
                        if s is Source.RESIDENT
                    ),
                    loads=bool(own),
                    resident_bytes=self.resident(run, execute, table),
                    smallest_bytes=0 if len(table) else self.tables.smallest(execute)[1],
                    earliest=earliest,
                    ahead=ahead,
                    phases=exchange_phases(execute),
                    single=len(own) < 2,
                )
            )
        if not periodic and isinstance(run.before, RepeatOp):
            for preload in pending_preloads(run.before):
                ops.append(Op("loop", waiting_table(self.preload_bytes(preload))))
        return Program(
            tuple(ops),
            Rules.of(self.tables.chip),
            periodic,
            tuple(
                Store(place, sum(map(self.store_s, group)), self.may_delay(group))
                for place, group in self.stores(run).items()
            ),
            run.body_of.count.value.data if periodic and run.body_of is not None else 1,
            self.addresses_bytes,
        )

    @staticmethod
    def stores(run: Run) -> dict[int, list[StoreOp]]:
        """The stores of a run by place, those behind its last execute too if something follows."""
        block = run.executes[0].parent_block() if run.executes else None
        if block is None:
            return {}
        found = stores_by_place(block, run.executes)
        if run.before is None:
            found.pop(len(run.executes), None)
        return found

    def store_s(self, store: StoreOp) -> float:
        """Seconds of HBM that a store takes."""
        shape, dtype = shape_dtype(store.source.type)
        return prod(shape) * itemsize(dtype) / self.tables.chip.hbm_bytes_per_s

    def may_delay(self, stores: Sequence[StoreOp]) -> bool:
        """Whether stores of one block may be issued later."""
        if self.bare_fits:
            return False
        block = stores[0].parent_block()
        assert block is not None
        if block not in self.read:
            self.read[block] = read_in(block)
        return all(may_delay(store, self.hbm, self.read[block]) for store in stores)

    @staticmethod
    def preloads(execute: ExecuteOp, periodic: bool) -> tuple[list[PreloadOp], bool]:
        """The preloads of an execute in its block, and whether they are issued an iteration ahead:
        of a handle that a loop carries, the one that its body issues again."""
        again: dict[PreloadOp, None] = {}
        for v in execute.ins if periodic else ():
            loop = v.owner.parent_op() if isinstance(v, BlockArgument) else None
            if isinstance(v, BlockArgument) and isinstance(loop, RepeatOp):
                issued = yield_of(loop).values[v.index - 1].owner
                if isinstance(issued, PreloadOp):
                    again[issued] = None
        own = own_preloads(execute)
        return ([*again, *own], True) if again else (own, False)

    def resident(self, run: Run, execute: ExecuteOp, table: Table) -> int:
        """Bytes that an execute can't have: tensors of others, and what is held back of the rest,
        as long as its smallest plan has room. Beside that one nothing waits, so that it has no use
        for more: it is what a program comes down to that finds no addresses otherwise."""
        taken = self.resident_bytes[self.number[execute]]
        if not self.separate:  # there, what waits for later executes is in the other SRAM
            taken += self.held(run, execute)
        least = int(table.execute_bytes.min()) if len(table) else 0
        spare = self.tables.chip.usable_sram_per_core_bytes - taken - least
        slack = self.slack_bytes + (self.outside_bytes if run.body_of is None else 0)
        if self.bare_fits:
            # What others take is the most of all phases, and may be less when most is needed.
            return max(0, taken + min(slack, spare))
        return taken + max(0, min(slack, spare))

    @staticmethod
    def held(run: Run, execute: ExecuteOp) -> int:
        """Bytes of preloads that a loop in front has issued for later executes of the run."""
        later = run.executes[run.executes.index(execute) + 1 :]
        return sum(carried_bytes(e) for e in later)

    @staticmethod
    def preload_bytes(preload: PreloadOp) -> int:
        """Bytes a core of the buffer that a preload in front of a loop fills."""
        use = next(iter(preload.result.uses))
        assert isinstance(use.operation, RepeatOp)
        arg = use.operation.body.block.args[use.index + 1]
        inner = next(iter(arg.uses))
        assert isinstance(inner.operation, ExecuteOp)
        return preload_size(inner.operation, inner.index)

    @staticmethod
    def edge(value: SSAValue, index: Mapping[ExecuteOp, int]) -> Edge:
        """Where a resident operand of a run comes from."""
        back = False
        if isinstance(value, BlockArgument):
            loop = value.owner.parent_op()
            if isinstance(loop, RepeatOp) and value.index > 0:
                value, back = yield_of(loop).values[value.index - 1], True
        if isinstance(value, OpResult) and isinstance(value.op, ExecuteOp) and value.op in index:
            return Edge(index[value.op], value.index, back)
        return Edge(-1, 0)

    # ------------------------------------------------------------------ loops

    def loop(self, run: Run) -> None:
        """Schedule the body of a loop, and issue ahead what the schedule issues ahead."""
        loop = run.body_of
        assert loop is not None
        if not run.executes:
            return
        program = folded(self.program(run, periodic=True))
        schedule = self.policy(program)
        self.schedules.append((program, schedule))
        steady_s = program.copies * evaluate(program, schedule).time_s
        schedule = unfolded(program, schedule)
        ops = program.ops * program.copies
        for execute, option, op in zip(run.executes, schedule.choice, ops, strict=True):
            self.plan(execute, op.table, option)
        self.tie(loop)
        count = len(run.executes)
        ahead: list[tuple[PreloadOp, ExecuteOp]] = []
        places = self.moved_stores(run, schedule.stores)
        for anchor, group in zip(run.executes, schedule.queue(count), strict=True):
            placed: list[PreloadOp | StoreOp] = []
            for j in group:
                preloads, carried = self.preloads(run.executes[j], True)
                for preload in preloads:
                    if schedule.issue[j] < 0 and not carried:
                        ahead.append((preload, anchor))
                    placed.append(preload)
            places.append((anchor, placed))
        order_block(loop.body.block, places)
        if not ahead:
            self.time_s += loop.count.value.data * steady_s
            return
        loop, _, peeled = carry_preloads(loop, ahead)
        # The iteration that is peeled off is timed with what follows the loop.
        self.time_s += loop.count.value.data * steady_s
        for body, twin in zip(run.executes, peeled, strict=True):
            self.number[twin] = self.number[body]
            self.fixed.add(twin)

    def moved_stores(
        self, run: Run, places: Sequence[int]
    ) -> list[tuple[Operation, list[PreloadOp | StoreOp]]]:
        """The stores that a schedule issues later than they stand, by what they stand before."""
        anchors: list[Operation | None] = [*run.executes, run.before]
        found: list[tuple[Operation, list[PreloadOp | StoreOp]]] = []
        for (place, group), target in zip(self.stores(run).items(), places, strict=True):
            anchor = anchors[min(target, len(run.executes))]
            if target != place and anchor is not None:
                found.append((anchor, list(group)))
        return found

    def plan(self, execute: ExecuteOp, table: Table, option: int) -> None:
        """Give an execute its plan."""
        plan = table.plans[option]
        if execute.plan is None or execute.plan.plan != plan:
            set_plan(execute, plan)
        self.fixed.add(execute)

    def tie(self, loop: RepeatOp, *, inwards: bool = False) -> None:
        """What enters the loop is made in the layout in which the body yields it; inwards: what the
        body yields, in a layout in which it enters that is fixed."""
        for init, value in zip(loop.inits, yield_of(loop).values, strict=True):
            inner = value.owner
            while isinstance(init, OpResult) and isinstance(init.op, RepeatOp):
                init = init.op.inits[init.index]
            outer = init.owner
            if not isinstance(inner, ExecuteOp) or not isinstance(outer, ExecuteOp):
                continue
            known, other = (outer, inner) if inwards else (inner, outer)
            same = known.operator() == other.operator()
            if same and other not in self.fixed and (known in self.fixed or not inwards):
                set_plan(other, plan_of(known))
                self.fixed.add(other)

    # ------------------------------------------------------------------ straight runs

    def straight(self, run: Run) -> None:
        """Schedule executes outside of loops, and the preloads that loops behind them carry."""
        program = self.program(run, periodic=False)
        if not program.ops:
            return
        schedule = self.policy(program)
        self.schedules.append((program, schedule))
        self.time_s += evaluate(program, schedule).time_s
        count = len(run.executes)
        for execute, option, op in zip(run.executes, schedule.choice, program.ops, strict=False):
            self.plan(execute, op.table, option)
        pending = pending_preloads(run.before) if isinstance(run.before, RepeatOp) else []
        queue = schedule.queue(len(program.ops))
        places = self.moved_stores(run, store_places(program, schedule))
        for i, group in enumerate(queue):
            placed: list[PreloadOp | StoreOp] = []
            for j in group:
                placed += own_preloads(run.executes[j]) if j < count else [pending[j - count]]
            anchor = run.executes[i] if i < count else run.before
            assert anchor is not None
            places.append((anchor, placed))
        block = run.executes[0].parent_block() if run.executes else None
        if block is None and run.before is not None:
            block = run.before.parent_block()
        assert block is not None
        order_block(block, places)


def resident_bytes(live: Liveness, scheduling: Scheduling, count: int) -> list[int]:
    """Per execute of the program as it was given, the most bytes of tensors of others, preloads
    apart, while it (or its peeled copy) runs."""
    found = [0] * count
    spans = [
        (p.buffer.size_bytes, p.buffer.intervals(live.problem.loops), {id(e) for e, _, _ in p.uses})
        for p in live.placed
        if not any(role == "preload" for _, role, _ in p.uses)
    ]
    for execute, number in scheduling.number.items():
        base = live.times[execute]
        near = [
            (size, times)
            for size, times, users in spans
            if id(execute) not in users and any(a < base + PHASES and b > base for a, b in times)
        ]
        for time in range(base, base + PHASES):
            used = sum(size for size, times in near if any(a <= time < b for a, b in times))
            found[number] = max(found[number], used)
    return found


def tables_of(module: ModuleOp) -> Tables:
    """Empty tables for the chip of a module."""
    chip = chip_of(module)
    return Tables(chip, device_model(chip))
