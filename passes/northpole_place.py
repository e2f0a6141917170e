"""`northpole-place`: give every operator of the stages its part of the 16 × 16 cores."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects import icca, northpole
from elk_ir.dialects.icca.attrs import HandleType, HbmKind
from elk_ir.northpole.network import Task
from elk_ir.northpole.place import Division, choose_division
from elk_ir.passes.icca_support import chip_of, defining_preloads, executes, program_of, set_plan
from elk_ir.plan.domain import Operator

CARDS = "northpole.cards"
"""Attribute of an execute: the dimension that the cards of its stage divide."""


def block_of(execute: icca.ExecuteOp) -> str | None:
    """The block that an execute belongs to; None for the host's and for copies."""
    name = execute.structured.attributes.get(northpole.BLOCK)
    return name.data if isinstance(name, StringAttr) else None


def map_of(module: ModuleOp) -> northpole.ProgramOp:
    """The stage map of a module. Raises PassFailedException when there is not one."""
    programs = [op for op in module.ops if isinstance(op, northpole.ProgramOp)]
    if len(programs) != 1:
        raise PassFailedException(
            f"there are {len(programs)} northpole.program: run northpole-map-stages first"
        )
    return programs[0]


def kind_of(module: ModuleOp) -> dict[str, HbmKind]:
    """What each tensor of an icca module is for, by name."""
    return {op.sym_name.data: op.kind.data for op in module.ops if isinstance(op, icca.HbmOp)}


@dataclass
class _Placer:
    """Walks the program in order; `divided` has the axis of a value that cards hold parts of."""

    module: ModuleOp

    def __post_init__(self) -> None:
        self.kinds = kind_of(self.module)
        self.axes = {
            op.sym_name.data: op.axis.value.data
            for op in self.module.ops
            if isinstance(op, icca.HbmOp) and op.axis is not None
        }
        self.cores = chip_of(self.module).cores_per_chip
        self.context = map_of(self.module).context.value.data
        self.blocks = {
            op.sym_name.data: op for op in self.module.ops if isinstance(op, northpole.BlockOp)
        }
        self.tasks = {name: list(op.tasks) for name, op in self.blocks.items()}
        self.divided: dict[SSAValue, int] = {}

    def run(self) -> None:
        for execute in executes(program_of(self.module)):
            symbol = block_of(execute)
            if symbol is None:
                # A copy: its result lies as its operand does.
                if len(execute.ins) == 1 and execute.ins[0] in self.divided:
                    self.divided[execute.outs[0]] = self.divided[execute.ins[0]]
                continue
            if not self.tasks.get(symbol):
                raise PassFailedException(
                    f"{execute.label.data}: block @{symbol} has no place for it"
                )
            self.place(execute, symbol, self.tasks[symbol].pop(0))
        for symbol, left in self.tasks.items():
            if left:
                raise PassFailedException(f"block @{symbol}: nothing executes {left[0].name}")

    def place(self, execute: icca.ExecuteOp, symbol: str, task: Task) -> None:
        operator = execute.operator()
        found = choose_division(
            operator,
            task,
            weights=self.held(execute, HbmKind.WEIGHT),
            states={
                v: self.axes[defining_preloads(execute.ins[v])[0].source.root_reference.data]
                for v in self.held(execute, HbmKind.STATE)
            },
            divided=[(v, self.divided[x]) for v, x in enumerate(execute.ins) if x in self.divided],
            ways=self.blocks[symbol].ways.value.data,
            context=self.context,
            cores=self.cores,
        )
        set_plan(execute, found.plan)
        execute.attributes.pop(CARDS, None)
        if found.dim is not None:
            execute.attributes[CARDS] = StringAttr(operator.dims[found.dim].name)
            self.note(execute, operator, found)

    def note(self, execute: icca.ExecuteOp, operator: Operator, found: Division) -> None:
        """Remember along which axis the results lie on several cards."""
        for access, value in zip(operator.results, execute.outs, strict=True):
            for axis, expr in enumerate(access.axes):
                if any(d == found.dim for d, _ in expr.terms):
                    self.divided[value] = axis

    def held(self, execute: icca.ExecuteOp, kind: HbmKind) -> tuple[int, ...]:
        """Operands that come from tensors of `kind`."""
        return tuple(
            v
            for v, value in enumerate(execute.ins)
            if isinstance(value.type, HandleType)
            and self.kinds[defining_preloads(value)[0].source.root_reference.data] is kind
        )


@dataclass(frozen=True)
class NorthpolePlacePass(ModulePass):
    """Plan the executes of a mapped program on the cores of its cards.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,northpole-map-stages,\
convert-te-to-icca,northpole-place'

    Weights are cut as `northpole-map-stages` counted them, caches along heads and positions, vector
    work along its largest dimensions; in a stage of several cards one dimension is divided among
    them (attribute `northpole.cards`). What the host runs has no plan. Invariant: the numbers.
    Fails when the program is not the one that was mapped.
    """

    name = "northpole-place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _Placer(op).run()
