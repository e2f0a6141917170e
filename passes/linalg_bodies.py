"""Scalar regions of upstream MLIR (arith, math) as bodies of `te`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects.types import dtype_name
from elk_ir.numerics.scalars import BodyBuilder, Number, Scalar
from elk_ir.passes.onnx_lowerings.context import Unsupported

Env = dict[SSAValue, Scalar]
Translate = Callable[..., Scalar]

_SAME = {
    "arith.addf": "add", "arith.addi": "add", "arith.divf": "div", "arith.divsi": "div",
    "arith.maximumf": "max", "arith.maxsi": "max", "arith.minimumf": "min", "arith.minsi": "min",
    "arith.mulf": "mul", "arith.muli": "mul", "arith.negf": "neg", "arith.remf": "fmod",
    "arith.remsi": "fmod", "arith.select": "select", "arith.shli": "shl", "arith.shrsi": "shr",
    "arith.subf": "sub", "arith.subi": "sub", "math.absf": "abs", "math.absi": "abs",
    "math.acos": "acos", "math.acosh": "acosh", "math.asin": "asin", "math.asinh": "asinh",
    "math.atan": "atan", "math.atanh": "atanh", "math.ceil": "ceil", "math.cos": "cos",
    "math.cosh": "cosh", "math.erf": "erf", "math.exp": "exp", "math.floor": "floor",
    "math.log": "log", "math.powf": "pow", "math.roundeven": "round", "math.rsqrt": "rsqrt",
    "math.sin": "sin", "math.sinh": "sinh", "math.sqrt": "sqrt", "math.tan": "tan",
    "math.tanh": "tanh",
}  # fmt: skip

_CASTS = frozenset(
    {
        "arith.extf", "arith.extsi", "arith.fptosi", "arith.index_cast", "arith.sitofp",
        "arith.truncf", "arith.trunci",
    }
)  # fmt: skip
WIDENING = frozenset({"arith.extf", "arith.extsi"})
"""Casts that a factor of a product may go through: the product is exact in the wider type."""

_UNSIGNED_CASTS = frozenset({"arith.extui", "arith.uitofp"})
_LOGIC = {"arith.andi": "and", "arith.ori": "or", "arith.xori": "xor"}


def _nan(b: BodyBuilder, x: Scalar, y: Scalar) -> Scalar:
    return b.apply("or", b.apply("isnan", x), b.apply("isnan", y))


def _number_of(op: str) -> Translate:
    """`maxnumf` and `minnumf`: the other operand where one is NaN."""

    def apply(b: BodyBuilder, x: Scalar, y: Scalar) -> Scalar:
        either = b.apply("select", b.apply("isnan", y), x, b.apply(op, x, y))
        return b.apply("select", b.apply("isnan", x), y, either)

    return apply


def _away(b: BodyBuilder, x: Scalar) -> Scalar:
    """Half away from zero, with the sign of zero kept."""
    return b.apply("sign", x) * b.apply("floor", b.apply("abs", x) + 0.5)


def _log1p(b: BodyBuilder, x: Scalar) -> Scalar:
    """log(1 + x) without losing the digits of a small x: log(u) x / (u - 1) for the rounded u."""
    u = x + 1.0
    log = b.apply("log", u)
    kept = b.apply("select", b.apply("isinf", u), log, log * (x / (u - 1.0)))
    return b.apply("select", b.apply("eq", u, 1.0), x, kept)


def _expm1(b: BodyBuilder, x: Scalar) -> Scalar:
    """exp(x) - 1 likewise: (u - 1) x / log(u) for the rounded u = exp(x)."""
    u = b.apply("exp", x)
    exact = (u - 1.0) * (x / b.apply("log", u))
    far = b.apply("or", b.apply("isinf", u), b.apply("eq", u, 0.0))
    kept = b.apply("select", far, u - 1.0, exact)
    return b.apply("select", b.apply("eq", u, 1.0), x, kept)


_COMPOSED: dict[str, Translate] = {
    "arith.maxnumf": _number_of("max"),
    "arith.minnumf": _number_of("min"),
    "math.exp2": lambda b, x: b.apply("exp", x * math.log(2)),
    "math.fma": lambda b, x, y, z: x * y + z,
    "math.log10": lambda b, x: b.apply("log", x) * (1 / math.log(10)),
    "math.log1p": _log1p,
    "math.log2": lambda b, x: b.apply("log", x) * (1 / math.log(2)),
    "math.expm1": _expm1,
    "math.round": _away,
    "math.trunc": lambda b, x: b.apply("sign", x) * b.apply("floor", b.apply("abs", x)),
}

_SIGNED = ("eq", "ne", "lt", "le", "gt", "ge")
"""Predicates 0 to 5 of arith.cmpi; the others are unsigned."""


def _unordered(op: str) -> Translate:
    return lambda b, x, y: b.apply("not", b.apply(op, x, y))


# Predicates of arith.cmpf by number. numpy's comparisons are ordered, its `ne` unordered.
_FLOAT: tuple[Translate, ...] = (
    lambda b, x, y: b.const(False, "bool"),
    lambda b, x, y: b.apply("eq", x, y),
    lambda b, x, y: b.apply("gt", x, y),
    lambda b, x, y: b.apply("ge", x, y),
    lambda b, x, y: b.apply("lt", x, y),
    lambda b, x, y: b.apply("le", x, y),
    lambda b, x, y: b.apply("or", b.apply("lt", x, y), b.apply("gt", x, y)),
    lambda b, x, y: b.apply("not", _nan(b, x, y)),
    lambda b, x, y: b.apply("not", b.apply("or", b.apply("lt", x, y), b.apply("gt", x, y))),
    _unordered("le"),
    _unordered("lt"),
    _unordered("ge"),
    _unordered("gt"),
    lambda b, x, y: b.apply("ne", x, y),
    _nan,
    lambda b, x, y: b.const(True, "bool"),
)


def scalar_dtype(type_: Attribute) -> str:
    """numpy name of a scalar type; an index is an int64. Raises Unsupported."""
    if isinstance(type_, IndexType):
        return "int64"
    try:
        return dtype_name(type_)
    except ValueError as error:
        raise Unsupported(str(error)) from None


def constant_number(op: Operation) -> Number | None:
    """The number that an `arith.constant` of a scalar type yields; None for everything else."""
    value = op.properties.get("value") if op.name == "arith.constant" else None
    if isinstance(value, FloatAttr):
        return value.value.data
    if isinstance(value, IntegerAttr):
        number = value.value.data
        boolean = isinstance(value.type, IntegerType) and value.type.width.data == 1
        return bool(number) if boolean else number
    return None


def apply(b: BodyBuilder, op: Operation, args: Sequence[Scalar], dtype: str) -> Scalar:
    """One arith or math operation on scalars; its result is of element type `dtype`.

    Raises Unsupported for what has no counterpart: unsigned arithmetic, mostly, because a signless
    integer is a signed one in te.
    """
    name = op.name
    if name in _SAME:
        return b.apply(_SAME[name], *args)
    if name in _COMPOSED:
        return _COMPOSED[name](b, *args)
    if name in _CASTS or (name in _UNSIGNED_CASTS and args[0].dtype == "bool"):
        return b.cast(args[0], dtype)
    if name in _LOGIC:
        logic = _LOGIC[name]
        return b.apply(logic if args[0].dtype == "bool" else f"bit{logic}", *args)
    predicate: Any = op.properties.get("predicate")
    if name == "arith.cmpf":
        return _FLOAT[predicate.value.data](b, *args)
    if name == "arith.cmpi" and predicate.value.data < len(_SIGNED):
        return b.apply(_SIGNED[predicate.value.data], *args)
    if name == "arith.cmpi" or name in _UNSIGNED_CASTS or name.endswith("ui"):
        raise Unsupported(f"{name}: unsigned arithmetic on signless integers")
    raise Unsupported(f"{name} has no counterpart in a te body")


def translate(
    b: BodyBuilder, block: Block, env: Env, outside: Mapping[SSAValue, Number], stop: Operation
) -> Env:
    """The values of a region's operations up to `stop`, given those of its arguments in `env`.

    `outside` are constants defined around the region. Values that can't be computed because they
    depend on an argument that `env` does not have are left out. Raises Unsupported.
    """
    env = dict(env)

    def value(operand: SSAValue) -> Scalar | None:
        if operand not in env and operand in outside:
            env[operand] = b.const(outside[operand], scalar_dtype(operand.type))
        return env.get(operand)

    for op in block.ops:
        number = constant_number(op)
        if number is not None:
            env[op.results[0]] = b.const(number, scalar_dtype(op.results[0].type))
            continue
        args = [value(operand) for operand in op.operands]
        if op is stop:
            break
        if op.results and op.results[0] in env:
            continue
        known = [a for a in args if a is not None]
        if len(known) < len(args):
            continue
        if op.regions or not op.results:
            raise Unsupported(f"{op.name} in its region")
        env[op.results[0]] = apply(b, op, known, scalar_dtype(op.results[0].type))
    return env
