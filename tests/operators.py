"""Random structured operators and random legal plans of them, for the property tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from helpers import random_array
from hypothesis import strategies as st

from elk_ir.dialects.types import tensor_type
from elk_ir.plan.domain import DimKind, Operator
from elk_ir.plan.plan import (
    Plan,
    Reduce,
    normal_form,
    outer_of,
    plan_errors,
    scatter_candidates,
)

Draw = st.DrawFn
F32, F16, I8, I32, I64 = "float32", "float16", "int8", "int32", "int64"


@dataclass(frozen=True)
class Case:
    """One operation as text, with the types of its operands and results."""

    op: str
    domain: str
    attributes: str
    operands: tuple[tuple[tuple[int, ...], str], ...]
    results: tuple[tuple[tuple[int, ...], str], ...]
    integers: int = 0
    """Operands of integers are drawn below this (indices of a gather)."""

    def text(self, resident: tuple[bool, ...]) -> str:
        """A module that applies the operation ("op") to its arguments; a resident operand passes
        through a copy on chip ("copyN") first."""
        types = [_type(*o) for o in self.operands]
        results = [_type(*r) for r in self.results]
        args = ", ".join(f'%a{i}: {t} {{onnx.name = "a{i}"}}' for i, t in enumerate(types))
        outs = ", ".join(f'{t} {{onnx.name = "r{i}"}}' for i, t in enumerate(results))
        lines: list[str] = []
        names: list[str] = []
        for i, ((shape, _), t) in enumerate(zip(self.operands, types, strict=True)):
            if not resident[i]:
                names.append(f"%a{i}")
                continue
            names.append(f"%c{i}")
            dims = ", ".join(f"d{j} = {n}" for j, n in enumerate(shape))
            axes = "(" + ", ".join(f"d{j}" for j in range(len(shape))) + ")"
            lines.append(
                f"%c{i} = te.map(%a{i}) <({dims}), [{axes}] -> [{axes}]>"
                f' {{body = #te.body<(x0) {{}} -> (x0)>}} : ({t}) -> {t} loc("copy{i}")'
            )
        count = len(results)
        values = "%r" if count == 1 else f"%r:{count}"
        returned = ["%r"] if count == 1 else [f"%r#{i}" for i in range(count)]
        lines.append(
            f"{values} = {self.op}({', '.join(names)}) {self.domain} {self.attributes}"
            f' : ({", ".join(types)}) -> ({", ".join(results)}) loc("op")'
        )
        body = "\n  ".join(lines)
        return (
            f"func.func @main({args}) -> ({outs}) {{\n  {body}\n"
            f"  func.return {', '.join(returned)} : {', '.join(results)}\n}}\n"
        )

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Values of the operands."""
        return [
            rng.integers(-self.integers, self.integers, shape)
            if self.integers and dtype == I64
            else np.asarray(random_array(rng, shape, dtype))
            for shape, dtype in self.operands
        ]

    @property
    def half(self) -> bool:
        """Whether float16 takes part, which is compared less closely."""
        return any(d == F16 for _, d in (*self.operands, *self.results))


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return str(tensor_type(shape, dtype))


def _map(axes: list[str]) -> str:
    return "(" + ", ".join(axes) + ")"


def _extent(draw: Draw, most: int = 12) -> int:
    return draw(st.integers(1, most))


def _shuffled(draw: Draw, items: str) -> list[str]:
    return list(draw(st.permutations(list(items))))


def _float(draw: Draw) -> str:
    return draw(st.sampled_from([F32, F32, F16]))


