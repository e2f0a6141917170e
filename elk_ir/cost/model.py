"""The one interface of cost models: cycles of local steps and transfers, batched over tiles.

A cost model answers for one core of one chip. Sub-tiles are int64 arrays (n, dims) of extents,
one column an iteration dimension of the operator; answers are float64 arrays (n,) of cycles of
the chip's clock. Barriers are not included: the plan adds them (docs/plans.md).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from elk_ir.plan.domain import Operator


@runtime_checkable
class CostModel(Protocol):
    """What the plan enumeration, the scheduler and the simulator ask."""

    @property
    def name(self) -> str:
        """How reports name the model."""
        ...

    def tile_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The local phase on one sub-tile each: operand blocks to partial statistics."""
        ...

    def floor_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """A lower bound of `tile_cycles` that holds for blocks too: whatever the blocks into which
        a tile is cut along any dimensions, n · tile_cycles(⌈t / n⌉) >= floor_cycles(t). The
        enumeration prunes with it; zeros are always right."""
        ...

    def apply_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The apply phase: statistics and operands to results. Never falls as extents grow."""
        ...

    def combine_cycles(self, op: Operator, ways: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Merging `ways` partials of `elements` values (summed over the statistics) on a core.
        Never falls as `elements` grow."""
        ...

    def shift_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """One ring shift of `size_bytes` into (and out of) every core."""
        ...

    def exchange_cycles(self, bytes_in: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
        """One exchange: the most that enters a core, and the most that leaves one."""
        ...

    def copy_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """Copying within a core's memory."""
        ...

    def fill_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """Filling memory with one value (padding, neutral values)."""
        ...

    def flags(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """bool (n,): sub-tiles outside the range on which the formula in use was measured."""
        ...
