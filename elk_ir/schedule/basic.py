"""The `basic` policy: the fastest plan that fits beside the next operator's preload.

Elk's baseline: every operator takes the largest execution space it can use, and only the next
operator is preloaded while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elk_ir.errors import CapacityError


@dataclass(frozen=True)
class Step:
    """One operator and its plans: arrays with one entry a plan, bytes per core.

    execute_bytes: peak while it runs, its own preload-state included. preload_bytes: what waits
    in preload-state before it runs. resident_bytes: what other live tensors take meanwhile.
    """

    label: str
    execute_bytes: np.ndarray
    preload_bytes: np.ndarray
    execute_cycles: np.ndarray
    resident_bytes: int = 0
    smallest_bytes: int = 0
    """The least execute_bytes of any plan at all, for the message when none fits."""


@dataclass(frozen=True)
class Choice:
    """Per step the chosen plan, and whether its preload is issued before the previous execute."""

    plans: tuple[int, ...]
    hoisted: tuple[bool, ...]


def choose_basic(steps: Sequence[Step], capacity_bytes: int) -> Choice:
    """Plans for consecutive operators, from the last one back.

    Raises CapacityError for an operator of which no plan fits.
    """
    count = len(steps)
    plans = [0] * count
    hoisted = [False] * count
    ahead = 0
    for i in range(count - 1, -1, -1):
        step = steps[i]
        room = capacity_bytes - step.resident_bytes
        if len(step.execute_bytes) == 0 or int(step.execute_bytes.min()) > room:
            smallest = step.smallest_bytes or int(step.execute_bytes.min())
            raise CapacityError(
                operator=step.label,
                needed_bytes=smallest + step.resident_bytes,
                available_bytes=capacity_bytes,
                largest=(
                    ("the operator's smallest plan", smallest),
                    ("other live tensors", step.resident_bytes),
                ),
                hint="more cores or SRAM, a smaller batch or a shorter context would fit",
            )
        fits = step.execute_bytes + ahead <= room
        if not fits.any():
            # The next operator's preload does not fit beside this one: issue it afterwards.
            hoisted[i + 1] = False
            fits = step.execute_bytes <= room
        # Leave the previous operator room to run at all beside this preload, if that is possible.
        before = steps[i - 1] if i > 0 else None
        if before is not None and len(before.execute_bytes):
            spare = capacity_bytes - before.resident_bytes - int(before.execute_bytes.min())
            beside = fits & (step.preload_bytes <= spare)
            hoisted[i] = bool(beside.any())
            fits = beside if hoisted[i] else fits
        order = np.lexsort((step.execute_bytes, step.execute_cycles))
        plans[i] = int(order[fits[order]][0])
        ahead = int(step.preload_bytes[plans[i]]) if hoisted[i] else 0
    return Choice(tuple(plans), tuple(hoisted))
