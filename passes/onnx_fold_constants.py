"""`onnx-fold-constants`: infer types and fold constants, on IR of the onnx dialect.

The importer folds while it reads a model; this pass does the same to IR that was written or changed
by hand, with the same implementation: a function is turned into a graph, folded, and built again.
Operations keep their locations.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import copy_location
from elk_ir.dialects.onnx import CustomOp, InitializerOp, OnnxOp
from elk_ir.errors import ModelError


@dataclass(frozen=True)
class OnnxFoldConstantsPass(ModulePass):
    """Evaluate operations on constants, move views of weights into their recipes, inline branches
    on constants, and drop what changes nothing or is not used."""

    name = "onnx-fold-constants"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            if not function.is_declaration and _is_onnx(function):
                try:
                    _fold_function(op, function)
                except ModelError as error:
                    raise PassFailedException(str(error)) from None


def _is_onnx(function: FuncOp) -> bool:
    return any(isinstance(o, OnnxOp | CustomOp | InitializerOp) for o in function.body.block.ops)


def _fold_function(module: ModuleOp, function: FuncOp) -> None:
    from elk_ir.frontend.build_ir import build_function
    from elk_ir.frontend.export import export_function, opset_of
    from elk_ir.frontend.fold import Folder
    from elk_ir.frontend.graph import type_from_proto
    from elk_ir.frontend.load import set_apart_unknown_operators

    exported = export_function(function, None)
    proto = exported.graph
    set_apart_unknown_operators(proto)
    declared = {o.name: type_from_proto(o.type) for o in proto.output}
    declared |= _result_types(exported.sources)
    inputs = {
        i.name: type_from_proto(i.type) for i in proto.input if i.name not in exported.weights
    }
    folder = Folder(opset_of(module), lambda ref: None, {}, lambda: declared)
    graph = folder.main_graph(proto, inputs, exported.weights)
    model = module.attributes.get("onnx.model")
    new = build_function(
        graph,
        name=function.sym_name.data,
        model=model.data if isinstance(model, StringAttr) else "",
        locations={name: op.location for name, op in exported.sources.items()},
    )
    # Everything but the body and its type stays.
    for name in ("arg_attrs", "res_attrs", "sym_visibility"):
        new.properties.pop(name, None)
        if name in function.properties:
            new.properties[name] = function.properties[name]
    new.attributes |= function.attributes
    copy_location(function, new)
    for before, after in zip(function.body.block.args, new.body.block.args, strict=True):
        after.name_hint = before.name_hint
        after.location = before.location
    old_end, new_end = function.body.block.last_op, new.body.block.last_op
    assert old_end is not None and new_end is not None
    copy_location(old_end, new_end)
    Rewriter.replace_op(function, new)


def _result_types(sources: dict[str, Operation]) -> dict:
    """The types that IR states for the results of foreign operators."""
    from elk_ir.frontend.export import type_proto
    from elk_ir.frontend.graph import type_from_proto

    return {
        name: type_from_proto(type_proto(op.results[0].type))
        for name, op in sources.items()
        if isinstance(op, CustomOp)
    }