@st.composite
def contracts(draw: Draw) -> Case:
    """Products with any of: batch dimension, transposed operands, integers, an epilogue."""
    batch = "b" if draw(st.booleans()) else ""
    n = {"b": _extent(draw, 3), "m": _extent(draw, 8), "n": _extent(draw), "k": _extent(draw)}
    used = batch + "mnk"
    a, b, r = (_shuffled(draw, batch + t) for t in ("mk", "kn", "mn"))
    if draw(st.booleans()):
        used += "j"
        n["j"] = _extent(draw, 4)
        a = _shuffled(draw, "".join(a) + "j")
        b = _shuffled(draw, "".join(b) + "j")
    dtype = draw(st.sampled_from([F32, F16, I8]))
    result = I32 if dtype == I8 else draw(st.sampled_from([F32, dtype]))
    operands = [a, b]
    types = [dtype, dtype]
    attributes = ""
    if dtype == F32 and draw(st.booleans()):
        operands.append(_shuffled(draw, draw(st.sampled_from(["n", "m", "mn"]))))
        types.append(F32)
        attributes = "{epilogue = #te.body<(x0, x1) {t0 = add(x0, x1), t1 = tanh(t0)} -> (t1)>}"
    dims = ", ".join(f"{d} = {n[d]}{' reduce' if d in 'kj' else ''}" for d in used)
    maps = ", ".join(_map(o) for o in operands)
    shapes = tuple((tuple(n[d] for d in o), t) for o, t in zip(operands, types, strict=True))
    if result == F16:
        attributes = (
            '{epilogue = #te.body<(x0) {t0 = cast(x0 : "float16")} -> (t0)>}'
            if len(operands) == 2
            else attributes
        )
    return Case(
        "te.contract",
        f"<({dims}), [{maps}] -> [{_map(r)}]>",
        attributes,
        shapes,
        ((tuple(n[d] for d in r), result),),
    )


@st.composite
def convolutions(draw: Draw) -> Case:
    """A product over a window: strides, dilation and padding in an affine index."""
    batch, out, chan, filters = (_extent(draw, n) for n in (2, 9, 4, 6))
    window, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    pad = draw(st.integers(0, window - 1))
    extent = max(1, (out - 1) * stride + (window - 1) * dilation + 1 - 2 * pad)
    kind = draw(st.sampled_from(["local", "reduce"]))
    index = f"{stride}*h + {dilation}*w" + (f" - {pad}" if pad else "")
    dims = f"b = {batch}, f = {filters}, h = {out}, c = {chan} reduce, w = {window} {kind}"
    return Case(
        "te.contract",
        f"<({dims}), [(b, c, {index}), (f, c, w)] -> [(b, f, h)]>",
        "",
        (((batch, chan, extent), F32), ((filters, chan, window), F32)),
        (((batch, filters, out), F32),),
    )


@st.composite
def maps(draw: Draw) -> Case:
    """Elementwise with broadcast and transposition; slices, pads, reversals; merged axes."""
    m, n = _extent(draw), _extent(draw)
    dtype = _float(draw)
    form = draw(st.sampled_from(["broadcast", "move", "merge", "two"]))
    if form == "broadcast":
        other = draw(st.sampled_from([["n"], ["m"], ["n", "m"], []]))
        sizes = {"m": m, "n": n}
        return Case(
            "te.map",
            f"<(m = {m}, n = {n}), [(m, n), {_map(other)}] -> [(m, n)]>",
            "{body = #te.body<(x0, x1) {t0 = mul(x0, x1), t1 = sub(t0, x0)} -> (t1)>}",
            (((m, n), dtype), (tuple(sizes[d] for d in other), dtype)),
            (((m, n), dtype),),
        )
    if form == "move":
        start, stride = draw(st.integers(-2, 2)), draw(st.integers(1, 3))
        falling = draw(st.booleans())
        index = f"{-start + n - 1} - {'' if stride == 1 else f'{stride}*'}n" if falling else None
        sign = "-" if start < 0 else "+"
        index = index or f"{'' if stride == 1 else f'{stride}*'}n {sign} {abs(start)}"
        return Case(
            "te.map",
            f"<(m = {m}, n = {n}), [({index}, m)] -> [(m, n)]>",
            "{body = #te.body<(x0) {} -> (x0)>}",
            (((n, m), dtype),),
            (((m, n), dtype),),
        )
    if form == "merge":
        return Case(
            "te.map",
            f"<(m = {m}, n = {n}, p = 2), [(n, m, p)] -> [(m, {n * 2 // n}*n + p)]>",
            "{body = #te.body<(x0) {} -> (x0)>}",
            (((n, m, 2), dtype),),
            (((m, 2 * n), dtype),),
        )
    return Case(
        "te.map",
        f"<(m = {m}, n = {n}), [(m, n)] -> [(m, n), (n, m)]>",
        "{body = #te.body<(x0) {t0 = neg(x0), t1 = exp(t0)} -> (t0, t1)>}",
        (((m, n), F32),),
        (((m, n), F32), ((n, m), F32)),
    )


