"""The embedding API: compile, run, save, load, on the bundled graphs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.errors import ElkError, ModelError
from elk_ir.numerics.compare import compare_outputs, max_abs_error
from elk_ir.numerics.tensors import TensorSpec, check_inputs, random_inputs, read_npz, write_npz
from elk_ir.target import DEFAULT_POLICY

MODELS = Path(__file__).parent / "models"
LLAMA = MODELS / "llama2_decode_static_dynamo.onnx"
DATA = LLAMA.with_suffix(".npz")


@pytest.fixture(scope="module")
def llama() -> elk_ir.Program:
    return elk_ir.compile(LLAMA, chip="test-16", policy="basic")


def small_model(*, dims: list[Any] | None = None, external: str | None = None) -> onnx.ModelProto:
    """y = x @ w + b with a weight of 32 x 48; with `external`, w lies in a file of that name."""
    rng = np.random.default_rng(7)
    weight = numpy_helper.from_array(rng.standard_normal((32, 48)).astype(np.float32), "w")
    if external is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", external), ("offset", "0"), ("length", "6144")):
            entry = weight.external_data.add()
            entry.key, entry.value = key, value
    bias = numpy_helper.from_array(np.ones(48, np.float32), "b")
    shape = dims or [4, 32]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
            helper.make_node("Add", ["p", "b"], ["y"], name="sum"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], 48])],
        [weight, bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("model", sorted(p.stem for p in MODELS.glob("*.onnx")))
@pytest.mark.parametrize("chip", ["test-16", "test-64"])
def test_bundled_models_give_the_exporters_numbers(model: str, chip: str) -> None:
    path = MODELS / f"{model}.onnx"
    program = elk_ir.compile(path, chip=chip)
    data = path.with_suffix(".npz")
    outputs = program.run(read_npz(data, "in/"))
    errors = compare_outputs(outputs, read_npz(data, "out/"), precision=program.precision)
    assert len(errors) == len(outputs)
    assert [e.name for e in errors if not e.ok] == []


def test_call_is_run_and_landing_does_not_matter(llama: elk_ir.Program) -> None:
    inputs = read_npz(DATA, "in/")
    late, early = llama(**inputs), llama.run(inputs, landing="early")
    assert list(late) == [s.name for s in llama.signature.outputs]
    for name, value in late.items():
        np.testing.assert_array_equal(value, early[name])


def test_a_model_in_memory() -> None:
    model = small_model()
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    (weight, bias) = (numpy_helper.to_array(t) for t in model.graph.initializer)
    for given in (model, model.SerializeToString()):
        program = elk_ir.compile(given, chip=load_chip("test-16"))
        np.testing.assert_allclose(program(x=x)["y"], x @ weight + bias, rtol=1e-5, atol=1e-5)


def test_dimensions_bound_by_name_and_by_shape() -> None:
    model = small_model(dims=["batch", 32])
    by_name = elk_ir.compile(model, chip="test-16", dims={"batch": 3})
    by_shape = elk_ir.compile(model, chip="test-16", input_shapes={"x": (3, 32)})
    assert by_name.signature.inputs == (TensorSpec("x", "float32", (3, 32)),)
    assert by_name.mlir("ipu") == by_shape.mlir("ipu")


def test_kv_capacity_reserves_and_keeps_the_numbers() -> None:
    program = elk_ir.compile(LLAMA, chip="test-16", policy="basic", kv_capacity=40)
    assert {s["capacity"] for s in program.report["states"]} == {40}
    outputs = program.run(read_npz(DATA, "in/"))
    assert all(e.ok for e in compare_outputs(outputs, read_npz(DATA, "out/")))
    with pytest.raises(ElkError, match="needs 13 entries in this run, the capacity is 5"):
        elk_ir.compile(LLAMA, chip="test-16", policy="basic", kv_capacity=5)


# ---------------------------------------------------------------------- weights


def test_weights_are_needed_for_numbers_only(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small_model(external="w.bin").SerializeToString())
    program = elk_ir.compile(path, chip="test-16")
    x = np.ones((4, 32), np.float32)
    with pytest.raises(ModelError, match=r"weights of 'w' are missing: no file 'w.bin'"):
        program(x=x)
    first, again = (program.run({"x": x}, random_weights=3)["y"] for _ in range(2))
    other = program.run({"x": x}, random_weights=4)["y"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    # Variance 1 / fan-in, so that a sum over 32 inputs of 1 has variance 1 (and mean b = 1).
    assert 0.5 < float((first[0] - 1).std()) < 1.5


def test_weights_are_checked_by_size_and_hash(tmp_path: Path) -> None:
    path, weights = tmp_path / "m.onnx", tmp_path / "w.bin"
    path.write_bytes(small_model(external="w.bin").SerializeToString())
    weights.write_bytes(np.ones((32, 48), np.float32).tobytes())
    x = np.ones((4, 32), np.float32)
    program = elk_ir.compile(path, chip="test-16")
    np.testing.assert_allclose(program(x=x)["y"], 33.0)
    program.save(tmp_path / "out")
    weights.write_bytes(np.full((32, 48), 2, np.float32).tobytes())
    with pytest.raises(ModelError, match="not those that were imported"):
        elk_ir.load(tmp_path / "out")(x=x)
    weights.write_bytes(b"short")
    with pytest.raises(ModelError, match="which has 5"):
        elk_ir.load(tmp_path / "out")(x=x)


# ---------------------------------------------------------------------- files


def test_save_and_load(llama: elk_ir.Program, tmp_path: Path) -> None:
    folder = llama.save(tmp_path / "a" / "b")
    written = {p.name for p in folder.iterdir()}
    assert written == {"program.mlir", "report.json", "target.mlir", *llama.emitted()}
    assert max(p.stat().st_size for p in folder.iterdir()) < LLAMA.stat().st_size
    loaded = elk_ir.load(folder)
    inputs = read_npz(DATA, "in/")
    expected, outputs = llama.run(inputs), loaded.run(inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)
    # Printing what was parsed gives the same bytes, so saving again changes nothing.
    again = loaded.save(tmp_path / "c")
    for name in ("program.mlir", "target.mlir"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()


def test_a_folder_may_move_with_its_model(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    path = old / "m.onnx"
    path.write_bytes(small_model().SerializeToString())
    elk_ir.compile(path, chip="test-16").save(old / "out")
    assert json.loads((old / "out" / "report.json").read_text())["weights_dir"] == ".."
    new = tmp_path / "new"
    old.rename(new)
    x = np.ones((4, 32), np.float32)
    moved = elk_ir.load(new / "out")(x=x)["y"]
    shutil.move(new / "out", tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="missing"):
        elk_ir.load(tmp_path / "elsewhere")(x=x)
    found = elk_ir.load(tmp_path / "elsewhere", weights_dir=new)(x=x)["y"]
    np.testing.assert_array_equal(moved, found)


def test_same_input_same_bytes(llama: elk_ir.Program) -> None:
    again = elk_ir.compile(LLAMA, chip="test-16", policy="basic")
    for level in ("onnx", "te", "icca", "ipu"):
        assert llama.mlir(level) == again.mlir(level)
    from elk_ir.report_json import RUN_DEPENDENT

    def fixed(report: dict[str, Any]) -> str:
        return json.dumps({k: v for k, v in report.items() if k not in RUN_DEPENDENT})

    assert fixed(llama.report) == fixed(again.report)


def test_printed_programs_name_the_nodes(llama: elk_ir.Program) -> None:
    for level in ("te", "icca", "ipu"):
        assert 'loc("node_linear_14"' in llama.mlir(level)
    with pytest.raises(ElkError, match="no level 'northpole'"):
        llama.mlir("northpole")


# ---------------------------------------------------------------------- the report


def test_report(llama: elk_ir.Program) -> None:
    report = llama.report
    assert (report["chip"], report["target"]) == ("test-16", "ipu")
    assert report["policy"] == "basic"
    assert report["model"] == LLAMA.name
    chip = load_chip("test-16")
    assert 0 < report["sram_peak_bytes"] <= report["sram_capacity_bytes"]
    assert report["sram_capacity_bytes"] == chip.usable_sram_per_core_bytes
    assert report["lower_bound_s"] >= report["hbm_bytes"] / chip.hbm_bytes_per_s
    assert report["lower_bound_s"] == max(report["bounds_s"].values())
    assert report["time_s"] >= report["lower_bound_s"] * (1 - 1e-9)
    assert sum(report["breakdown_s"].values()) == pytest.approx(report["time_s"])
    assert report["tokens_per_run"] == 2
    assert report["tokens_per_s"] == pytest.approx(2 / report["latency_per_token_s"])
    assert 0 < report["compile_cpu_s"] < 60
    assert report["compile_peak_rss_bytes"] > 10_000_000
    states = report["states"]
    assert sum(s["layers"] for s in states) == 4
    assert all(s["capacity"] == 13 and s["length"] == 12 for s in states)
    named = {n for o in report["operators"] for n in o["nodes"]}
    assert "node_linear_14" in named
    for operator in report["operators"]:
        assert operator["cores"] <= chip.cores
        assert operator["sram_bytes"] <= report["sram_peak_bytes"]
    json.dumps(report, allow_nan=False)


def test_energy_as_the_objective() -> None:
    cheap = elk_ir.compile(LLAMA, chip="test-64", policy="elk-dyn", objective="energy")
    quick = elk_ir.compile(LLAMA, chip="test-64", policy="elk-dyn")
    assert cheap.report["energy_j"] < quick.report["energy_j"]
    assert cheap.report["time_s"] >= quick.report["time_s"]


def test_the_default_policy_is_named() -> None:
    program = elk_ir.compile(small_model(), chip="test-16")
    assert program.report["policy"] == DEFAULT_POLICY
    assert f'icca.policy = "{DEFAULT_POLICY}"' in program.mlir("icca")


def test_a_report_without_times() -> None:
    report = elk_ir.compile(small_model(), chip="test-16", simulate=False).report
    assert "time_s" not in report and "lower_bound_s" not in report
    assert report["hbm_bytes"] == 4 * (4 * 32 + 32 * 48 + 4 * 48)  # b is all ones: a constant
    assert "tokens_per_run" not in report


def test_hbm_bytes_are_what_the_machine_moves(llama: elk_ir.Program) -> None:
    """The report counts each byte that the virtual machine's copies move, and no other."""
    from elk_ir.targets.ipu.interpreter import Interpreter
    from elk_ir.weight_source import WeightSource

    weights = WeightSource(LLAMA.parent)
    machine = Interpreter(
        llama.target,
        lambda remote: weights.load(remote.value),
        cores=llama.chip.cores,
        sram_bytes=llama.chip.usable_sram_per_core_bytes,
    )
    machine.run(read_npz(DATA, "in/"))
    moved = machine.counters.hbm_read_bytes + machine.counters.hbm_written_bytes
    assert llama.report["hbm_bytes"] == moved


