"""Operations of `ipu`: a program for a bulk-synchronous machine of cores with explicit exchanges.

The vocabulary is Poplar's: variables with tile mappings, vertices of a codelet in compute sets,
copies, repeats, remote buffers (docs/dialects/ipu.md).
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Block, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.traits import NoTerminator, Pure, RecursiveMemoryEffect, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.icca.attrs import HbmKind, HbmKindAttr
from elk_ir.dialects.ipu.attrs import (
    ExprAttr,
    LayoutAttr,
    RefAttr,
    VertexPhaseAttr,
)
from elk_ir.dialects.stored import StoredTensorOp
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.types import shape_dtype


@irdl_op_definition
class RemoteOp(StoredTensorOp):
    """A remote buffer: a tensor in HBM, a row of it for each layer."""

    name = "ipu.remote"
    kind = prop_def(HbmKindAttr)

    def verify_(self) -> None:
        kind = self.kind.data
        self.verify_stored(weight=kind is HbmKind.WEIGHT, state=kind is HbmKind.STATE)


@irdl_op_definition
class VarOp(IRDLOperation):
    """A variable: the part of a tensor that each core holds, at byte `at` of its SRAM."""

    name = "ipu.var"
    sym_name = prop_def(SymbolNameConstraint())
    type = prop_def(TensorType)
    layout = prop_def(LayoutAttr)
    at = prop_def(IntegerAttr[I64])
    bytes = prop_def(IntegerAttr[I64])
    owner = opt_prop_def(StringAttr)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name `at` $at `bytes` $bytes `:` $type $layout (`of` $owner^)? attr-dict"
    )

    def verify_(self) -> None:
        shape, _ = shape_dtype(self.type)
        if shape != self.layout.data.shape:
            raise VerifyException(
                f"@{self.sym_name.data}: the tile mapping is of {self.layout.data.shape}, the"
                f" tensor of {shape}"
            )


@irdl_op_definition
class CodeletOp(IRDLOperation):
    """What a vertex computes: one structured operation, on whole tensors."""

    name = "ipu.codelet"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict"

    @property
    def structured(self) -> StructuredOp:
        """The operation."""
        op = self.body.block.first_op
        assert isinstance(op, StructuredOp)
        return op

    def verify_(self) -> None:
        ops = list(self.body.block.ops)
        if len(ops) != 1 or not isinstance(ops[0], StructuredOp):
            raise VerifyException("a codelet holds exactly one structured operation")


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """The program: a sequence of the operations below."""

    name = "ipu.program"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict"


@irdl_op_definition
class CopyStartOp(IRDLOperation):
    """Start a copy from a remote buffer into a variable: asynchronous, in order.

    `rows` names a remote buffer of indices: the rows it holds are fetched along axis 0. `limit`:
    only indices below it along `axis` are filled and move (a state). `init`: done by the host
    before the program starts (chips without HBM).
    """

    name = "ipu.copy_start"
    source = prop_def(FlatSymbolRefAttrConstr)
    target = prop_def(FlatSymbolRefAttrConstr)
    rows = opt_prop_def(FlatSymbolRefAttrConstr)
    axis = opt_prop_def(IntegerAttr[I64])
    limit = opt_prop_def(IntegerAttr[I64])
    init = opt_prop_def(UnitAttr)
    row = opt_operand_def(IndexType)
    assembly_format = (
        "(`init` $init^)? $source (`[` $row^ `]`)? `->` $target (`rows` $rows^)?"
        " (`axis` $axis^)? (`limit` $limit^)? attr-dict"
    )


@irdl_op_definition
class CopyWaitOp(IRDLOperation):
    """Wait until the copy into a variable has landed on every core."""

    name = "ipu.copy_wait"
    target = prop_def(FlatSymbolRefAttrConstr)
    assembly_format = "$target attr-dict"


@irdl_op_definition
class StoreStartOp(IRDLOperation):
    """Start a copy from a variable to a remote buffer, in the order of the copies. `start`: entry
    along `axis` of the remote tensor at which the variable's tensor lands. `rows` names a remote
    buffer of indices: entry i along `axis` replaces the one that index i names, read when the
    copy's turn comes."""

    name = "ipu.store_start"
    source = prop_def(FlatSymbolRefAttrConstr)
    target = prop_def(FlatSymbolRefAttrConstr)
    axis = opt_prop_def(IntegerAttr[I64])
    start = opt_prop_def(IntegerAttr[I64])
    rows = opt_prop_def(FlatSymbolRefAttrConstr)
    row = opt_operand_def(IndexType)
    assembly_format = (
        "$source `->` $target (`[` $row^ `]`)? (`axis` $axis^)? (`start` $start^)?"
        " (`rows` $rows^)? attr-dict"
    )

    def verify_(self) -> None:
        if self.rows is not None and (self.axis is None or self.start is not None):
            raise VerifyException(
                f"the store to @{self.target.root_reference.data}: rows lie along an axis, and come"
                " instead of a first entry"
            )


