"""Calls that cannot be answered: each is one message that names what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from helpers import context, parse, run_passes
from importing import model_of, tensor
from onnx import TensorProto, helper
from xdsl.dialects.builtin import IndexType
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException, VerifyException

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.compiler import Source, check_floats
from elk_ir.compiler import context as compiler_context
from elk_ir.cost.linear_tree import fit
from elk_ir.dialects.types import dtype_name
from elk_ir.errors import ElkError, ModelError, UsageError
from elk_ir.frontend.weights import WeightPart, WeightRef
from elk_ir.numerics.onnx_eval import evaluate_onnx
from elk_ir.numerics.tensors import read_npz
from elk_ir.numerics.traces import trace_level
from elk_ir.program import shaped_outputs
from elk_ir.quantizer import Quantization, with_quantization
from elk_ir.report.data import report_data
from elk_ir.schedule.pipeline import stage_chip
from elk_ir.spatial import spatial_results
from elk_ir.target import Target
from elk_ir.weight_source import WeightSource

CHIP = "test-16"
ADD = model_of(
    [helper.make_node("Add", ["x", "x"], ["y"], "sum")], [tensor("x", 4)], [tensor("y", 4)]
)
WEIGHTS = WeightSource(None)


@cache
def program() -> elk_ir.Program:
    return elk_ir.compile(ADD, chip=CHIP, policy="basic")


def identity(body: str = "", result: str = "%x") -> Any:
    """A module that returns its argument, or what `body` computes of it."""
    return parse(
        'func.func @main(%x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"})'
        f" {{ {body}\n func.return {result} : tensor<4xf32> }}"
    )


def quantized_without_te() -> object:
    module = identity()
    return with_quantization(
        (), Quantization("w8a8"), model=ADD, source=Source("m", None, {}), module=module,
        chip=load_chip(CHIP),
    )  # fmt: skip


def weights_in_no_folder() -> object:
    return WEIGHTS.load_ref(WeightRef((WeightPart("w.bin", 0, 8, "", "f32", (2,), "w"),)))


def texts_as_output() -> object:
    cast = helper.make_node("Cast", ["x"], ["y"], "cast", to=TensorProto.STRING)
    model = model_of([cast], [tensor("x", 4)], [tensor("y", 4, elem=TensorProto.STRING)])
    return elk_ir.compile(model, chip=CHIP, policy="basic")


def another_report() -> object:
    found = elk_ir.compile(ADD, chip=CHIP, policy="basic")
    found.report["operators"] = []
    return report_data(found)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: getattr(elk_ir, "compil"), AttributeError, "'elk_ir' has no attribute 'compil'"),  # noqa: B009
        (
            lambda: elk_ir.compile_set(ADD, chip=CHIP, dims=[]),
            UsageError,
            "there are no bindings to compile for",
        ),
        (lambda: elk_ir.compile(ADD, chip=CHIP, floats="f8"), ElkError, "unknown floats 'f8'"),
        (lambda: check_floats("f8"), ElkError, "unknown floats 'f8'"),
        (quantized_without_te, ElkError, "nothing in this pipeline can be quantised: it has no te"),
        (lambda: program().mlir("llvm"), ElkError, "this program has no level 'llvm'"),
        (
            lambda: shaped_outputs({}, program().signature),
            ElkError,
            "the program does not compute output 'y'",
        ),
        (
            weights_in_no_folder,
            ModelError,
            "the weights of 'w' are missing: the model was compiled from memory",
        ),
        (texts_as_output, ModelError, "'y' is tensor<4x!onnx.string>, not a tensor of numbers"),
        (another_report, ElkError, "1 operators are in the target, 0 in the report"),
        (
            lambda: program().simulate(load_chip("test-64")),
            ElkError,
            "the program is for 16 cores, the chip 'test-64' has 64",
        ),
        (
            lambda: trace_level(program().target, "ipu", {}, WEIGHTS),
            ElkError,
            "level 'ipu' has no trace",
        ),
        (
            lambda: stage_chip(load_chip("ipu-pod4-hbm-mesh"), 12),
            ElkError,
            "12 stages cut a mesh of 32 x 46 cores into 3 parts",
        ),
        (lambda: fit("warp", np.ones((30, 1)), np.ones(30)), ValueError, "unknown kind 'warp'"),
        (lambda: dtype_name(IndexType()), ValueError, "no numeric element type index"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_targets_have_what_they_define() -> None:
    target, module, chip = Target(), parse("builtin.module {}"), load_chip(CHIP)
    target.name = "bare"
    with pytest.raises(UsageError, match="programs of target 'bare' can't be run here"):
        target.run(module, {}, chip=chip, weights=WEIGHTS)
    with pytest.raises(UsageError, match="target 'bare' are not simulated step by step"):
        target.simulate(module, chip)
    with pytest.raises(ElkError, match="ways: target 'bare' has no such option"):
        target.passes(chip, None, {"ways": 2})


def test_a_pipeline_without_stages() -> None:
    (found,) = spatial_results("none.onnx", load_chip(CHIP), [0])
    assert found["error"].startswith("0 stages are no pipeline")


def test_a_set_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"programs": [{}, {}]}))
    with pytest.raises(ElkError, match="this folder holds 2 programs"):
        elk_ir.load(tmp_path)


def test_operators_that_no_evaluator_knows() -> None:
    module = identity('%r = onnx.Custom "mine" "M"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "%r")
    with pytest.raises(ModelError, match=r"no ONNX evaluator can run the model \("):
        evaluate_onnx(module, {"x": np.ones(4, np.float32)}, WEIGHTS)


@pytest.mark.parametrize(
    ("array", "cut", "why"),
    [
        (np.array([1, "a"], object), 0, "no array of numbers"),
        (np.ones(4), 8, "bytes are missing, or too many"),
        (np.ones(4), -8, "bytes are missing, or too many"),
    ],
)
def test_archives_of_damaged_arrays(array: np.ndarray, cut: int, why: str, tmp_path: Path) -> None:
    plain, path = tmp_path / "a.npy", tmp_path / "a.npz"
    np.save(plain, array, allow_pickle=True)
    data = plain.read_bytes()
    with ZipFile(path, "w") as archive:
        archive.writestr("a.npy", data[:-cut] if cut > 0 else data + bytes(-cut))
    with pytest.raises(ElkError, match=r"not an \.npz file, or a damaged one") as caught:
        read_npz(path, "in/")
    assert str(caught.value.__context__) == why


# ---------------------------------------------------------------------- passes


def test_foreign_operations_are_not_converted() -> None:
    module = identity('%r = "test.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "%r")
    with pytest.raises(Exception, match=r"convert-te-to-icca: test\.op has no lowering to icca"):
        run_passes(module, f"convert-te-to-icca{{chip={CHIP}}}")


LINALG = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
    ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {{
  ^bb0(%a: f32, %o: f32):
    {body}
    linalg.yield %a : f32
  }} -> tensor<4xf32>
  func.return %r : tensor<4xf32>
}}
"""


