"""`te-quantize`: products of a trained model become products of integers (docs/quantization.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.errors import ElkError
from elk_ir.passes.te_quant_rewrite import Rewriter
from elk_ir.passes.te_quant_sites import Site, find_products, prepare
from elk_ir.quant.integers import FLOAT8
from elk_ir.quant.scheme import Scheme, parse_scheme
from elk_ir.quant.statistics import Samples, unit_step

Load = Callable[[Attribute | None], np.ndarray]
Arrays = Mapping[str, np.ndarray]

UNIT = "unit"
"""The calibration that looks at no data: see `te-quantize`."""


@dataclass(frozen=True)
class TeQuantizePass(ModulePass):
    """Quantise a model after training: weights by channel, activations by tensor or by token.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,te-quantize{scheme=w4a4
            calibration="in.npz" weights="models"}'

    scheme: `wNaM`, N bits a weight and M an activation (16: activations stay numbers, and narrow
    weights are widened in the products). output: bits of the output layer (8), silu: bits of what
    an activation function reads (8), kv: bits of both operands of attention's products and of the
    cache (M); where activations stay numbers, of the cache alone, which attention widens. `kvK`
    behind the scheme says the same; `f8` for N or K stores eight-bit floats (e4m3).
    activations: `tensor`, one step fitted on the calibration inputs, or `token`, a step for each
    token that the program computes itself.
    calibration: an .npz of inputs with the shapes of this module, or `unit`, which takes every
    activation to be of unit variance: for bytes and times of a model without weights.
    weights: the folder of the model's weights; random-weights: a seed for those that do not exist.

    Attention becomes two products and a softmax. Weights keep their references, with a recipe that
    quantises at load. What is not a product stays as it is.
    """

    name = "te-quantize"

    scheme: str
    calibration: str | None = None
    weights: str | None = None
    random_weights: int | None = None
    activations: str = "tensor"
    output: int | None = None
    silu: int | None = None
    kv: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        try:
            self.run(op)
        except ElkError as error:
            raise PassFailedException(str(error)) from None

    def run(self, op: ModuleOp) -> None:
        """`apply`, raising ElkError for what the user got wrong."""
        from elk_ir.numerics.tensors import read_npz
        from elk_ir.weight_source import WeightSource

        scheme = self.parsed()
        source = WeightSource(Path(self.weights or "."), random_seed=self.random_weights)
        given: Arrays | str | None = self.calibration
        if given is not None and given != UNIT:
            given = read_npz(given, "in/")
        quantize_module(op, scheme, given, source.load)

    def parsed(self) -> Scheme:
        """The scheme that the options say. Raises ElkError."""
        return parse_scheme(
            self.scheme,
            output=self.output,
            silu=self.silu,
            kv=self.kv,
            activations=self.activations,
        )


@dataclass(frozen=True)
class QuantizeWith(TeQuantizePass):
    """The pass on calibration inputs and weights that are at hand, as the compiler runs it.

    model: the same model at the shapes of the calibration inputs, where those differ."""

    given: Arrays | str | None = None
    load: Load | None = None
    model: ModuleOp | None = field(default=None, compare=False)

    def run(self, op: ModuleOp) -> None:
        assert self.load is not None
        quantize_module(op, self.parsed(), self.given, self.load, self.model)


def quantize_module(
    module: ModuleOp,
    scheme: Scheme,
    calibration: Arrays | str | None,
    load: Load,
    model: ModuleOp | None = None,
) -> None:
    """Quantise `module` in place. `load` gives the value of a weight, `model` is the module to
    calibrate on (the same graph at other shapes) instead of `module`.

    Raises ElkError: nothing to quantise, calibration inputs missing or of other shapes.
    """
    sites = prepare(module, scheme)
    if not find_products(module, scheme):
        raise ElkError(
            "there is nothing to quantise: the model has no product of floating-point tensors",
            hint="a model in QDQ form is one of integers already",
        )
    steps = _steps(module, sites, scheme, calibration, load, model)
    Rewriter(module, scheme, sites, steps).run()


def _steps(
    module: ModuleOp,
    sites: list[Site],
    scheme: Scheme,
    calibration: Arrays | str | None,
    load: Load,
    model: ModuleOp | None,
) -> dict[Site, list[float]]:
    """The steps of every site, one a layer."""
    fitted = [s for s in sites if s.fitted]
    if not fitted:
        return {}
    if calibration is None and all(s.dtype in FLOAT8 for s in fitted):
        return {s: [1.0] * s.layers for s in fitted}
    if calibration is None:
        names = ", ".join(dict.fromkeys(s.name for s in fitted[:3]))
        raise ElkError(
            f"{scheme.name} needs calibration inputs: the steps of {len(fitted)} tensors are fitted"
            f" on them ({names}{', …' if len(fitted) > 3 else ''})",
            hint='give an .npz of typical inputs: calibration="in.npz" (--calibrate in.npz);'
            " w8a16 and w4a16 quantise weights only and need none, nor does kvf8",
        )
    if isinstance(calibration, str):
        return {s: [unit_step(s.dtype)] * s.layers for s in fitted}
    seen = sites
    if model is not None:
        seen = prepare(model, scheme)
        if [(s.kind, s.dtype) for s in seen] != [(s.kind, s.dtype) for s in sites]:
            raise ElkError(
                "at the shapes of the calibration inputs the model has other operators",
                hint="calibrate with inputs of the shapes that the model is compiled for",
            )
    samples = _run(module if model is None else model, seen, calibration, load)
    return {
        s: samples.steps(i, s.layers, s.dtype)
        for i, (s, other) in enumerate(zip(sites, seen, strict=True))
        if other.fitted
    }


def _run(module: ModuleOp, sites: list[Site], calibration: Arrays, load: Load) -> Samples:
    """Run the model in floating point; what each site held, by its position."""
    from elk_ir.numerics.te_eval import evaluate_te

    samples = Samples()
    wanted: dict[Operation, list[tuple[int, Site]]] = {}
    for i, site in enumerate(sites):
        if site.fitted:
            wanted.setdefault(site.op, []).append((i, site))

    def observe(op: Operation, iteration: int, values: Mapping[SSAValue, Any]) -> None:
        for i, site in wanted.get(op, ()):
            samples.add(i, iteration, np.asarray(values[site.value])[site.part])

    evaluate_te(module, calibration, load_weight=load, observe=observe)
    return samples
