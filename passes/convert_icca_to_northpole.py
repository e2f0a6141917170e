"""`convert-icca-to-northpole`: from a stage map and planned icca to a program of cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import IndexType, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.diagnostics import fail_at
from elk_ir.dialects import icca, northpole
from elk_ir.dialects.icca.attrs import HandleType, HbmKind
from elk_ir.dialects.location import copy_location
from elk_ir.dialects.types import shape_dtype
from elk_ir.northpole.network import Task, Unit
from elk_ir.numerics.body import dtype_of
from elk_ir.passes.icca_support import program_of, yield_of
from elk_ir.passes.northpole_place import CARDS, block_of, kind_of, map_of

Key = tuple[str, int, int]
"""A value between stages: ("host", n, 0), or (block symbol, instance number, result)."""


@dataclass
class _Part:
    """A block while it is collected: its operations, what enters and what leaves it."""

    symbol: str
    ops: list[icca.ExecuteOp | icca.StoreOp] = field(default_factory=list)
    inputs: list[SSAValue] = field(default_factory=list)
    outputs: list[SSAValue] = field(default_factory=list)


@dataclass(frozen=True)
class _Instance:
    """A block run for one layer: the values it takes, by where they come from."""

    symbol: str
    number: int
    layer: int
    ins: tuple[Key, ...]


def tensor_bytes(type_: Attribute) -> int:
    """Bytes of a tensor, packed: elements of less than a byte share one."""
    shape, dtype = shape_dtype(type_)
    bits = 4 if dtype.endswith("int4") else 2 if dtype.endswith("int2") else 0
    return -(-prod(shape) * (bits or 8 * dtype_of(dtype).itemsize) // 8)


class _Converter:
    """Rewrites one module."""

    def __init__(self, module: ModuleOp):
        self.module, self.program, self.map = module, program_of(module), map_of(module)
        self.kinds = kind_of(module)
        self.stages = [
            op for op in northpole.contents(self.map.body) if isinstance(op, northpole.StageOp)
        ]
        self.blocks = {
            op.sym_name.data: op for op in module.ops if isinstance(op, northpole.BlockOp)
        }
        self.alias: dict[SSAValue, SSAValue] = {}
        self.parts: dict[str, _Part] = {}
        self.owner: dict[SSAValue, str] = {}
        self.host: list[icca.ExecuteOp] = []
        self.instances: list[_Instance] = []
        self.host_keys: dict[SSAValue, Key] = {}
        self.outputs: list[tuple[SSAValue, str, icca.StoreOp]] = []

    def run(self) -> None:
        self.collect(list(self.program.body.block.ops))
        self.connect()
        env: dict[SSAValue, Key] = {}
        finals = self.trace(env)
        self.check_stages()
        for part in self.parts.values():
            self.build_block(part)
        self.build_program(finals)
        for op in list(self.module.ops):
            if isinstance(op, icca.HbmOp):
                new = northpole.TensorOp(properties=dict(op.properties))
                copy_location(op, new)
                Rewriter.replace_op(op, new, [])
        for op in reversed(list(self.program.walk())):
            if op is not self.program:
                op.drop_all_references()
        self.program.detach()
        self.program.erase(safe_erase=False)

    # ------------------------------------------------------------------ who runs what

    def real(self, value: SSAValue) -> SSAValue:
        """The value of which `value` is a copy."""
        while value in self.alias:
            value = self.alias[value]
        return value

    def collect(self, ops: Sequence[Operation], loop: icca.RepeatOp | None = None) -> None:
        """Sort operations into blocks and the host; copies stand for what they copy."""
        for op in ops:
            if isinstance(op, icca.ExecuteOp):
                self.sort(op, loop)
            elif isinstance(op, icca.StoreOp):
                self.store(op, loop)
            elif isinstance(op, icca.RepeatOp):
                if loop is not None:
                    fail_at(op, "a loop inside a loop: layers are rolled once")
                self.collect(list(op.body.block.ops), op)
            elif not isinstance(op, icca.PreloadOp | icca.YieldOp):
                fail_at(op, f"{op.name} is a scheduler's: nothing is fetched on cards")

    def sort(self, op: icca.ExecuteOp, loop: icca.RepeatOp | None) -> None:
        symbol = block_of(op)
        if symbol is None and _is_copy(op):
            self.alias[op.outs[0]] = op.ins[0]
            return
        if symbol is None:
            if loop is not None:
                fail_at(op, f"{op.label.data}: the host runs nothing between layers")
            self.host.append(op)
            return
        if symbol not in self.blocks:
            fail_at(op, f"{op.label.data}: there is no northpole.block @{symbol}")
        if op.plan is None:
            fail_at(op, f"{op.label.data} has no plan: run northpole-place first")
        self.parts.setdefault(symbol, _Part(symbol)).ops.append(op)
        for value in op.outs:
            self.owner[value] = symbol

    def store(self, op: icca.StoreOp, loop: icca.RepeatOp | None) -> None:
        name, value = op.target.root_reference.data, self.real(op.source)
        if self.kinds[name] is HbmKind.OUTPUT:
            if loop is not None:
                fail_at(op, f"output @{name} is written in a loop")
            self.outputs.append((value, name, op))
            return
        if op.rows is not None:
            fail_at(
                op,
                f"rows of @{name} are stored where an index says, which cards cannot: leave static"
                " caches as they are with te-make-state{static=false}",
            )
        symbol = self.owner.get(value)
        if symbol is None:
            fail_at(op, f"the entries that @{name} gets are not computed on a card")
        self.parts[symbol].ops.append(op)

    def connect(self) -> None:
        """What enters each block from outside, and what leaves it."""
        wanted: list[SSAValue] = [value for value, _, _ in self.outputs]
        for execute in self.host:
            wanted += [self.real(v) for v in execute.ins]
        for op in self.program.walk():
            if isinstance(op, icca.RepeatOp):
                wanted += [self.real(v) for v in (*op.inits, *yield_of(op).values)]
        for part in self.parts.values():
            for op in part.ops:
                for value in self.reads(op):
                    if self.owner.get(value) == part.symbol:
                        continue
                    if value not in part.inputs:
                        part.inputs.append(value)
                    wanted.append(value)
        for value in wanted:
            symbol = self.owner.get(value)
            if symbol is not None and value not in self.parts[symbol].outputs:
                self.parts[symbol].outputs.append(value)

    def reads(self, op: icca.ExecuteOp | icca.StoreOp) -> Iterator[SSAValue]:
        """The values of a block's operation that are neither weights nor states."""
        values = op.ins if isinstance(op, icca.ExecuteOp) else (op.source,)
        for value in values:
            value = self.real(value)
            if not isinstance(value.type, HandleType) or self.from_host(value):
                yield self.input_of(value)

    def preload(self, handle: SSAValue) -> icca.PreloadOp:
        owner = handle.owner
        assert isinstance(owner, icca.PreloadOp)
        return owner

    def from_host(self, handle: SSAValue) -> bool:
        """Whether the host has what a card reads: a graph input, or rows that it picks."""
        preload = self.preload(handle)
        kind = self.kinds[preload.source.root_reference.data]
        return kind is HbmKind.INPUT or preload.rows is not None

    def input_of(self, value: SSAValue) -> SSAValue:
        """One handle stands for all preloads of the same tensor of the host."""
        if not isinstance(value.type, HandleType):
            return value
        preload = self.preload(value)
        for known in self.host_keys:
            if isinstance(known.type, HandleType):
                other = self.preload(known)
                if (other.source, other.rows) == (preload.source, preload.rows):
                    return known
        self.host_keys[value] = (northpole.HOST, len(self.host_keys), 0)
        return value

    # ------------------------------------------------------------------ what runs in what order

    def trace(self, env: dict[SSAValue, Key]) -> list[Key]:
        """Every block instance with the origin of its operands; returns those of the outputs."""
        env.update(self.host_keys)
        for execute in self.host:
            for value in execute.outs:
                self.host_keys[value] = env[value] = (northpole.HOST, len(self.host_keys), 0)
        done: set[str] = set()
        for op in self.program.body.block.ops:
            if isinstance(op, icca.RepeatOp):
                self.trace_loop(op, env)
            elif isinstance(op, icca.ExecuteOp) and (symbol := block_of(op)) not in (None, *done):
                done.add(symbol)
                self.instance(symbol, 0, env)
        return [env[value] for value, _, _ in self.outputs]

    def trace_loop(self, loop: icca.RepeatOp, env: dict[SSAValue, Key]) -> None:
        body = loop.body.block
        symbols = list(
            dict.fromkeys(
                s for op in body.ops if isinstance(op, icca.ExecuteOp) if (s := block_of(op))
            )
        )
        carried = [env[self.real(v)] for v in loop.inits]
        first = loop.first.value.data
        for layer in range(first, first + loop.count.value.data):
            env.update(zip(body.args[1:], carried, strict=True))
            for symbol in symbols:
                self.instance(symbol, layer, env)
            carried = [env[self.real(v)] for v in yield_of(loop).values]
        env.update(zip(loop.outs, carried, strict=True))

    def instance(self, symbol: str, layer: int, env: dict[SSAValue, Key]) -> None:
        part, number = self.parts[symbol], len(self.instances)
        for value in part.inputs:
            if value not in env:
                raise PassFailedException(
                    f"block @{symbol} reads {value.name_hint or 'a value'} that a later block makes"
                )
        ins = tuple(env[v] for v in part.inputs)
        self.instances.append(_Instance(symbol, number, layer, ins))
        for i, value in enumerate(part.outputs):
            env[value] = (symbol, number, i)

    def check_stages(self) -> None:
        mapped = [b.root_reference.data for s in self.stages for b in s.blocks]
        found = [i.symbol for i in self.instances]
        if mapped != found:
            raise PassFailedException(
                f"the stages hold {len(mapped)} blocks in another order than the {len(found)} that"
                " the program runs"
            )

    # ------------------------------------------------------------------ blocks

    def build_block(self, part: _Part) -> None:
        """Replace the places of a block by its operators."""
        old = self.blocks[part.symbol]
        types = [_tensor(v) for v in part.inputs]
        block = Block(arg_types=[IndexType(), *types])
        block.args[0].name_hint = "layer"
        values: dict[SSAValue, SSAValue] = {}
        for arg, value in zip(block.args[1:], part.inputs, strict=True):
            arg.name_hint = value.name_hint
            values[value] = arg
        builder = _BlockBuilder(self, block, values, iter(old.tasks))
        for op in part.ops:
            builder.add(op)
        block.add_op(northpole.YieldOp([values[v] for v in part.outputs]))
        new = northpole.BlockOp.create(properties=dict(old.properties), regions=[Region(block)])
        copy_location(old, new)
        Rewriter.replace_op(old, new, [])

    def build_host(self, finals: Sequence[Key]) -> northpole.HostOp:
        """The host's operators; what the stages and the outputs need of them. `host_keys` is left
        with these values only."""
        block = Block()
        values: dict[SSAValue, SSAValue] = {}
        builder = _BlockBuilder(self, block, values, iter(()))
        for value in self.host_keys:
            if isinstance(value.type, HandleType):
                values[value] = builder.resident(value)
        for execute in self.host:
            builder.add(execute)
        used = {k for inst in self.instances for k in inst.ins} | set(finals)
        self.host_keys = {v: key for v, key in self.host_keys.items() if key in used}
        made = [values[v] for v in self.host_keys]
        block.add_op(northpole.YieldOp(made))
        host = northpole.HostOp.create(
            properties={"sym_name": StringAttr(northpole.HOST)},
            result_types=[v.type for v in made],
            regions=[Region(block)],
        )
        for result, value in zip(host.outs, self.host_keys, strict=True):
            result.name_hint = value.name_hint
        return host

    # ------------------------------------------------------------------ stages

    def build_program(self, finals: Sequence[Key]) -> None:
        """Host, sends and stages, in the order in which a micro-batch passes them."""
        host = self.build_host(finals)
        body: list[Operation] = [host]
        where: dict[Key, tuple[str, SSAValue]] = {
            key: (northpole.HOST, value)
            for key, value in zip(self.host_keys.values(), host.outs, strict=True)
        }
        groups, at = [], 0
        for stage in self.stages:
            groups.append(self.instances[at : at + len(stage.blocks)])
            at += len(stage.blocks)
        for i, (stage, group) in enumerate(zip(self.stages, groups, strict=True)):
            later = {k for g in groups[i + 1 :] for inst in g for k in inst.ins} | set(finals)
            name = stage.sym_name.data
            mine = {inst.number for inst in group}
            needed = dict.fromkeys(
                k for inst in group for k in inst.ins if k[0] == northpole.HOST or k[1] not in mine
            )
            arrived = self.send(body, list(needed), where, name)
            built, exported = self.build_stage(stage, group, arrived, later)
            body.append(built)
            for key, value in zip(exported, built.outs, strict=True):
                where[key] = (name, value)
        arrived = self.send(
            body, [k for k in dict.fromkeys(finals) if k[0] != northpole.HOST], where, "host"
        )
        for key, (_, name, op) in zip(finals, self.outputs, strict=True):
            output = northpole.OutputOp(arrived.get(key, where[key][1]), name)
            copy_location(op, output)
            body.append(output)
        new = northpole.ProgramOp.create(
            properties=dict(self.map.properties), regions=[Region(Block(body))]
        )
        Rewriter.replace_op(self.map, new, [])

    def send(
        self,
        body: list[Operation],
        keys: Sequence[Key],
        where: dict[Key, tuple[str, SSAValue]],
        target: str,
    ) -> dict[Key, SSAValue]:
        """One send for each place that `keys` come from; the values as they arrive."""
        arrived: dict[Key, SSAValue] = {}
        for source in dict.fromkeys(where[k][0] for k in keys):
            chosen = [k for k in keys if where[k][0] == source]
            values = [where[k][1] for k in chosen]
            send = northpole.SendOp(
                source, target, sum(tensor_bytes(v.type) for v in values), values
            )
            body.append(send)
            for key, value, result in zip(chosen, values, send.outs, strict=True):
                result.name_hint = value.name_hint
                arrived[key] = result
        return arrived

    def build_stage(
        self,
        old: northpole.StageOp,
        group: Sequence[_Instance],
        arrived: dict[Key, SSAValue],
        later: set[Key],
    ) -> tuple[northpole.StageOp, list[Key]]:
        block = Block(arg_types=[v.type for v in arrived.values()])
        values: dict[Key, SSAValue] = dict(zip(arrived, block.args, strict=True))
        for arg, value in zip(block.args, arrived.values(), strict=True):
            arg.name_hint = value.name_hint
        for inst in group:
            part = self.parts[inst.symbol]
            types = [v.type for v in part.outputs]
            call = northpole.CallOp(inst.symbol, inst.layer, [values[k] for k in inst.ins], types)
            block.add_op(call)
            for i, (result, value) in enumerate(zip(call.outs, part.outputs, strict=True)):
                result.name_hint = value.name_hint
                values[inst.symbol, inst.number, i] = result
        mine = {inst.number for inst in group}
        exported = [k for k in values if k in later and k[0] != northpole.HOST and k[1] in mine]
        block.add_op(northpole.YieldOp([values[k] for k in exported]))
        new = northpole.StageOp.create(
            operands=list(arrived.values()),
            result_types=[values[k].type for k in exported],
            properties=dict(old.properties),
            regions=[Region(block)],
        )
        for result, key in zip(new.outs, exported, strict=True):
            result.name_hint = values[key].name_hint
        copy_location(old, new)
        return new, exported


