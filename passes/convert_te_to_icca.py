"""`convert-te-to-icca`: operators become executes, weights and inputs come from HBM."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca.attrs import HbmKind, HbmKindAttr
from elk_ir.dialects.icca.ops import (
    ExecuteOp,
    HbmOp,
    PreloadOp,
    ProgramOp,
    RepeatOp,
    StoreOp,
    YieldOp,
)
from elk_ir.dialects.location import copy_location, node_location, node_name
from elk_ir.dialects.te.interface import StructuredOp, dims_of, identity_map
from elk_ir.dialects.te.ops import GatherOp, MapOp
from elk_ir.dialects.te.structure import AppendOp, GlobalKind, GlobalOp, LoadOp, UpdateOp
from elk_ir.dialects.te.structure import RepeatOp as TeRepeatOp
from elk_ir.dialects.te.structure import YieldOp as TeYieldOp
from elk_ir.passes.icca_support import Inserted, build_execute, chip_of, symbol
from elk_ir.plan.domain import AxisExpr


@dataclass(frozen=True)
class InHbm:
    """A value that lies in HBM: a whole tensor, a layer of a stack, or rows picked by an index
    (then `gather` is the operation that asks for them)."""

    name: str
    type: TensorType[Attribute]
    layer: SSAValue | None = None
    rows: str | None = None
    gather: GatherOp | None = None


@dataclass(frozen=True)
class Grown:
    """The filled part of a state, with the entries that this run appends."""

    state: InHbm
    entries: SSAValue
    axis: int
    start: int


Place = InHbm | Grown | SSAValue


MAX_ELEMENTS = 1 << 48
"""Of a tensor: more than any machine holds, so that extents beyond are a mistake."""

MAX_RANK = 32
"""Dimensions of a tensor."""


class _Converter:
    """Rewrites one function. `places` says where the value of each te value is."""

    def __init__(self, module: ModuleOp, taken: set[str]):
        self.module = module
        self.taken = taken
        self.has_hbm = chip_of(module).hbm is not None
        self.places: dict[SSAValue, Place] = {}
        self.globals: dict[str, HbmOp] = {}
        self.labels: dict[str, int] = {}
        self.program: ProgramOp | None = None
        self.spilled: dict[tuple[SSAValue, Block, int], str] = {}

    # ------------------------------------------------------------------ module level

    def convert_global(self, op: GlobalOp) -> None:
        """te.global → icca.hbm."""
        kind = HbmKind.STATE if op.kind.data is GlobalKind.STATE else HbmKind.WEIGHT
        properties = {k: v for k, v in op.properties.items() if k != "kind"}
        new = HbmOp(properties={**properties, "kind": HbmKindAttr(kind)})
        copy_location(op, new)
        self.globals[op.sym_name.data] = new
        Rewriter.replace_op(op, new, [])

    def declare(self, kind: HbmKind, onnx_name: str, type_: Attribute, before: Operation) -> HbmOp:
        """An icca.hbm for a graph input or output."""
        names = ArrayAttr([StringAttr(onnx_name)])
        op = HbmOp(
            properties={
                "sym_name": StringAttr(symbol(onnx_name, self.taken)),
                "kind": HbmKindAttr(kind),
                "type": type_,
                "inputs" if kind is HbmKind.INPUT else "outputs": names,
            }
        )
        op.location = node_location(onnx_name)
        Rewriter.insert_op(op, InsertPoint.before(before))
        return op

    def convert_function(self, function: func.FuncOp) -> None:
        """func.func → icca.program."""
        for arg in function.body.block.args:
            name = _onnx_name(function.arg_attrs, arg.index) or arg.name_hint or f"in{arg.index}"
            assert isinstance(arg.type, TensorType)
            hbm = self.declare(HbmKind.INPUT, name, arg.type, function)
            self.places[arg] = InHbm(hbm.sym_name.data, arg.type)
        block = Block()
        program = ProgramOp(properties={"sym_name": function.sym_name}, regions=[Region(block)])
        Rewriter.insert_op(program, InsertPoint.before(function))
        self.program = program
        terminator = function.body.block.last_op
        self.convert_block(function.body.block, block)
        assert isinstance(terminator, func.ReturnOp)
        for i, value in enumerate(terminator.operands):
            name = _onnx_name(function.res_attrs, i) or f"out{i}"
            hbm = self.declare(HbmKind.OUTPUT, name, value.type, program)
            resident = self.resident(value, block, terminator)
            store = StoreOp(resident, hbm.sym_name.data)
            store.location = hbm.location
            block.add_op(store)
        for op in reversed(list(function.walk())):
            if op is not function:
                op.drop_all_references()
        function.detach()
        function.erase(safe_erase=False)

    # ------------------------------------------------------------------ blocks

    def convert_block(self, source: Block, target: Block) -> None:
        """Append the conversion of every operation of `source`, in order, to `target`."""
        for op in list(source.ops):
            if isinstance(op, StructuredOp):
                self.convert_structured(op, target)
            elif isinstance(op, LoadOp):
                self.convert_load(op)
            elif isinstance(op, AppendOp):
                self.convert_append(op, target)
            elif isinstance(op, UpdateOp):
                self.convert_update(op, target)
            elif isinstance(op, TeRepeatOp):
                self.convert_repeat(op, target)
            elif not isinstance(op, func.ReturnOp | TeYieldOp):
                fail_at(op, f"convert-te-to-icca: {op.name} has no lowering to icca")

    def convert_load(self, op: LoadOp) -> None:
        """te.load: nothing happens until an operator preloads it."""
        layer = None if op.layer is None else self.places[op.layer]
        assert layer is None or isinstance(layer, SSAValue)
        assert isinstance(op.result.type, TensorType)
        self.places[op.result] = InHbm(op.source.root_reference.data, op.result.type, layer)

    def convert_append(self, op: AppendOp, target: Block) -> None:
        """te.append: store the new entries; readers insert them into the preloaded part."""
        name = op.state.root_reference.data
        state = self.globals[name]
        assert state.axis is not None and state.length is not None
        start = state.length.value.data
        layer = None if op.layer is None else self.places[op.layer]
        assert layer is None or isinstance(layer, SSAValue)
        entries = self.resident(op.entries, target, op)
        store = StoreOp(entries, name, layer, start)
        copy_location(op, store)
        target.add_op(store)
        assert isinstance(op.result.type, TensorType)
        self.places[op.result] = (
            entries
            if start == 0
            else Grown(InHbm(name, op.result.type, layer), entries, state.axis.value.data, start)
        )

    def convert_update(self, op: UpdateOp, target: Block) -> None:
        """te.update: store the new rows where the index says, which the store reads from HBM."""
        layer = None if op.layer is None else self.places[op.layer]
        assert layer is None or isinstance(layer, SSAValue)
        index = self.places[op.rows]
        if isinstance(index, InHbm) and not index.rows and index.layer is None:
            rows = index.name
        else:
            rows = self.spill(op, op.rows, self.resident(op.rows, target, op), target)
        entries = self.resident(op.entries, target, op)
        store = StoreOp(entries, op.state.root_reference.data, layer, rows=rows)
        copy_location(op, store)
        target.add_op(store)

    def convert_structured(self, op: StructuredOp, target: Block) -> None:
        """One operator → preloads of its operands from HBM, then an execute."""
        if isinstance(op, GatherOp) and (rows := self.gather_by_preload(op, target)) is not None:
            result = op.outs[0]
            if _read_once(result):
                self.places[result] = rows
                return
            maps = identity_map(rows.type.get_num_dims())
            move = MapOp.move(result, rows.type, dims_of(rows.type.get_shape()), maps, maps)
            copy_location(op, move)
            self.emit(move, [rows], target, op)
            self.places[result] = self.places.pop(move.outs[0])
            return
        self.emit(op, [self.places[v] for v in op.ins], target, op)

    def gather_by_preload(self, op: GatherOp, target: Block) -> InHbm | None:
        """The rows of a table in HBM that an index picks along axis 0, where they are no more bytes
        than the table. An index on chip (the experts that a router chose) goes to HBM first;
        without HBM the gather stays on chip."""
        table, index = self.places[op.ins[0]], self.places[op.ins[1]]
        if not isinstance(table, InHbm) or table.rows or isinstance(index, Grown):
            return None
        operator = op.operator()
        rows, picks = operator.operands
        result = operator.results[0]
        if not rows.axes or rows.axes[0].simple_dim != operator.reductions[0]:
            return None
        rank = len(result.axes) - len(rows.axes) + 1
        if result.axes[rank:] != rows.axes[1:] or prod(result.shape) > prod(rows.shape):
            return None
        type_ = op.outs[0].type
        assert isinstance(type_, TensorType)
        if result.axes[:rank] == picks.axes and result.shape[:rank] == picks.shape:
            if isinstance(index, SSAValue):
                if not self.has_hbm:
                    return None
                name = self.spill(op, op.ins[1], index, target)
                return InHbm(table.name, type_, table.layer, name, op)
            if index.rows or index.layer is not None:
                return None
            return InHbm(table.name, type_, table.layer, index.name, op)
        if not isinstance(index, SSAValue) or not self.has_hbm or rank != 1:
            return None
        # The rows lie along one axis, which the index's dimensions make up.
        dims = [axis.simple_dim for axis in picks.axes]
        extents = tuple(operator.dims[d].extent for d in dims if d is not None)
        if extents != picks.shape or dims != list(range(len(dims))):
            return None
        if result.shape[0] != prod(extents) or {d for d, _ in result.axes[0].terms} != set(dims):
            return None
        name = self.spill(op, op.ins[1], index, target, flatten=result.axes[0])
        return InHbm(table.name, type_, table.layer, name, op)

    def spill(
        self,
        user: Operation,
        value: SSAValue,
        index: SSAValue,
        target: Block,
        flatten: AxisExpr | None = None,
    ) -> str:
        """Store the index of a gather or an update, the te value `value`, to a tensor in HBM of its
        own; that tensor's name. `flatten` says where an entry lies along the single axis of that
        tensor. One store serves all users of a block by the same index."""
        rank = 0 if flatten is None else 1
        key = (value, target, rank)
        if key in self.spilled:
            return self.spilled[key]
        if flatten is not None:
            assert isinstance(index.type, TensorType)
            extents = index.type.get_shape()
            flat = MapOp.move(
                value,
                TensorType(index.type.element_type, [prod(extents)]),
                dims_of(extents),
                identity_map(len(extents)),
                (flatten,),
            )
            copy_location(user, flat)
            index = self.emit(flat, [index], target, user).outs[0]
            flat.erase()
        name = symbol(f"{node_name(user)}.rows", self.taken)
        hbm = HbmOp(
            properties={
                "sym_name": StringAttr(name),
                "kind": HbmKindAttr(HbmKind.SCRATCH),
                "type": index.type,
            }
        )
        copy_location(user, hbm)
        assert self.program is not None
        Rewriter.insert_op(hbm, InsertPoint.before(self.program))
        store = StoreOp(index, name)
        copy_location(user, store)
        target.add_op(store)
        self.spilled[key] = name
        return name

    def emit(
        self, op: StructuredOp, places: list[Place], target: Block, origin: Operation
    ) -> ExecuteOp:
        """Append preloads and the execute of `op`; its results become resident."""
        operands: list[SSAValue] = []
        inserted: list[Inserted | None] = []
        for place in places:
            insert = None
            if isinstance(place, Grown):
                insert = Inserted(place.entries, place.axis, place.start)
                place = place.state
            if isinstance(place, InHbm):
                preload = PreloadOp(place.name, place.type, place.layer, place.rows)
                copy_location(place.gather or origin, preload)
                preload.result.name_hint = place.name
                target.add_op(preload)
                operands.append(preload.result)
            else:
                operands.append(place)
            inserted.append(insert)
        execute = build_execute(op, operands, inserted, self.label(origin))
        target.add_op(execute)
        for old, new in zip(op.outs, execute.outs, strict=True):
            self.places[old] = new
        return execute

    def label(self, op: Operation) -> str:
        """The ONNX node's name; numbered where several executes stem from one node."""
        name = node_name(op)
        count = self.labels.get(name, 0)
        self.labels[name] = count + 1
        return name if count == 0 else f"{name}#{count}"

    def copy(self, value: SSAValue, place: Place, target: Block, origin: Operation) -> SSAValue:
        """A resident copy of a value: an execute that only moves data."""
        type_ = value.type
        assert isinstance(type_, TensorType)
        shape = type_.get_shape()
        maps = identity_map(len(shape))
        move = MapOp.move(value, type_, dims_of(shape), maps, maps)
        move.outs[0].name_hint = value.name_hint
        copy_location(origin, move)
        execute = self.emit(move, [place], target, origin)
        move.erase()
        return execute.outs[0]

    def resident(self, value: SSAValue, target: Block, origin: Operation) -> SSAValue:
        """`value` on chip, copied there if it lies in HBM."""
        place = self.places[value]
        if isinstance(place, SSAValue):
            return place
        return self.copy(value, place, target, origin)

    def convert_repeat(self, op: TeRepeatOp, target: Block) -> None:
        """te.repeat → icca.repeat. Each carried value enters the loop, and is carried on, through
        a copy: so it has one layout and one address however the body computes it."""
        inits = [self.copy(value, self.places[value], target, op) for value in op.inits]
        body = Block(arg_types=[a.type for a in op.body.block.args])
        for old, new in zip(op.body.block.args, body.args, strict=True):
            new.name_hint = old.name_hint
            self.places[old] = new
        self.convert_block(op.body.block, body)
        last = op.body.block.last_op
        assert isinstance(last, TeYieldOp)
        # What is handed on unchanged is read before the carried buffers are written.
        for value in last.values:
            place = self.places[value]
            if isinstance(place, SSAValue) and place in body.args:
                self.places[value] = self.copy(value, place, body, op)
        carried = [self.copy(value, self.places[value], body, op) for value in last.values]
        body.add_op(YieldOp(*carried))
        repeat = RepeatOp(0, op.count.value.data, inits, Region(body))
        copy_location(op, repeat)
        target.add_op(repeat)
        for old, new in zip(op.outs, repeat.outs, strict=True):
            new.name_hint = old.name_hint
            self.places[old] = new


