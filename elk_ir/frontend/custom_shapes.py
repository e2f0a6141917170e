"""Result types of operators that ONNX does not define but that files made for onnxruntime hold.

Each rule gives the types of the results it knows; what a rule does not give is taken from the
model's own declaration of that value, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elk_ir.extensions import operators
from elk_ir.frontend.custom_checks import check_custom, shape_at
from elk_ir.frontend.graph import Node, ValueType
from elk_ir.frontend.simplify import attribute

Shape = tuple[int | None, ...]
Rule = Callable[[Node], Sequence[ValueType | None]]


def _type(node: Node, position: int) -> ValueType | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else value.type


def _like(*positions: int | None) -> Rule:
    return lambda node: [None if p is None else _type(node, p) for p in positions]


def _normalized(node: Node, source: int) -> list[ValueType | None]:
    # Y, mean, inverse deviation (both of one element in the last axis), and the sum of the inputs.
    first = _type(node, source)
    shape = shape_at(node, source)
    stat = None if shape is None else ValueType(1, (*shape[:-1], 1))
    return [first, stat, stat, first]


def _matmul(node: Node) -> list[ValueType | None]:
    a, b = shape_at(node, 0), shape_at(node, 1)
    first = _type(node, 0)
    if a is None or b is None or first is None or len(a) < 2 or len(b) < 2:
        return [None]
    if attribute(node, "transA", 0):
        a = (*a[:-2], a[-1], a[-2])
    if attribute(node, "transB", 0):
        b = (*b[:-2], b[-1], b[-2])
    return [ValueType(first.elem, (*_broadcast(a[:-2], b[:-2]), a[-2], b[-1]))]


def _broadcast(a: Shape, b: Shape) -> Shape:
    """Extents of both, aligned at the end; where they do not fit, those of the first."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    head = len(longer) - len(shorter)
    pairs = zip(longer[head:], shorter, strict=True)
    return (*longer[:head], *(n if m == 1 else m for m, n in pairs))


def _matmul_nbits(node: Node) -> list[ValueType | None]:
    first = _type(node, 0)
    if first is None or first.shape is None:
        return [None]
    return [ValueType(first.elem, (*first.shape[:-1], attribute(node, "N")))]


def _group_query_attention(node: Node) -> list[ValueType | None]:
    query, past = _type(node, 0), _type(node, 3)
    if query is None or query.shape is None:
        return [None]
    batch, length, width = query.shape
    heads, kv_heads = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    packed = len(node.inputs) < 3 or node.inputs[1] is None
    head = None if width is None else width // (heads + 2 * kv_heads if packed else heads)
    output = ValueType(query.elem, (batch, length, heads * head if packed and head else width))
    if past is None or past.shape is None:
        return [output, None, None]
    # onnxruntime shares one buffer for past and present when it was made long enough.
    total = node.inputs[6] if len(node.inputs) > 6 else None
    rows = past.shape[2]
    if total is not None and total.const is not None and rows is not None:
        rows = max(rows, int(total.const.reshape(-1)[0]))
    elif rows is not None and length is not None:
        rows = rows + length
    present = ValueType(past.elem, (*past.shape[:2], rows, past.shape[3]))
    return [output, present, present]


def _multi_head_attention(node: Node) -> list[ValueType | None]:
    query, key, value = (_type(node, i) for i in range(3))
    shapes = [None if t is None else t.shape for t in (query, key, value)]
    heads = attribute(node, "num_heads")
    if query is None or any(s is None for s in shapes) or len(shapes[0] or ()) != 3:
        return [None]
    (batch, length, width), k, v = (tuple(s or ()) for s in shapes)
    past = shape_at(node, 6)
    present: list[ValueType | None] = []
    for shape in (k, v):
        rows, size = (shape[2], shape[3]) if len(shape) == 4 else (shape[1], shape[2])
        if len(shape) == 3 and size is not None:
            size //= heads
        if past is not None and rows is not None and past[2] is not None:
            rows += past[2]
        present.append(ValueType(query.elem, (batch, heads, rows, size)))
    size = present[1].shape[3] if present[1] is not None and present[1].shape else None
    width = width if size is None else heads * size
    return [ValueType(query.elem, (batch, length, width)), *present]


def _self_attention(node: Node) -> list[ValueType | None]:
    x, weight, past = _type(node, 0), shape_at(node, 1), shape_at(node, 4)
    if x is None or x.shape is None or weight is None or weight[1] is None:
        return [None]
    sizes = attribute(node, "qkv_hidden_sizes", None) or [weight[1] // 3] * 3
    batch, length, _ = x.shape
    heads = attribute(node, "num_heads")
    rows = None if length is None else length + ((past[3] or 0) if past is not None else 0)
    present = ValueType(x.elem, (2, batch, heads, rows, sizes[1] // heads))
    return [ValueType(x.elem, (batch, length, sizes[2])), present]


def _float_product(node: Node) -> list[ValueType | None]:
    a, b = shape_at(node, 0), shape_at(node, 1)
    if a is None or b is None or len(a) < 2 or len(b) != 2:
        return [None]
    return [ValueType(1, (*a[:-1], b[-1]))]


def _lstm(node: Node) -> list[ValueType | None]:
    # R is (directions, hidden, 4 x hidden): transposed, unlike that of LSTM.
    x, recurrent = _type(node, 0), shape_at(node, 2)
    if x is None or x.shape is None or recurrent is None:
        return [None]
    (steps, batch, _), (directions, hidden, _) = x.shape, recurrent
    last = ValueType(x.elem, (directions, batch, hidden))
    return [ValueType(x.elem, (steps, directions, batch, hidden)), last, last]


_RULES: dict[str, Rule] = {
    "Attention": _self_attention,
    "BiasGelu": _like(0),
    "DynamicQuantizeMatMul": _float_product,
    "DynamicQuantizeLSTM": _lstm,
    "FastGelu": _like(0),
    "FusedMatMul": _matmul,
    "Gelu": _like(0),
    "GroupQueryAttention": _group_query_attention,
    "MatMulIntegerToFloat": _float_product,
    "MatMulNBits": _matmul_nbits,
    "MultiHeadAttention": _multi_head_attention,
    "QuickGelu": _like(0),
    "RotaryEmbedding": _like(0),
    "SimplifiedLayerNormalization": lambda node: _normalized(node, 0),
    "SkipLayerNormalization": lambda node: _normalized(node, 0),
    "SkipSimplifiedLayerNormalization": lambda node: _normalized(node, 0),
}


def infer_custom(node: Node) -> list[ValueType | None]:
    """Types of the results, None for each that is not known. Raises ModelError for operands that do
    not fit an operator whose lowering is built in."""
    brought = operators().shapes.get(f"{node.domain}:{node.op_type}")
    if brought is None and node.domain == "com.microsoft":
        check_custom(node)
    rule = brought or _RULES.get(node.op_type)
    known = rule(node) if rule is not None else []
    count = len(node.outputs)
    return [known[i] if i < len(known) else None for i in range(count)]
