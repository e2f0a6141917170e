"""Operators on whole tensors, prepared once and run many times.

`prepare(op)` gives a function from operand arrays to result arrays that computes what
`kernels.run_whole` defines, without its generality: views, permutations and constants are worked
out beforehand, there are no cores and no tiles. Kinds and accesses that have no shorter way are
run by `run_whole` itself. The level above every other one runs on this; that both agree is a test.

Results may be views of operands: nothing writes to an array that it did not make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from elk_ir.numerics.body import SCALAR_OPS, Body, cast, dtype_of
from elk_ir.numerics.kernels import ReduceKernel, run_whole
from elk_ir.numerics.tiles import magnitude
from elk_ir.plan.domain import Access, Operator, Phase

Array = np.ndarray
Prepared = Callable[[Sequence[Array]], list[Array]]
View = Callable[[Array], Array]


class _NoShortWayError(Exception):
    """Raised while preparing, where only the general kernel will do."""


def prepare(op: Operator) -> Prepared:
    """The operator as a function from operands to results (arrays of the accesses' shapes).

    The function must be called under `numpy.errstate(all="ignore")`.
    """
    make = _MAKERS.get(op.kind)
    if make is not None and 0 not in op.extents:
        try:
            return make(op)
        except _NoShortWayError:
            pass
    return lambda tensors: run_whole(op, tensors)


# ---------------------------------------------------------------------- operands


def _view(access: Access, extents: tuple[int, ...], dtype: str | None = None) -> View:
    """From a tensor to its elements at every point: one axis a dimension in D(v), ascending. The
    tensor is first cast to `dtype`, if that is given."""
    if dtype is not None and dtype != access.dtype:
        inner = _view(replace(access, dtype=dtype), extents)
        return lambda tensor: inner(cast(tensor, dtype))
    dims = sorted(access.dims)
    shape = access.block_shape(extents)
    origin = [
        a.offset + sum(k * (extents[d] - 1) for d, k in a.terms if k < 0) for a in access.axes
    ]
    plain = tuple(shape) == access.shape and not any(origin)
    axes = [a.simple_dim for a in access.axes]
    if plain and None not in axes and len(set(axes)) == len(axes):
        order = tuple(axes.index(d) for d in dims)
        if order == tuple(range(len(order))):
            return lambda tensor: tensor
        return lambda tensor: tensor.transpose(order)
    if 0 in access.shape:
        raise _NoShortWayError
    windows = _windows(access, shape, extents)
    if plain:
        return windows
    neutral = 0 if access.neutral is None else access.neutral
    element = dtype_of(access.dtype)
    source, target = [], []
    for start, size, extent in zip(origin, shape, access.shape, strict=True):
        lo, hi = max(0, start), max(max(0, start), min(extent, start + size))
        source.append(slice(lo, hi))
        target.append(slice(lo - start, hi - start))
    inner, outer = tuple(source), tuple(target)
    if all(t == slice(0, n) for t, n in zip(target, shape, strict=True)):
        return lambda tensor: windows(tensor[inner])

    def padded(tensor: Array) -> Array:
        block = np.full(shape, neutral, element)
        block[outer] = tensor[inner]
        return windows(block)

    return padded


def _windows(access: Access, shape: Sequence[int], extents: tuple[int, ...]) -> View:
    """From a block of an operand or a result to its elements at every point, as a strided view."""
    dims = sorted(access.dims)
    size = tuple(extents[d] for d in dims)
    dtype = dtype_of(access.dtype)
    # The types of ml_dtypes can't be views of a buffer: integers as wide stand for them.
    carrier = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else None
    strides = [prod(shape[j + 1 :]) * dtype.itemsize for j in range(len(shape))]
    steps, first = [0] * len(size), 0
    for j, axis in enumerate(access.axes):
        for d, k in axis.terms:
            steps[dims.index(d)] += strides[j] * k
            first += strides[j] * (extents[d] - 1) * -k if k < 0 else 0

    def view(block: Array) -> Array:
        if not block.flags.c_contiguous:
            block = np.ascontiguousarray(block)
        if carrier is None:
            return np.ndarray(size, block.dtype, block, first, steps)
        return np.ndarray(size, carrier, block.view(carrier), first, steps).view(dtype)

    return view


def _aligned(view: View, dims: Sequence[int], target: Sequence[int]) -> View:
    """The view with an axis of one where `target` has a dimension that `dims` lacks."""
    if list(dims) == list(target):
        return view
    if not set(dims) <= set(target):
        raise _NoShortWayError
    index = tuple(slice(None) if d in dims else None for d in target)
    return lambda tensor: view(tensor)[index]


def _ordered(dims: Sequence[int], target: Sequence[int]) -> View:
    """From an array over `dims` (in any order) to one over `target`, of which they are a part."""
    if not set(dims) <= set(target):
        raise _NoShortWayError
    order = tuple(dims.index(d) for d in target if d in dims)
    straight = order == tuple(range(len(order)))

    def moved(array: Array) -> Array:
        return array if straight else array.transpose(order)

    return _aligned(moved, [d for d in target if d in dims], target)


# ---------------------------------------------------------------------- bodies and results


def _body(body: Body | None) -> Callable[[list[Array]], list[Array]]:
    """The scalar body on arrays that broadcast against each other."""
    if body is None:
        return lambda values: values
    constants: dict[int, Array] = {}
    steps: list[tuple[Callable[..., Array] | None, tuple[int, ...], str]] = []
    for i, instr in enumerate(body.instrs):
        if instr.op == "const":
            assert instr.dtype is not None
            made = np.asarray(instr.value).astype(dtype_of(instr.dtype))
            constants[body.inputs + i] = made
            steps.append((None, (), ""))
        elif instr.op == "cast":
            assert instr.dtype is not None
            steps.append((None, instr.args, instr.dtype))
        else:
            steps.append((SCALAR_OPS[instr.op][1], instr.args, ""))

    def run(values: list[Array]) -> list[Array]:
        values = list(values)
        for fn, args, dtype in steps:
            if fn is not None:
                values.append(np.asarray(fn(*[values[a] for a in args])))
            elif dtype:
                values.append(cast(values[args[0]], dtype))
            else:
                values.append(constants[len(values)])
        return [values[r] for r in body.results]

    return run


def _results(op: Operator, target: Sequence[int]) -> Callable[[list[Array]], list[Array]]:
    """From arrays over `target` (broadcasting) to the result tensors."""
    shape = tuple(op.extents[d] for d in target)
    makers = [_result(op, result, list(target)) for result in op.results]
    types = [r.dtype for r in op.results]

    def run(outs: list[Array]) -> list[Array]:
        found = []
        for out, dtype, make in zip(outs, types, makers, strict=True):
            array = cast(out, dtype)
            if array.shape != shape:
                array = np.broadcast_to(array, shape)
            found.append(make(array))
        return found

    return run


def _result(op: Operator, result: Access, target: list[int]) -> View:
    """From an array over `target` to a result: its dimensions in another order and merged, or
    written to where the access says."""
    shape = tuple(result.shape)
    if sorted(result.dims) != target or result.block_shape(op.extents) != shape:
        raise _NoShortWayError
    if any(a.offset or any(k < 0 for _, k in a.terms) for a in result.axes):
        raise _NoShortWayError
    order: list[int] = []
    merged = True
    for axis in result.axes:
        inner = 1
        digits = sorted(axis.terms, key=lambda term: term[1])
        for d, k in digits:
            merged &= k == inner
            inner *= op.extents[d]
        order += [target.index(d) for d, _ in reversed(digits)]
    if merged and len(order) == len(target):
        axes = tuple(order)
        if axes == tuple(range(len(axes))):
            return lambda array: array.reshape(shape)
        return lambda array: array.transpose(axes).reshape(shape)
    dtype, windows = dtype_of(result.dtype), _windows(result, shape, op.extents)

    def scatter(array: Array) -> Array:
        made = np.zeros(shape, dtype)
        windows(made)[...] = array
        return made

    return scatter


def _epilogue(op: Operator, dims: Sequence[int]) -> Callable[[Array, Sequence[Array]], list[Array]]:
    """From a statistic over `dims` to the results, with the operands of the apply phase."""
    target = sorted(op.result_dims)
    first = _ordered(list(dims), target)
    others = [
        (v, _aligned(_view(a, op.extents), sorted(a.dims), target))
        for v, a in enumerate(op.operands)
        if a.phase is Phase.APPLY
    ]
    body, results = _body(op.param.get("epilogue")), _results(op, target)

    def run(stat: Array, tensors: Sequence[Array]) -> list[Array]:
        values = [first(stat)]
        values += [view(tensors[v]) for v, view in others]
        return results(body(values))

    return run


# ---------------------------------------------------------------------- kinds


def _map(op: Operator) -> Prepared:
    target = sorted(op.result_dims)
    views = [_aligned(_view(a, op.extents), sorted(a.dims), target) for a in op.operands]
    body, results = _body(op.param["body"]), _results(op, target)
    return lambda tensors: results(body([v(t) for v, t in zip(views, tensors, strict=True)]))


def _contract(op: Operator) -> Prepared:
    stat = op.stats[0]
    local = [v for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL]
    if len(local) != 2:
        raise _NoShortWayError
    dtype = dtype_of(stat.dtype)
    sides, dims = [], []
    zeros = op.param.get("zeros") or (None, None)
    for v, zero in zip(local, zeros, strict=True):
        sides.append(_factor(op, v, zero))
        dims.append(sorted(op.operands[v].dims))
    product, order = _product(dims[0], dims[1], list(stat.dims), op.extents)
    finish = _epilogue(op, order)

    def run(tensors: Sequence[Array]) -> list[Array]:
        a, b = (side(tensors[v]) for side, v in zip(sides, local, strict=True))
        return finish(product(a, b).astype(dtype, copy=False), tensors)

    return run


def _factor(op: Operator, v: int, zero: float | None) -> View:
    """An operand of a product, as the type that sums have, less its zero point."""
    access, dtype = op.operands[v], op.stats[0].dtype
    view = _view(access, op.extents, dtype)
    if not zero:
        return view
    shift = dtype_of(dtype).type(zero)
    return lambda tensor: view(tensor) - shift


def _product(
    a_dims: list[int], b_dims: list[int], out: list[int], extents: tuple[int, ...]
) -> tuple[Callable[[Array, Array], Array], list[int]]:
    """The product of two arrays over their dimensions, summed over what is not in `out`; and the
    order of its dimensions. Integers are exact, as in `tiles.contract`."""
    if any(d not in out and (d in a_dims) != (d in b_dims) for d in {*a_dims, *b_dims}):
        raise _NoShortWayError
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

    def run(a: Array, b: Array) -> Array:
        if swap:
            a, b = b, a
        left = a.transpose(left_order).reshape(left_shape)
        right = b.transpose(right_order).reshape(right_shape)
        dtype = left.dtype
        if dtype.kind in "iu" and magnitude(left) * magnitude(right) * max(1, ni) < 2**53:
            left, right = left.astype(np.float64), right.astype(np.float64)
        return np.matmul(left, right).astype(dtype, copy=False).reshape(shape)

    return run, order


def _reduce(op: Operator) -> Prepared:
    stat = op.stats[0]
    dims = sorted(op.operands[0].dims)
    gone = tuple(i for i, d in enumerate(dims) if d not in stat.dims)
    kept = [d for d in dims if d in stat.dims]
    view, finish = _view(op.operands[0], op.extents, stat.dtype), _epilogue(op, kept)
    fn, dtype = ReduceKernel.FUNCTIONS[op.param["combiner"]], dtype_of(stat.dtype)
    if kept != [d for d in stat.dims if d in kept]:
        raise _NoShortWayError

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
        raise _NoShortWayError
    axes = tuple(i for i, d in enumerate(dims) if d not in stat.dims)
    return _view(access, op.extents, stat.dtype), dims, axes


def _softmax(op: Operator) -> Prepared:
    view, dims, axes = _over_rows(op)
    results, log = _results(op, dims), bool(op.param.get("log"))

    def run(tensors: Sequence[Array]) -> list[Array]:
        array = view(tensors[0])
        shifted = array - array.max(axis=axes, keepdims=True)
        weights = np.exp(shifted)
        total = weights.sum(axis=axes, keepdims=True)
        return results([shifted - np.log(total) if log else weights / total])

    return run


def _normalize(op: Operator) -> Prepared:
    view, dims, axes = _over_rows(op)
    others = [
        (v, _aligned(_view(a, op.extents), sorted(a.dims), dims))
        for v, a in enumerate(op.operands)
        if v
    ]
    results, rms = _results(op, dims), op.param["form"] == "rms"
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


def _concat(op: Operator) -> Prepared:
    d, dims = op.param["dim"], list(range(len(op.dims)))
    (result,) = op.results
    straight = [a.simple_dim for a in result.axes] == dims
    if not straight or tuple(result.shape) != op.extents:
        raise _NoShortWayError
    end = 0
    for access in op.operands:
        axes = [a.terms for a in access.axes]
        offsets = [a.offset for a in access.axes]
        if axes != [((i, 1),) for i in dims] or offsets != [-end if i == d else 0 for i in dims]:
            raise _NoShortWayError
        if any(n != op.extents[i] for i, n in enumerate(access.shape) if i != d):
            raise _NoShortWayError
        end += access.shape[d]
    if end != op.extents[d]:
        raise _NoShortWayError
    dtype = result.dtype
    return lambda tensors: [np.concatenate([cast(t, dtype) for t in tensors], axis=d)]


def _attention(op: Operator) -> Prepared:
    top, _, out = op.stats
    (kv,) = op.reductions
    score_dims = [*top.dims, kv]
    if score_dims[:-1] != sorted(score_dims[:-1]):
        raise _NoShortWayError
    dims = [sorted(a.dims) for a in op.operands]
    views = [_view(a, op.extents, top.dtype) for a in op.operands[:3]]
    reached = [d for d in score_dims if d in dims[0] or d in dims[1]]
    scores_of, order = _product(dims[0], dims[1], reached, op.extents)
    ordered = _ordered(order, score_dims)
    weighted_of, out_order = _product(score_dims, dims[2], list(out.dims), op.extents)
    total_of = _ordered(list(top.dims), [d for d in out_order if d in top.dims])
    total_index = tuple(slice(None) if d in top.dims else None for d in out_order)
    masked = len(op.operands) > 3 and op.operands[3].phase is not Phase.APPLY
    if len(op.operands) > 3 and not masked:
        raise _NoShortWayError
    mask_of = _masks(op, score_dims) if masked else None
    finish = _epilogue(op, out_order)
    cap = op.param.get("softcap")
    scale = np.asarray(op.param["scale"], dtype=dtype_of(top.dtype))
    shape = tuple(op.extents[d] for d in score_dims)

    def run(tensors: Sequence[Array]) -> list[Array]:
        q, k, v = (view(tensors[i]) for i, view in enumerate(views))
        scores = ordered(scores_of(q, k)) * scale
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
    view, align = _view(access, op.extents), _ordered(own, score_dims)
    lowest = -np.inf

    def run(scores: Array, mask: Array) -> Array:
        mask = align(view(mask))
        if mask.dtype == np.bool_:
            return np.where(mask, scores, scores.dtype.type(lowest))
        return scores + mask.astype(scores.dtype)

    return run


_MAKERS: dict[str, Callable[[Operator], Prepared]] = {
    "attention": _attention,
    "concat": _concat,
    "contract": _contract,
    "map": _map,
    "normalize": _normalize,
    "reduce": _reduce,
    "softmax": _softmax,
}
