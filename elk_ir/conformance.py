"""ONNX's own node tests (`onnx.backend.test`) through our backend, on the virtual machine.

A case is compiled for a chip and its program is run: nothing is evaluated at a higher level, and
what needs the host part is counted apart. `benchmarks/onnx_conformance.py` runs the suite and
writes `docs/operators.md`.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from elk_ir.errors import ElkError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto
    from onnx.backend.test.case.test_case import TestCase

    from elk_ir.chips import Chip

LARGE_SRAM_BYTES = 8 << 20
"""SRAM of a core of the machine on which cases are tried again that do not fit the chip."""

STANDARD_OPERATORS = frozenset(
    "Add And Attention AveragePool BatchNormalization Cast Clip Concat Constant ConstantOfShape"
    " Conv ConvTranspose Cos CumSum DequantizeLinear Div Dropout Einsum Equal Erf Exp Expand"
    " Flatten GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater"
    " GreaterOrEqual HardSigmoid Identity IsNaN LSTM LayerNormalization Less LessOrEqual Log"
    " LogSoftmax MatMul Max MaxPool Mul Neg Not Pad Pow QuantizeLinear RMSNormalization Range"
    " Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize RotaryEmbedding"
    " ScatterElements ScatterND Shape Sigmoid Sin Slice Softmax Split Sqrt Squeeze Sub Sum Tanh"
    " TopK Transpose Trilu Unsqueeze Where".split()
)
"""The operators of the models that we compile day by day: exported networks of many kinds."""

CORE_TYPES = frozenset({"FLOAT", "FLOAT16", "INT32", "INT64", "INT8", "UINT8", "BOOL"})
"""Element types of the core cases, as TensorProto calls them."""


class Outcome(StrEnum):
    """What came of a case. Members in the order of tables; the last three are defects."""

    PASS = "pass"
    """The expected outputs, the program being compiled for the shapes of the inputs alone."""
    SPECIALISED = "specialised"
    """The same, but values of inputs that determine shapes were known to the compiler."""
    HOST = "host"
    """The expected outputs, but at least one node ran on the host."""
    UNSUPPORTED = "unsupported"
    """A clean error of the compiler."""
    TIMEOUT = "timeout"
    WRONG = "wrong"
    CRASH = "crash"


PASSES = (Outcome.PASS, Outcome.SPECIALISED)
"""Passed on the chip, all of it."""


@dataclass(frozen=True)
class Result:
    """One case: `operator` is what it tests, `detail` a line about a failure; `core` says whether
    its operators and types are those of STANDARD_OPERATORS and CORE_TYPES, `large` whether it needs
    more SRAM than the chip has."""

    case: str
    operator: str
    outcome: Outcome
    detail: str = ""
    core: bool = False
    large: bool = False
    cpu_s: float = 0.0


@cache
def node_cases() -> tuple[TestCase, ...]:
    """All node tests of the installed onnx package, in its order."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def is_core(model: ModelProto) -> bool:
    """Whether a case has standard operators and core types only."""
    from onnx import TensorProto

    core = {TensorProto.DataType.Value(name) for name in CORE_TYPES}
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type not in core:
            return False
    return all(not d and o in STANDARD_OPERATORS for d, o in _operators(model.graph))


