"""Scalar bodies: the straight-line programs inside `te.map` and epilogues.

A body is a tuple of instructions in static single assignment: values 0 … inputs-1 are the inputs,
and instruction i defines value inputs + i. It is data (hashable, printable), evaluated here on
numpy arrays element by element, and emitted as C by the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

ArrayFn = Callable[..., np.ndarray]


@dataclass(frozen=True, slots=True)
class Instr:
    """`op` applied to earlier values. `value` is a constant's value; `dtype` a cast's or a
    constant's element type (a numpy or ml_dtypes name)."""

    op: str
    args: tuple[int, ...] = ()
    value: float | int | bool | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A straight-line program of `inputs` inputs; `results` are the values it yields."""

    inputs: int
    instrs: tuple[Instr, ...]
    results: tuple[int, ...]

    @property
    def flops(self) -> float:
        """Operations a point: casts, constants and selections are free."""
        free = {"cast", "const", "select", "identity"}
        return float(sum(i.op not in free for i in self.instrs))

    @property
    def is_identity(self) -> bool:
        """Whether the body yields its single input unchanged."""
        return not self.instrs and self.results == (0,)


@lru_cache(maxsize=256)
def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype called `name`; the ml_dtypes types (bfloat16, int4, float8…) included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


@lru_cache(maxsize=256)
def is_float(name: str) -> bool:
    """Whether `name` is a floating-point type."""
    dtype = dtype_of(name)
    return dtype.kind == "f" or (dtype.kind == "V" and "int" not in dtype.name)


def _erf(x: np.ndarray) -> np.ndarray:
    # scipy is not a dependency: math.erf element by element is exact, in float64.
    from math import erf

    made = np.fromiter(map(erf, x.ravel().tolist()), np.float64, x.size)
    return made.astype(x.dtype).reshape(x.shape)


def _wide(fn: ArrayFn) -> ArrayFn:
    """Evaluate a transcendental of a narrow float in float32, as the hardware does."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        dtype = arrays[0].dtype
        if dtype.itemsize < 4 and dtype.kind not in "iub":
            return fn(*(a.astype(np.float32) for a in arrays)).astype(dtype)
        return fn(*arrays)

    return apply


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of what is at most 0 never overflows: 1 / (1 + e) or e / (1 + e), without a choice.
    zero, one = _zero_and_one(x.dtype)
    if not x.ndim or x.dtype.kind != "f":
        return np.asarray(np.exp(np.minimum(x, zero)) / (np.exp(-np.abs(x)) + one))
    below, above = np.abs(x), np.minimum(x, zero)
    np.exp(np.negative(below, out=below), out=below)
    np.add(below, one, out=below)
    np.exp(above, out=above)
    return np.divide(above, below, out=above)


@lru_cache(maxsize=64)
def _zero_and_one(dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    # numpy takes such arrays in a third of the time that it takes for Python's numbers.
    return np.zeros((), dtype), np.ones((), dtype)


def _integer_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return a / b
    # C semantics: truncation toward zero.
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe)
    return (quotient * np.sign(a) * np.sign(safe)).astype(a.dtype)


def _integer_mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    safe = np.where(b == 0, 1, b) if a.dtype.kind in "iu" else b
    return np.mod(a, safe).astype(a.dtype)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.power(a, np.maximum(b, 0).astype(a.dtype))
    return np.power(a, b).astype(a.dtype)


