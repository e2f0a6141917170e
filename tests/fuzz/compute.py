"""Generators of operators that reduce, multiply, normalise, slide windows, recur or branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import helper

from fuzz.builder import BOOL, F32, FLOATS, I8, I64, INTS, U8, Builder, Refused, Value

Generator = Callable[[Builder], object]
REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"
    " ReduceSum ReduceSumSquare"
).split()


def reduction(op: str, g: Builder) -> None:
    form = "positive" if op in ("ReduceLogSum", "ReduceL2") else "normal"
    types = (*FLOATS, I64) if op in ("ReduceMax", "ReduceMin", "ReduceSum") else (F32,)
    x = g.pick(types, least=1, form=form, empty=op == "ReduceSum")
    axes = sorted({g.number(0, x.rank - 1) for _ in range(g.number(1, 2))})
    given = g.constant([a - x.rank if g.flag() else a for a in axes]) if g.flag() else None
    attributes = {"keepdims": int(g.flag())}
    if given is None and g.flag():
        attributes["noop_with_empty_axes"] = 1
    g.node(op, [x, given], attributes, exact=op in ("ReduceMax", "ReduceMin"))


def arg(op: str, g: Builder) -> None:
    x = g.pick((*FLOATS, I64), least=1, exact=True, empty=False, form=g.choose(["small", "normal"]))
    attributes = {
        "axis": g.number(-x.rank, x.rank - 1),
        "keepdims": int(g.flag()),
        "select_last_index": int(g.flag()),
    }
    g.node(op, [x], attributes)


def top_k(g: Builder) -> None:
    x = g.pick((F32, I64), least=1, exact=True, empty=False, form=g.choose(["small", "normal"]))
    axis = g.number(-x.rank, x.rank - 1)
    k = g.constant([g.number(0, x.shape[axis])])
    g.node("TopK", [x, k], {"axis": axis, "largest": int(g.flag())}, outputs=2, exact=True)


def cumulative(op: str, g: Builder) -> None:
    g.opset = max(g.opset, 26) if op == "CumProd" else g.opset
    x = g.pick((F32, I64), least=1)
    axis = g.constant(g.number(-x.rank, x.rank - 1), g.choose(INTS))
    g.node(op, [x, axis], {"exclusive": int(g.flag()), "reverse": int(g.flag())})


def soft(op: str, g: Builder) -> None:
    x = g.pick(FLOATS if op != "Hardmax" else (F32,), least=1, empty=False, exact=op == "Hardmax")
    g.node(op, [x], {"axis": g.number(-x.rank, x.rank - 1)})


# ---------------------------------------------------------------------- products


def matmul(g: Builder) -> None:
    a = g.pick(FLOATS, least=1)
    k = a.shape[-1]
    form = g.number(0, 4)
    if form == 0:
        shape: tuple[int, ...] = (k,)
    else:
        shape = (k, g.choose([5, 1, 3, 8, 13, 16]))
        if form > 2 and a.rank > 2:
            shape = (*(n if g.flag() else 1 for n in a.shape[:-2]), *shape)
    found = [v for v in g.values if v.dtype == a.dtype and v.shape == shape]
    b = g.choose(found) if found and g.flag() else g.leaf(shape, a.dtype)
    g.node("MatMul", [a, b])


def gemm(g: Builder) -> None:
    a = g.pick((F32,), rank=2)
    turned = g.flag()
    m, k = a.shape[::-1] if turned else a.shape
    n = g.choose([4, 1, 7, 16])
    other = g.flag()
    b = g.leaf((n, k) if other else (k, n), a.dtype)
    c = g.choose([None, g.leaf(g.choose([(n,), (m, 1), (m, n), (1,), ()]), a.dtype)])
    attributes = {"transA": int(turned), "transB": int(other)}
    if g.flag():
        attributes |= {"alpha": 0.5, "beta": 2.0}
    g.node("Gemm", [a, b, c], attributes)


def einsum(g: Builder) -> None:
    equation, *ranks = g.choose(
        [
            ("ij,jk->ik", "ij", "jk"),
            ("bij,bjk->bik", "bij", "bjk"),
            ("bhqd,bhkd->bhqk", "bhqd", "bhkd"),
            ("ij->ji", "ij"),
            ("ij->i", "ij"),
            ("i,j->ij", "i", "j"),
            ("ij,ij->", "ij", "ij"),
            ("ijk,kl,lm->ijm", "ijk", "kl", "lm"),
        ]
    )
    extents = {c: g.choose([3, 1, 2, 5, 7]) for c in sorted(set("".join(ranks)))}
    ins = [g.leaf([extents[c] for c in r], F32) for r in ranks]
    g.node("Einsum", ins, {"equation": equation})


def matmul_integer(g: Builder) -> None:
    m, k, n = g.number(1, 7), g.number(1, 11), g.number(1, 7)
    a, b = g.leaf((m, k), U8), g.leaf((k, n), g.choose([U8, I8]))
    zero = g.constant(2, U8) if g.flag() else None
    g.node("MatMulInteger", [a, b, zero])


# ---------------------------------------------------------------------- windows


def _image(g: Builder, channels: int, least: int = 1) -> tuple[Value, int]:
    space = g.number(least, 2)
    shape = (g.number(1, 2), channels, *(g.number(1, 9) for _ in range(space)))
    found = [
        v for v in g.values if v.dtype == F32 and v.rank == space + 2 and v.shape[1] == channels
    ]
    return (g.choose(found) if found and g.flag() else g.leaf(shape, F32)), space


def _window(
    g: Builder, data: Sequence[int], *, dilated: bool = True, even: bool = False
) -> dict[str, Any]:
    """Windows over axes of these extents, none larger than the data: of the results of those,
    evaluators and ONNX's shape inference have different ideas. even: as much padding behind the
    data as in front of it."""
    space = len(data)
    kernel = [g.number(1, max(1, min(3, n))) for n in data]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    strides = [1] * space
    if g.flag():
        attributes["strides"] = strides = [g.number(1, 3) for _ in range(space)]
    if dilated and g.flag():
        attributes["dilations"] = [
            g.number(1, 2 if 2 * (k - 1) < n else 1) for k, n in zip(kernel, data, strict=True)
        ]
    padding = g.number(0, 3)
    # Where windows leave gaps, onnxruntime refuses the padding that is worked out, as negative,
    # and ONNX's reference evaluator cuts the data.
    gaps = any(s > k for s, k in zip(strides, kernel, strict=True))
    if padding == 1:
        front = [g.number(0, k - 1) for k in kernel]
        attributes["pads"] = [*front, *(front if even else [g.number(0, k - 1) for k in kernel])]
    elif padding == 2 and "dilations" not in attributes and not gaps:
        attributes["auto_pad"] = g.choose(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attributes


def conv(g: Builder) -> None:
    group = g.number(1, 2)
    channels = group * g.number(1, 3)
    x, _ = _image(g, channels)
    attributes = _window(g, x.shape[2:])
    filters = group * g.number(1, 4)
    w = g.leaf((filters, channels // group, *attributes["kernel_shape"]), F32)
    bias = g.leaf((filters,), F32) if g.flag() else None
    g.node("Conv", [x, w, bias], {**attributes, "group": group})


def conv_transpose(g: Builder) -> None:
    group = g.number(1, 2)
    channels = group * g.number(1, 2)
    x, space = _image(g, channels)
    kernel = [g.number(1, 3) for _ in range(space)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "group": group}
    if g.flag():
        attributes["strides"] = [g.number(1, 2) for _ in range(space)]
    if g.flag():
        attributes["pads"] = [g.number(0, k - 1) for k in (*kernel, *kernel)]
    w = g.leaf((channels, g.number(1, 3), *kernel), F32)
    g.node("ConvTranspose", [x, w], attributes)


def conv_integer(g: Builder) -> None:
    x = g.leaf((1, 2, g.number(2, 6), g.number(2, 6)), U8)
    w = g.leaf((g.number(1, 3), 2, g.number(1, 2), g.number(1, 2)), U8)
    g.node("ConvInteger", [x, w, g.constant(1, U8) if g.flag() else None])


def pool(op: str, g: Builder) -> None:
    x, space = _image(g, g.number(1, 3))
    # ONNX's reference evaluator makes too few maxima of 1-dimensional data that is padded unevenly,
    # or padded and counted up.
    even = op == "MaxPool" and space == 1
    attributes = _window(g, x.shape[2:], dilated=op != "LpPool", even=even)
    if g.flag() and "auto_pad" not in attributes and not (even and "pads" in attributes):
        attributes["ceil_mode"] = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = int(g.flag())
    g.node(op, [x], attributes, exact=op == "MaxPool")


def global_pool(op: str, g: Builder) -> None:
    # ONNX's reference evaluator takes the maximum over the channels of 1-dimensional data too.
    x, _ = _image(g, g.number(1, 4), 2 if op == "GlobalMaxPool" else 1)
    g.node(op, [x])


def lrn(g: Builder) -> None:
    x = g.leaf((g.number(1, 2), g.number(1, 5), g.number(1, 4), g.number(1, 4)), F32)
    g.node("LRN", [x], {"size": g.choose([1, 3, 5])})


# ---------------------------------------------------------------------- norms


def layer_norm(g: Builder) -> None:
    x = g.pick((F32,), least=1, empty=False)
    axis = g.number(-x.rank, -1)
    scale = g.leaf(x.shape[axis:], F32)
    bias = g.leaf(x.shape[axis:], F32) if g.flag() else None
    g.node("LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": 1e-2})


def rms_norm(g: Builder) -> None:
    x = g.pick((F32,), least=1, empty=False)
    axis = g.number(-x.rank, -1)
    g.node("RMSNormalization", [x, g.leaf(x.shape[axis:], F32)], {"axis": axis, "epsilon": 1e-2})


def batch_norm(g: Builder) -> None:
    x, _ = _image(g, g.number(1, 4))
    c = x.shape[1:2]
    ins = [x, g.leaf(c, F32), g.leaf(c, F32), g.leaf(c, F32), g.leaf(c, F32, "positive")]
    g.node("BatchNormalization", ins)


def instance_norm(g: Builder) -> None:
    x, _ = _image(g, g.number(1, 4))
    ins = [x, g.leaf(x.shape[1:2], F32), g.leaf(x.shape[1:2], F32)]
    g.node("InstanceNormalization", ins, {"epsilon": 1e-2})


def group_norm(g: Builder) -> None:
    groups = g.number(1, 3)
    x, _ = _image(g, groups * g.number(1, 2))
    ins = [x, g.leaf(x.shape[1:2], F32), g.leaf(x.shape[1:2], F32)]
    g.node("GroupNormalization", ins, {"num_groups": groups, "epsilon": 1e-2})


def lp_norm(g: Builder) -> None:
    x = g.pick((F32,), least=1, empty=False, form="positive")
    g.node("LpNormalization", [x], {"axis": g.number(-x.rank, x.rank - 1), "p": g.number(1, 2)})


def variance_norm(g: Builder) -> None:
    x = g.leaf((g.number(2, 3), g.number(1, 3), g.number(2, 4), g.number(2, 4)), F32)
    g.node("MeanVarianceNormalization", [x])


# ---------------------------------------------------------------------- attention, recurrence


def attention(g: Builder) -> None:
    batch, kv_heads, ratio = g.number(1, 2), g.number(1, 2), g.number(1, 2)
    rows, length, head = g.number(1, 5), g.number(1, 7), g.choose([4, 1, 3, 8])
    value = g.choose([head, 2])
    heads = kv_heads * ratio
    attributes: dict[str, Any] = {}
    if g.flag():
        shapes = [(batch, heads, rows, head), (batch, kv_heads, length, head)]
        shapes.append((batch, kv_heads, length, value))
    else:
        shapes = [(batch, rows, heads * head), (batch, length, kv_heads * head)]
        shapes.append((batch, length, kv_heads * value))
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    ins: list[Value | None] = [g.leaf(s, F32) for s in shapes]
    if g.flag():
        attributes["is_causal"] = 1
    elif g.flag():
        ins.append(g.leaf(g.choose([(rows, length), (batch, 1, rows, length)]), F32))
    if g.flag():
        attributes["scale"] = 0.3
    if g.flag():
        attributes["softcap"] = 2.0
    g.node("Attention", ins, attributes)


def rotary(g: Builder) -> None:
    batch, heads, rows, head = g.number(1, 2), g.number(1, 3), g.number(1, 5), g.choose([4, 2, 8])
    x = g.leaf((batch, heads, rows, head), F32)
    tables = [g.leaf((batch, rows, head // 2), F32) for _ in range(2)]
    g.node("RotaryEmbedding", [x, *tables], {"interleaved": int(g.flag())})


def recurrent(op: str, g: Builder) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    steps, batch, width, hidden = g.number(1, 4), g.number(1, 3), g.number(1, 4), g.number(1, 5)
    direction = g.choose(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    x = g.leaf((steps, batch, width), F32)
    w = g.leaf((ways, gates * hidden, width), F32)
    r = g.leaf((ways, gates * hidden, hidden), F32)
    b = g.leaf((ways, 2 * gates * hidden), F32) if g.flag() else None
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU" and g.flag():
        attributes["linear_before_reset"] = 1
    g.node(op, [x, w, r, b], attributes, outputs=2)


# ---------------------------------------------------------------------- quantised


def quantize(g: Builder) -> None:
    x = g.pick((F32,), least=1, exact=True)
    scale, zero = (
        g.constant(g.choose([0.5, 0.25]), F32),
        g.constant(g.choose([0, 3]), g.choose([U8, I8])),
    )
    attributes = {}
    if g.flag():
        axis = g.number(0, x.rank - 1)
        count = x.shape[axis]
        scale = g.constant([0.25 * (1 + i % 3) for i in range(count)], F32)
        zero = g.constant([0] * count, zero.dtype)
        attributes["axis"] = axis
    g.node("QuantizeLinear", [x, scale, zero], attributes)


def dequantize(g: Builder) -> None:
    x = g.pick((U8, I8), least=1)
    g.node("DequantizeLinear", [x, g.constant(0.25, F32), g.constant(1, x.dtype)])


def dynamic_quantize(g: Builder) -> None:
    x = g.pick((F32,), exact=True, empty=False)
    g.node("DynamicQuantizeLinear", [x], outputs=3)


# ---------------------------------------------------------------------- control flow


def if_(g: Builder) -> None:
    """A branch on a constant or on an input; branches read values of the outer graph."""
    x = g.pick((F32,))
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, [x.name], [f"{name}{len(g.nodes)}"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}{len(g.nodes)}", 1, list(x.shape))],
        )
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    if g.flag():
        condition = g.constant(g.flag(), BOOL)
    else:
        condition = g.leaf((), BOOL, weight=False)
    _with_captured(g, "If", [condition], branches, [x])


def loop(g: Builder) -> None:
    """A few iterations that carry one value."""
    x = g.pick((F32,))
    i, c, s, c1, t, s1, half = _fresh(g, 7)
    types = [(i, 7, []), (c, 9, []), (s, 1, list(x.shape))]
    results = [(c1, 9, []), (s1, 1, list(x.shape))]
    body = helper.make_graph(
        [
            helper.make_node("Identity", [c], [c1]),
            helper.make_node("Mul", [s, half], [t]),
            helper.make_node("Add", [t, x.name], [s1]),
        ],
        "body",
        [helper.make_tensor_value_info(*each) for each in types],
        [helper.make_tensor_value_info(*each) for each in results],
        [helper.make_tensor(half, 1, [], [0.5])],
    )
    ins = [g.constant(g.number(1, 4)), g.constant(True, BOOL), x]
    _with_captured(g, "Loop", ins, {"body": body}, [x])


def scan(g: Builder) -> None:
    """Running sums along the first axis."""
    rows, width = g.number(1, 5), g.number(1, 6)
    x = g.leaf((rows, width), F32)
    start = g.leaf((width,), F32)
    names = _fresh(g, 4)
    s, e, s1, o = names
    info = [helper.make_tensor_value_info(n, 1, [width]) for n in names]
    body = helper.make_graph(
        [helper.make_node("Add", [s, e], [s1]), helper.make_node("Neg", [s1], [o])],
        "body",
        info[:2],
        info[2:],
    )
    g.node("Scan", [start, x], {"body": body, "num_scan_inputs": 1}, outputs=2)


def _fresh(g: Builder, count: int) -> list[str]:
    """Names that no other subgraph uses."""
    return [f"b{len(g.nodes)}_{i}" for i in range(count)]


def _with_captured(
    g: Builder, op: str, ins: list[Value], attributes: dict[str, Any], captured: list[Value]
) -> None:
    """A node whose subgraphs read outer values: evaluated with those as further inputs."""
    from fuzz.builder import run_nodes

    name = f"v{len(g.nodes)}_0"
    node = helper.make_node(
        op, [v.name for v in ins], [name], name=f"n{len(g.nodes)}_{op}", **attributes
    )
    given = {v.name: v.array for v in (*ins, *captured)}
    (array,) = run_nodes([node], given, [name], g.opset)
    if not np.isfinite(array).all():
        raise Refused(op)
    g.nodes.append(node)
    g.kept |= {v.name for v in captured}
    g.values.append(Value(name, array, False))
    g.operators[op] += 1


COMPUTE: dict[str, Generator] = {
    **{op: partial(reduction, op) for op in REDUCTIONS},
    **{op: partial(arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: partial(cumulative, op) for op in ("CumSum", "CumProd")},
    **{op: partial(soft, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{op: partial(pool, op) for op in ("AveragePool", "MaxPool", "LpPool")},
    **{op: partial(global_pool, op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: partial(recurrent, op) for op in ("RNN", "GRU", "LSTM")},
    "Attention": attention,
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "Einsum": einsum,
    "Gemm": gemm,
    "GroupNormalization": group_norm,
    "If": if_,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "Loop": loop,
    "LpNormalization": lp_norm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "MeanVarianceNormalization": variance_norm,
    "QuantizeLinear": quantize,
    "RMSNormalization": rms_norm,
    "RotaryEmbedding": rotary,
    "Scan": scan,
    "TopK": top_k,
}
