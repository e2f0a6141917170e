"""`icca-allocate`: byte addresses for every buffer of a scheduled program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from elk_ir.errors import CapacityError
from elk_ir.memory.check import check
from elk_ir.memory.offsets import allocate
from elk_ir.passes.icca_fit import ChipChanges
from elk_ir.passes.icca_liveness import Liveness, liveness
from elk_ir.passes.icca_schedule_model import tables_of
from elk_ir.passes.icca_support import chip_of


def allocate_module(module: ModuleOp) -> Liveness:
    """Write an offset for every buffer into the IR. Raises CapacityError if they do not fit."""
    live = liveness(module)
    try:
        allocation = allocate(live.problem, require_fit=True)
    except CapacityError as error:
        if chip_of(module).hbm is not None:
            error.suggest(ChipChanges(module, tables_of(module), error))
        raise
    violations = check(live.problem, allocation.offsets_bytes)
    assert not violations, f"the allocator broke its own rules: {violations[0]}"
    for placed in live.placed:
        placed.place(allocation.offsets_bytes[placed.buffer.name])
    module.attributes["icca.sram_peak_bytes"] = IntegerAttr(allocation.height_bytes, i64)
    return live


@dataclass(frozen=True)
class IccaAllocatePass(ModulePass):
    """Give every buffer a byte offset so that no two live ones overlap and all fit the SRAM.

        elk-opt model.mlir -p 'icca-allocate'

    Lifetimes run over preload, distribute, tile, reduce and the last reader; those of a loop are
    cyclic. Needs a plan on every execute. Invariant: only offsets change; the module records the
    highest byte used as `icca.sram_peak_bytes`. Fails with the operator, the bytes needed and
    available, and the largest live buffers.
    """

    name = "icca-allocate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        allocate_module(op)
