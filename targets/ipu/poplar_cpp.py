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
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Operator, Phase
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
from elk_ir.targets.ipu.cpp_types import (
    Names,
    comment,
    cpp_expr,
    cpp_layout,
    cpp_type,
    literal,
    quoted,
)
from elk_ir.targets.ipu.weights_file import filled_after

RUNTIME = Path(__file__).parent / "runtime"
"""The folder to compile against where there is no Poplar (`g++ -I`)."""


class _Emitter:
    def __init__(self, module: ModuleOp):
        self.module = module
        chip = module.attributes.get("icca.chip")
        self.chip = chip.to_chip() if isinstance(chip, ChipAttr) else None
        self.cost = self.chip and device_model(self.chip)
        self.hbm = self.chip and Emulation(self.chip)
        self.names = Names()
        self.layouts: dict[Layout, str] = {}
        self.variables: dict[str, Variable] = {}
        self.operators: dict[str, tuple[ipu.CodeletOp, Operator]] = {}
        self.codelets: dict[tuple[str, VertexPhase], Codelet] = {}
        self.fills: set[str] = set()
        self.indexers: set[str] = set()
        self.counters: dict[SSAValue, str] = {}
        self.steps: set[SSAValue] = set()
        self.methods: list[list[str]] = []
        self.initial: list[str] = []
        self.counts: dict[str, int] = {}
        program: ipu.ProgramOp | None = None
        for op in module.body.block.ops:
            if isinstance(op, ipu.VarOp):
                layout = op.layout.data
                self.variables[op.sym_name.data] = Variable(
                    op,
                    self.names.get("var", op.sym_name.data),
                    layout,
                    self.layout(layout),
                    shape_dtype(op.type)[1],
                )
            elif isinstance(op, ipu.CodeletOp):
                self.operators[op.sym_name.data] = (op, op.structured.operator())
            elif isinstance(op, ipu.ProgramOp):
                program = op
        if program is None:
            raise ElkError(
                "the module has no ipu.program", hint="lower it with convert-icca-to-ipu first"
            )
        self.program = program
        ops = [op for op in module.body.block.ops if isinstance(op, ipu.RemoteOp)]
        self.remotes: dict[str, Remote] = {
            r.name: r for r in cpp_host.remotes(ops, list(program.walk()), self.names)
        }

    # ------------------------------------------------------------------ names

    def layout(self, layout: Layout) -> str:
        """The identifier of a layout; equal ones share one."""
        return self.layouts.setdefault(layout, f"L{len(self.layouts)}")

    def var(self, name: SymbolRefAttr | str) -> Variable:
        """A variable. Raises ElkError for one that is not declared."""
        key = name if isinstance(name, str) else name.root_reference.data
        if key not in self.variables:
            raise ElkError(f"no ipu.var is called @{key}")
        return self.variables[key]

    def remote(self, name: SymbolRefAttr) -> Remote:
        """A remote buffer. Raises ElkError for one that is not declared."""
        key = name.root_reference.data
        if key not in self.remotes:
            raise ElkError(f"no ipu.remote is called @{key}")
        return self.remotes[key]

    def label(self, text: str) -> str:
        """A name for the engine's reports; a second use gets a number."""
        count = self.counts[text] = self.counts.get(text, 0) + 1
        return quoted(text if count == 1 else f"{text}#{count}")

    def slots(self, exprs: Sequence[Expr | None]) -> str:
        """Slots as a list, -1 for all of an axis."""
        return "{" + ", ".join("-1" if e is None else cpp_expr(e) for e in exprs) + "}"

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
        for op in ops:
            self.operation(op, lines)
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
                    f"elk::localCopy(prog, {source.ident}, {target.ident}, {target.layout_ident},"
                    f" {slots}, {self.label(op.target.data.name + '.landed')});"
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
        for o in op.body.block.ops:
            self.operation(o, inner)
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
        what = f"{v.ident}, {v.layout_ident}, {{{box}}}, {cycles}, {quoted(name)}{last}"
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
            f"elk::store(graph, prog, {v.ident}, {v.layout_ident}, {r.ident},",
            f"           {rows}, {cycles}, {quoted(name)}{first});",
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
            f"elk::fill<{kind}>(graph, prog, {v.ident}, {quoted(filler(v.dtype))}, {value},"
            f" {self.label(v.op.sym_name.data)});"
        )

    def reshard(self, op: ipu.ReshardOp, out: list[str]) -> None:
        """A change of layout."""
        s, t = self.var(op.source), self.var(op.target)
        shift = ""
        if op.axis is not None and op.start is not None:
            shift = f", {op.axis.value.data}, {op.start.value.data}"
        out.append(
            f"elk::reshard(prog, {s.ident}, {s.layout_ident}, {t.ident}, {t.layout_ident},"
            f" {self.label(t.op.sym_name.data)}{shift});"
        )

    def exchange(self, op: ipu.ExchangeOp, out: list[str]) -> None:
        """A ring shift."""
        s, t = self.var(op.source.data.name), self.var(op.target.data.name)
        sender = op.map.data
        c = "long c" if sender.uses("c") else "long"
        step = "long t" if sender.uses("t") else "long"
        out.append(
            f"elk::shift(prog, {s.ident}, {s.layout_ident}, {self.slots(op.source.data.slots)},"
            f" {t.ident}, {t.layout_ident},"
        )
        out.append(
            f"    []({c}, {step}) -> long {{ return {cpp_expr(sender)}; }},"
            f" {'t' if op.step is not None else '0'}, {self.label(t.op.sym_name.data)});"
        )

    def execute(self, op: ipu.ExecuteOp, out: list[str]) -> None:
        """A compute set."""
        codelet = self.codelet(op)
        iterate: Layout = op.iterate.data
        box = [f for f in codelet.fields if f[0] in "nos"]
        name, at = op.sym_name.data, self.slots([e.data for e in op.at])
        out += [
            "{",
            f"  ComputeSet cs = graph.addComputeSet({self.label(name)});",
            f"  for (unsigned c = 0; c < {iterate.cores}; ++c) {{",
            f"    const elk::Block it = {self.layout(iterate)}.block(c, {at});",
            "    if (it.empty())",
            "      continue;",
            f"    VertexRef v = graph.addVertex(cs, {quoted(codelet.name)});",
        ]
        out += [
            f'    graph.connect(v["{field}"], elk::block({v.ident}, {v.layout_ident}, c,'
            f" {self.slots(slots)}));"
            for field, v, slots in self.edges(op)
            if field in codelet.fields
        ]
        if box:
            fields = ", ".join(quoted(f) for f in box)
            out.append(f"    elk::setBox(graph, v, it, {{{fields}}});")
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
        """The vertex class of a compute set; those of one operator and phase share it."""
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
            self.codelets[key] = Codelet(name, text, codelet_fields(text))
        return self.codelets[key]

    # ------------------------------------------------------------------ the text

    def declarations(self) -> list[list[str]]:
        """Statements that add the variables, in runs of a size that compiles quickly."""
        runs: list[list[str]] = [[]]
        for name, v in self.variables.items():
            at, size = v.op.at.value.data, v.op.bytes.value.data
            n = v.layout.elements
            owner = f" of {v.op.owner.data}" if v.op.owner is not None else ""
            runs[-1] += [
                f"// bytes {at}..{at + size} of a tile: {v.op.type}{comment(owner)}",
                f"{v.ident} = graph.addVariable({cpp_type(v.dtype).poplar},"
                f" {{{v.layout.cores}, {n}}}, {quoted(name)});",
                f"for (unsigned c = 0; c < {v.layout.cores}; ++c)",
                f"  graph.setTileMapping({v.ident}.flatten().slice(c * {n}, (c + 1) * {n}), c);",
                f"elk::placeAt({v.ident}, {at});",
            ]
            if len(runs[-1]) > 200:
                runs.append([])
        return [run for run in runs if run]

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
        for codelet in self.codelets.values():
            out += [*codelet.text, ""]
        out += self.registrations()
        out += ["#endif", "", "#ifndef __POPC__"]
        rank = max((len(x.axes) for x in self.layouts), default=1)
        out.append(f"constexpr unsigned long MAX_RANK = {max(rank, 1)};")
        out += self.hbm.constants() if self.hbm else []
        for name in ("elk_layout.hpp", "elk_graph.hpp", "elk_host.hpp"):
            out += [*helper(name), ""]
        out += ["namespace {", "using namespace poplar;", "using namespace poplar::program;", ""]
        out.append("// Which box of a tensor core c holds in slot s.")
        out += [f"constexpr elk::Layout {i} = {cpp_layout(x)};" for x, i in self.layouts.items()]
        out += ["", *self.model(calls, remotes), "} // namespace", ""]
        clock = self.hbm and self.hbm.clock()
        out += cpp_host.main_lines(remotes, filled_after(self.module), chips, tiles, clock)
        out += ["#endif", ""]
        return "\n".join(out)

    def model(self, calls: list[str], remotes: list[Remote]) -> list[str]:
        """The class that builds the graph and its programs."""
        out = ["struct Model {", "  Graph &graph;"]
        out += [f"  RemoteBuffer {r.ident};" for r in remotes]
        out += [f"  Tensor {v.ident};" for v in self.variables.values()]
        for counter in self.counters.values():
            out += [f"  Tensor {counter}, {counter}First;", f"  ComputeSet {counter}Next;"]
        runs = self.declarations()
        out += ["", "  explicit Model(Graph &graph) : graph(graph) {", "    declareRemotes();"]
        out += [f"    declare{i}();" for i in range(len(runs))]
        for value, counter in self.counters.items():
            loop = value.owner.parent_op() if isinstance(value.owner, Block) else None
            assert isinstance(loop, ipu.RepeatOp)
            out += [f"    {line}" for line in counter_lines(counter, loop.first.value.data)]
        out += ["  }", "", "  void declareRemotes() {"]
        out += [f"    {line}" for line in cpp_host.declare_remotes(remotes)]
        out.append("  }")
        for i, run in enumerate(runs):
            out += ["", f"  void declare{i}() {{", *(f"    {line}" for line in run), "  }"]
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
        known += [(c.name, c.fields) for c in self.codelets.values()]
        return registration_lines(known, EMULATED_VERTEX)

    def machine(self) -> tuple[int, int]:
        """Chips and tiles a chip."""
        if self.chip:
            return self.chip.chips, self.chip.cores_per_chip
        return 1, max((v.layout.cores for v in self.variables.values()), default=1)


def _ref(attr: Attribute):
    assert isinstance(attr, RefAttr)
    return attr.data


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
