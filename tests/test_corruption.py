"""No byte, core, slot or address of a lowered program is without effect.

Each test changes one thing in a correct program and runs it: the output bytes must change, or the
machine must trap. Changes that provably do nothing (a core that reads the same elements from
another holder, an address that collides with nothing) are told apart by an independent argument
and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from corrupted import Subject, subject
from helpers import machine_of
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Operation

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import ExprAttr, Ref, RefAttr, VertexPhase
from elk_ir.plan.expr import CORE, Expr
from elk_ir.plan.moves import Moves, moves
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.targets.ipu.machine import Sram, Variable, written_word

CASES = ["slice", "attention", "loop", pytest.param("llama", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Subject:
    """Each program, lowered once."""
    return subject(request.param)


def operations(module: ModuleOp, *kinds: type[Operation]) -> list[Operation]:
    """The operations of these kinds, in order."""
    return [op for op in module.walk() if isinstance(op, kinds)]


def variables(module: ModuleOp) -> list[ipu.VarOp]:
    """The variables of a program."""
    return [op for op in module.body.block.ops if isinstance(op, ipu.VarOp)]


def report(what: str, counts: Counter[str]) -> None:
    """Shown with `pytest -s` (and on failure)."""
    print(f"{what}: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))


def judged(case: Subject, machine: Interpreter | None = None) -> str:
    """`trapped`, `changed` or `same`."""
    outcome = case.outcome(machine)
    return "trapped" if outcome is None else "changed" if outcome != case.baseline else "same"


# ---------------------------------------------------------------------- bytes


def corrupt_top_byte(sram: Sram, variable: Variable) -> None:
    """The top byte of the first element of each core's valid box becomes 0x7F (0x3F if it is):
    sign and exponent of a float, the largest digits of an integer."""
    layout = variable.layout
    for core in range(layout.cores):
        for slot in np.ndindex(*layout.slots):
            lo, hi = layout.bounds[(core, *slot)].T
            origin = layout.origins[(core, *slot)]
            if (hi > lo).all():
                element = variable.view[(core, *slot, *(lo - origin))]
                shadow = variable.shadow[(core, *slot, *(lo - origin))]
                if shadow != written_word(element.dtype.itemsize):
                    continue
                raw = bytearray(element.tobytes())
                raw[-1] = 0x7F if raw[-1] != 0x7F else 0x3F
                value = np.frombuffer(bytes(raw), dtype=element.dtype)[0]
                variable.view[(core, *slot, *(lo - origin))] = value
                break


def with_corruption(case: Subject, name: str, read: int) -> tuple[str, int]:
    """The verdict with one variable corrupted at the given read of each of its lives, and how
    often that happened."""
    machine, hits, reads = case.machine(), 0, 0
    reading = machine.sram.reading

    def hook(sram: Sram, variable: Variable) -> None:
        nonlocal reads
        reads = 0 if variable.name == name else reads

    def on_read(variable: Variable, by: str) -> None:
        nonlocal hits, reads
        reading(variable, by)
        if variable.name == name:
            reads += 1
            if reads == read:
                hits += 1
                corrupt_top_byte(machine.sram, variable)

    machine.sram.on_first_read = hook
    machine.sram.reading = on_read  # pyright: ignore[reportAttributeAccessIssue]
    return judged(case, machine), hits


def weightless(case: Subject, name: str) -> bool:
    """Whether a variable is a partial sum that its partial maximum, -inf, weights with zero: the
    running sums of softmax and attention before their first data. Or the maximum that is left when
    all parts of an attention are merged, which the result does not need."""
    for op in operations(case.module, ipu.ExecuteOp):
        assert isinstance(op, ipu.ExecuteOp)
        names = [r.data.name for r in op.stats if isinstance(r, RefAttr)]
        kind = kind_of(case.module, op)
        if op.phase.data is VertexPhase.LOCAL and name in names[1:]:
            return kind in ("attention", "softmax")
        if op.phase.data is VertexPhase.APPLY and [name] == names[:1]:
            return kind == "attention"
    return False


def kind_of(module: ModuleOp, op: ipu.ExecuteOp) -> str:
    """The kind of operator that a vertex is a phase of."""
    name = op.codelet.root_reference.data
    return next(
        c.structured.operator().kind
        for c in module.body.block.ops
        if isinstance(c, ipu.CodeletOp) and c.sym_name.data == name
    )


def test_every_buffer_matters(case: Subject) -> None:
    """Its top byte, corrupted where the buffer is first read. What a first read provably ignores
    is corrupted at the next one too."""
    counts: Counter[str] = Counter()
    for var in variables(case.module):
        name = var.sym_name.data
        verdict, hits = with_corruption(case, name, 1)
        assert hits, f"@{name} is never read"
        if verdict == "same":
            assert weightless(case, name), f"@{name} can be corrupted without effect"
            verdict, hits = with_corruption(case, name, 2)
            assert verdict != "same" or not hits, f"@{name} can be corrupted without effect"
            verdict = f"{verdict} at the second read" if hits else "not needed"
        counts[verdict] += 1
    report("buffers", counts)
    assert sum(counts.values()) == len(variables(case.module))


# ---------------------------------------------------------------------- exchanges and reshards


def with_property(case: Subject, op: Operation, key: str, value: object) -> str:
    """The verdict with one property of one operation replaced."""
    old = op.properties[key]
    op.properties[key] = value  # pyright: ignore[reportArgumentType]
    try:
        return judged(case)
    finally:
        op.properties[key] = old


def test_every_exchange_map_matters(case: Subject) -> None:
    """Each map replaced by: nobody moves, each neighbour, the other way, out of range."""
    counts: Counter[str] = Counter()
    for op in operations(case.module, ipu.ExchangeOp):
        assert isinstance(op, ipu.ExchangeOp)
        source = next(v for v in variables(case.module) if v.sym_name.data == op.source.data.name)
        n = source.layout.data.cores
        cores = np.arange(n)
        right = np.broadcast_to(op.map.data.evaluate(c=cores), n)
        wrong: list[Expr] = [CORE, *((CORE + k) % n for k in range(1, n)), op.map.data + n]
        for expr in wrong:
            senders = np.broadcast_to(expr.evaluate(c=cores), n)
            if senders.max() < n and same_blocks(source, right, senders):
                counts["equal"] += 1
                continue
            verdict = with_property(case, op, "map", ExprAttr(expr))
            assert verdict != "same", f"{op}: {expr} gives the same bytes"
            counts[verdict] += 1
    report("exchange maps", counts)
    assert counts["trapped"]


def same_blocks(var: ipu.VarOp, right: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether each core receives the same elements from the one core and from the other."""
    bounds = var.layout.data.bounds
    return bool((bounds[right] == bounds[wrong]).all())


