"""What the symbols of an `ipu` module are called in the emitted program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from elk_ir.dialects import ipu
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.plan.expr import Expr
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu import cpp_host
from elk_ir.targets.ipu.cpp_common import Variable
from elk_ir.targets.ipu.cpp_declarations import Declarations
from elk_ir.targets.ipu.cpp_host import Remote
from elk_ir.targets.ipu.cpp_types import Names, cpp_expr, cpp_layout, quoted


class ProgramNames:
    """The variables, remote buffers, layouts and labels of a module's program. Raises ElkError if
    the module has none."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.names = Names()
        self.layouts: dict[str, str] = {}
        self.rank = 1
        self.counts: dict[str, int] = {}
        ops = list(module.body.block.ops)
        variables = [op for op in ops if isinstance(op, ipu.VarOp)]
        self.declared = Declarations(variables, self.names)
        self.variables = {v.op.sym_name.data: v for v in map(self.variable, variables)}
        program = next((op for op in ops if isinstance(op, ipu.ProgramOp)), None)
        if program is None:
            raise ElkError(
                "the module has no ipu.program", hint="lower it with convert-icca-to-ipu first"
            )
        self.program = program
        remotes = [op for op in ops if isinstance(op, ipu.RemoteOp)]
        self.remotes: dict[str, Remote] = {
            r.name: r for r in cpp_host.remotes(remotes, list(program.walk()), self.names)
        }

    def variable(self, op: ipu.VarOp) -> Variable:
        """A variable with its C++ names."""
        ident, layout = self.declared.idents[op.sym_name.data], op.layout.data
        return Variable(op, ident, layout, self.layout(layout), shape_dtype(op.type)[1])

    def layout(self, layout: Layout) -> str:
        """The identifier of a layout; equal ones share one."""
        self.rank = max(self.rank, len(layout.axes))
        return self.layouts.setdefault(cpp_layout(layout), f"L{len(self.layouts)}")

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

    def own_label(self, v: Variable) -> str:
        """The name of what is done to a variable as a further argument: none if it is its own."""
        label = self.label(v.op.sym_name.data)
        return "" if label == quoted(v.op.sym_name.data) else f", {label}"

    def slots(self, exprs: Sequence[Expr | None]) -> str:
        """Slots as a list, -1 for all of an axis."""
        return "{" + ", ".join("-1" if e is None else cpp_expr(e) for e in exprs) + "}"

    def block_at(self, exprs: Sequence[Expr | None]) -> str:
        """Core c and slots as arguments: the slots are left out where all are the first."""
        first = all(e is not None and e.kind == "const" and e.value == 0 for e in exprs)
        return "c" if first else f"c, {self.slots(exprs)}"

    def moved(self, moves: Sequence[ipu.ReshardOp]) -> tuple[str, str] | None:
        """From where to where some changes of layout move the statistics of an operator. None if
        they move something else, or something that was moved there before, under another label."""
        targets = [o.target.root_reference.data for o in moves]
        source = self.declared.whole([o.source.root_reference.data for o in moves])
        target = self.declared.whole(targets)
        if source is None or target is None or self.counts.keys() & set(targets):
            return None
        self.counts |= dict.fromkeys(targets, 1)
        return source, target
