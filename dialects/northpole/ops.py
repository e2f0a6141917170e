"""Operations of `northpole` (docs/dialects/northpole.md).

Two forms share them. The *map*, which `northpole-map-stages` writes beside a te function, says what
lies where: blocks hold a `northpole.place` for each operator. The *program*, which
`convert-icca-to-northpole` makes of the map and of planned icca, can be executed: blocks hold a
`northpole.execute` for each operator, a stage calls blocks, and every value that crosses between
the host and the stages goes through a `northpole.send`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
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
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_region_def,
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
    NoMemoryEffect,
    NoTerminator,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.icca.attrs import HbmKind, HbmKindAttr, PlanAttr
from elk_ir.dialects.northpole.attrs import ResidentAttr, TaskAttr
from elk_ir.dialects.stored import StoredTensorOp
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.northpole.bytes import Resident
from elk_ir.northpole.network import Task
from elk_ir.northpole.place import division_errors
from elk_ir.plan.domain import Operator
from elk_ir.plan.plan import Plan, plan_errors

BLOCK = "northpole.block"
"""Attribute of a te operator: the block that it belongs to."""

HOST = "host"


def contents(region: Region) -> list[Operation]:
    """The operations of a region of one block, or of none: an empty one is printed as `{}`."""
    return [op for block in region.blocks for op in block.ops]


def _tasks(region: Region) -> tuple[Task, ...]:
    return tuple(op.task.data for op in contents(region) if isinstance(op, PlaceOp | ExecuteOp))


def _number(value: int) -> IntegerAttr[I64]:
    return IntegerAttr(value, i64)


@irdl_op_definition
class PlaceOp(IRDLOperation):
    """An operator on its unit; `grid` says how the cores divide its weights (reduction, outputs)
    or its cache (heads, positions) on each card of the stage."""

    name = "northpole.place"
    task = prop_def(TaskAttr)
    grid = prop_def(DenseArrayBase.constr(i64))
    assembly_format = "$task `grid` $grid attr-dict"

    def __init__(self, task: Task, grid: tuple[int, int]):
        super().__init__(
            properties={"task": TaskAttr(task), "grid": DenseArrayBase.from_list(i64, grid)}
        )

    def verify_(self) -> None:
        grid = self.grid.get_values()
        if len(grid) != 2 or min(grid) < 1:
            raise VerifyException(f"a grid has two extents of at least 1, not {list(grid)}")


@irdl_op_definition
class TensorOp(StoredTensorOp):
    """A tensor that outlives one pass.

    Weights and states stay in the cores that use them; each micro-batch has states of its own.
    Inputs and outputs of the graph are the host's.
    """

    name = "northpole.tensor"
    kind = prop_def(HbmKindAttr)

    def verify_(self) -> None:
        kind = self.kind.data
        self.verify_stored(weight=kind is HbmKind.WEIGHT, state=kind is HbmKind.STATE)


@irdl_op_definition
class ResidentOp(IRDLOperation):
    """What lies on the cores (or, on the host, in its memory): a tensor, a layer of it, or the rows
    of it that a tensor of indices picks."""

    name = "northpole.resident"
    source = prop_def(FlatSymbolRefAttrConstr)
    rows = opt_prop_def(FlatSymbolRefAttrConstr)
    layer = opt_operand_def(IndexType)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$source (`[` $layer^ `]`)? (`rows` $rows^)? attr-dict `:` type($result)"

    def __init__(
        self, source: str, type_: Attribute, layer: SSAValue | None = None, rows: str | None = None
    ):
        super().__init__(
            operands=[layer],
            result_types=[type_],
            properties={
                "source": SymbolRefAttr(source),
                "rows": None if rows is None else SymbolRefAttr(rows),
            },
        )


@irdl_op_definition
class AppendOp(IRDLOperation):
    """Write `entries` into a cache from entry `start` on, on the cores that hold those; the result
    is the cache, where it is."""

    name = "northpole.append"
    state = prop_def(FlatSymbolRefAttrConstr)
    start = prop_def(IntegerAttr[I64])
    layer = opt_operand_def(IndexType)
    entries = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$entries `to` $state (`[` $layer^ `]`)? `from` $start attr-dict"
        " `:` type($entries) `->` type($result)"
    )

    def __init__(
        self, entries: SSAValue, state: str, type_: Attribute, layer: SSAValue | None, start: int
    ):
        super().__init__(
            operands=[layer, entries],
            result_types=[type_],
            properties={"state": SymbolRefAttr(state), "start": _number(start)},
        )


@irdl_op_definition
class YieldOp(IRDLOperation):
    """What a block, a stage or the host hands on."""

    name = "northpole.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[list(values)])


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """One operator on its unit. Its plan says which core has which part of the iteration, and so
    of every operand and result; `cards` names the dimension that the cards of the stage divide
    (without it each does the same). The host has no plan."""

    name = "northpole.execute"
    task = prop_def(TaskAttr)
    plan = opt_prop_def(PlanAttr)
    cards = opt_prop_def(StringAttr)
    ins = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), NoMemoryEffect())
    assembly_format = (
        "$task (`plan` $plan^)? (`cards` $cards^)? `(` $ins `)` $body attr-dict"
        " `:` functional-type($ins, $outs)"
    )

    def __init__(
        self,
        task: Task,
        plan: PlanAttr | None,
        cards: str | None,
        ins: Sequence[SSAValue],
        structured: StructuredOp,
    ):
        block = Block([structured], arg_types=[v.type for v in ins])
        structured.operands = list(block.args)
        super().__init__(
            operands=[list(ins)],
            result_types=[[v.type for v in structured.outs]],
            properties={
                "task": TaskAttr(task),
                "plan": plan,
                "cards": None if cards is None else StringAttr(cards),
            },
            regions=[Region(block)],
        )

    @property
    def structured(self) -> StructuredOp:
        """The operation in the region."""
        op = self.body.block.first_op
        assert isinstance(op, StructuredOp)
        return op

    def operator(self) -> Operator:
        """The IR-free description of the operation."""
        return self.structured.operator()

    @property
    def divided(self) -> int | None:
        """The dimension that the cards of the stage divide."""
        if self.cards is None:
            return None
        names = [d.name for d in self.operator().dims]
        return names.index(self.cards.data)

    def partition(self) -> Plan:
        """The plan. Raises VerifyException where there is none, as on the host."""
        if self.plan is None:
            raise VerifyException(f"{self.task.data.name} has no plan")
        return self.plan.plan

    def verify_(self) -> None:
        ops = list(self.body.block.ops)
        if len(ops) != 1 or not isinstance(ops[0], StructuredOp):
            raise VerifyException(
                "the region of northpole.execute holds exactly one structured operation"
            )
        name, args = self.task.data.name, self.body.block.args
        if list(ops[0].ins) != list(args) or [a.type for a in args] != [v.type for v in self.ins]:
            raise VerifyException(f"{name}: the operation reads the operands, in order")
        if [v.type for v in ops[0].outs] != [v.type for v in self.outs]:
            raise VerifyException(f"{name}: the results are those of the operation")
        if self.plan is None:
            return
        operator = self.operator()
        names = tuple(d.name for d in operator.dims)
        if self.plan.data.names != names:
            raise VerifyException(
                f"the plan speaks of {self.plan.data.names}, the operator of {names}"
            )
        if self.cards is not None and self.cards.data not in names:
            raise VerifyException(f"{name} has no dimension {self.cards.data}")
        errors = plan_errors(operator, self.plan.plan, max(1, self.plan.plan.cores))
        if errors:
            raise VerifyException(f"{name}: {errors[0]}")


@irdl_op_definition
class BlockOp(IRDLOperation):
    """Operators between two points where one tensor crosses. Identical blocks of all layers are
    one `northpole.block`; `ways` cards share it, `head` marks the output layer. In a program the
    first argument is the layer."""

    name = "northpole.block"
    sym_name = prop_def(SymbolNameConstraint())
    label = prop_def(StringAttr)
    in_elements = prop_def(IntegerAttr[I64])
    out_elements = prop_def(IntegerAttr[I64])
    phases = prop_def(IntegerAttr[I64])
    ways = prop_def(IntegerAttr[I64])
    head = opt_prop_def(UnitAttr)
    body = region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "(`head` $head^)? $sym_name $label `in` $in_elements `out` $out_elements"
        " `phases` $phases `ways` $ways $body attr-dict"
    )

    def __init__(
        self,
        symbol: str,
        label: str,
        *,
        crossing: tuple[int, int],
        phases: int,
        ways: int,
        head: bool,
        places: Sequence[Operation],
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(symbol),
                "label": StringAttr(label),
                "in_elements": _number(crossing[0]),
                "out_elements": _number(crossing[1]),
                "phases": _number(phases),
                "ways": _number(ways),
                "head": UnitAttr() if head else None,
            },
            regions=[Region(Block(places))],
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What its operators ask of the units, in order."""
        return _tasks(self.body)

    def verify_(self) -> None:
        for op in contents(self.body):
            if not isinstance(op, PlaceOp | ExecuteOp | ResidentOp | AppendOp | YieldOp):
                raise VerifyException(f"a block holds no {op.name}")
            if isinstance(op, ExecuteOp):
                if op.plan is None:
                    raise VerifyException(f"{op.task.data.name} has no plan")
                errors = division_errors(op.plan.plan, self.ways.value.data, op.divided)
                if errors:
                    raise VerifyException(f"{op.task.data.name}: {errors[0]}")


