"""Plans for a chip without HBM: every weight stays on chip for the whole program.

Each operator takes its fastest plan; while the weights together with the most demanding operator
exceed the SRAM, the step down some operator's plans that saves most bytes per cycle added is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elk_ir.errors import CapacityError
from elk_ir.schedule.basic import Step


def choose_resident(steps: Sequence[Step], capacity_bytes: int) -> tuple[int, ...]:
    """One plan per step such that all preload-states and the largest execute fit together.

    Raises CapacityError if even the smallest plans do not fit.
    """
    for step in steps:
        if len(step.execute_bytes) == 0:
            raise CapacityError(
                operator=step.label,
                needed_bytes=step.smallest_bytes,
                available_bytes=capacity_bytes,
                largest=(("the operator's smallest plan", step.smallest_bytes),),
                hint="more cores or SRAM, or a smaller batch would fit",
            )
    order = [np.lexsort((s.execute_bytes, s.execute_cycles)) for s in steps]
    chosen = [int(o[0]) for o in order]
    beside = [s.execute_bytes - s.preload_bytes + s.resident_bytes for s in steps]
    while True:
        kept = np.asarray([int(s.preload_bytes[c]) for s, c in zip(steps, chosen, strict=True)])
        extra = np.asarray([int(b[c]) for b, c in zip(beside, chosen, strict=True)])
        total = int(kept.sum() + extra.max(initial=0))
        if total <= capacity_bytes:
            return tuple(chosen)
        best: tuple[float, int, int] | None = None
        ranked = np.sort(extra)[::-1]
        for i, step in enumerate(steps):
            # The largest execute among the others decides what shrinking this one can save.
            others = int(ranked[1]) if extra[i] == ranked[0] and len(ranked) > 1 else int(ranked[0])
            others = others if len(ranked) > 1 else 0
            after = kept.sum() - kept[i] + step.preload_bytes + np.maximum(beside[i], others)
            saved = total - after
            added = step.execute_cycles - step.execute_cycles[chosen[i]]
            useful = saved > 0
            if not useful.any():
                continue
            rate = np.where(useful, saved / np.maximum(added, 1e-9), -np.inf)
            k = int(np.argmax(rate))
            if best is None or rate[k] > best[0]:
                best = (float(rate[k]), i, k)
        if best is None:
            worst = int(np.argmax(extra))
            largest = sorted(
                ((s.label, int(b)) for s, b in zip(steps, kept, strict=True)),
                key=lambda pair: -pair[1],
            )
            raise CapacityError(
                operator=steps[worst].label,
                needed_bytes=total,
                available_bytes=capacity_bytes,
                largest=(("all weights together", int(kept.sum())), *largest[:3]),
                hint="the chip has no HBM: use more chips, fewer layers or narrower weights",
            )
        chosen[best[1]] = best[2]
