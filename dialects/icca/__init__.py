"""`icca`: inter-core connected AI chips; preloads, executes, stores (docs/dialects/icca.md)."""

from xdsl.ir import Dialect

from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca.attrs import HandleType, HbmKindAttr, PlanAttr
from elk_ir.dialects.icca.ops import (
    DistributeOp,
    ExecuteOp,
    HbmOp,
    InsertOp,
    LayerOp,
    PreloadOp,
    ProgramOp,
    ReduceOp,
    RelayoutOp,
    RepeatOp,
    StoreOp,
    TileOp,
    YieldOp,
)

ICCA = Dialect(
    "icca",
    [
        DistributeOp,
        ExecuteOp,
        HbmOp,
        InsertOp,
        LayerOp,
        PreloadOp,
        ProgramOp,
        ReduceOp,
        RelayoutOp,
        RepeatOp,
        StoreOp,
        TileOp,
        YieldOp,
    ],
    [ChipAttr, HandleType, HbmKindAttr, PlanAttr],
)
