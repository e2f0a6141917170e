"""ONNX's Attention and RotaryEmbedding (opset 23 and later)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.ops import AttentionOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import ZERO, Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    expect,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.products import contract
from elk_ir.passes.onnx_lowerings.reductions import softmax
from elk_ir.plan.domain import AxisExpr


@dataclass(frozen=True)
class Heads:
    """Extents of an attention: batch, KV heads, query heads per KV head, query and KV length, head
    size of query and key, and of value."""

    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    head: int
    value_head: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group


def split_heads(ctx: Context, value: SSAValue, heads: int) -> SSAValue:
    """(batch, length, heads x size) as (batch, heads, length, size)."""
    b, s, hidden = shape_of(value)
    return moves.transpose(
        ctx, moves.reshape(ctx, value, [b, s, heads, hidden // heads]), [0, 2, 1, 3]
    )


def _check_shapes(node: Node) -> None:
    """Raises Unsupported for operands that do not fit each other: ONNX's inference does not compare
    them."""
    q, k, v = (shape_of(node.operand(i)) for i in range(3))
    if not len(q) == len(k) == len(v) in (3, 4):
        raise Unsupported(f"query, key and value have {len(q)}, {len(k)} and {len(v)} axes")
    if not (q[0] == k[0] == v[0] and k[1:-1] == v[1:-1] and (len(q) == 3 or q[3] == k[3])):
        raise Unsupported(f"query {list(q)}, key {list(k)} and value {list(v)} do not fit")
    mask = node.get(3)
    if mask is not None and not 0 < len(shape_of(mask)) <= 4:
        raise Unsupported(f"a mask with {len(shape_of(mask))} axes")
    for i in (4, 5):
        past = node.get(i)
        if past is not None and len(shape_of(past)) != 4:
            raise Unsupported(f"operand {i} has {len(shape_of(past))} axes instead of 4")


def _check_mask(shape: tuple[int, ...], dims: Heads) -> None:
    """Raises Unsupported for a mask that can't be broadcast to the scores."""
    scores = (dims.batch, dims.heads, dims.queries, dims.keys)
    pairs = zip(shape, scores[4 - len(shape) :], strict=True)
    if any(n not in (1, extent) for n, extent in pairs):
        raise Unsupported(f"a mask of shape {list(shape)} for scores of shape {list(scores)}")