def test_every_slot_matters(case: Subject) -> None:
    """Each slot of each reference and iteration box, moved by one."""
    counts: Counter[str] = Counter()
    for op in operations(case.module, ipu.ExchangeOp, ipu.CopyOp):
        for key in ("source", "target"):
            reference = op.properties[key]
            assert isinstance(reference, RefAttr)
            for other in moved(reference.data, slots_of(case, reference)):
                verdict = with_property(case, op, key, RefAttr(other))
                assert verdict != "same", f"{op}: {key} {other}"
                counts[verdict] += 1
    for op in operations(case.module, ipu.ExecuteOp):
        assert isinstance(op, ipu.ExecuteOp)
        for key in ("ins", "stats", "outs"):
            references = op.properties[key]
            assert isinstance(references, ArrayAttr)
            for i, reference in enumerate(references):
                assert isinstance(reference, RefAttr)
                for other in moved(reference.data, slots_of(case, reference)):
                    changed = list(references)
                    changed[i] = RefAttr(other)
                    verdict = with_property(case, op, key, ArrayAttr(changed))
                    assert verdict != "same", f"{op}: {key} {other}"
                    counts[verdict] += 1
        for d, expr in enumerate(op.at):
            slots = op.iterate.data.slots[d]
            at = list(op.at)
            at[d] = ExprAttr((expr.data + 1) % slots if slots > 1 else expr.data + 1)
            verdict = with_property(case, op, "at", ArrayAttr(at))
            if verdict == "same":
                # A full box that slides along a dimension without ragged ends masks nothing.
                assert full_along(op, d), f"{op}: at {d}"
                counts["full"] += 1
                continue
            counts[verdict] += 1
    report("slots", counts)
    assert counts["trapped"]


