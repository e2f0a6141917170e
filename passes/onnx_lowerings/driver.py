"""Lower the nodes of a block one by one: by the tables, or through ONNX's own function bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    TensorType,
    UnrankedTensorType,
    UnrealizedConversionCastOp,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects.location import copy_location, node_name
from elk_ir.errors import ModelError
from elk_ir.passes.onnx_lowerings import lowerings
from elk_ir.passes.onnx_lowerings.context import Context, Node, Unsupported
from elk_ir.passes.onnx_lowerings.misfit import misfit

# Functions whose bodies ask for what te does not have, so that the operator itself is reported.
_OPAQUE = frozenset({"Bernoulli", "SequenceMap"})
_DEPTH = 8
# What a lowering raises for an operation whose types do not fit each other.
_STUMBLES = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


Watch = Callable[[Operation, str | None], None]
"""Told of each operation once it has been lowered, or why it could not be."""


def lower_block(
    context: Context,
    block: Block,
    values: dict[SSAValue, SSAValue],
    errors: list[str],
    watch: Watch | None = None,
) -> None:
    """Lower the operations of `block`, whose operands `values` maps to te values, extending it.

    Appends one line to `errors` for each node that can't be lowered; its results are then stood in
    for, so that the nodes behind it are checked as well. `watch` is told of all nodes, those that
    fail because they read what is stood in for included.
    """
    from elk_ir.dialects.onnx import InitializerOp

    for op in block.ops:
        if isinstance(op, ReturnOp):
            continue
        context.current = op
        failure: str | None = None
        try:
            if isinstance(op, InitializerOp):
                result = op.results[0]
                name = _initializer_name(op)
                values[result] = context.initializer(op.value, result.type, name, op)
                continue
            results = lower_node(context, op, values)
        except Unsupported as error:
            failure = str(error)
            if not any(_stands_in(values[v]) for v in op.operands):
                errors.append(f"{node_name(op)}: {op_type_of(op)}: {error}")
            stand_in = UnrealizedConversionCastOp.create(
                operands=[], result_types=[r.type for r in op.results]
            )
            context.emit(stand_in)
            results = stand_in.results
        for old, new in zip(op.results, results, strict=True):
            values[old] = new
            if new.name_hint is None:
                new.name_hint = old.name_hint
        if watch is not None:
            watch(op, failure)


def lower_node(
    context: Context, op: Operation, values: dict[SSAValue, SSAValue]
) -> Sequence[SSAValue]:
    """The te values of the results of one ONNX operation. Raises Unsupported."""
    from elk_ir.dialects.onnx import CustomOp, OnnxOp

    if not isinstance(op, OnnxOp | CustomOp):
        raise Unsupported("not an ONNX operation")
    key = op_type_of(op)
    lowering = lowerings().get(key)
    if lowering is None:
        if isinstance(op, OnnxOp) and key not in _OPAQUE:
            expanded = _expand(context, op, values)
            if expanded is not None:
                return expanded
        raise Unsupported("no lowering for this operator")
    positional = op.onnx_results
    node = Node(
        op.op_type if isinstance(op, OnnxOp) else op.op_type.data,
        tuple(None if v is None else values[v] for v in op.onnx_operands),
        tuple(None if r is None else r.type for r in positional),
        op.attr,
    )
    try:
        lowered = lowering(context, node)
    except _STUMBLES:
        known = {v: context.known[values[v]] for v in op.operands if values[v] in context.known}
        reason = misfit(op, known, context.opset)
        if reason is None:
            raise
        raise Unsupported(reason) from None
    lowered = (lowered,) if isinstance(lowered, SSAValue) else tuple(lowered)
    results: list[SSAValue] = []
    for i, old in enumerate(positional):
        if old is None:
            continue
        new = lowered[i] if i < len(lowered) else None
        if new is None:
            raise Unsupported(f"result {i} is not available")
        if not _fits(new.type, old.type):
            raise Unsupported(f"lowered to {new.type}, but the result is {old.type}")
        results.append(new)
    return results


def _fits(new: Attribute, old: Attribute) -> bool:
    """Whether a lowered result may stand for one of type `old`, which inference may have left
    without a rank or with open dimensions."""
    if new == old:
        return True
    if isinstance(old, UnrankedTensorType):
        return isinstance(new, TensorType) and new.element_type == old.element_type
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        shapes = old.get_shape(), new.get_shape()
        return (
            new.element_type == old.element_type
            and len(shapes[0]) == len(shapes[1])
            and all(o in (n, DYNAMIC_INDEX) for o, n in zip(*shapes, strict=True))
        )
    return False


def op_type_of(op: Operation) -> str:
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


def _expand(
    context: Context, op: Operation, values: dict[SSAValue, SSAValue]
) -> Sequence[SSAValue] | None:
    """Lower an operator through the function body that ONNX defines for it; None without one.

    The body is imported as a model of its own, with the operands that are known here as constants,
    so that what depends on them folds.
    """
    from elk_ir.frontend.importer import import_model

    model = _function_model(context, op, values)
    if model is None or context.depth >= _DEPTH:
        return None
    try:
        module = import_model(model.SerializeToString(), name=node_name(op))
    except ModelError as error:
        raise Unsupported(f"its function body can't be imported: {error.what}") from None
    (main,) = (f for f in module.body.block.ops if isinstance(f, FuncOp))
    operands = [v for v in op.operands if values[v] not in context.known]
    inner: dict[SSAValue, SSAValue] = {}
    remaining = dict.fromkeys(operands)
    for arg, value in zip(main.body.block.args, remaining, strict=True):
        inner[arg] = values[value]
    for nested in main.walk():
        copy_location(op, nested)
    errors: list[str] = []
    context.depth += 1
    try:
        lower_block(context, main.body.block, inner, errors)
    finally:
        context.depth -= 1
    if errors:
        reason = errors[0].removeprefix(f"{node_name(op)}: ")
        raise Unsupported(f"its function body has {reason}")
    last = main.body.block.last_op
    assert isinstance(last, ReturnOp)
    results = [inner[v] for v in last.arguments]
    for old, new in zip(op.results, results, strict=True):
        if not _fits(new.type, old.type):
            raise Unsupported(f"its function body yields {new.type}, the result is {old.type}")
    return results


def _function_model(context: Context, op: Operation, values: dict[SSAValue, SSAValue]):
    """A model that calls the function body of `op`; inputs are the operands that are not known."""
    from onnx import FunctionProto, NodeProto, defs, helper, numpy_helper

    from elk_ir.dialects.onnx import OnnxOp
    from elk_ir.frontend.export import export_attribute, type_proto, value_info

    assert isinstance(op, OnnxOp)
    # The stubs of onnx do not know all of a schema's members.
    schema: Any = defs.get_schema(op.op_type, context.opset, "")
    node = NodeProto(op_type=op.op_type, name="n")
    names: dict[SSAValue, str] = {}
    for value in op.onnx_operands:
        node.input.append("" if value is None else names.setdefault(value, f"i{len(names)}"))
    outputs = [v for v in op.onnx_results if v is not None]
    node.output.extend("" if v is None else f"o{i}" for i, v in enumerate(op.onnx_results))
    for name in op.SIGNATURE.attributes:
        if name in op.properties:
            node.attribute.append(export_attribute(name, op.properties[name]))
        elif name in schema.attributes and schema.attributes[name].default_value.name:
            node.attribute.append(schema.attributes[name].default_value)
    version = context.opset
    if schema.has_function:
        function = FunctionProto()
        function.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        types = [
            b"" if v is None else type_proto(v.type).SerializeToString() for v in op.onnx_operands
        ]
        body = schema.get_context_dependent_function(node.SerializeToString(), types)
        if not body:
            return None
        function = FunctionProto.FromString(body)
    else:
        return None
    function.domain, function.name = "elk.function", op.op_type
    del function.output[len(node.output) :]
    del function.input[len(node.input) :]
    node.domain = "elk.function"
    versions = {i.domain: i.version for i in function.opset_import}
    versions[""] = max(versions.get("", 0), 1) if "" in versions else version
    del function.opset_import[:]
    function.opset_import.extend(helper.make_opsetid(d, v) for d, v in versions.items())
    known = {v: n for v, n in names.items() if values[v] in context.known}
    graph = helper.make_graph(
        [node],
        "function",
        [value_info(n, v.type) for v, n in names.items() if v not in known],
        [value_info(f"o{i}", v.type) for i, v in enumerate(op.onnx_results) if v is not None],
        [numpy_helper.from_array(context.known[values[v]], n) for v, n in known.items()],
    )
    assert len(outputs) == len(graph.output)
    return helper.make_model(
        graph,
        functions=[function],
        opset_imports=[*function.opset_import, helper.make_opsetid("elk.function", 1)],
    )