@lowers("Attention")
def _attention(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Scaled dot-product attention: one `te.attention` over the present keys and values."""
    _check_shapes(node)
    q, k, v = (node.operand(i) for i in range(3))
    flat = len(shape_of(q)) == 3
    past = node.get(4), node.get(5)
    if flat:
        kv_heads = node.attr("kv_num_heads")
        k, v = (split_heads(ctx, x, kv_heads) for x in (k, v))
    if past[0] is not None and past[1] is not None:
        k = moves.concatenate(ctx, [past[0], k], 2)
        v = moves.concatenate(ctx, [past[1], v], 2)
    batch, kv_heads, keys, head = shape_of(k)
    value_head = shape_of(v)[3]
    heads = node.attr("q_num_heads") if flat else shape_of(q)[1]
    queries = shape_of(q)[1 if flat else 2]
    if heads % kv_heads or (flat and shape_of(q)[2] != heads * head):
        raise Unsupported(f"{heads} query heads in {list(shape_of(q))}, {kv_heads} of size {head}")
    dims = Heads(batch, kv_heads, heads // kv_heads, queries, keys, head, value_head)
    scale = node.attr("scale")
    scale = 1 / sqrt(head) if scale is None else scale
    offset = shape_of(past[0])[2] if past[0] is not None else 0
    mask = _mask(ctx, node, dims, offset)
    cap = node.attr("softcap") or None
    results: list[SSAValue | None] = [
        attend(ctx, q, k, v, mask, dims, scale=scale, softcap=cap, flat=flat, dtype=node.dtype()),
        k,
        v,
    ]
    if node.wants(3):
        results.append(_scores(ctx, node, q, k, mask, dims, scale, cap, flat))
    return results


def _query_map(
    dims: Heads, flat: bool, b: AxisExpr, h: AxisExpr, s: AxisExpr, d: AxisExpr, size: int
) -> Map:
    return (b, s, total(scaled(h, size), d)) if flat else (b, h, s, d)


def attend(
    ctx: Context,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    mask: SSAValue | None,
    dims: Heads,
    *,
    scale: float,
    softcap: float | None,
    flat: bool,
    dtype: str,
) -> SSAValue:
    """`te.attention`. Query (and result) are (b, h, s, d), or (b, s, h d) if `flat`; key and value
    (b, h, t, d); the mask is broadcast to (b, h, s, t)."""
    domain = Domain()
    b, hk = domain.add("b", dims.batch), domain.add("h", dims.kv_heads)
    h = hk
    if dims.group > 1:
        h = total(scaled(hk, dims.group), domain.add("g", dims.group))
    s = domain.add("s", dims.queries)
    e = domain.local("e", dims.value_head)
    d = domain.local("d", dims.head)
    t = domain.reduction("t", dims.keys)
    operands: list[tuple[SSAValue, Map]] = [
        (q, _query_map(dims, flat, b, h, s, d, dims.head)),
        (k, (b, hk, t, d)),
        (v, (b, hk, t, e)),
    ]
    if mask is not None:
        operands.append((mask, _mask_map(shape_of(mask), dims, b, h, s, t)))
    write = _query_map(dims, flat, b, h, s, e, dims.value_head)
    shape = (
        [dims.batch, dims.queries, dims.heads * dims.value_head]
        if flat
        else [dims.batch, dims.heads, dims.queries, dims.value_head]
    )
    if 0 in shape or dims.keys == 0:
        return moves.full(ctx, shape, 0, dtype)
    op = AttentionOp.create(
        operands=[x for x, _ in operands],
        result_types=[tensor_type(shape, dtype)],
        properties={
            "domain": domain.attr([m for _, m in operands], [write]),
            "scale": FloatAttr(scale, 64),
        },
    )
    if softcap is not None:
        op.properties["softcap"] = FloatAttr(softcap, 64)
    return ctx.emit1(op)


def _mask_map(
    shape: tuple[int, ...], dims: Heads, b: AxisExpr, h: AxisExpr, s: AxisExpr, t: AxisExpr
) -> Map:
    axes = (b, h, s, t)[4 - len(shape) :]
    extents = (dims.batch, dims.heads, dims.queries, dims.keys)[4 - len(shape) :]
    return tuple(
        ZERO if n == 1 and extent != 1 else axis
        for axis, n, extent in zip(axes, shape, extents, strict=True)
    )


def _mask(ctx: Context, node: Node, dims: Heads, offset: int) -> SSAValue | None:
    """All of the node's masks in one: bool (which keys a query sees), or additive where the node's
    own mask is. None when every query sees every key."""
    mask, lengths = node.get(3), node.get(6)
    if mask is not None and (missing := dims.keys - shape_of(mask)[-1]) > 0:
        fill = False if dtype_of_value(mask) == "bool" else float("-inf")
        rank = len(shape_of(mask))
        mask = moves.pad(ctx, mask, [0] * rank, [0] * (rank - 1) + [missing], fill)
    if mask is not None:
        _check_mask(shape_of(mask), dims)
    left, right = (_window(node, a) for a in ("left_window_size", "right_window_size"))
    causal = bool(node.attr("is_causal"))
    if not causal and lengths is None and left < 0 and right < 0:
        return mask
    ins: list[SSAValue] = []
    positional = causal or left >= 0 or right >= 0
    if positional:
        # Query i stands at position i + offset; with per-batch lengths it ends where those end.
        row = np.arange(dims.queries).reshape(-1, 1)
        row = row - dims.queries if lengths is not None else row + offset
        ins.append(ctx.constant(row))
    ins.append(ctx.constant(np.arange(dims.keys)))
    if lengths is not None:
        shaped = moves.reshape(ctx, lengths, [dims.batch, 1, 1, 1])
        ins.append(ctx.cast(shaped, "int64"))
    if mask is not None:
        ins.append(mask)

    def fn(b: BodyBuilder, *xs: Scalar) -> Scalar:
        rest = list(xs)
        query = rest.pop(0) if positional else None
        key = rest.pop(0)
        length = rest.pop(0) if lengths is not None else None
        seen: list[Scalar] = []
        if query is not None:
            query = query if length is None else query + length
            if causal:
                seen.append(b.apply("le", key, query))
            if left >= 0:
                seen.append(b.apply("ge", key, query - left))
            if right >= 0:
                seen.append(b.apply("le", key, query + right))
        if length is not None:
            seen.append(b.apply("lt", key, length))
        visible = seen[0]
        for s in seen[1:]:
            visible = b.apply("and", visible, s)
        if not rest:
            return visible
        if rest[0].dtype == "bool":
            return b.apply("and", visible, rest[0])
        return b.apply("select", visible, rest[0], float("-inf"))

    return ctx.map1(fn, *ins)


def _window(node: Node, name: str) -> int:
    try:
        size = node.attr(name)
    except KeyError:  # before opset 25
        return -1
    return -1 if size is None else size


def _scores(
    ctx: Context,
    node: Node,
    q: SSAValue,
    k: SSAValue,
    mask: SSAValue | None,
    dims: Heads,
    scale: float,
    softcap: float | None,
    flat: bool,
) -> SSAValue:
    """The fourth result: the scores as they are after the stage `qk_matmul_output_mode` names."""
    mode, dtype = node.attr("qk_matmul_output_mode"), node.dtype(3)
    domain = Domain()
    b, hk = domain.add("b", dims.batch), domain.add("h", dims.kv_heads)
    h = hk
    if dims.group > 1:
        h = total(scaled(hk, dims.group), domain.add("g", dims.group))
    s, t = domain.add("s", dims.queries), domain.add("t", dims.keys)
    d = domain.reduction("d", dims.head)
    shape = (dims.batch, dims.heads, dims.queries, dims.keys)

    def scaled_scores(body: BodyBuilder, x: Scalar) -> Scalar:
        x = x * scale
        if softcap is not None and mode > 0:
            x = body.apply("tanh", x / softcap) * softcap
        return x

    factors = [(q, _query_map(dims, flat, b, h, s, d, dims.head)), (k, (b, hk, t, d))]
    scores = contract(ctx, domain, factors, (shape, "float32", (b, h, s, t)), scaled_scores)
    if mode < 2:
        return ctx.cast(scores, dtype)
    if mask is not None:

        def masked(body: BodyBuilder, x: Scalar, m: Scalar) -> Scalar:
            if m.dtype == "bool":
                return body.apply("select", m, x, float("-inf"))
            return x + body.cast(m, x.dtype)

        scores = ctx.map1(masked, scores, mask, shape=shape)
    if mode == 3:
        weights = softmax(ctx, scores, 3)
        # A query that sees no key has no weights at all.
        scores = ctx.map1(
            lambda body, x: body.apply("select", body.apply("isnan", x), 0.0, x), weights
        )
    return ctx.cast(scores, dtype)


@lowers("RotaryEmbedding")
def _rotary(ctx: Context, node: Node) -> SSAValue:
    """Pairs of elements turned by position: halves of the head, or neighbours if interleaved."""
    x, cos, sin = (node.operand(i) for i in range(3))
    positions = node.get(3)
    if positions is not None:
        cos, sin = (moves.gather(ctx, c, positions, 0) for c in (cos, sin))
    shape = shape_of(x)
    flat = len(shape) == 3
    if flat:
        heads = node.attr("num_heads")
        x = moves.reshape(ctx, x, [*shape[:2], heads, shape[2] // heads])
    size = node.attr("rotary_embedding_dim") or shape_of(x)[3]
    for what, table in (("cosines", cos), ("sines", sin)):
        expect(what, table, shape[0], shape[1 if flat else 2], size // 2)
    turned = turn(
        ctx,
        x,
        cos,
        sin,
        size=size,
        interleaved=bool(node.attr("interleaved")),
        position_axis=1 if flat else 2,
    )
    return moves.reshape(ctx, turned, shape)


def turn(
    ctx: Context,
    x: SSAValue,
    cos: SSAValue,
    sin: SSAValue,
    *,
    size: int,
    interleaved: bool,
    position_axis: int,
) -> SSAValue:
    """The first `size` elements of each head of `x` (batch, …, head), turned in pairs by angles
    (batch or 1, positions, size / 2); positions are axis `position_axis` of `x`."""
    extents = shape_of(x)
    half = size // 2
    shape = [*extents[:3], half]
    index = tuple(AxisExpr(((d, 1),)) for d in range(4))
    lead = index[:3]
    if interleaved:
        halves = scaled(index[3], 2), total(scaled(index[3], 2), offset=1)
    else:
        halves = index[3], total(index[3], offset=half)
    angle = (index[0], index[position_axis], index[3])
    if shape_of(cos)[0] == 1 != extents[0]:
        angle = (ZERO, *angle[1:])
    first, second = ctx.map(
        lambda b, a, c, co, si: (a * co - c * si, a * si + c * co),
        x,
        x,
        cos,
        sin,
        shape=shape,
        maps=[(*lead, halves[0]), (*lead, halves[1]), angle, angle],
    )
    if interleaved:
        pairs = [moves.reshape(ctx, v, [*shape, 1]) for v in (first, second)]
        turned = moves.reshape(ctx, moves.concatenate(ctx, pairs, 4), [*extents[:3], size])
        parts = [turned]
    else:
        parts = [first, second]
    if size < extents[3]:
        parts.append(moves.slice_axis(ctx, x, 3, size, extents[3] - size))
    return moves.concatenate(ctx, parts, 3)
