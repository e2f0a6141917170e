"""The host part of a program: functions of the onnx dialect, run by an ONNX runtime.

onnxruntime without optimisations runs them where it is installed and takes them, ONNX's reference
evaluator otherwise. Weights are fed like inputs, memory-mapped, and never become part of a model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import TensorType, UnrankedTensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from elk_ir.dialects.element_types import element_type_name
from elk_ir.dialects.location import node_name
from elk_ir.errors import ModelError
from elk_ir.frontend.element_types import numpy_dtype
from elk_ir.frontend.export import export_function
from elk_ir.numerics.onnx_eval import model_of_graph, onnxruntime_session

if TYPE_CHECKING:
    from elk_ir.weight_source import WeightSource

HostValue: TypeAlias = "np.ndarray | list[Any] | None"
"""A tensor, a sequence, or an optional that is empty."""

Run = Callable[[Mapping[str, Any]], list[Any]]

RANDOM = frozenset(
    "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform"
    " RandomUniformLike".split()
)
"""Operators whose results differ from run to run: no one could check them, so they run nowhere.
(A Dropout that drops nothing is lowered to te; only one that trains comes here.)"""

REFERENCE = frozenset({"DFT", "MaxUnpool", "STFT"})
"""Operators whose results onnxruntime has less exactly than ONNX's node tests ask for, or not as
they do (the places of MaxUnpool with an output shape): the reference evaluator runs them."""


class HostFunction:
    """A function that the host runs. Made once, run by any thread.

    Raises ModelError when neither onnxruntime nor the reference evaluator takes it.
    """

    def __init__(self, function: FuncOp, opset: int) -> None:
        self.name = function.sym_name.data
        exported = export_function(function, None)
        self._weights = exported.weights
        self._model = model_of_graph(exported, opset)
        given = [v.name for v in exported.graph.input]
        self.inputs = [name for name in given if name not in self._weights]
        self.outputs = [v.name for v in exported.graph.output]
        self._lock = threading.Lock()
        self._runs: list[Run] = []
        if _plain(function) and not operators_of(function) & REFERENCE:
            session = onnxruntime_session(self._model)
            if session is not None:
                self._runs.append(lambda feed: session.run(None, dict(feed)))
        self.evaluator = "onnxruntime" if self._runs else "onnx.reference"
        if not self._runs:
            self._runs.append(self._reference())

    def run(self, inputs: Mapping[str, HostValue], weights: WeightSource) -> dict[str, HostValue]:
        """The results by name. Raises ModelError when it fails on these inputs, or when weights
        are missing."""
        feed: dict[str, Any] = {name: inputs[name] for name in self.inputs}
        for name, ref in self._weights.items():
            feed[name] = np.asarray(weights.load_ref(ref), order="C")
        problem: Exception | None = None
        for run in self._attempts():
            try:
                found = run(feed)
            except Exception as error:  # those of runtimes share no base class
                problem = problem or error
                continue
            return dict(zip(self.outputs, map(_value, found), strict=True))
        raise ModelError(
            f"the host cannot run this part ({type(problem).__name__}: {problem})", where=self.name
        ) from problem

    def _attempts(self) -> Sequence[Run]:
        """onnxruntime, if it took the model, then the reference evaluator: what the one lacks for
        some inputs the other may have."""
        with self._lock:
            if self.evaluator == "onnxruntime" and len(self._runs) == 1:
                try:
                    self._runs.append(self._reference())
                except ModelError:
                    pass
            return tuple(self._runs)

    def _reference(self) -> Run:
        """ONNX's evaluator. Raises ModelError for operators that it lacks."""
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(self._model)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"no ONNX runtime takes it ({reason})", where=self.name) from None

        def run(feed: Mapping[str, Any]) -> list[Any]:
            with np.errstate(all="ignore"):
                return list(evaluator.run(None, dict(feed)))  # pyright: ignore

        return run


def check_node(op: Operation, function: FuncOp, opset: int) -> None:
    """Whether the host can run `op`; `function` has that operation only. Raises ModelError."""
    if operators_of(op) & RANDOM:
        raise ModelError("random numbers can't be reproduced", where=node_name(op))
    HostFunction(function, opset)


def operators_of(op: Operation) -> set[str]:
    """The operators inside an operation, itself included: `OpType`, or `domain:OpType`."""
    from elk_ir.passes.onnx_lowerings.driver import op_type_of

    return {op_type_of(each) for each in op.walk()}


def _plain(function: FuncOp) -> bool:
    """Whether numpy itself has all element types of tensors inside: onnxruntime takes no others
    from Python."""
    for op in function.walk():
        for value in (*op.operands, *op.results):
            kind = value.type
            if isinstance(kind, TensorType | UnrankedTensorType):
                name = element_type_name(kind.element_type)
                if name != "string" and numpy_dtype(name).isbuiltin != 1:
                    return False
    return True


def _value(found: Any) -> HostValue:
    return found if found is None or isinstance(found, list) else np.asarray(found)
