"""`icca-set-plan`: set the plan of an execute by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects.icca.ops import ExecuteOp
from elk_ir.passes.icca_support import chip_of, executes, program_of, set_plan
from elk_ir.plan.domain import Operator
from elk_ir.plan.plan import Plan, Reduce, plan_errors, with_default_scatter


@dataclass(frozen=True)
class IccaSetPlanPass(ModulePass):
    """Give every execute called `op` the plan spelled out in the options.

        elk-opt model.mlir -p 'icca-set-plan{op=q grid="m=2,n=2,k=2" exec="0:k=2" preload="1:k=2"}'

    `grid` lists cores per dimension (others get one), `exec` and `preload` list, per operand
    number, pieces per dimension (`0:k=2;1:k=2,n=2`; preload defaults to exec), `reduce` is
    scatter, root or all, `scatter` the dimension along which pieces are left, `rings` the order of
    nested rings, outermost first. `op` may be a regular expression for the whole label. Invariant:
    only the named executes change, and only to legal plans.
    """

    name = "icca-set-plan"

    op: str
    grid: str = ""
    exec: str = ""
    preload: str = ""
    reduce: str = "scatter"
    scatter: str | None = None
    rings: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        cores = chip_of(op).cores
        found = False
        for execute in executes(program_of(op)):
            if re.fullmatch(self.op, execute.label.data) or execute.label.data == self.op:
                found = True
                self._set(execute, cores)
        if not found:
            labels = sorted({e.label.data for e in executes(program_of(op))})
            close = [label for label in labels if self.op.lower() in label.lower()][:5]
            raise PassFailedException(
                f"icca-set-plan: no execute is called {self.op!r};"
                f" there are {', '.join(close or labels[:8])}"
            )

    def _set(self, execute: ExecuteOp, cores: int) -> None:
        operator = execute.operator()
        rank = len(operator.dims)
        grid = [1] * rank
        for d, value in self._factors(execute, operator, self.grid):
            grid[d] = value
        states = [self._states(execute, operator, text) for text in (self.exec, self.preload)]
        ones = (1,) * rank
        count = range(len(operator.operands))
        exec_ = tuple(states[0].get(v, ones) for v in count)
        preload = tuple(states[1].get(v, exec_[v]) for v in count)
        try:
            reduce = Reduce(self.reduce)
        except ValueError:
            raise PassFailedException(
                f"icca-set-plan: reduce={self.reduce!r} is none of scatter, root, all"
            ) from None
        scatter = None if self.scatter is None else self._dim(execute, operator, self.scatter)
        rings = (
            None
            if self.rings is None
            else tuple(self._dim(execute, operator, n) for n in self.rings.split(","))
        )
        plan = Plan(tuple(grid), exec_, preload, reduce, scatter, rings)
        plan = with_default_scatter(operator, plan)
        errors = plan_errors(operator, plan, cores)
        if errors:
            fail_at(execute, f"icca-set-plan: {execute.label.data}: {'; '.join(errors)}")
        set_plan(execute, plan)

    def _dim(self, execute: ExecuteOp, operator: Operator, name: str) -> int:
        try:
            return operator.dim(name.strip())
        except KeyError:
            names = ", ".join(d.name for d in operator.dims)
            raise PassFailedException(
                f"icca-set-plan: {execute.label.data} has no dimension {name!r} (it has {names})"
            ) from None

    def _factors(self, execute: ExecuteOp, operator: Operator, text: str) -> list[tuple[int, int]]:
        factors: list[tuple[int, int]] = []
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = re.fullmatch(r"(\w+)\s*=\s*(\d+)", part)
            if match is None:
                raise PassFailedException(
                    f"icca-set-plan: expected DIM=NUMBER, got {part!r} in {text!r}"
                )
            factors.append((self._dim(execute, operator, match[1]), int(match[2])))
        return factors

    def _states(
        self, execute: ExecuteOp, operator: Operator, text: str
    ) -> dict[int, tuple[int, ...]]:
        states: dict[int, tuple[int, ...]] = {}
        for part in filter(None, (p.strip() for p in text.split(";"))):
            number, colon, rest = part.partition(":")
            if not colon or not number.strip().isdigit():
                raise PassFailedException(
                    f"icca-set-plan: expected OPERAND:DIM=NUMBER,…, got {part!r}"
                )
            factors = [1] * len(operator.dims)
            for d, value in self._factors(execute, operator, rest):
                factors[d] = value
            states[int(number)] = tuple(factors)
        return states
