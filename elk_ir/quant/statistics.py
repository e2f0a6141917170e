"""Samples of tensors, collected while a model runs on calibration inputs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from elk_ir.quant.integers import FLOAT8, integer_range
from elk_ir.quant.steps import MAX_SAMPLES, fit_step


@dataclass
class Samples:
    """Numbers seen of each tensor, by key and layer; at most `MAX_SAMPLES` of each."""

    seen: dict[tuple[Hashable, int], np.ndarray] = field(default_factory=dict)

    def add(self, key: Hashable, layer: int, array: np.ndarray) -> None:
        """Note what a tensor held in one run (of one layer of a loop)."""
        flat = np.asarray(array).reshape(-1)
        if flat.size > MAX_SAMPLES:
            flat = flat[np.linspace(0, flat.size - 1, MAX_SAMPLES).astype(np.int64)]
        known = self.seen.get((key, layer))
        flat = flat.astype(np.float32)
        self.seen[key, layer] = flat if known is None else np.concatenate([known, flat])

    def steps(self, key: Hashable, layers: int, dtype: str) -> list[float]:
        """The fitted step of each layer; that of a float type leaves room for twice the largest
        number. Raises KeyError for a tensor that was never seen."""
        room = 2.0 if dtype in FLOAT8 else 1.0
        return [room * fit_step(self.seen[key, layer], dtype) for layer in range(layers)]


def unit_step(dtype: str) -> float:
    """The step fitted on numbers of standard normal distribution; of an unsigned type on numbers
    that are uniform over 0 … 1. For programs that are only measured, not run."""
    if dtype not in FLOAT8 and integer_range(dtype)[0] == 0:
        return 1.0 / integer_range(dtype)[1]
    return fit_step(np.random.default_rng(0).standard_normal(1 << 12), dtype)