@st.composite
def reductions(draw: Draw) -> Case:
    """Sum, product, maximum or minimum, with an epilogue or without."""
    m, n, k = _extent(draw, 6), _extent(draw, 6), _extent(draw)
    combiner = draw(st.sampled_from(["sum", "prod", "max", "min"]))
    source, target = _shuffled(draw, "mnk"), _shuffled(draw, draw(st.sampled_from(["mn", "m"])))
    sizes = {"m": m, "n": n, "k": k}
    kinds = {d: " reduce" if d not in target else "" for d in "mnk"}
    dims = ", ".join(f"{d} = {sizes[d]}{kinds[d]}" for d in "mnk")
    attributes = f"combiner = #te<combiner {combiner}>"
    if draw(st.booleans()):
        attributes += ", epilogue = #te.body<(x0) {t0 = neg(x0)} -> (t0)>"
    return Case(
        "te.reduce",
        f"<({dims}), [{_map(source)}] -> [{_map(target)}]>",
        "{" + attributes + "}",
        ((tuple(sizes[d] for d in source), F32),),
        ((tuple(sizes[d] for d in target), F32),),
    )


@st.composite
def softmaxes(draw: Draw) -> Case:
    """Softmax and log-softmax."""
    m, k = _extent(draw, 8), _extent(draw)
    dtype = _float(draw)
    log = draw(st.sampled_from(["", "{log = true}"]))
    source, target = _shuffled(draw, "mk"), _shuffled(draw, "mk")
    sizes = {"m": m, "k": k}
    return Case(
        "te.softmax",
        f"<(m = {m}, k = {k} reduce), [{_map(source)}] -> [{_map(target)}]>",
        log,
        ((tuple(sizes[d] for d in source), dtype),),
        ((tuple(sizes[d] for d in target), dtype),),
    )


@st.composite
def normalizations(draw: Draw) -> Case:
    """RMS and layer normalisation, with scale and bias."""
    b, m, k = _extent(draw, 3), _extent(draw, 6), _extent(draw)
    form = draw(st.sampled_from(["rms", "layer"]))
    affine = draw(st.sampled_from([[], ["scale"], ["scale", "bias"]]))
    maps = ", ".join(["(b, m, k)", *["(k)"] * len(affine)])
    return Case(
        "te.normalize",
        f"<(b = {b}, m = {m}, k = {k} reduce), [{maps}] -> [(b, m, k)]>",
        f"{{form = #te<norm_form {form}>, epsilon = 1.0e-3 : f64"
        + (f', affine = "{" ".join(affine)}"' if affine else "")
        + "}",
        (((b, m, k), F32), *[((k,), F32)] * len(affine)),
        (((b, m, k), F32),),
    )


@st.composite
def attentions(draw: Draw) -> Case:
    """Grouped-query attention over a split KV length, with a mask or without."""
    b, h, g, q, kv = (_extent(draw, n) for n in (2, 3, 2, 3, 12))
    head, value = draw(st.sampled_from([2, 4])), draw(st.sampled_from([2, 3]))
    dims = f"b = {b}, h = {h}, g = {g}, q = {q}, kv = {kv} reduce, e = {head} local, v = {value}"
    maps = ["(b, h, g, q, e)", "(b, h, kv, e)", "(b, h, kv, v)"]
    types = [((b, h, g, q, head), F32), ((b, h, kv, head), F32), ((b, h, kv, value), F32)]
    if draw(st.booleans()):
        maps.append("(q, kv)")
        types.append(((q, kv), F32))
    return Case(
        "te.attention",
        f"<({dims}), [{', '.join(maps)}] -> [(b, q, h, g, v)]>",
        "{scale = 0.5 : f64}",
        tuple(types),
        (((b, q, h, g, value), F32),),
    )


