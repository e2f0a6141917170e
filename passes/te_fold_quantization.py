"""`te-fold-quantization`: models in QDQ form multiply their integers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.passes import ModulePass

from elk_ir.dialects.te import ContractOp, GatherOp, MapOp
from elk_ir.dialects.te.attrs import Domain
from elk_ir.dialects.te.quantization import dequantized
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.scalars import BodyBuilder
from elk_ir.passes.te_affine import Split
from elk_ir.passes.te_quant_support import (
    Factor,
    Number,
    constants_of,
    integer_contract,
    read_integers,
    step_dims,
    two_float_factors,
)
from elk_ir.passes.te_support import (
    dtype_of_value,
    erase_dead,
    owner,
    rebuilt,
    replace_op,
    replace_value,
    shape_of,
    split_op_domain,
)
from elk_ir.plan.domain import DimKind

SPLITS = 8
"""Dimensions of one product that are split at most to read its factors' integers."""


@dataclass(frozen=True)
class TeFoldQuantizationPass(ModulePass):
    """Fold dequantisation into the products (and the table look-ups) that read it.

        elk-opt model_qdq.onnx -p 'convert-onnx-to-te,te-fold-quantization'

    A product of two dequantised tensors becomes an exact product of their integers, with the zero
    points in `zeros` and the steps in the epilogue; a product of which only one factor is quantised
    (w4a16, w8a16), or whose steps change along what is summed, stays one of numbers. Runs right
    behind convert-onnx-to-te, while each QuantizeLinear and DequantizeLinear is a map of its own.
    Changes the numbers only by rounding: the sum is exact, and steps are multiplied once.
    """

    name = "te-fold-quantization"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        number = constants_of(op)
        for each in list(op.walk()):
            if isinstance(each, ContractOp) and two_float_factors(each):
                _fold_product(each, number)
            elif isinstance(each, GatherOp):
                _fold_gather(each, number)


def _fold_product(op: ContractOp, number: Number) -> None:
    found = _factors(op, number)
    if found is None:
        return
    factors, domain = found
    sources = [owner(v) for v in op.ins[:2]]
    replace_op(op, integer_contract(op, factors, domain))
    for source in sources:
        erase_dead(source)


def _factors(op: ContractOp, number: Number) -> tuple[list[Factor], Domain] | None:
    """The integers of both factors, and the domain (some dimensions split) in which they are read.
    None where one is not an integer times a step that is the same for all that is summed."""
    domain = op.domain.data
    for _ in range(SPLITS):
        factors: list[Factor] = []
        for i in range(2):
            read = read_integers(op.ins[i], domain.operands[i], domain, number)
            if read is None:
                return None
            if isinstance(read, Split):
                split = split_op_domain(op, domain, read)
                if split is None:
                    return None
                domain = split
                break
            summed = {d for d, x in enumerate(domain.dims) if x.kind is not DimKind.PARALLEL}
            if step_dims(read) & summed:
                return None
            factors.append(read)
        if len(factors) == 2:
            return factors, domain
    return None


def _fold_gather(op: GatherOp, number: Number) -> None:
    """Rows of integers are picked, and then dequantised, where the table has one step."""
    domain = op.domain.data
    read = read_integers(op.ins[0], domain.operands[0], domain, number)
    if not isinstance(read, Factor) or isinstance(read.step, tuple):
        return
    source = owner(op.ins[0])
    integers = tensor_type(shape_of(op.outs[0]), dtype_of_value(read.value))
    maps = Domain(domain.dims, (read.axes, *domain.operands[1:]), domain.results)
    rows = rebuilt(op, [read.value, *op.ins[1:]], maps, [integers])
    to = dtype_of_value(op.outs[0])
    b = BodyBuilder([dtype_of_value(read.value)])
    body = b.finish(dequantized(b, b.inputs[0], read.step, read.zero, to))
    # A map, not te.dequantize: what reads the rows may take it into its own body.
    type_ = op.outs[0].type
    assert isinstance(type_, TensorType)
    number_op = MapOp.elementwise([rows.outs[0]], body, type_)
    number_op.location = op.location
    assert op.parent is not None
    op.parent.insert_ops_before([rows, number_op], op)
    replace_value(op.outs[0], number_op.outs[0])
    op.detach()
    op.erase()
    erase_dead(source)