@irdl_op_definition
class CallOp(IRDLOperation):
    """Run a block for one layer, inside a stage."""

    name = "northpole.call"
    block = prop_def(FlatSymbolRefAttrConstr)
    layer = prop_def(IntegerAttr[I64])
    ins = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$block `layer` $layer `(` $ins `)` attr-dict `:` functional-type($ins, $outs)"
    )

    def __init__(self, block: str, layer: int, ins: Sequence[SSAValue], types: Sequence[Attribute]):
        super().__init__(
            operands=[list(ins)],
            result_types=[list(types)],
            properties={"block": SymbolRefAttr(block), "layer": _number(layer)},
        )


@irdl_op_definition
class HostOp(IRDLOperation):
    """What the host does for every token: embedding, positions; its results go to the stages."""

    name = "northpole.host"
    sym_name = prop_def(SymbolNameConstraint())
    outs = var_result_def(TensorType)
    body = region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict (`:` type($outs)^)?"

    def __init__(
        self,
        symbol: str,
        places: Sequence[Operation],
        types: Sequence[Attribute] = (),
    ):
        super().__init__(
            result_types=[list(types)],
            properties={"sym_name": StringAttr(symbol)},
            regions=[Region(Block(places))],
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the host runs, in order."""
        return _tasks(self.body)

    def verify_(self) -> None:
        _check_yield(self, contents(self.body), f"host @{self.sym_name.data}")


def _check_yield(op: HostOp | StageOp, ops: Sequence[Operation], name: str) -> None:
    """The results of `op` are what its region yields."""
    last = ops[-1] if ops else None
    yielded = [v.type for v in last.values] if isinstance(last, YieldOp) else []
    if yielded != [v.type for v in op.outs]:
        raise VerifyException(f"{name} yields {len(yielded)} values for {len(op.outs)} results")


@irdl_op_definition
class StageOp(IRDLOperation):
    """A stage of the pipeline: `cards` that run `blocks` in order, and what stays on each. `layers`
    has the layer that each block belongs to (-1: none of the layers, the output layer). In a
    program the region calls the blocks on what was sent to this stage."""

    name = "northpole.stage"
    sym_name = prop_def(SymbolNameConstraint())
    label = prop_def(StringAttr)
    cards = prop_def(DenseArrayBase.constr(i64))
    blocks = prop_def(ArrayAttr[SymbolRefAttr])
    layers = prop_def(DenseArrayBase.constr(i64))
    resident = prop_def(ResidentAttr)
    ins = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    body = opt_region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "$sym_name $label `cards` $cards `blocks` $blocks `of` $layers $resident"
        " (`(` $ins^ `:` type($ins) `)`)? (`do` $body^)? attr-dict (`:` type($outs)^)?"
    )

    def __init__(
        self,
        symbol: str,
        label: str,
        cards: Sequence[int],
        blocks: Sequence[str],
        layers: Sequence[int],
        size: Resident,
        *,
        ins: Sequence[SSAValue] = (),
        body: Region | None = None,
        types: Sequence[Attribute] = (),
    ):
        super().__init__(
            operands=[list(ins)],
            result_types=[list(types)],
            regions=[[] if body is None else [body]],
            properties={
                "sym_name": StringAttr(symbol),
                "label": StringAttr(label),
                "cards": DenseArrayBase.from_list(i64, cards),
                "blocks": ArrayAttr([SymbolRefAttr(b) for b in blocks]),
                "layers": DenseArrayBase.from_list(i64, layers),
                "resident": ResidentAttr(size),
            },
        )

    @property
    def calls(self) -> tuple[CallOp, ...]:
        """The calls of its region, in order."""
        if self.body is None:
            return ()
        return tuple(op for op in contents(self.body) if isinstance(op, CallOp))

    def verify_(self) -> None:
        name = f"stage @{self.sym_name.data}"
        if len(self.layers) != len(self.blocks):
            raise VerifyException(
                f"@{self.sym_name.data}: {len(self.blocks)} blocks of {len(self.layers)} layers"
            )
        if self.body is None:
            return
        called = [c.block.root_reference.data for c in self.calls]
        if called != [b.root_reference.data for b in self.blocks]:
            raise VerifyException(f"{name} has other blocks than it calls")
        args = self.body.block.args
        if [a.type for a in args] != [v.type for v in self.ins]:
            raise VerifyException(f"{name}: the region takes what was sent, in order")
        _check_yield(self, contents(self.body), name)


@irdl_op_definition
class SendOp(IRDLOperation):
    """A micro-batch's tensors from one stage, or the host, to another: bytes for one pass."""

    name = "northpole.send"
    source = prop_def(FlatSymbolRefAttrConstr)
    target = prop_def(FlatSymbolRefAttrConstr)
    bytes = prop_def(IntegerAttr[I64])
    ins = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$source `->` $target `bytes` $bytes (`(` $ins^ `:` type($ins) `)`)? attr-dict"
        " (`:` type($outs)^)?"
    )

    def __init__(self, source: str, target: str, size: int, ins: Sequence[SSAValue] = ()):
        super().__init__(
            operands=[list(ins)],
            result_types=[[v.type for v in ins]],
            properties={
                "source": SymbolRefAttr(source),
                "target": SymbolRefAttr(target),
                "bytes": _number(size),
            },
        )

    def verify_(self) -> None:
        if [v.type for v in self.ins] != [v.type for v in self.outs]:
            raise VerifyException("what is sent arrives as it is")


@irdl_op_definition
class OutputOp(IRDLOperation):
    """A value that has reached the host is an output of the graph."""

    name = "northpole.output"
    target = prop_def(FlatSymbolRefAttrConstr)
    value = operand_def(TensorType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `to` $target attr-dict `:` type($value)"

    def __init__(self, value: SSAValue, target: str):
        super().__init__(operands=[value], properties={"target": SymbolRefAttr(target)})
