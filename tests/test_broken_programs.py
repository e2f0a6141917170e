"""Hand-broken ipu programs: each is refused, with a message that names the operator and the bytes.

The program has a ring of both operands, a distribution, a scattered sum and one to all. The
verifier refuses every broken one without running it; those that break a rule that the machine can
see without knowing what the values mean trap there as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from helpers import Weights, lower, machine_of, planned, program, random_array, run_passes
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, SymbolRefAttr, i64
from xdsl.ir import Operation

from elk_ir.diagnostics import LocatedFailure
from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import ExprAttr, LayoutAttr, Ref, RefAttr
from elk_ir.plan.expr import const
from elk_ir.plan.layout import AxisLayout, Cut, Layout
from elk_ir.targets.ipu.machine import TrapError

PLANS = (
    'icca-set-plan{op=q grid="m=2,n=2,k=4" exec="0:k=2;1:k=2" reduce=scatter scatter=n},'
    'icca-set-plan{op=o grid="m=2,n=2,k=4" exec="1:k=1" preload="1:k=2" reduce=all}'
)


@cache
def correct() -> ModuleOp:
    """The program before anything is done to it."""
    return lower(planned(program("slice"), PLANS))


def var(module: ModuleOp, name: str) -> ipu.VarOp:
    """A variable by name."""
    ops = (op for op in module.walk() if isinstance(op, ipu.VarOp))
    return next(op for op in ops if op.sym_name.data == name)


def op_of(module: ModuleOp, kind: type[Operation], text: str) -> Operation:
    """The first operation of a kind whose text contains `text`."""
    return next(op for op in module.walk() if isinstance(op, kind) and text in str(op))


def move(module: ModuleOp, name: str, at: int) -> None:
    """Put a variable elsewhere."""
    var(module, name).properties["at"] = IntegerAttr(at, i64)


def swapped_offsets(module: ModuleOp) -> None:
    """The weight lies where the partial sums should be, and the other way round."""
    move(module, "q.preload1", 1920)
    move(module, "q.partial0", 0)


def overlapping_variables(module: ModuleOp) -> None:
    """The sums are merged into the bytes that they are read from."""
    move(module, "q.merged0", 0)


def missing_wait(module: ModuleOp) -> None:
    """The weight is read before it has arrived."""
    op_of(module, ipu.CopyWaitOp, "@q.preload1").detach()


def early_preload(module: ModuleOp) -> None:
    """The next weight is copied over a result that is still to be read."""
    move(module, "o.preload1", 0)
    start = op_of(module, ipu.CopyStartOp, "@o.preload1")
    before = op_of(module, ipu.ExecuteOp, "@q.combine")
    start.detach()
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(start, before)


def short_ring(module: ModuleOp) -> None:
    """A ring that shifts from too near: a core gets its own block again."""
    op = op_of(module, ipu.ExchangeOp, "@q.landing0")
    assert isinstance(op, ipu.ExchangeOp)
    op.properties["map"] = ExprAttr((op.map.data + 8) % 16)


def wrong_weight_in_ring(module: ModuleOp) -> None:
    """The ring of the weight shifts by a core of another column."""
    op = op_of(module, ipu.ExchangeOp, "@q.landing1")
    assert isinstance(op, ipu.ExchangeOp)
    op.properties["map"] = ExprAttr((op.map.data + 2) % 16)


def exchange_out_of_range(module: ModuleOp) -> None:
    """A ring that receives from cores that do not exist."""
    op = op_of(module, ipu.ExchangeOp, "@q.landing1")
    assert isinstance(op, ipu.ExchangeOp)
    op.properties["map"] = ExprAttr(op.map.data + 16)


def missing_ring_step(module: ModuleOp) -> None:
    """A ring that does not turn: the last step finds the first step's blocks."""
    op_of(module, ipu.RepeatOp, "@q.landing0").detach()


def last_step(module: ModuleOp) -> Operation:
    """The last step of the ring, which is no longer in a loop."""
    ops = [op for op in module.walk() if isinstance(op, ipu.ExecuteOp)]
    return [op for op in ops if op.sym_name.data == "q.local"][-1]


def missing_last_step(module: ModuleOp) -> None:
    """A product that leaves out the last step of its ring."""
    last_step(module).detach()


def step_twice(module: ModuleOp) -> None:
    """The last step of a ring is added twice."""
    last = last_step(module)
    block = last.parent_block()
    assert block is not None
    block.insert_op_after(last.clone(), last)


def dropped_merge(module: ModuleOp) -> None:
    """Partial sums are gathered and never merged."""
    op_of(module, ipu.ExecuteOp, "@o.combine").detach()


def dropped_reduction(module: ModuleOp) -> None:
    """A partial sum is taken for the whole one."""
    op_of(module, ipu.ReshardOp, "@o.gathered0").detach()
    op_of(module, ipu.ExecuteOp, "@o.combine").detach()
    apply = op_of(module, ipu.ExecuteOp, "@o.apply")
    part = RefAttr(Ref("o.partial0", (const(0), const(0), const(0))))
    apply.properties["stats"] = ArrayAttr([part])


def address_out_of_range(module: ModuleOp) -> None:
    """A variable behind the end of a core's memory."""
    move(module, "o.result0", 1 << 20)


def shifted_tile_mapping(module: ModuleOp) -> None:
    """An operand that begins one row further than the vertex thinks."""
    op = var(module, "o.execute1")
    rows, columns = op.layout.data.axes
    cut = Cut(rows.cuts[0].start + 1, rows.cuts[0].size)
    axes = (AxisLayout(rows.extent, (cut, *rows.cuts[1:])), columns)
    op.properties["layout"] = LayoutAttr(Layout(op.layout.data.cores, axes))


