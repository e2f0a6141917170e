"""What a program, its folder, its levels and odd models are refused with, one message each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import parse
from importing import fails, model_of, tensor
from onnx import TensorProto, helper, numpy_helper
from xdsl.utils.exceptions import DiagnosticException

import elk_ir
from elk_ir import extensions
from elk_ir.compiler import chip_of_module, context
from elk_ir.decode import compile_decoder
from elk_ir.errors import ElkError, ModelError, UsageError
from elk_ir.frontend.build_ir import initializer
from elk_ir.frontend.decoder_graph import config_from_json
from elk_ir.frontend.element_types import element_name
from elk_ir.frontend.export import export_model, initializer_array
from elk_ir.frontend.graph import Value, ValueType
from elk_ir.frontend.weights import WeightPart, WeightRef
from elk_ir.numerics import tensors
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import read_npz
from elk_ir.program import PROGRAM_FILE, REPORT_FILE, TARGET_FILE
from elk_ir.quantizer import Quantization
from elk_ir.targets.ipu.poplar_cpp import PoplarCppTarget
from elk_ir.text import ModuleParser
from elk_ir.weight_source import WeightSource

CHIP = "test-16"
OPSET = 23
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
N = helper.make_node
X, Y = tensor("x", 4), tensor("y", 4)
ONES = {"x": np.ones(4, np.float32)}
LOAD = WeightSource(None).load
EMPTY = "builtin.module {}"
FOREIGN = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = "test.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %r : tensor<4xf32> }"""


def sum_of(*shape: int) -> onnx.ModelProto:
    """y = x + x."""
    return model_of([N("Add", ["x", "x"], ["y"], "sum")], [tensor("x", *shape)], [Y])


ADD = sum_of(4)


@cache
def program() -> elk_ir.Program:
    return elk_ir.compile(ADD, chip=CHIP, policy="basic")


