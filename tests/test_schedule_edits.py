"""Random edits of correct schedules: what verifier and machine accept computes the same numbers.

Operations swapped, offsets shifted, plans changed, waits dropped, in icca and in ipu. An edit that
is refused is lowered and run all the same, to see whether the rule was needed: harmless edits that
are refused are counted by rule (`pytest -s` prints them; docs/scheduling.md has the figures).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from helpers import Weights, assert_close, context, parse, run, run_passes
from test_layer_loop import arrays, layers
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import DiagnosticException

from elk_ir.dialects import ipu
from elk_ir.errors import ElkError
from elk_ir.passes.convert_icca_to_ipu import ConvertIccaToIpuPass
from elk_ir.passes.icca_allocate import allocate_module
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_schedule_model import tables_of
from elk_ir.passes.icca_support import executes, program_of, set_plan
from elk_ir.passes.icca_verify_program import IccaVerifyProgramPass
from elk_ir.passes.ipu_verify_program import IpuVerifyProgramPass
from elk_ir.targets.ipu.machine import TrapError

LAYERS = 3
SCHEDULE = "convert-te-to-icca{{chip=test-16}},icca-schedule{{policy={}}},icca-allocate"
TOLERANCE = 1e-5
SHIFTS = (-256, -64, -8, -4, 4, 8, 64, 256)


@dataclass
class Subject:
    """A scheduled program at both levels, with inputs and the outputs that numpy expects."""

    icca: ModuleOp
    ipu: ModuleOp
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    weights: Weights
    found: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(policy: str) -> Subject:
        """The layers of `test_layer_loop` under a policy."""
        icca = run_passes(parse(layers(LAYERS)), SCHEDULE.format(policy))
        lowered = icca.clone()
        ConvertIccaToIpuPass().apply(context(), lowered)
        weights = Weights()
        inputs, outputs = arrays(LAYERS, weights, lowered)
        return Subject(icca, lowered, inputs, outputs, weights)

    def right(self, module: ModuleOp) -> bool:
        """Whether the machine accepts an ipu program and gives the expected numbers, preloads
        landing as early and as late as allowed."""
        for landing in ("early", "late"):
            try:
                outputs = run(module, self.inputs, self.weights, landing).outputs
            except (TrapError, ElkError):
                return False
            try:
                for name, wanted in self.outputs.items():
                    assert_close(outputs[name], wanted.astype(np.float32), TOLERANCE, name)
            except AssertionError:
                self.found["accepted by the machine, wrong numbers"] += 1
                return False
        return True


def swap(module: ModuleOp, generator: random.Random) -> bool:
    """Two neighbouring operations of the program or of a loop change places."""
    kinds = ("icca.program", "icca.repeat", "ipu.program", "ipu.repeat")
    pairs: list[Operation] = []
    for op in module.walk():
        if op.name in kinds:
            inner = list(op.regions[0].block.ops)
            pairs += [a for a, b in pairwise(inner) if not _ends(b)]
    first = generator.choice(pairs)
    second, block = first.next_op, first.parent
    assert second is not None and block is not None
    first.detach()
    block.insert_op_after(first, second)
    return True


def _ends(op: Operation) -> bool:
    return op.has_trait(IsTerminator)


def shift_icca(module: ModuleOp, generator: random.Random) -> bool:
    """A buffer lies some bytes from where it was."""
    buffer = generator.choice(liveness(module).placed)
    offset = buffer.offset
    assert offset is not None
    moved = offset + generator.choice(SHIFTS)
    if moved < 0:
        return False
    buffer.place(moved)
    return True


def shift_ipu(module: ModuleOp, generator: random.Random) -> bool:
    """A variable lies some bytes from where it was."""
    var = generator.choice([op for op in module.walk() if isinstance(op, ipu.VarOp)])
    moved = var.at.value.data + generator.choice(SHIFTS)
    if moved < 0:
        return False
    var.properties["at"] = IntegerAttr(moved, i64)
    return True


def other_plan(module: ModuleOp, generator: random.Random) -> bool:
    """An execute has another plan of its front, and everything a new address."""
    execute = generator.choice(list(executes(program_of(module))))
    set_plan(execute, generator.choice(tables_of(module).free(execute).plans))
    try:
        allocate_module(module)
    except ElkError:
        return False
    return True


def no_wait(module: ModuleOp, generator: random.Random) -> bool:
    """A wait is missing."""
    waits = [op for op in module.walk() if isinstance(op, ipu.CopyWaitOp | ipu.StoreWaitOp)]
    op = generator.choice(waits)
    op.detach()
    op.erase()
    return True


ICCA = {"swap": swap, "offset": shift_icca, "plan": other_plan}
IPU = {"swap": swap, "offset": shift_ipu, "wait": no_wait}


def rule_of(error: Exception) -> str:
    """The first line of a message without names and numbers."""
    lines = [line for line in str(error).splitlines() if "verify-program:" in line]
    line = lines[0] if lines else str(error).splitlines()[0]
    line = re.sub(r"@[\w.#]+|%[\w.]+|\"[^\"]*\"", "_", line.split("verify-program: ")[-1])
    return re.sub(r"[\d,]+", "n", line)[:90]


def dominated(module: ModuleOp) -> bool:
    """Whether every value of an operation is there before it: what no text spells otherwise."""
    for op in module.walk():
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Operation) and owner.parent is op.parent:
                if not owner.is_before_in_block(op):
                    return False
    return True


def edit(subject: Subject, generator: random.Random) -> None:
    """One edit, judged by the verifiers and by the numbers. Raises AssertionError if both the
    verifiers and the machine accept it and the numbers change."""
    level = generator.choice(("icca", "ipu"))
    edits = ICCA if level == "icca" else IPU
    kind = generator.choice(list(edits))
    module = (subject.icca if level == "icca" else subject.ipu).clone()
    if not edits[kind](module, generator):
        return
    refused = "" if dominated(module) else "value before it is there"
    try:
        if level == "icca":
            IccaVerifyProgramPass().apply(context(), module)
    except DiagnosticException as error:
        refused = rule_of(error)
    try:
        if level == "icca":
            ConvertIccaToIpuPass().apply(context(), module)
    except Exception:
        # What is refused need not have a meaning: lowering it may stumble over anything.
        assert refused, f"{kind} in icca was accepted and could not be lowered"
        subject.found[f"{level} {kind}: refused, meaningless"] += 1
        return
    try:
        IpuVerifyProgramPass().apply(context(), module)
    except DiagnosticException as error:
        refused = refused or rule_of(error)
    try:
        right = subject.right(module)
    except (KeyError, ValueError, IndexError):
        # As above; the machine runs only what has been verified.
        assert refused, f"{kind} in {level} was accepted and could not be run"
        right = False
    if refused:
        subject.found[f"{level} {kind}: refused, {'harmless' if right else 'harmful'}"] += 1
        if right:
            subject.found[f"harmless, refused by: {refused}"] += 1
        return
    wrong = subject.found["accepted by the machine, wrong numbers"]
    subject.found[f"{level} {kind}: accepted, {'right' if right else 'trapped'}"] += 1
    assert right or not wrong, f"{kind} in {level} changes the numbers and nobody refuses it"


@pytest.mark.parametrize(
    ("policy", "count"),
    [
        ("search", 24),
        pytest.param("elk-dyn", 500, marks=pytest.mark.slow),
        pytest.param("search", 500, marks=pytest.mark.slow),
    ],
)
def test_random_edits(policy: str, count: int) -> None:
    """No edit that is accepted changes the numbers."""
    subject = Subject.of(policy)
    assert subject.right(subject.ipu)
    generator = random.Random(count)
    for _ in range(count):
        subject.found["accepted by the machine, wrong numbers"] = 0
        edit(subject, generator)
    del subject.found["accepted by the machine, wrong numbers"]
    print(*(f"\n{n:5} {what}" for what, n in sorted(subject.found.items())), sep="")
    outcomes = " ".join(subject.found)
    assert "refused, harmful" in outcomes and "accepted, right" in outcomes
