"""Random plans of the executes of a program, as the passes that set them."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import strategies as st
from operators import plans
from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects.icca.ops import ExecuteOp
from elk_ir.passes.icca_support import chip_of, executes, program_of
from elk_ir.plan.domain import Operator
from elk_ir.plan.plan import Plan, Reduce, reduction_ways

MOST_DIMS = 7
"""Operators of more dimensions keep the scheduler's plan: enumerating their states takes long."""


def draw_plans(draw: st.DrawFn, module: ModuleOp) -> tuple[str, Counter[str]]:
    """Passes `icca-set-plan`, one for most executes of an unplanned module, and what the plans
    show."""
    chip = chip_of(module)
    steps: list[str] = []
    found: Counter[str] = Counter()
    labels = Counter(e.label.data for e in executes(program_of(module)))
    for execute in executes(program_of(module)):
        label = execute.label.data
        operator = execute.operator()
        plain = re.fullmatch(r"[\w.]+", label) is not None and labels[label] == 1
        if not plain or len(operator.dims) > MOST_DIMS or not draw(st.sampled_from([1, 1, 1, 0])):
            found["left to the scheduler"] += 1
            continue
        plan = draw(plans(operator, chip.cores))
        steps.append(f"icca-set-plan{{{plan_text(label, operator, plan)}}}")
        found.update(features(operator, plan))
    return ",".join(steps), found


def plan_text(label: str, op: Operator, plan: Plan) -> str:
    """A plan as the options of `icca-set-plan`."""
    names = [d.name for d in op.dims]

    def factors(values: tuple[int, ...]) -> str:
        return ",".join(f"{n}={f}" for n, f in zip(names, values, strict=True) if f > 1)

    def states(vectors: tuple[tuple[int, ...], ...], all_of_them: bool) -> str:
        items = ((v, factors(x)) for v, x in enumerate(vectors))
        return ";".join(f"{v}:{text}" for v, text in items if text or all_of_them)

    options = [f'op="{label}"', f'grid="{factors(plan.grid)}"']
    if states(plan.execute, False):
        options.append(f'exec="{states(plan.execute, False)}"')
    if plan.preload != plan.execute:
        options.append(f'preload="{states(plan.preload, False)}"')
    options.append(f"reduce={plan.reduce.value}")
    if plan.scatter_dim is not None:
        options.append(f"scatter={names[plan.scatter_dim]}")
    if plan.ring_order:
        options.append(f'rings="{",".join(names[d] for d in plan.ring_order)}"')
    return " ".join(options)


def features(op: Operator, plan: Plan) -> set[str]:
    """What a plan shows, in the words of docs/plans.md."""
    found: set[str] = set()
    rings = [v for v, x in enumerate(plan.execute) if max(x, default=1) > 1]
    if rings:
        found.add("ring")
    if len(rings) > 1:
        found.add("rings of several operands")
    if sum(max((x[d] for x in plan.execute), default=1) > 1 for d in range(len(op.dims))) > 1:
        found.add("nested rings")
    if plan.preload != plan.execute:
        found.add("partial preload")
    if reduction_ways(op, plan) > 1:
        reduce = plan.reduce if plan.reduce is not Reduce.SCATTER else "scatter"
        found.add(f"split reduction to {reduce}")
    if any(e % f for e, f in zip(op.extents, plan.grid, strict=True)):
        found.add("ragged tiles")
    if plan.cores == 1:
        found.add("one core")
    elif plan.cores > 1:
        found.add("several cores")
    return found


def program_features(module: ModuleOp) -> set[str]:
    """What a lowered program shows: movements between layouts, rings, distributions, loops."""
    from elk_ir.dialects import ipu

    found: set[str] = set()
    for op in module.walk():
        if isinstance(op, ExecuteOp):
            continue
        if isinstance(op, ipu.ReshardOp):
            source = op.source.root_reference.data.rsplit(".", 1)[-1]
            found.add(
                "distribution"
                if source.startswith("preload")
                else "exchange of partial results"
                if source.startswith("partial")
                else "re-layout"
            )
        elif isinstance(op, ipu.ExchangeOp):
            found.add("ring shift")
        elif op.name == "ipu.repeat":
            found.add("layer loop")
        elif op.name == "ipu.copy_start":
            found.add("asynchronous preload")
    return found
