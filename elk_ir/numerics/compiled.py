"""Operators on whole tensors, prepared once and run many times.

`prepare(op)` gives a function from operand arrays to result arrays that computes what
`kernels.run_whole` defines, without its generality: views, permutations and constants are worked
out beforehand, there are no cores and no tiles. Kinds and accesses that have no shorter way are
run by `run_whole` itself. The level above every other one runs on this; that both agree is a test.

Results may be views of operands: nothing writes to an array that it did not make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from elk_ir.numerics.body import cast, dtype_of, prepared_body
from elk_ir.numerics.compiled_indexing import prepare_scatter, prepare_topk
from elk_ir.numerics.kernels import ReduceKernel, run_whole
from elk_ir.numerics.tiles import magnitude
from elk_ir.numerics.views import (
    GATHERED_ELEMENTS,
    KEPT_ELEMENTS,
    Array,
    Matrix,
    NoShortWayError,
    Prepared,
    View,
    aligned,
    gathered,
    matrix_of,
    once,
    ordered,
    results_of,
    view_of,
)
from elk_ir.plan.domain import Access, Operator, Phase


def prepare(op: Operator, constant: Collection[int] = ()) -> Prepared:
    """The operator as a function from operands to results (arrays of the accesses' shapes).

    `constant`: operands that are the same array with the same elements in every call. The function
    must be called under `numpy.errstate(all="ignore")`.
    """
    make = _MAKERS.get(op.kind)
    if make is not None and 0 not in op.extents:
        try:
            return make(op, constant)
        except NoShortWayError:
            pass
    return lambda tensors: run_whole(op, tensors)


# ---------------------------------------------------------------------- operands and epilogues


def _operands(
    op: Operator, which: Sequence[int], target: Sequence[int], constant: Collection[int]
) -> list[tuple[int, View]]:
    """Some operands over `target`. Constant ones, like the bias of a convolution, are spread over
    all of it once: numpy adds rows of equal length faster than it repeats a number in each."""
    shape = tuple(op.extents[d] for d in target)
    found: list[tuple[int, View]] = []
    for v in which:
        access = op.operands[v]
        view = aligned(view_of(access, op.extents), sorted(access.dims), target)
        if v in constant and prod(shape) <= KEPT_ELEMENTS:
            view = once(view, lambda a: np.broadcast_to(a, shape).copy())
        found.append((v, view))
    return found


def _epilogue(
    op: Operator, dims: Sequence[int], constant: Collection[int]
) -> Callable[[Array, Sequence[Array]], list[Array]]:
    """From a statistic over `dims` to the results, with the operands of the apply phase."""
    target = sorted(op.result_dims)
    first = ordered(list(dims), target)
    late = [v for v, a in enumerate(op.operands) if a.phase is Phase.APPLY]
    others = _operands(op, late, target, constant)
    body, results = prepared_body(op.param.get("epilogue")), results_of(op, target)

    def run(stat: Array, tensors: Sequence[Array]) -> list[Array]:
        return results(body([first(stat), *[view(tensors[v]) for v, view in others]]))

    return run


# ---------------------------------------------------------------------- kinds


def _map(op: Operator, constant: Collection[int]) -> Prepared:
    target = sorted(op.result_dims)
    views = [v for _, v in _operands(op, range(len(op.operands)), target, constant)]
    body, results = prepared_body(op.param["body"]), results_of(op, target)
    if len(views) == 1:
        (only,) = views
        return lambda tensors: results(body([only(tensors[0])]))
    return lambda tensors: results(body([v(t) for v, t in zip(views, tensors, strict=True)]))


def _contract(op: Operator, constant: Collection[int]) -> Prepared:
    stat = op.stats[0]
    local = [v for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL]
    if len(local) != 2:
        raise NoShortWayError
    dtype = dtype_of(stat.dtype)
    zeros = dict(zip(local, op.param.get("zeros") or (None, None), strict=True))
    dims = [sorted(op.operands[v].dims) for v in local]
    product = _product(dims[0], dims[1], list(stat.dims), op.extents)
    if product.swap:
        local.reverse()
    bound = max(1, product.inner)
    for v in local:
        bound *= _largest(op.operands[v].dtype, zeros[v])
    first, second = (
        matrix_of(Matrix(op.operands[v], op.extents, stat.dtype, order, shape, zeros[v]))
        for v, order, shape in zip(local, product.orders, product.shapes, strict=True)
    )
    narrow = bound < 2**53
    if local[0] in constant:
        first = _constant(first, product.shapes[0], narrow)
    if local[1] in constant:
        second = _constant(second, product.shapes[1], narrow)
    (a, b), multiply = local, product.multiply(narrow=narrow)
    finish = _epilogue(op, product.order, constant)

    def run(tensors: Sequence[Array]) -> list[Array]:
        made = multiply(first(tensors[a]), second(tensors[b]))
        return finish(made if made.dtype == dtype else made.astype(dtype), tensors)

    return run


def _constant(matrix: View, shape: Sequence[int], narrow: bool) -> View:
    """A constant factor, as the type in which it is multiplied: kept if that is no large copy."""
    if prod(shape) > GATHERED_ELEMENTS:
        return matrix
    return once(matrix, lambda array: array.astype(np.float64) if narrow else array)


def _largest(dtype: str, zero: float | None) -> int:
    """A bound on the magnitude of what a type holds, less `zero`; of floats one that no sum of
    integers keeps."""
    kind = dtype_of(dtype)
    if kind.kind not in "iu" or kind.itemsize > 4:
        return 2**64
    return 2 ** (8 * kind.itemsize) + abs(int(zero or 0))


@dataclass(frozen=True)
class _Product:
    """A product of two arrays as one of matrices (or of as many as the batch has): for each factor
    the order of its axes and its shape as a matrix, the second array being the first factor where
    `swap` is set; the dimensions of the product and its shape."""

    swap: bool
    orders: tuple[tuple[int, ...], tuple[int, ...]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    inner: int
    order: list[int]
    shape: tuple[int, ...]

    def multiply(self, *, narrow: bool = False) -> Callable[[Array, Array], Array]:
        """The product of two matrices. Integers are exact, as in `tiles.contract`; `narrow`: no sum
        of theirs leaves the 53 bits of a float64, which the product then is."""
        shape, inner = self.shape, max(1, self.inner)

        def run(left: Array, right: Array) -> Array:
            dtype = left.dtype
            if narrow:
                left = left.astype(np.float64, copy=False)
                right = right.astype(np.float64, copy=False)
                return np.matmul(left, right).reshape(shape)
            if dtype.kind not in "iu":
                return np.matmul(left, right).reshape(shape)
            if magnitude(left) * magnitude(right) * inner < 2**53:
                left, right = left.astype(np.float64), right.astype(np.float64)
            return np.matmul(left, right).astype(dtype, copy=False).reshape(shape)

        return run

    def arrays(self) -> Callable[[Array, Array], Array]:
        """The product of two arrays."""
        multiply, swap = self.multiply(), self.swap
        (order_a, order_b), (shape_a, shape_b) = self.orders, self.shapes

        def run(a: Array, b: Array) -> Array:
            if swap:
                a, b = b, a
            left = a.transpose(order_a).reshape(shape_a)
            return multiply(left, b.transpose(order_b).reshape(shape_b))

        return run


def _product(
    a_dims: list[int], b_dims: list[int], out: list[int], extents: tuple[int, ...]
) -> _Product:
    """The product of two arrays over their dimensions, summed over what is not in `out`."""
    if any(d not in out and (d in a_dims) != (d in b_dims) for d in {*a_dims, *b_dims}):
        raise NoShortWayError
    batch = [d for d in out if d in a_dims and d in b_dims]
    rows = [d for d in out if d in a_dims and d not in b_dims]
    cols = [d for d in out if d in b_dims and d not in a_dims]
    inner = [d for d in a_dims if d in b_dims and d not in out]
    swap = [*batch, *cols, *rows] == out and bool(cols) and bool(rows)
    if swap:
        a_dims, b_dims, rows, cols = b_dims, a_dims, cols, rows
    left_order = tuple(a_dims.index(d) for d in (*batch, *rows, *inner))
    right_order = tuple(b_dims.index(d) for d in (*batch, *inner, *cols))
    nb, nr, ni, nc = (prod(extents[d] for d in ds) for ds in (batch, rows, inner, cols))
    left_shape = (nb, nr, ni) if batch else (nr, ni)
    right_shape = (nb, ni, nc) if batch else (ni, nc)
    order = [*batch, *rows, *cols]
    shape = tuple(extents[d] for d in order)
    return _Product(swap, (left_order, right_order), (left_shape, right_shape), ni, order, shape)


def _reduce(op: Operator, constant: Collection[int]) -> Prepared:
    stat = op.stats[0]
    dims = sorted(op.operands[0].dims)
    gone = tuple(i for i, d in enumerate(dims) if d not in stat.dims)
    kept = [d for d in dims if d in stat.dims]
    view, finish = view_of(op.operands[0], op.extents, stat.dtype), _epilogue(op, kept, constant)
    fn, dtype = ReduceKernel.FUNCTIONS[op.param["combiner"]], dtype_of(stat.dtype)
    if kept != [d for d in stat.dims if d in kept]:
        raise NoShortWayError
    if op.param["combiner"] in ("max", "min") and gone:
        # Of windows, these don't depend on the order: whole rows at a time.
        order = (*gone, *(i for i, d in enumerate(dims) if d in stat.dims))
        shape = (prod(op.extents[dims[i]] for i in gone), *(op.extents[d] for d in kept))
        rows = gathered(Matrix(op.operands[0], op.extents, stat.dtype, order, shape))
        if rows is not None:
            return lambda tensors: finish(
                fn.reduce(rows(tensors[0]), axis=0, initial=stat.neutral), tensors
            )

    def run(tensors: Sequence[Array]) -> list[Array]:
        array = view(tensors[0])
        if gone:
            array = fn.reduce(array, axis=gone, initial=stat.neutral)
        return finish(np.asarray(array).astype(dtype, copy=False), tensors)

    return run


def _over_rows(op: Operator) -> tuple[View, list[int], tuple[int, ...]]:
    """The first operand in the type of the statistics, its dimensions, and the axes of it along
    which a norm or a softmax runs."""
    access, stat = op.operands[0], op.stats[0]
    dims = sorted(access.dims)
    if dims != sorted(op.result_dims):
        raise NoShortWayError
    axes = tuple(i for i, d in enumerate(dims) if d not in stat.dims)
    return view_of(access, op.extents, stat.dtype), dims, axes


def _softmax(op: Operator, constant: Collection[int]) -> Prepared:
    view, dims, axes = _over_rows(op)
    results, log = results_of(op, dims), bool(op.param.get("log"))

    def run(tensors: Sequence[Array]) -> list[Array]:
        array = view(tensors[0])
        shifted = array - array.max(axis=axes, keepdims=True)
        weights = np.exp(shifted)
        total = weights.sum(axis=axes, keepdims=True)
        return results([shifted - np.log(total) if log else weights / total])

    return run


def _normalize(op: Operator, constant: Collection[int]) -> Prepared:
    view, dims, axes = _over_rows(op)
    others = [
        (v, aligned(view_of(a, op.extents), sorted(a.dims), dims))
        for v, a in enumerate(op.operands)
        if v
    ]
    results, rms = results_of(op, dims), op.param["form"] == "rms"
    affine, round_to = op.param["affine"], op.param.get("round_to")
    epsilon = np.asarray(op.param["epsilon"], dtype=dtype_of(op.stats[0].dtype))
    count = prod(op.extents[dims[i]] for i in axes)

    def run(tensors: Sequence[Array]) -> list[Array]:
        values = view(tensors[0])
        if not rms:
            values = values - values.sum(axis=axes, keepdims=True, dtype=values.dtype) / count
        variance = (values * values).sum(axis=axes, keepdims=True) / count
        values = values * (1 / np.sqrt(variance + epsilon)).astype(values.dtype)
        if round_to is not None:
            values = cast(values, round_to)
        for v, other in others:
            operand = other(tensors[v])
            values = values * operand if affine[v - 1] == "scale" else values + operand
        return results([values])

    return run


def _concat(op: Operator, constant: Collection[int]) -> Prepared:
    """Each operand from where it starts to where the next one does, as `kernels.ConcatKernel`."""
    d, dims = op.param["dim"], list(range(len(op.dims)))
    (result,) = op.results
    starts = [
        -next((a.offset for a in access.axes if any(t == d for t, _ in a.terms)), 0)
        for access in op.operands
    ]
    ends = [*starts[1:], op.extents[d]]
    if starts[0] != 0 or starts != sorted(starts) or ends[-1] < starts[-1]:
        raise NoShortWayError
    parts: list[tuple[View, tuple[slice, ...]]] = []
    for access, start, end in zip(op.operands, starts, ends, strict=True):
        extents = tuple(end - start if i == d else n for i, n in enumerate(op.extents))
        if end > start:
            view = aligned(view_of(_begun(access, d, start), extents), sorted(access.dims), dims)
            parts.append((view, (*[slice(None)] * d, slice(start, end))))
        else:
            parts.append((lambda tensor: tensor[:0], (slice(0, 0),)))
    results, dtype = results_of(op, dims), dtype_of(result.dtype)

    def run(tensors: Sequence[Array]) -> list[Array]:
        made = np.empty(op.extents, dtype)
        for (view, where), tensor in zip(parts, tensors, strict=True):
            made[where] = view(tensor)
        return results([made])

    return run


def _begun(access: Access, d: int, start: int) -> Access:
    """The access with dimension `d` counted from `start`."""
    axes = tuple(
        replace(a, offset=a.offset + start * sum(k for t, k in a.terms if t == d))
        for a in access.axes
    )
    return replace(access, axes=axes)


def _attention(op: Operator, constant: Collection[int]) -> Prepared:
    top, _, out = op.stats
    (kv,) = op.reductions
    score_dims = [*top.dims, kv]
    if score_dims[:-1] != sorted(score_dims[:-1]):
        raise NoShortWayError
    dims = [sorted(a.dims) for a in op.operands]
    views = [view_of(a, op.extents, top.dtype) for a in op.operands[:3]]
    reached = [d for d in score_dims if d in dims[0] or d in dims[1]]
    first = _product(dims[0], dims[1], reached, op.extents)
    second = _product(score_dims, dims[2], list(out.dims), op.extents)
    scores_of, weighted_of, out_order = first.arrays(), second.arrays(), second.order
    in_order = ordered(first.order, score_dims)
    total_of = ordered(list(top.dims), [d for d in out_order if d in top.dims])
    total_index = tuple(slice(None) if d in top.dims else None for d in out_order)
    masked = len(op.operands) > 3 and op.operands[3].phase is not Phase.APPLY
    if len(op.operands) > 3 and not masked:
        raise NoShortWayError
    mask_of = _masks(op, score_dims) if masked else None
    finish = _epilogue(op, out_order, constant)
    cap = op.param.get("softcap")
    scale = np.asarray(op.param["scale"], dtype=dtype_of(top.dtype))
    shape = tuple(op.extents[d] for d in score_dims)

    def run(tensors: Sequence[Array]) -> list[Array]:
        q, k, v = (view(tensors[i]) for i, view in enumerate(views))
        scores = in_order(scores_of(q, k)) * scale
        if cap is not None:
            scores = np.tanh(scores / cap) * scale.dtype.type(cap)
        if mask_of is not None:
            scores = mask_of(scores, tensors[3])
        if scores.shape != shape:
            scores = np.broadcast_to(scores, shape)
        highest = scores.max(axis=-1, keepdims=True)
        low = np.isneginf(highest)
        if low.any():
            highest = np.where(low, 0, highest).astype(scores.dtype)
        weights = np.exp(scores - highest)
        total = total_of(weights.sum(axis=-1))[total_index]
        if low.any():
            total = np.where(total == 0, 1, total).astype(total.dtype)
        return finish(weighted_of(weights, v) / total, tensors)

    return run


def _masks(op: Operator, score_dims: Sequence[int]) -> Callable[[Array, Array], Array]:
    """Scores with the fourth operand of an attention applied: a choice, or a sum."""
    access = op.operands[3]
    own = sorted(access.dims)
    view, align = view_of(access, op.extents), ordered(own, score_dims)
    lowest = -np.inf

    def run(scores: Array, mask: Array) -> Array:
        mask = align(view(mask))
        if mask.dtype == np.bool_:
            return np.where(mask, scores, scores.dtype.type(lowest))
        return scores + mask.astype(scores.dtype)

    return run


_MAKERS: dict[str, Callable[[Operator, Collection[int]], Prepared]] = {
    "attention": _attention,
    "concat": _concat,
    "contract": _contract,
    "map": _map,
    "normalize": _normalize,
    "reduce": _reduce,
    "scatter": prepare_scatter,
    "softmax": _softmax,
    "topk": prepare_topk,
}
