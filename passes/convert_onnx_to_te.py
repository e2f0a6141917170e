"""`convert-onnx-to-te`: ONNX operators become structured tensor expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context as XdslContext
from xdsl.dialects.builtin import ModuleOp, TensorType, UnrealizedConversionCastOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import copy_location, node_name
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.structure import LoadOp
from elk_ir.passes.onnx_lowerings import lowerings
from elk_ir.passes.onnx_lowerings.context import Context, Node, Unsupported


@dataclass(frozen=True)
class ConvertOnnxToTePass(ModulePass):
    """Lower every ONNX operator; report all that can't be, by node name, and then change nothing.

    Each initializer becomes a `te.global weight` and a `te.load` in front of its first reader;
    scalars used elementwise become constants of bodies.
    """

    name = "convert-onnx-to-te"

    def apply(self, ctx: XdslContext, op: ModuleOp) -> None:
        converted: list[tuple[FuncOp, FuncOp, Context]] = []
        errors: list[str] = []
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                context = Context()
                new = _convert_function(function, context, errors)
                converted.append((function, new, context))
        if errors:
            count = f"{len(errors)} node{'s' if len(errors) > 1 else ''}"
            raise PassFailedException("\n  ".join([f"{count} can't be lowered to te:", *errors]))
        for old, new, context in converted:
            block = op.body.block
            block.insert_ops_before(list(context.globals.values()), old)
            block.insert_op_before(new, old)
            block.erase_op(old)


def _convert_function(function: FuncOp, context: Context, errors: list[str]) -> FuncOp:
    values: dict[SSAValue, SSAValue] = {}
    for arg in function.body.block.args:
        new = context.block.insert_arg(arg.type, len(context.block.args))
        new.name_hint = arg.name_hint
        values[arg] = new
    lower_block(context, function.body.block, values, errors)
    context.current = None
    last = function.body.block.last_op
    assert isinstance(last, ReturnOp)
    returned = ReturnOp(*(values[v] for v in last.arguments))
    copy_location(last, returned)
    context.block.add_op(returned)
    if not errors:
        remove_dead(context.block)
        place_loads(context)
    new_function = FuncOp.create(
        properties=dict(function.properties),
        attributes=dict(function.attributes),
        regions=[Region(context.block)],
    )
    copy_location(function, new_function)
    return new_function


def lower_block(
    context: Context, block: Block, values: dict[SSAValue, SSAValue], errors: list[str]
) -> None:
    """Lower the operations of `block`, whose operands `values` maps to te values, extending it.

    Appends one line to `errors` for each node that can't be lowered; its results are then stood in
    for, so that the nodes behind it are checked as well.
    """
    from elk_ir.dialects.onnx import InitializerOp

    for op in block.ops:
        if isinstance(op, ReturnOp):
            continue
        context.current = op
        try:
            if isinstance(op, InitializerOp):
                result = op.results[0]
                name = _initializer_name(op)
                values[result] = context.initializer(op.value, result.type, name, op)
                continue
            results = lower_node(context, op, values)
        except Unsupported as error:
            if not any(_stands_in(values[v]) for v in op.operands):
                errors.append(f"{node_name(op)}: {_op_type(op)}: {error}")
            stand_in = UnrealizedConversionCastOp.create(
                operands=[], result_types=[r.type for r in op.results]
            )
            context.emit(stand_in)
            results = stand_in.results
        for old, new in zip(op.results, results, strict=True):
            values[old] = new
            if new.name_hint is None:
                new.name_hint = old.name_hint


def lower_node(
    context: Context, op: Operation, values: dict[SSAValue, SSAValue]
) -> Sequence[SSAValue]:
    """The te values of the results of one ONNX operation. Raises Unsupported."""
    from elk_ir.dialects.onnx import CustomOp, OnnxOp

    if not isinstance(op, OnnxOp | CustomOp):
        raise Unsupported("not an ONNX operation")
    key = _op_type(op)
    lowering = lowerings().get(key)
    if lowering is None:
        raise Unsupported("no lowering for this operator")
    positional = op.onnx_results
    node = Node(
        op.op_type if isinstance(op, OnnxOp) else op.op_type.data,
        tuple(None if v is None else values[v] for v in op.onnx_operands),
        tuple(None if r is None else r.type for r in positional),
        op.attr,
    )
    lowered = lowering(context, node)
    lowered = (lowered,) if isinstance(lowered, SSAValue) else tuple(lowered)
    results: list[SSAValue] = []
    for i, old in enumerate(positional):
        if old is None:
            continue
        new = lowered[i] if i < len(lowered) else None
        if new is None:
            raise Unsupported(f"result {i} is not available")
        if not _same_type(new.type, old.type):
            raise Unsupported(f"lowered to {new.type}, but the result is {old.type}")
        results.append(new)
    return results


def _same_type(a: Attribute, b: Attribute) -> bool:
    return a == b or (isinstance(a, TensorType) and isinstance(b, TensorType) and a == b)


def _op_type(op: Operation) -> str:
    """`OpType`, or `domain:OpType` outside ONNX's default domain."""
    from elk_ir.dialects.onnx import CustomOp, OnnxOp

    if isinstance(op, OnnxOp):
        return op.op_type
    if isinstance(op, CustomOp):
        domain = op.domain.data
        return f"{domain}:{op.op_type.data}" if domain else op.op_type.data
    return op.name


def _initializer_name(op: Operation) -> str:
    name = node_name(op)
    return (op.results[0].name_hint or "constant") if name == op.name else name


def _stands_in(value: SSAValue) -> bool:
    return isinstance(value.owner, UnrealizedConversionCastOp)


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
