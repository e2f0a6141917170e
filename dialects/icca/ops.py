"""Operations of `icca`. Order is meaning: see docs/dialects/icca.md."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I64,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import (
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    Pure,
    RecursiveMemoryEffect,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.icca.attrs import HandleType, HbmKind, HbmKindAttr, PlanAttr
from elk_ir.dialects.stored import StoredTensorOp
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.plan.buffers import Source
from elk_ir.plan.domain import Operator, Phase
from elk_ir.plan.plan import plan_errors

Offset = IntegerAttr[I64]
Offsets = DenseArrayBase


def offset_attr(value: int) -> IntegerAttr[I64]:
    """A byte offset as an attribute."""
    return IntegerAttr(value, i64)


@irdl_op_definition
class HbmOp(StoredTensorOp):
    """A tensor in HBM."""

    name = "icca.hbm"
    kind = prop_def(HbmKindAttr)

    def verify_(self) -> None:
        kind = self.kind.data
        self.verify_stored(weight=kind is HbmKind.WEIGHT, state=kind is HbmKind.STATE)


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """A program for the chip named by the module's `icca.chip`: preloads, executes and stores."""

    name = "icca.program"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict"


@irdl_op_definition
class PreloadOp(IRDLOperation):
    """Start moving a tensor from HBM into the cores, in the preload-state of its execute's plan.

    Preloads run one after another in program order. `layer` picks one of the stacked tensors;
    `rows` names an HBM tensor of indices: the rows it holds are fetched along axis 0. Of a state
    only the filled entries move. `init`: the host does it before the program starts, and the
    buffer lives for the whole program (chips without HBM).
    """

    name = "icca.preload"
    source = prop_def(FlatSymbolRefAttrConstr)
    rows = opt_prop_def(FlatSymbolRefAttrConstr)
    at = opt_prop_def(IntegerAttr[I64])
    init = opt_prop_def(UnitAttr)
    layer = opt_operand_def(IndexType)
    result = result_def(HandleType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "(`init` $init^)? $source (`[` $layer^ `]`)? (`rows` $rows^)? (`at` $at^)? attr-dict"
        " `:` type($result)"
    )

    def __init__(
        self,
        source: str,
        tensor: TensorType[Attribute],
        layer: SSAValue | None = None,
        rows: str | None = None,
    ):
        super().__init__(
            operands=[layer],
            result_types=[HandleType(tensor)],
            properties={
                "source": SymbolRefAttr(source),
                "rows": None if rows is None else SymbolRefAttr(rows),
            },
        )


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Write a resident tensor to HBM, asynchronously, on the queue of the preloads.

    For a state, `start` is the entry along its axis at which the tensor lands; `rows` names an HBM
    tensor of indices instead, read when the store's turn comes: entry i replaces the row that index
    i names (from the end, if negative). The source lives until the execute after the store has
    ended; the store completes by then.
    """

    name = "icca.store"
    target = prop_def(FlatSymbolRefAttrConstr)
    start = opt_prop_def(IntegerAttr[I64])
    rows = opt_prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    source = operand_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$source `to` $target (`[` $layer^ `]`)? (`from` $start^)? (`rows` $rows^)? attr-dict"
        " `:` type($source)"
    )

    def __init__(
        self,
        source: SSAValue,
        target: str,
        layer: SSAValue | None = None,
        start: int | None = None,
        rows: str | None = None,
    ):
        super().__init__(
            operands=[layer, source],
            properties={
                "target": SymbolRefAttr(target),
                "start": None if start is None else offset_attr(start),
                "rows": None if rows is None else SymbolRefAttr(rows),
            },
        )

    def verify_(self) -> None:
        if self.start is not None and self.rows is not None:
            raise VerifyException(
                f"the store to @{self.target.root_reference.data} names both a first entry and rows"
            )


@irdl_op_definition
class YieldOp(IRDLOperation):
    """What an execute leaves on chip, or what a repeat carries into its next iteration."""

    name = "icca.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue):
        super().__init__(operands=[list(values)])


@irdl_op_definition
class RelayoutOp(IRDLOperation):
    """Bring a resident operand from its producer's layout into this execute's sharding."""

    name = "icca.relayout"
    source = operand_def(TensorType)
    at = opt_prop_def(IntegerAttr[I64])
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$source (`at` $at^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[source.type])


@irdl_op_definition
class InsertOp(IRDLOperation):
    """Put a resident tensor into a preloaded state, behind its filled entries."""

    name = "icca.insert"
    entries = operand_def(TensorType)
    target = operand_def(HandleType)
    axis = prop_def(IntegerAttr[I64])
    start = prop_def(IntegerAttr[I64])
    result = result_def(HandleType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$entries `into` $target `axis` $axis `from` $start attr-dict"
        " `:` type($entries) `,` type($target) `->` type($result)"
    )

    def __init__(self, entries: SSAValue, target: SSAValue, axis: int, start: int):
        super().__init__(
            operands=[entries, target],
            result_types=[target.type],
            properties={"axis": offset_attr(axis), "start": offset_attr(start)},
        )


@irdl_op_definition
class DistributeOp(IRDLOperation):
    """Wait for a preload and take it from the preload-state into the execute-state.

    Without an offset of its own the two states are the same and nothing moves.
    """

    name = "icca.distribute"
    source = operand_def(HandleType)
    at = opt_prop_def(IntegerAttr[I64])
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$source (`at` $at^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue):
        assert isinstance(source.type, HandleType)
        super().__init__(operands=[source], result_types=[source.type.tensor])


@irdl_op_definition
class TileOp(IRDLOperation):
    """Run one structured operation on the tiles of the plan, step by step around its rings.

    The region holds the operation on whole tensors. Results: the partial statistics, each as a
    tensor [ways, dimensions…], or the operation's results where it has no statistics. `at` are the
    offsets of the results, `landing` those of the buffers into which ring shifts arrive (-1 for an
    operand that does not rotate).
    """

    name = "icca.tile"
    ins = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    at = opt_prop_def(DenseArrayBase.constr(i64))
    landing = opt_prop_def(DenseArrayBase.constr(i64))
    body = region_def("single_block")
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect(), NoTerminator())
    assembly_format = (
        "`(` $ins `)` (`at` $at^)? (`landing` $landing^)? $body attr-dict"
        " `:` functional-type($ins, $outs)"
    )

    @property
    def structured(self) -> StructuredOp:
        """The operation in the region."""
        op = self.body.block.first_op
        assert isinstance(op, StructuredOp)
        return op

    def verify_(self) -> None:
        block = self.body.block
        ops = list(block.ops)
        if len(ops) != 1 or not isinstance(ops[0], StructuredOp):
            raise VerifyException("the region of icca.tile holds exactly one structured operation")
        if list(ops[0].ins) != list(block.args):
            raise VerifyException("the operation reads the arguments of the region, in order")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Merge the partial statistics of split reductions and apply the operation's last phase.

    `stats` come from an icca.tile, `with` are the operands read after the reduction. Offsets:
    `gathered` and `merged` one per statistic (absent where the reduction is not split), `at` one
    per result.
    """

    name = "icca.reduce"
    stats = var_operand_def(TensorType)
    extra = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    gathered = opt_prop_def(DenseArrayBase.constr(i64))
    merged = opt_prop_def(DenseArrayBase.constr(i64))
    at = opt_prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "`(` $stats `)` (`with` `(` $extra^ `:` type($extra) `)`)? (`gathered` $gathered^)?"
        " (`merged` $merged^)? (`at` $at^)? attr-dict"
        " `:` functional-type($stats, $outs)"
    )


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """One operator on all cores.

    It waits for its handles, brings resident operands into its sharding, distributes, tiles,
    reduces. It blocks every later preload and execute. Operands are the structured operation's,
    in order: a handle for what comes from HBM, a tensor for what is resident; then the tensors
    that are inserted into preloaded states. The region's arguments are the same values.
    """

    name = "icca.execute"
    label = prop_def(StringAttr)
    ins = var_operand_def(base(TensorType) | base(HandleType))
    entries = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    plan = opt_prop_def(PlanAttr)
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$label `(` $ins `)` (`entries` `(` $entries^ `:` type($entries) `)`)?"
        " (`plan` $plan^)? $body attr-dict `:` functional-type($ins, $outs)"
    )

    @property
    def tile(self) -> TileOp:
        """The tile operation of the body."""
        for op in self.body.block.ops:
            if isinstance(op, TileOp):
                return op
        raise VerifyException("icca.execute has no icca.tile")

    @property
    def reduce(self) -> ReduceOp | None:
        """The reduce operation of the body, if the operator has statistics."""
        for op in self.body.block.ops:
            if isinstance(op, ReduceOp):
                return op
        return None

    @property
    def structured(self) -> StructuredOp:
        """The structured operation that is executed."""
        return self.tile.structured

    def operator(self) -> Operator:
        """The IR-free description of the structured operation."""
        return self.structured.operator()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where each operand comes from."""
        return tuple(
            Source.HBM if isinstance(v.type, HandleType) else Source.RESIDENT for v in self.ins
        )

    def staging(self, v: int) -> RelayoutOp | DistributeOp:
        """The operation of the body that stages operand v."""
        tile, reduce = self.tile, self.reduce
        op = self.operator()
        if op.stats and op.operands[v].phase is Phase.APPLY:
            assert reduce is not None
            extra = [i for i, a in enumerate(op.operands) if a.phase is Phase.APPLY]
            owner = reduce.extra[extra.index(v)].owner
        else:
            owner = tile.ins[v].owner
        assert isinstance(owner, RelayoutOp | DistributeOp)
        return owner

    def verify_(self) -> None:
        tile = self.tile
        operator = self.operator()
        if len(tile.ins) != len(self.ins) or len(operator.operands) != len(self.ins):
            raise VerifyException(
                f"{len(self.ins)} operands for an operator of {len(operator.operands)}"
            )
        for i, (value, inner) in enumerate(zip(self.ins, tile.ins, strict=True)):
            outer = value.type.tensor if isinstance(value.type, HandleType) else value.type
            if outer != inner.type:
                raise VerifyException(f"operand {i} is {outer}, the tile reads {inner.type}")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [v.type for v in last.values] != [
            v.type for v in self.outs
        ]:
            raise VerifyException("the body yields the results of the execute")
        if (self.reduce is None) != (not operator.stats):
            raise VerifyException(f"{operator.kind}: icca.reduce goes with statistics")
        if self.plan is not None:
            names = tuple(d.name for d in operator.dims)
            if self.plan.data.names != names:
                raise VerifyException(
                    f"the plan speaks of {self.plan.data.names}, the operator of {names}"
                )
            errors = plan_errors(operator, self.plan.plan, max(1, self.plan.plan.cores))
            if errors:
                raise VerifyException(f"{self.label.data}: {errors[0]}")


@irdl_op_definition
class RepeatOp(IRDLOperation):
    """`count` identical layers, the first argument of the body being `first`, `first` + 1, ….

    The other arguments are carried: resident tensors, or handles of preloads issued one iteration
    ahead. A carried value has one offset at entry, yield and exit.
    """

    name = "icca.repeat"
    first = prop_def(IntegerAttr[I64])
    count = prop_def(IntegerAttr[I64])
    inits = var_operand_def(base(TensorType) | base(HandleType))
    outs = var_result_def(base(TensorType) | base(HandleType))
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = (
        "$first `times` $count `iter` `(` $inits `)` $body attr-dict"
        " `:` functional-type($inits, $outs)"
    )

    def __init__(self, first: int, count: int, inits: Sequence[SSAValue], body: Region):
        super().__init__(
            operands=[list(inits)],
            result_types=[[v.type for v in inits]],
            regions=[body],
            properties={"first": offset_attr(first), "count": offset_attr(count)},
        )

    def verify_(self) -> None:
        args = self.body.block.args
        last = self.body.block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("the body of icca.repeat ends with icca.yield")
        if not args or not isinstance(args[0].type, IndexType):
            raise VerifyException("the first argument of the body is the layer, an index")
        types = [v.type for v in self.inits]
        for what, values in (
            ("arguments", args[1:]),
            ("yields", last.values),
            ("results", self.outs),
        ):
            if [v.type for v in values] != types:
                raise VerifyException(f"the {what} of icca.repeat differ in type from its operands")


@irdl_op_definition
class LayerOp(IRDLOperation):
    """A constant layer, or the layer `offset` further than another: `icca.layer %l + 1`."""

    name = "icca.layer"
    base_layer = opt_operand_def(IndexType)
    offset = prop_def(IntegerAttr[I64])
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "($base_layer^ `plus`)? $offset attr-dict"

    def __init__(self, offset: int, base_layer: SSAValue | None = None):
        super().__init__(
            operands=[base_layer],
            result_types=[IndexType()],
            properties={"offset": offset_attr(offset)},
        )


def new_block(values: Sequence[SSAValue]) -> Block:
    """A block whose arguments have the types and name hints of `values`."""
    block = Block(arg_types=[v.type for v in values])
    for arg, value in zip(block.args, values, strict=True):
        arg.name_hint = value.name_hint
    return block