SCALAR_OPS: dict[str, tuple[int, ArrayFn]] = {
    # name: (arity, numpy semantics). Results keep the first operand's dtype unless bool.
    "abs": (1, np.abs),
    "acos": (1, _wide(np.arccos)),
    "acosh": (1, _wide(np.arccosh)),
    "add": (2, np.add),
    "and": (2, np.logical_and),
    "asin": (1, _wide(np.arcsin)),
    "asinh": (1, _wide(np.arcsinh)),
    "atan": (1, _wide(np.arctan)),
    "atanh": (1, _wide(np.arctanh)),
    "bitand": (2, np.bitwise_and),
    "bitnot": (1, np.invert),
    "bitor": (2, np.bitwise_or),
    "bitxor": (2, np.bitwise_xor),
    "ceil": (1, np.ceil),
    "cos": (1, _wide(np.cos)),
    "cosh": (1, _wide(np.cosh)),
    "div": (2, _integer_div),
    "eq": (2, np.equal),
    "erf": (1, _wide(_erf)),
    "exp": (1, _wide(np.exp)),
    "floor": (1, np.floor),
    "fmod": (2, np.fmod),
    "ge": (2, np.greater_equal),
    "gt": (2, np.greater),
    "identity": (1, lambda x: x),
    "isinf": (1, np.isinf),
    "isnan": (1, np.isnan),
    "le": (2, np.less_equal),
    "log": (1, _wide(np.log)),
    "lt": (2, np.less),
    "max": (2, np.maximum),
    "min": (2, np.minimum),
    "mod": (2, _integer_mod),
    "mul": (2, np.multiply),
    "ne": (2, np.not_equal),
    "neg": (1, np.negative),
    "not": (1, np.logical_not),
    "or": (2, np.logical_or),
    "pow": (2, _wide(_pow)),
    "recip": (1, lambda x: (1 / x).astype(x.dtype)),
    "round": (1, np.rint),
    "rsqrt": (1, _wide(lambda x: (1 / np.sqrt(x)).astype(x.dtype))),
    "select": (3, lambda c, a, b: np.where(c, a, b)),
    "shl": (2, np.left_shift),
    "shr": (2, np.right_shift),
    "sigmoid": (1, _wide(_sigmoid)),
    "sign": (1, np.sign),
    "sin": (1, _wide(np.sin)),
    "sinh": (1, _wide(np.sinh)),
    "sqrt": (1, _wide(np.sqrt)),
    "sub": (2, np.subtract),
    "tan": (1, _wide(np.tan)),
    "tanh": (1, _wide(np.tanh)),
    "xor": (2, np.logical_xor),
}

PREDICATES = frozenset(
    {"and", "eq", "ge", "gt", "isinf", "isnan", "le", "lt", "ne", "not", "or", "xor"}
)


def result_dtypes(body: Body, inputs: Sequence[str]) -> list[str]:
    """Element type of every value of `body`, given those of its inputs."""
    types = list(inputs)
    for instr in body.instrs:
        if instr.op in ("cast", "const"):
            assert instr.dtype is not None
            types.append(instr.dtype)
        elif instr.op in PREDICATES:
            types.append("bool")
        elif instr.op == "select":
            types.append(types[instr.args[1]])
        else:
            types.append(types[instr.args[0]])
    return types


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` as `dtype`, as ONNX's Cast does: floats to integers truncate toward zero, to bool
    by comparison with zero."""
    target = dtype_of(dtype)
    if array.dtype == target:
        return array
    if target == np.bool_:
        return array != 0
    if (
        array.dtype.kind == target.kind == "V"
        and "int" in array.dtype.name
        and "int" in target.name
    ):
        # ml_dtypes has no conversion between its own integers (int4, uint4, int2, uint2).
        array = array.astype(np.int8)
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(target)


def evaluate(body: Body, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The yielded arrays. `arrays` broadcast against each other."""
    values: list[np.ndarray] = list(arrays)
    with np.errstate(all="ignore"):
        for instr in body.instrs:
            args = [values[a] for a in instr.args]
            if instr.op == "const":
                assert instr.dtype is not None
                values.append(np.asarray(instr.value).astype(dtype_of(instr.dtype)))
            elif instr.op == "cast":
                assert instr.dtype is not None
                values.append(cast(args[0], instr.dtype))
            else:
                values.append(np.asarray(SCALAR_OPS[instr.op][1](*args)))
    return [values[r] for r in body.results]


def prepared_body(body: Body | None) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """`evaluate` for one body, with its constants made; without a body what it is given. The
    function must be called under `numpy.errstate(all="ignore")`."""
    if body is None:
        return list
    constants: dict[int, np.ndarray] = {}
    steps: list[tuple[ArrayFn | None, tuple[int, ...], str]] = []
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

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = list(arrays)
        for fn, args, dtype in steps:
            if fn is not None:
                values.append(np.asarray(fn(*[values[a] for a in args])))
            elif dtype:
                values.append(cast(values[args[0]], dtype))
            else:
                values.append(constants[len(values)])
        return [values[r] for r in body.results]

    return run