def _read_once(value: SSAValue) -> bool:
    """Whether one operand of one operator in the same block is all that reads it."""
    uses = list(value.uses)
    return (
        len(uses) == 1
        and isinstance(uses[0].operation, StructuredOp)
        and uses[0].operation.parent is value.owner.parent
    )


def _onnx_name(attrs: ArrayAttr[Attribute] | None, index: int) -> str | None:
    if attrs is None:
        return None
    entry = attrs.data[index]
    name = getattr(entry, "data", {}).get("onnx.name")
    return name.data if isinstance(name, StringAttr) else None


def _check_sizes(op: Operation) -> None:
    """What schedules programs counts in 64 bits, and layouts are arrays of a limited rank."""
    values = [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
    for type_ in (op.properties.get("type"), *(v.type for v in values)):
        if not isinstance(type_, TensorType):
            continue
        if (count := prod(type_.get_shape())) > MAX_ELEMENTS:
            fail_at(
                op,
                f"convert-te-to-icca: a tensor of {count:,} elements fits no machine (at most"
                f" {MAX_ELEMENTS:,})",
            )
        if (rank := type_.get_num_dims()) > MAX_RANK:
            fail_at(op, f"convert-te-to-icca: a tensor of {rank} dimensions (at most {MAX_RANK})")


@dataclass(frozen=True)
class ConvertTeToIccaPass(ModulePass):
    """Turn tensor operators into preloads, executes and stores for a chip.

        elk-opt model.mlir -p 'convert-te-to-icca{chip=test-16}'

    Every structured operation becomes one `icca.execute`, preceded by one `icca.preload` for each
    operand that lies in HBM: program order is a correct, unoverlapped schedule. Executes have no
    plans yet. A gather from a table in HBM is a preload of the rows that its index names; an index
    that is computed on chip (a router's choice of experts) is stored to a scratch tensor in HBM
    first. Invariant: the numbers, and one execute per structured operation, but for gathers that
    became preloads, plus one copy per value that a loop carries or that goes from HBM to HBM.
    """

    name = "convert-te-to-icca"

    chip: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.chip is not None:
            from elk_ir.chips import load_chip

            op.attributes["icca.chip"] = ChipAttr.from_chip(load_chip(self.chip))
        if "icca.chip" not in op.attributes:
            raise PassFailedException("convert-te-to-icca: name a chip with chip=NAME")
        functions = [f for f in op.body.block.ops if isinstance(f, func.FuncOp)]
        if len(functions) != 1:
            raise PassFailedException(
                f"convert-te-to-icca: expected one function, found {len(functions)}"
            )
        taken = {
            name.data
            for o in op.body.block.ops
            if isinstance(name := o.properties.get("sym_name"), StringAttr)
            and not isinstance(o, func.FuncOp)
        }
        for each in op.walk():
            _check_sizes(each)
        converter = _Converter(op, taken)
        for o in list(op.body.block.ops):
            if isinstance(o, GlobalOp):
                converter.convert_global(o)
        converter.convert_function(functions[0])
