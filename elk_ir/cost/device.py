"""Cost models of whole chips: which formula prices which operator, and the chip's own transfers.

`device_model(chip)` picks by the chip file's `cost_model`: `ipu-mk2` (published tile formulas, and
fits of measured convolutions and poolings), a roofline of the chip's own rates (`roofline`,
`northpole`), or a file that `elk profile fit` wrote (a path that ends in .txt).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.cost import formulas
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import (
    attention_of,
    block_elements,
    body_flops,
    itemsize,
    multiply_adds,
    product_of,
    volume,
)
from elk_ir.errors import ChipError
from elk_ir.numerics.body import is_float
from elk_ir.plan.domain import Operator, Phase

_HALF = 2.0  # bytes of the fp16 elements on which the elementwise fits were measured
_CALL = 200.0  # cycles to start a vertex without a formula of its own: the unary fit's intercept
_MEASURED_INNER = 4096  # a k of several thousand is outside what the product fit was made on


@dataclass(frozen=True)
class CoreRates:
    """What the cost of a tile or a transfer depends on, of a chip; all per cycle of its clock.

    Chips that differ elsewhere (HBM, SRAM, number of cores) have equal rates, and so share cached
    plans. `macs` are multiply-adds by type name; in and out are bytes of a core's port.
    """

    macs: tuple[tuple[str, float], ...]
    local_bytes: float
    in_bytes: float
    out_bytes: float
    latency_cycles: float

    @staticmethod
    def of(chip: Chip) -> CoreRates:
        """The rates of one core of `chip`. A port byte of an exchange costs the chip's
        `exchange_overhead_factor`; on a mesh the port is no faster than what the links carry when
        all cores exchange at once (`_mesh_bytes_per_s`)."""
        net = chip.network
        limit = _mesh_bytes_per_s(chip)
        scale = 1.0 / (chip.clock_hz * net.exchange_overhead_factor)
        return CoreRates(
            macs=tuple((name, chip.macs_per_cycle(name)) for name in _TYPES),
            local_bytes=chip.local_bytes_per_cycle,
            in_bytes=min(net.port_in_bytes_per_s, limit) * scale,
            out_bytes=min(net.port_out_bytes_per_s, limit) * scale,
            latency_cycles=net.transfer_latency_cycles,
        )


_TYPES = ("fp32", "fp16", "int8", "int4", "int2")
_TYPE_OF = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "fp16",
    "int8": "int8",
    "uint8": "int8",
    "int4": "int4",
    "uint4": "int4",
    "int2": "int2",
    "uint2": "int2",
}


def multiplied_as(dtype: str) -> str:
    """The type (numpy names) whose peak and energy a multiply-add of `dtype` has: its own, or
    float32 for a type that no matrix unit multiplies (int32, float64, bool, …)."""
    return dtype if dtype in _TYPE_OF else "float32"


def _mesh_bytes_per_s(chip: Chip) -> float:
    """What each core of a mesh can receive when all receive from cores anywhere on the chip:
    half of the traffic crosses the middle, half of that in each direction, so
    cores / 4 · bytes <= links across the middle. Unlimited on an all-to-all network."""
    if chip.network.topology == "all-to-all":
        return float("inf")
    return 4.0 * chip.bisection_bytes_per_s / chip.cores_per_chip


@dataclass(frozen=True)
class Roofline:
    """The chip's own rates, nothing measured: max(multiply-adds / rate, bytes / local bandwidth).

    The fallback for operators without a formula, and the whole model of chips that name it.
    """

    rates: CoreRates

    @property
    def name(self) -> str:
        """How reports name the model."""
        return "roofline"

    # ------------------------------------------------------------------ rates

    def mac_rate(self, dtype: str) -> float:
        """Multiply-adds a cycle on `dtype` (a numpy name); types that the matrix unit lacks run as
        fp32, or as the widest type it has, slowed by their width."""
        macs = dict(self.rates.macs)
        own = macs.get(_TYPE_OF.get(dtype, ""), 0.0)
        if own > 0:
            return own
        widest = next((rate for _, rate in self.rates.macs if rate > 0), 1.0)
        return widest * min(1.0, 4.0 / itemsize(dtype))

    def dot_rate(self, dtype: str) -> float:
        """Multiply-adds a cycle when both factors stream from local memory."""
        return self.rates.local_bytes / (2.0 * itemsize(dtype))

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
        macs = multiply_adds(op, tiles)
        rate = min(
            (self.mac_rate(a.dtype) for a in op.operands if a.phase is not Phase.APPLY),
            default=1.0,
        )
        return np.maximum(macs / rate, moved / self.rates.local_bytes)

    def floor_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The model is linear in multiply-adds and bytes, so cutting a tile never pays."""
        return self.tile_cycles(op, tiles)

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
        rate = max(1.0, self.rates.local_bytes / 4.0)
        return np.maximum(moved / self.rates.local_bytes, points * flops / rate)

    def combine_cycles(self, op: Operator, ways: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Merging `ways` partials of `elements` values, in cycles."""
        size = max((itemsize(s.dtype) for s in op.stats), default=4)
        return (ways + 1.0) * elements * size / self.rates.local_bytes

    # ------------------------------------------------------------------ transfers

    def shift_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """One ring shift of `size_bytes` into every core, in cycles without syncs."""
        return self.exchange_cycles(size_bytes, size_bytes)

    def exchange_cycles(self, bytes_in: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
        """max(in / B_in, out / B_out) plus the network's latency, in cycles without syncs; 0
        where nothing moves."""
        busy = np.maximum(
            np.asarray(bytes_in, dtype=np.float64) / self.rates.in_bytes,
            np.asarray(bytes_out, dtype=np.float64) / self.rates.out_bytes,
        )
        return np.where(busy > 0, busy + self.rates.latency_cycles, 0.0)

    def copy_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """A copy reads and writes every byte through the local port."""
        moved = np.asarray(size_bytes, dtype=np.float64)
        return 2.0 * moved / self.rates.local_bytes

    def fill_cycles(self, size_bytes: np.ndarray) -> np.ndarray:
        """A fill writes every byte once."""
        return np.asarray(size_bytes, dtype=np.float64) / self.rates.local_bytes

    def flags(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """Nothing here is measured, so nothing is outside a measured range."""
        return np.zeros(tiles.shape[0], dtype=bool)


@dataclass(frozen=True)
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
        return self._local(op, tiles, formulas.MEASURED)

    def floor_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """The same with formulas that never gain from cutting a tile: either orientation of a
        product, and reductions without alignment."""
        return self._local(op, tiles, formulas.FLOORS)

    def _local(self, op: Operator, tiles: np.ndarray, fits: formulas.Fits) -> np.ndarray:
        if not op.stats:
            return np.zeros(tiles.shape[0])
        match op.kind:
            case "contract" if (product := product_of(op)) is not None:
                b, m = volume(tiles, product.batch), volume(tiles, product.rows)
                n, k = volume(tiles, product.cols), volume(tiles, product.inner)
                dtype = _computed_in(op, product.left, product.right)
                return self._product(b, m, n, k, dtype, fits) + self.widening_cycles(op, tiles)
            case "attention":
                return self._attention(op, tiles, fits)
            case "reduce" | "softmax" | "normalize":
                return self._statistics(op, tiles, fits)
            case "gather":
                index = volume(tiles, op.operands[1].dims)
                total = volume(tiles, op.stats[0].dims) * itemsize(op.stats[0].dtype) / _HALF
                return formulas.gather_cycles(total, index)
            case _:
                return super().tile_cycles(op, tiles) + _CALL

    def _product(
        self,
        b: np.ndarray,
        m: np.ndarray,
        n: np.ndarray,
        k: np.ndarray,
        dtype: str,
        fits: formulas.Fits,
    ) -> np.ndarray:
        """The cheaper of matrix unit and dot products: a vector would leave 15/16 of the unit
        idle."""
        unit = fits.matmul(b, m, n, k, self.element_bytes(dtype))
        dots = formulas.dot_cycles(b * m * n * k, b * m * n, self.dot_rate(dtype))
        return np.minimum(unit, dots)

    def _attention(self, op: Operator, tiles: np.ndarray, fits: formulas.Fits) -> np.ndarray:
        """Q Kᵀ, the softmax statistics of its scores, and the weights times V.

        Scores: scale and mask as one binary pass, maximum and sum as reductions, exponential as
        a unary pass, all in the accumulator's type.
        """
        shape = attention_of(op)
        b, m = volume(tiles, shape.batch), volume(tiles, shape.rows)
        n, k = volume(tiles, shape.keys), volume(tiles, shape.head)
        columns = volume(tiles, shape.columns)
        scores = b * m * n
        wide = itemsize(op.stats[0].dtype) / _HALF
        softmax = (
            formulas.binary_cycles(scores * wide)
            + 2.0 * fits.reduction(b * m, n * wide)
            + formulas.unary_cycles(scores * wide)
        )
        return (
            self._product(b, m, n, k, _computed_in(op, 0, 1), fits)
            + softmax
            + self._product(b, m, columns, n, _computed_in(op, 0, 2), fits)
            + self.widening_cycles(op, tiles)
        )

    def widening_cycles(self, op: Operator, tiles: np.ndarray) -> np.ndarray:
        """Narrow factors of a product of numbers, each element converted once a tile: the slope of
        the unary pass, in the type that is computed in."""
        total = np.zeros(tiles.shape[0])
        factors = [a for a in op.operands[:3] if a.phase is not Phase.APPLY]
        if is_float(op.stats[0].dtype):
            wide = max(itemsize(a.dtype) for a in factors) / _HALF
            for a in factors:
                if itemsize(a.dtype) < _HALF and a.dtype != "bool":
                    elements = block_elements(a, tiles) * wide
                    total += formulas.unary_cycles(elements) - formulas.unary_cycles(0 * elements)
        return total

    def _statistics(self, op: Operator, tiles: np.ndarray, fits: formulas.Fits) -> np.ndarray:
        """One reduction a statistic (a norm's count is free), one unary pass for squares or
        exponentials."""
        outputs = volume(tiles, op.stats[0].dims)
        length = volume(tiles, op.operands[0].dims - frozenset(op.stats[0].dims))
        wide = itemsize(op.operands[0].dtype) / _HALF
        one = fits.reduction(outputs, length * wide)
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
        """Products with an inner length of more than 4,096 or a single row or column are
        extrapolated, and so is every window product (im2col), attention's dot form, and every
        operator without a formula."""
        result = np.zeros(tiles.shape[0], dtype=bool)
        product = product_of(op) if op.kind == "contract" else None
        if product is not None:
            windows = any(len(a.axes) != len(a.simple) for a in op.operands)
            result |= (volume(tiles, product.inner) > _MEASURED_INNER) | windows
            result |= np.minimum(volume(tiles, product.cols), volume(tiles, product.rows)) < 2
        elif op.kind == "attention" or (op.stats and op.kind not in _MEASURED):
            result[:] = True
        return result


def _computed_in(op: Operator, left: int, right: int) -> str:
    """The type in which two factors are multiplied: the wider one's where only one is numbers of
    two bytes or more."""
    a, b = op.operands[left].dtype, op.operands[right].dtype
    return a if itemsize(a) > itemsize(b) else b


_MEASURED = ("reduce", "softmax", "normalize", "gather")


def _apply_flops(op: Operator) -> float:
    """Scalar operations a result element in the apply phase."""
    body = op.param.get("body") or op.param.get("epilogue")
    base = {"softmax": 2.0, "normalize": 3.0, "attention": 1.0}.get(op.kind, 0.0)
    return base + body_flops(body)


def device_model(chip: Chip) -> CostModel:
    """The cost model that a chip file names. Raises ChipError for a name that does not exist, and
    ElkError for a fitted model whose files can't be read."""
    # Fits build on the models above, so this module can't import them at its top.
    from elk_ir.cost.fit_files import SHIPPED, load_fits
    from elk_ir.cost.fitted import FittedIpu, FittedRoofline

    rates = CoreRates.of(chip)
    match chip.cost_model:
        case "ipu-mk2":
            return FittedIpu(rates, load_fits(SHIPPED))
        case "roofline" | "northpole":
            return Roofline(rates)
        case path if path.endswith(".txt"):
            fits = load_fits(Path(path))
            return (FittedIpu if fits.base == "ipu-mk2" else FittedRoofline)(rates, fits)
        case other:
            raise ChipError(
                f"cost_model = '{other}': no such cost model",
                where=chip.name,
                hint="give 'ipu-mk2', 'roofline', 'northpole', or the path of a model that"
                " `elk profile fit` wrote (.txt)",
            )
