"""The Python API: threads, IR as input, and what the documentation says of it."""

from __future__ import annotations

import gc
import inspect
import json
import re
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.parser import Parser

import elk_ir
from elk_ir.compiler import context
from elk_ir.errors import ElkError, ModelError
from elk_ir.process import quiet_collector
from elk_ir.report_json import RUN_DEPENDENT

ROOT = Path(__file__).parent.parent
LINALG = """
func.func @main(%x: tensor<8x32xf32>, %b: tensor<16xf32>) -> tensor<8x16xf32> {
  %w = arith.constant dense<0.5> : tensor<32x16xf32>
  %zero = arith.constant 0.0 : f32
  %z = tensor.splat %zero : tensor<8x16xf32>
  %p = linalg.matmul ins(%x, %w : tensor<8x32xf32>, tensor<32x16xf32>)
      outs(%z : tensor<8x16xf32>) -> tensor<8x16xf32>
  %e = tensor.empty() : tensor<8x16xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%p, %b : tensor<8x16xf32>, tensor<16xf32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%l: f32, %r: f32, %o: f32):
    %s = arith.addf %l, %r : f32
    linalg.yield %s : f32
  } -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""


def mlp(widths: Sequence[int], activation: str, seed: int) -> bytes:
    """Products with weights, each followed by an activation; a batch of 4."""
    rng = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for i, (m, n) in enumerate(pairwise(widths)):
        w = rng.standard_normal((m, n)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"], name=f"product{i}"))
        value = f"a{i}"
        nodes.append(helper.make_node(activation, [f"p{i}"], [value], name=f"activation{i}"))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, widths[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4, widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def artifacts(model: bytes, chip: str) -> list[str]:
    """Everything that is written of a program, without what depends on the run."""
    program = elk_ir.compile(model, chip=chip, policy="basic")
    report = {k: v for k, v in program.report.items() if k not in RUN_DEPENDENT}
    texts = [program.mlir(level) for level in ("onnx", "te", "icca", "ipu")]
    x = np.linspace(-1, 1, 4 * program.signature.inputs[0].shape[1], dtype=np.float32)
    (y,) = program(x=x.reshape(4, -1)).values()
    return [*texts, *program.emitted().values(), json.dumps(report), y.tobytes().hex()]


def test_threads_give_the_bytes_of_one_after_the_other() -> None:
    """Different models for different chips, at once and in turn."""
    jobs = [
        (mlp((24, 48, 16), "Relu", 1), "test-16"),
        (mlp((40, 32, 64, 8), "Tanh", 2), "test-64"),
        (mlp((16, 16, 16), "Sigmoid", 3), "test-2x8"),
    ]
    want = [artifacts(*job) for job in jobs]
    got: list[list[str] | BaseException] = [[] for _ in jobs]
    barrier = threading.Barrier(len(jobs))

    def work(i: int) -> None:
        barrier.wait()
        try:
            got[i] = artifacts(*jobs[i])
        except BaseException as error:
            got[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want
    assert gc.isenabled()


def test_threads_share_a_program() -> None:
    """Each run has a machine of its own."""
    program = elk_ir.compile(
        mlp((24, 48, 16), "Relu", 1), chip="test-16", policy="basic", simulate=False
    )
    inputs = [np.full((4, 24), value, np.float32) for value in (-1.0, 0.5, 2.0)]
    want = [program(x=x)["a1"] for x in inputs]
    got: dict[int, np.ndarray] = {}
    barrier = threading.Barrier(len(inputs))

    def work(i: int) -> None:
        barrier.wait()
        got[i] = program(x=inputs[i])["a1"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, expected in enumerate(want):
        np.testing.assert_array_equal(got[i], expected)


def test_collector_is_restored_by_the_last_one_out() -> None:
    assert gc.isenabled()
    first, second = quiet_collector(), quiet_collector()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    gc.disable()
    try:
        with quiet_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_linalg_in_ipu_out(tmp_path: Path) -> None:
    path = tmp_path / "layer.mlir"
    path.write_text(LINALG)
    program = elk_ir.compile(path, chip="test-16", policy="basic")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 32)).astype(np.float32)
    b = rng.standard_normal(16).astype(np.float32)
    want = x @ np.full((32, 16), 0.5, np.float32) + b
    np.testing.assert_allclose(program(x=x, b=b)["out0"], want, rtol=1e-5)
    assert program.module("ipu").attributes["icca.policy"].data == "basic"
    assert program.simulate().time_s == program.report["time_s"]
    assert "linalg.matmul" in program.mlir("linalg")
    # A module in memory is compiled to the same, and is not changed.
    module = Parser(context(), LINALG).parse_module()
    before = str(module)
    again = elk_ir.compile(module, chip="test-16", policy="basic")
    np.testing.assert_array_equal(again(x=x, b=b)["out0"], program(x=x, b=b)["out0"])
    assert str(module) == before


def test_te_in(tmp_path: Path) -> None:
    """A module of te, in memory or in a file, gives the program of what it came from."""
    given = elk_ir.compile(Parser(context(), _INPUTS_ONLY).parse_module(), chip="test-16")
    path = tmp_path / "layer.mlir"
    path.write_text(given.mlir("te"))
    x, w = np.ones((8, 32), np.float32), np.full((32, 16), 0.5, np.float32)
    for model in (given.module("te"), path):
        program = elk_ir.compile(model, chip="test-16")
        assert program.mlir("ipu") == given.mlir("ipu")
        np.testing.assert_allclose(program(x=x, w=w)["out0"], x @ w, rtol=1e-5)


_INPUTS_ONLY = """
func.func @main(%x: tensor<8x32xf32>, %w: tensor<32x16xf32>) -> tensor<8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %z = tensor.splat %zero : tensor<8x16xf32>
  %p = linalg.matmul ins(%x, %w : tensor<8x32xf32>, tensor<32x16xf32>)
      outs(%z : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %p : tensor<8x16xf32>
}
"""
_OPEN = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  func.return %x : tensor<?xf32>
}"""
_UNKNOWN = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "linalg.no"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}"""
_TWO = "func.func @f() {\n func.return\n}\nfunc.func @g() {\n func.return\n}"


def test_linalg_on_the_command_line(tmp_path: Path) -> None:
    from elk_ir.tools.elk import main as elk

    path = tmp_path / "layer.mlir"
    path.write_text(LINALG.replace("@main", "@layer"))
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((8, 32)), "b": rng.standard_normal(16)}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    want = {"out0": given["x"] @ np.full((32, 16), 0.5, np.float32) + given["b"]}
    np.savez(tmp_path / "in.npz", **given)
    np.savez(tmp_path / "out.npz", **want)
    flags = ["--chip", "test-16", "--policy", "basic", "--inputs", str(tmp_path / "in.npz")]
    assert elk(["run", str(path), *flags, "--expect", str(tmp_path / "out.npz")]) == 0
    assert elk(["verify", str(path), *flags, "--expect", str(tmp_path / "out.npz")]) == 0


def test_linalg_in_northpole_out(tmp_path: Path) -> None:
    path = tmp_path / "layer.mlir"
    path.write_text(LINALG)
    program = elk_ir.compile(path, chip="northpole-16", simulate=False)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 32)).astype(np.float32)
    b = rng.standard_normal(16).astype(np.float32)
    want = x @ np.full((32, 16), 0.5, np.float32) + b
    np.testing.assert_allclose(program(x=x, b=b)["out0"], want, rtol=1e-5)
    assert "northpole.execute" in program.mlir("northpole")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @main(", r"layer\.mlir:1"),
        (_TWO, "2 functions"),
        ('icca.hbm input @x : tensor<4xf32> {inputs = ["x"]}', "compiled already"),
        (_OPEN, "static"),
        (_UNKNOWN, r"linalg\.no"),
    ],
)
def test_ir_that_is_no_model(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.mlir"
    path.write_text(text)
    with pytest.raises(ModelError, match=message):
        elk_ir.compile(path, chip="test-16")


def test_other_functions_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "layer.mlir"
    path.write_text(LINALG + "func.func @other(%x: tensor<?xf32>) {\n func.return\n}\n")
    program = elk_ir.compile(path, chip="test-16", policy="basic", simulate=False)
    assert [spec.name for spec in program.signature.inputs] == ["x", "b"]


def test_ir_has_no_dimensions_to_bind(tmp_path: Path) -> None:
    path = tmp_path / "layer.mlir"
    path.write_text(LINALG)
    with pytest.raises(ElkError, match="static"):
        elk_ir.compile(path, chip="test-16", dims={"n": 3})


def test_compare_policies(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(mlp((24, 48, 16), "Relu", 1))
    results = elk_ir.compare_policies(path, chip="test-16", policies=["basic", "ideal"])
    assert [r["policy"] for r in results] == ["basic", "ideal"]
    assert all(r["time_s"] >= r["lower_bound_s"] > 0 for r in results)
    with pytest.raises(ElkError, match="unknown policy 'best'"):
        elk_ir.compare_policies(path, chip="test-16", policies=["best"])


def test_every_command_is_documented_and_there() -> None:
    """The table of docs/embedding.md: each command of `elk`, and a name that exists."""
    from importlib import import_module

    from elk_ir.tools.elk import COMMANDS

    text = (ROOT / "docs" / "embedding.md").read_text()
    rows = re.findall(r"^\| `elk ([a-z]+)[^|]*\| (.*) \|$", text, re.MULTILINE)
    assert set(COMMANDS) <= {command for command, _ in rows}
    for _, cell in rows:
        for dotted in re.findall(r"`(elk_ir(?:\.\w+)+)", cell):
            module, _, name = dotted.rpartition(".")
            assert hasattr(import_module(module), name), dotted


def test_every_argument_is_documented() -> None:
    """In the docstring and in the table of docs/embedding.md."""
    names = [n for n in inspect.signature(elk_ir.compile).parameters if n != "model"]
    text = (ROOT / "docs" / "embedding.md").read_text()
    table = text.partition("| argument | meaning |")[2].partition("\n\n")[0]
    doc = elk_ir.compile.__doc__ or ""
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(names)
    assert [
        n for n in names if not re.search(rf"^    [\w, ]*\b{n}\b[\w, ]*:", doc, re.MULTILINE)
    ] == []


def test_exported_names_are_lazy_and_exist() -> None:
    for name in elk_ir.__all__:
        assert getattr(elk_ir, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = elk_ir.nothing