def _operators(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def model_of(case: TestCase) -> ModelProto:
    """The case's model (node cases hold theirs)."""
    assert case.model is not None
    return case.model


def operator_of(case: TestCase) -> str:
    """The operator that a case is about: that of its only node, or (for the expansion of a
    function into its body) the one whose case it expands."""
    nodes = model_of(case).graph.node
    if case.name.endswith("_expanded") or "_expanded_" in case.name:
        original = case.name.split("_expanded")[0]
        by_name = {c.name: c for c in node_cases()}
        if original in by_name:
            return operator_of(by_name[original])
    domain, name = nodes[-1].domain, nodes[-1].op_type
    return f"{domain}:{name}" if domain else name


def run_case(
    case: TestCase, chip: str | Chip = "test-16", *, policy: str = "basic", limit_s: float = 60.0
) -> Result:
    """Compile a case, run it, compare; with a larger SRAM if it does not fit the chip.

    `limit_s` is CPU time. Never raises for what the compiler does.
    """
    from elk_ir.compiler import resolve_chip

    machine = resolve_chip(chip)
    started = time.process_time()
    result = _attempt(case, machine, policy, limit_s)
    if result.outcome is Outcome.UNSUPPORTED and _does_not_fit(result.detail):
        larger = replace(machine, sram_per_core_bytes=LARGE_SRAM_BYTES)
        result = replace(_attempt(case, larger, policy, limit_s), large=True)
    core = is_core(model_of(case))
    return replace(result, core=core, cpu_s=round(time.process_time() - started, 3))


def _does_not_fit(detail: str) -> bool:
    return "bytes on" in detail or "no plan" in detail or "SRAM" in detail


def _attempt(case: TestCase, chip: Chip, policy: str, limit_s: float) -> Result:
    from elk_ir.backend import prepare

    result = Result(case.name, operator_of(case), Outcome.PASS)
    try:
        with _limit(limit_s), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = prepare(model_of(case), chip=chip, policy=policy)
            for inputs, expected in case.data_sets or ():
                outputs = prepared.run(list(inputs))
                problem = difference(outputs, expected, case.rtol, case.atol)
                if problem:
                    return replace(result, outcome=Outcome.WRONG, detail=problem)
                if prepared.host_nodes:
                    why = "; ".join(f"{n['operator']}: {n['why']}" for n in prepared.host_nodes)
                    result = replace(result, outcome=Outcome.HOST, detail=_one_line(why))
                elif prepared.specialised:
                    names = ", ".join(prepared.specialised)
                    result = replace(result, outcome=Outcome.SPECIALISED, detail=names)
    except _TimeLimit:
        return replace(result, outcome=Outcome.TIMEOUT, detail=f"more than {limit_s:g} CPU s")
    except ElkError as error:
        text = str(error)
        defect = any(word in text for word in ("internal error", "left an invalid program"))
        trap = type(error).__name__ == "TrapError"
        outcome = Outcome.CRASH if defect or trap else Outcome.UNSUPPORTED
        return replace(result, outcome=outcome, detail=_one_line(text))
    except Exception as error:
        # The point of the suite is to find these.
        return replace(
            result, outcome=Outcome.CRASH, detail=_one_line(f"{type(error).__name__}: {error}")
        )
    return result


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]


def difference(
    outputs: Sequence[np.ndarray], expected: Sequence[Any], rtol: float, atol: float
) -> str:
    """What is different, "" if nothing is: number, shape, type and elements as ONNX's runner
    compares them (|a - b| <= atol + rtol |b|; bfloat16 to two units in its last place)."""
    from onnx import TensorProto, numpy_helper

    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for i, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        if isinstance(want, TensorProto):
            want = numpy_helper.to_array(want)
        if not isinstance(want, np.ndarray | np.generic):
            return f"output {i} is no tensor"
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {i} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        limit = max(rtol, 2**-6) if want.dtype.name == "bfloat16" else rtol
        a, b = (x.astype(np.float64) if x.dtype.kind in "Vf" else x for x in (got, want))
        if b.dtype.kind in "biu" or a.dtype.name.startswith(("int", "uint")):
            close = np.asarray(a == b)
        else:
            close = np.isclose(a, b, rtol=limit, atol=atol, equal_nan=True)
        if not close.all():
            bad = int(close.size - np.count_nonzero(close))
            where = np.unravel_index(int(np.argmin(close)), close.shape) if close.ndim else ()
            place = [int(j) for j in where]
            return (
                f"output {i}: {bad} of {close.size} elements differ, the first at {place}:"
                f" {np.asarray(got)[where]} instead of {np.asarray(want)[where]}"
            )
    return ""


class _TimeLimit(BaseException):
    """No Exception: nothing in the compiler may catch it."""


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises _TimeLimit in the block after that much CPU time (in the main thread of a process on
    a system with interval timers; otherwise there is no limit)."""
    import threading

    usable = hasattr(signal, "setitimer")
    if not usable or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: object) -> None:
        raise _TimeLimit

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