def slots_of(case: Subject, reference: RefAttr) -> tuple[int, ...]:
    """How many slots there are along each axis of a variable."""
    var = next(v for v in variables(case.module) if v.sym_name.data == reference.data.name)
    return var.layout.data.slots


def moved(reference: Ref, counts: tuple[int, ...]) -> list[Ref]:
    """The reference with one slot moved on by one: out of range if there is only one."""
    found = []
    for j, expr in enumerate(reference.slots):
        if expr is not None:
            other = (expr + 1) % counts[j] if counts[j] > 1 else expr + 1
            slots = (*reference.slots[:j], other, *reference.slots[j + 1 :])
            found.append(Ref(reference.name, slots))
    return found


def full_along(op: ipu.ExecuteOp, d: int) -> bool:
    """Whether every slot of the iteration box is valid in full along a dimension."""
    layout = op.iterate.data
    extent = layout.bounds[..., d, 1] - layout.bounds[..., d, 0]
    return bool((extent == layout.block_shape[d]).all())


def test_every_reshard_matters(case: Subject) -> None:
    """Each reshard dropped; and its elements taken from the next core, or from the next address."""
    counts: Counter[str] = Counter()
    for op in operations(case.module, ipu.ReshardOp):
        assert isinstance(op, ipu.ReshardOp)
        block, following = op.parent_block(), op.next_op
        assert block is not None and following is not None
        op.detach()
        verdict = judged(case)
        block.insert_op_before(op, following)
        assert verdict != "same", f"{op} can be left out"
        counts[verdict] += 1
        for how, wrong in WRONG_MOVES.items():
            effect: list[bool] = []
            machine = RoutedMachine.of(case, op, wrong, effect)
            verdict = judged(case, machine)
            if not any(effect):
                counts["equal on some core"] += 1
                continue
            assert verdict != "same", f"{op} with elements from {how}"
            counts[verdict] += 1
    report("reshards", counts)
    assert counts["changed"]


def from_core(by: int) -> Callable[[Moves, int, int], Moves]:
    """Elements come from the core `by` further on."""

    def wrong(plan: Moves, cores: int, elements: int) -> Moves:
        return replace(plan, source_core=(plan.source_core + by) % cores)

    return wrong


def from_next_element(plan: Moves, cores: int, elements: int) -> Moves:
    """Elements come from one element further on."""
    last = plan.source_element + ((plan.shape - 1) * np.asarray(plan.source_strides)).sum(1)
    step = np.where(last + 1 < elements, 1, np.where(plan.source_element > 0, -1, 0))
    return replace(plan, source_element=plan.source_element + step)


def to_core(by: int) -> Callable[[Moves, int, int], Moves]:
    """Receivers get each other's elements."""

    def wrong(plan: Moves, cores: int, elements: int) -> Moves:
        receivers = np.unique(plan.target_core)
        position = np.searchsorted(receivers, plan.target_core)
        return replace(plan, target_core=np.roll(receivers, by)[position])

    return wrong


WRONG_MOVES: dict[str, Callable[[Moves, int, int], Moves]] = {
    **{f"the core {by} further on": from_core(by) for by in (1, 2)},
    "the next element": from_next_element,
    **{f"where the core {by} before gets them": to_core(by) for by in (1, 2)},
}


