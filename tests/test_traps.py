"""The machine stops programs that break its rules, and names the operator; so does the verifier."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from helpers import Weights, lower, machine_of, planned, program, random_array, run_passes
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, SymbolRefAttr, i64

from elk_ir.diagnostics import LocatedFailure
from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import ExprAttr
from elk_ir.targets.ipu.machine import TrapError

PLAN = 'icca-set-plan{op=q grid="m=2,n=4,k=2" exec="0:k=2" preload="1:k=2" scatter=n}'


def find(module: ModuleOp, kind: type, target: str) -> ipu.CopyWaitOp:
    """The first operation of a kind with that target."""
    return next(
        op
        for op in module.walk()
        if isinstance(op, kind) and op.properties["target"] == SymbolRefAttr(target)
    )


def var(module: ModuleOp, name: str) -> ipu.VarOp:
    """A variable by name."""
    return next(
        op for op in module.walk() if isinstance(op, ipu.VarOp) and op.sym_name.data == name
    )


def drop_wait(module: ModuleOp) -> None:
    """Execute "q" without waiting for its weight."""
    find(module, ipu.CopyWaitOp, "q.preload1").detach()


def drop_copy(module: ModuleOp) -> None:
    """Never start the preload of the weight."""
    find(module, ipu.CopyStartOp, "q.preload1").detach()


def drop_reshard(module: ModuleOp) -> None:
    """Never bring the activation in."""
    find(module, ipu.ReshardOp, "q.execute0").detach()


def late_copy(module: ModuleOp) -> None:
    """Start the preload of the last weight where the result of "q" lies."""
    result = var(module, "q.result0").at
    var(module, "o.preload1").properties["at"] = result
    start = find(module, ipu.CopyStartOp, "o.preload1")
    move = next(
        op
        for op in module.walk()
        if isinstance(op, ipu.ReshardOp) and op.source == SymbolRefAttr("q.result0")
    )
    block = move.parent_block()
    assert block is not None
    start.detach()
    block.insert_op_before(start, move)


def out_of_range(module: ModuleOp) -> None:
    """A variable behind the end of the memory."""
    var(module, "q.result0").properties["at"] = IntegerAttr(1 << 20, i64)


def no_such_core(module: ModuleOp) -> None:
    """A ring that receives from a core that does not exist."""
    op = next(op for op in module.walk() if isinstance(op, ipu.ExchangeOp))
    op.properties["map"] = ExprAttr(op.map.data + 16)


def two_copies(module: ModuleOp) -> None:
    """Two preloads on their way into one place."""
    start = find(module, ipu.CopyStartOp, "q.preload1")
    block = start.parent_block()
    assert block is not None
    block.insert_op_after(start.clone(), start)


def no_such_row(module: ModuleOp) -> None:
    """A layer that the tensor does not have."""
    start = find(module, ipu.CopyStartOp, "q.preload1")
    row = ipu.RowOp(
        operands=[None],
        result_types=[IndexType()],
        properties={"offset": IntegerAttr(5, i64)},
    )
    block = start.parent_block()
    assert block is not None
    block.insert_op_before(row, start)
    start.operands = [row.result]


# What is done to a correct program, what the machine says, what the verifier says.
BREAKS: dict[Callable[[ModuleOp], None], tuple[str, str]] = {
    drop_wait: (
        "@q.preload1 (of q).*reads before the preload has landed",
        "reads @q.preload1 of q .* before the preload has landed",
    ),
    drop_copy: (
        "@q.preload1 (of q).*waits for a preload that was not started",
        "waits for a copy into @q.preload1 of q .* that was not started",
    ),
    drop_reshard: (
        "@q.execute0 (of q).*reads a buffer that was never written",
        "@q.local reads @q.execute0 of q .* that was never written",
    ),
    late_copy: (
        "@q.result0 (of q).*was overwritten by copy_start of @wo",
        "reads @q.result0 of q .* that the copy of @wo has overwritten",
    ),
    out_of_range: ("1048.* bytes of SRAM", "@q.result0 of q .*address out of range"),
    no_such_core: ("@q.*core 3[0-9] of 16|core 3[0-9] of", "receives from core"),
    two_copies: (
        "@q.preload1 (of q).*already on its way|on its way",
        "while a preload is on its way into @q.preload1 of q",
    ),
    no_such_row: ("@wq has no row 5", "reaches rows 5 to 5 of @wq, it has 1"),
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("landing", ["early", "late"])
def test_trap(broken: Callable[[ModuleOp], None], landing: str) -> None:
    """A broken program traps, whenever preloads land; the verifier refuses it."""
    module = lower(planned(program("slice"), PLAN))
    broken(module)
    h = random_array(np.random.default_rng(0), (6, 64), "float32")
    trap, verdict = (text.replace("(of q)", r"\(of q\)") for text in BREAKS[broken])
    with pytest.raises(TrapError) as caught:
        machine_of(module, Weights(), landing).run({"h": h})  # pyright: ignore[reportArgumentType]
    message = str(caught.value).replace("\n", " ")
    assert re.search(trap, message), message
    with pytest.raises(LocatedFailure, match=verdict):
        run_passes(module, "ipu-verify-program")


def test_reading_what_was_never_written() -> None:
    """Bytes, not only buffers: a state that claims more filled entries than were loaded."""
    module = lower(planned(program("attention")))
    find(module, ipu.CopyStartOp, "attention.preload1").properties["limit"] = IntegerAttr(4, i64)
    rng = np.random.default_rng(0)
    inputs = {
        "past": random_array(rng, (2, 5, 4), "float32"),
        "q": random_array(rng, (2, 2, 4), "float32"),
        "k": random_array(rng, (2, 1, 4), "float32"),
        "v": random_array(rng, (2, 6, 4), "float32"),
        "ids": random_array(rng, (3,), "int32"),
    }
    with pytest.raises(TrapError, match=r"attention.*reads 32 bytes that were never written"):
        machine_of(module, Weights()).run(inputs)
