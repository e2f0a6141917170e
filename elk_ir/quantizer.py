"""Quantising a model while it is compiled: calibration inputs and weights for `te-quantize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import ElkError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from elk_ir.chips import Chip
    from elk_ir.compiler import Report, Source

_BEFORE_ICCA = (
    "te-state-capacity",
    "northpole-map-stages",
    "te-chunk-attention",
    "convert-te-to-icca",
)


@dataclass(frozen=True)
class Quantization:
    """What is to be quantised (docs/quantization.md).

    scheme: `wNaM`. calibration: an .npz of inputs, inputs by name, or `unit`. The rest are the
    options of `te-quantize`: bits of the output layer, of what activation functions read and of the
    attention's products and cache, and the grain of the activations' steps. random_weights: a seed
    for weights that do not exist, which calibration then runs with.
    """

    scheme: str
    calibration: str | Path | Mapping[str, np.ndarray] | None = None
    activations: str = "tensor"
    output: int | None = None
    silu: int | None = None
    kv: int | None = None
    random_weights: int | None = None


def with_quantization(
    passes: Sequence[ModulePass],
    wanted: Quantization,
    *,
    model: Any,
    source: Source,
    module: ModuleOp,
    chip: Chip,
    progress: Report | None = None,
) -> tuple[ModulePass, ...]:
    """`passes` with one that quantises `module` (the imported model) as the last on te.

    Calibration inputs of other shapes than the module's are run on the same model imported at
    theirs. Raises ElkError: a bad scheme, inputs that can't be read or do not fit.
    """
    from elk_ir.compiler import signature_of
    from elk_ir.numerics.tensors import check_inputs, read_npz
    from elk_ir.passes.te_quantize import UNIT, QuantizeWith
    from elk_ir.weight_source import WeightSource

    weights = WeightSource(
        source.base_dir, buffers=source.buffers, random_seed=wanted.random_weights
    )
    place = next((i for i, p in enumerate(passes) if p.name in _BEFORE_ICCA), None)
    if place is None:
        raise ElkError("nothing in this pipeline can be quantised: it has no te")
    given, at_other_shapes = wanted.calibration, None
    if given is not None and given != UNIT:
        where = None if isinstance(given, Mapping) else str(given)
        arrays = given if isinstance(given, Mapping) else read_npz(given, "in/")
        specs = signature_of(module).inputs
        shapes = {s.name: s.shape for s in specs}
        if all(np.shape(a) == shapes.get(n) for n, a in arrays.items()):
            given = check_inputs(arrays, specs, where=where)
        else:
            at_other_shapes, given = _at_shapes(
                model, chip, arrays, passes[:place], source.name, where, progress
            )
    made = QuantizeWith(
        scheme=wanted.scheme,
        activations=wanted.activations,
        output=wanted.output,
        silu=wanted.silu,
        kv=wanted.kv,
        given=given if given is None or isinstance(given, Mapping) else str(given),
        load=weights.load,
        model=at_other_shapes,
    )
    made.parsed()
    return (*passes[:place], made, *passes[place:])


def _at_shapes(
    model: Any,
    chip: Chip,
    arrays: Mapping[str, np.ndarray],
    passes: Sequence[ModulePass],
    name: str,
    where: str | None,
    progress: Report | None,
) -> tuple[ModuleOp, dict[str, np.ndarray]]:
    """The model in te at the shapes of `arrays`, and those as it takes them."""
    from elk_ir.compiler import context, import_source, run_passes, signature_of
    from elk_ir.numerics.tensors import check_inputs

    if progress is not None:
        progress("importing the model at the shapes of the calibration inputs")
    shapes = {n: np.shape(a) for n, a in arrays.items()}
    module, _ = import_source(model, chip, input_shapes=shapes)
    given = check_inputs(arrays, signature_of(module).inputs, where=where)
    run_passes(context(), module, passes, model=name)
    return module, given
