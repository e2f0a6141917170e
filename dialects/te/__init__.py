"""`te`, the tensor dialect: structured operators on ranked static tensors (docs/dialects/te.md)."""

from xdsl.ir import Dialect

from elk_ir.dialects.te.attrs import BodyAttr, DomainAttr
from elk_ir.dialects.te.indexing import ArgReduceOp, ScanOp, ScatterOp, TopkOp, UpdateAttr
from elk_ir.dialects.te.ops import (
    AttentionOp,
    CombinerAttr,
    ConcatOp,
    ContractOp,
    GatherOp,
    MapOp,
    NormalizeOp,
    NormFormAttr,
    ReduceOp,
    SoftmaxOp,
)
from elk_ir.dialects.te.quantization import DequantizeOp, QuantizeOp
from elk_ir.dialects.te.structure import (
    AppendOp,
    GlobalKindAttr,
    GlobalOp,
    LoadOp,
    RepeatOp,
    UpdateOp,
    YieldOp,
)
from elk_ir.dialects.weight import WeightAttr, WeightPartAttr

TE = Dialect(
    "te",
    [
        AppendOp,
        ArgReduceOp,
        AttentionOp,
        ConcatOp,
        ContractOp,
        DequantizeOp,
        GatherOp,
        GlobalOp,
        LoadOp,
        MapOp,
        NormalizeOp,
        QuantizeOp,
        ReduceOp,
        RepeatOp,
        ScanOp,
        ScatterOp,
        SoftmaxOp,
        TopkOp,
        UpdateOp,
        YieldOp,
    ],
    [
        BodyAttr,
        CombinerAttr,
        DomainAttr,
        GlobalKindAttr,
        NormFormAttr,
        UpdateAttr,
        WeightAttr,
        WeightPartAttr,
    ],
)