class RoutedMachine(Interpreter):
    """A machine that moves the elements of one reshard wrongly."""

    wrong_op: Operation
    wrong: Callable[[Moves, int, int], Moves]
    effect: list[bool]

    @staticmethod
    def of(
        case: Subject,
        op: Operation,
        wrong: Callable[[Moves, int, int], Moves],
        effect: list[bool],
    ) -> RoutedMachine:
        """`effect` receives whether other bytes arrived on every core that receives any, at each
        run of the operation: a copy that nobody reads may be wrong without effect."""
        machine = machine_of(case.module, case.weights)
        machine.__class__ = RoutedMachine
        assert isinstance(machine, RoutedMachine)
        machine.wrong_op, machine.wrong, machine.effect = op, wrong, effect
        return machine

    def reshard(self, op: ipu.ReshardOp) -> None:
        """The reshard, done right; then the target as the wrong moves fill it."""
        source, target = self.variable(op.source), self.variable(op.target)
        before = target.flat()[0].copy()
        self._reshard(op)
        if op is not self.wrong_op:
            return
        axis = None if op.axis is None else op.axis.value.data
        start = 0 if op.start is None else op.start.value.data
        plan = moves(source.layout, target.layout, axis, start)
        wrong = self.wrong(plan, source.layout.cores, source.flat()[0].shape[1])
        data, shadow = source.flat()
        s_core, s_element, t_core, t_element = wrong.flat()
        right = target.flat()[0].copy()
        into = target.flat()[0]
        into[...] = before
        into[t_core, t_element] = data[s_core, s_element]
        target.flat()[1][t_core, t_element] = shadow[s_core, s_element]
        _, _, cores, elements = plan.flat()
        if ".gathered" in target.name:
            # The order in which partial results are merged may not show in their sum.
            right.sort(axis=1)
            differ = right[cores, elements] != np.sort(into, axis=1)[cores, elements]
        else:
            differ = right[cores, elements] != into[cores, elements]
        self.effect.append(set(cores[differ].tolist()) == set(cores.tolist()))

    _HANDLERS = {**Interpreter._HANDLERS, ipu.ReshardOp: reshard}


# ---------------------------------------------------------------------- addresses


def shifted_copy(var: ipu.VarOp, by: int, capacity: int) -> ipu.VarOp | None:
    """A variable like `var`, `by` bytes further on; None where that is out of the memory."""
    offset = var.at.value.data + by
    if offset < 0 or offset + var.bytes.value.data > capacity:
        return None
    clone = var.clone()
    clone.properties["sym_name"] = StringAttr(f"{var.sym_name.data}.moved")
    clone.properties["at"] = IntegerAttr(offset, i64)
    return clone


def uses_of(op: Operation, name: str) -> list[tuple[str, int]]:
    """The properties of an operation that refer to a variable, and where in them."""
    found: list[tuple[str, int]] = []
    for key, value in op.properties.items():
        if isinstance(value, SymbolRefAttr) and value.root_reference.data == name:
            if key in ("source", "target"):
                found.append((key, -1))
        elif isinstance(value, RefAttr) and value.data.name == name:
            found.append((key, -1))
        elif isinstance(value, ArrayAttr):
            for i, item in enumerate(value):
                if isinstance(item, RefAttr) and item.data.name == name:
                    found.append((key, i))
    return found


def renamed(value: object, i: int, name: str) -> object:
    """The property with the reference at `i` (or all of it) renamed."""
    if isinstance(value, SymbolRefAttr):
        return SymbolRefAttr(name)
    if isinstance(value, RefAttr):
        return RefAttr(Ref(name, value.data.slots))
    assert isinstance(value, ArrayAttr)
    items = list(value)
    items[i] = renamed(items[i], -1, name)  # pyright: ignore[reportArgumentType]
    return ArrayAttr(items)


