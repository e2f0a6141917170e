"""`elk diff`: why two programs differ in time, operator by operator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elk_ir.errors import UsageError

if TYPE_CHECKING:
    from elk_ir.program import Program
    from elk_ir.sim import SimResult

TOTALS = ("time_s", "lower_bound_s", "energy_j", "hbm_utilization", "network_utilization")
TOTALS += ("hbm_bytes", "sram_peak_bytes")


@dataclass(frozen=True)
class Side:
    """An operator in one program, all its copies and runs together. `grid` and `preload_ahead`
    (executes that run between the issue of its preload and itself; None: it has none, or a loop
    carries it) are those of the copy that runs most often."""

    time_s: float
    spent_s: dict[str, float]
    runs: int
    grid: dict[str, int]
    cores: int
    sram_bytes: int
    preload_ahead: int | None


@dataclass(frozen=True)
class Pair:
    """An operator in both programs; None where one does not have it."""

    operator: str
    a: Side | None
    b: Side | None

    @property
    def delta_s(self) -> float:
        """What the second program takes longer."""
        a, b = self.a.time_s if self.a else 0.0, self.b.time_s if self.b else 0.0
        # Times are differences of points in time: below this they are rounding.
        return b - a if abs(b - a) > 1e-9 * max(a, b) else 0.0

    @property
    def why(self) -> str:
        """What differs."""
        if self.a is None or self.b is None:
            return f"only in {'B' if self.a is None else 'A'}"
        found: list[str] = []
        if self.a.grid != self.b.grid:
            found.append(f"grid {_grid(self.a.grid)} → {_grid(self.b.grid)}")
        elif self.a.sram_bytes != self.b.sram_bytes:
            found.append(f"SRAM {self.a.sram_bytes:,} → {self.b.sram_bytes:,} bytes")
        if self.a.preload_ahead != self.b.preload_ahead:
            found.append(f"preload {_ahead(self.a.preload_ahead)} → {_ahead(self.b.preload_ahead)}")
        changes = changed(self.a.spent_s, self.b.spent_s)
        if changes and abs(self.delta_s) > 1e-6 * max(self.a.time_s, self.b.time_s):
            name, value = changes[0]
            found.append(f"{name} {_signed(value)}")
        return "; ".join(found)


@dataclass(frozen=True)
class Difference:
    """Two programs. `totals`: field, A, B. `spent`: what bounded the operators, seconds that B
    takes longer, the largest change first. `operators`: by how much they differ."""

    a: str
    b: str
    same_model: bool
    totals: tuple[tuple[str, float, float], ...]
    breakdown: tuple[tuple[str, float, float], ...]
    spent: tuple[tuple[str, float], ...]
    operators: tuple[Pair, ...]


def difference(a: Program, b: Program) -> Difference:
    """Compare two programs of the ipu target. Raises UsageError for others."""
    for program in (a, b):
        if program.target_name != "ipu":
            raise UsageError(
                f"elk diff compares programs of the target ipu, not {program.target_name}"
            )
    results = a.simulate(), b.simulate()
    sides = sides_of(a, results[0]), sides_of(b, results[1])
    names = dict.fromkeys([*sides[0], *sides[1]])
    pairs = [Pair(n, sides[0].get(n), sides[1].get(n)) for n in names]
    reports = [
        {**p.report, "time_s": r.time_s, "lower_bound_s": r.lower_bound_s, "energy_j": r.energy_j}
        | {"hbm_utilization": r.hbm_utilization, "network_utilization": r.network_utilization}
        for p, r in zip((a, b), results, strict=True)
    ]
    parts = [r.breakdown.to_json() for r in results]
    spent = [_total(list(s.values())) for s in sides]
    return Difference(
        _name(a),
        _name(b),
        a.report.get("model") == b.report.get("model"),
        tuple((f, reports[0][f], reports[1][f]) for f in TOTALS),
        tuple((n, parts[0][n], parts[1][n]) for n in parts[0]),
        tuple(changed(*spent)),
        tuple(sorted(pairs, key=lambda p: (-abs(p.delta_s), p.operator))),
    )


def sides_of(program: Program, result: SimResult) -> dict[str, Side]:
    """The operators of a program by the name that all their copies share."""
    from elk_ir.report_json import executes
    from elk_ir.sim.timeline import operators
    from elk_ir.targets.ipu.timeline import timeline_of

    labels = [op.label for op, _ in operators(timeline_of(program.target).events)]
    ahead = [preload_ahead(op) for op, _ in executes(program.icca)]
    times: dict[str, tuple[float, int, dict[str, float]]] = {}
    for row in result.operators():
        seconds, runs, spent = times.get(row.label, (0.0, 0, {}))
        for name, value in row.spent_s:
            spent[name] = spent.get(name, 0.0) + value
        times[row.label] = (seconds + row.end_s - row.start_s, runs + 1, spent)
    found: dict[str, Side] = {}
    for entry, label, lead in zip(program.report["operators"], labels, ahead, strict=True):
        seconds, runs, spent = times.get(label, (0.0, 0, {}))
        old = found.get(entry["name"])
        if old is not None:
            seconds, spent = seconds + old.time_s, _sum(spent, old.spent_s)
        shown = (entry["grid"], entry["cores"], entry["sram_bytes"], lead)
        if old is not None and old.runs >= runs:
            shown = (old.grid, old.cores, old.sram_bytes, old.preload_ahead)
        runs += 0 if old is None else old.runs
        found[entry["name"]] = Side(seconds, spent, runs, *shown)
    return found


def preload_ahead(execute: Any) -> int | None:
    """Executes between the issue of an execute's first preload and itself; None without one in its
    block."""
    from elk_ir.dialects.icca.ops import ExecuteOp
    from elk_ir.passes.icca_move_preloads import own_preloads

    own = own_preloads(execute)
    if not own:
        return None
    leads = []
    for preload in own:
        lead, op = 0, preload.next_op
        while op is not None and op is not execute:
            lead += isinstance(op, ExecuteOp)
            op = op.next_op
        leads.append(lead)
    return max(leads)


def changed(a: dict[str, float], b: dict[str, float]) -> list[tuple[str, float]]:
    """What differs between two sums by name, the largest change first."""
    found = [(n, b.get(n, 0.0) - a.get(n, 0.0)) for n in dict.fromkeys([*a, *b])]
    return sorted((f for f in found if f[1]), key=lambda f: -abs(f[1]))


def _sum(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {n: a.get(n, 0.0) + b.get(n, 0.0) for n in dict.fromkeys([*a, *b])}


def _total(sides: list[Side]) -> dict[str, float]:
    total: dict[str, float] = {}
    for side in sides:
        total = _sum(total, side.spent_s)
    return total


def _name(program: Program) -> str:
    report = program.report
    return f"{report.get('model')} on {report.get('chip')}, policy {report.get('policy')}"


def _grid(grid: dict[str, int]) -> str:
    return "×".join(f"{n}{k}" for n, k in grid.items() if k > 1) or "1"


def _ahead(lead: int | None) -> str:
    return "carried or none" if lead is None else f"{lead} ahead"


def _signed(value: float) -> str:
    from elk_ir.report.page import seconds

    return ("" if value == 0 else "+" if value > 0 else "−") + seconds(abs(value))


def signed(value: float) -> str:
    """A change of time for people."""
    return _signed(value)


def to_json(found: Difference) -> dict[str, Any]:
    """The difference under the field names of docs/report.md."""
    return {
        "a": found.a,
        "b": found.b,
        "same_model": found.same_model,
        "totals": {n: {"a": x, "b": y} for n, x, y in found.totals},
        "breakdown_s": {n: {"a": x, "b": y} for n, x, y in found.breakdown},
        "spent_delta_s": dict(found.spent),
        "operators": [
            {
                "operator": p.operator,
                "delta_s": p.delta_s,
                "why": p.why,
                "a": None if p.a is None else asdict(p.a),
                "b": None if p.b is None else asdict(p.b),
            }
            for p in found.operators
        ],
    }
