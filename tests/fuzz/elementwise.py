"""Generators of elementwise operators: one entry an operator, name -> function that adds a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fuzz.builder import BOOL, F16, F32, F64, FLOATS, I8, I32, I64, INTS, U8, Builder

Generator = Callable[[Builder], object]

FORMS = {
    "Acos": "unit",
    "Acosh": "positive",
    "Asin": "unit",
    "Atanh": "unit",
    "Log": "positive",
    "Reciprocal": "positive",
    "Sqrt": "positive",
}
"""What an operator's elements must be like; anything otherwise."""

SMOOTH = (
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp HardSigmoid HardSwish Log Mish Reciprocal"
    " Sigmoid Sin Sinh Softplus Softsign Sqrt Tan Tanh"
).split()
EXACT = ["Abs", "Neg", "Relu"]
JUMPING = ["Ceil", "Floor", "Round", "Sign"]
WITH_ALPHA = {"Celu": 0.7, "Elu": 1.3, "LeakyRelu": 0.1, "Swish": 1.7}


def unary(op: str, g: Builder) -> None:
    """A smooth function of one operand."""
    x = g.pick(FLOATS, form=FORMS.get(op, "normal"))
    if op == "Acosh":
        x = g.node("Add", [x, g.constant(1, x.dtype)])[0]
    if op == "Mish":
        x = g.pick((F32,))
    g.node(op, [x])


def copying(op: str, g: Builder) -> None:
    """A function that rounds nothing."""
    g.node(op, [g.pick((*FLOATS, *INTS) if op != "Relu" else FLOATS)], exact=True)


def jumping(op: str, g: Builder) -> None:
    """A function with steps, of what is the same wherever it is computed."""
    form = g.choose(["normal", "small"])
    g.node(op, [g.pick(FLOATS, exact=True, form=form)], exact=True)


def with_alpha(op: str, g: Builder) -> None:
    attributes = {} if g.flag() else {"alpha": WITH_ALPHA[op]}
    g.opset = max(g.opset, 24) if op == "Swish" else g.opset
    g.node(op, [g.pick((F32,) if op in ("Celu", "Swish") else FLOATS)], attributes)


def selu(g: Builder) -> None:
    g.node("Selu", [g.pick(FLOATS)], {} if g.flag() else {"alpha": 1.5, "gamma": 0.9})


def gelu(g: Builder) -> None:
    g.node("Gelu", [g.pick((F32,))], {"approximate": g.choose(["none", "tanh"])})


def thresholded(g: Builder) -> None:
    g.node("ThresholdedRelu", [g.pick((F32,), exact=True)], {"alpha": 0.5}, exact=True)


def shrink(g: Builder) -> None:
    g.node("Shrink", [g.pick((F32,), exact=True)], {"lambd": 0.5, "bias": g.choose([0.0, 0.25])})


def arithmetic(op: str, g: Builder) -> None:
    """Two operands, broadcast."""
    x = g.pick((*FLOATS, *INTS))
    if op == "Div" and x.dtype.kind in "iu":
        x = g.pick(FLOATS)
    g.node(op, _either_way(g, x, "positive" if op == "Div" else "normal", op != "Div"))


def _either_way(g: Builder, x: Any, form: str = "normal", swap: bool = True) -> list[Any]:
    y = g.like(x, form)
    return [y, x] if swap and g.flag() else [x, y]


def power(g: Builder) -> None:
    x = g.pick((F32,), form="positive")
    y = g.constant(g.choose([2.0, 3.0, 0.5, -1.0, 0.0, 1.0]), x.dtype)
    if g.flag():
        y = g.leaf(x.shape, x.dtype, "unit")
    g.node("Pow", [x, y])


def modulo(g: Builder) -> None:
    if g.flag():
        x = g.pick((*INTS, I8))
        y = g.leaf(g.choose([x.shape, x.shape[-1:]]), x.dtype, "positive", weight=True)
        y = g.constant(y.array % 5 + 1, x.dtype)
        g.node("Mod", [x, y], {"fmod": int(g.flag())})
    else:
        x = g.pick((F32,), exact=True, form="small")
        g.node("Mod", [x, g.constant(g.choose([2.0, 3.0]), x.dtype)], {"fmod": 1})


def extremum(op: str, g: Builder) -> None:
    """One to three operands, broadcast."""
    x = g.pick((*FLOATS, *INTS))
    g.node(op, [x, *(g.like(x) for _ in range(g.number(0, 2)))], exact=True)


def many(op: str, g: Builder) -> None:
    x = g.pick(FLOATS)
    g.node(op, [x, *(g.like(x) for _ in range(g.number(0, 3)))])


