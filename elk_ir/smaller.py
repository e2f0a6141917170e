"""What would fit of a model that does not: the same on other chips, and with smaller dimensions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from elk_ir.errors import CapacityError, ElkError

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.passes.icca_fit import ChipChanges

BUDGET_S = 2.0
"""CPU time after which no further value is tried; what is known by then is said."""


Prepare = Callable[["Chip", Mapping[str, int]], ModuleOp]
"""A model on a chip with dimensions bound, before it is scheduled. May raise ElkError: there is no
such program."""


def explain(error: CapacityError, prepare: Prepare, dims: Mapping[str, int]) -> None:
    """Let `error`, of a program that `icca-schedule` has refused, try changes of the chip on the
    model itself, and say how small each of `dims` would have to be."""
    from elk_ir.passes.icca_fit import ChipChanges

    changes = next((f for f in error.finders if isinstance(f, ChipChanges)), None)
    if changes is None:
        return
    changes.rebuild = lambda chip: prepare(chip, dims)
    if any(value > 1 for value in dims.values()):
        error.suggest(partial(_lines, changes, dict(dims), prepare))


def _lines(
    changes: ChipChanges,
    dims: Mapping[str, int],
    prepare: Prepare,
) -> list[str]:
    from elk_ir.passes.icca_fit import least_bytes
    from elk_ir.schedule.fit import largest_value

    tables, needed = changes.tables, changes.needed_bytes
    capacity = tables.chip.usable_sram_per_core_bytes
    if needed <= capacity:
        return []

    def needs(name: str, value: int) -> int | None:
        try:
            return least_bytes(prepare(tables.chip, {**dims, name: value}), tables)
        except ElkError:
            return None

    lines: list[str] = []
    bound = [name for name, value in dims.items() if value > 1]
    started = time.process_time()
    for k, name in enumerate(bound, 1):
        until = started + BUDGET_S * k / len(bound)
        found = largest_value(
            dims[name],
            needed,
            capacity,
            partial(needs, name),
            lambda until=until: time.process_time() < until,
        )
        if found is None:
            lines.append(f"no smaller {name} alone (now {dims[name]:,}) seems to be enough")
        else:
            how = "tried" if found.tried else "estimated"
            lines.append(
                f"a smaller {name}: --dim {name}={found.value} (now {dims[name]:,}; {how})"
            )
    return lines
