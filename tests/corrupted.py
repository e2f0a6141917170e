"""Correct programs for the tests that corrupt them: how they are made, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from helpers import Weights, lower, machine_of, planned, program, random_array
from test_layer_loop import PLANS, layers
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes
from elk_ir.dialects import ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.extensions import universe
from elk_ir.numerics.tensors import read_npz
from elk_ir.pipelines import PIPELINES
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.targets.ipu.machine import TrapError
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.weight_source import WeightSource

SLICE = ",".join(
    [
        'icca-set-plan{op=norm grid="m=2,k=4"}',
        'icca-set-plan{op=q grid="m=2,n=4,k=2" exec="0:k=2;1:k=2" scatter=n}',
        'icca-set-plan{op=o grid="m=6,n=2" exec="1:n=2" preload="1:k=3,n=2"}',
    ]
)
ATTENTION = ",".join(
    [
        'icca-set-plan{op=attention grid="h=2,g=2,kv=2" exec="1:kv=2" preload="2:kv=2" reduce=all}',
        'icca-set-plan{op=out grid="n=5,k=2" exec="0:k=5" reduce=root}',
        'icca-set-plan{op=longest grid="j=3" reduce=root}',
    ]
)
LLAMA = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"
GRAPH = ",".join(
    [
        'icca-set-plan{op=node_linear_14 grid="b0=2,n=6" exec="0:k=6;1:k=2"}',
        'icca-set-plan{op=node_linear_6 grid="n=4,k=4" scatter=n}',
        "icca-schedule{plans=keep}",
    ]
)


@dataclass
class Subject:
    """A correct program with inputs, and the bytes that it gives."""

    module: ModuleOp
    inputs: dict[str, np.ndarray]
    weights: Callable[[ipu.RemoteOp], np.ndarray] = field(default_factory=Weights)
    baseline: bytes = b""

    def machine(self) -> Interpreter:
        """A fresh machine."""
        return machine_of(self.module, self.weights)

    def outcome(self, machine: Interpreter | None = None) -> bytes | None:
        """The bytes of all outputs; None for a trap."""
        with suppress(TrapError), np.errstate(all="ignore"):
            outputs = (machine or self.machine()).run(self.inputs)
            return b"".join(outputs[name].tobytes() for name in sorted(outputs))
        return None


def subject(name: str) -> Subject:
    """One of the programs under test."""
    if name == "llama":
        return whole_graph()
    if name == "slice":
        module = planned(program("slice"), SLICE)
    elif name == "attention":
        module = planned(program("attention"), ATTENTION)
    else:
        module = planned(layers(2), PLANS)
    lower(module)
    rng = np.random.default_rng(3)
    inputs: dict[str, np.ndarray] = {}
    for op in module.walk():
        if not isinstance(op, ipu.RemoteOp) or op.inputs is None:
            continue
        for entry in op.inputs:
            shape, dtype = shape_dtype(op.type)
            if op.kind.data is HbmKind.STATE:
                assert op.axis is not None and op.length is not None
                axis = op.axis.value.data
                shape = tuple(op.length.value.data if j == axis else n for j, n in enumerate(shape))
            inputs[entry.data] = random_array(rng, shape, dtype)
    return with_baseline(Subject(module, inputs))


def with_baseline(found: Subject) -> Subject:
    """The subject, with the bytes that it gives."""
    first = found.outcome()
    assert first is not None
    found.baseline = first
    return found


def whole_graph() -> Subject:
    """The bundled Llama-2 graph, lowered for 16 cores with a ring on both operands of its last
    product and a split reduction in the layers; with its own weights and inputs."""
    chip = load_chip("test-16")
    module, source = import_source(LLAMA, chip)
    passes = list(pipeline(chip, policy="basic"))
    at = [p.name for p in passes].index("icca-schedule")
    passes[at : at + 1] = parse_passes(GRAPH, universe().all_passes, PIPELINES, origin="test")
    run_passes(context(), module, passes, model=source.name)
    loaded: dict[str, np.ndarray] = {}
    weights = WeightSource(source.base_dir, buffers=source.buffers)

    def load(op: ipu.RemoteOp) -> np.ndarray:
        name = op.sym_name.data
        if name not in loaded:
            loaded[name] = weights.load(op.value)
        return loaded[name]

    inputs = read_npz(LLAMA.with_suffix(".npz"), "in/")
    return with_baseline(Subject(module, inputs, load))
