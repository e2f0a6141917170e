"""`convert-onnx-to-te`: ONNX operators become structured tensor expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context as XdslContext
from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import copy_location
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.structure import LoadOp
from elk_ir.passes.onnx_lowerings.context import Context
from elk_ir.passes.onnx_lowerings.driver import lower_block


class LoweringFailure(PassFailedException):
    """Nodes have no lowering; they may run on the host (`onnx-cut-host`)."""


@dataclass(frozen=True)
class ConvertOnnxToTePass(ModulePass):
    """Lower every ONNX operator; report all that can't be, by node name, and then change nothing.

    Each initializer becomes a `te.global weight` and a `te.load` in front of its first reader;
    scalars used elementwise become constants of bodies.
    """

    name = "convert-onnx-to-te"

    def apply(self, ctx: XdslContext, op: ModuleOp) -> None:
        from elk_ir.frontend.export import opset_of

        converted: list[tuple[FuncOp, FuncOp, Context]] = []
        errors: list[str] = []
        symbols = {
            name.data
            for o in op.body.block.ops
            if isinstance(name := o.properties.get("sym_name"), StringAttr)
        }
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                context = Context(opset_of(op), symbols)
                new = convert_function(function, context, errors, lower_block)
                converted.append((function, new, context))
        if errors:
            count = f"{len(errors)} node{'s' if len(errors) > 1 else ''}"
            raise LoweringFailure("\n  ".join([f"{count} can't be lowered to te:", *errors]))
        for old, new, context in converted:
            block = op.body.block
            block.insert_ops_before(list(context.globals.values()), old)
            block.insert_op_before(new, old)
            block.erase_op(old)


Lower = Callable[[Context, Block, dict[SSAValue, SSAValue], list[str]], None]
"""Lowers the operations of a block, extending the map from its values to those of te, and the list
of what can't be lowered."""


def convert_function(function: FuncOp, context: Context, errors: list[str], lower: Lower) -> FuncOp:
    """A function over te whose body `lower` makes of that of `function`; its weights are in the
    context."""
    values: dict[SSAValue, SSAValue] = {}
    for arg in function.body.block.args:
        new = context.block.insert_arg(arg.type, len(context.block.args))
        new.name_hint = arg.name_hint
        values[arg] = new
    lower(context, function.body.block, values, errors)
    context.current = None
    last = function.body.block.last_op
    assert isinstance(last, ReturnOp)
    returned = ReturnOp(*(values[v] for v in last.arguments))
    copy_location(last, returned)
    context.block.add_op(returned)
    if not errors:
        remove_dead(context.block)
        place_loads(context)
    types = FunctionType.from_lists(
        [a.type for a in context.block.args], [v.type for v in returned.operands]
    )
    new_function = FuncOp.create(
        properties={**function.properties, "function_type": types},
        attributes=dict(function.attributes),
        regions=[Region(context.block)],
    )
    copy_location(function, new_function)
    return new_function


def remove_dead(block: Block) -> None:
    """Erase operations without memory effects whose results nothing reads."""
    for op in reversed(list(block.ops)):
        if isinstance(op, StructuredOp) and not any(r.uses for r in op.results):
            block.erase_op(op)


def place_loads(context: Context) -> None:
    """Put each load in front of its first reader; drop globals that nothing reads."""
    used: set[str] = set()
    for op in list(context.block.ops):
        for value in op.operands:
            load = value.owner
            if isinstance(load, LoadOp) and load.parent is None:
                context.block.insert_op_before(load, op)
                used.add(load.source.string_value())
    for name in [n for n in context.globals if n not in used]:
        del context.globals[name]
