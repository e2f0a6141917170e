"""Numbers from files that people write."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number that float can hold; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
