"""Builds random ONNX graphs node by node, each evaluated as it is added.

The arrays say which shapes and types there are, so a generator of an operator needs no shape
inference of its own; a node that ONNX's evaluators refuse is left out again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

OPSET = 23
DIMS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 0)
"""Extents: ones, primes, powers of two; nothing comes last, which is drawn least."""
MOST_ELEMENTS = 3000
LARGEST = 1e4
"""Nodes whose results go beyond this are left out: products of such numbers say little."""

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
F64 = np.dtype(np.float64)
I8, U8, I32, I64, BOOL = (np.dtype(t) for t in (np.int8, np.uint8, np.int32, np.int64, np.bool_))
FLOATS = (F32, F32, F32, F16)
INTS = (I64, I32)

T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """A tensor of the graph with its elements. `exact`: computed without rounding, so that what
    jumps (a comparison, a rounding, the place of a maximum) is the same wherever it is computed."""

    name: str
    array: np.ndarray
    exact: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def rank(self) -> int:
        return self.array.ndim


class Refused(Exception):
    """A node that the evaluators do not take, or whose numbers are of no use."""


@dataclass
class Builder:
    """A graph under construction. `draw` is Hypothesis's."""

    draw: st.DrawFn
    opset: int = OPSET
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    kept: set[str] = field(default_factory=set)
    """Values that subgraphs read."""

    # ------------------------------------------------------------------ drawing

    def choose(self, items: Sequence[T]) -> T:
        """One of some items; shrinks to the first."""
        return self.draw(st.sampled_from(list(items)))

    def flag(self) -> bool:
        """Yes or no."""
        return self.draw(st.booleans())

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.draw(st.integers(low, high))

    def shape(self, rank: int | None = None, most: int = 4, empty: bool = True) -> tuple[int, ...]:
        """A shape of few elements."""
        rank = self.number(0, most) if rank is None else rank
        result: list[int] = []
        left = MOST_ELEMENTS
        for _ in range(rank):
            extent = self.choose([d for d in (DIMS if empty else DIMS[:-1]) if d <= left])
            result.append(extent)
            left //= max(extent, 1)
        return tuple(result)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any], form: str = "normal") -> np.ndarray:
        """Elements. form: normal, positive, unit (-1 to 1) or small (whole numbers with ties)."""
        rng = np.random.default_rng(self.number(0, 999))
        if dtype == BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            low = 0 if dtype.kind == "u" or form == "positive" else -4
            return rng.integers(low, 6, shape).astype(dtype)
        plain = rng.standard_normal(shape)
        if form == "positive":
            plain = np.abs(plain) + 0.25
        elif form == "unit":
            plain = np.clip(plain / 3, -0.95, 0.95)
        elif form == "small":
            plain = np.round(plain * 1.5)
        return np.asarray(plain).astype(dtype)

    # ------------------------------------------------------------------ values

    def leaf(
        self,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        form: str = "normal",
        *,
        array: np.ndarray | None = None,
        weight: bool | None = None,
    ) -> Value:
        """A new graph input, or an initializer (weight: which; None: either)."""
        given = self.array(shape, dtype, form) if array is None else array
        weight = self.flag() if weight is None else weight
        store = self.weights if weight else self.inputs
        name = f"{'w' if weight else 'x'}{len(store)}"
        store[name] = given
        value = Value(name, given, True)
        self.values.append(value)
        return value

    def constant(self, items: Any, dtype: np.dtype[Any] = I64) -> Value:
        """An initializer of given elements, which no other node takes."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(items, dtype)
        return Value(name, self.weights[name], True)

    def pick(
        self,
        dtypes: Sequence[np.dtype[Any]] = FLOATS,
        *,
        rank: int | None = None,
        least: int = 0,
        exact: bool = False,
        form: str = "normal",
        empty: bool = True,
        where: Callable[[Value], bool] = lambda v: True,
    ) -> Value:
        """A value that there is, or a new leaf: of one of the types, of a rank (at least `least`),
        exact if that matters, non-empty if that does."""

        def fits(v: Value) -> bool:
            return (
                v.dtype in dtypes
                and (v.rank == rank if rank is not None else v.rank >= least)
                and (v.exact or not exact)
                and (empty or v.array.size > 0)
                and _has(v.array, form)
                and where(v)
            )

        found = [v for v in self.values if fits(v)]
        if found and self.number(0, 5):
            return self.choose(found[::-1])
        for _ in range(4):
            size = self.shape(rank, empty=empty) if rank is not None else self._least(least, empty)
            value = self.leaf(size, self.choose(dtypes), form)
            if where(value):
                return value
        raise Refused("no such value")

    def _least(self, least: int, empty: bool) -> tuple[int, ...]:
        return self.shape(self.number(least, max(4, least)), empty=empty)

    def like(self, value: Value, form: str = "normal") -> Value:
        """Something that broadcasts with `value`, of its type: a value that does, or a leaf."""
        found = [
            v
            for v in self.values
            if v.dtype == value.dtype and _broadcasts(v, value) and _has(v.array, form)
        ]
        if found and self.flag():
            return self.choose(found[::-1])
        keep = self.number(0, value.rank)
        shape = [n if self.flag() else 1 for n in value.shape[keep:]]
        return self.leaf(shape, value.dtype, form)

    # ------------------------------------------------------------------ nodes

    def node(
        self,
        op: str,
        ins: Sequence[Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        exact: bool = False,
        domain: str = "",
    ) -> list[Value]:
        """Adds a node. exact: its results are, if its operands were. Raises Refused."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(
            op,
            [v.name if v is not None else "" for v in ins],
            names,
            name=f"n{len(self.nodes)}_{op}",
            domain=domain,
            **(attributes or {}),
        )
        given = {v.name: v.array for v in ins if v is not None}
        arrays = run_nodes([node], given, names, self.opset)
        for array in arrays:
            if not isinstance(array, np.ndarray) or array.size > 4 * MOST_ELEMENTS:
                raise Refused(f"{op} yields no tensor of few elements")
            plain = array.astype(np.float64) if array.dtype.kind in "fV" else array
            if array.dtype.kind in "fV" and not (
                np.isfinite(plain).all() and np.abs(plain).max(initial=0) < LARGEST
            ):
                raise Refused(f"{op} yields numbers that are not finite, or large")
            if array.dtype.kind in "iu" and np.abs(array.astype(np.float64)).max(initial=0) > 2**30:
                raise Refused(f"{op} yields large integers")
        self.nodes.append(node)
        kept = exact and all(v is None or v.exact for v in ins)
        new = [
            Value(n, a, kept or a.dtype.kind not in "fV")
            for n, a in zip(names, arrays, strict=True)
        ]
        self.values += new
        self.operators[f"{domain}:{op}" if domain else op] += 1
        return new

    # ------------------------------------------------------------------ the result

    def model(self) -> onnx.ModelProto:
        """The graph: its outputs are what no node reads, and sometimes more."""
        read = {name for node in self.nodes for name in node.input} | self.kept
        made = [v for v in self.values if v.name in {o for n in self.nodes for o in n.output}]
        outputs = [v for v in made if v.name not in read or self.number(0, 4) == 4]
        self.outputs = [v.name for v in outputs]
        used = read | set(self.outputs)
        self.inputs = {n: a for n, a in self.inputs.items() if n in used}
        self.weights = {n: a for n, a in self.weights.items() if n in used}
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [_info(n, a) for n, a in self.inputs.items()],
            [_info(v.name, v.array) for v in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.weights.items()],
        )
        return helper.make_model(
            graph, opset_imports=imports(self.nodes, self.opset), ir_version=10
        )


