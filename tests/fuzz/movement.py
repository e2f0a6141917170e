"""Generators of operators that move, select and place elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.builder import BOOL, F32, FLOATS, I64, INTS, MOST_ELEMENTS, Builder, Refused

Generator = Callable[[Builder], object]
ANY = (*FLOATS, *INTS, BOOL)


def transpose(g: Builder) -> None:
    x = g.pick(ANY)
    order = list(range(x.rank))
    for i in range(x.rank - 1):
        j = g.number(i, x.rank - 1)
        order[i], order[j] = order[j], order[i]
    g.node("Transpose", [x], {"perm": order} if order and g.flag() else {}, exact=True)


def reshape(g: Builder) -> None:
    x = g.pick(ANY, empty=False)
    left, target = x.array.size, []
    while left > 1 and len(target) < 4:
        factor = g.choose([f for f in range(1, left + 1) if left % f == 0])
        target.append(factor)
        left //= factor
    target.append(left)
    if g.flag():
        target[g.number(0, len(target) - 1)] = -1
    g.node("Reshape", [x, g.constant(target)], exact=True)


def flatten(g: Builder) -> None:
    x = g.pick(ANY)
    g.node("Flatten", [x], {"axis": g.number(-x.rank, x.rank)}, exact=True)


def squeeze(g: Builder) -> None:
    x = g.pick(ANY)
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    axes = [i - x.rank if g.flag() else i for i in ones if g.flag()]
    g.node("Squeeze", [x, g.constant(axes) if axes else None], exact=True)


def unsqueeze(g: Builder) -> None:
    x = g.pick(ANY, where=lambda v: v.rank < 5)
    axes = sorted({g.number(0, x.rank) for _ in range(g.number(1, 2))})
    g.node("Unsqueeze", [x, g.constant(axes)], exact=True)


def expand(g: Builder) -> None:
    x = g.pick(ANY, where=lambda v: v.rank < 5)
    extra = [g.number(1, 3) for _ in range(g.number(0, 1))]
    target = [g.choose([n, 2, 3, 5]) if n == 1 else g.choose([n, 1]) for n in x.shape]
    g.node("Expand", [x, g.constant(extra + target)], exact=True)


def tile(g: Builder) -> None:
    x = g.pick(ANY, where=lambda v: v.array.size < MOST_ELEMENTS // 9)
    g.node("Tile", [x, g.constant([g.number(1, 3) for _ in x.shape])], exact=True)


def concat(g: Builder) -> None:
    x = g.pick(ANY, least=1)
    axis = g.number(-x.rank, x.rank - 1)
    parts = [x]
    for _ in range(g.number(1, 3)):
        others = [
            v
            for v in g.values
            if v.dtype == x.dtype
            and v.rank == x.rank
            and all(
                a == b
                for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True))
                if i != axis % x.rank
            )
        ]
        if g.flag():
            parts.append(g.choose(others))
        else:
            shape = list(x.shape)
            shape[axis] = g.number(1, 4)
            parts.append(g.leaf(shape, x.dtype))
    g.node("Concat", parts, {"axis": axis}, exact=True)


def split(g: Builder) -> None:
    x = g.pick(ANY, least=1)
    axis = g.number(-x.rank, x.rank - 1)
    extent = x.shape[axis]
    if g.flag():
        first = g.number(0, extent)
        g.node(
            "Split", [x, g.constant([first, extent - first])], {"axis": axis}, outputs=2, exact=True
        )
    else:
        # Of two or more parts too many, ONNX's shape inference knows no extent.
        fair = [n for n in (1, 2, 3) if (n - 1) * -(-extent // n) <= extent]
        count = g.choose(fair)
        g.node("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count, exact=True)


def slice_(g: Builder) -> None:
    x = g.pick(ANY, least=1)
    axes = sorted({g.number(0, x.rank - 1) for _ in range(g.number(1, 2))})
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.shape[a]
        step = g.choose([1, 2, 3, -1, -2])
        low, high = sorted((g.number(-n - 1, n + 1), g.number(-n - 1, n + 1)))
        starts.append(low if step > 0 else high)
        ends.append(high if step > 0 else g.choose([low, -(2**63)]))
        steps.append(step)
    g.node("Slice", [x, *(g.constant(c) for c in (starts, ends, axes, steps))], exact=True)


def pad(g: Builder) -> None:
    x = g.pick((*FLOATS, *INTS), least=1, where=lambda v: v.array.size < 800)
    mode = g.choose(["constant", "edge", "reflect", "wrap"])
    low = -1 if mode == "constant" and min(x.shape) > 2 else 0
    most = [2 if mode == "constant" else min(2, n - 1) for n in x.shape]
    if min(most) < 0:
        raise Refused("nothing to reflect")
    pads = [g.number(low, m) for m in most * 2]
    value = g.constant(1.5 if x.dtype.kind == "f" else 3, x.dtype) if mode == "constant" else None
    g.node("Pad", [x, g.constant(pads), value], {"mode": mode}, exact=True)


def depth_to_space(g: Builder) -> None:
    block = g.number(1, 3)
    x = g.leaf(
        (g.number(1, 2), block * block * g.number(1, 3), g.number(1, 4), g.number(1, 3)), F32
    )
    g.node("DepthToSpace", [x], {"blocksize": block, "mode": g.choose(["DCR", "CRD"])}, exact=True)


def space_to_depth(g: Builder) -> None:
    block = g.number(1, 3)
    x = g.leaf(
        (g.number(1, 2), g.number(1, 3), block * g.number(1, 3), block * g.number(1, 3)), F32
    )
    g.node("SpaceToDepth", [x], {"blocksize": block}, exact=True)


def trilu(g: Builder) -> None:
    x = g.pick((*FLOATS, I64), least=2)
    k = g.constant(g.number(-3, 3)) if g.flag() else None
    g.node("Trilu", [x, k], {"upper": int(g.flag())}, exact=True)


def reverse_sequence(g: Builder) -> None:
    x = g.pick((F32,), least=2, empty=False)
    batch = g.number(0, 1)
    lengths = [g.number(1, x.shape[1 - batch]) for _ in range(x.shape[batch])]
    index = (
        g.constant(lengths) if g.flag() else g.leaf((len(lengths),), I64, array=np.array(lengths))
    )
    g.node("ReverseSequence", [x, index], {"batch_axis": batch, "time_axis": 1 - batch}, exact=True)


def center_crop_pad(g: Builder) -> None:
    x = g.pick((F32,), least=1, empty=False)
    axes = sorted({g.number(0, x.rank - 1) for _ in range(2)})
    target = [g.number(1, 9) for _ in axes]
    g.node("CenterCropPad", [x, g.constant(target)], {"axes": axes}, exact=True)


# ---------------------------------------------------------------------- by index


def _indices(g: Builder, shape: tuple[int, ...], rows: int) -> np.ndarray:
    if rows == 0:
        raise Refused("no rows to pick")
    rng = np.random.default_rng(g.number(0, 999))
    return rng.integers(-rows if g.flag() else 0, rows, shape)


def gather(g: Builder) -> None:
    x = g.pick(ANY, least=1)
    axis = g.number(-x.rank, x.rank - 1)
    index = _indices(g, g.shape(most=2), x.shape[axis]).astype(g.choose(INTS))
    g.node("Gather", [x, g.leaf(index.shape, index.dtype, array=index)], {"axis": axis}, exact=True)


def gather_elements(g: Builder) -> None:
    x = g.pick(ANY, least=1, empty=False)
    axis = g.number(-x.rank, x.rank - 1)
    shape = [g.number(1, n) for n in x.shape]
    shape[axis] = g.number(1, 5)
    index = _indices(g, tuple(shape), x.shape[axis])
    g.node("GatherElements", [x, g.leaf(shape, I64, array=index)], {"axis": axis}, exact=True)


def gather_nd(g: Builder) -> None:
    x = g.pick(ANY, least=1, empty=False)
    batch = g.number(0, min(1, x.rank - 1))
    width = g.number(1, x.rank - batch)
    rows = (*x.shape[:batch], *g.shape(1, empty=False), width)
    index = np.stack([_indices(g, rows[:-1], n) for n in x.shape[batch : batch + width]], -1)
    g.node("GatherND", [x, g.leaf(rows, I64, array=index)], {"batch_dims": batch}, exact=True)


def scatter_elements(g: Builder) -> None:
    x = g.pick((F32, F32, I64), least=1, empty=False)
    axis = g.number(-x.rank, x.rank - 1)
    mode = g.choose(["none", "add", "mul", "max", "min"])
    shape = [g.number(1, n) for n in x.shape]
    index = _indices(g, tuple(shape), x.shape[axis])
    if mode == "none":  # which of several updates stays is not defined
        extent = shape[axis]
        index = np.moveaxis(
            np.broadcast_to(np.arange(extent), np.moveaxis(index, axis, -1).shape), -1, axis
        )
        index = np.ascontiguousarray(index)
    updates = g.leaf(shape, x.dtype)
    g.node(
        "ScatterElements",
        [x, g.leaf(shape, I64, array=index), updates],
        {"axis": axis, "reduction": mode},
        exact=mode not in ("add", "mul"),
    )


def scatter_nd(g: Builder) -> None:
    x = g.pick((F32, F32, I64), least=1, empty=False)
    width = g.number(1, x.rank)
    mode = g.choose(["none", "add", "mul", "max", "min"])
    count = g.number(1, 4)
    index = np.stack([_indices(g, (count,), n) for n in x.shape[:width]], -1)
    if mode == "none":
        index = np.unique(index % np.array(x.shape[:width]), axis=0)
        count = len(index)
    updates = g.leaf((count, *x.shape[width:]), x.dtype)
    g.node(
        "ScatterND",
        [x, g.leaf(index.shape, I64, array=index), updates],
        {"reduction": mode},
        exact=mode not in ("add", "mul"),
    )


def one_hot(g: Builder) -> None:
    depth = g.number(1, 9)
    # ONNX's shape inference has no index without axes.
    index = _indices(g, g.shape(most=2) or (1,), depth)
    values = g.constant([0.0, 1.0], F32) if g.flag() else g.constant([-1, 3], I64)
    axis = g.number(-index.ndim - 1, index.ndim)
    ins = [g.leaf(index.shape, I64, array=index), g.constant(depth), values]
    g.node("OneHot", ins, {"axis": axis}, exact=True)


# ---------------------------------------------------------------------- made of nothing


def constant_of_shape(g: Builder) -> None:
    from onnx import numpy_helper

    value = g.choose([np.array([1.5], np.float32), np.array([3], np.int64), np.array([True])])
    shape = g.constant(g.shape(most=3))
    g.node("ConstantOfShape", [shape], {"value": numpy_helper.from_array(value)})


def constant(g: Builder) -> None:
    from onnx import numpy_helper

    g.node(
        "Constant",
        [],
        {"value": numpy_helper.from_array(g.array(g.shape(most=3), F32))},
        exact=True,
    )


def eye_like(g: Builder) -> None:
    g.node("EyeLike", [g.pick((F32, I64), rank=2)], {"k": g.number(-2, 2)}, exact=True)


def range_(g: Builder) -> None:
    step = g.choose([1, 2, 3])
    ins = [g.constant(n) for n in (g.number(-3, 3), g.number(-3, 20), step)]
    g.node("Range", ins)


def shape_of(g: Builder) -> None:
    x = g.pick(ANY)
    g.node("Shape", [x], {"start": g.number(0, 2)})


def size_of(g: Builder) -> None:
    g.node("Size", [g.pick(ANY)])


def resize(g: Builder) -> None:
    x = g.leaf((g.number(1, 2), g.number(1, 3), g.number(1, 6), g.number(1, 6)), F32)
    mode = g.choose(["nearest", "linear", "cubic"])
    if g.flag():
        sizes = g.constant([*x.shape[:2], g.number(1, 9), g.number(1, 9)])
        ins = [x, None, None, sizes]
    else:
        scales = g.constant([1.0, 1.0, g.choose([2.0, 1.0, 3.0]), g.choose([2.0, 0.5])], F32)
        ins = [x, None, scales]
    coordinate = g.choose(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinate}
    if mode == "nearest":
        attributes["nearest_mode"] = g.choose(["floor", "round_prefer_floor", "ceil"])
    g.node("Resize", ins, attributes, exact=mode == "nearest")


MOVEMENT: dict[str, Generator] = {
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Shape": shape_of,
    "Size": size_of,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