# ---------------------------------------------------------------------- tensors at the edge


def test_inputs_are_checked_together() -> None:
    specs = (TensorSpec("a", "float32", (2,)), TensorSpec("b", "int64", (1, 3)))
    with pytest.raises(ElkError) as caught:
        check_inputs({"c": np.zeros(1), "a": np.zeros(2)}, specs, where="in.npz")
    message = str(caught.value)
    assert message.startswith("in.npz: there is no input 'c'")
    assert "input 'a' is float64[2], the program takes float32[2]" in message
    assert "input 'b' is missing: it is int64[1, 3]" in message


def test_bfloat16_comes_as_float32_and_goes_as_float32(tmp_path: Path) -> None:
    spec = TensorSpec("a", "bfloat16", (3,))
    taken = check_inputs({"a": np.array([1, 2.5, -3], np.float32)}, (spec,))["a"]
    assert taken.dtype.name == "bfloat16"
    raw = check_inputs({"a": taken.view("V2")}, (spec,))["a"]
    np.testing.assert_array_equal(raw.view(np.uint16), taken.view(np.uint16))
    write_npz(tmp_path / "o.npz", {"a": taken})
    np.testing.assert_array_equal(read_npz(tmp_path / "o.npz", "out/")["a"], [1, 2.5, -3])


