"""Bytes of a block on the cards that share it, and on the cores of each card.

A product's weights are cut along the reduction and the outputs, a cache along its heads and its
positions, so that the largest part of a core is smallest. Everything is for one card of `ways`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from elk_ir.northpole.network import Block, Precision, Task

FP16_BYTES = 2


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


@lru_cache(maxsize=4096)
def split_grid(rows: int, cols: int, cores: int) -> tuple[int, int]:
    """(row parts, column parts) with at most `cores` parts and the smallest largest part; of equal
    ones the squarest, which makes the sums over the network shortest."""
    best: tuple[int, int, tuple[int, int]] | None = None
    for f in range(1, min(rows, cores) + 1):
        g = min(cols, cores // f)
        part = ceil_div(rows, f) * ceil_div(cols, g)
        key = (part, abs(f - g), (f, g))
        if best is None or key < best:
            best = key
    assert best is not None
    f, g = best[2]
    return ceil_div(rows, ceil_div(rows, f)), ceil_div(cols, ceil_div(cols, g))


@dataclass(frozen=True)
class Resident:
    """What stays on a card: bytes of weights, of constants and quantisation steps, of one user's
    KV; and the same two of the fullest core (`core_fixed_bytes` weights and constants)."""

    weight_bytes: int
    constant_bytes: int
    kv_bytes_per_user: int
    core_fixed_bytes: int
    core_kv_bytes_per_user: int

    @property
    def fixed_bytes(self) -> int:
        """All that does not depend on the number of users."""
        return self.weight_bytes + self.constant_bytes

    def __add__(self, other: Resident) -> Resident:
        return Resident(
            self.weight_bytes + other.weight_bytes,
            self.constant_bytes + other.constant_bytes,
            self.kv_bytes_per_user + other.kv_bytes_per_user,
            self.core_fixed_bytes + other.core_fixed_bytes,
            self.core_kv_bytes_per_user + other.core_kv_bytes_per_user,
        )


NOTHING = Resident(0, 0, 0, 0, 0)


def placement(task: Task, ways: int, context: int, cores: int) -> tuple[int, int]:
    """How the 16 × 16 cores divide the task's weights (reduction, outputs) or cache (heads,
    positions) on one of `ways` cards; (1, cores) for tasks that hold neither."""
    if task.matrix is not None:
        k, n = task.matrix
        return split_grid(k, ceil_div(n, ways), cores)
    if task.kv_elements and context:
        return split_grid(ceil_div(task.heads, ways), context, cores)
    return (1, cores)


def task_resident(
    task: Task, bits: int, kv_bits: int, ways: int, context: int, cores: int
) -> Resident:
    """What `task` keeps on each of `ways` cards with weights of `bits` and KV entries of
    `kv_bits`."""
    weights = ceil_div(ceil_div(task.weight_elements, ways) * bits, 8)
    steps = ceil_div(task.step_count, ways) * FP16_BYTES
    constants = task.constant_elements * FP16_BYTES + steps
    core = ceil_div(constants, cores)
    rows, cols = placement(task, ways, context, cores)
    if task.matrix is not None:
        k, n = task.matrix
        part = ceil_div(k, rows) * ceil_div(ceil_div(n, ways), cols)
        if k * n != task.weight_elements:  # a convolution: matrix holds its window and channels
            part = ceil_div(ceil_div(task.weight_elements, ways), cores)
        core += ceil_div(part * bits, 8)
    kv = core_kv = 0
    if task.kv_elements and context:
        heads = ceil_div(task.heads, ways)
        width = task.kv_elements // task.heads
        kv = ceil_div(heads * width * context * kv_bits, 8)
        part = ceil_div(heads, rows) * ceil_div(context, cols) * width
        core_kv = ceil_div(part * kv_bits, 8)
    return Resident(weights, constants, kv, core, core_kv)


def block_resident(
    block: Block, precision: Precision, *, head: bool, ways: int, context: int, cores: int
) -> Resident:
    """What `block` keeps on each of the `ways` cards that share it."""
    bits = precision.head_bits if head else precision.weight_bits
    total = NOTHING
    for task in block.tasks:
        total += task_resident(task, bits, precision.kv_bits, ways, context, cores)
    return total