@cache
def counting() -> onnx.ModelProto:
    """A product, and a node that only the host can run."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    nodes = [N("MatMul", ["x", "w"], ["a"], "product"), N("NonZero", ["a"], ["nz"], "where")]
    return model_of(nodes, [tensor("x", 4, 4)], [tensor("nz", 2, None, elem=INT64)], [weight])


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (ADD, {"kv_capacity": 0}, "a KV capacity of 0 entries holds nothing"),
        (
            counting(),
            {"quantize": Quantization("w8a16")},
            "a model that is quantised has no host part, on which they could run",
        ),
        (
            sum_of(1 << 36),
            {},
            "the model needs 274,877,906,944 bytes of HBM, chip 'test-16' has 16,000,000,000"
            " (258,877,906,944 too many)\n  largest tensors:\n    274,877,906,944 bytes  input 'x'",
        ),
    ],
)
def test_what_is_not_compiled(model: onnx.ModelProto, options: Any, message: str) -> None:
    with pytest.raises(ElkError, match=re.escape(message)):
        elk_ir.compile(model, chip=CHIP, policy="basic", **options)


def test_dimensions_of_ir_are_not_bound() -> None:
    with pytest.raises(UsageError, match="the shapes of IR are static"):
        elk_ir.compile_set(parse(EMPTY), chip=CHIP, dims=[{"n": 1}])


def test_two_extensions_with_one_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points have names of their own; what they bring has one."""
    for name in ("one", "two"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[elk_ir.operators]\n{name} = elk_test_{name}:OPS")
        (tmp_path / f"elk_test_{name}.py").write_text(
            "from elk_ir.extensions import Operators\n"
            "OPS = Operators({'PowerMean': lambda c, n: None})\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(ElkError, match="two extensions define 'PowerMean'"):
            extensions.operators()
    finally:
        for name in ("one", "two"):
            sys.modules.pop(f"elk_test_{name}", None)


# ---------------------------------------------------------------------- programs


def test_a_host_part_has_no_machine_that_stays() -> None:
    hosted = elk_ir.compile(counting(), chip=CHIP, policy="basic", simulate=False)
    with pytest.raises(UsageError, match="a program with a host part has no machine"):
        hosted.interpreter()


def test_programs_of_other_targets_have_other_machines() -> None:
    other = copy(program())
    other.report = {**other.report, "target": "toy"}
    with pytest.raises(ElkError, match="a program of target 'toy' does not run on this machine"):
        other.interpreter()


def test_what_an_emitter_cannot_express(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emitters are xDSL's targets, and fail as those do."""

    def emit(*_: object) -> None:
        raise DiagnosticException("no such thing in C++")

    monkeypatch.setattr(PoplarCppTarget, "emit", emit)
    with pytest.raises(ElkError, match=r"poplar-cpp: no such thing in C\+\+"):
        program().emitted()


def test_a_module_that_names_no_chip() -> None:
    with pytest.raises(ElkError, match=r"the program names no chip \(attribute icca\.chip\)"):
        chip_of_module(parse(EMPTY))


# ---------------------------------------------------------------------- folders

TWO_RESULTS = "func.func @f(%x: f32) -> f64 { func.return %x : f32 }"


def without_a_chip(folder: Path) -> None:
    report = json.loads((folder / REPORT_FILE).read_text())
    del report["chip"]
    (folder / REPORT_FILE).write_text(json.dumps(report))


def folder_as_report(folder: Path) -> None:
    (folder / REPORT_FILE).unlink()
    (folder / REPORT_FILE).mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_chip, r"report\.json: .*no report of a compiled program \(KeyError: 'chip'\)"),
        (
            lambda f: (f / PROGRAM_FILE).unlink(),
            r"no compiled program is here: program\.mlir is missing",
        ),
        (
            lambda f: (f / REPORT_FILE).write_text("[]"),
            r"report\.json: this is no report of a compiled program$",
        ),
        (folder_as_report, r"report\.json: cannot be read: Is a directory"),
        (lambda f: (f / REPORT_FILE).write_bytes(b"\xff"), r"report\.json: not UTF-8 text"),
        (
            lambda f: (f / TARGET_FILE).write_text(TWO_RESULTS),
            r"target\.mlir: Expected arguments to have the same types as the function output",
        ),
    ],
)
def test_damaged_folders(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = program().save(tmp_path / "program")
    elk_ir.load(folder)
    damage(folder)
    with pytest.raises(ElkError, match=message):
        elk_ir.load(folder)


@pytest.mark.parametrize(
    ("programs", "what"),
    [
        ([1], "TypeError"),
        ([{"folder": "a"}], "KeyError: 'dims'"),
        ([{"dims": [], "folder": "a"}], "AttributeError"),
        ([{"dims": {"n": "many"}, "folder": "a"}], "ValueError"),
    ],
)
def test_damaged_sets(programs: list[Any], what: str, tmp_path: Path) -> None:
    (tmp_path / REPORT_FILE).write_text(json.dumps({"programs": programs}))
    message = rf"report\.json: this is no report of compiled programs \({what}"
    with pytest.raises(ElkError, match=message):
        elk_ir.load_set(tmp_path)


# ---------------------------------------------------------------------- arrays


def test_folders_are_no_archives(tmp_path: Path) -> None:
    with pytest.raises(ElkError, match="cannot be read: Is a directory"):
        read_npz(tmp_path, "in/")


def test_archives_that_are_mostly_air(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "air.npz"
    np.savez_compressed(path, x=np.zeros(1 << 20, np.float32))
    assert read_npz(path, "in/")["x"].size == 1 << 20
    monkeypatch.setattr(tensors, "_AIR_BYTES", 1 << 20)
    with pytest.raises(ElkError, match=r"its arrays take 4,\d+,\d+ bytes, 500 times those of the"):
        read_npz(path, "in/")


def test_nothing_to_compare_with() -> None:
    with pytest.raises(ElkError, match=r"m\.npz: no expected outputs to compare with"):
        compare_outputs({"y": np.ones(4)}, {}, where="m.npz")


# ---------------------------------------------------------------------- evaluators


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": np.ones(4)}, "input 'x' is missing\n  hint: given: z"),
        ({"x": np.ones(3, np.float32)}, "input 'x' has shape [3], the program takes [4]"),
        ({"x": np.ones(4)}, "input 'x' has type float64, the program takes float32"),
    ],
)
def test_inputs_that_te_does_not_take(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        evaluate_te(program().module("te"), inputs, load_weight=LOAD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EMPTY, "the module has no function @main"),
        (FOREIGN, "te evaluation: test.op is not an operation of te"),
    ],
)
def test_modules_that_are_not_te(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_te(parse(text), ONES, load_weight=LOAD)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("icca.preload @x", "icca.preload @z", "no tensor in HBM is called @z"),
        ("output @y : tensor<4xf32>", "output @y : tensor<3xf32>", "to @y is out of range"),
        ("icca.store", '"test.op"() : () -> ()\nicca.store', "test.op is not an operation of an"),
        ('{inputs = ["x"]}', '{inputs = ["z"]}', "input 'z' is missing"),
    ],
)
def test_icca_that_has_no_meaning(old: str, new: str, message: str) -> None:
    """Verifiers refuse most of this: the text is only parsed."""
    text = program().mlir("icca")
    assert text.count(old) == 1
    module = ModuleParser(context(), text.replace(old, new), "m").parse_module()
    with pytest.raises(ElkError, match=message):
        evaluate_icca(module, ONES, load_weight=LOAD)