def compare(op: str, g: Builder) -> None:
    types = (F32, F16, I64, I32, I8, U8) if op != "Equal" else (F32, I64, I32, U8, BOOL)
    x = g.pick(types, exact=True, form=g.choose(["small", "normal"]))
    y = g.constant(g.array(x.shape[-1:], x.dtype, "small"), x.dtype)
    if g.flag():
        y = g.leaf(x.shape, x.dtype, "small")
    g.node(op, [x, y])


def logical(op: str, g: Builder) -> None:
    x = g.pick((BOOL,))
    g.node(op, [x, g.like(x)])


def negation(g: Builder) -> None:
    g.node("Not", [g.pick((BOOL,))])


def bitwise(op: str, g: Builder) -> None:
    x = g.pick((U8, I32, I64, I8))
    g.node(op, [x, g.like(x)])


def bitwise_not(g: Builder) -> None:
    g.node("BitwiseNot", [g.pick((U8, I32, I8))])


def shift(g: Builder) -> None:
    x = g.leaf(g.shape(), U8)
    y = g.leaf(g.choose([x.shape, x.shape[-1:]]), U8)
    y = g.constant(y.array % 5, U8)
    g.node("BitShift", [x, y], {"direction": g.choose(["LEFT", "RIGHT"])})


def special(op: str, g: Builder) -> None:
    """Finds what is not a number, or infinite."""
    x = g.array(g.shape(), F32)
    flat = x.reshape(-1)
    for i in range(0, flat.size, 3):
        flat[i] = g.choose([np.nan, np.inf, -np.inf])
    g.node(op, [g.leaf(x.shape, F32, array=x)])


def clip(g: Builder) -> None:
    x = g.pick((*FLOATS, I32))
    low = g.constant(-1, x.dtype) if g.flag() else None
    high = g.constant(2, x.dtype) if g.flag() else None
    g.node("Clip", [x, low, high], exact=True)


def where(g: Builder) -> None:
    x = g.pick((*FLOATS, *INTS, BOOL))
    y = g.like(x)
    shape = np.broadcast_shapes(x.shape, y.shape)
    ranks = g.number(0, len(shape))
    g.node("Where", [g.leaf(shape[ranks:], BOOL), x, y], exact=True)


def prelu(g: Builder) -> None:
    x = g.pick(FLOATS)
    slope = g.leaf([n if g.flag() else 1 for n in x.shape[g.number(0, x.rank) :]], x.dtype)
    g.node("PRelu", [x, slope])


def cast(g: Builder) -> None:
    from onnx import helper

    source = g.pick((F32, F16, I32, I64, U8, BOOL), exact=True, form="small")
    to = g.choose([F32, F16, I32, I64, I8, BOOL, F64])
    if source.dtype.kind == "f" and to.kind in "iu":
        source = g.pick((source.dtype,), exact=True)
    g.node("Cast", [source], {"to": helper.np_dtype_to_tensor_dtype(to)}, exact=to != F16)


def cast_like(g: Builder) -> None:
    x = g.pick((F32, I32, BOOL), exact=True)
    g.node("CastLike", [x, g.constant([0], g.choose([F32, I32, I64, BOOL]))], exact=True)


def identity(g: Builder) -> None:
    g.node("Identity", [g.pick((*FLOATS, *INTS, BOOL))], exact=True)


def dropout(g: Builder) -> None:
    outputs = g.number(1, 2)
    g.node("Dropout", [g.pick(FLOATS)], outputs=outputs, exact=True)


ELEMENTWISE: dict[str, Generator] = {
    **{op: partial(unary, op) for op in SMOOTH},
    **{op: partial(copying, op) for op in EXACT},
    **{op: partial(jumping, op) for op in JUMPING},
    **{op: partial(with_alpha, op) for op in WITH_ALPHA},
    **{op: partial(arithmetic, op) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: partial(extremum, op) for op in ("Max", "Min")},
    **{op: partial(many, op) for op in ("Mean", "Sum")},
    **{
        op: partial(compare, op)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    **{op: partial(logical, op) for op in ("And", "Or", "Xor")},
    **{op: partial(bitwise, op) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **{op: partial(special, op) for op in ("IsInf", "IsNaN")},
    "BitShift": shift,
    "BitwiseNot": bitwise_not,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Dropout": dropout,
    "Gelu": gelu,
    "Identity": identity,
    "Mod": modulo,
    "Not": negation,
    "PRelu": prelu,
    "Pow": power,
    "Selu": selu,
    "Shrink": shrink,
    "ThresholdedRelu": thresholded,
    "Where": where,
}
