"""An independent reference of quantised programs: index arrays and int64 sums, no kernels.

`product` evaluates a te.contract point by point: every operand is read through its map at every
point of the domain, factors are multiplied and summed as Python-sized integers, and the epilogue is
run by the small interpreter below. `Decoder` is the arithmetic of a quantised Llama block written
out by hand; only steps are taken from the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

F = np.float32


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    import ml_dtypes

    to = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    return x.astype(np.int32).astype(to) if "int" in dtype and dtype != "int64" else x.astype(to)


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, F(1) / (F(1) + e), e / (F(1) + e))


def erf(x: np.ndarray) -> np.ndarray:
    values = [math.erf(v) for v in x.astype(float).ravel()]
    return np.array(values).reshape(x.shape).astype(x.dtype)


_OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "max": np.maximum,
    "min": np.minimum,
    "round": np.round,
    "erf": erf,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "select": np.where,
}


def run_body(body, values):
    """The results of a scalar body on arrays."""
    values = list(values)
    for instr in body.instrs:
        args = [values[a] for a in instr.args]
        if instr.op == "const":
            values.append(np.asarray(instr.value).astype(instr.dtype))
        elif instr.op == "cast":
            values.append(_cast(np.asarray(args[0]), instr.dtype))
        else:
            values.append(np.asarray(_OPS[instr.op](*args)))
    return [values[r] for r in body.results]


def _read(array, axes, index, outside):
    """`array` at every point; `outside` where the index leaves it."""
    where, inside = [], True
    for axis, extent in zip(axes, array.shape, strict=True):
        i = np.asarray(axis.offset)
        for d, k in axis.terms:
            i = i + k * index[d]
        inside = inside & (i >= 0) & (i < extent)
        where.append(np.clip(i, 0, extent - 1))
    return np.where(inside, array[tuple(np.broadcast_arrays(*where))], outside)


def product(op, arrays) -> list[np.ndarray]:
    """The results of a te.contract of integers."""
    domain = op.domain.data
    extents = [d.extent for d in domain.dims]
    rank = len(extents)
    index = [
        np.arange(n).reshape([-1 if j == d else 1 for j in range(rank)])
        for d, n in enumerate(extents)
    ]
    zeros = [0, 0] if op.zeros is None else [int(z) for z in op.zeros.get_values()]
    kept = {d for axes in domain.results for axis in axes for d, _ in axis.terms}
    summed = tuple(d for d in range(rank) if d not in kept)
    acc = np.zeros([1 if d in summed else n for d, n in enumerate(extents)], np.int64)
    # One index of the first summed dimension at a time: the whole domain may be large.
    first = summed[0] if summed else None
    for step in range(extents[first] if first is not None else 1):
        at = list(index)
        if first is not None:
            at[first] = np.asarray(step).reshape([1] * rank)
        factors = [
            _read(np.asarray(a).astype(np.int64), axes, at, z) - z
            for a, axes, z in zip(arrays[:2], domain.operands[:2], zeros, strict=True)
        ]
        terms = np.broadcast_to(
            factors[0] * factors[1],
            [1 if d == first else n for d, n in enumerate(extents)],
        )
        acc += terms.sum(axis=summed, keepdims=True) if summed else terms
    assert np.abs(acc).max(initial=0) < 2**31
    results = [acc.astype(np.int32)]
    if op.epilogue is not None:
        plain = [0 if d in summed else index[d] for d in range(rank)]
        extra = [
            _read(np.asarray(a), axes, plain, 0)
            for a, axes in zip(arrays[2:], domain.operands[2:], strict=True)
        ]
        extra = [e.astype(np.asarray(a).dtype) for e, a in zip(extra, arrays[2:], strict=True)]
        results = run_body(op.epilogue.data, [results[0], *extra])
    packed = []
    for value, axes, out in zip(results, domain.results, op.outs, strict=True):
        shape = out.type.get_shape()
        full = [1 if d in summed else n for d, n in enumerate(extents)]
        result = np.zeros(shape, value.dtype)
        where = [
            np.broadcast_to(
                sum((k * index[d] for d, k in axis.terms), np.asarray(axis.offset)), full
            )
            for axis in axes
        ]
        result[tuple(where)] = np.broadcast_to(value, full)
        packed.append(result)
    return packed


# ---------------------------------------------------------------------- a Llama, by hand


@dataclass(frozen=True)
class Shape:
    """A decoder: heads, key and value heads, and the factors that Granite has."""

    heads: int
    kv_heads: int
    epsilon: float
    embedding: float = 1.0
    residual: float = 1.0
    scores: float = 0.25
    logits: float = 1.0


@dataclass(frozen=True)
class Layer:
    """Weights as (integers, steps of the columns), and the steps of one layer."""

    norm: tuple[np.ndarray, np.ndarray]
    weights: dict[str, tuple[np.ndarray, np.ndarray]]
    steps: dict[str, float]


def integers(x, step, low, high):
    """Integers of numbers."""
    return np.clip(np.round(x / F(step)), low, high).astype(np.int64)


def rms(x, g, eps):
    variance = (x * x).sum(axis=-1, keepdims=True) / F(x.shape[-1])
    return x * (F(1) / np.sqrt(variance + F(eps))) * g


def matmul(q, step, weight):
    """float32(exact sum) · (step · steps of the columns)."""
    whole, steps = weight
    return (q @ whole).astype(F) * (F(step) * steps)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = np.concatenate([x[..., half:] * F(-1), x[..., :half] * F(1)], axis=-1)
    return x * cos + turned * sin


def decode(shape: Shape, layers, table, norm, head, inputs, frequencies, act, out_bits, out_step):
    """(logits, integers of keys and values a layer) of one token; `act` is the range of the
    activations' integers and of the cache, `out_bits` those of SiLU and of the output layer."""
    ids, positions = inputs["input_ids"], inputs["position_ids"]
    batch = ids.shape[0]
    low, high = act
    wide = (-(2 ** (out_bits - 1)), 2 ** (out_bits - 1) - 1)
    h = table[ids[:, 0]] * F(shape.embedding)
    angle = frequencies[None] * positions.astype(F)
    angle = np.concatenate([angle, angle], axis=-1)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    caches = []
    for i, layer in enumerate(layers):
        s, w = layer.steps, layer.weights
        x = integers(rms(h, layer.norm[0], shape.epsilon), s["attention"], low, high)
        q, k, v = (matmul(x, s["attention"], w[n]).reshape(batch, -1, 16) for n in "qkv")
        keys, values = (
            np.concatenate(
                [
                    integers(inputs[f"past_key_values.{i}.{name}"], s[name], low, high),
                    integers(new, s[name], low, high)[:, :, None],
                ],
                axis=2,
            )
            for name, new in (("key", rotate(k, cos, sin)), ("value", v))
        )
        caches.append((keys, values))
        group = shape.heads // shape.kv_heads
        query = integers(rotate(q, cos, sin), s["query"], low, high)
        scores = np.einsum("bhd,bhtd->bht", query, keys.repeat(group, 1)).astype(F)
        scores = scores * (F(s["query"]) * F(s["key"])) * F(shape.scores)
        top = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        p = integers(weights, s["weights"], 0, high - low)
        mixed = np.einsum("bht,bhtd->bhd", p, values.repeat(group, 1)).astype(F)
        mixed = (mixed * (F(s["weights"]) * F(s["value"]))).reshape(batch, -1)
        o = matmul(integers(mixed, s["o"], low, high), s["o"], w["o"])
        h = h + (o if shape.residual == 1 else o * F(shape.residual))
        x = integers(rms(h, layer.norm[1], shape.epsilon), s["mlp"], low, high)
        gate, up = (matmul(x, s["mlp"], w[n]) for n in ("gate", "up"))
        gate = integers(gate, s["silu"], *wide).astype(F) * F(s["silu"])
        act_up = gate * sigmoid(gate) * up
        down = matmul(integers(act_up, s["down"], low, high), s["down"], w["down"])
        h = h + (down if shape.residual == 1 else down * F(shape.residual))
    x = integers(rms(h, norm, shape.epsilon), out_step, *wide)
    logits = matmul(x, out_step, head)
    return (logits if shape.logits == 1 else logits / F(shape.logits)), caches
