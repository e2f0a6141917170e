"""What a model should compute, and how far off rounding alone may be.

Two evaluators that share no code with the compiler, onnxruntime without optimisations and ONNX's
reference evaluator, each give an answer; agreeing with either is agreeing (where they differ, the
standard is not clear, or one has a defect). Where a result is off by more than the tolerance of its
type, the graph is evaluated again with noise of a few units in the last place on every value: what
cancels that much is no evidence against anybody.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from elk_ir.numerics.compare import OutputError, coarsest, output_error
from fuzz.builder import run_nodes, run_onnxruntime

NOISE_RUNS = 3
MARGIN = 20.0
"""Rounding of the compiler's order of evaluation against that of the noise."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Reference:
    """Answers to compare with, and the model to make noisy ones with."""

    model: onnx.ModelProto
    inputs: Arrays
    answers: tuple[Arrays, ...]
    precision: str

    @staticmethod
    def of(model: onnx.ModelProto, inputs: Arrays) -> Reference:
        """The answers of both evaluators, of those that take the model. Raises ValueError if none
        does."""
        names = [o.name for o in model.graph.output]
        found: list[Arrays] = []
        runtime = run_onnxruntime(model, inputs)
        if runtime is not None:
            found.append(dict(zip(names, runtime, strict=True)))
        plain = _evaluate(model, inputs)
        if plain is not None:
            found.append(dict(zip(names, plain, strict=True)))
        if not found:
            raise ValueError("no evaluator takes the model")
        types = [a.dtype.name for a in inputs.values()]
        types += [numpy_helper.to_array(t).dtype.name for t in model.graph.initializer]
        # A value in between may be coarser than all of them (a Cast).
        types += [a.dtype.name for a in found[0].values()]
        if any(_casts_to_half(n) for n in model.graph.node):
            types.append("float16")
        return Reference(model, inputs, tuple(found), coarsest(types))

    def problems(self, outputs: Arrays) -> list[OutputError]:
        """The outputs that disagree with every answer beyond what rounding can do."""
        return min(
            (self._against(outputs, answer) for answer in self.answers),
            key=len,
        )

    def _against(self, outputs: Arrays, answer: Arrays) -> list[OutputError]:
        wrong = [
            error
            for name, wanted in answer.items()
            if not (error := output_error(name, outputs[name], wanted, self.precision)).ok
            or outputs[name].dtype != wanted.dtype
        ]
        if not wrong or any(w.tolerance == 0 for w in wrong):
            return wrong
        noise = self.noise()
        return [w for w in wrong if not w.max_abs_error <= MARGIN * noise.get(w.name, 0.0)]

    def noise(self) -> dict[str, float]:
        """How far each output moves when every value has noise of a few units in the last place."""
        names = [o.name for o in self.model.graph.output]
        runs = [self._noisy(seed) for seed in range(NOISE_RUNS)]
        return {
            name: max(
                float(
                    np.abs(r[name].astype(np.float64) - runs[0][name].astype(np.float64)).max(
                        initial=0
                    )
                )
                for r in runs
            )
            for name in names
        }

    def _noisy(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        values = {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}
        values |= self.inputs
        opset = next(o.version for o in self.model.opset_import if not o.domain)
        for node in self.model.graph.node:
            read = {n: values[n] for n in _reads(node) if n in values}
            results = run_nodes([node], read, [o for o in node.output if o], opset)
            for name, array in zip([o for o in node.output if o], results, strict=True):
                values[name] = _shaken(array, rng)
        return values


def _shaken(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind not in "fV" or not array.size:
        return array
    plain = array.astype(np.float64)
    size = {"float16": 2e-3, "bfloat16": 1e-2}.get(array.dtype.name, 5e-7)
    scale = float(np.abs(plain[np.isfinite(plain)]).max(initial=0))
    return (plain + size * scale * rng.uniform(-1, 1, array.shape)).astype(array.dtype)


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, in its subgraphs as well."""
    found = {n for n in node.input if n}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                found |= _reads(inner)
    return found


def _casts_to_half(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(a.i == onnx.TensorProto.FLOAT16 for a in node.attribute)


def _evaluate(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray] | None:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            results = ReferenceEvaluator(model).run(None, dict(inputs))  # pyright: ignore
        except Exception:  # whatever its operators raise
            return None
    return [np.asarray(r) for r in results]  # pyright: ignore