def test_a_module_without_a_program() -> None:
    with pytest.raises(ElkError, match=r"the module has no icca\.program"):
        evaluate_icca(parse(EMPTY), ONES, load_weight=LOAD)


# ---------------------------------------------------------------------- decoding


def unmasked() -> onnx.ModelProto:
    """A cache that grows, all of whose entries are summed."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "table"),
        numpy_helper.from_array(rng.standard_normal((8, 16)).astype(np.float32), "head"),
        numpy_helper.from_array(np.array([1]), "axis"),
    ]
    nodes = [
        N("Gather", ["table", "ids"], ["h"], "embed"),
        N("Concat", ["past", "h"], ["present"], "grow", axis=1),
        N("ReduceSum", ["present", "axis"], ["s"], "sum", keepdims=1),
        N("MatMul", ["s", "head"], ["logits"], "head"),
    ]
    return model_of(
        nodes,
        [tensor("ids", 1, 1, elem=INT64), tensor("past", 1, "n", 8)],
        [tensor("logits", 1, 1, 16), tensor("present", 1, "m", 8)],
        constants,
    )


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (
            ADD,
            ONES,
            r"this graph does not decode: of its inputs 0 could be the token \(none is an integer",
        ),
        (
            unmasked(),
            {"ids": np.zeros((1, 1), np.int64), "past": np.ones((1, 3, 8), np.float32)},
            "nothing in this graph masks cache entries that are not filled yet",
        ),
    ],
)
def test_graphs_that_do_not_decode(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=message):
        compile_decoder(path, chip=CHIP, policy="basic", inputs=inputs, steps=3)


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
LLAMA = {
    **SIZES,
    "model_type": "llama",
    "intermediate_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
OPT = {
    **SIZES,
    "model_type": "opt",
    "ffn_dim": 64,
    "activation_function": "relu",
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("fields", "change", "message"),
    [
        (LLAMA, {"head_dim": 7}, "rotary embeddings need an even head size, not 7"),
        (OPT, {"word_embed_proj_dim": 16}, "word_embed_proj_dim differs from hidden_size"),
    ],
)
def test_configurations_without_a_graph(
    fields: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    config_from_json(fields)
    with pytest.raises(ModelError, match=message):
        config_from_json({**fields, **change})


# ---------------------------------------------------------------------- importing


def with_input(fill: Callable[[onnx.TypeProto], None]) -> onnx.ModelProto:
    """y = relu(x), and an input z that nothing reads."""
    z = onnx.ValueInfoProto(name="z")
    fill(z.type)
    return model_of([N("Relu", ["x"], ["y"])], [X, z], [Y], opset=OPSET)


def sequence_of_sparse(type_: onnx.TypeProto) -> None:
    type_.sequence_type.elem_type.sparse_tensor_type.elem_type = TensorProto.FLOAT


def sequence_of_unknown(type_: onnx.TypeProto) -> None:
    type_.sequence_type.elem_type.tensor_type.elem_type = 99


def external_strings() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.STRING, dims=[4], data_location="EXTERNAL")
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "w"
    return model_of([N("Add", ["x", "w"], ["y"])], [X], [Y], [weight], OPSET)


def old_dropout() -> onnx.ModelProto:
    """A Dropout that trains, which ONNX's converter does not take."""
    return model_of([N("Dropout", ["x"], ["y"], is_test=0)], [X], [Y], opset=6)


