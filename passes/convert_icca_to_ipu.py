"""`convert-icca-to-ipu`: executes become exchanges and compute sets on variables at addresses."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects import ipu
from elk_ir.dialects.icca import ops as icca
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.ipu.attrs import (
    LayoutAttr,
)
from elk_ir.dialects.location import copy_location
from elk_ir.passes.icca_liveness import store_barrier, store_end
from elk_ir.passes.icca_support import (
    buffers_of,
    clone_onto,
    consumer_of,
    defining_preloads,
    layout_of,
    offset_of,
    program_of,
    sharding_of,
    symbol,
    tensor_of,
    yield_of,
)
from elk_ir.passes.ipu_lower_execute import ExecuteLowering
from elk_ir.plan.layout import Layout


def _int(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


class Lowering:
    """Lowers one program. Variables are named `<execute>.<role><number>`."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.program = program_of(module)
        self.taken = {
            o.sym_name.data for o in module.body.block.ops if isinstance(o, icca.HbmOp)
        } | {self.program.sym_name.data}
        self.variables: list[ipu.VarOp] = []
        self.codelets: dict[tuple[object, ...], str] = {}
        self.codelet_ops: list[ipu.CodeletOp] = []
        self.prefix: dict[icca.ExecuteOp, str] = {}
        self.results: dict[SSAValue, str] = {}
        self.handles: dict[SSAValue, str] = {}
        self.layers: dict[SSAValue, SSAValue] = {}
        self.waits: dict[Operation, list[Operation]] = {}
        self.tails: dict[Block, list[Operation]] = {}
        self.carried: dict[SSAValue, str] = {}

    # ------------------------------------------------------------------ declarations

    def variable(
        self,
        execute: icca.ExecuteOp,
        role: str,
        index: int,
        type_: Attribute,
        layout: Layout,
        size: int,
    ) -> str:
        """Declare the variable of one buffer of an execute; its symbol."""
        name = symbol(f"{self.prefix[execute]}.{role}{index}", self.taken)
        offset = offset_of(execute, role, index)
        if offset is None:
            raise PassFailedException(
                f"{execute.label.data}: buffer {role}{index} has no offset: run icca-allocate first"
            )
        op = ipu.VarOp(
            properties={
                "sym_name": StringAttr(name),
                "type": type_,
                "layout": LayoutAttr(layout),
                "at": _int(offset),
                "bytes": _int(size),
                "owner": execute.label,
            }
        )
        copy_location(execute, op)
        self.variables.append(op)
        return name

    def codelet(self, execute: icca.ExecuteOp) -> str:
        """The codelet of an execute; executes that compute the same share one."""
        structured = execute.structured
        key = (
            type(structured),
            tuple(v.type for v in structured.ins),
            tuple(v.type for v in structured.outs),
            tuple(sorted(structured.properties.items())),
        )
        if key not in self.codelets:
            name = symbol(self.prefix[execute], self.taken)
            self.codelets[key] = name
            block = icca.new_block(list(structured.ins))
            block.add_op(clone_onto(structured, block.args))
            op = ipu.CodeletOp(properties={"sym_name": StringAttr(name)}, regions=[Region(block)])
            copy_location(execute, op)
            self.codelet_ops.append(op)
        return self.codelets[key]

    # ------------------------------------------------------------------ program

    def lower(self) -> None:
        """Replace the program by its ipu form."""
        block = Block()
        self.block(self.program.body.block, block)
        program = ipu.ProgramOp(
            properties={"sym_name": self.program.sym_name}, regions=[Region(block)]
        )
        for op in list(self.module.body.block.ops):
            if isinstance(op, icca.HbmOp):
                new = ipu.RemoteOp(properties=dict(op.properties))
                copy_location(op, new)
                self.module.body.block.insert_op_before(new, op)
                op.detach()
                op.erase()
        self.module.body.block.add_ops([*self.variables, *self.codelet_ops, program])
        self.program.detach()
        self.program.erase(safe_erase=False)

    def block(self, source: Block, target: Block) -> None:
        """Lower the operations of a block, in order."""
        for op in source.ops:
            before = self.waits.pop(op, [])
            if isinstance(op, icca.RepeatOp | icca.YieldOp):
                target.add_ops(before)
                before = []
            first = target.last_op
            if isinstance(op, icca.PreloadOp):
                self.preload(op, target)
            elif isinstance(op, icca.ExecuteOp):
                self.execute(op, target)
            elif isinstance(op, icca.StoreOp):
                self.store(op, target)
            elif isinstance(op, icca.RepeatOp):
                self.repeat(op, target)
            elif isinstance(op, icca.LayerOp):
                row = ipu.RowOp(
                    operands=[None if op.base_layer is None else self.layers[op.base_layer]],
                    result_types=[op.result.type],
                    properties={"offset": op.offset},
                )
                self.layers[op.result] = row.result
                target.add_op(row)
            new = first.next_op if first is not None else target.first_op
            while new is not None:
                for inner in new.walk():
                    if not isinstance(op, icca.RepeatOp):
                        copy_location(op, inner)
                new = new.next_op
            target.add_ops(before)
        target.add_ops(self.tails.pop(source, []))

    def preload(self, op: icca.PreloadOp, target: Block) -> None:
        """icca.preload → ipu.copy_start into the consumer's preload variable."""
        name = self.handle(op.result)
        hbm = self.hbm(op.source)
        properties: dict[str, Attribute] = {"source": op.source, "target": SymbolRefAttr(name)}
        if op.rows is not None:
            properties["rows"] = op.rows
        if op.init is not None:
            properties["init"] = op.init
        if hbm.axis is not None and hbm.length is not None:
            properties["axis"], properties["limit"] = hbm.axis, hbm.length
        row = None if op.layer is None else self.layers[op.layer]
        target.add_op(ipu.CopyStartOp(operands=[row], properties=properties))

    def hbm(self, source: SymbolRefAttr) -> icca.HbmOp | ipu.RemoteOp:
        """The tensor in HBM that a symbol names."""
        for op in self.module.body.block.ops:
            if isinstance(op, icca.HbmOp) and op.sym_name.data == source.root_reference.data:
                return op
        raise PassFailedException(f"no tensor in HBM is called @{source.root_reference.data}")

    def handle(self, value: SSAValue) -> str:
        """The variable into which the preloads of a handle land; declared at first use."""
        execute, v = consumer_of(value)
        # A handle that a loop carries is filled by several preloads, all into one variable.
        group = [p.result for p in defining_preloads(execute.ins[v])]
        if group[0] in self.handles:
            return self.handles[group[0]]
        self.enter(execute)
        s = sharding_of(execute)
        size = next(
            b.size_bytes for b in buffers_of(execute) if (b.role, b.index) == ("preload", v)
        )
        name = self.variable(execute, "preload", v, tensor_of(value), s.preload_layout(v), size)
        for preload in group:
            self.handles[preload] = name
        return name

    def store(self, op: icca.StoreOp, target: Block) -> None:
        """icca.store → ipu.store_start, and a wait after the next execute."""
        name = self.results[op.source]
        hbm = self.hbm(op.target)
        properties: dict[str, Attribute] = {"source": SymbolRefAttr(name), "target": op.target}
        if op.start is not None and hbm.axis is not None:
            properties["axis"], properties["start"] = hbm.axis, op.start
        if op.rows is not None and hbm.axis is not None:
            properties["axis"], properties["rows"] = hbm.axis, op.rows
        row = None if op.layer is None else self.layers[op.layer]
        target.add_op(ipu.StoreStartOp(operands=[row], properties=properties))
        wait = ipu.StoreWaitOp(properties={"source": SymbolRefAttr(name)})
        copy_location(op, wait)
        until = store_end(op) or store_barrier(op)
        block = op.parent_block()
        if until is not None:
            self.waits.setdefault(until, []).append(wait)
        elif block is not None:
            self.tails.setdefault(block, []).append(wait)

    def repeat(self, op: icca.RepeatOp, target: Block) -> None:
        """icca.repeat → ipu.repeat; carried values are variables and need nothing."""
        new = ipu.RepeatOp(op.first.value.data, op.count.value.data)
        copy_location(op, new)
        inner = new.body.block
        self.layers[op.body.block.args[0]] = inner.args[0]
        inner.args[0].name_hint = op.body.block.args[0].name_hint
        for arg, init, out in zip(op.body.block.args[1:], op.inits, op.outs, strict=True):
            if not isinstance(init.type, HandleType):
                self.results[arg] = self.results[out] = self.results[init]
        for value, init in zip(yield_of(op).values, op.inits, strict=True):
            if not isinstance(init.type, HandleType):
                if layout_of(value) != layout_of(init):
                    raise PassFailedException(
                        f"a loop carries {init.name_hint} in one layout and yields it in another"
                    )
                self.carried[value] = self.results[init]
        self.block(op.body.block, inner)
        target.add_op(new)

    # ------------------------------------------------------------------ execute

    def enter(self, execute: icca.ExecuteOp) -> None:
        """Choose the prefix of the names of an execute's variables."""
        if execute not in self.prefix:
            used = set(self.prefix.values())
            self.prefix[execute] = symbol(execute.label.data, used)

    def execute(self, execute: icca.ExecuteOp, target: Block) -> None:
        """icca.execute → waits, inserts, reshards, ring steps, reduction, results."""
        self.enter(execute)
        ExecuteLowering(self, execute, target).lower()


@dataclass(frozen=True)
class ConvertIccaToIpuPass(ModulePass):
    """Lower a scheduled and allocated icca program to variables, exchanges and compute sets.

        elk-opt model.mlir -p 'convert-icca-to-ipu'

    Each buffer becomes a variable with the tile mapping that the plan implies. An execute becomes:
    wait for its copies, reshard resident operands, distribute, then ring steps of compute and
    shift, the exchange and merging of partial results, and the last phase. Invariant: the order of
    preloads, executes and stores, the addresses, and the numbers. Program size does not depend on
    the number of cores or of layers.
    """

    name = "convert-icca-to-ipu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        Lowering(op).lower()