def test_npz_prefixes(tmp_path: Path) -> None:
    prefixed: dict[str, Any] = {"in/x": np.ones(1), "out/y": np.zeros(1), "z": np.ones(2)}
    plain: dict[str, Any] = {"x": np.ones(1), "out/y": np.zeros(1)}
    np.savez(tmp_path / "p.npz", **prefixed)
    np.savez(tmp_path / "q.npz", **plain)
    assert list(read_npz(tmp_path / "p.npz", "in/")) == ["x"]
    assert list(read_npz(tmp_path / "q.npz", "in/")) == ["x"]
    assert list(read_npz(tmp_path / "q.npz", "out/")) == ["y"]


def test_random_inputs_depend_on_seed_and_name_only() -> None:
    a, b = TensorSpec("a", "float16", (4, 5)), TensorSpec("ids", "int64", (7,))
    both, one = random_inputs((a, b), 1), random_inputs((b,), 1)
    np.testing.assert_array_equal(both["ids"], one["ids"])
    assert set(both["ids"].tolist()) <= {0, 1}
    assert not np.array_equal(both["a"], random_inputs((a,), 2)["a"])


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([np.inf, 1.0], [np.inf, 1.5], 0.5),
        ([np.inf], [1.0], np.inf),
        ([np.nan], [1.0], np.inf),
        ([-np.inf], [np.inf], np.inf),
    ],
)
def test_errors_of_what_is_not_a_number(
    actual: list[float], expected: list[float], error: float
) -> None:
    assert max_abs_error(np.array(actual), np.array(expected))[0] == error


def test_tolerances() -> None:
    one = np.array([100.0, 0.0], np.float32)
    for dtype, tolerance in (("float32", 1e-4), ("float16", 2e-3), ("bfloat16", 2e-2)):
        for share, ok in ((0.9, True), (1.1, False)):
            other = one + np.float32(share * tolerance * 100)
            (error,) = compare_outputs({"y": other}, {"y": one}, precision=dtype)
            assert error.ok == ok, (dtype, share)
    integers = {"y": np.array([1, 2])}
    assert compare_outputs(integers, integers)[0].ok
    assert not compare_outputs({"y": np.array([1, 3])}, integers, precision="bfloat16")[0].ok
