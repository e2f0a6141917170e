"""What fuzzing runs: kinds of cases, each drawn by Hypothesis and handed to the runner."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
from hypothesis import assume
from hypothesis import strategies as st

from elk_ir.conformance import model_of, operator_of
from elk_ir.conformance import node_cases as conformance_cases
from fuzz.chips import chips
from fuzz.graphs import graphs
from fuzz.plans import draw_plans
from fuzz.reference import Reference
from fuzz.runner import POLICIES, Case, Tally, exact_comparison, parsed, run_case
from fuzz.te_programs import programs

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

    from elk_ir.chips import Chip


def graph_case(data: st.DataObject, tally: Tally, first: str | None = None) -> None:
    """A random ONNX graph under a policy, or under plans set by hand."""
    by_hand = data.draw(st.booleans())
    graph = data.draw(graphs(first))
    chip = data.draw(chips(roomy=by_hand, hbm=True if by_hand else None))
    policy = policy_for(data, chip, by_hand)
    try:
        reference = Reference.of(graph.model, graph.inputs)
    except ValueError:
        assume(False)
        raise
    case = Case(graph.model, graph.inputs, chip, policy, graph.operators)
    run_case(
        case,
        reference.problems,
        tally,
        plans=(lambda module: draw_plans(data.draw, module)) if by_hand else None,
        report=data.draw(st.sampled_from([False, False, False, True])),
        supported=True,
    )


def te_case(data: st.DataObject, tally: Tally) -> None:
    """A random te program under random plans, or under a policy."""
    from elk_ir.numerics.te_eval import evaluate_te

    by_hand = data.draw(st.sampled_from([True, True, False]))
    program = data.draw(programs())
    chip = data.draw(chips(roomy=by_hand, hbm=True if by_hand else None))
    policy = policy_for(data, chip, by_hand)
    with np.errstate(all="ignore"):
        wanted = evaluate_te(parsed(program.text), program.inputs, load_weight=_no_weights)
    assume(all(_usable(a) for a in wanted.values()))
    case = Case(program.text, program.inputs, chip, policy, program.operators)
    run_case(
        case,
        exact_comparison(wanted),
        tally,
        plans=(lambda module: draw_plans(data.draw, module)) if by_hand else None,
        report=data.draw(st.sampled_from([False, False, False, True])),
        supported=True,
    )


def node_case(data: st.DataObject, tally: Tally, operator: str | None = None) -> None:
    """One of ONNX's own node tests; short integer inputs (axes, shapes) become constants or not."""
    from onnx import numpy_helper

    cases = node_cases()
    name = operator or data.draw(st.sampled_from(sorted(cases)))
    chosen = data.draw(st.sampled_from(cases[name]))
    model = onnx.ModelProto()
    model.CopyFrom(model_of(chosen))
    names = [i.name for i in model.graph.input]
    arrays = dict(zip(names, (chosen.data_sets or [])[0][0], strict=False))
    assume(all(isinstance(a, np.ndarray) and a.dtype.kind in "fiubV" for a in arrays.values()))
    fixed = data.draw(st.booleans())
    for value in list(model.graph.input):
        array = arrays[value.name]
        if fixed and array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= 16:
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    # Initializers need no inputs of the same name only from IR version 4 on.
    model.ir_version = max(model.ir_version, 4)
    inputs = {i.name: arrays[i.name] for i in model.graph.input}
    chip = data.draw(chips())
    by_hand = chip.hbm is not None and data.draw(st.booleans())
    policy = policy_for(data, chip, by_hand)
    try:
        reference = Reference.of(model, inputs)
    except ValueError:
        assume(False)
        raise
    run_case(
        Case(model, inputs, chip, policy, Counter({name: 1})),
        reference.problems,
        tally,
        plans=(lambda module: draw_plans(data.draw, module)) if by_hand else None,
    )


def policy_for(data: st.DataObject, chip: Chip, by_hand: bool) -> str | None:
    """Any policy; on a chip without HBM there is one."""
    if chip.hbm is None:
        return None
    return "basic" if by_hand else data.draw(st.sampled_from(POLICIES))


@cache
def node_cases() -> dict[str, list[TestCase]]:
    """ONNX's node tests by the operator that they are about."""
    found: dict[str, list[TestCase]] = {}
    for case in conformance_cases():
        found.setdefault(operator_of(case), []).append(case)
    return found


KINDS = {"graph": graph_case, "te": te_case, "node": node_case}
"""Kinds of cases by name."""


def _no_weights(value: object) -> np.ndarray:
    raise AssertionError(f"te programs here have no weights ({value})")


def _usable(array: np.ndarray) -> bool:
    if array.dtype.kind not in "fV":
        return True
    plain = array.astype(np.float64)
    return bool(np.isfinite(plain).all() and np.abs(plain).max(initial=0) < 1e6)
