"""`te.quantize` and `te.dequantize`: numbers to and from scaled integers (docs/quantization.md)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, opt_prop_def
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import (
    StructuredOp,
    dims_of,
    domain_attr,
    identity_map,
    with_phase,
)
from elk_ir.dialects.types import shape_dtype, tensor_type
from elk_ir.numerics.body import Body, is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.plan.domain import Access, Dim, DimKind, Operator, Phase
from elk_ir.quant.integers import FLOAT8, integer_range

Step = float | tuple[SSAValue, Map]
"""A step that is one number, or a tensor of steps and how it is read at a point."""


def quantized(
    b: BodyBuilder, x: Scalar, step: Scalar | float, zero: int | Scalar, to: str
) -> Scalar:
    """round(x / step) + zero, saturated, as integer type `to`: the definition of quantisation.

    Computed in float32; ties round to even, as ONNX's QuantizeLinear does. An eight-bit float has
    no zero point and rounds to its own numbers."""
    wide = b.cast(x, "float32")
    if to in FLOAT8:
        high = FLOAT8[to]
        return b.cast(b.apply("min", b.apply("max", wide / step, -high), high), to)
    low, high = integer_range(to)
    value = b.apply("round", wide / step)
    if isinstance(zero, Scalar):
        value = value + b.cast(zero, "float32")
    elif zero:
        value = value + float(zero)
    return b.cast(b.apply("min", b.apply("max", value, float(low)), float(high)), to)


def dequantized(b: BodyBuilder, q: Scalar, step: Scalar | float, zero: int, to: str) -> Scalar:
    """(q - zero) · step, in float32 and then as `to`."""
    value = b.cast(q, "float32")
    if zero:
        value = value - float(zero)
    return b.cast(value * step, to)


class _Stepped(StructuredOp):
    """What the two operations share: an operand, and a step that is a number or an operand."""

    step = opt_prop_def(FloatAttr)
    zero = opt_prop_def(IntegerAttr)

    @classmethod
    def of(cls, x: SSAValue, step: Step, to: str, zero: int = 0) -> StructuredOp:
        """The operation on every element of `x`; a tensor of steps is read through its map in the
        dimensions of `x` (one an axis)."""
        shape, _ = shape_dtype(x)
        here = identity_map(len(shape))
        ins, maps = [x], [here]
        properties: dict[str, Attribute] = {}
        if isinstance(step, tuple):
            ins.append(step[0])
            maps.append(step[1])
        else:
            properties["step"] = FloatAttr(step, 64)
        if zero:
            properties["zero"] = IntegerAttr(zero, i64)
        properties["domain"] = domain_attr(dims_of(shape), maps, [here])
        return cls.create(
            operands=ins, result_types=[tensor_type(shape, to)], properties=properties
        )

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0.0."""
        return 0 if self.zero is None else self.zero.value.data

    def scalar_body(self, types: Sequence[str], to: str) -> Body:
        """The operation at one point, on values of the operands' `types`."""
        b = BodyBuilder(list(types))
        x, *steps = b.inputs
        if steps:
            step: Scalar | float = b.cast(steps[0], "float32")
        else:
            assert self.step is not None
            step = self.step.value.data
        make = quantized if isinstance(self, QuantizeOp) else dequantized
        return b.finish(make(b, x, step, self.zero_point, to))

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        if len(results) != 1 or len(operands) != (1 if self.step is not None else 2):
            raise VerifyException(
                f"{self.name} takes a tensor and a step, which is either the property `step` or"
                f" the second operand; it has {len(operands)} operands and {len(results)} results"
            )
        wide, narrow = operands[0].dtype, results[0].dtype
        if isinstance(self, DequantizeOp):
            wide, narrow = narrow, wide
        if (is_float(narrow) and narrow not in FLOAT8) or not is_float(wide) or wide in FLOAT8:
            raise VerifyException(f"{self.name} from {operands[0].dtype} to {results[0].dtype}")
        low, high = (0, 0) if narrow in FLOAT8 else integer_range(narrow)
        if not low <= self.zero_point <= high:
            raise VerifyException(f"zero point {self.zero_point} is not in {narrow}")
        if self.step is not None and not self.step.value.data > 0:
            raise VerifyException(f"a step of {self.step.value.data} is not positive")
        if any(d.kind is not DimKind.PARALLEL for d in dims):
            raise VerifyException(f"{self.name} has no reduction dimensions")
        body = self.scalar_body([a.dtype for a in operands], results[0].dtype)
        accesses = tuple(with_phase(a, Phase.APPLY) for a in operands)
        return Operator("map", dims, accesses, tuple(results), (), (("body", body),), body.flops)


@irdl_op_definition
class QuantizeOp(_Stepped):
    """round(x / step) + zero, saturated to the narrow type of the result.

    The step is the property `step` (by tensor), or operand 1, read through its own map (by channel
    or by token). To everything below te this is a `map` with that body.
    """

    name = "te.quantize"


@irdl_op_definition
class DequantizeOp(_Stepped):
    """(q - zero) · step: the number that an integer stands for. Steps as in `te.quantize`."""

    name = "te.dequantize"
