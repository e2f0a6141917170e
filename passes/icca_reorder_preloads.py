"""`icca-reorder-preloads`: another order of preloads for the plans that are there."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.passes.icca_schedule import schedule_module
from elk_ir.passes.icca_support import executes, plan_of, program_of
from elk_ir.schedule.policies import reorder


@dataclass(frozen=True)
class IccaReorderPreloadsPass(ModulePass):
    """Permute the preloads of heavy loaders, and issue each as early as fits.

        elk-opt model.mlir -p 'icca-schedule{policy=elk-dyn},icca-reorder-preloads'

    Delaying a large preload behind smaller ones that are needed later leaves the executes between
    them more space. Orders are searched within one layer and are the same for all identical ones;
    the one that ends soonest is kept. Plans stay as they are: every execute needs one. Invariant:
    the numbers, and everything fits, addresses included.
    """

    name = "icca-reorder-preloads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for execute in executes(program_of(op)):
            plan_of(execute)
        schedule_module(op, reorder, keep_plans=True)
