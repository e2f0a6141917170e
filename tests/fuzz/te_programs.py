"""Random te programs: chains of structured operators, so that layouts must change between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from helpers import random_array
from hypothesis import strategies as st

from elk_ir.dialects.types import tensor_type

EXTENTS = (4, 1, 2, 3, 5, 7, 8, 12, 13)
BODIES = (
    "(x0) {t0 = tanh(x0)} -> (t0)",
    "(x0) {t0 = mul(x0, x0), t1 = sub(t0, x0)} -> (t1)",
    "(x0) {} -> (x0)",
)
T = TypeVar("T")
Tensor = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True)
class Program:
    """A module, and its inputs by name."""

    text: str
    inputs: dict[str, np.ndarray]
    operators: Counter[str]


class _Writer:
    """The lines of a function under construction; all tensors have two axes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.reads: list[list[str]] = []
        self.arguments: list[Tensor] = []
        self.values: list[Tensor] = []
        self.operators: Counter[str] = Counter()
        self.rows: dict[str, int] = {}

    def choose(self, items: Sequence[T]) -> T:
        """One of some items; shrinks to the first."""
        return self.draw(st.sampled_from(list(items)))

    def argument(self, shape: tuple[int, ...], dtype: str, rows: int = 0) -> Tensor:
        """A new argument of the function; integers are below `rows`."""
        value = (f"%a{len(self.arguments)}", shape, dtype)
        self.arguments.append(value)
        self.rows[value[0]] = rows
        return value

    def operand(self, dtype: str = "float32") -> Tensor:
        """A value that there is, or an argument."""
        found = [v for v in self.values if v[2] == dtype]
        if found and self.draw(st.integers(0, 4)):
            return self.choose(found[::-1])
        return self.argument((self.choose(EXTENTS), self.choose(EXTENTS)), dtype)

    def op(
        self,
        name: str,
        domain: str,
        attributes: str,
        ins: list[Tensor],
        outs: list[tuple[tuple[int, ...], str]],
    ) -> None:
        """A line, whose results become values."""
        number = len(self.lines)
        results = [
            (f"%v{number}" + (f"#{i}" if len(outs) > 1 else ""), *o) for i, o in enumerate(outs)
        ]
        left = f"%v{number}" + (f":{len(outs)}" if len(outs) > 1 else "")
        types = ", ".join(_type(v[1], v[2]) for v in ins)
        made = ", ".join(_type(*o) for o in outs)
        names = ", ".join(v[0] for v in ins)
        self.lines.append(
            f"{left} = {name}({names}) {domain} {attributes}"
            f' : ({types}) -> ({made}) loc("op{number}")'
        )
        self.reads.append([v[0] for v in ins])
        self.values += results
        self.operators[name] += 1


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return str(tensor_type(shape, dtype))


def _axes(w: _Writer, source: Tensor, kinds: dict[str, str]) -> tuple[str, str, str]:
    """(dimensions of the domain, the source's map, a map of both dimensions in either order)."""
    (m, n), out = source[1], w.choose(["(m, n)", "(n, m)"])
    dims = f"m = {m}{kinds.get('m', '')}, n = {n}{kinds.get('n', '')}"
    return dims, "(m, n)", out


def _shape(source: Tensor, out: str) -> tuple[int, ...]:
    return source[1] if out == "(m, n)" else source[1][::-1]


def map_(w: _Writer) -> None:
    x = w.operand()
    dims, here, out = _axes(w, x, {})
    if w.draw(st.booleans()):
        axes = w.choose(["(n)", "(m)", "(m, n)"])
        other = w.argument(
            tuple({"m": x[1][0], "n": x[1][1]}[c] for c in axes if c in "mn"), "float32"
        )
        w.op(
            "te.map",
            f"<({dims}), [{here}, {axes}] -> [{out}]>",
            "{body = #te.body<(x0, x1) {t0 = mul(x0, x1), t1 = add(t0, x0)} -> (t1)>}",
            [x, other],
            [(_shape(x, out), "float32")],
        )
        return
    body = w.choose(BODIES)
    w.op(
        "te.map",
        f"<({dims}), [{here}] -> [{out}]>",
        f"{{body = #te.body<{body}>}}",
        [x],
        [(_shape(x, out), "float32")],
    )


