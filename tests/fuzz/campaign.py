"""Runs batches of cases from a seed until time is up; failing ones are shrunk and written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.cases import KINDS
from fuzz.failures import write
from fuzz.runner import Defect, Tally

SHRINK_CPU_S = 60.0
"""CPU time after the first failure of a batch; what is smallest by then is reported."""


@dataclass
class Campaign:
    """Results so far. `failures` are (what, folder)."""

    tally: Tally = field(default_factory=Tally)
    failures: list[tuple[str, Path]] = field(default_factory=list)
    cpu_s: float = 0.0


def run_batch(
    kind: str, number: int, examples: int, *, shrink: bool = True, first: str | None = None
) -> tuple[Tally, Defect | None]:
    """`examples` cases of a kind, determined by `number`; the smallest failing one, if any."""
    tally = Tally()
    best: list[Defect] = []
    started: list[float] = []
    extra = () if first is None else (first,)

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        if started and time.process_time() - started[0] > SHRINK_CPU_S:
            return  # nothing fails any more: shrinking ends
        try:
            # What is run to shrink a case is not counted.
            KINDS[kind](data, Tally() if started else tally, *extra)
        except Defect as defect:
            started.append(time.process_time())
            if not best or defect.case.size <= best[0].case.size:
                best[:] = [defect]
            raise

    with tracebacks():
        try:
            run()
        except Exception:
            # The defect, or Hypothesis's complaint that it no longer fails.
            if not best:
                raise
    return tally, best[0] if best else None


@contextmanager
def tracebacks() -> Iterator[None]:
    """Inside, the compiler raises its internal errors as they are."""
    before = os.environ.get("ELK_TRACEBACK")
    os.environ["ELK_TRACEBACK"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["ELK_TRACEBACK"]
        else:
            os.environ["ELK_TRACEBACK"] = before


def campaign(
    seconds: float,
    first_seed: int,
    folder: Path,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    examples: int = 25,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.process_time,
) -> Campaign:
    """Batches of all kinds in turn until `seconds` of `clock` have passed; numbers of batches count
    up from `first_seed`, so that each can be repeated."""
    result = Campaign()
    start, cpu, number = clock(), time.process_time(), first_seed
    while clock() - start < seconds:
        kind = kinds[number % len(kinds)]
        tally, defect = run_batch(kind, number, examples)
        result.tally.add(tally)
        result.tally.cases[f"kind {kind}"] += tally.cases["agrees"] + tally.cases["refused"]
        if defect is not None:
            where = folder / f"{kind}-{number}"
            line = write(defect, where)
            result.failures.append((defect.what, where))
            say(f"batch {number} ({kind}): {defect.what}\n  {where}: {line}")
        number += 1
    result.tally.cases["batches"] += number - first_seed
    result.cpu_s = time.process_time() - cpu
    return result