@pytest.mark.parametrize(
    ("maps", "kinds", "body", "message"),
    [
        (["(d0) -> (d0)"] * 2, ["window"], "", "a window iterator"),
        # Upstream's verifier refuses it first.
        (["(d0, d1) -> (d0)"] * 2, ["parallel"] * 2, "", "a loop whose extent no operand tells"),
        (["(d0) -> (d0)"] * 2, ["parallel"], '"test.op"() : () -> ()', "test.op in its region"),
    ],
)
def test_linalg_that_te_does_not_have(
    maps: list[str], kinds: list[str], body: str, message: str
) -> None:
    text = LINALG.format(
        maps=", ".join(f"affine_map<{m}>" for m in maps),
        kinds=", ".join(f'"{k}"' for k in kinds),
        body=body,
    )
    with pytest.raises(PassFailedException, match=message):
        run_passes(Parser(context(), text).parse_module(), "convert-linalg-to-te")


@pytest.mark.parametrize("inputs", ["%a : T", "%a, %a, %a : T, T, T"])
def test_products_take_two_factors(inputs: str) -> None:
    text = f"""func.func @main(%a: tensor<2x4x4xf32>) {{
      %r = linalg.batch_matmul ins({inputs}) outs(%a : T) -> tensor<2x4x4xf32>
      func.return }}"""
    text = re.sub(r"\bT\b", "tensor<2x4x4xf32>", text)
    module = Parser(compiler_context(), text).parse_module()
    with pytest.raises(VerifyException, match="batch_matmul takes two inputs and one output"):
        module.verify()