def _tensor(value: SSAValue) -> Attribute:
    return value.type.tensor if isinstance(value.type, HandleType) else value.type


def _is_copy(op: icca.ExecuteOp) -> bool:
    """Whether an execute only copies its operand (rows of a table are a gather)."""
    operator = op.operator()
    body = operator.param.get("body")
    if operator.kind != "map" or body is None or not body.is_identity or len(op.ins) != 1:
        return False
    owner = op.ins[0].owner
    if isinstance(owner, icca.PreloadOp) and owner.rows is not None:
        return False
    return operator.operands[0].axes == operator.results[0].axes and (
        operator.operands[0].shape == operator.results[0].shape
    )


class _BlockBuilder:
    """Appends operators to a block; `values` maps those of icca to those of the block."""

    def __init__(
        self,
        converter: _Converter,
        block: Block,
        values: dict[SSAValue, SSAValue],
        tasks: Iterator[Task],
    ):
        self.converter, self.block, self.values, self.tasks = converter, block, values, tasks
        self.caches: dict[tuple[str, bool], SSAValue] = {}

    def add(self, op: icca.ExecuteOp | icca.StoreOp) -> None:
        """Append an execute, or a store to a state."""
        if isinstance(op, icca.StoreOp):
            self.append(op)
            return
        ins = [self.operand(op, v) for v in range(len(op.ins))]
        task = next(self.tasks, None)
        if task is None:
            task = Task(op.label.data, op.operator().kind, Unit.HOST, 0)
        structured = op.structured.clone()
        structured.attributes.pop(northpole.BLOCK, None)
        cards = op.attributes.get(CARDS)
        new = northpole.ExecuteOp(
            task, op.plan, cards.data if isinstance(cards, StringAttr) else None, ins, structured
        )
        copy_location(op, new, structured)
        self.block.add_op(new)
        for old, value in zip(op.outs, new.outs, strict=True):
            value.name_hint = old.name_hint
            self.values[old] = value

    def operand(self, op: icca.ExecuteOp, v: int) -> SSAValue:
        value = self.converter.real(op.ins[v])
        if not isinstance(value.type, HandleType):
            return self.values[value]
        preload = self.converter.preload(value)
        name = preload.source.root_reference.data
        if self.converter.from_host(value):
            handle = self.converter.input_of(value)
            if handle not in self.values:
                self.values[handle] = self.resident(handle)
            return self.values[handle]
        if self.converter.kinds[name] is HbmKind.STATE and (name, True) in self.caches:
            return self.caches[name, True]
        return self.resident(value)

    def resident(self, handle: SSAValue) -> SSAValue:
        """What a handle stands for, where it lies."""
        preload = self.converter.preload(handle)
        op = northpole.ResidentOp(
            preload.source.root_reference.data,
            _tensor(handle),
            self.layer(preload.layer),
            None if preload.rows is None else preload.rows.root_reference.data,
        )
        copy_location(preload, op)
        op.result.name_hint = handle.name_hint
        self.block.add_op(op)
        return op.result

    def layer(self, layer: SSAValue | None) -> SSAValue | None:
        if layer is None:
            return None
        assert isinstance(layer, BlockArgument)
        return self.block.args[0]

    def append(self, op: icca.StoreOp) -> None:
        name = op.target.root_reference.data
        entries = self.values[self.converter.real(op.source)]
        tensor = next(
            o
            for o in self.converter.module.ops
            if isinstance(o, icca.HbmOp) and o.sym_name.data == name
        )
        start = 0 if op.start is None else op.start.value.data
        new = northpole.AppendOp(entries, name, tensor.type, self.layer(op.layer), start)
        copy_location(op, new)
        new.result.name_hint = name
        self.block.add_op(new)
        self.caches[name, True] = new.result


@dataclass(frozen=True)
class ConvertIccaToNorthpolePass(ModulePass):
    """Turn planned icca that was mapped to stages into the program that the cards run.

        elk-opt model.mlir -p 'northpole-map-stages,convert-te-to-icca,northpole-place,\
convert-icca-to-northpole'

    Preloads become what stays on the cores (or in the host's memory), stores to states become
    appends where the cache lies, executes keep their plans. A stage calls its blocks, once for each
    layer it has; what crosses stages is sent, and outputs are sent to the host. Invariant: the
    numbers, and one execute for each operator of the map. Fails for icca that was scheduled.
    """

    name = "convert-icca-to-northpole"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _Converter(op).run()