@st.composite
def gathers(draw: Draw) -> Case:
    """Rows of a table, which may be split over cores."""
    m, d, rows = _extent(draw, 6), _extent(draw, 8), _extent(draw)
    dtype = _float(draw)
    return Case(
        "te.gather",
        f"<(m = {m}, d = {d}, r = {rows} reduce), [(r, d), (m)] -> [(m, d)]>",
        "",
        (((rows, d), dtype), ((m,), I64)),
        (((m, d), dtype),),
        integers=rows,
    )


@st.composite
def concats(draw: Draw) -> Case:
    """Two or three operands along one axis."""
    m = _extent(draw, 6)
    parts = draw(st.lists(st.integers(1, 6), min_size=2, max_size=3))
    total, maps, start = sum(parts), [], 0
    for part in parts:
        maps.append(f"(m, n - {start})" if start else "(m, n)")
        start += part
    return Case(
        "te.concat",
        f"<(m = {m}, n = {total}), [{', '.join(maps)}] -> [(m, n)]>",
        "{dim = 1 : i64}",
        tuple(((m, part), F32) for part in parts),
        (((m, total), F32),),
    )


CASES = {
    "attention": attentions(),
    "concat": concats(),
    "contract": contracts(),
    "convolution": convolutions(),
    "gather": gathers(),
    "map": maps(),
    "normalize": normalizations(),
    "reduce": reductions(),
    "softmax": softmaxes(),
}


# ---------------------------------------------------------------------- plans


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def plans(draw: Draw, op: Operator, cores: int) -> Plan:
    """A legal plan on at most `cores` cores: any grid in normal form, any states, reduction and
    order of rings that `plan_errors` allows."""
    rank = len(op.dims)
    grid = [1] * rank
    left = cores
    for d in draw(st.permutations(range(rank))):
        dim = op.dims[d]
        if dim.kind is DimKind.LOCAL or left == 1:
            continue
        most = max(1, min(left, dim.extent))  # a dimension may be empty
        choices = sorted({normal_form(dim.extent, f) for f in range(1, most + 1)})
        grid[d] = draw(st.sampled_from(choices))
        left //= grid[d]
    ones = (1,) * rank
    reduce = Reduce.ALL if op.broadcasts_back else draw(st.sampled_from(list(Reduce)))
    targets = [
        d for d in scatter_candidates(op) if all(grid[e] >= op.extents[e] for e in outer_of(op, d))
    ]
    scatter = None
    split = prod(grid[d] for d in op.reductions) > 1
    if split and reduce is Reduce.SCATTER:
        if targets:
            scatter = draw(st.sampled_from(targets))
        else:
            reduce = Reduce.ALL
    execute = [ones] * len(op.operands)
    preload = [ones] * len(op.operands)

    def plan(order: tuple[int, ...] | None = None) -> Plan:
        return Plan(tuple(grid), tuple(execute), tuple(preload), reduce, scatter, order)

    while plan_errors(op, plan(), cores):
        # An axis of a result made of several dimensions: give up splits until it is contiguous.
        grid[max(d for d in range(rank) if grid[d] > 1)] = 1
    for v, access in enumerate(op.operands):
        share = prod(grid[d] for d in range(rank) if d not in access.dims)
        if share == 1:
            continue
        factors = [_divisors(share) if d in access.simple else [1] for d in range(rank)]
        vectors = [x for x in product(*factors) if share % prod(x) == 0]
        allowed = []
        for x in vectors:
            execute[v] = preload[v] = x
            if not plan_errors(op, plan(), cores):
                allowed.append(x)
        execute[v] = preload[v] = ones
        if not allowed:
            continue
        # The last of a list is what sampled_from shrinks away from: prefer rings while searching.
        execute[v] = preload[v] = draw(st.sampled_from(allowed))
        finer = []
        for q in vectors:
            preload[v] = tuple(a * b for a, b in zip(execute[v], q, strict=True))
            if not plan_errors(op, plan(), cores):
                finer.append(preload[v])
        preload[v] = draw(st.sampled_from(finer)) if finer else execute[v]
    rings = [d for d in range(rank) if any(x[d] > 1 for x in execute)]
    order = tuple(draw(st.permutations(rings))) if len(rings) > 1 else None
    return plan(order)