def short_loop() -> onnx.ModelProto:
    """A Loop that carries a value which its body does not take."""
    flag = tensor("c", elem=BOOL)
    body = helper.make_graph(
        [N("Identity", ["go"], ["on"])],
        "body",
        [tensor("i", elem=INT64), tensor("go", elem=BOOL)],
        [tensor("on", elem=BOOL)],
    )
    loop = N("Loop", ["", "c", "x"], ["y"], "the loop", body=body)
    return model_of([loop], [X, flag], [Y], opset=OPSET)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_input(sequence_of_sparse), "values of type sparse_tensor_type are not"),
        (lambda: with_input(sequence_of_unknown), "element type 99 is unknown"),
        (external_strings, "'w' has a type that cannot be stored as external data"),
        (old_dropout, "opset 6 cannot be lifted to 23: .*is_test must not have value 0"),
        (short_loop, "the loop: its body takes 2 values, 3 are given"),
    ],
)
def test_models_that_are_not_imported(make: Callable[[], onnx.ModelProto], message: str) -> None:
    fails(make().SerializeToString(), message)


def test_a_model_that_ends_before_its_graph() -> None:
    fails(b"\x08\x0a", r"model\.onnx: the file is truncated: it holds no graph")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"m\.mlir: no such file or directory"),
        (b"\xff", r"m\.mlir: not UTF-8 text"),
        (TWO_RESULTS.encode(), r"m\.mlir: Expected arguments to have the same types as the"),
    ],
)
def test_files_of_ir(data: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.mlir"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        elk_ir.compile(path, chip=CHIP)


def test_values_that_nothing_produces() -> None:
    """The folding of a graph finds these first."""
    with pytest.raises(ModelError, match="value 'w' is used before it is produced"):
        initializer(Value("w", ValueType(TensorProto.FLOAT, (4,))))


def test_types_that_onnx_does_not_have() -> None:
    with pytest.raises(KeyError, match="datetime64"):
        element_name(np.dtype("datetime64[s]"))


# ---------------------------------------------------------------------- exporting


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EMPTY, "the module has no function main"),
        (FOREIGN, r"test\.op is not of the onnx dialect"),
    ],
)
def test_modules_that_are_not_onnx(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        export_model(parse(text), ".")


def test_weights_without_a_loader() -> None:
    """Graphs that are exported without a loader keep references, so this asks for one weight."""
    ref = WeightRef((WeightPart("w.bin", 0, 8, "", "f32", (2,), "w"),))
    op = initializer(Value("w", ValueType(TensorProto.FLOAT, (2,)), weight=ref))
    with pytest.raises(ModelError, match="its weights are not loaded"):
        initializer_array(op, None)