def contract(w: _Writer) -> None:
    x = w.operand()
    m, k = x[1]
    n = w.choose(EXTENTS)
    swap, out = w.draw(st.booleans()), w.choose(["(m, n)", "(n, m)"])
    weight = w.argument((n, k) if swap else (k, n), "float32")
    there = "(n, k)" if swap else "(k, n)"
    domain = f"<(m = {m}, n = {n}, k = {k} reduce), [(m, k), {there}] -> [{out}]>"
    w.op(
        "te.contract", domain, "", [x, weight], [((m, n) if out == "(m, n)" else (n, m), "float32")]
    )


def reduce(w: _Writer) -> None:
    """Over a dimension; the result gets a second axis of one by a dimension of extent 1."""
    x = w.operand()
    combiner = w.choose(["sum", "max", "min", "prod"])
    m, n = x[1]
    w.op(
        "te.reduce",
        f"<(m = {m}, n = {n} reduce, o = 1), [(m, n)] -> [(m, o)]>",
        f"{{combiner = #te<combiner {combiner}>}}",
        [x],
        [((m, 1), "float32")],
    )


def softmax(w: _Writer) -> None:
    x = w.operand()
    dims, here, out = _axes(w, x, {"n": " reduce"})
    log = w.choose(["", "{log = true}"])
    w.op("te.softmax", f"<({dims}), [{here}] -> [{out}]>", log, [x], [(_shape(x, out), "float32")])


def normalize(w: _Writer) -> None:
    x = w.operand()
    dims, here, out = _axes(w, x, {"n": " reduce"})
    form = w.choose(["rms", "layer"])
    scale = w.argument((x[1][1],), "float32")
    w.op(
        "te.normalize",
        f"<({dims}), [{here}, (n)] -> [{out}]>",
        f'{{form = #te<norm_form {form}>, epsilon = 1.0e-2 : f64, affine = "scale"}}',
        [x, scale],
        [(_shape(x, out), "float32")],
    )


def attention(w: _Writer) -> None:
    query = w.operand()
    q, e = query[1]
    kv, v = w.choose(EXTENTS), w.choose(EXTENTS[:5])
    key, value = w.argument((kv, e), "float32"), w.argument((kv, v), "float32")
    domain = (
        f"<(q = {q}, kv = {kv} reduce, e = {e} local, v = {v}),"
        " [(q, e), (kv, e), (kv, v)] -> [(q, v)]>"
    )
    w.op("te.attention", domain, "{scale = 0.5 : f64}", [query, key, value], [((q, v), "float32")])


def gather(w: _Writer) -> None:
    x = w.operand()
    rows, d = x[1]
    m = w.choose(EXTENTS)
    index = w.argument((m,), "int64", rows)
    domain = f"<(m = {m}, d = {d}, r = {rows} reduce), [(r, d), (m)] -> [(m, d)]>"
    w.op("te.gather", domain, "", [x, index], [((m, d), "float32")])


def scatter(w: _Writer) -> None:
    x = w.operand()
    rows, d = x[1]
    u = w.choose(EXTENTS)
    index, updates = w.argument((u,), "int64", rows), w.argument((u, d), "float32")
    mode = w.choose(["set", "add", "mul", "max", "min"])
    domain = f"<(r = {rows}, d = {d}, u = {u} reduce), [(r, d), (u), (u, d)] -> [(r, d)]>"
    attributes = f"{{rows = 0 : i64, update = #te<update {mode}>}}"
    w.op("te.scatter", domain, attributes, [x, index, updates], [((rows, d), "float32")])


def concat(w: _Writer) -> None:
    x = w.operand()
    m, n = x[1]
    more = w.choose(EXTENTS)
    y = w.argument((m, more), "float32")
    domain = f"<(m = {m}, n = {n + more}), [(m, n), (m, n - {n})] -> [(m, n)]>"
    w.op("te.concat", domain, "{dim = 1 : i64}", [x, y], [((m, n + more), "float32")])


