"""`te-narrow-masks`: integers that only carry truth values become truth values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.te import MapOp, ReduceOp
from elk_ir.dialects.te.attrs import BodyAttr
from elk_ir.dialects.te.ops import Combiner
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import Body, dtype_of, result_dtypes
from elk_ir.passes.te_support import dtype_of_value, rebuilt, replace_op, shape_of, structured_ops


def _is_integer(dtype: str) -> bool:
    return dtype_of(dtype).kind in "iu"


def _truth(body: Body, inputs: Sequence[str]) -> Body | None:
    """A body of one result that casts a truth value to an integer, without that cast."""
    if len(body.results) != 1 or body.results[0] < body.inputs:
        return None
    last = body.instrs[body.results[0] - body.inputs]
    if last.op != "cast" or last.dtype is None or not _is_integer(last.dtype):
        return None
    if result_dtypes(body, inputs)[last.args[0]] != "bool":
        return None
    # Nothing but the result reads a last instruction.
    kept = body.instrs[:-1] if body.instrs[-1] is last else body.instrs
    return replace(body, instrs=kept, results=(last.args[0],))


def _reads_truth(op: ReduceOp, value: SSAValue) -> bool:
    """Whether a reduction only asks whether any, or every, entry of `value` is not zero."""
    if op.combiner.data not in (Combiner.MAX, Combiner.MIN) or op.epilogue is None:
        return False
    if [v for v in op.ins if v is value] != [op.ins[0]]:
        return False
    body = op.epilogue.data
    reads = [i for i in body.instrs if 0 in i.args]
    return 0 not in body.results and all(i.op == "cast" and i.dtype == "bool" for i in reads)


@dataclass(frozen=True)
class TeNarrowMasksPass(ModulePass):
    """Reduce truth values as truth values, not as the integers that an exporter made of them.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-fuse-elementwise,te-narrow-masks'

    `any` over a mask comes as a cast to int64, a maximum and a cast back: eight bytes an entry for
    one bit. Where a te.map ends in such a cast and nothing but te.reduce with max or min and a cast
    to bool reads it, the mask stays a mask. Invariant: the numbers.
    """

    name = "te-narrow-masks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for mask in list(structured_ops(op)):
            if not isinstance(mask, MapOp) or len(mask.outs) != 1:
                continue
            value = mask.outs[0]
            readers = [use.operation for use in value.uses]
            if not readers or not all(
                isinstance(r, ReduceOp) and _reads_truth(r, value) for r in readers
            ):
                continue
            body = _truth(mask.body.data, [dtype_of_value(v) for v in mask.ins])
            if body is None:
                continue
            narrow = rebuilt(
                mask,
                mask.ins,
                mask.domain.data,
                [tensor_type(shape_of(value), "bool")],
                {"body": BodyAttr(body)},
            )
            replace_op(mask, narrow)
