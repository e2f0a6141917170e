"""`-t device-program`: a scheduled and allocated icca program in the terms of Elk's paper.

What a vendor would implement on another chip: `preload_async(op = i)` and `execute(op = i)` in
issue order, and for every operator what each core holds when (docs/targets/device_program.md).
`parse_device_program` reads the text back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.printer import Printer
from xdsl.utils.target import Target

from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca import ops as icca
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.ipu.attrs import LayoutAttr
from elk_ir.errors import ElkError
from elk_ir.passes.icca_support import (
    buffers_of,
    defining_preloads,
    in_place,
    offset_of,
    program_of,
    sharding_of,
    tensor_of,
    yield_of,
)
from elk_ir.plan.layout import Layout
from elk_ir.plan.sharding import Sharding

RULES = (
    "Preloads run one after another, in the order in which they are issued.",
    "An execute blocks every preload and every execute issued after it.",
    "A preload blocks only the execute of its own operator.",
)
"""The three synchronisation rules."""

_EXECUTE = (
    "execute(op = i): wait for the done tag at the end of the data in each core, bring resident",
    "operands into the execute layout, distribute preloads from their preload into their execute",
    "layout, run the local steps of the ring, reduce partial results, write the results.",
    "preload_async(op = i): start moving the operands of op i that are in HBM (or the one named),",
    "of the layer given, to each core: its preload buffer. store_async: the way back.",
)


@dataclass(frozen=True)
class Tensor:
    """A tensor in HBM; `about` is the rest of its line."""

    name: str
    about: str


@dataclass(frozen=True)
class Operand:
    """An operand, `number` in its operator: from HBM (`source` names the tensor, with layer and
    rows; `by op N` if it arrives with the preloads of op N, of which this one is the last layer) or
    left on chip by `source` (an operator and result). `insert` is what is put into it."""

    number: int
    origin: str
    source: str
    tensor: str
    insert: str = ""


@dataclass(frozen=True)
class Buffer:
    """What every core keeps: `bytes_per_core` at byte `at`, in `layout` (empty: raw bytes)."""

    name: str
    bytes_per_core: int
    at: int
    layout: str


@dataclass(frozen=True)
class DeviceOp:
    """One operator: what it computes, over which cores, and its buffers."""

    number: int
    label: str
    kind: str
    plan: str
    operands: tuple[Operand, ...]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class Instruction:
    """`preload_async`, `execute` or `store_async`, with its arguments in order."""

    name: str
    arguments: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k} = {v}' for k, v in self.arguments)})"


@dataclass(frozen=True)
class Loop:
    """Instructions repeated for layer = first, first + 1, …."""

    first: int
    count: int
    body: tuple[Instruction | Loop, ...]


@dataclass(frozen=True)
class DeviceProgram:
    """The whole program."""

    name: str
    chip: str
    tensors: tuple[Tensor, ...]
    operators: tuple[DeviceOp, ...]
    body: tuple[Instruction | Loop, ...]

    def __str__(self) -> str:
        out = [f'device_program @{self.name} chip "{self.chip}" {{']
        out += [f"  // {i}. {rule}" for i, rule in enumerate(RULES, 1)]
        out += [f"  // {line}" for line in _EXECUTE]
        out += [f"  hbm @{t.name} {t.about}" for t in self.tensors]
        for op in self.operators:
            out.append(f'  op {op.number} "{op.label}" {op.kind} {op.plan} {{')
            for o in op.operands:
                insert = f" insert {o.insert}" if o.insert else ""
                line = f"    operand {o.number} {o.origin} {o.source} : {o.tensor}{insert}"
                out.append(line)
            for b in op.buffers:
                layout = f" {b.layout}" if b.layout else ""
                out.append(f"    {b.name} {b.bytes_per_core} bytes at {b.at}{layout}")
            out.append("  }")
        out.append("  issue {")
        out += [f"    {line}" for line in _issue_lines(self.body)]
        out += ["  }", "}", ""]
        return "\n".join(out)


def _issue_lines(body: Sequence[Instruction | Loop]) -> Iterator[str]:
    for item in body:
        if isinstance(item, Loop):
            yield f"repeat layer = {item.first} times {item.count} {{"
            yield from (f"  {line}" for line in _issue_lines(item.body))
            yield "}"
        else:
            yield str(item)


# ---------------------------------------------------------------------- from icca


class _Extraction:
    def __init__(self, module: ModuleOp):
        self.module = module
        self.program = program_of(module)
        self.numbers: dict[icca.ExecuteOp, int] = {}
        for op in self.program.walk():
            if isinstance(op, icca.ExecuteOp):
                self.numbers[op] = len(self.numbers)
        self.users: dict[icca.PreloadOp, tuple[int, int]] = {}
        for execute, number in self.numbers.items():
            for v, value in enumerate(execute.ins):
                if isinstance(value.type, HandleType):
                    for preload in defining_preloads(value):
                        self.users.setdefault(preload, (number, v))

    def extract(self) -> DeviceProgram:
        chip = self.module.attributes.get("icca.chip")
        name = chip.to_chip().name if isinstance(chip, ChipAttr) else ""
        tensors = [
            self.tensor(op) for op in self.module.body.block.ops if isinstance(op, icca.HbmOp)
        ]
        return DeviceProgram(
            self.program.sym_name.data,
            name,
            tuple(tensors),
            tuple(self.operator(op, i) for op, i in self.numbers.items()),
            self.block(self.program.body.block),
        )

    def tensor(self, op: icca.HbmOp) -> Tensor:
        """The line of a tensor in HBM."""
        stack = f" stack {op.layers}" if op.stack is not None else ""
        about = f"{op.kind.data}{stack} : {op.type}"
        if op.axis is not None and op.length is not None:
            about += f" axis {op.axis.value.data} length {op.length.value.data}"
        for what, names in (("inputs", op.inputs), ("outputs", op.outputs)):
            if names is not None:
                listed = ", ".join(f'"{n.data}"' for n in names)
                about += f" {what} [{listed}]"
        return Tensor(op.sym_name.data, about)

    def producers(self, value: SSAValue) -> str:
        """The results that a resident value may be: one, or two where a loop carries it."""
        found: dict[str, None] = {}
        seen: set[SSAValue] = set()
        work = [value]
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            if isinstance(value, BlockArgument):
                loop = value.owner.parent_op()
                assert isinstance(loop, icca.RepeatOp)
                work += [yield_of(loop).values[value.index - 1], loop.inits[value.index - 1]]
            elif isinstance(value, OpResult) and isinstance(value.op, icca.RepeatOp):
                work += [yield_of(value.op).values[value.index]]
            elif isinstance(value, OpResult) and isinstance(value.op, icca.ExecuteOp):
                found[f"op {self.numbers[value.op]}.{value.index}"] = None
        return " or ".join(found)

    def layer(self, value: SSAValue | None) -> str:
        """`[3]`, `[layer]`, `[layer + 1]`, or nothing."""
        if value is None:
            return ""
        plus = 0
        while isinstance(value, OpResult) and isinstance(value.op, icca.LayerOp):
            plus += value.op.offset.value.data
            if value.op.base_layer is None:
                return f"[{plus}]"
            value = value.op.base_layer
        return f"[layer + {plus}]" if plus else "[layer]"

    def operator(self, execute: icca.ExecuteOp, number: int) -> DeviceOp:
        """Operands and buffers of one execute."""
        s = sharding_of(execute)
        op = s.op
        local = in_place(execute)
        inserts = [o for o in execute.body.block.ops if isinstance(o, icca.InsertOp)]
        entries = list(execute.entries)
        operands: list[Operand] = []
        for v, value in enumerate(execute.ins):
            text = str(tensor_of(value))
            if isinstance(value.type, HandleType):
                sources = dict.fromkeys(
                    f"@{p.source.root_reference.data}{'' if p.layer is None else '[layer]'}"
                    + (f" rows @{p.rows.root_reference.data}" if p.rows is not None else "")
                    + (f" by op {self.users[p][0]}" if self.users[p][0] != number else "")
                    for p in defining_preloads(value)
                )
                put = ""
                for insert in inserts:
                    if _reaches(insert, execute.body.block.args[v]):
                        source = self.producers(entries[inserts.index(insert)])
                        put = (
                            f"{source} axis {insert.axis.value.data} from {insert.start.value.data}"
                        )
                operands.append(Operand(v, "hbm", " or ".join(sources), text, put))
            else:
                origin = "in_place" if local[v] else "resident"
                operands.append(Operand(v, origin, self.producers(value), text))
        buffers: list[Buffer] = []
        for b in buffers_of(execute):
            at = offset_of(execute, b.role, b.index)
            if at is None:
                raise ElkError(
                    f"{execute.label.data}: {b.name} has no offset",
                    hint="run icca-allocate first",
                )
            layout = _layout(s, b.role, b.index)
            text = "" if layout is None else _layout_text(layout)
            buffers.append(Buffer(b.name, b.size_bytes, at, text))
        dims = ", ".join(
            f"{d.name} = {d.extent} / {f}" for d, f in zip(op.dims, s.plan.grid, strict=True)
        )
        plan = f"cores {s.plan.cores} grid [{dims}]"
        if s.steps > 1:
            rings = ", ".join(f"{op.dims[d].name} = {s.rings[d]}" for d in s.ring_order)
            plan += f" rings [{rings}]"
        if s.ways > 1:
            scatter = s.plan.scatter_dim
            over = "" if scatter is None else f" over {op.dims[scatter].name}"
            plan += f" reduce {s.ways} ways {s.plan.reduce}{over}"
        return DeviceOp(number, execute.label.data, op.kind, plan, tuple(operands), tuple(buffers))

    def block(self, block: Block) -> tuple[Instruction | Loop, ...]:
        """Instructions in issue order; preloads of one operator that stand together are one."""
        out: list[Instruction | Loop] = []
        pending: list[icca.PreloadOp] = []
        for op in block.ops:
            if isinstance(op, icca.PreloadOp):
                if pending and self.users[pending[-1]][0] != self.users[op][0]:
                    out += self.preloads(pending)
                    pending = []
                pending.append(op)
                continue
            if not isinstance(op, icca.LayerOp):
                out += self.preloads(pending)
                pending = []
            out += self.instruction(op)
        return (*out, *self.preloads(pending))

    def preloads(self, group: Sequence[icca.PreloadOp]) -> list[Instruction]:
        """`preload_async(op = i)`; with the operand where an operator's preloads are spread."""
        if not group:
            return []
        number = self.users[group[0]][0]
        layers = {self.layer(p.layer)[1:-1] for p in group if p.layer is not None}
        operands = {v for n, v in self.users.values() if n == number}
        if {self.users[p][1] for p in group} == operands and len(layers) < 2:
            extra = tuple(("layer", layer) for layer in layers)
            return [Instruction("preload_async", (("op", str(number)), *extra))]
        out: list[Instruction] = []
        for p in group:
            extra = () if p.layer is None else (("layer", self.layer(p.layer)[1:-1]),)
            operand = ("operand", str(self.users[p][1]))
            out.append(Instruction("preload_async", (("op", str(number)), operand, *extra)))
        return out

    def instruction(self, op: Operation) -> list[Instruction | Loop]:
        """One other operation of the program."""
        if isinstance(op, icca.ExecuteOp):
            return [Instruction("execute", (("op", str(self.numbers[op])),))]
        if isinstance(op, icca.StoreOp):
            target = f"@{op.target.root_reference.data}{self.layer(op.layer)}"
            arguments = [("value", self.producers(op.source)), ("to", target)]
            if op.start is not None:
                arguments.append(("from", str(op.start.value.data)))
            if op.rows is not None:
                arguments.append(("rows", f"@{op.rows.root_reference.data}"))
            return [Instruction("store_async", tuple(arguments))]
        if isinstance(op, icca.RepeatOp):
            body = self.block(op.body.block)
            return [Loop(op.first.value.data, op.count.value.data, body)]
        return []


