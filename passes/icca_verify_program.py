"""`icca-verify-program`: check every static rule of an icca program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.passes.icca_rules import broken_rules

_ALLOCATED: dict[bool | str, bool | None] = {"auto": None, True: True, False: False}


@dataclass(frozen=True)
class IccaVerifyProgramPass(ModulePass):
    """Fail unless the program obeys the rules of docs/dialects/icca.md; change nothing.

        elk-opt model.mlir -p 'icca-verify-program{allocated=auto}'

    Order and handles, tensors in HBM, plans, live bytes; and addresses, which are checked as soon
    as there is one (`auto`), always (`true`), or never (`false`). The check of addresses shares no
    code with the allocator. The error names the operator, the bytes and the rule.
    """

    name = "icca-verify-program"

    allocated: bool | str = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.allocated not in _ALLOCATED:
            raise PassFailedException(
                f"icca-verify-program: allocated={self.allocated!r} is none of auto, true, false"
            )
        found = broken_rules(op, _ALLOCATED[self.allocated])
        if found:
            more = [f"{len(found) - 1} more of this kind"] if len(found) > 1 else []
            fail_at(found[0].op, f"icca-verify-program: {found[0].message}", *found[0].notes, *more)
