"""`ipu`: Poplar-like programs (docs/dialects/ipu.md)."""

from xdsl.ir import Dialect

from elk_ir.dialects.ipu.attrs import ExprAttr, LayoutAttr, RefAttr, VertexPhaseAttr
from elk_ir.dialects.ipu.ops import (
    CodeletOp,
    CopyOp,
    CopyStartOp,
    CopyWaitOp,
    ExchangeOp,
    ExecuteOp,
    FillOp,
    ProgramOp,
    RemoteOp,
    RepeatOp,
    ReshardOp,
    RowOp,
    StoreStartOp,
    StoreWaitOp,
    VarOp,
)

IPU = Dialect(
    "ipu",
    [
        CodeletOp,
        CopyOp,
        CopyStartOp,
        CopyWaitOp,
        ExchangeOp,
        ExecuteOp,
        FillOp,
        ProgramOp,
        RemoteOp,
        RepeatOp,
        ReshardOp,
        RowOp,
        StoreStartOp,
        StoreWaitOp,
        VarOp,
    ],
    [ExprAttr, LayoutAttr, RefAttr, VertexPhaseAttr],
)
