"""ipu programs that name what is not there, or do what emitter, machine or timeline cannot."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from helpers import Weights, context, lower, machine_of, planned, program, random_array
from test_broken_programs import PLANS
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from elk_ir.errors import ElkError
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.targets.ipu.machine import TrapError
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.timeline import timeline_of

RING = "ipu.repeat 0 times 1 {\n    ^bb0(%6: index):\n"
G = "@g : tensor<64xf32> = dense<1.000000e+00> : tensor<64xf32>"
STACKED_G = "@g stack 2 : tensor<64xf32> = dense<1.000000e+00> : tensor<2x64xf32>"


@cache
def text() -> str:
    return str(lower(planned(program("slice"), PLANS)))


def changed(old: str, new: str) -> ModuleOp:
    """The program with the first `old` written otherwise and a stack of @g, not verified."""
    assert old in text() and G in text()
    return Parser(context(), text().replace(old, new, 1).replace(G, STACKED_G)).parse_module()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ipu.fill @q.partial0", "ipu.fill @nothing", "no ipu.var is called @nothing"),
        ("ipu.copy_start @wq", "ipu.copy_start @nothing", "no ipu.remote is called @nothing"),
        (
            "ins [#ipu.ref<@q.execute0[0, 0]>",
            "ins [#ipu.ref<@q.execute0[_, 0]>",
            "@q.local reads all slots of @q.execute0 at once",
        ),
        (
            RING,
            f"{RING} ipu.repeat 0 times 1 {{ ^bb0(%i: index):"
            " ipu.copy <@q.landing0> -> <@q.execute0[_, 0]> step %i }",
            "a loop over ring steps lies inside another one",
        ),
        (
            RING,
            f"{RING} ipu.copy_start @g[%6] -> @norm.preload1",
            "a row is neither constant nor the layer of a loop",
        ),
        (
            "ipu.copy_start @h -> @norm.preload0",
            "ipu.copy_start @h -> @norm.preload0 rows @g",
            "@g is no plain tensor of indices",
        ),
    ],
)
def test_emitter(old: str, new: str, message: str) -> None:
    with pytest.raises(ElkError, match=re.escape(message)):
        emit_cpp(changed(old, new))


def test_timeline() -> None:
    with pytest.raises(ElkError, match=r"no ipu.var is called @nothing"):
        timeline_of(changed("ipu.reshard @q.partial0", "ipu.reshard @nothing"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "tensor<24xf32> <16 cores, [24]>",
            "tensor<23xf32> <16 cores, [23]>",
            "exchange to @q.landing0: 24 elements do not fit",
        ),
        (
            "at [#ipu.expr<0>, #ipu.expr<0>, #ipu.expr<1>]",
            "at [#ipu.expr<0>, #ipu.expr<0>, #ipu.expr<2>]",
            "iteration slot 2 of 2",
        ),
    ],
)
def test_machine(old: str, new: str, message: str) -> None:
    h = random_array(np.random.default_rng(0), (6, 64), "float32")
    with pytest.raises(TrapError, match=message):
        machine_of(changed(old, new), Weights(), "late").run({"h": h})


def test_machine_that_is_too_small() -> None:
    module = Parser(context(), text()).parse_module()
    with pytest.raises(TrapError, match="bytes of SRAM, a core has 64"):
        Interpreter(module, Weights(), cores=16, sram_bytes=64)
