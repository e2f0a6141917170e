"""Elementwise operators: one `te.map` each, broadcasting by maps, constants inside the body."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from xdsl.ir import SSAValue

from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    lowers,
    shape_of,
)

_SAME = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Add": "add", "And": "and", "Asin": "asin",
    "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh", "BitwiseAnd": "bitand",
    "BitwiseNot": "bitnot", "BitwiseOr": "bitor", "BitwiseXor": "bitxor", "Ceil": "ceil",
    "Cos": "cos", "Cosh": "cosh", "Div": "div", "Equal": "eq", "Erf": "erf", "Exp": "exp",
    "Floor": "floor", "Greater": "gt", "GreaterOrEqual": "ge", "IsNaN": "isnan", "Less": "lt",
    "LessOrEqual": "le", "Log": "log", "Mul": "mul", "Neg": "neg", "Not": "not", "Or": "or",
    "Reciprocal": "recip", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin",
    "Sinh": "sinh", "Sqrt": "sqrt", "Sub": "sub", "Tan": "tan", "Tanh": "tanh", "Xor": "xor",
}  # fmt: skip


@lowers(*_SAME)
def _same(ctx: Context, node: Node) -> SSAValue:
    """Operators that are one scalar operation."""
    op = _SAME[node.op_type]
    ins = [node.operand(i) for i in range(len(node.operands))]
    return ctx.map1(lambda b, *xs: b.apply(op, *xs), *ins, shape=node.shape())


def wide(fn: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """`fn` computed in float32 for narrower floats and rounded once, as the hardware does."""

    def apply(b: BodyBuilder, *xs: Scalar) -> Scalar:
        dtype = xs[0].dtype
        if is_float(dtype) and dtype not in ("float32", "float64"):
            return b.cast(fn(b, *(b.cast(x, "float32") for x in xs)), dtype)
        return fn(b, *xs)

    return apply


def _softplus(b: BodyBuilder, x: Scalar) -> Scalar:
    # max(x, 0) + log(1 + exp(-|x|)) does not overflow.
    tail = b.apply("log", b.apply("exp", -b.apply("abs", x)) + 1.0)
    return b.apply("max", x, 0.0) + tail


def _elu(b: BodyBuilder, x: Scalar, *, alpha: float, gamma: float, scale: float) -> Scalar:
    below = (b.apply("exp", x / scale) - 1.0) * alpha
    return b.apply("select", b.apply("gt", x, 0.0), x, below) * gamma


def gelu(b: BodyBuilder, x: Scalar, *, approximate: str) -> Scalar:
    """Gelu, by ONNX's `approximate` (`none` or `tanh`)."""
    if approximate == "tanh":
        cubic = x + x * x * x * 0.044715
        return x * 0.5 * (b.apply("tanh", cubic * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (b.apply("erf", x * math.sqrt(0.5)) + 1.0)


def _hard_sigmoid(b: BodyBuilder, x: Scalar, *, alpha: float, beta: float) -> Scalar:
    return b.apply("max", b.apply("min", x * alpha + beta, 1.0), 0.0)


def _shrink(b: BodyBuilder, x: Scalar, *, bias: float, lambd: float) -> Scalar:
    above = b.apply("select", b.apply("gt", x, lambd), x - bias, x - x)
    return b.apply("select", b.apply("lt", x, -lambd), x + bias, above)


def _leaky(b: BodyBuilder, x: Scalar, slope: Scalar | float) -> Scalar:
    scaled = b.apply("mul", x, slope)
    return b.apply("select", b.apply("lt", x, 0), scaled, x)


def _activation(node: Node) -> Callable[..., Scalar]:
    match node.op_type:
        case "Relu":
            return lambda b, x: b.apply("max", x, 0)
        case "LeakyRelu":
            return lambda b, x: _leaky(b, x, node.attr("alpha"))
        case "Elu":
            return partial(_elu, alpha=node.attr("alpha"), gamma=1.0, scale=1.0)
        case "Celu":
            alpha = node.attr("alpha")
            return partial(_elu, alpha=alpha, gamma=1.0, scale=alpha)
        case "Selu":
            return partial(_elu, alpha=node.attr("alpha"), gamma=node.attr("gamma"), scale=1.0)
        case "Gelu":
            return partial(gelu, approximate=node.attr("approximate"))
        case "HardSigmoid":
            return partial(_hard_sigmoid, alpha=node.attr("alpha"), beta=node.attr("beta"))
        case "HardSwish":
            return lambda b, x: x * _hard_sigmoid(b, x, alpha=1 / 6, beta=0.5)
        case "Mish":
            return lambda b, x: x * b.apply("tanh", _softplus(b, x))
        case "Shrink":
            return partial(_shrink, bias=node.attr("bias"), lambd=node.attr("lambd"))
        case "Softplus":
            return _softplus
        case "Softsign":
            return lambda b, x: x / (b.apply("abs", x) + 1.0)
        case "Swish":
            alpha = node.attr("alpha")
            return lambda b, x: x * b.apply("sigmoid", x if alpha == 1 else x * alpha)
        case _:  # ThresholdedRelu
            alpha = node.attr("alpha")
            return lambda b, x: b.apply("select", b.apply("gt", x, alpha), x, 0.0)


@lowers(
    "Relu", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "HardSigmoid", "HardSwish", "Mish",
    "Shrink", "Softplus", "Softsign", "Swish", "ThresholdedRelu",
)  # fmt: skip
def _activations(ctx: Context, node: Node) -> SSAValue:
    """Activation functions: several scalar operations in one body."""
    return ctx.map1(wide(_activation(node)), node.operand(0))


@lowers("com.example:Silu", "com.microsoft:QuickGelu")
def _silu(ctx: Context, node: Node) -> SSAValue:
    """x · sigmoid(α x)."""
    alpha = 1.0
    if node.op_type == "QuickGelu":
        alpha = node.attr("alpha")
        alpha = 1.702 if alpha is None else alpha
    x = node.operand(0)
    return ctx.map1(wide(lambda b, v: v * b.apply("sigmoid", v * alpha)), x)


@lowers("PRelu")
def _prelu(ctx: Context, node: Node) -> SSAValue:
    """x where it is positive, slope · x elsewhere."""
    return ctx.map1(_leaky, node.operand(0), node.operand(1), shape=node.shape())


@lowers("IsInf")
def _isinf(ctx: Context, node: Node) -> SSAValue:
    """Infinite values of the wanted signs."""
    negative, positive = node.attr("detect_negative"), node.attr("detect_positive")

    def fn(b: BodyBuilder, x: Scalar) -> Scalar:
        if negative and positive:
            return b.apply("isinf", x)
        if negative or positive:
            return b.apply("eq", x, math.inf if positive else -math.inf)
        return b.const(False, "bool")

    return ctx.map1(fn, node.operand(0), shape=node.shape())


@lowers("Mod")
def _mod(ctx: Context, node: Node) -> SSAValue:
    """The remainder with the divisor's sign, or C's fmod."""
    op = "fmod" if node.attr("fmod") else "mod"
    return ctx.map1(
        lambda b, x, y: b.apply(op, x, y), node.operand(0), node.operand(1), shape=node.shape()
    )


@lowers("BitShift")
def _shift(ctx: Context, node: Node) -> SSAValue:
    """Shift by a number of bits to the left or right."""
    op = "shl" if node.attr("direction") == "LEFT" else "shr"
    return ctx.map1(
        lambda b, x, y: b.apply(op, x, y), node.operand(0), node.operand(1), shape=node.shape()
    )


_SMALL_POWERS: dict[float, Callable[[BodyBuilder, Scalar], Scalar]] = {
    1.0: lambda b, x: x,
    2.0: lambda b, x: x * x,
    3.0: lambda b, x: x * x * x,
}
_FLOAT_POWERS: dict[float, Callable[[BodyBuilder, Scalar], Scalar]] = {
    0.5: lambda b, x: b.apply("sqrt", x),
    -0.5: lambda b, x: b.apply("rsqrt", x),
    -1.0: lambda b, x: b.apply("recip", x),
}


@lowers("Pow")
def _pow(ctx: Context, node: Node) -> SSAValue:
    """Powers; small constant exponents become products and roots."""
    base, exponent = node.operand(0), node.operand(1)
    number = ctx.uniform(exponent)
    fn = None if number is None else _SMALL_POWERS.get(float(number))
    if fn is None and number is not None and is_float(dtype_of_value(base)):
        fn = _FLOAT_POWERS.get(float(number))
    if fn is not None:
        # Written over the result's shape: the exponent may have a larger one than the base.
        return ctx.map1(fn, base, shape=node.shape())

    def power(b: BodyBuilder, x: Scalar, y: Scalar) -> Scalar:
        if y.is_float and not x.is_float:
            return b.cast(b.apply("pow", b.cast(x, y.dtype), y), x.dtype)
        return b.apply("pow", x, b.cast(y, x.dtype))

    return ctx.map1(power, base, exponent, shape=node.shape())


@lowers("Max", "Min", "Sum", "Mean")
def _variadic(ctx: Context, node: Node) -> SSAValue:
    """Any number of operands folded from the left."""
    ins = [node.operand(i) for i in range(len(node.operands))]
    op = {"Max": "max", "Min": "min"}.get(node.op_type, "add")

    def fn(b: BodyBuilder, *xs: Scalar) -> Scalar:
        value = xs[0]
        for x in xs[1:]:
            value = b.apply(op, value, x)
        return value / float(len(xs)) if node.op_type == "Mean" else value

    return ctx.map1(fn, *ins, shape=node.shape())


@lowers("Where")
def _where(ctx: Context, node: Node) -> SSAValue:
    """Selection by a condition."""
    ins = [node.operand(i) for i in range(3)]
    return ctx.map1(lambda b, c, x, y: b.apply("select", c, x, y), *ins, shape=node.shape())


@lowers("Clip")
def _clip(ctx: Context, node: Node) -> SSAValue:
    """Bounds that may be absent, constant or computed."""
    low, high = node.get(1), node.get(2)
    ins = [node.operand(0), *(v for v in (low, high) if v is not None)]

    def fn(b: BodyBuilder, x: Scalar, *bounds: Scalar) -> Scalar:
        rest = list(bounds)
        if low is not None:
            x = b.apply("max", x, rest.pop(0))
        if high is not None:
            x = b.apply("min", x, rest.pop(0))
        return x

    return ctx.map1(fn, *ins, shape=node.shape())


def narrow_float(b: BodyBuilder, x: Scalar, dtype: str, *, saturate: bool) -> Scalar:
    """`x` rounded to a float of 8 bits or fewer; what is too large becomes the largest number, or
    (not saturating) infinity or NaN, as the type has them."""
    import ml_dtypes

    if x.dtype != "float64":
        x = b.cast(x, "float32")
    if saturate:
        limit = float(ml_dtypes.finfo(dtype_of(dtype)).max)
        x = b.apply("min", b.apply("max", x, -limit), limit)
    return b.cast(x, dtype)


def is_narrow_float(dtype: str) -> bool:
    """Whether an element type is a float of 8 bits or fewer."""
    return is_float(dtype) and dtype_of(dtype).itemsize == 1


@lowers("Cast", "CastLike")
def _cast(ctx: Context, node: Node) -> SSAValue:
    """Conversion of the element type."""
    source, dtype = node.operand(0), node.dtype()
    if dtype == "float8_e8m0fnu":
        raise Unsupported("conversion to float8e8m0")
    if not is_narrow_float(dtype) or dtype_of_value(source) == dtype:
        return ctx.cast(source, dtype)
    saturate = dtype.startswith("float4") or bool(node.attr("saturate"))
    return ctx.map1(lambda b, x: narrow_float(b, x, dtype, saturate=saturate), source)


@lowers("Identity")
def _identity(ctx: Context, node: Node) -> SSAValue:
    """The operand itself."""
    return node.operand(0)


@lowers("Dropout")
def _dropout(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Inference only: the data, and a mask that keeps everything."""
    training = node.get(2)
    if training is not None and bool(ctx.need(training, "training_mode").any()):
        ratio = node.get(1)
        if ratio is None or ctx.uniform(ratio) != 0:
            raise Unsupported("random dropout (training_mode)")
    data = node.operand(0)
    mask = ctx.constant(np.broadcast_to(np.True_, shape_of(data))) if node.wants(1) else None
    return [data, mask]
