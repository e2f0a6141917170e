"""Every graph of ../shared/models/tiny under every executable policy, on 16 and 64 cores, with SRAM
shrunk until plans must rotate, split and preload less: schedules do not change answers.

What policies share is done once: the way from ONNX to icca, and the plans. Policies that make the
same program, byte for byte, share its run on the virtual machine too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from test_matrix import GRAPHS, TINY, TOO_LARGE
from test_schedule_programs import chip_with
from test_shared_models import REFERENCE, arrays_of, from_onnxruntime

from elk_ir.chips import load_chip
from elk_ir.compiler import (
    Signature,
    Source,
    context,
    import_source,
    pipeline,
    run_passes,
    signature_of,
    split_at,
)
from elk_ir.dialects.chip import ChipAttr
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes.icca_fit import CHIP, least_bytes
from elk_ir.passes.icca_schedule import schedule_by_name
from elk_ir.passes.icca_schedule_model import Scheduling, tables_of
from elk_ir.passes.icca_support import executes, program_of
from elk_ir.plan.plan import reduction_ways, ring_steps
from elk_ir.program import Program
from elk_ir.schedule.model import queue_order
from elk_ir.schedule.policies import EXECUTABLE, Effort, Solved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.chips import Chip

ROOM = {"test-16": 1.1, "test-64": 1.02}
"""SRAM over what the smallest plans need. With a tenth more, reductions are split and preloads
change places; with next to nothing more, operands must rotate as well."""
STEPS = 100
"""Evaluations that `search` spends on a program."""
SAMPLE = {("opt_decode_static_dynamo", "test-64"): ("elk-full",)}
"""What `make test` runs."""


OTHERS = [
    "granite-3b-8blike_L2_tiny_dyn_fp32_op23",
    "llama2-13b_L2_tiny_dyn_fp32_op23",
    "q_bert_eager_static_legacy_qdq",
    "q_llama3gqa_decode_dyn_dynamo_int4qdq",
    "q_llama3gqa_decode_static_legacy_qdq",
    "q_resnet50_w8_static_legacy_qdq",
    "rnn_bilstm_gru_static_dynamo",
    "train_dit-tiny_b2_fp32",
    "train_llama-tiny_L2_b2_s16_fp32",
]
"""The graphs of the folder that are not in the matrix."""


def cases() -> list[ParameterSet]:
    """Every graph on both chips; all but the sample are slow."""
    found: list[ParameterSet] = []
    for chip in ("test-16", "test-64"):
        for graph in (*GRAPHS, *OTHERS):
            if (graph, chip) in TOO_LARGE:
                continue
            quick = SAMPLE.get((graph, chip))
            if quick:
                found.append(pytest.param(graph, chip, quick, id=f"{graph}-{chip}-sample"))
            found.append(
                pytest.param(graph, chip, EXECUTABLE, id=f"{graph}-{chip}", marks=pytest.mark.slow)
            )
    return found


@dataclass(frozen=True)
class Front:
    """A graph in icca, before it is scheduled, for a chip with little SRAM."""

    module: ModuleOp
    chip: Chip
    source: Source
    signature: Signature

    @staticmethod
    def of(graph: str, name: str) -> Front:
        """A graph with the shapes of its recorded inputs, on a chip with `ROOM` for it."""
        path, chip = TINY / f"{graph}.onnx", load_chip(name)
        shapes = {k: v.shape for k, v in read_npz(arrays_of(path), "in/").items()}
        module, source = import_source(path, chip, input_shapes=shapes)
        signature = signature_of(module)
        front, _ = split_at(pipeline(chip), "icca-schedule")
        run_passes(context(), module, front, model=source.name)
        need = least_bytes(module, tables_of(module))
        usable = min(int(need * ROOM[name]) // 8 * 8, chip.usable_sram_per_core_bytes)
        tight = chip_with(name, max(usable, need))
        module.attributes[CHIP] = ChipAttr.from_chip(tight)
        return Front(module, tight, source, signature)

    def finished(self, module: ModuleOp) -> Program:
        """A scheduled module with addresses, lowered and verified."""
        _, back = split_at(pipeline(self.chip), "icca-schedule")
        middle, last = split_at(back[1:], "convert-icca-to-ipu")
        run_passes(context(), module, middle, model=self.source.name)
        lowered = module.clone()
        run_passes(context(), lowered, last, model=self.source.name)
        return Program(
            levels={"icca": module, "ipu": lowered},
            report={"target": "ipu"},
            chip=self.chip,
            source=self.source,
            signature=self.signature,
        )


def features(module: ModuleOp, scheduling: Scheduling) -> Iterator[str]:
    """What the plans and the order of preloads of a scheduled module make use of."""
    for execute in executes(program_of(module)):
        assert execute.plan is not None
        op, plan = execute.operator(), execute.plan.plan
        if max(ring_steps(op, plan), default=1) > 1:
            yield "ring"
        if reduction_ways(op, plan) > 1:
            yield "split reduction"
        if plan.preload != plan.execute:
            yield "partial preload"
    for program, schedule in scheduling.schedules:
        order = [j for j in queue_order(program, schedule) if program.ops[j].loads]
        # An iteration ahead comes first, whatever its number.
        ahead = sum(schedule.issue[j] < 0 for j in order)
        if order[:ahead] != sorted(order[:ahead]) or order[ahead:] != sorted(order[ahead:]):
            yield "other order"
        if ahead:
            yield "around the loop"


def test_every_graph_is_in_a_test() -> None:
    """None of the folder is left out."""
    if not TINY.is_dir():
        pytest.skip("needs ../shared/models/tiny")
    assert {p.stem for p in TINY.glob("*.onnx")} == {*GRAPHS, *OTHERS}


@pytest.mark.parametrize(("graph", "name", "policies"), cases())
def test_numbers_in_little_sram(graph: str, name: str, policies: tuple[str, ...]) -> None:
    path = TINY / f"{graph}.onnx"
    if not path.exists():
        pytest.skip("../shared/models/tiny is not here")
    given, expected = (read_npz(arrays_of(path), prefix) for prefix in ("in/", "out/"))
    if graph in REFERENCE:
        expected = from_onnxruntime(path.read_bytes(), given)
    front = Front.of(graph, name)
    tables = tables_of(front.module)
    solved: Solved = {}
    seen: set[str] = set()
    used: set[str] = set()
    for policy in policies:
        module = front.module.clone()
        scheduling = schedule_by_name(
            module, policy, effort=Effort(STEPS), tables=tables, solved=solved
        )
        used |= set(features(module, scheduling))
        text = str(module)
        if text in seen:
            continue
        seen.add(text)
        program = front.finished(module)
        outputs = program.run(check_inputs(given, program.signature.inputs))
        for comparison in compare_outputs(outputs, expected, precision=program.precision):
            assert comparison.ok, f"{policy}: {comparison}"
    print(graph, name, front.chip.usable_sram_per_core_bytes, len(seen), *sorted(used), sep="; ")