def _has(array: np.ndarray, form: str) -> bool:
    """Whether elements are in the domain that a form stands for."""
    if form not in ("positive", "unit"):
        return True
    plain = array.astype(np.float64)
    if form == "positive":
        return bool((plain > 0.05).all())
    return bool((np.abs(plain) <= 0.95).all())


def _broadcasts(a: Value, b: Value) -> bool:
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return int(np.prod(shape)) <= 2 * MOST_ELEMENTS


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, element, list(array.shape))


def imports(nodes: Sequence[onnx.NodeProto], opset: int) -> list[onnx.OperatorSetIdProto]:
    """The opsets that nodes need."""
    domains = sorted({n.domain for n in nodes} - {""})
    return [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]


def run_nodes(
    nodes: Sequence[onnx.NodeProto],
    given: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    opset: int = OPSET,
) -> list[np.ndarray]:
    """Values of a few nodes by ONNX's reference evaluator, or by onnxruntime where that has no
    implementation. Raises Refused."""
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph(
        list(nodes),
        "piece",
        [_info(n, a) for n, a in given.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
    )
    model = helper.make_model(graph, opset_imports=imports(nodes, opset), ir_version=10)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            results = ReferenceEvaluator(model).run(None, dict(given))  # pyright: ignore
            return [np.asarray(r) if isinstance(r, np.generic) else r for r in results]  # pyright: ignore
        except Exception as error:  # whatever its operators raise: the node is no good
            results = run_onnxruntime(model, given)
            if results is None:
                raise Refused(f"{nodes[0].op_type}: {error}") from None
            return results


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray] | None:
    """Outputs by onnxruntime without optimisations, None where it refuses the model."""
    import onnxruntime

    if any(a.dtype.kind == "V" for a in inputs.values()):
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, dict(inputs))
    except Exception:  # its exceptions share no base class with anything
        return None
    if not all(isinstance(r, np.ndarray) for r in results):
        return None
    return [np.asarray(r) for r in results]
