"""Run a module of the onnx dialect: the model as any ONNX runtime understands it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import ElkError, ModelError
from elk_ir.frontend.export import ExportedGraph, export_function, main_function, opset_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.weight_source import WeightSource


def evaluate_onnx(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    weights: WeightSource,
    *,
    values: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Outputs by name, from onnxruntime without optimisations where it is installed and can run the
    model, else from ONNX's reference evaluator.

    `values` are the names of further values to return. Raises ElkError if neither can run it.
    """
    exported = export_function(main_function(module), weights.load_ref)
    model = model_of_graph(exported, opset_of(module), values)
    fed = {v.name: inputs[v.name] for v in model.graph.input if v.name in inputs}
    names = [v.name for v in model.graph.output]
    results = _with_onnxruntime(model, fed)
    if results is None:
        results = _with_reference(model, fed)
    return dict(zip(names, results, strict=True))


def model_of_graph(exported: ExportedGraph, opset: int, values: Sequence[str] = ()) -> Any:
    """An exported graph as a model; `values` are further values that it returns."""
    from onnx import ValueInfoProto, helper

    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, _version(d)) for d in sorted(exported.domains - {""})]
    graph = exported.graph
    present = {v.name for v in graph.output}
    for name in values:
        if name not in present:
            graph.output.append(ValueInfoProto(name=name))
    return helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True),
        producer_name="elk-ir",
    )


@cache
def _version(domain: str) -> int:
    """The newest version of a domain that onnx knows, 1 for those that it does not."""
    from onnx.defs import get_all_schemas

    # The stubs of onnx do not know all of a schema's members.
    schemas: list[Any] = list(get_all_schemas())
    return max((s.since_version for s in schemas if s.domain == domain), default=1)


def onnxruntime_session(model: Any) -> Any:
    """A session of onnxruntime without optimisations on one thread; None where it is missing or
    refuses the model (operators and types that it lacks, its own limits)."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # its exceptions share no base class with anything
        return None


def _with_onnxruntime(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Its results, None where it is missing or fails: the reference evaluator then has the word."""
    if any(array.dtype.kind == "V" for array in inputs.values()):
        return None  # it takes no ml_dtypes arrays
    session = onnxruntime_session(model)
    if session is None:
        return None
    try:
        return [np.asarray(v) for v in session.run(None, dict(inputs))]
    except Exception:  # its exceptions share no base class with anything
        return None


def _with_reference(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model).run(None, dict(inputs)))  # pyright: ignore
    except ElkError:
        raise
    except Exception as error:
        if os.environ.get("ELK_TRACEBACK"):
            raise
        raise ModelError(
            f"no ONNX evaluator can run the model ({type(error).__name__}: {error})",
            hint="without its reference the levels can't be compared",
        ) from None
