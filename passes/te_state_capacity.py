"""`te-state-capacity`: how many entries a KV cache can hold."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects.te.structure import GlobalKind, GlobalOp
from elk_ir.dialects.types import shape_dtype, tensor_type


@dataclass(frozen=True)
class TeStateCapacityPass(ModulePass):
    """Give every state room for `entries` entries along the axis on which it grows.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-make-state,te-state-capacity{entries=4096}'

    Without this pass a state holds what one run needs. Only what HBM reserves changes: a run still
    reads the entries that are filled and those it appends. A state of fixed size (all of it is
    filled) stays what it is. Fails if a state needs more.
    """

    name = "te-state-capacity"

    entries: int

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.entries < 1:
            raise PassFailedException(f"a capacity of {self.entries} entries holds nothing")
        for state in op.body.block.ops:
            if not isinstance(state, GlobalOp) or state.kind.data is not GlobalKind.STATE:
                continue
            assert state.axis is not None
            shape, dtype = shape_dtype(state.type)
            axis = state.axis.value.data
            if state.length is not None and state.length.value.data == shape[axis]:
                continue
            if shape[axis] > self.entries:
                fail_at(
                    state,
                    f"state @{state.sym_name.data} needs {shape[axis]} entries in this run, the"
                    f" capacity is {self.entries}",
                )
            grown = (*shape[:axis], self.entries, *shape[axis + 1 :])
            state.properties["type"] = tensor_type(grown, dtype)
