"""Operators and names without a codelet: a message wherever an ipu program is run, timed or
emitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import Weights, lower, machine_of, parse, planned, program
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import VertexPhase
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Operator
from elk_ir.targets.ipu.cpp_codelets import codelet_text
from elk_ir.targets.ipu.machine import TrapError
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.timeline import simulate_module


def run(module: ModuleOp) -> object:
    """Its numbers, which don't matter here."""
    return machine_of(module, Weights()).run({"h": np.ones((6, 64), np.float32)})


@pytest.mark.parametrize(
    ("use", "error"), [(run, TrapError), (simulate_module, ElkError), (emit_cpp, ElkError)]
)
def test_a_name_that_no_codelet_has(
    use: Callable[[ModuleOp], object], error: type[Exception]
) -> None:
    """`ipu-verify-program` says so too; here it has not run."""
    module = lower(planned(program("slice")))
    vertex = next(op for op in module.walk() if isinstance(op, ipu.ExecuteOp))
    vertex.properties["codelet"] = SymbolRefAttr("absent")
    with pytest.raises(error, match="no codelet is called @absent"):
        use(module)


def operator(text: str, *operands: str, result: str) -> Operator:
    """The operator that `text` applies to operands of these types."""
    args = ", ".join(f"%a{i}: tensor<{t}>" for i, t in enumerate(operands))
    values = ", ".join(f"%a{i}" for i in range(len(operands)))
    types = ", ".join(f"tensor<{t}>" for t in operands)
    name, _, rest = text.partition(" ")
    module = parse(
        f"func.func @main({args}) -> tensor<{result}> {{\n"
        f"  %r = {name}({values}) {rest} : ({types}) -> tensor<{result}>\n"
        f"  func.return %r : tensor<{result}>\n}}\n"
    )
    return next(op for op in module.walk() if isinstance(op, StructuredOp)).operator()


SOFTMAX = "te.softmax <(m = 4, n = 8 reduce), [(m, n)] -> [(m, n)]>"


def test_statistics_in_float64() -> None:
    """Poplar's tiles have no float64."""
    narrow = operator(SOFTMAX, "4x8xf32", result="4x8xf32")
    assert codelet_text(narrow, VertexPhase.LOCAL, "Softmax", "")
    wide = operator(SOFTMAX, "4x8xf64", result="4x8xf64")
    with pytest.raises(ElkError, match="softmax in float64 has no codelet: Poplar's tiles lack it"):
        codelet_text(wide, VertexPhase.LOCAL, "Softmax", "")


def test_a_phase_that_a_kind_has_not() -> None:
    copy = operator(
        "te.map <(m = 4), [(m)] -> [(m)]> {body = #te.body<(x0) {} -> (x0)>}",
        "4xf32",
        result="4xf32",
    )
    assert codelet_text(copy, VertexPhase.APPLY, "Copy", "")
    with pytest.raises(ElkError, match="no codelet for the local phase of map"):
        codelet_text(copy, VertexPhase.LOCAL, "Copy", "")


def test_values_with_a_dimension_of_their_own() -> None:
    """Of neither the scores nor the result: te allows it, C++ lacks it."""
    domain = "<(m = 2, j = 3 reduce, k = 4 local, v = 2, z = 2 local)"
    attention = operator(
        f"te.attention {domain}, [(m, k), (j, k), (j, v, z)] -> [(m, v)]> {{scale = 1.0 : f64}}",
        "2x4xf32",
        "3x4xf32",
        "3x2x2xf32",
        result="2x2xf32",
    )
    with pytest.raises(ElkError, match="an attention whose values have dimensions of their own"):
        codelet_text(attention, VertexPhase.LOCAL, "Attention", "")
