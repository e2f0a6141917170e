"""Every scheduling policy on the same model and machine: `elk compare`, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elk_ir.errors import UsageError
from elk_ir.process import quiet_collector
from elk_ir.schedule.policies import EXECUTABLE, REFERENCE

if TYPE_CHECKING:
    from elk_ir.chips import Chip


def compare_policies(
    model: str | Path,
    *,
    chip: str | Path | Chip,
    policies: Sequence[str] | None = None,
    dims: Mapping[str, int] | None = None,
    kv_capacity: int | None = None,
    time_budget_s: float | None = None,
    objective: str | None = None,
    attention_chunks: int | None = None,
    floats: str | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """What each policy makes of a model: the entries of `results` in `elk compare --json`
    (docs/commands.md), in the order given. Exported as `elk_ir.compare_policies`.

    policies: None for all of them and `ideal`. objective: what they minimise, time (None: this) or
    energy. attention_chunks, floats: as for `elk_ir.compile`. seed: of the search. The plans of
    the operators are enumerated once; a policy that fits in no way has `error` for its times.
    Raises ElkError for an unknown policy and for what can't be compiled.
    """
    from elk_ir.compiler import resolve_chip
    from elk_ir.tools.cmd_compare import DEFAULT, compare, prepare

    names = DEFAULT if policies is None else tuple(policies)
    unknown = [name for name in names if name not in (*EXECUTABLE, REFERENCE)]
    if unknown:
        known = ", ".join((*EXECUTABLE, REFERENCE))
        raise UsageError(f"unknown policy {unknown[0]!r}", hint=f"the policies are: {known}")
    say = progress or (lambda _: None)
    with quiet_collector():
        machine = resolve_chip(chip)
        prepared = prepare(
            str(model), machine, dims or {}, kv_capacity, say, attention_chunks, floats
        )
        return list(compare(prepared, list(names), time_budget_s, seed, say, objective or "time"))
