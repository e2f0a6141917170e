"""Operators of onnxruntime's own domain, `com.microsoft`, that exported networks hold.

What they compute is what onnxruntime computes; where its documentation leaves something open (the
rows of a cache behind a sequence's end) any value may be in the result.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.dialects.te.interface import accumulator
from elk_ir.dialects.te.ops import NormForm
from elk_ir.numerics.body import is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.attention import Heads, attend, split_heads, turn
from elk_ir.passes.onnx_lowerings.axes import Domain
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.elementwise import gelu, wide
from elk_ir.passes.onnx_lowerings.norms import last_axes
from elk_ir.passes.onnx_lowerings.products import contract, matmul


def _number(node: Node, name: str, default: float) -> float:
    """An attribute of these operators, which have no schema here."""
    value = node.attr(name)
    return default if value is None else value


def _flag(node: Node, name: str) -> bool:
    return _number(node, name, 0) == 1


# ---------------------------------------------------------------------- activations


@lowers("com.microsoft:FastGelu", "com.microsoft:Gelu", "com.microsoft:BiasGelu")
def _gelu(ctx: Context, node: Node) -> SSAValue:
    """Gelu of the data plus a bias, by tanh or exactly."""
    approximate = "tanh" if node.op_type == "FastGelu" else "none"
    bias = node.get(1)
    ins = [node.operand(0)] if bias is None else [node.operand(0), bias]

    def fn(b: BodyBuilder, x: Scalar, *more: Scalar) -> Scalar:
        return gelu(b, x + more[0] if more else x, approximate=approximate)

    return ctx.map1(wide(fn), *ins, shape=shape_of(ins[0]))


# ---------------------------------------------------------------------- norms


@lowers("com.microsoft:SkipSimplifiedLayerNormalization", "com.microsoft:SkipLayerNormalization")
def _skip_norm(ctx: Context, node: Node) -> list[SSAValue | None]:
    """A norm of the sum of the data, a residual and a bias; the sum is the fourth result."""
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    x, skip, scale = (node.operand(i) for i in range(3))
    beta, bias = (None, node.get(3)) if simplified else (node.get(3), node.get(4))
    if node.wants(1) or node.wants(2):
        raise Unsupported("the mean and the inverse deviation as results")
    ins = [x, skip] if bias is None else [x, skip, bias]
    dtype = dtype_of_value(x)

    def add(b: BodyBuilder, *xs: Scalar) -> Scalar:
        total = b.cast(xs[0], accumulator(dtype))
        for value in xs[1:]:
            total = total + b.cast(value, total.dtype)
        return b.cast(total, dtype)

    total = ctx.map1(add, *ins, shape=shape_of(x))
    result = last_axes(
        ctx,
        total,
        len(shape_of(x)) - 1,
        [("scale", scale), ("bias", beta)],
        form=NormForm.RMS if simplified else NormForm.LAYER,
        epsilon=_number(node, "epsilon", 1e-12),
        dtype=dtype,
    )
    return [result, None, None, total]


# ---------------------------------------------------------------------- products


@lowers("com.microsoft:FusedMatMul")
def _fused_matmul(ctx: Context, node: Node) -> SSAValue:
    """alpha · A' B', each factor transposed in its last two axes where that is asked for."""
    if _flag(node, "transBatchA") or _flag(node, "transBatchB"):
        raise Unsupported("transposed batches")

    def factor(i: int, transposed: bool) -> SSAValue:
        value = node.operand(i)
        rank = len(shape_of(value))
        if not transposed or rank < 2:
            return value
        return moves.transpose(ctx, value, [*range(rank - 2), rank - 1, rank - 2])

    a, b = factor(0, _flag(node, "transA")), factor(1, _flag(node, "transB"))
    alpha = _number(node, "alpha", 1.0)
    product = matmul(ctx, a, b, node.shape(), node.dtype())
    if alpha == 1:
        return product
    return ctx.map1(wide(lambda b, x: x * alpha), product)


def _unpacked(ctx: Context, packed: SSAValue, bits: int) -> SSAValue:
    """Bytes (…, n) as the numbers of `bits` bits packed in them, lowest first: (…, n · 8/bits)."""
    shape, each = shape_of(packed), 8 // bits
    if each == 1:
        return packed
    shifts = ctx.constant((np.arange(each) * bits).astype(np.uint8))
    spread = ctx.map1(
        lambda b, x, s: b.apply("bitand", b.apply("shr", x, s), (1 << bits) - 1),
        moves.unsqueeze(ctx, packed, len(shape)),
        shifts,
        shape=[*shape, each],
    )
    return moves.reshape(ctx, spread, [*shape[:-1], shape[-1] * each])


@lowers("com.microsoft:MatMulNBits")
def _matmul_nbits(ctx: Context, node: Node) -> SSAValue:
    """A product with a matrix of 2, 4 or 8 bits, quantised in blocks along the summed axis."""
    k, n = int(_number(node, "K", 0)), int(_number(node, "N", 0))
    bits, block = int(_number(node, "bits", 4)), int(_number(node, "block_size", 32))
    if bits not in (2, 4, 8):
        raise Unsupported(f"{bits} bits")
    if node.get(4) is not None:
        raise Unsupported("the order of groups (g_idx)")
    a, zero, bias = node.operand(0), node.get(3), node.get(5)
    dtype, blocks = dtype_of_value(a), -(-k // block)
    packed = moves.reshape(ctx, node.operand(1), [n, blocks, block * bits // 8])
    values = _unpacked(ctx, packed, bits)
    scale = moves.reshape(ctx, node.operand(2), [n, blocks, 1])
    ins = [values, scale]
    if zero is not None:
        if is_float(dtype_of_value(zero)):
            zero = moves.reshape(ctx, zero, [n, blocks])
        else:
            row = -(-blocks * bits // 8)
            zero = _unpacked(ctx, moves.reshape(ctx, zero, [n, row]), bits)
            zero = moves.slice_axis(ctx, zero, 1, 0, blocks)
        ins.append(moves.unsqueeze(ctx, zero, 2))

    def dequantize(b: BodyBuilder, q: Scalar, s: Scalar, *z: Scalar) -> Scalar:
        origin = b.cast(z[0], "float32") if z else float(1 << (bits - 1))
        return b.cast((b.cast(q, "float32") - origin) * b.cast(s, "float32"), dtype)

    weight = ctx.map1(dequantize, *ins, shape=[n, blocks, block])
    weight = moves.slice_axis(ctx, moves.reshape(ctx, weight, [n, blocks * block]), 1, 0, k)
    lead = shape_of(a)[:-1]
    domain = Domain()
    rows = domain.parallel(lead, "m")
    column, inner = domain.add("n", n), domain.reduction("k", k)
    return contract(
        ctx,
        domain,
        [(a, (*rows, inner)), (weight, (column, inner))],
        ([*lead, n], dtype, (*rows, column)),
        None if bias is None else (lambda b, x, c: x + b.cast(c, x.dtype)),
        [] if bias is None else [(bias, (column,))],
    )


# ---------------------------------------------------------------------- attention


def _positions(ctx: Context, start: SSAValue | None, batch: int, count: int) -> SSAValue:
    """(batch, count): numbers from `start` (of one element, or one a sequence; None: 0) on."""
    steps = ctx.constant(np.arange(count).reshape(1, count))
    if start is None:
        return moves.broadcast_to(ctx, steps, [batch, count])
    first = ctx.cast(moves.reshape(ctx, start, [_size(start), 1]), "int64")
    return ctx.map1(lambda b, s, i: s + i, first, steps, shape=[batch, count])


def _size(value: SSAValue) -> int:
    return int(np.prod(shape_of(value), dtype=np.int64))


def _rotated(
    ctx: Context,
    x: SSAValue,
    tables: tuple[SSAValue, SSAValue],
    positions: SSAValue,
    *,
    position_axis: int,
    interleaved: bool,
    size: int,
) -> SSAValue:
    """(b, s, h, d) or (b, h, s, d), as `position_axis` says, turned by its positions (b, s)."""
    cos, sin = (moves.gather(ctx, t, positions, 0) for t in tables)
    return turn(ctx, x, cos, sin, size=size, interleaved=interleaved, position_axis=position_axis)


@lowers("com.microsoft:RotaryEmbedding")
def _rotary(ctx: Context, node: Node) -> SSAValue:
    """Rotary embedding with the positions as second operand: of each element, or the first one."""
    x, positions, cos, sin = (node.operand(i) for i in range(4))
    if _flag(node, "is_packed_batching"):
        raise Unsupported("packed batches")
    shape = shape_of(x)
    half = shape_of(cos)[1]
    size = int(_number(node, "rotary_embedding_dim", 0)) or 2 * half
    flat = len(shape) == 3
    count = shape[1] if flat else shape[2]
    if len(shape_of(positions)) == 1:
        positions = _positions(ctx, positions, shape[0], count)
    if flat:
        heads = int(_number(node, "num_heads", 0)) or shape[2] // (2 * half)
        x = moves.reshape(ctx, x, [shape[0], count, heads, shape[2] // heads])
    turned = _rotated(
        ctx,
        x,
        (cos, sin),
        positions,
        position_axis=1 if flat else 2,
        interleaved=_flag(node, "interleaved"),
        size=size,
    )
    return moves.reshape(ctx, turned, shape)


def _added(ctx: Context, value: SSAValue, bias: SSAValue | None, start: int) -> SSAValue:
    if bias is None:
        return value
    part = moves.slice_axis(ctx, bias, 0, start, shape_of(value)[-1])
    return ctx.map1(lambda b, x, c: x + c, value, part, shape=shape_of(value))


def _padding(ctx: Context, mask: SSAValue, batch: int, keys: int) -> SSAValue:
    """Which keys a mask of zeros (or of lengths) leaves, as bool (b, 1, s or 1, t)."""
    shape = shape_of(mask)
    if shape == (batch,):
        lengths = moves.reshape(ctx, mask, [batch, 1, 1, 1])
        numbers = ctx.constant(np.arange(keys, dtype=np.int32))
        return ctx.map1(
            lambda b, t, n: b.apply("lt", t, b.cast(n, "int32")),
            numbers,
            lengths,
            shape=[batch, 1, 1, keys],
        )
    if len(shape) not in (2, 3) or shape[-1] != keys:
        raise Unsupported(f"a key padding mask of shape {list(shape)}")
    middle = [1, 1] if len(shape) == 2 else [1, shape[1]]
    return ctx.map1(
        lambda b, x: b.apply("ne", x, 0), moves.reshape(ctx, mask, [batch, *middle, keys])
    )


def _merged(ctx: Context, visible: list[SSAValue], bias: SSAValue | None) -> SSAValue | None:
    """Boolean masks and an additive one as one mask, None without any."""
    if not visible:
        return bias
    ins = [*visible, *([] if bias is None else [bias])]

    def fn(b: BodyBuilder, *xs: Scalar) -> Scalar:
        seen = xs[0]
        for x in xs[1 : len(visible)]:
            seen = b.apply("and", seen, x)
        return seen if bias is None else b.apply("select", seen, xs[-1], float("-inf"))

    return ctx.map1(fn, *ins)


@lowers("com.microsoft:MultiHeadAttention")
def _multi_head(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Attention of queries (b, s, h d) to keys and values (b, t, h d) or (b, h, t, d)."""
    heads = int(_number(node, "num_heads", 0))
    q, bias = node.operand(0), node.get(3)
    if len(shape_of(q)) != 3 or node.get(1) is None or node.get(2) is None:
        raise Unsupported("packed queries, keys and values")
    batch, queries, hidden = shape_of(q)
    k, v = node.operand(1), node.operand(2)
    q = _added(ctx, q, bias, 0)
    if len(shape_of(k)) == 3:
        k = split_heads(ctx, _added(ctx, k, bias, hidden), heads)
        v = split_heads(ctx, _added(ctx, v, bias, 2 * hidden), heads)
    elif len(shape_of(k)) != 4 or bias is not None:
        raise Unsupported(f"keys of shape {list(shape_of(k))}")
    if node.get(6) is not None:
        k = moves.concatenate(ctx, [node.operand(6), k], 2)
        v = moves.concatenate(ctx, [node.operand(7), v], 2)
    result = _attended(ctx, node, q, k, v, (batch, heads, queries), padding=4)
    return [result, k, v]