def _reaches(insert: icca.InsertOp, arg: SSAValue) -> bool:
    target = insert.target
    while isinstance(owner := target.owner, icca.InsertOp):
        target = owner.target
    return target is arg


def _layout(s: Sharding, role: str, index: int) -> Layout | None:
    match role:
        case "preload":
            return s.preload_layout(index)
        case "execute":
            return s.execute_layout(index)
        case "partial":
            return s.stat_layout(index)
        case "gathered":
            return s.gathered_layout(index)
        case "merged":
            return s.merged_layout(index)
        case "result":
            return s.result_layout(index)
        case _:
            return None


def _layout_text(layout: Layout) -> str:
    stream = StringIO()
    LayoutAttr(layout).print_parameter(Printer(stream))
    return stream.getvalue()


def device_program(module: ModuleOp) -> DeviceProgram:
    """The device program of a planned, scheduled and allocated icca module. Raises ElkError where
    a plan or an offset is missing."""
    return _Extraction(module).extract()


# ---------------------------------------------------------------------- parsing


class _Lines:
    def __init__(self, text: str):
        self.lines = [
            (i, line.strip())
            for i, line in enumerate(text.split("\n"), 1)
            if line.strip() and not line.strip().startswith("//")
        ]
        self.at = 0

    def take(self) -> str:
        """The next line. Raises ElkError at the end."""
        if self.at == len(self.lines):
            raise ElkError("the device program ends too early")
        self.at += 1
        return self.lines[self.at - 1][1]

    def fail(self, what: str) -> ElkError:
        """An error at the line that was taken last."""
        number = self.lines[max(0, self.at - 1)][0] if self.lines else 1
        return ElkError(what, where=f"line {number}")