@irdl_op_definition
class StoreWaitOp(IRDLOperation):
    """Wait until the store from a variable is complete."""

    name = "ipu.store_wait"
    source = prop_def(FlatSymbolRefAttrConstr)
    assembly_format = "$source attr-dict"


@irdl_op_definition
class FillOp(IRDLOperation):
    """Set every element of a variable, on every core that has it."""

    name = "ipu.fill"
    target = prop_def(FlatSymbolRefAttrConstr)
    value = prop_def(FloatAttr)
    assembly_format = "$target `,` $value attr-dict"


@irdl_op_definition
class ReshardOp(IRDLOperation):
    """Move a tensor from one variable's tile mapping to another's: each core receives the
    intersections of its box with what others hold, from itself where it can. `start` shifts the
    source's tensor along `axis` of the target's."""

    name = "ipu.reshard"
    source = prop_def(FlatSymbolRefAttrConstr)
    target = prop_def(FlatSymbolRefAttrConstr)
    axis = opt_prop_def(IntegerAttr[I64])
    start = opt_prop_def(IntegerAttr[I64])
    assembly_format = "$source `->` $target (`axis` $axis^)? (`start` $start^)? attr-dict"


@irdl_op_definition
class ExchangeOp(IRDLOperation):
    """Every core reads the named slots of `source` from core `map(c)` into `target`: a ring shift.
    The bytes of the slots arrive in order; `step` binds `t`."""

    name = "ipu.exchange"
    source = prop_def(RefAttr)
    target = prop_def(RefAttr)
    map = prop_def(ExprAttr)
    step = opt_operand_def(IndexType)
    assembly_format = "$source `->` $target `from` $map (`step` $step^)? attr-dict"


@irdl_op_definition
class CopyOp(IRDLOperation):
    """Copy the named slots of `source` into those of `target` on each core."""

    name = "ipu.copy"
    source = prop_def(RefAttr)
    target = prop_def(RefAttr)
    step = opt_operand_def(IndexType)
    assembly_format = "$source `->` $target (`step` $step^)? attr-dict"


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """Run a compute set: one vertex of `codelet` on every core of `iterate`.

    `iterate` is the iteration box of each core, of which the slots `at` are computed. A `local`
    vertex adds to its statistics, a `combine` vertex merges the partials gathered along the first
    axis of its operands, an `apply` vertex writes its results.
    """

    name = "ipu.execute"
    sym_name = prop_def(SymbolNameConstraint())
    phase = prop_def(VertexPhaseAttr)
    codelet = prop_def(FlatSymbolRefAttrConstr)
    iterate = prop_def(LayoutAttr)
    at = prop_def(ArrayAttr[ExprAttr])
    ins = prop_def(ArrayAttr[RefAttr])
    stats = prop_def(ArrayAttr[RefAttr])
    outs = prop_def(ArrayAttr[RefAttr])
    step = opt_operand_def(IndexType)
    traits = traits_def()
    assembly_format = (
        "$sym_name $phase $codelet `iterate` $iterate `at` $at `ins` $ins `stats` $stats"
        " `outs` $outs (`step` $step^)? attr-dict"
    )


@irdl_op_definition
class RepeatOp(IRDLOperation):
    """Run the body `count` times; its argument is `first`, `first` + 1, …."""

    name = "ipu.repeat"
    first = prop_def(IntegerAttr[I64])
    count = prop_def(IntegerAttr[I64])
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect(), NoTerminator())
    assembly_format = "$first `times` $count $body attr-dict"

    def __init__(self, first: int, count: int):
        super().__init__(
            regions=[Region(Block(arg_types=[IndexType()]))],
            properties={"first": IntegerAttr(first, i64), "count": IntegerAttr(count, i64)},
        )


@irdl_op_definition
class RowOp(IRDLOperation):
    """A constant row, or the row `offset` further than another."""

    name = "ipu.row"
    base_row = opt_operand_def(IndexType)
    offset = prop_def(IntegerAttr[I64])
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "($base_row^ `plus`)? $offset attr-dict"
