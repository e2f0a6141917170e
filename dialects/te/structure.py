"""Operations of `te` that are not structured: weights, state, layers, host work."""

from __future__ import annotations

from collections.abc import Sequence
from enum import auto

from xdsl.dialects.builtin import (
    I64,
    FlatSymbolRefAttrConstr,
    IndexType,
    IntegerAttr,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Block, Region, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import (
    IsTerminator,
    MemoryWriteEffect,
    NoMemoryEffect,
    Pure,
    RecursiveMemoryEffect,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from elk_ir.dialects.stored import StoredTensorOp
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import dtype_of


class GlobalKind(StrEnum):
    """What a global tensor is for."""

    STATE = auto()
    WEIGHT = auto()


@irdl_attr_definition
class GlobalKindAttr(EnumAttribute[GlobalKind], SpacedOpaqueSyntaxAttribute):
    """`weight` or `state`."""

    name = "te.global_kind"


@irdl_op_definition
class GlobalOp(StoredTensorOp):
    """A tensor that outlives one run: a weight, or state updated in place. In a `te.repeat` each
    iteration has a layer of it."""

    name = "te.global"
    kind = prop_def(GlobalKindAttr)

    def verify_(self) -> None:
        kind = self.kind.data
        self.verify_stored(weight=kind is GlobalKind.WEIGHT, state=kind is GlobalKind.STATE)


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The value of a global, or of one layer of a stacked one."""

    name = "te.load"
    source = prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    result = result_def(TensorType)
    traits = traits_def(NoMemoryEffect())
    assembly_format = "$source (`[` $layer^ `]`)? attr-dict `:` type($result)"

    def __init__(self, source: str, result: Attribute, layer: SSAValue | None = None):
        super().__init__(
            operands=[layer],
            result_types=[result],
            properties={"source": SymbolRefAttr(source)},
        )


@irdl_op_definition
class AppendOp(IRDLOperation):
    """Write `entries` behind the filled part of a state, in place, and yield the filled part.

    The state's length stays what it was when the run started: every layer appends once a run.
    """

    name = "te.append"
    state = prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    entries = operand_def(TensorType)
    result = result_def(TensorType)
    assembly_format = (
        "$entries `to` $state (`[` $layer^ `]`)? attr-dict `:` type($entries) `->` type($result)"
    )
    traits = traits_def(MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self, entries: SSAValue, state: str, result: Attribute, layer: SSAValue | None = None
    ):
        super().__init__(
            operands=[layer, entries],
            result_types=[result],
            properties={"state": SymbolRefAttr(state)},
        )


@irdl_op_definition
class UpdateOp(IRDLOperation):
    """Write `entries` over rows of a state, in place: entry i along the state's axis becomes the
    row that element i of `rows` names, which is known only at run time.

    Negative numbers count from the end; one that is out of range is an error. What a te.load of
    the state has read before stays what it was.
    """

    name = "te.update"
    state = prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    entries = operand_def(TensorType)
    rows = operand_def(TensorType)
    assembly_format = (
        "$entries `to` $state (`[` $layer^ `]`)? `rows` $rows attr-dict"
        " `:` type($entries) `,` type($rows)"
    )
    traits = traits_def(MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self, entries: SSAValue, state: str, rows: SSAValue, layer: SSAValue | None = None
    ):
        super().__init__(
            operands=[layer, entries, rows], properties={"state": SymbolRefAttr(state)}
        )

    def verify_(self) -> None:
        rows, dtype = shape_dtype(self.rows.type)
        if len(rows) != 1 or dtype_of(dtype).kind not in "iu":
            raise VerifyException(
                f"the rows of @{self.state.root_reference.data} are one axis of integers, not"
                f" {self.rows.type}"
            )
        if rows[0] not in shape_dtype(self.entries.type)[0]:
            raise VerifyException(
                f"{rows[0]} rows of @{self.state.root_reference.data} are named, the entries are"
                f" {self.entries.type}"
            )


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Values carried to the next iteration, or out of a region."""

    name = "te.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue):
        super().__init__(operands=[list(values)])


@irdl_op_definition
class RepeatOp(IRDLOperation):
    """`count` identical layers: the body's first argument is the layer, the others are carried.

    %out = te.repeat 2 iter(%h) {
    ^bb0(%l : index, %x : tensor<2x64xf32>):
      ...
      te.yield %y : tensor<2x64xf32>
    } : tensor<2x64xf32>
    """

    name = "te.repeat"
    count = prop_def(IntegerAttr[I64])
    inits = var_operand_def()
    outs = var_result_def()
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = (
        "$count `iter` `(` $inits `)` $body attr-dict `:` functional-type($inits, $outs)"
    )

    def __init__(self, count: int, inits: Sequence[SSAValue], body: Region):
        super().__init__(
            operands=[list(inits)],
            result_types=[[v.type for v in inits]],
            regions=[body],
            properties={"count": IntegerAttr(count, i64)},
        )

    def verify_(self) -> None:
        args = self.body.block.args
        yielded = self.body.block.last_op
        if not isinstance(yielded, YieldOp):
            raise VerifyException("the body of te.repeat ends with te.yield")
        types = [v.type for v in self.inits]
        if not args or not isinstance(args[0].type, IndexType):
            raise VerifyException("the first argument of the body is the layer, an index")
        for what, values in (
            ("arguments", args[1:]),
            ("yielded values", yielded.values),
            ("results", self.outs),
        ):
            if [v.type for v in values] != types:
                raise VerifyException(f"the {what} of te.repeat differ in type from its operands")


def new_repeat_body(inits: Sequence[SSAValue]) -> Region:
    """A region with the arguments of a repeat over `inits`, to be filled."""
    return Region(Block(arg_types=[IndexType(), *(v.type for v in inits)]))