def test_every_offset_at_a_use_matters(case: Subject) -> None:
    """One operation that takes one variable for lying 8 bytes further on, or back."""
    counts: Counter[str] = Counter()
    capacity = case.machine().sram.size_bytes + 8
    for var in variables(case.module):
        clone = shifted_copy(var, 8, capacity) or shifted_copy(var, -8, capacity)
        assert clone is not None
        case.module.body.block.insert_op_before(clone, var)
        for op in case.module.walk():
            if isinstance(op, ipu.VarOp | ipu.RemoteOp):
                continue
            for key, i in uses_of(op, var.sym_name.data):
                value = renamed(op.properties[key], i, clone.sym_name.data)
                verdict = with_property(case, op, key, value)
                assert verdict != "same", f"{op}: {key} at another address"
                counts[verdict] += 1
        clone.detach()
        clone.erase()
    report("offsets at uses", counts)
    assert counts["trapped"]


@dataclass
class Trace:
    """When the bytes of each variable are in use: [first write, last read] of each life."""

    lives: dict[str, list[list[int]]] = field(default_factory=dict)
    time: int = 0

    @staticmethod
    def of(case: Subject) -> Trace:
        """Recorded from one run, through the machine's own notion of reading and writing; time
        counts operations, as one operation may write while it reads."""
        trace, machine = Trace(), case.machine()
        sram = machine.sram
        begin, check = sram.begin, sram.check_live

        def use(variable: Variable, new: bool) -> None:
            lives = trace.lives.setdefault(variable.name, [])
            if new or not lives:
                lives.append([trace.time, trace.time])
            lives[-1][1] = trace.time

        def on_begin(variable: Variable, by: str) -> None:
            use(variable, True)
            begin(variable, by)

        def on_check(variable: Variable, by: str) -> None:
            use(variable, False)
            check(variable, by)

        def timed(handler: Callable[..., None]) -> Callable[..., None]:
            def run(self: Interpreter, op: Operation) -> None:
                trace.time += 1
                handler(self, op)

            return run

        sram.begin, sram.check_live = on_begin, on_check  # pyright: ignore
        machine._HANDLERS = {k: timed(h) for k, h in Interpreter._HANDLERS.items()}
        machine.run(case.inputs)
        return trace

    def together(self, a: str, b: str) -> bool:
        """Whether both are in use at some time."""
        return any(
            x[0] <= y[1] and y[0] <= x[1]
            for x in self.lives.get(a, [])
            for y in self.lives.get(b, [])
        )


def test_every_declared_offset_matters(case: Subject) -> None:
    """Each variable declared where another one lies, or a few bytes off: it collides and is
    noticed, or it is disjoint from everything that is in use at the same time."""
    counts: Counter[str] = Counter()
    trace = Trace.of(case)
    everything = variables(case.module)
    capacity = max(v.at.value.data + v.bytes.value.data for v in everything)
    for var in everything:
        name, size, old = var.sym_name.data, var.bytes.value.data, var.at
        own = old.value.data
        others = sorted({o.at.value.data for o in everything} - {own})
        # A few of the other addresses, spread over the memory, and the nearest ones.
        some = others[:: max(1, len(others) // 3)]
        targets = {own - 8, own + 8, *some} - {own}
        for offset in sorted(t for t in targets if 0 <= t <= capacity - size):
            collides = [
                other.sym_name.data
                for other in everything
                if other is not var
                and other.at.value.data < offset + size
                and offset < other.at.value.data + other.bytes.value.data
                and trace.together(name, other.sym_name.data)
            ]
            verdict = with_property(case, var, "at", IntegerAttr(offset, i64))
            if collides:
                assert verdict != "same", f"@{name} at {offset} hits {collides}"
                counts[verdict] += 1
            else:
                assert verdict == "same", f"@{name} at {offset} hits nothing"
                counts["disjoint"] += 1
        verdict = with_property(case, var, "at", IntegerAttr(-8, i64))
        assert verdict == "trapped"
    report("declared offsets", counts)
    assert counts["trapped"] + counts["changed"] > counts["disjoint"] > 0
