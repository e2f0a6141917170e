"""Shared builders: te module text, to a compiled ipu program, to numbers on the virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.universe import Universe

from elk_ir.decode import Decoder
from elk_ir.dialects import ipu
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.kernels import run_whole
from elk_ir.passes.icca_support import chip_of, executes, program_of, set_plan
from elk_ir.plan.domain import Access, Operator
from elk_ir.plan.plan import Plan, simple_plan
from elk_ir.targets.ipu.interpreter import Interpreter, Landing
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.universe import PASSES, lazy

VERIFIED = "icca-allocate,icca-verify-program,convert-icca-to-ipu,ipu-verify-program"


@cache
def context() -> Context:
    """A context with every dialect that the driver knows."""
    ctx = Context()
    for name, factory in Universe.get_multiverse().all_dialects.items():
        ctx.register_dialect(name, factory)
    return ctx


def program(name: str) -> str:
    """The te module `tests/programs/NAME.mlir`."""
    return (Path(__file__).parent / "programs" / f"{name}.mlir").read_text()


def parse(text: str) -> ModuleOp:
    """The module that `text` spells, verified."""
    module = Parser(context(), text).parse_module()
    module.verify()
    return module


def run_passes(module: ModuleOp, pipeline: str) -> ModuleOp:
    """`module`, changed by a pipeline written as for `elk-opt -p`, then verified."""
    for step in parse_passes(pipeline, lazy(PASSES), {}):
        step.apply(context(), module)
    module.verify()
    return module


def planned(text: str, plans: Mapping[str, Plan] | str = "", *, chip: str = "test-16") -> ModuleOp:
    """A te module as icca with a plan on every execute: those given (by label, or as a pipeline of
    icca-set-plan), and one core for the rest."""
    module = run_passes(parse(text), f"convert-te-to-icca{{chip={chip}}}")
    if isinstance(plans, str):
        if plans:
            run_passes(module, plans)
        plans = {}
    for execute in executes(program_of(module)):
        plan = plans.get(execute.label.data)
        if plan is None and execute.plan is None:
            op = execute.operator()
            plan = simple_plan(op, (1,) * len(op.dims))
        if plan is not None:
            set_plan(execute, plan)
    module.verify()
    return module


@dataclass
class Run:
    """What a run gave: outputs by name, and the machine that produced them."""

    outputs: dict[str, np.ndarray]
    machine: Interpreter


def load_dense(op: ipu.RemoteOp) -> np.ndarray:
    """The value of a weight that is written in the IR."""
    return array_from_dense(op.value)


class Weights:
    """Random weights for the weights of a program (matrices of variance 1 / fan-in): the same for
    the same name, whatever the IR says their value is."""

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.values: dict[str, np.ndarray] = {}

    def __call__(self, op: ipu.RemoteOp) -> np.ndarray:
        name = op.sym_name.data
        if name not in self.values:
            like = load_dense(op)
            rng = np.random.default_rng([self.seed, *name.encode()])
            array = random_array(rng, like.shape, like.dtype)
            if array.dtype.kind == "f" and array.ndim > 1:
                array = (array / np.sqrt(array.shape[-2])).astype(array.dtype)
            self.values[name] = array
        return self.values[name]


def random_array(
    rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype | str
) -> np.ndarray:
    """Normal floats, or integers from -4 to 4 (0 to 4 if unsigned), or booleans."""
    dtype = dtype_of(dtype) if isinstance(dtype, str) else dtype
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(-4 if dtype.kind == "i" else 0, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def lower(module: ModuleOp) -> ModuleOp:
    """Planned icca to verified ipu."""
    return run_passes(module, VERIFIED)


def machine_of(
    module: ModuleOp, load: Callable[[ipu.RemoteOp], np.ndarray], landing: Landing = "late"
) -> Interpreter:
    """A virtual machine as large as the module's chip."""
    chip = chip_of(module)
    return Interpreter(
        module,
        load,
        cores=chip.cores,
        sram_bytes=chip.usable_sram_per_core_bytes,
        landing=landing,
    )


def run(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    load: Callable[[ipu.RemoteOp], np.ndarray] = load_dense,
    landing: Landing = "late",
) -> Run:
    """Run an ipu program once."""
    machine = machine_of(module, load, landing)
    return Run(machine.run(inputs), machine)


def check_both_landings(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    load: Callable[[ipu.RemoteOp], np.ndarray] = load_dense,
    tolerance: float = 1e-5,
) -> None:
    """Run with the earliest and the latest landing of preloads: same bytes, and close to
    `expected` (in units of each output's largest magnitude; integers exactly)."""
    runs = [run(module, inputs, load, landing).outputs for landing in ("early", "late")]
    assert set(runs[0]) == set(expected)
    for name, wanted in expected.items():
        early, late = (r[name] for r in runs)
        assert early.tobytes() == late.tobytes(), f"{name} depends on when preloads land"
        assert_close(late, wanted, tolerance, name)


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float, name: str = "") -> None:
    """Equal up to `tolerance` of the largest magnitude; exactly for integers."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (
        f"{name}: {got.dtype}{got.shape} for {wanted.dtype}{wanted.shape}"
    )
    if wanted.size == 0:
        return
    if wanted.dtype.kind in "iub":
        assert (got == wanted).all(), f"{name} differs"
        return
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0)), 1e-6)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance * scale)
    worst = np.nanmax(np.where(same, 0, np.abs(a - b))) / scale if not same.all() else 0
    assert same.all(), f"{name}: off by {worst:.3g} of the largest magnitude"


def reference(op: Operator, tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The operator on whole tensors."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in run_whole(op, tensors)]


def tensor_text(access: Access) -> str:
    """The IR type of an operand or result."""
    from elk_ir.dialects.types import tensor_type

    return str(tensor_type(access.shape, access.dtype))


def feed_back(
    decoder: Decoder,
    state: dict[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    tokens: np.ndarray,
) -> None:
    """Make `state`, the inputs of a step of another evaluator, those of the next one: the tokens
    (batch), positions and masks one further, and the caches that the step left."""
    token = state[decoder.roles.token]
    state[decoder.roles.token] = tokens.astype(token.dtype).reshape(token.shape)
    for name in decoder.roles.positions:
        state[name] = state[name] + 1
    for name, axis in decoder.roles.masks:
        one = np.ones_like(np.take(state[name], [0], axis))
        state[name] = np.concatenate([state[name], one], axis)
    for row in decoder.program.report["states"]:
        for name, output in zip(row["inputs"], row["outputs"], strict=True):
            state[name] = outputs[output]
