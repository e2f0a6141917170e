"""The values inside a model, level by level, by the ONNX nodes that they stem from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp, ReturnOp

from elk_ir.dialects.location import node_names
from elk_ir.errors import ElkError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.weight_source import WeightSource

Trace = list[tuple[tuple[str, ...], np.ndarray]]
"""Node names (leading one first) and a value, in program order; values of no node are left out."""


def trace_level(
    module: ModuleOp, level: str, inputs: Mapping[str, np.ndarray], weights: WeightSource
) -> Trace:
    """The values that a module computes on these inputs. Those inside a loop over layers are known
    at the icca level only; the target's values live in cores and have no trace (ElkError)."""
    if level == "onnx":
        return _trace_onnx(module, inputs, weights)
    if level == "te":
        return _trace_te(module, inputs, weights)
    if level == "icca":
        from elk_ir.numerics.icca_eval import evaluate_icca

        trace: Trace = []
        evaluate_icca(
            module,
            inputs,
            load_weight=weights.load,
            trace=lambda names, values: trace.extend((names, v) for v in values if names),
        )
        return trace
    raise ElkError(f"level {level!r} has no trace")


def _trace_onnx(module: ModuleOp, inputs: Mapping[str, np.ndarray], weights: WeightSource) -> Trace:
    from elk_ir.frontend.export import export_function, main_function
    from elk_ir.numerics.onnx_eval import evaluate_onnx

    sources = export_function(main_function(module), None).sources
    nodes = {v: op for v, op in sources.items() if op.name != "onnx.initializer"}
    values = evaluate_onnx(module, inputs, weights, values=tuple(nodes))
    return [(node_names(op), np.asarray(values[v])) for v, op in nodes.items()]


def _trace_te(module: ModuleOp, inputs: Mapping[str, np.ndarray], weights: WeightSource) -> Trace:
    from elk_ir.numerics.te_eval import evaluate_te

    clone = module.clone()
    main = next(op for op in clone.body.block.ops if isinstance(op, FuncOp))
    block = main.body.block
    last = block.last_op
    assert isinstance(last, ReturnOp)
    traced = [
        (names, value)
        for op in block.ops
        if op is not last and (names := node_names(op))
        for value in op.results
        if isinstance(value.type, TensorType) and op.name != "te.load"
    ]
    known = len(last.operands)
    extended = ReturnOp(*last.operands, *(value for _, value in traced))
    block.insert_op_before(extended, last)
    last.detach()
    last.erase()
    results = evaluate_te(clone, inputs, load_weight=weights.load)
    return [(names, results[f"result{known + i}"]) for i, (names, _) in enumerate(traced)]
