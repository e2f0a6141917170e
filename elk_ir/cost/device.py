"""Cost models of whole chips: which formula prices which operator, and the chip's own transfers.

`device_model(chip)` picks by the chip file's `cost_model`: `ipu-mk2` (published tile formulas) or
a roofline of the chip's own rates (`roofline`, `northpole`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost import formulas
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import block_elements, body_flops, itemsize, product_of, volume
from elk_ir.errors import ChipError
from elk_ir.plan.domain import Operator, Phase

_HALF = 2.0  # bytes of the fp16 elements on which the elementwise fits were measured
_MEASURED_INNER = 4096  # a k of several thousand is outside what the product fit was made on


class Roofline:
    """The chip's own rates, nothing measured: max(multiply-adds / rate, bytes / local bandwidth).

    The fallback for operators without a formula, and the whole model of chips that name it.
    """

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        net = chip.network
        overhead = net.exchange_overhead_factor
        self._in_bytes_per_cycle = net.port_in_bytes_per_s / chip.clock_hz / overhead
        self._out_bytes_per_cycle = net.port_out_bytes_per_s / chip.clock_hz / overhead
        self._latency_cycles = net.transfer_latency_cycles

    @property
    def name(self) -> str:
        """How reports name the model."""
        return "roofline"

    # ------------------------------------------------------------------ rates

    def mac_rate(self, dtype: str) -> float:
        """Multiply-adds a cycle on `dtype`; types that the matrix unit lacks run as fp32 scaled by
        their width."""
        try:
            rate = self.chip.macs_per_cycle(dtype)
        except ChipError:
            rate = 0.0
        if rate > 0:
            return rate
        fallback = self.chip.macs_per_cycle_fp32 or self.chip.macs_per_cycle_fp16
        fallback = fallback or self.chip.macs_per_cycle_int8
        return max(fallback, 1.0) * min(1.0, 4.0 / itemsize(dtype))

    def dot_rate(self, dtype: str) -> float:
        """Multiply-adds a cycle when both factors stream from local memory."""
        return self.chip.local_bytes_per_cycle / (2.0 * itemsize(dtype))

    # ------------------------------------------------------------------ phases

    def tile_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The local phase on one sub-tile each, in cycles."""
        if not op.stats:
            return np.zeros(tiles.shape[0])
        moved = sum(
            block_elements(a, tiles) * itemsize(a.dtype)
            for a in op.operands
            if a.phase is not Phase.APPLY
        )
        for stat in op.stats:
            moved = moved + volume(tiles, stat.dims) * itemsize(stat.dtype)
        points = volume(tiles, tuple(range(len(op.dims))))
        macs = points * max(1.0, op.flops_per_point / 2.0)
        rate = min(
            (self.mac_rate(a.dtype) for a in op.operands if a.phase is not Phase.APPLY),
            default=1.0,
        )
        return np.maximum(macs / rate, moved / self.chip.local_bytes_per_cycle)

    def apply_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The apply phase, in cycles: bytes in and out, or scalar operations."""
        moved = np.zeros(tiles.shape[0])
        for a in op.operands:
            if a.phase is not Phase.LOCAL or not op.stats:
                moved += block_elements(a, tiles) * itemsize(a.dtype)
        for stat in op.stats:
            moved += volume(tiles, stat.dims) * itemsize(stat.dtype)
        for r in op.results:
            moved += block_elements(r, tiles) * itemsize(r.dtype)
        points = volume(tiles, op.result_dims)
        flops = max(1.0, _apply_flops(op))
        rate = max(1.0, self.chip.local_bytes_per_cycle / 4.0)
        return np.maximum(moved / self.chip.local_bytes_per_cycle, points * flops / rate)

    def combine_cycles(self, op: Operator, ways: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Merging `ways` partials of `elements` values, in cycles."""
        size = max((itemsize(s.dtype) for s in op.stats), default=4)
        return (ways + 1.0) * elements * size / self.chip.local_bytes_per_cycle

    # ------------------------------------------------------------------ transfers

    def shift_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """One ring shift of `size_bytes` into every core, in cycles without syncs."""
        return self.exchange_cycles(size_bytes, size_bytes)

    def exchange_cycles(self, bytes_in: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
        """max(in / B_in, out / B_out) plus the network's latency, in cycles without syncs; 0
        where nothing moves."""
        busy = np.maximum(
            np.asarray(bytes_in, dtype=np.float64) / self._in_bytes_per_cycle,
            np.asarray(bytes_out, dtype=np.float64) / self._out_bytes_per_cycle,
        )
        return np.where(busy > 0, busy + self._latency_cycles, 0.0)

    def copy_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """A copy reads and writes every byte through the local port."""
        moved = np.asarray(size_bytes, dtype=np.float64)
        return 2.0 * moved / self.chip.local_bytes_per_cycle

    def fill_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """A fill writes every byte once."""
        return np.asarray(size_bytes, dtype=np.float64) / self.chip.local_bytes_per_cycle

    def flags(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """Nothing here is measured, so nothing is outside a measured range."""
        return np.zeros(tiles.shape[0], dtype=bool)


class IpuFormulas(Roofline):
    """Published tile formulas of the IPU MK2, the roofline for what has none."""

    @property
    def name(self) -> str:
        """How reports name the model."""
        return "ipu-mk2"

    def element_bytes(self, dtype: str) -> float:
        """e of the product formula. Its peak is 256 / e² multiply-adds a cycle (64 for fp16, 16
        for fp32), so a type runs as the e at which it has the chip's rate."""
        return float(np.sqrt(256.0 / self.mac_rate(dtype)))

    def tile_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The local phase on one sub-tile each, in cycles, by the operator's kind."""
        if not op.stats:
            return np.zeros(tiles.shape[0])
        match op.kind:
            case "contract" if product_of(op) is not None:
                return self._contract(op, tiles)
            case "attention":
                return self._attention(op, tiles)
            case "reduce" | "softmax" | "normalize":
                return self._statistics(op, tiles)
            case "gather":
                index = volume(tiles, op.operands[1].dims)
                total = volume(tiles, op.stats[0].dims) * itemsize(op.stats[0].dtype) / _HALF
                return formulas.gather_cycles(total, index)
            case _:
                return super().tile_cycles(op, tiles) + 200.0

    def _contract(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        product = product_of(op)
        assert product is not None
        b, m = volume(tiles, product.batch), volume(tiles, product.rows)
        n, k = volume(tiles, product.cols), volume(tiles, product.inner)
        dtype = op.operands[product.right].dtype
        return self.product_cycles(b, m, n, k, dtype)

    def product_cycles(
        self, b: np.ndarray, m: np.ndarray, n: np.ndarray, k: np.ndarray, dtype: str
    ) -> np.ndarray:
        """The cheaper of matrix unit and dot products: a vector would leave 15/16 of the unit
        idle."""
        unit = formulas.matmul_cycles(b, m, n, k, self.element_bytes(dtype))
        dots = formulas.dot_cycles(b * m * n * k, b * m * n, self.dot_rate(dtype))
        return np.minimum(unit, dots)

    def _attention(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """Q Kᵀ, the softmax statistics of its scores, and the weights times V.

        Scores: scale and mask as one binary pass, maximum and sum as reductions, exponential as
        a unary pass, all in the accumulator's type.
        """
        query, key, value = (op.operands[v] for v in range(3))
        kv = frozenset(op.reductions)
        rows = frozenset(op.stats[0].dims)
        out = frozenset(op.stats[2].dims)
        head = (query.dims & key.dims) - rows
        shared = rows & key.dims
        b, m = volume(tiles, shared), volume(tiles, rows - shared)
        n, k = volume(tiles, kv), volume(tiles, head)
        columns = volume(tiles, out - rows)
        scores = b * m * n
        wide = itemsize(op.stats[0].dtype) / _HALF
        softmax = (
            formulas.binary_cycles(scores * wide)
            + 2.0 * formulas.reduction_cycles(b * m, n * wide)
            + formulas.unary_cycles(scores * wide)
        )
        return (
            self.product_cycles(b, m, n, k, key.dtype)
            + softmax
            + self.product_cycles(b, m, columns, n, value.dtype)
        )

    def _statistics(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """One reduction a statistic (a norm's count is free), one unary pass for squares or
        exponentials."""
        outputs = volume(tiles, op.stats[0].dims)
        inner = set(op.operands[0].dims) - set(op.stats[0].dims)
        length = volume(tiles, frozenset(inner))
        wide = itemsize(op.operands[0].dtype) / _HALF
        one = formulas.reduction_cycles(outputs, length * wide)
        match op.kind:
            case "softmax":
                return 2.0 * one + formulas.unary_cycles(outputs * length * wide)
            case "normalize":
                passes = 1.0 if op.param.get("form") == "rms" else 2.0
                return passes * one + formulas.unary_cycles(outputs * length * wide)
            case _:
                return one

    def apply_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The apply phase as one elementwise pass over the results, plus half a cycle an element
        for every further scalar operation of its body (operands stay in registers)."""
        elements = np.zeros(tiles.shape[0])
        for r in op.results:
            elements += volume(tiles, r.dims) * itemsize(r.dtype) / _HALF
        inputs = sum(1 for a in op.operands if a.phase is not Phase.LOCAL or not op.stats)
        inputs += bool(op.stats)
        first = formulas.unary_cycles if inputs < 2 else formulas.binary_cycles
        further = max(0.0, _apply_flops(op) - 1.0) + 0.5 * max(0, inputs - 2)
        return first(elements) + 0.5 * further * elements

    def combine_cycles(self, op: Operator, ways: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """A reduction of `ways` partials a value, in the statistics' type."""
        wide = max((itemsize(s.dtype) for s in op.stats), default=4) / _HALF
        cycles = formulas.reduction_cycles(elements, ways * wide)
        if len(op.stats) > 1:
            # Merging (max, sum, out) or (count, mean, squares) also rescales every partial.
            cycles = cycles + formulas.unary_cycles(elements * ways * wide)
        return np.where(ways > 1, cycles, 0.0)

    def copy_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """The published slice copy, 0.28 cycles a byte."""
        return formulas.slice_cycles(size_bytes)

    def flags(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """Products with an inner length of more than 4,096 are extrapolated, and so is every
        window product (im2col), attention's dot form, and every operator without a formula."""
        result = np.zeros(tiles.shape[0], dtype=bool)
        product = product_of(op) if op.kind == "contract" else None
        if product is not None:
            windows = any(len(a.axes) != len(a.simple) for a in op.operands)
            result |= (volume(tiles, product.inner) > _MEASURED_INNER) | windows
            result |= volume(tiles, product.cols) * volume(tiles, product.rows) < 2
        elif op.kind == "attention" or (op.stats and op.kind not in _MEASURED):
            result[:] = True
        return result


_MEASURED = ("reduce", "softmax", "normalize", "gather")


def _apply_flops(op: Operator) -> float:
    """Scalar operations a result element in the apply phase."""
    body = op.param.get("body") or op.param.get("epilogue")
    base = {"softmax": 2.0, "normalize": 3.0, "attention": 1.0}.get(op.kind, 0.0)
    return base + body_flops(body)


@lru_cache(maxsize=64)
def device_model(chip: Chip) -> CostModel:
    """The cost model that a chip file names. Raises ChipError for a name that does not exist."""
    match chip.cost_model:
        case "ipu-mk2":
            return IpuFormulas(chip)
        case "roofline" | "northpole":
            return Roofline(chip)
        case other:
            raise ChipError(
                f"cost_model = '{other}': no such cost model",
                where=chip.name,
                hint="give 'ipu-mk2', 'roofline' or 'northpole'",
            )
