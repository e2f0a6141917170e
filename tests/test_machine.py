"""Random operators under random legal plans, all the way to the virtual machine."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers import check_both_landings, lower, parse, reference, run_passes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from operators import CASES, plans

from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.passes.icca_support import executes, program_of, set_plan

CORES = 16
EXAMPLES = int(os.environ.get("ELK_EXAMPLES", "12"))
"""Per kind of operator. Set the variable to search further, with new examples each time."""


def check(data: st.DataObject, kind: str) -> None:
    """One operator of a kind: draw it, its plans and its inputs; run it; compare."""
    case = data.draw(CASES[kind])
    resident = tuple(data.draw(st.booleans()) for _ in case.operands)
    module = parse(case.text(resident))
    operator = [op for op in module.walk() if isinstance(op, StructuredOp)][-1].operator()
    run_passes(module, "convert-te-to-icca{chip=test-16}")
    for execute in executes(program_of(module)):
        set_plan(execute, data.draw(plans(execute.operator(), CORES)))
    lower(module)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    inputs = {f"a{i}": array for i, array in enumerate(case.arrays(rng))}
    wanted = reference(operator, list(inputs.values()))
    check_both_landings(
        module,
        inputs,
        {f"r{i}": w for i, w in enumerate(wanted)},
        tolerance=2e-3 if case.half else 2e-5,
    )


@pytest.mark.parametrize("kind", sorted(CASES))
def test_any_operator_under_any_plan(kind: str) -> None:
    """Same numbers as the operator on whole tensors, with either landing of preloads.

    A failure is not shrunk: programs are small, and every run of one takes 0.1 s.
    """

    @settings(
        max_examples=EXAMPLES,
        derandomize="ELK_EXAMPLES" not in os.environ,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(data, kind)

    run()
