"""Static KV caches: rows that an index names are replaced in HBM, in place, at every level."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cpp_program import BuiltProgram, needs_compiler
from helpers import load_dense, machine_of, parse, run_passes
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import Attribute

from elk_ir.decode import compile_decoder
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.errors import ElkError, UsageError
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.numerics.tensors import read_npz
from elk_ir.report_json import hbm_traffic_bytes, state_table
from elk_ir.targets.ipu.device_program import device_program
from elk_ir.targets.ipu.machine import TrapError
from elk_ir.targets.ipu.poplar_cpp import emit_cpp

STATIC = Path(__file__).parent / "models" / "statickv_scatter_dynamo"

LAYERS = """
te.global state @c stack 2 : tensor<2x6x4xf32>
    {axis = 1 : i64, length = 6 : i64, inputs = ["c0", "c1"], outputs = ["d0", "d1"]}
te.global weight @w stack 2 : tensor<8x8xf32> = dense<0.125> : tensor<2x8x8xf32>
func.func @main(%x: tensor<2x8xf32> {onnx.name = "x"}, %p: tensor<2xi64> {onnx.name = "p"})
    -> (tensor<2x8xf32> {onnx.name = "y"}) {
  %o = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<2x8xf32>):
    %w = te.load @w[%l] : tensor<8x8xf32>
    %a = te.contract(%h, %w) <(m = 2, n = 8, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]>
      : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32> loc("a")
    %e = te.map(%a) <(b = 2, u = 2, d = 4), [(b, 4*u + d)] -> [(b, u, d)]>
      {body = #te.body<(x0) {} -> (x0)>} : (tensor<2x8xf32>) -> tensor<2x2x4xf32> loc("e")
    %old = te.load @c[%l] : tensor<2x6x4xf32>
    %new = te.scatter(%old, %p, %e)
      <(b = 2, rows = 6, d = 4, u = 2 reduce), [(b, rows, d), (u), (b, u, d)] -> [(b, rows, d)]>
      {rows = 1 : i64, update = #te<update set>}
      : (tensor<2x6x4xf32>, tensor<2xi64>, tensor<2x2x4xf32>) -> tensor<2x6x4xf32> loc("new")
    te.update %e to @c[%l] rows %p : tensor<2x2x4xf32>, tensor<2xi64> loc("upd")
    %s = te.reduce(%new) <(b = 2, r = 6 reduce, d = 4), [(b, r, d)] -> [(b, d)]>
      {combiner = #te<combiner sum>} : (tensor<2x6x4xf32>) -> tensor<2x4xf32> loc("s")
    %y = te.map(%a, %s) <(b = 2, d = 8), [(b, d), (b, 0)] -> [(b, d)]>
      {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>}
      : (tensor<2x8xf32>, tensor<2x4xf32>) -> tensor<2x8xf32> loc("y")
    te.yield %y : tensor<2x8xf32>
  } : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %o : tensor<2x8xf32>
}
"""
ROWS = [(3, 1), (-1, 0)]
"""Two rows of six that are written; numbers below zero count from the end."""


def inputs(rows: tuple[int, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((2, 8)).astype(np.float32),
        "p": np.asarray(rows),
        "c0": rng.standard_normal((2, 6, 4)).astype(np.float32),
        "c1": rng.standard_normal((2, 6, 4)).astype(np.float32),
    }


def dense(attr: Attribute) -> np.ndarray:
    """The value of a weight that is in the IR."""
    assert isinstance(attr, DenseIntOrFPElementsAttr)
    return array_from_dense(attr)


@pytest.fixture(scope="module")
def levels() -> tuple[ModuleOp, ModuleOp, ModuleOp]:
    """LAYERS in te, scheduled in icca, and lowered to ipu."""
    te = parse(LAYERS)
    icca = te.clone()
    schedule = "icca-schedule{policy=elk-full},icca-allocate,icca-verify-program"
    run_passes(icca, f"convert-te-to-icca{{chip=test-16}},{schedule}")
    ipu = icca.clone()
    run_passes(ipu, "convert-icca-to-ipu,ipu-verify-program")
    return te, icca, ipu


def assert_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_replaced_at_every_level(
    levels: tuple[ModuleOp, ModuleOp, ModuleOp], rows: tuple[int, int]
) -> None:
    te, icca, ipu = levels
    given = inputs(rows)
    want = evaluate_te(te, given, load_weight=dense)
    kept = [i for i in range(6) if i not in {r % 6 for r in rows}]
    np.testing.assert_array_equal(want["d0"][:, kept], given["c0"][:, kept])
    assert (want["d0"][:, list(rows)] != given["c0"][:, list(rows)]).all()
    assert_equal(evaluate_icca(icca, given, load_weight=dense), want)
    for landing in ("early", "late"):
        machine = machine_of(ipu, load_dense, landing)
        assert_equal(machine.run(given), want)
        rows_bytes, out_bytes = 2 * (2 * 2 * 4 * 4), 2 * 8 * 4
        assert machine.counters.hbm_written_bytes == rows_bytes + out_bytes
        assert state_table(icca)[0]["written_bytes"] == rows_bytes
        moved = machine.counters.hbm_read_bytes + machine.counters.hbm_written_bytes
        assert hbm_traffic_bytes(ipu) == moved


def test_a_row_that_does_not_exist_is_trapped(
    levels: tuple[ModuleOp, ModuleOp, ModuleOp],
) -> None:
    te, icca, ipu = levels
    given = inputs((0, 6))
    with pytest.raises(UsageError, match="row 6 of state @c is written, which has 6"):
        evaluate_te(te, given, load_weight=dense)
    with pytest.raises(ElkError, match="a store to @c has row 6 of 6"):
        evaluate_icca(icca, given, load_weight=dense)
    message = r"@e.result0 \(of e\), bytes \d+\.\.\d+: store to @c: @p asks for row 6, outside of 0"
    with pytest.raises(TrapError, match=message):
        machine_of(ipu, load_dense).run(given)


def test_the_device_program_names_the_rows(levels: tuple[ModuleOp, ModuleOp, ModuleOp]) -> None:
    text = str(device_program(levels[1]))
    assert re.search(r"store_async\(value = op \d+\.0, to = @c\[\w+\], rows = @p\)", text)


@needs_compiler
@pytest.mark.slow
def test_emitted_cpp(levels: tuple[ModuleOp, ModuleOp, ModuleOp], tmp_path: Path) -> None:
    """The same rows, and an error that names the store where there is no such row."""
    te, _, ipu = levels
    built = BuiltProgram(emit_cpp(ipu), tmp_path)
    for rows in ROWS:
        given = inputs(rows)
        want = evaluate_te(te, given, load_weight=dense)
        for late in (False, True):
            assert_equal(built.outputs(ipu, given, late=late), want)
    result = built.run(ipu, inputs((0, 6)))
    assert result.returncode == 1
    assert "e.result0.store: remote buffer c has no row 4294967295 of 24" in result.stderr


@pytest.mark.slow
def test_a_cache_that_where_updates(tmp_path: Path) -> None:
    """The static graph with `Where(numbers == position, new, old)` in the place of its scatters:
    tokens and logits equal onnxruntime's, and a step writes one row of each cache."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = onnx.load(STATIC.with_suffix(".onnx"))
    numbers = onnx.numpy_helper.from_array(np.arange(32).reshape(1, 1, 32, 1), "rows.numbers")
    model.graph.initializer.append(numbers)
    nodes = []
    for node in model.graph.node:
        if node.op_type != "ScatterElements":
            nodes.append(node)
            continue
        cache, _, new = node.input
        mask = f"{node.output[0]}.mask"
        nodes.append(onnx.helper.make_node("Equal", ["rows.numbers", "cache_position"], [mask]))
        nodes.append(onnx.helper.make_node("Where", [mask, new, cache], list(node.output)))
    assert len(nodes) == len(model.graph.node) + 2
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path = tmp_path / "where.onnx"
    onnx.save(model, path)
    given = read_npz(STATIC.with_suffix(".npz"), "in/")
    decoder = compile_decoder(path, chip="test-16", inputs=given, steps=6, policy="basic")
    assert [s["entries_written"] for s in decoder.program.report["states"]] == [1, 1]
    session, state = ort.InferenceSession(str(path)), dict(given)
    names = [o.name for o in session.get_outputs()]
    for _ in range(6):
        outputs = dict(zip(names, session.run(None, state), strict=True))
        logits = decoder.step()["logits"]
        np.testing.assert_allclose(logits, outputs["logits"], rtol=0, atol=1e-5)
        tokens = outputs["logits"].reshape(2, -1, 512)[:, -1].argmax(-1)
        np.testing.assert_array_equal(decoder.tokens, tokens)
        state = {
            "input_ids": tokens.reshape(2, 1),
            "cache_position": state["cache_position"] + 1,
            "k_cache": outputs["k_out"],
            "v_cache": outputs["v_out"],
        }
