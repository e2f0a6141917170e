"""`elk explain`: the plans that an operator could have, the one it has, and why."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import ElkError, UsageError
from elk_ir.plan.plan import Plan, ring_steps

if TYPE_CHECKING:
    from elk_ir.dialects.icca.ops import ExecuteOp
    from elk_ir.plan.domain import Operator
    from elk_ir.program import Program


@dataclass(frozen=True)
class Option:
    """A plan of the operator, as the scheduler sees it; bytes are of a core.

    ring_steps: steps in which operands rotate (1: none does).
    execute_s: its own time, exchanges included, with nobody else on the network. preload_s: its
    preload alone. relayout_s: bringing resident operands into place if nothing is there yet.
    `chosen`: the one that the program has. `reason`: why it was not taken, or why it was.
    """

    grid: dict[str, int]
    cores: int
    ring_steps: int
    execute_s: float
    preload_s: float
    relayout_s: float
    execute_bytes: int
    preload_bytes: int
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Explanation:
    """room_bytes: what an execute can have while others' tensors and preloads lie beside it.
    considered: plans that were evaluated or bounded; `options`: those worth knowing, fastest first.
    """

    operator: str
    nodes: tuple[str, ...]
    kind: str
    count: int
    extents: dict[str, int]
    policy: str
    room_bytes: int
    capacity_bytes: int
    considered: int
    options: tuple[Option, ...]

    @property
    def chosen(self) -> Option:
        """The plan of the program."""
        return next(o for o in self.options if o.chosen)


def find_operator(program: Program, name: str) -> tuple[ExecuteOp, str, int]:
    """(execute, its label in the target, how often it runs) by label or by ONNX node; of several
    copies the one that runs most often. Raises UsageError if there is none."""
    from elk_ir.dialects.location import node_names
    from elk_ir.report_json import executes
    from elk_ir.sim.timeline import operators
    from elk_ir.targets.ipu.timeline import timeline_of

    if program.target_name != "ipu":
        raise UsageError(f"plans are those of the target ipu, not of {program.target_name}")
    found = list(executes(program.icca))
    labels = [op.label for op, _ in operators(timeline_of(program.target).events)]
    if len(labels) != len(found):
        raise ElkError("program.mlir and target.mlir are not of one compilation: compile again")
    rows = [(op, label, count) for (op, count), label in zip(found, labels, strict=True)]
    for match in (
        [r for r in rows if r[1] == name],
        [r for r in rows if r[0].label.data == name],
        [r for r in rows if name in node_names(r[0])],
    ):
        if match:
            return max(match, key=lambda r: r[2])
    known = list(dict.fromkeys([*labels, *(n for op, _, _ in rows for n in node_names(op))]))
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = (
        "did you mean " + " or ".join(close) + "?" if close else "there are: " + ", ".join(labels)
    )
    raise UsageError(f"no operator and no node is called {name!r}", hint=hint)


def explain(program: Program, name: str) -> Explanation:
    """The plans of an operator on the front, and why its own was taken. Raises UsageError for an
    operator that is not there."""
    from elk_ir.cost.device import device_model
    from elk_ir.dialects.location import node_names
    from elk_ir.passes.icca_support import plan_of
    from elk_ir.plan.enumerate import enumerate_plans
    from elk_ir.schedule.options import front_table, plan_table

    execute, label, count = find_operator(program, name)
    chip, cost = program.chip, device_model(program.chip)
    op, sources, plan = execute.operator(), execute.sources, plan_of(execute)
    front = enumerate_plans(op, chip, sources, cost)
    table = front_table(front, chip, sources, cost)
    own = plan_table(op, plan, chip, sources, cost)
    room = room_bytes(program, execute)
    # The chosen plan first, then all others.
    tables = [(own, 0), *((table, i) for i, p in enumerate(table.plans) if p != plan)]
    numbers = [
        (
            t.plans[i],
            float(t.compute_s[i] + t.exchange_s[i]),
            float(t.preload_s[i]),
            float(t.slice_s[:, i].sum()),
            int(t.execute_bytes[i]),
            int(t.preload_bytes[i]),
        )
        for t, i in tables
    ]
    mine = numbers[0]
    options = [
        Option(
            _grid(op, n[0]),
            n[0].cores,
            prod(ring_steps(op, n[0])),
            *n[1:],
            chosen=i == 0,
            reason=_taken(numbers, room) if i == 0 else _left(n, mine, room),
        )
        for i, n in enumerate(numbers)
    ]
    return Explanation(
        operator=label,
        nodes=node_names(execute),
        kind=op.kind,
        count=count,
        extents={d.name: d.extent for d in op.dims},
        policy=str(program.report.get("policy")),
        room_bytes=room,
        capacity_bytes=chip.usable_sram_per_core_bytes,
        considered=front.considered,
        options=tuple(sorted(options, key=lambda o: (o.execute_s, o.execute_bytes))),
    )


_Numbers = tuple[Plan, float, float, float, int, int]


def _grid(op: Operator, plan: Plan) -> dict[str, int]:
    return {d.name: f for d, f in zip(op.dims, plan.grid, strict=True)}


def _left(other: _Numbers, mine: _Numbers, room: int) -> str:
    """What speaks against a plan, compared with the one that was taken."""
    if other[4] > room:
        return f"needs {other[4]:,} bytes, {room:,} are free beside the others"
    against: list[str] = []
    if other[1] > mine[1] * (1 + 1e-9):
        against.append(f"{_seconds(other[1] - mine[1])} slower")
    if other[2] > mine[2] * (1 + 1e-9):
        against.append(f"its preload takes {_seconds(other[2] - mine[2])} more")
    if other[3] > mine[3] * (1 + 1e-9):
        against.append(f"operands come into place {_seconds(other[3] - mine[3])} later")
    if other[4] > mine[4]:
        against.append(f"{other[4] - mine[4]:,} bytes that preloads of others could use")
    if other[5] > mine[5]:
        against.append(f"its preload holds {other[5] - mine[5]:,} bytes more while it waits")
    # All that is left is how its inputs and results lie, which depends on the operators around it.
    return "; ".join(against) or "no worse by itself: the layouts around it decided"


def _taken(numbers: Sequence[_Numbers], room: int) -> str:
    """Why the first of the plans was taken, as far as the numbers of the operator tell."""
    mine, others = numbers[0], numbers[1:]
    fitting = [n for n in others if n[4] <= room]
    faster = [n for n in fitting if n[1] < mine[1] * (1 - 1e-9)]
    if not faster:
        if any(n[1] < mine[1] * (1 - 1e-9) for n in others):
            return "the fastest of those that fit beside the others"
        return "the fastest"
    best = min(faster, key=lambda n: n[1])
    return (
        f"{_seconds(mine[1] - best[1])} slower than the fastest that fits, for"
        f" {_compared(mine, best)}"
    )


def _compared(mine: _Numbers, best: _Numbers) -> str:
    gains: list[str] = []
    if mine[2] < best[2]:
        gains.append(f"a preload of {_seconds(mine[2])} instead of {_seconds(best[2])}")
    if mine[4] < best[4]:
        gains.append(f"{best[4] - mine[4]:,} bytes less")
    if mine[5] < best[5]:
        gains.append(f"{best[5] - mine[5]:,} bytes less while its preload waits")
    if mine[3] < best[3]:
        gains.append(
            f"operands that come into place in {_seconds(mine[3])}, not {_seconds(best[3])}"
        )
    return ", ".join(gains) or "layouts that suit the operators around it"


def room_bytes(program: Program, execute: ExecuteOp) -> int:
    """The bytes of a core that others leave to an execute: capacity less the most that buffers of
    other operators take in any of its phases."""
    from elk_ir.passes.icca_liveness import liveness
    from elk_ir.plan.buffers import PHASES

    live = liveness(program.icca)
    base = live.times[execute]
    used = np.zeros(PHASES, dtype=np.int64)
    for placed in live.placed:
        if any(e is execute for e, _, _ in placed.uses):
            continue
        for a, b in placed.buffer.intervals(live.problem.loops):
            used[max(0, a - base) : max(0, b - base)] += placed.buffer.size_bytes
    return program.chip.usable_sram_per_core_bytes - int(used.max())


def _seconds(value: float) -> str:
    from elk_ir.report.page import seconds

    return seconds(value)


def to_json(found: Explanation) -> dict[str, Any]:
    """The explanation under the field names of docs/report.md."""
    from dataclasses import asdict

    return {**asdict(found), "chosen": asdict(found.chosen)}