def parse_device_program(text: str) -> DeviceProgram:
    """The program that `str(program)` spells. Raises ElkError, with the line, for other text."""
    lines = _Lines(text)
    try:
        return _parse(lines)
    except (ValueError, IndexError):
        raise lines.fail("this is no line of a device program") from None


def _parse(lines: _Lines) -> DeviceProgram:
    head = lines.take()
    if not head.startswith("device_program @"):
        raise lines.fail('expected `device_program @NAME chip "CHIP" {`')
    name, _, rest = head.removeprefix("device_program @").partition(" ")
    chip = rest.split('"')[1]
    tensors: list[Tensor] = []
    operators: list[DeviceOp] = []
    body: tuple[Instruction | Loop, ...] = ()
    while (line := lines.take()) != "}":
        if line.startswith("hbm @"):
            symbol, _, about = line.removeprefix("hbm @").partition(" ")
            tensors.append(Tensor(symbol, about))
        elif line.startswith("op "):
            operators.append(_parse_op(line, lines))
        elif line == "issue {":
            body = _parse_issue(lines)
        else:
            raise lines.fail("expected hbm, op or issue")
    return DeviceProgram(name, chip, tuple(tensors), tuple(operators), body)


def _parse_op(head: str, lines: _Lines) -> DeviceOp:
    digits, _, rest = head.removeprefix("op ").partition(' "')
    number = int(digits)
    label, _, rest = rest.rpartition('" ')
    kind, _, plan = rest.removesuffix(" {").partition(" ")
    operands: list[Operand] = []
    buffers: list[Buffer] = []
    while (line := lines.take()) != "}":
        if line.startswith("operand "):
            front, _, tensor = line.partition(" : ")
            _, index, origin, source = front.split(" ", 3)
            tensor, _, insert = tensor.partition(" insert ")
            operands.append(Operand(int(index), origin, source, tensor, insert))
        else:
            name, size, unit, _, at, *layout = line.split(" ", 5)
            if unit != "bytes":
                raise lines.fail("expected an operand or a buffer")
            buffers.append(Buffer(name, int(size), int(at), layout[0] if layout else ""))
    return DeviceOp(number, label, kind, plan, tuple(operands), tuple(buffers))


def _parse_issue(lines: _Lines) -> tuple[Instruction | Loop, ...]:
    items: list[Instruction | Loop] = []
    while (line := lines.take()) != "}":
        if line.startswith("repeat layer = "):
            first, _, count = line.removeprefix("repeat layer = ").partition(" times ")
            items.append(Loop(int(first), int(count.removesuffix(" {")), _parse_issue(lines)))
            continue
        name, _, rest = line.partition("(")
        if name not in ("preload_async", "execute", "store_async") or not rest.endswith(")"):
            raise lines.fail("expected preload_async, execute, store_async or repeat")
        pairs = [part.split(" = ", 1) for part in rest[:-1].split(", ")]
        items.append(Instruction(name, tuple((key, value) for key, value in pairs)))
    return tuple(items)


@dataclass(frozen=True)
class DeviceProgramTarget(Target):
    """Print a scheduled and allocated icca program as Elk's abstract device program.

    elk-opt program.mlir -t device-program
    """

    name = "device-program"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the text."""
        output.write(str(device_program(module)))
