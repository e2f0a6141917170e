"""`northpole`: a model on cards that hold everything (docs/dialects/northpole.md)."""

from xdsl.ir import Dialect

from elk_ir.dialects.northpole.attrs import AssumptionsAttr, PrecisionAttr, ResidentAttr, TaskAttr
from elk_ir.dialects.northpole.ops import (
    BLOCK,
    HOST,
    AppendOp,
    BlockOp,
    CallOp,
    ExecuteOp,
    HostOp,
    OutputOp,
    PlaceOp,
    ResidentOp,
    SendOp,
    StageOp,
    TensorOp,
    YieldOp,
    contents,
)
from elk_ir.dialects.northpole.program import ProgramOp

__all__ = [
    "BLOCK",
    "HOST",
    "NORTHPOLE",
    "AppendOp",
    "AssumptionsAttr",
    "BlockOp",
    "CallOp",
    "ExecuteOp",
    "HostOp",
    "OutputOp",
    "PlaceOp",
    "PrecisionAttr",
    "ProgramOp",
    "ResidentAttr",
    "ResidentOp",
    "SendOp",
    "StageOp",
    "TaskAttr",
    "TensorOp",
    "YieldOp",
    "contents",
]

NORTHPOLE = Dialect(
    "northpole",
    [
        AppendOp,
        BlockOp,
        CallOp,
        ExecuteOp,
        HostOp,
        OutputOp,
        PlaceOp,
        ProgramOp,
        ResidentOp,
        SendOp,
        StageOp,
        TensorOp,
        YieldOp,
    ],
    [AssumptionsAttr, PrecisionAttr, ResidentAttr, TaskAttr],
)
