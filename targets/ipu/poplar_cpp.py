"""`-t poplar-cpp`: an `ipu` program as a Poplar C++ program (docs/targets/poplar.md).

The text holds, in this order: codelets (vertex classes), helpers that turn layouts into copies at
graph-construction time, the layouts as functions of the core's number, the graph, the host's part.
Everything that runs over cores is a loop, so the text does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.target import Target

from elk_ir.cost.device import device_model
from elk_ir.dialects import ipu
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.ipu.attrs import RefAttr, VertexPhase
from elk_ir.dialects.location import node_names
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Phase
from elk_ir.plan.expr import Expr
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu import cpp_host
from elk_ir.targets.ipu.cpp_codelets import codelet_fields, codelet_text
from elk_ir.targets.ipu.cpp_common import (
    Codelet,
    Variable,
    counter_lines,
    fill_value,
    filler,
    filler_text,
    head_lines,
    helper,
    indexer,
    indexer_text,
    registration_lines,
    vertex_cycles,
)
from elk_ir.targets.ipu.cpp_emulation import EMULATED_VERTEX, Emulation
from elk_ir.targets.ipu.cpp_host import Remote
from elk_ir.targets.ipu.cpp_names import ProgramNames
from elk_ir.targets.ipu.cpp_types import (
    comment,
    cpp_expr,
    cpp_type,
    literal,
    quoted,
)
from elk_ir.targets.ipu.weights_file import filled_after

RUNTIME = Path(__file__).parent / "runtime"
"""The folder to compile against where there is no Poplar (`g++ -I`)."""


class _Emitter(ProgramNames):
    def __init__(self, module: ModuleOp):
        super().__init__(module)
        chip = module.attributes.get("icca.chip")
        self.chip = chip.to_chip() if isinstance(chip, ChipAttr) else None
        self.cost = self.chip and device_model(self.chip)
        self.hbm = self.chip and Emulation(self.chip)
        ops = [op for op in module.body.block.ops if isinstance(op, ipu.CodeletOp)]
        self.operators = {op.sym_name.data: (op, op.structured.operator()) for op in ops}
        self.codelets: dict[tuple[str, VertexPhase], Codelet] = {}
        self.classes: dict[tuple[str, ...], Codelet] = {}
        self.fills: set[str] = set()
        self.indexers: set[str] = set()
        self.counters: dict[SSAValue, str] = {}
        self.steps: set[SSAValue] = set()
        self.methods: list[list[str]] = []
        self.initial: list[str] = []

    # ------------------------------------------------------------------ structure

    def block(self, block: Block, out: list[str]) -> None:
        """The operations of the program or of a loop over layers: one method an operator."""
        pending: list[Operation] = []
        for op in block.ops:
            if isinstance(op, ipu.RepeatOp) and not self.is_ring(op):
                self.method(pending, out)
                pending = []
                self.repeat(op, out)
                continue
            pending.append(op)
            if _apply_in(op) is not None:
                self.method(pending, out)
                pending = []
        self.method(pending, out)

    def is_ring(self, op: ipu.RepeatOp) -> bool:
        """Whether a loop runs over ring steps: it binds the step of what it holds."""
        index = op.body.block.args[0]
        return any(
            isinstance(o, ipu.ExecuteOp | ipu.ExchangeOp | ipu.CopyOp) and o.step is index
            for o in op.walk()
        )

    def repeat(self, op: ipu.RepeatOp, out: list[str]) -> None:
        """A loop over layers."""
        counter = self.names.get("counter", f"layer{len(self.counters) or ''}")
        self.counters[op.body.block.args[0]] = counter
        first, count = op.first.value.data, op.count.value.data
        out.append(f"prog.add(Copy({counter}First, {counter}));")
        out.append("{")
        inner = ["Sequence body;"]
        calls: list[str] = []
        self.block(op.body.block, calls)
        inner += [line.replace("(prog)", "(body)", 1) for line in calls]
        inner.append(f"body.add(Execute({counter}Next));")
        inner.append(f"prog.add(Repeat({count}, body)); // from {first}")
        out += [f"  {line}" for line in inner]
        out.append("}")

    def method(self, ops: Sequence[Operation], out: list[str]) -> None:
        """A method for a run of operations, and its call."""
        ops = [op for op in ops if not isinstance(op, ipu.RowOp)]
        if not ops:
            return
        apply = next((a for op in ops if (a := _apply_in(op)) is not None), None)
        # What follows the last execute of a block may occur in several blocks.
        rest = f"rest {len(self.methods)}"
        name = rest if apply is None else apply.sym_name.data.rpartition(".")[0]
        ident = self.names.get("method", f"run {name}")
        lines: list[str] = []
        self.statements(ops, lines)
        about = "the rest" if apply is None else self.about(apply)
        text = [f"// {comment(about)}", f"void {ident}(Sequence &prog) {{"]
        self.methods.append([*text, *(f"  {line}" for line in lines), "}"])
        out.append(f"{ident}(prog);")

    def about(self, op: ipu.ExecuteOp) -> str:
        """Which ONNX nodes an execute stems from, and what it computes."""
        kind = self.operators[op.codelet.root_reference.data][1].kind
        owner = next(
            (v.op.owner.data for r in op.outs if (v := self.var(_ref(r).name)).op.owner), ""
        )
        nodes = node_names(op)
        more = f" and {len(nodes) - 6} more" if len(nodes) > 6 else ""
        return f"{', '.join(nodes[:6]) or owner or op.sym_name.data}{more}: {kind}"

    # ------------------------------------------------------------------ operations

    def statements(self, ops: Sequence[Operation], out: list[str]) -> None:
        """The statements of operations in order; one for all statistics that move together, and one
        for partial statistics that are gathered and merged."""
        at = 0
        while at < len(ops):
            done = self.combine(ops[at:], out) or self.reshard_all(ops[at:], out)
            if not done:
                self.operation(ops[at], out)
            at += done or 1

    def reshard_all(self, ops: Sequence[Operation], out: list[str]) -> int:
        """A statement for the changes of layout that the operations begin with, if they move an
        array of variables to another; how many they are."""
        first = ops[0]
        if not isinstance(first, ipu.ReshardOp):
            return 0
        array = self.declared.arrays.get(first.target.root_reference.data)
        moves = _plain_reshards(ops[: len(array.members) if array else 0])
        groups = self.moved(moves)
        if groups is None:
            return 0
        out.append(f"elk::reshard(prog, {groups[0]}, {groups[1]});")
        return len(moves)

    def combine(self, ops: Sequence[Operation], out: list[str]) -> int:
        """A statement for partial statistics that are gathered and merged, if the operations begin
        with that and each is in its first slot; how many they are."""
        moves = _plain_reshards(ops)
        op = ops[len(moves)] if moves and len(moves) < len(ops) else None
        if not isinstance(op, ipu.ExecuteOp) or op.phase.data is not VertexPhase.COMBINE:
            return 0
        codelet, edges = self.codelet(op), self.edges(op)
        count = len(edges) // 2
        fields = [f"{kind}{i}" for kind in "ga" for i in range(count)]
        merged = self.declared.whole([v.op.sym_name.data for _, v, _ in edges[count:]])
        if (
            [v.op.sym_name.data for _, v, _ in edges[:count]]
            != [o.target.root_reference.data for o in moves]
            or merged is None
            or [f for f, _, _ in edges] != fields
            or not set(fields) <= set(codelet.fields)
            or any(self.block_at(slots) != "c" for _, _, slots in edges)
            or self.block_at([e.data for e in op.at]) != "c"
            or (groups := self.moved(moves)) is None
        ):
            return 0
        cycles = 0 if self.cost is None else self.cycles(op)
        name = self.label(op.sym_name.data)
        node = edges[0][1].op.sym_name.data.rpartition(".")[0]
        last = "" if name == quoted(f"{node}.combine") else f", {name}"
        out += [
            f"elk::combine(graph, prog, {groups[0]}, {groups[1]}, {merged},",
            f"             {quoted(codelet.name)}, {self.layout(op.iterate.data)},"
            f" {codelet.box}, {cycles}{last});",
        ]
        return len(moves) + 1

    def operation(self, op: Operation, out: list[str]) -> None:
        """The statements of one operation."""
        match op:
            case ipu.RepeatOp():
                self.ring(op, out)
            case ipu.CopyStartOp():
                self.copy_start(op, out)
            case ipu.StoreStartOp():
                self.store_start(op, out)
            case ipu.CopyWaitOp():
                out.append(f"elk::wait(prog, {quoted(self.var(op.target).op.sym_name.data)});")
            case ipu.StoreWaitOp():
                name = self.var(op.source).op.sym_name.data
                out.append(f"elk::wait(prog, {quoted(name + '.store')});")
            case ipu.FillOp():
                self.fill(op, out)
            case ipu.ReshardOp():
                self.reshard(op, out)
            case ipu.ExchangeOp():
                self.exchange(op, out)
            case ipu.CopyOp():
                source, target = self.var(op.source.data.name), self.var(op.target.data.name)
                slots = self.slots(op.target.data.slots)
                out.append(
                    f"elk::localCopy(prog, {source.ident}, {target.ident}, {slots},"
                    f" {self.label(op.target.data.name + '.landed')});"
                )
            case ipu.ExecuteOp():
                self.execute(op, out)
            case _:
                raise ElkError(f"{op.name} has no place in an ipu program")

    def ring(self, op: ipu.RepeatOp, out: list[str]) -> None:
        """Ring steps differ in the slots they touch: a loop that builds each step."""
        if self.steps:
            raise ElkError("a loop over ring steps lies inside another one")
        self.steps.add(op.body.block.args[0])
        first, count = op.first.value.data, op.count.value.data
        out.append(f"for (long t = {first}; t < {first + count}; ++t) {{")
        inner: list[str] = []
        self.statements(list(op.body.block.ops), inner)
        out += [f"  {line}" for line in inner]
        out.append("}")
        self.steps.clear()

    def row(self, value: SSAValue | None) -> tuple[str | None, int]:
        """A row index: the counter of a loop, if any, and what is added to it."""
        if value is None:
            return None, 0
        if value in self.counters:
            return self.counters[value], 0
        owner = value.owner
        if isinstance(owner, ipu.RowOp):
            counter, plus = self.row(owner.base_row)
            return counter, plus + owner.offset.value.data
        raise ElkError("a row is neither constant nor the layer of a loop")

    def rows(
        self, r: Remote, row: SSAValue | None, axis: int | None, lo: int, hi: int, name: str
    ) -> str:
        """The rows that a copy moves, as a tensor; invalid where the buffer has only one."""
        if r.all_rows == 1:
            return "Tensor()"
        counter, plus = self.row(row)
        rows = r.row_list(axis, lo, hi, plus)
        layer = "nullptr" if counter is None else f"&{counter}"
        return f"elk::rows(graph, prog, {rows}, {layer}, {r.rows}, {self.label(name)})"

    def copy_start(self, op: ipu.CopyStartOp, out: list[str]) -> None:
        """A preload."""
        v, r = self.var(op.target), self.remote(op.source)
        name = v.op.sym_name.data
        high = list(v.layout.shape)
        if op.rows is not None:
            if op.axis is not None:
                raise ElkError(f"@{r.name}: rows are picked out of a state that grows")
            rows = self.index_rows(r, op.rows, op.row, 0, name)
        else:
            axis = limit = None
            if op.axis is not None and op.limit is not None:
                axis, limit = op.axis.value.data, op.limit.value.data
                high[axis] = limit
            rows = self.rows(r, op.row, axis, 0, limit or 0, name)
        box, cycles, last = ", ".join(map(str, high)), 0, ", index" if op.rows else ""
        if self.hbm and op.init is None:
            part = (op.axis.value.data, high[op.axis.value.data]) if op.axis else None
            cycles = self.hbm.preload_cycles(v.layout, v.dtype, part)
        what = f"{v.ident}, {{{box}}}, {cycles}{last}"
        call = [
            f"elk::preload(graph, prog, {r.ident},",
            f"             {rows},",
            f"             {what});",
        ]
        if last:
            call = ["{", "  Sequence index;", *(f"  {line}" for line in call), "}"]
        (out if op.init is None else self.initial).extend(call)

    def store_start(self, op: ipu.StoreStartOp, out: list[str]) -> None:
        """A store."""
        v, r = self.var(op.source), self.remote(op.target)
        name = v.op.sym_name.data + ".store"
        axis, lo, hi = None, 0, 0
        if op.axis is not None and op.start is not None:
            axis, lo = op.axis.value.data, op.start.value.data
            hi = lo + v.layout.shape[axis]
        cycles = self.hbm.store_cycles(v.layout, v.dtype) if self.hbm else 0
        first = ""
        if op.rows is not None and op.axis is not None:
            axis, first = op.axis.value.data, ", index"
            rows = self.index_rows(r, op.rows, op.row, axis, name)
        else:
            rows = self.rows(r, op.row, axis, lo, hi, name)
        call = [
            f"elk::store(graph, prog, {v.ident}, {r.ident},",
            f"           {rows}, {cycles}{first});",
        ]
        if first:
            call = ["{", "  Sequence index;", *(f"  {line}" for line in call), "}"]
        out += call

    def index_rows(
        self, r: Remote, index: SymbolRefAttr, row: SSAValue | None, axis: int, name: str
    ) -> str:
        """The rows of the entries along an axis that a tensor of indices in HBM names."""
        ids = self.remote(index)
        self.indexers.add(ids.dtype)
        return r.index_rows(ids, indexer(ids.dtype), axis, *self.row(row), self.label(name))

    def fill(self, op: ipu.FillOp, out: list[str]) -> None:
        """A constant into every element."""
        v = self.var(op.target)
        self.fills.add(v.dtype)
        value = literal(op.value.value.data, fill_value(v.dtype))
        kind = cpp_type(v.dtype).value
        out.append(
            f"elk::fill<{kind}>(graph, prog, {v.ident}, {quoted(filler(v.dtype))}, {value}"
            f"{self.own_label(v)});"
        )

    def reshard(self, op: ipu.ReshardOp, out: list[str]) -> None:
        """A change of layout."""
        s, t = self.var(op.source), self.var(op.target)
        last = self.own_label(t)
        if op.axis is not None and op.start is not None:
            last = f"{last or ', nullptr'}, {op.axis.value.data}, {op.start.value.data}"
        out.append(f"elk::reshard(prog, {s.ident}, {t.ident}{last});")

    def exchange(self, op: ipu.ExchangeOp, out: list[str]) -> None:
        """A ring shift."""
        s, t = self.var(op.source.data.name), self.var(op.target.data.name)
        sender = op.map.data
        c = "long c" if sender.uses("c") else "long"
        step = "long t" if sender.uses("t") else "long"
        out.append(f"elk::shift(prog, {s.ident}, {self.slots(op.source.data.slots)}, {t.ident},")
        out.append(
            f"    []({c}, {step}) -> long {{ return {cpp_expr(sender)}; }},"
            f" {'t' if op.step is not None else '0'}, {self.label(t.op.sym_name.data)});"
        )

    def execute(self, op: ipu.ExecuteOp, out: list[str]) -> None:
        """A compute set."""
        codelet = self.codelet(op)
        iterate: Layout = op.iterate.data
        name, at = op.sym_name.data, self.block_at([e.data for e in op.at])
        out += [
            "{",
            f"  ComputeSet cs = graph.addComputeSet({self.label(name)});",
            f"  for (unsigned c = 0; c < {iterate.cores}; ++c) {{",
            f"    const elk::Block it = {self.layout(iterate)}.block({at});",
            "    if (it.empty())",
            "      continue;",
            f"    VertexRef v = graph.addVertex(cs, {quoted(codelet.name)});",
        ]
        edges = [
            (field, v, self.block_at(slots))
            for field, v, slots in self.edges(op)
            if field in codelet.fields
        ]
        out += [f"    {line}" for line in self.declared.connections(edges)]
        if codelet.box != '""':
            out.append(f"    elk::setBox(graph, v, it, {codelet.box});")
        if op.phase.data is VertexPhase.COMBINE:
            ways = self.var(_ref(op.ins.data[0]).name).layout.shape[0]
            out.append(f'    graph.setInitialValue(v["ways"], {ways});')
        if self.cost is not None:
            out.append(f"    graph.setPerfEstimate(v, {self.cycles(op)});")
        out += [
            "    graph.setTileMapping(v, c);",
            "  }",
            "  prog.add(Execute(cs));",
            "}",
        ]

    def cycles(self, op: ipu.ExecuteOp) -> int:
        """Modelled cycles of a vertex with a full box."""
        assert self.cost is not None
        operator = self.operators[op.codelet.root_reference.data][1]
        ways = 1
        if op.phase.data is VertexPhase.COMBINE:
            ways = self.var(_ref(op.ins.data[0]).name).layout.shape[0]
        tile = op.iterate.data.block_shape
        return vertex_cycles(self.cost, operator, op.phase.data, tile, ways)

    def edges(self, op: ipu.ExecuteOp) -> list[tuple[str, Variable, Sequence[Expr | None]]]:
        """The fields of an execute's vertices, with the variables they are connected to."""
        operator = self.operators[op.codelet.root_reference.data][1]
        found: list[tuple[str, Variable, Sequence[Expr | None]]] = []

        def add(field: str, attr: Attribute) -> None:
            reference = _ref(attr)
            v = self.var(reference.name)
            if any(s is None for s in reference.slots):
                raise ElkError(f"@{op.sym_name.data} reads all slots of @{reference.name} at once")
            found.append((field, v, reference.slots))

        if op.phase.data is VertexPhase.COMBINE:
            for i, attr in enumerate(op.ins):
                add(f"g{i}", attr)
        else:
            other = Phase.APPLY if op.phase.data is VertexPhase.LOCAL else Phase.LOCAL
            read = [v for v, a in enumerate(operator.operands) if a.phase is not other]
            for v, attr in zip(read, op.ins, strict=True):
                add(f"x{v}", attr)
        for i, attr in enumerate(op.stats):
            add(f"a{i}", attr)
        for i, attr in enumerate(op.outs):
            add(f"y{i}", attr)
        return found

    def codelet(self, op: ipu.ExecuteOp) -> Codelet:
        """The vertex class of a compute set. Those of one operator and phase share it, and those of
        operators whose classes are the same but for the name."""
        symbol, phase = op.codelet.root_reference.data, op.phase.data
        if symbol not in self.operators:
            raise ElkError(f"no codelet is called @{symbol}")
        key = (symbol, phase)
        if key not in self.codelets:
            _, operator = self.operators[symbol]
            name = self.names.get("codelet", f"{symbol}_{phase}")
            dims = ", ".join(f"{d.name} = {d.extent}" for d in operator.dims)
            about = f"{symbol}: {operator.kind} ({dims}), {phase}"
            try:
                text = codelet_text(operator, phase, name, comment(about))
            except ElkError as error:
                error.where = error.where or symbol
                raise
            made = Codelet(name, text, codelet_fields(text))
            self.codelets[key] = self.classes.setdefault((phase, *text[2:]), made)
        return self.codelets[key]

    # ------------------------------------------------------------------ the text

    def text(self) -> str:
        """The whole program."""
        calls: list[str] = []
        self.block(self.program.body.block, calls)
        chips, tiles = self.machine()
        remotes = list(self.remotes.values())
        model = self.module.attributes.get("onnx.model")
        named = comment(model.data if isinstance(model, StringAttr) else "a model")
        out = head_lines(named, chips, tiles)
        out += ["#if defined(__POPC__) || defined(POPLAR_LITE)", "#include <poplar/HalfFloat.hpp>"]
        out += ["#include <poplar/Vertex.hpp>", "", "#include <cmath>", ""]
        out += [
            "using namespace poplar;",
            "",
            *helper("elk_math.hpp"),
            "",
            *helper("elk_common.hpp"),
            "",
        ]
        for dtype in sorted(self.fills):
            out += [*filler_text(dtype), ""]
        for dtype in sorted(self.indexers):
            out += [*indexer_text(dtype), ""]
        for codelet in self.classes.values():
            out += [*codelet.text, ""]
        out += self.registrations()
        out += ["#endif", "", "#ifndef __POPC__"]
        out.append(f"constexpr unsigned long MAX_RANK = {self.rank};")
        out += self.hbm.constants() if self.hbm else []
        for name in ("elk_layout.hpp", "elk_graph.hpp", "elk_host.hpp"):
            out += [*helper(name), ""]
        out += ["namespace {", "using namespace poplar;", "using namespace poplar::program;", ""]
        out.append("// Which box of a tensor core c holds in slot s.")
        out.append("constexpr elk::Layout")
        out.append(",\n".join(f"    {i} = {text}" for text, i in self.layouts.items()) + ";")
        out += ["", *self.model(calls, remotes), "} // namespace", ""]
        clock = self.hbm and self.hbm.clock()
        out += cpp_host.main_lines(remotes, filled_after(self.module), chips, tiles, clock)
        out += ["#endif", ""]
        return "\n".join(out)

    def model(self, calls: list[str], remotes: list[Remote]) -> list[str]:
        """The class that builds the graph and its programs."""
        out = ["struct Model {", "  Graph &graph;"]
        out += [f"  RemoteBuffer {r.ident};" for r in remotes]
        out += [f"  {line}" for line in self.declared.lines(self.variables)]
        for counter in self.counters.values():
            out += [f"  Tensor {counter}, {counter}First;", f"  ComputeSet {counter}Next;"]
        out += ["", "  explicit Model(Graph &graph) : graph(graph) {", "    declareRemotes();"]
        for value, counter in self.counters.items():
            loop = value.owner.parent_op() if isinstance(value.owner, Block) else None
            assert isinstance(loop, ipu.RepeatOp)
            out += [f"    {line}" for line in counter_lines(counter, loop.first.value.data)]
        out += ["  }", "", "  void declareRemotes() {"]
        out += [f"    {line}" for line in cpp_host.declare_remotes(remotes)]
        out.append("  }")
        for method in self.methods:
            out += ["", *(f"  {line}" for line in method)]
        for name, lines in (
            ("upload", [*cpp_host.stream_lines(remotes, inward=True), *self.initial]),
            ("run", calls),
            ("download", cpp_host.stream_lines(remotes, inward=False)),
        ):
            out += ["", f"  Sequence {name}() {{", "    Sequence prog;"]
            out += [*(f"    {line}" for line in lines), "    return prog;", "  }"]
        return [*out, "};"]

    def registrations(self) -> list[str]:
        """What the small runtime, which has no popc, must be told."""
        known = [("LayerRows", ["base", "layer", "rows", "stride"]), ("NextLayer", ["layer"])]
        known += [(filler(d), ["out", "value"]) for d in sorted(self.fills)]
        index_fields = ["indices", "layer", "rows", "plus", "outer", "count", "inner"]
        known += [(indexer(d), index_fields) for d in sorted(self.indexers)]
        known += [(c.name, c.fields) for c in self.classes.values()]
        return registration_lines(known, EMULATED_VERTEX)

    def machine(self) -> tuple[int, int]:
        """Chips and tiles a chip."""
        if self.chip:
            return self.chip.chips, self.chip.cores_per_chip
        return 1, max((v.layout.cores for v in self.variables.values()), default=1)


def _ref(attr: Attribute):
    assert isinstance(attr, RefAttr)
    return attr.data


def _plain_reshards(ops: Sequence[Operation]) -> list[ipu.ReshardOp]:
    """The changes of layout of whole tensors that operations begin with."""
    found: list[ipu.ReshardOp] = []
    for op in ops:
        if not isinstance(op, ipu.ReshardOp) or op.axis is not None:
            break
        found.append(op)
    return found


def _apply_in(op: Operation) -> ipu.ExecuteOp | None:
    for inner in op.walk():
        if isinstance(inner, ipu.ExecuteOp) and inner.phase.data is VertexPhase.APPLY:
            return inner
    return None


def emit_cpp(module: ModuleOp) -> str:
    """The C++ text of an ipu program. Raises ElkError for what Poplar cannot express."""
    return _Emitter(module).text()


@dataclass(frozen=True)
class PoplarCppTarget(Target):
    """Print an ipu program as a Poplar C++ program.

    elk-opt program.mlir -t poplar-cpp
    """

    name = "poplar-cpp"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the text."""
        output.write(emit_cpp(module))
