"""Resize: along each axis a copy, a gather by constant indices, or a product with a constant
matrix of interpolation weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.numerics.body import dtype_of
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    iota,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.movement import axis_of
from elk_ir.passes.onnx_lowerings.products import contract


def coordinates(
    mode: str, inputs: int, outputs: int, scale: float, roi: tuple[float, float]
) -> np.ndarray:
    """The input coordinate of each output, by coordinate transformation mode (ONNX, Resize).

    The resized length is `scale * inputs`, of which `outputs` is the integer part.
    """
    o = iota(outputs, np.float64)
    length = scale * inputs
    match mode:
        case "half_pixel":
            return (o + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            centre = inputs / 2 * (1 - outputs / length)
            return centre + (o + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (o + 0.5) / scale - 0.5 if length > 1 else np.zeros(outputs)
        case "align_corners":
            return o * (inputs - 1) / (length - 1) if length != 1 else np.zeros(outputs)
        case "asymmetric":
            return o / scale
        case "tf_crop_and_resize":
            start, end = roi
            if length == 1:
                return np.full(outputs, 0.5 * (start + end) * (inputs - 1))
            step = (end - start) * (inputs - 1) / (length - 1)
            return start * (inputs - 1) + o * step
        case _:
            raise Unsupported(f"coordinate transformation mode {mode!r}")


def nearest(coordinate: np.ndarray, mode: str, inputs: int) -> np.ndarray:
    """The nearest input index of each coordinate, by nearest mode."""
    match mode:
        case "round_prefer_floor":
            index = np.ceil(coordinate - 0.5)
        case "round_prefer_ceil":
            index = np.floor(coordinate + 0.5)
        case "floor":
            index = np.floor(coordinate)
        case "ceil":
            index = np.ceil(coordinate)
        case _:
            raise Unsupported(f"nearest mode {mode!r}")
    return np.clip(index, 0, inputs - 1).astype(np.int64)


def linear_kernel(x: np.ndarray) -> np.ndarray:
    """A triangle of half width 1."""
    return np.clip(1 - np.abs(x), 0, None)


def cubic_kernel(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """The piecewise cubic of Keys with parameter `a`, of half width 2."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
        outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, inner, np.where(x < 2, outer, 0))

    return kernel


def interpolation(
    coordinate: np.ndarray,
    inputs: int,
    kernel: Callable[[np.ndarray], np.ndarray],
    reach: int,
    shrink: float,
    exclude_outside: bool,
) -> np.ndarray:
    """The matrix (outputs, inputs) of interpolation weights.

    The kernel is stretched by 1 / `shrink` (anti-aliasing); positions outside count as the nearest
    edge, or not at all. Each row sums to one.
    """
    span = int(np.ceil(reach / shrink))
    taps = np.floor(coordinate)[:, None] + np.arange(-span + 1, span + 1)
    weights = kernel((taps - coordinate[:, None]) * shrink)
    if exclude_outside:
        weights = np.where((taps >= 0) & (taps < inputs), weights, 0)
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((len(coordinate), inputs))
    columns = np.clip(taps, 0, inputs - 1).astype(np.int64)
    np.add.at(matrix, (np.arange(len(coordinate))[:, None], columns), weights)
    return matrix


def resize_axis(ctx: Context, node: Node, source: SSAValue, axis: int, plan: Axis) -> SSAValue:
    """One axis of a resize."""
    inputs = shape_of(source)[axis]
    where = coordinates(
        node.attr("coordinate_transformation_mode"), inputs, plan.outputs, plan.scale, plan.roi
    )
    outside = np.zeros(plan.outputs, dtype=bool)
    if node.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        outside = (where < 0) | (where > inputs - 1)
    if node.attr("mode") == "nearest":
        index = nearest(where, node.attr("nearest_mode"), inputs)
        value = _pick(ctx, source, axis, index)
    else:
        cubic = node.attr("mode") == "cubic"
        kernel = cubic_kernel(node.attr("cubic_coeff_a")) if cubic else linear_kernel
        shrink = min(1.0, plan.scale) if node.attr("antialias") else 1.0
        matrix = interpolation(
            where, inputs, kernel, 2 if cubic else 1, shrink, bool(node.attr("exclude_outside"))
        )
        value = _mix(ctx, source, axis, matrix)
    if outside.any():
        shape = [-1 if j == axis else 1 for j in range(len(shape_of(source)))]
        fill = node.attr("extrapolation_value")
        mask = ctx.constant(outside.reshape(shape))
        value = ctx.map1(lambda b, m, x: b.apply("select", m, fill, x), mask, value)
    return value