def scan(w: _Writer) -> None:
    x = w.operand()
    dims, here, out = _axes(w, x, {"n": " local"})
    flags = w.choose(["", ", exclusive = true", ", reverse = true"])
    attributes = f"{{n = 1 : i64, combiner = #te<combiner sum>{flags}}}"
    w.op(
        "te.scan",
        f"<({dims}), [{here}] -> [{out}]>",
        attributes,
        [x],
        [(_shape(x, out), "float32")],
    )


def topk(w: _Writer) -> None:
    """Of an argument: what is computed may round one way or the other."""
    m, n = w.choose(EXTENTS), w.choose(EXTENTS)
    x = w.argument((m, n), "float32")
    k = w.draw(st.integers(1, n))
    domain = f"<(m = {m}, n = {n} local, k = {k} local), [(m, n)] -> [(m, k), (m, k)]>"
    small = w.choose(["", ", smallest = true"])
    w.op(
        "te.topk",
        domain,
        f"{{n = 1 : i64, k = 2 : i64{small}}}",
        [x],
        [((m, k), "float32"), ((m, k), "int64")],
    )


def argreduce(w: _Writer) -> None:
    m, n = w.choose(EXTENTS), w.choose(EXTENTS)
    x = w.argument((m, n), "float32")
    flags = w.choose(["", "{last = true}", "{smallest = true}"])
    w.op(
        "te.argreduce",
        f"<(m = {m}, n = {n} reduce), [(m, n)] -> [(m)]>",
        flags,
        [x],
        [((m,), "int64")],
    )


def quantize(w: _Writer) -> None:
    """To integers and back, with one step or a step a row."""
    m, n = w.choose(EXTENTS), w.choose(EXTENTS)
    x = w.argument((m, n), "float32")
    zero = w.choose([0, 3])
    domain = f"<(m = {m}, n = {n}), [(m, n)] -> [(m, n)]>"
    attributes = f"{{step = 0.25 : f64, zero = {zero} : i64}}"
    w.op("te.quantize", domain, attributes, [x], [((m, n), "int8")])
    w.op("te.dequantize", domain, attributes, [w.values[-1]], [((m, n), "float32")])


GENERATORS: dict[str, Callable[[_Writer], None]] = {
    "te.argreduce": argreduce,
    "te.attention": attention,
    "te.concat": concat,
    "te.contract": contract,
    "te.dequantize": quantize,
    "te.gather": gather,
    "te.map": map_,
    "te.normalize": normalize,
    "te.quantize": quantize,
    "te.reduce": reduce,
    "te.scan": scan,
    "te.scatter": scatter,
    "te.softmax": softmax,
    "te.topk": topk,
}
"""One for each structured operator of te (tests compare it with the dialect)."""

KINDS = [*sorted(GENERATORS), "te.contract", "te.contract", "te.map"]


@st.composite
def programs(draw: st.DrawFn, most: int = 4) -> Program:
    """Up to `most` operators; what no other reads is returned, and sometimes more."""
    w = _Writer(draw)
    for _ in range(draw(st.integers(1, most))):
        GENERATORS[draw(st.sampled_from(KINDS))](w)
    read = {name for line in w.reads for name in line}
    outputs = [v for v in w.values if v[0] not in read or draw(st.integers(0, 4)) == 4]
    arguments = ", ".join(
        f'{n}: {_type(s, t)} {{onnx.name = "{n[1:]}"}}' for n, s, t in w.arguments
    )
    results = ", ".join(
        f'{_type(s, t)} {{onnx.name = "r{i}"}}' for i, (_, s, t) in enumerate(outputs)
    )
    names, types = ", ".join(v[0] for v in outputs), ", ".join(_type(v[1], v[2]) for v in outputs)
    body = "\n  ".join(w.lines)
    text = (
        f"func.func @main({arguments}) -> ({results}) {{\n  {body}\n"
        f"  func.return {names} : {types}\n}}\n"
    )
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    inputs = {
        name[1:]: rng.integers(-w.rows[name], w.rows[name], shape)
        if w.rows[name]
        else random_array(rng, shape, dtype)
        for name, shape, dtype in w.arguments
    }
    return Program(text, inputs, w.operators)
