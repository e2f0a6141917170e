"""The abstract device program: text, data, and text again."""

from __future__ import annotations

from pathlib import Path

import pytest

import elk_ir
from elk_ir.errors import ElkError
from elk_ir.targets.ipu.device_program import (
    Instruction,
    Loop,
    device_program,
    parse_device_program,
)

MODEL = (
    Path(__file__).resolve().parent.parent.parent
    / "shared/models/tiny/llama2_decode_static_dynamo.onnx"
)


def instructions(body: tuple[Instruction | Loop, ...]) -> list[Instruction]:
    """All instructions, loop bodies once."""
    found: list[Instruction] = []
    for item in body:
        found += instructions(item.body) if isinstance(item, Loop) else [item]
    return found


@pytest.mark.skipif(not MODEL.exists(), reason="needs the models in ../shared")
def test_llama() -> None:
    """Every operator is executed once in the text, after a preload of each operand from HBM."""
    program = device_program(elk_ir.compile(MODEL, chip="test-16").icca)
    assert parse_device_program(str(program)) == program
    issued = instructions(program.body)
    executed = [dict(i.arguments)["op"] for i in issued if i.name == "execute"]
    assert executed == [str(op.number) for op in program.operators]
    preloaded = {dict(i.arguments)["op"] for i in issued if i.name == "preload_async"}
    from_hbm = {
        str(op.number)
        for op in program.operators
        if any(o.origin == "hbm" and " by op " not in o.source for o in op.operands)
    }
    assert preloaded == from_hbm
    for op in program.operators:
        names = {b.name for b in op.buffers}
        for o in op.operands:
            assert o.origin != "hbm" or f"preload{o.number}" in names
            assert o.origin != "resident" or f"execute{o.number}" in names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("module {}", "expected `device_program"),
        ('device_program @m chip "c" {\n  op x "a" map p {\n  }\n}', "line 2"),
        ('device_program @m chip "c" {\n', "ends too early"),
        ('device_program @m chip "c" {\n  tensor @x\n}', "expected hbm, op or issue"),
        (
            'device_program @m chip "c" {\n  op 0 "a" map p {\n    x 4 bits at 0\n  }\n}',
            "line 3: expected an operand or a buffer",
        ),
        (
            'device_program @m chip "c" {\n  issue {\n    wait(op = 0)\n  }\n}',
            "line 3: expected preload_async, execute, store_async or repeat",
        ),
        (
            'device_program @m chip "c" {\n  issue {\n    repeat layer = x times 2 {\n',
            "line 3: this is no line of a device program",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    """Broken text is refused with its line."""
    with pytest.raises(ElkError) as error:
        parse_device_program(text)
    assert message in str(error.value)
