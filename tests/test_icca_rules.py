"""Rules of icca programs that only a program written by hand can break."""

from __future__ import annotations

import pytest
from helpers import context, run_passes
from xdsl.dialects import test
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.ir import Block
from xdsl.parser import Parser
from xdsl.utils.exceptions import DiagnosticException, PassFailedException

from elk_ir.chips import load_chip
from elk_ir.dialects.icca import ChipAttr, HandleType
from elk_ir.passes.icca_rules import broken_rules
from elk_ir.passes.icca_support import defining_preloads, layout_of

T = "tensor<4xf32>"
H = f"!icca.handle<{T}>"


def execute(
    name: str, operand: str, *, tile: str = "%1", at: str = "", grid: int = 2, kept: bool = False
) -> str:
    """`%name = icca.execute`: a copy of a handle, or of a tensor that is on chip (`kept`)."""
    given = T if kept else H
    te = "te.map(%3) <(d = 4), [(d)] -> [(d)]> {body = #te.body<(x0) {} -> (x0)>}"
    plan = f"plan <grid [d = {grid}], operands [exec {{}} preload {{}}]>"
    return f"""
    %{name} = icca.execute "{name}"({operand}) {plan} {{
    ^bb0(%0: {given}):
      %1 = icca.{"relayout" if kept else "distribute"} %0 : {given} -> {T}
      %2 = icca.tile({tile}){at} {{
      ^bb0(%3: {T}):
        %4 = {te} : ({T}) -> {T}
      }} : ({T}) -> {T}
      icca.yield %2 : {T}
    }} : ({given}) -> {T}"""


def loop(body: str, yielded: str, *, init: str, number: int = 1) -> str:
    """`%out = icca.repeat` that carries one handle, `%c` in it."""
    return f"""
    %out{number} = icca.repeat 0 times 2 iter({init}) {{
    ^bb0(%l{number}: index, %c{number}: {H}):
      {body}
      icca.yield {yielded} : {H}
    }} : ({H}) -> {H}"""


def preload(name: str, rest: str = "") -> str:
    """`%name = icca.preload`."""
    return f"\n    %{name} = icca.preload @x{rest} : {H}"


def program(*body: str, stack: str = "") -> ModuleOp:
    """A program on 16 cores, not verified."""
    chip = ChipAttr(load_chip("test-16"))
    text = f"""module attributes {{icca.chip = {chip}}} {{
  icca.hbm weight @x{stack} : {T} = dense<1.0> : tensor<{"2x" if stack else ""}4xf32>
  icca.hbm output @y : {T} {{outputs = ["y"]}}
  icca.program @main {{{"".join(body)}
  }}
}}"""
    return Parser(context(), text).parse_module()


def store(name: str) -> str:
    """`icca.store`."""
    return f"\n    icca.store %{name} to @y : {T}"


USE1, USE2 = execute("b", "%c1"), execute("e", "%c2")
RULES = [
    (
        [preload("x"), execute("a", "%x"), preload("z"), execute("b", "%z", tile="%a"), store("b")],
        '"b" reads %a, which is not among its operands',
    ),
    (
        [
            preload("x"),
            loop(USE1 + preload("n"), "%n", init="%x"),
            loop(USE2 + preload("n"), "%n", init="%out1", number=2),
            execute("f", "%out2"),
            store("f"),
        ],
        "the carried handle %c2 does not enter the loop from a preload",
    ),
    (
        [
            preload("x"),
            loop(
                loop(USE2 + preload("n"), "%n", init="%c1", number=2)
                + execute("g", "%out2")
                + preload("m"),
                "%m",
                init="%x",
            ),
            execute("f", "%out1"),
            store("f"),
        ],
        "the carried handle %c1 is handed on without an execute consuming it",
    ),
]


@pytest.mark.parametrize(("body", "message"), RULES, ids=[m for _, m in RULES])
def test_handles(body: list[str], message: str) -> None:
    assert message in [b.message for b in broken_rules(program(*body))]


def test_a_layer_of_a_stack_is_named() -> None:
    module = program(preload("x"), execute("a", "%x"), store("a"), stack=" stack 2")
    (broken,) = broken_rules(module)
    assert broken.message == "the preload of @x does not say which of 2 layers"


def test_a_carried_handle_has_one_layout() -> None:
    body = [preload("x"), loop(USE1 + preload("n"), "%n", init="%x")]
    module = program(*body, execute("f", "%out1", grid=4), store("f"))
    (broken,) = broken_rules(module)
    assert broken.notes == ("the executes that consume one carried handle need the same plan",)


def test_a_carried_handle_has_one_address() -> None:
    at = " at [64]"
    body = [
        preload("x", " at 0"),
        loop(execute("b", "%c1", at=at) + preload("n", " at 8"), "%n", init="%x"),
    ]
    module = program(*body, execute("f", "%out1", at=at), store("f"))
    messages = [b.message for b in broken_rules(module)]
    assert any(
        "different offsets where it enters the loop, in it and behind it" in m for m in messages
    )


def test_a_preload_that_does_not_follow_the_loop() -> None:
    body = "\n %k = icca.layer 1" + preload("n", "[%k]") + execute("b", "%n")
    repeat = f"""
    %out = icca.repeat 0 times 2 iter(%a) {{
    ^bb0(%l: index, %h: {T}): {body} {execute("d", "%h", kept=True)}
      icca.yield %d : {T}
    }} : ({T}) -> {T}"""
    start = "\n %z = icca.layer 0" + preload("x", "[%z]") + execute("a", "%x")
    module = program(start, repeat, store("out"), stack=" stack 2")
    with pytest.raises(DiagnosticException, match="layer of this preload does not follow the loop"):
        run_passes(module, "icca-carry-preload{op=b operand=0 before=d}")


def test_what_no_operation_defines() -> None:
    handle = Block(arg_types=[HandleType(TensorType(f32, [4]))]).args[0]
    made = test.TestOp(result_types=[handle.type]).results[0]
    for value in (handle, made):
        with pytest.raises(PassFailedException, match="a handle has no preload"):
            defining_preloads(value)
    with pytest.raises(PassFailedException, match="no execute defines the resident tensor"):
        layout_of(handle)
