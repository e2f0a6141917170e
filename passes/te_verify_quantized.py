"""`te-verify-quantized`: every product is of integers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import node_name
from elk_ir.dialects.te import AttentionOp, ContractOp
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.types import shape_dtype
from elk_ir.plan.domain import DimKind
from elk_ir.quant.integers import NARROW

SHOWN = 8
"""Products that a message names at most."""


@dataclass(frozen=True)
class TeVerifyQuantizedPass(ModulePass):
    """Fail unless every product is of integers of at most `bits` bits.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,te-verify-quantized'

    For targets whose matrix units take nothing else. The message names the products that are not,
    with their types. A product that sums over nothing (the angles of a rotary embedding) is work
    for a vector unit and does not count. Changes nothing.
    """

    name = "te-verify-quantized"

    bits: int = 8

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raises PassFailedException."""
        products = [p for p in op.walk() if isinstance(p, ContractOp | AttentionOp) and _sums(p)]
        wrong = [(p, types) for p in products if self.wrong(types := _types(p))]
        if not wrong:
            return
        lines = [f"{node_name(p)}: {' x '.join(types)}" for p, types in wrong[:SHOWN]]
        if len(wrong) > SHOWN:
            lines.append(f"and {len(wrong) - SHOWN} more")
        raise PassFailedException(
            "\n  ".join(
                [
                    f"{len(wrong)} of {len(products)} products are not of integers of at most"
                    f" {self.bits} bits:",
                    *lines,
                    "quantise the model first: te-quantize{scheme=w4a4 calibration=…}, or"
                    " --quantize w4a4 --calibrate in.npz",
                ]
            )
        )

    def wrong(self, types: tuple[str, ...]) -> bool:
        """Whether factors of these types are too wide, or no integers."""
        return any(NARROW.get(t, self.bits + 1) > self.bits for t in types)


def _sums(op: StructuredOp) -> bool:
    return any(d.kind is not DimKind.PARALLEL and d.extent > 1 for d in op.domain.data.dims)


def _types(op: StructuredOp) -> tuple[str, ...]:
    if isinstance(op, ContractOp) and op.factors is not None:
        factors = op.factors.value.data
    else:
        factors = 3 if isinstance(op, AttentionOp) else 2
    return tuple(shape_dtype(v)[1] for v in op.ins[:factors])
