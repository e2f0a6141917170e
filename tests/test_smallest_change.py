"""What does not fit says which smallest change would: more SRAM, more cores, a smaller dimension,
other plans. Each is then made, and it fits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_schedule_programs import chip_with

import elk_ir
from elk_ir.chips import Chip
from elk_ir.errors import CapacityError
from elk_ir.passes.icca_fit import estimated_changes, more_cores, unit_of
from elk_ir.schedule.fit import Found, largest_value, least_count

MODEL = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"


def always() -> bool:
    """Time enough."""
    return True


def never() -> bool:
    """No time left."""
    return False


def refusal(model: Path | bytes, chip: Chip, policy: str = "basic", **dims: int) -> str:
    """The message for a model that does not fit."""
    with pytest.raises(CapacityError) as caught:
        elk_ir.compile(model, chip=chip, policy=policy, dims=dims or None)
    return str(caught.value)


def number(text: str, pattern: str) -> int:
    """The number in the first group of a pattern."""
    found = re.search(pattern, text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("base", "usable"), [("test-64", 1024), ("test-16", 4096)])
def test_more_sram_and_more_cores(base: str, usable: int) -> None:
    chip = chip_with(base, usable)
    text = refusal(MODEL, chip, "elk-dyn")
    sram = number(text, r"sram_per_core_bytes = ([\d,]+) instead of")
    cores = number(text, r"more cores: ([\d,]+) instead of [\d,]+ \(tried\)")
    assert sram > chip.sram_per_core_bytes and cores > chip.cores_per_chip
    for changed in (
        chip.with_fields({"sram_per_core_bytes": sram}),
        chip.with_fields({"cores_per_chip": cores}),
    ):
        for policy in ("basic", "elk-dyn"):
            program = elk_ir.compile(MODEL, chip=changed, policy=policy)
            peak = program.report["sram_peak_bytes"]
            assert peak <= changed.usable_sram_per_core_bytes
    # The buffers are those of the smallest plans, by name.
    assert re.search(r"largest buffers:\n +[\d,]+ bytes  node_\w+\.\w+", text)
    assert "smaller" not in text.replace("smallest", "")


def product(rows: str | int, inner: int = 256, columns: int = 64) -> bytes:
    """A model of one product whose rows are a dimension to bind."""
    weight = numpy_helper.from_array(np.ones((inner, columns), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="p")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model.SerializeToString()


def test_a_smaller_dimension() -> None:
    model, chip = product("batch"), chip_with("test-16", 8192)
    text = refusal(model, chip, batch=200)
    smaller = number(text, r"a smaller batch: --dim batch=(\d+) \(now 200; tried\)")
    assert 1 < smaller < 200
    elk_ir.compile(model, chip=chip, policy="basic", dims={"batch": smaller})
    with pytest.raises(CapacityError):
        elk_ir.compile(model, chip=chip, policy="basic", dims={"batch": smaller + 8})


def test_a_dimension_that_does_not_help() -> None:
    """The weights alone are too much."""
    text = refusal(product("batch"), chip_with("test-16", 1024), batch=4)
    assert "no smaller batch alone (now 4) seems to be enough" in text


def test_other_plans() -> None:
    """A program that would fit, in plans that do not."""
    from helpers import parse, run_passes

    from elk_ir.passes.icca_schedule import schedule_by_name

    x, y = 'tensor<1x160xf32> {onnx.name = "x"}', 'tensor<1x120xf32> {onnx.name = "y"}'
    text = f"""
    te.global weight @w : tensor<160x120xf32> = dense<1.0> : tensor<160x120xf32>
    func.func @main(%x: {x}) -> ({y}) {{
      %w = te.load @w : tensor<160x120xf32>
      %p = te.contract(%x, %w) <(m = 1, n = 120, k = 160 reduce), [(m, k), (k, n)] -> [(m, n)]>
        : (tensor<1x160xf32>, tensor<160x120xf32>) -> tensor<1x120xf32> loc("p")
      func.return %p : tensor<1x120xf32>
    }}
    """
    module = run_passes(parse(text), "convert-te-to-icca{chip=test-16},icca-set-plan{op=p}")
    with pytest.raises(CapacityError) as caught:
        schedule_by_name(module, "basic", keep_plans=True)
    assert "other plans: the smallest of every operator take" in str(caught.value)
    schedule_by_name(module, "basic")


def test_nobody_pays_who_does_not_read() -> None:
    asked: list[int] = []
    error = CapacityError("op", needed_bytes=2, available_bytes=1, hint="more SRAM")
    error.suggest(lambda: asked.append(1) or ["two cores"])
    assert not asked and error.hint == "more SRAM"
    assert "two cores" in str(error) and "hint" not in str(error)
    assert str(error) == str(error) and len(asked) == 1


def test_without_hbm_it_is_estimated() -> None:
    chip = chip_with("test-16", 1024)
    lines = estimated_changes(chip, 3000)
    assert any("more cores: 47 instead of 16 (estimated)" in line for line in lines)


def test_what_more_cores_are_counted_in() -> None:
    for name, unit in (("test-2x8", "chips"), ("test-16-mesh", "rows of 4 cores")):
        chip = chip_with(name, None)
        found, now = unit_of(chip)
        assert found == unit
        assert more_cores(chip, 2 * now).cores == 2 * chip.cores


# ---------------------------------------------------------------------- looking for a number


def test_least_count() -> None:
    for least in (17, 20, 33, 60, 64, 256):
        found = least_count(16, lambda c, least=least: c >= least, lambda _: True, always)
        assert found is not None and found.tried
        assert least <= found.value < least + 4
    assert least_count(16, lambda _: True, lambda _: False, always) is None
    assert least_count(16, lambda _: False, lambda _: True, always) is None
    assert least_count(16, lambda c: c > 40, lambda _: True, never) == Found(64, False)
    assert least_count(1, lambda c: c > 2, lambda _: True, always) == Found(3, True)


def test_largest_value() -> None:
    def grows(value: int) -> int:
        return 100 + 10 * value

    for capacity in (111, 150, 500, 1000):
        found = largest_value(100, grows(100), capacity, grows, always)
        assert found == Found((capacity - 100) // 10, True)
    assert largest_value(100, grows(100), 105, grows, always) is None
    assert largest_value(100, 1100, 500, lambda _: 1100, always) is None
    assert largest_value(100, grows(100), 300, grows, never) == Found(20, False)
    # No value is tried below one that is impossible without a reason to believe that it helps.
    assert largest_value(2, 1000, 500, lambda _: None, always) is None