def _attended(
    ctx: Context,
    node: Node,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    sizes: tuple[int, int, int],
    *,
    padding: int,
) -> SSAValue:
    """Attention of (batch, heads, queries) over k and v, masked by operand `padding` of a node, by
    its `unidirectional`, and by its operand 5, a bias."""
    batch, heads, queries = sizes
    keys, head, value_head = shape_of(k)[2], shape_of(k)[3], shape_of(v)[3]
    visible: list[SSAValue] = []
    if node.get(padding) is not None:
        visible.append(_padding(ctx, node.operand(padding), batch, keys))
    if _flag(node, "unidirectional"):
        row = np.arange(queries).reshape(-1, 1) + keys - queries
        visible.append(ctx.constant(np.arange(keys) <= row))
    dims = Heads(batch, heads, 1, queries, keys, head, value_head)
    scale = _number(node, "scale", 0.0) or 1 / sqrt(head)
    mask = _merged(ctx, visible, node.get(5))
    dtype = dtype_of_value(q)
    return attend(ctx, q, k, v, mask, dims, scale=scale, softcap=None, flat=True, dtype=dtype)


@lowers("com.microsoft:Attention")
def _self_attention(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Attention of the rows of (b, s, i) to each other and to a past (2, b, h, p, d): queries, keys
    and values are one product with a weight (i, 3 h d), whose thirds may have other sizes."""
    x, weight, bias = node.operand(0), node.operand(1), node.get(2)
    if _flag(node, "do_rotary") or node.get(6) is not None:
        raise Unsupported("rotary embedding, and a past that shares its buffer with the result")
    heads, width = int(_number(node, "num_heads", 0)), shape_of(weight)[1]
    sizes = [int(n) for n in node.attr("qkv_hidden_sizes") or [width // 3] * 3]
    batch, count, inner = shape_of(x)
    dtype = dtype_of_value(x)
    domain = Domain()
    (row,) = domain.parallel([batch * count], "m")
    column, k = domain.add("n", width), domain.reduction("k", inner)
    product = contract(
        ctx,
        domain,
        [(moves.reshape(ctx, x, [batch * count, inner]), (row, k)), (weight, (k, column))],
        ([batch * count, width], dtype, (row, column)),
        None if bias is None else (lambda b, x, c: x + b.cast(c, x.dtype)),
        [] if bias is None else [(bias, (column,))],
    )
    product = moves.reshape(ctx, product, [batch, count, width])
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k_new, v_new = (
        moves.slice_axis(ctx, product, 2, s, n) for s, n in zip(starts, sizes, strict=True)
    )
    new = [split_heads(ctx, k_new, heads), split_heads(ctx, v_new, heads)]
    past = node.get(4)
    if past is not None:
        old = (moves.slice_axis(ctx, past, 0, i, 1) for i in range(2))
        new = [
            moves.concatenate(ctx, [moves.reshape(ctx, o, shape_of(past)[1:]), n], 2)
            for o, n in zip(old, new, strict=True)
        ]
    key, value = new
    result = _attended(ctx, node, q, key, value, (batch, heads, count), padding=3)
    if not node.wants(1):
        return [result, None]
    return [result, moves.concatenate(ctx, [moves.unsqueeze(ctx, n, 0) for n in new], 0)]


@lowers("com.microsoft:GroupQueryAttention")
def _group_query(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Causal attention to a cache of which each sequence has filled a part; rotary embedding,
    a local window and a soft cap included. New rows go behind what is filled."""
    heads, kv_heads = (int(_number(node, n, 0)) for n in ("num_heads", "kv_num_heads"))
    if _flag(node, "smooth_softmax") or node.get(11) is not None:
        raise Unsupported("a sink in the softmax")
    q = node.operand(0)
    batch, count, width = shape_of(q)
    dtype = dtype_of_value(q)
    if node.get(1) is None:
        head = width // (heads + 2 * kv_heads)
        sizes = [heads * head, kv_heads * head, kv_heads * head]
        starts = [0, sizes[0], sizes[0] + sizes[1]]
        q, k, v = (moves.slice_axis(ctx, q, 2, s, n) for s, n in zip(starts, sizes, strict=True))
    else:
        head = width // heads
        k, v = node.operand(1), node.operand(2)
    past_k, past_v, lengths = node.get(3), node.get(4), node.operand(5)
    past = 0 if past_k is None else shape_of(past_k)[2]
    rows = node.shape(1)[2] if node.wants(1) else past + count
    # How much of each sequence was there before: all of `lengths` but the new rows. The first
    # prompt has no past, however short a sequence is.
    before: SSAValue | None = None
    if past:
        before = ctx.map1(
            lambda b, n: b.cast(n, "int64") + (1 - count), moves.reshape(ctx, lengths, [batch])
        )
    queries = moves.reshape(ctx, q, [batch, count, heads, head])
    new_k = moves.reshape(ctx, k, [batch, count, kv_heads, head])
    positions = _positions(ctx, before, batch, count)
    if _flag(node, "do_rotary"):
        tables = (node.operand(7), node.operand(8))
        where = node.get(9) or positions
        queries, new_k = (
            _rotated(
                ctx,
                x,
                tables,
                where,
                position_axis=1,
                interleaved=_flag(node, "rotary_interleaved"),
                size=2 * shape_of(tables[0])[1],
            )
            for x in (queries, new_k)
        )
    new_k = moves.transpose(ctx, new_k, [0, 2, 1, 3])
    new_v = split_heads(ctx, v, kv_heads)
    keys, values = (
        _cached(ctx, old, new, before, rows) for old, new in ((past_k, new_k), (past_v, new_v))
    )
    window = int(_number(node, "local_window_size", -1))
    at = moves.reshape(ctx, positions, [batch, 1, count, 1])
    key = ctx.constant(np.arange(rows))

    def sees(b: BodyBuilder, t: Scalar, s: Scalar) -> Scalar:
        seen = b.apply("le", t, s)
        if window > 0:
            seen = b.apply("and", seen, b.apply("gt", t, s - window))
        return seen

    visible = ctx.map1(sees, key, at, shape=[batch, 1, count, rows])
    mask = _merged(ctx, [visible], node.get(10))
    dims = Heads(batch, kv_heads, heads // kv_heads, count, rows, head, head)
    result = attend(
        ctx,
        moves.reshape(ctx, queries, [batch, count, heads * head]),
        keys,
        values,
        mask,
        dims,
        scale=_number(node, "scale", 0.0) or 1 / sqrt(head),
        softcap=_number(node, "softcap", 0.0) or None,
        flat=True,
        dtype=dtype,
    )
    return [result, keys, values]


def _cached(
    ctx: Context, old: SSAValue | None, new: SSAValue, before: SSAValue | None, rows: int
) -> SSAValue:
    """A cache of `rows` rows: of `old` (b, h, p, d) the first `before[b]`, then `new`."""
    if old is None or before is None:
        missing = rows - shape_of(new)[2]
        return new if not missing else moves.pad(ctx, new, [0] * 4, [0, 0, missing, 0], 0)
    past, count = shape_of(old)[2], shape_of(new)[2]
    number = ctx.constant(np.arange(rows).reshape(1, rows))
    first = moves.reshape(ctx, before, [shape_of(before)[0], 1])

    def row(b: BodyBuilder, t: Scalar, start: Scalar) -> Scalar:
        behind = t - start
        is_new = b.apply("and", b.apply("ge", behind, 0), b.apply("lt", behind, count))
        return b.apply("select", is_new, behind + past, b.apply("min", t, past - 1))

    index = ctx.map1(row, number, first)
    both = moves.concatenate(ctx, [old, new], 2)
    return moves.gather(ctx, both, index, 2, 1)