def _pick(ctx: Context, source: SSAValue, axis: int, index: np.ndarray) -> SSAValue:
    shape = shape_of(source)
    outputs, inputs = len(index), shape[axis]
    if outputs % inputs == 0 and (index == np.arange(outputs) // (outputs // inputs)).all():
        # Every element repeated: output r i + j is input i.
        repeats = outputs // inputs
        domain = Domain()
        read, write = [], []
        for j, extent in enumerate(shape):
            d = domain.add(f"d{j}", extent)
            read.append(d)
            if j == axis and repeats > 1:
                d = total(scaled(d, repeats), domain.add(f"r{j}", repeats))
            write.append(d)
        target = [outputs if j == axis else n for j, n in enumerate(shape)]
        return moves.move(ctx, source, target, domain, tuple(read), tuple(write))
    steps = np.diff(index)
    if outputs > 1 and steps[0] != 0 and (steps == steps[0]).all():
        starts, strides, sizes = [0] * len(shape), [1] * len(shape), list(shape)
        starts[axis], strides[axis], sizes[axis] = int(index[0]), int(steps[0]), outputs
        return moves.slice_axes(ctx, source, starts, sizes, strides)
    return moves.gather(ctx, source, ctx.constant(index), axis)


def _mix(ctx: Context, source: SSAValue, axis: int, matrix: np.ndarray) -> SSAValue:
    shape, dtype = shape_of(source), dtype_of_value(source)
    target = [len(matrix) if j == axis else n for j, n in enumerate(shape)]
    domain = Domain()
    write = domain.parallel(target)
    k = domain.reduction("k", shape[axis])
    read = (*write[:axis], k, *write[axis + 1 :])
    weights = ctx.constant(matrix.astype(np.float64 if dtype == "float64" else np.float32))
    # Weights are exact enough in float32 only; the data is widened by the contraction.
    wide = ctx.cast(source, dtype_of_value(weights))
    factors = [(wide, read), (weights, (write[axis], k))]
    return contract(ctx, domain, factors, (target, dtype, write))


class Axis:
    """What is to happen along one axis."""

    def __init__(self, outputs: int, scale: float, roi: tuple[float, float]) -> None:
        self.outputs, self.scale, self.roi = outputs, scale, roi


def _known(ctx: Context, value: SSAValue | None) -> np.ndarray | None:
    return None if value is None else ctx.array(value)


@lowers("Resize")
def _resize(ctx: Context, node: Node) -> SSAValue:
    """Axis by axis; axes that keep their extent and scale are left alone."""
    source = node.operand(0)
    shape, target = shape_of(source), node.shape()
    if 0 in target:
        return ctx.constant(np.zeros(target, dtype_of(node.dtype())))
    rank = len(shape)
    axes = node.attr("axes")
    axes = list(range(rank)) if axes is None else [axis_of(a, rank) for a in axes]
    scales = _known(ctx, node.get(2))
    if scales is not None and scales.size not in (0, len(axes)):
        raise Unsupported(f"{scales.size} scales for {len(axes)} axes")
    roi = _known(ctx, node.get(1))
    crop = node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crop and (roi is None or roi.size != 2 * len(axes)):
        raise Unsupported("a region of interest that is not constant")
    given: dict[int, float] = {}
    if scales is not None and scales.size:
        given = {a: float(s) for a, s in zip(axes, scales.reshape(-1), strict=True)}
    elif node.get(3) is None:
        raise Unsupported("neither scales nor sizes")
    elif node.attr("keep_aspect_ratio_policy") not in (None, "stretch"):
        sizes = ctx.ints(node.get(3), "sizes")
        assert sizes is not None
        if len(sizes) != len(axes):
            raise Unsupported(f"{len(sizes)} sizes for {len(axes)} axes")
        ratios = [s / shape[a] for s, a in zip(sizes, axes, strict=True)]
        larger = node.attr("keep_aspect_ratio_policy") == "not_smaller"
        common = max(ratios) if larger else min(ratios)
        given = dict.fromkeys(axes, common)
    value = source
    for i, axis in enumerate(axes):
        scale = given.get(axis, target[axis] / shape[axis])
        if target[axis] == shape[axis] and scale == 1 and not crop:
            continue
        region = (0.0, 1.0)
        if crop and roi is not None:
            flat = roi.reshape(-1)
            region = (float(flat[i]), float(flat[len(axes) + i]))
        value = resize_axis(ctx, node, value, axis, Axis(target[axis], scale, region))
    return value


@lowers("Upsample")
def _upsample(ctx: Context, node: Node) -> SSAValue:
    """Resize's predecessor: asymmetric coordinates, rounded down."""
    source = node.operand(0)
    if node.attr("mode") not in ("nearest", b"nearest"):
        raise Unsupported(f"mode {node.attr('mode')!r}")
    value = source
    for axis, (n, m) in enumerate(zip(shape_of(source), node.shape(), strict=True)):
        if n != m:
            index = nearest(coordinates("asymmetric", n, m, m / n, (0, 1)), "floor", n)
            value = _pick(ctx, value, axis, index)
    return value
