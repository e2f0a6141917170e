"""Operands and attributes of onnxruntime's operators, for which ONNX has no inference.

A check says what shapes the operands of an operator have, as patterns: a name stands for an extent
that is the same wherever the name is, `name?` for that extent or 1, a number for itself. Extents
that are not known fit anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elk_ir.errors import ModelError
from elk_ir.frontend.graph import Node
from elk_ir.frontend.simplify import attribute

Pattern = tuple[str | int, ...]
Extents = dict[str, int]
Check = Callable[[Node], None]


def check_custom(node: Node) -> None:
    """Raises ModelError, with the node, for what does not fit; does nothing for operators that are
    not known here."""
    check = _CHECKS.get(node.op_type)
    if check is not None:
        check(node)


def shape_at(node: Node, position: int) -> tuple[int | None, ...] | None:
    """The shape of an operand, None where it is absent or has no known rank."""
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else value.type.shape


def count_of(node: Node, name: str, what: str) -> int:
    """An attribute that counts something. Raises ModelError for less than one."""
    found = attribute(node, name)
    if not isinstance(found, int) or found < 1:
        raise ModelError(f"{name} = {found}: {what}", where=node.name)
    return found


def _whole(node: Node, total: int | None, parts: int, what: str) -> int | None:
    """One of equal parts of an extent. Raises ModelError if there is a rest."""
    if total is not None and total % parts:
        raise ModelError(f"{total} {what} can't be divided by {parts}", where=node.name)
    return None if total is None else total // parts


def _fits(node: Node, known: Extents, patterns: dict[int, Sequence[Pattern]]) -> Extents:
    """`known` and what the operands bind. Raises ModelError for one that fits none of its
    patterns."""
    for position, options in patterns.items():
        shape = shape_at(node, position)
        if shape is None:
            continue
        found = (_bound(known, option, shape) for option in options)
        fitting = next((f for f in found if f is not None), None)
        if fitting is None:
            wanted = " or ".join(_text(known, option) for option in options)
            raise ModelError(
                f"operand {position} has shape {list(shape)} instead of {wanted}", where=node.name
            )
        known = fitting
    return known


def _bound(known: Extents, pattern: Pattern, shape: tuple[int | None, ...]) -> Extents | None:
    if len(pattern) != len(shape):
        return None
    found = dict(known)
    for name, extent in zip(pattern, shape, strict=True):
        if extent is None or (extent == 1 and str(name).endswith("?")):
            continue
        wanted = name if isinstance(name, int) else found.setdefault(name.rstrip("?"), extent)
        if wanted != extent:
            return None
    return found


def _text(known: Extents, pattern: Pattern) -> str:
    """A pattern with what is known in it."""
    return f"[{', '.join(str(known.get(str(name).rstrip('?'), name)) for name in pattern)}]"


def _with(known: Extents, **more: int | None) -> Extents:
    return known | {name: value for name, value in more.items() if value is not None}


# ---------------------------------------------------------------------- operators


def _activation(node: Node) -> None:
    data = shape_at(node, 0)
    last = data[-1] if data else None
    _fits(node, _with({}, n=last), {1: [("n",)]})


def _skip_norm(node: Node) -> None:
    rows: list[Pattern] = [("b", "s", "n"), ("s", "n")]
    known = _fits(node, {}, {0: rows, 1: [("b?", "s", "n"), ("s", "n")]})
    _fits(node, known, {position: [("n",)] for position in (2, 3, 4)})


def _matmul_nbits(node: Node) -> None:
    k, n, block = (count_of(node, name, "it is one or more") for name in ("K", "N", "block_size"))
    bits, blocks = attribute(node, "bits", 4), -(-k // block)
    row = -(-blocks * bits // 8)
    data = shape_at(node, 0)
    if data is not None and (not data or data[-1] not in (k, None)):
        raise ModelError(f"data of shape {list(data)} for K = {k}", where=node.name)
    weights: list[Pattern] = [(n, blocks, block * bits // 8), (n, blocks * (block * bits // 8))]
    grains: list[Pattern] = [(n * blocks,), (n, blocks)]
    zeros: list[Pattern] = [(n * row,), (n, row), *grains]
    _fits(node, {}, {1: weights, 2: grains, 3: zeros, 5: [(n,)]})


def _scaled_product(b_scale: int, b_zero: int, bias: int, of_the_left: Sequence[int] = ()) -> Check:
    """A product whose right factor has a scale and a zero point, one of each or one a column."""

    def check(node: Node) -> None:
        known = _fits(node, {}, {1: [("k", "n")]})
        one: list[Pattern] = [(), (1,)]
        row: list[Pattern] = [("n",), (1, "n")]
        _fits(node, known, {b_scale: [*one, *row], b_zero: [*one, *row], bias: row})
        _fits(node, known, dict.fromkeys(of_the_left, one))

    return check


def _rotary(node: Node) -> None:
    data = shape_at(node, 0)
    flat: list[Pattern] = [("b", "s", "w"), ("b", "h", "s", "d")]
    known = _fits(node, {}, {0: flat, 2: [("m", "half")], 3: [("m", "half")]})
    _fits(node, known, {1: [(), (1,), ("b", "s")]})
    half, heads = known.get("half"), attribute(node, "num_heads", 0)
    if half is None or data is None:
        return
    size = attribute(node, "rotary_embedding_dim", 0)
    if size and (size != 2 * half or heads < 1):
        raise ModelError(f"{heads} heads, {size} of each turned by {half} angles", where=node.name)
    head = known.get("d")
    if len(data) == 3:
        head = _whole(node, data[2], heads if heads > 0 else 2 * half, "elements of the heads")
        head = head if heads > 0 or head is None else 2 * half
    if head is not None and (head < 2 * half or (not size and head != 2 * half)):
        raise ModelError(f"heads of {head} turned by {half} angles", where=node.name)


_BIAS: Pattern = ("b?", "h?", "s", "t")


def _multi_head(node: Node) -> None:
    heads = count_of(node, "num_heads", "an attention has one or more")
    query = shape_at(node, 0)
    if query is None or len(query) != 3 or shape_at(node, 1) is None or shape_at(node, 2) is None:
        return  # packed: not supported
    known = _fits(node, {"h": heads}, {0: [("b", "s", "w")]})
    head = _whole(node, known.get("w"), heads, "elements of the heads")
    known = _with(known, d=head)
    known = _fits(
        node,
        known,
        {
            1: [("b", "r", "w"), ("b", "h", "r", "d")],
            2: [("b", "r", "u"), ("b", "h", "r", "e")],
            6: [("b", "h", "p", "d")],
            7: [("b", "h", "p", "e")],
        },
    )
    _whole(node, known.get("u"), heads, "elements of the heads")
    if "w" in known and "u" in known:
        known = _with(known, all=2 * known["w"] + known["u"])
    if "r" in known:
        known = _with(known, t=known["r"] + known.get("p", 0))
    _fits(node, known, {3: [("all",)], 5: [_BIAS]})


def _self_attention(node: Node) -> None:
    heads = count_of(node, "num_heads", "an attention has one or more")
    known = _fits(node, {"h": heads}, {0: [("b", "s", "i")], 1: [("i", "all")], 2: [("all",)]})
    width = known.get("all")
    sizes = attribute(node, "qkv_hidden_sizes", None)
    if width is not None and sizes is None:
        third = _whole(node, width, 3, "elements of queries, keys and values")
        sizes = [third or 0] * 3
    if sizes is not None:
        if len(sizes) != 3 or (width is not None and sum(sizes) != width):
            raise ModelError(f"qkv_hidden_sizes = {list(sizes)} of {width}", where=node.name)
        for size in sizes:
            known = _with(known, d=_whole(node, size, heads, "elements of the heads"))
    known = _fits(node, known, {4: [(2, "b", "h", "p", "d")]})
    if "s" in known:
        known = _with(known, t=known["s"] + known.get("p", 0))
    _fits(node, known, {5: [_BIAS]})


def _group_query(node: Node) -> None:
    heads, shared = (
        count_of(node, name, "an attention has one or more")
        for name in ("num_heads", "kv_num_heads")
    )
    _whole(node, heads, shared, "query heads")
    known = _fits(node, {"h": heads, "g": shared}, {0: [("b", "s", "w")]})
    packed = len(node.inputs) < 3 or node.inputs[1] is None
    parts = heads + 2 * shared if packed else heads
    head = _whole(node, known.get("w"), parts, "elements of the heads")
    known = _with(known, d=head, k=None if head is None else head * shared)
    known = _fits(
        node,
        known,
        {
            1: [("b", "s", "k")],
            2: [("b", "s", "k")],
            3: [("b", "g", "p", "d")],
            4: [("b", "g", "p", "d")],
            5: [("b",), ("b", 1), (1, "b")],
            6: [(), (1,)],
            7: [("m", "half")],
            8: [("m", "half")],
            9: [("b", "s")],
        },
    )
    if known.get("half", 0) * 2 > known.get("d", 1 << 62):
        raise ModelError(f"heads of {known['d']} turned by {known['half']} angles", where=node.name)


def _lstm(node: Node) -> None:
    known = _fits(node, {}, {0: [("t", "b", "i")], 2: [("D", "h", "g")]})
    hidden = known.get("h")
    wanted = attribute(node, "hidden_size", hidden)
    if hidden is not None:
        if wanted != hidden:
            raise ModelError(f"hidden_size = {wanted}, but R has {hidden}", where=node.name)
        known = _with(known, g=4 * hidden, g2=8 * hidden, p=3 * hidden)
    directions = 2 if attribute(node, "direction") == b"bidirectional" else 1
    known = _with(known, D=directions)
    scales: list[Pattern] = [("D",), ("D", "g")]
    state: list[Pattern] = [("D", "b", "h")]
    _fits(
        node,
        known,
        {
            1: [("D", "i", "g")],
            2: [("D", "h", "g")],
            3: [("D", "g2")],
            4: [("b",)],
            5: state,
            6: state,
            7: [("D", "p")],
            8: scales,
            9: scales,
            10: scales,
            11: scales,
        },
    )


_CHECKS: dict[str, Check] = {
    "Attention": _self_attention,
    "BiasGelu": _activation,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _scaled_product(2, 3, 4),
    "FastGelu": _activation,
    "GroupQueryAttention": _group_query,
    "MatMulIntegerToFloat": _scaled_product(3, 5, 6, of_the_left=(2, 4)),
    "MatMulNBits": _matmul_nbits,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
}