def lost_distribution(module: ModuleOp) -> None:
    """The preloaded part of a weight is never brought together."""
    op_of(module, ipu.ReshardOp, "@o.execute1").detach()


def store_of_nothing(module: ModuleOp) -> None:
    """The output is stored before it is computed."""
    store = op_of(module, ipu.StoreStartOp, "@o.result0")
    apply = op_of(module, ipu.ExecuteOp, "@o.apply")
    block = apply.parent_block()
    assert block is not None
    store.detach()
    block.insert_op_before(store, apply)


def overwritten_store(module: ModuleOp) -> None:
    """What is being stored is overwritten before the store is complete."""
    wait = op_of(module, ipu.StoreWaitOp, "@o.result0")
    fill = op_of(module, ipu.FillOp, "@q.partial0").clone()
    fill.properties["target"] = SymbolRefAttr("q.gathered0")
    block = wait.parent_block()
    assert block is not None
    block.insert_op_before(fill, wait)


BYTES = r"\(bytes \d+ to \d+\)"

# What is done to a correct program, what the verifier says, what the machine says if it can tell.
BREAKS: dict[Callable[[ModuleOp], None], tuple[str, str | None]] = {
    swapped_offsets: (
        rf"reads @norm.result0 of norm {BYTES} that the copy of @wq has overwritten",
        r"@norm.result0 \(of norm\), bytes 1536..3072.*overwritten by copy_start of @wq",
    ),
    overlapping_variables: (
        rf"@q.combine writes @q.merged0 of q {BYTES} over its operand @q.gathered0 of q {BYTES}",
        r"@q.gathered0 \(of q\), bytes 0..384.*overwrites its own operand",
    ),
    missing_wait: (
        rf"@q.local reads @q.preload1 of q {BYTES} before the preload has landed",
        r"@q.preload1 \(of q\), bytes 0..960.*before the preload has landed",
    ),
    early_preload: (
        rf"reads @q.gathered0 of q {BYTES} that the copy of @wo has overwritten|"
        rf"writes @q.result0 of q {BYTES} while a preload is on its way into @o.preload1 of o",
        r"bytes \d+..\d+.*(overwritten by copy_start of @wo|preload that is on its way)",
    ),
    short_ring: (
        rf"@q.local: operand @q.execute0 of q {BYTES} holds elements from \d+ of axis 1 on core"
        r" \d+, the vertex takes them for those from \d+",
        None,
    ),
    wrong_weight_in_ring: (
        rf"@q.local: operand @q.preload1 of q {BYTES} holds elements from",
        None,
    ),
    exchange_out_of_range: (
        rf"the exchange to @q.landing1: receives from core \d+, @q.preload1 of q {BYTES} is on 16",
        r"@q.preload1 \(of q\), bytes 0..960.*core \d+ of 16",
    ),
    missing_ring_step: (
        rf"@q.local: operand @q.execute0 of q {BYTES} holds elements from 0 of axis 1 on core 0",
        None,
    ),
    missing_last_step: (rf"@q.merged0 of q {BYTES} covers 32 of 64 points of k on core 0", None),
    step_twice: (rf"@q.merged0 of q {BYTES} covers 96 of 64 points of k on core 0", None),
    dropped_merge: (
        rf"@o.apply reads @o.merged0 of o {BYTES} that was never written",
        r"@o.merged0 \(of o\), bytes \d+..\d+.*never written",
    ),
    dropped_reduction: (rf"@o.partial0 of o {BYTES} covers 15 of 60 points of k on core 0", None),
    address_out_of_range: (
        r"@o.result0 of o \(bytes 1048576 to 1048839\): address out of range",
        "1048.* bytes of SRAM",
    ),
    shifted_tile_mapping: (
        rf"@o.execute1 of o {BYTES} holds elements from 1 of axis 0|core \d+ receives",
        None,
    ),
    lost_distribution: (
        rf"@o.local reads @o.execute1 of o {BYTES} that was never written",
        r"@o.execute1 \(of o\), bytes 0..1320.*never written",
    ),
    store_of_nothing: (
        rf"the store to @y reads @o.result0 of o {BYTES} that was never written",
        r"@o.result0 \(of o\), bytes 0..264.*never written",
    ),
    overwritten_store: (
        rf"writes @q.gathered0 of q {BYTES} while @o.result0 of o {BYTES} is still being stored",
        r"@o.result0 \(of o\), bytes 0..264.*overwritten by fill",
    ),
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda f: f.__name__)
def test_verifier(broken: Callable[[ModuleOp], None]) -> None:
    """The verifier refuses the program."""
    module = correct().clone()
    broken(module)
    with pytest.raises(LocatedFailure) as caught:
        run_passes(module, "ipu-verify-program")
    assert re.search(BREAKS[broken][0], str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "broken", [f for f, (_, trap) in BREAKS.items() if trap], ids=lambda f: f.__name__
)
def test_machine(broken: Callable[[ModuleOp], None]) -> None:
    """The machine traps."""
    module = correct().clone()
    broken(module)
    h = random_array(np.random.default_rng(0), (6, 64), "float32")
    with pytest.raises(TrapError) as caught:
        machine_of(module, Weights(), "late").run({"h": h})
    trap = BREAKS[broken][1]
    message = str(caught.value).replace("\n", " ")
    assert trap is not None and re.search(trap, message), message


def test_correct_program() -> None:
    """Nothing is wrong with the program itself."""
    run_passes(correct().clone(), "ipu-verify-program")
