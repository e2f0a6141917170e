"""Programs with a host part: what runs where, the numbers, the report, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import elk_ir
from elk_ir import backend
from elk_ir.errors import ElkError, UsageError
from elk_ir.hosted import OPEN, HostedProgram, OpenSpec
from elk_ir.numerics.host_eval import HostFunction

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N = helper.make_node
I = helper.make_tensor_value_info  # noqa: E741


def model_of(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Any
) -> onnx.ModelProto:
    """A model of opset 21; constants are its initializers."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def expected(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime computes."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def compiled(model: onnx.ModelProto | Path, **options: Any) -> HostedProgram:
    program = elk_ir.compile(model, chip="test-16", policy="basic", **options)
    assert isinstance(program, HostedProgram)
    return program


def agree(program: elk_ir.Program, model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    """The program's outputs have onnxruntime's types, shapes and numbers."""
    got, want = program.run(feed), expected(model, feed)
    assert list(got) == list(want)
    for name, array in want.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def detector() -> onnx.ModelProto:
    """A convolutional detector with two heads, and the post-processing that its exporter adds:
    boxes decoded, overlaps suppressed, the survivors gathered."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        fan_in = float(np.prod(shape[1:]))
        return (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    nodes = [
        N("Conv", ["image", "w1"], ["a"], name="conv1", pads=[1] * 4, strides=[2, 2]),
        N("Relu", ["a"], ["b"], name="relu1"),
        N("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1] * 4, strides=[2, 2]),
        N("Relu", ["c"], ["d"], name="relu2"),
        N("Conv", ["d", "wb"], ["e"], name="box head"),
        N("Conv", ["d", "wc"], ["f"], name="score head"),
        N("Sigmoid", ["f"], ["g"], name="sigmoid"),
        N("Reshape", ["g", "score_shape"], ["scores"], name="flat scores"),
        N("Reshape", ["e", "box_shape"], ["e1"], name="flat boxes"),
        N("Transpose", ["e1"], ["e2"], name="rows", perm=[0, 2, 1]),
        N("Mul", ["e2", "scale"], ["boxes"], name="decode"),
        N(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "overlap", "least"],
            ["selected"],
            name="suppress",
            center_point_box=1,
        ),
        N("Gather", ["selected", "two"], ["which"], name="which", axis=1),
        N("Squeeze", ["boxes", "zero"], ["flat"], name="one image"),
        N("Gather", ["flat", "which"], ["found"], name="survivors", axis=0),
    ]
    return model_of(
        nodes,
        [I("image", FLOAT, [1, 3, 32, 32])],
        [I("found", FLOAT, ["n", 4]), I("selected", INT64, ["n", 3]), I("scores", FLOAT, None)],
        w1=weight(8, 3, 3, 3),
        w2=weight(16, 8, 3, 3),
        wb=weight(4, 16, 1, 1),
        wc=weight(3, 16, 1, 1),
        box_shape=np.array([1, 4, 64]),
        score_shape=np.array([1, 3, 64]),
        most=np.array([9]),
        overlap=np.array([0.5], np.float32),
        least=np.array([0.68], np.float32),
        scale=np.float32(8),
        two=np.array(2),
        zero=np.array([0]),
    )


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, HostedProgram]:
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    onnx.save(detector(), path)
    return detector(), compiled(path)


def images(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"image": rng.standard_normal((1, 3, 32, 32)).astype(np.float32)}


def test_detection_equals_onnxruntime(detection: tuple[onnx.ModelProto, HostedProgram]) -> None:
    """The network runs on the chip, suppression on the host; counts differ from image to image."""
    model, program = detection
    counts = {len(program.run(images(seed))["found"]) for seed in range(3)}
    assert len(counts) > 1
    for seed in range(3):
        agree(program, model, images(seed))


def test_the_report_says_what_runs_on_the_host(
    detection: tuple[onnx.ModelProto, HostedProgram],
) -> None:
    """Nodes, reasons, pieces; and the times of the device pieces."""
    _, program = detection
    report = program.report
    assert [row["node"] for row in report["host"]["why"]] == ["suppress", "which", "survivors"]
    reasons = [row["why"] for row in report["host"]["why"]]
    assert reasons[0] == "the shape of its result depends on data"
    assert reasons[1] == "it reads a tensor whose shape depends on data"
    assert (report["host"]["nodes"], report["host"]["of"]) == (3, 15)
    assert [p["place"] for p in report["pieces"]] == ["device", "host"]
    (device,) = program.devices.values()
    assert report["time_s"] == device.report["time_s"] == program.simulate().time_s
    assert report["operators"] == device.report["operators"]
    by_name = {o["name"]: o["shape"] for o in report["outputs"]}
    assert by_name == {"found": [None, 4], "selected": [None, 3], "scores": [1, 3, 64]}
    found = program.signature.outputs[0]
    assert isinstance(found, OpenSpec)
    assert (found.shape, str(found)) == ((OPEN, 4), "float32[?, 4]")
    assert "func.call @host0" in program.mlir("host")


def test_saved_and_loaded(detection: tuple[onnx.ModelProto, HostedProgram], tmp_path: Path) -> None:
    """A folder holds the cut, and a program's folder for each device piece; weights stay put."""
    _, program = detection
    folder = program.save(tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == ["device0", "host.mlir", "report.json"]
    again = elk_ir.load(folder)
    assert isinstance(again, HostedProgram)
    assert again.signature == program.signature
    for name, array in program.run(images(7)).items():
        np.testing.assert_array_equal(again.run(images(7))[name], array)
    report = json.loads((folder / "report.json").read_text())
    assert report["host"] == program.report["host"]
    assert elk_ir.load(folder / "device0").report["target"] == "ipu"


def test_without_a_host_part_it_is_an_error() -> None:
    """`host=False` names what can't be compiled, as do targets without a host part."""
    with pytest.raises(ElkError, match="suppress: NonMaxSuppression") as raised:
        elk_ir.compile(detector(), chip="test-16", policy="basic", host=False)
    assert "switched off" in str(raised.value)
    with pytest.raises(ElkError, match="'northpole' have no host part"):
        elk_ir.compile(detector(), chip="northpole-16")


def test_a_product_behind_the_host_returns_to_the_chip() -> None:
    """Two device pieces: what is between them on the host has static shapes again. Several
    programs have no timeline together."""
    nodes = [
        N("MatMul", ["x", "w"], ["a"], name="first product"),
        N("Det", ["a"], ["d"], name="determinant"),
        N("Add", ["a", "d"], ["b"], name="sum"),
        N("MatMul", ["b", "w"], ["c"], name="second product"),
        N("NonZero", ["c"], ["nz"], name="where"),
    ]
    model = model_of(
        nodes,
        [I("x", FLOAT, [4, 4])],
        [I("c", FLOAT, [4, 4]), I("nz", INT64, [2, None])],
        w=np.tril(np.ones((4, 4), np.float32)),
    )
    program = compiled(model)
    assert list(program.devices) == ["device0", "device1"]
    assert [r["node"] for r in program.report["host"]["why"]] == ["determinant", "where"]
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    agree(program, model, {"x": x})
    times = [p.report["time_s"] for p in program.devices.values()]
    assert program.report["time_s"] == sum(times)
    with pytest.raises(UsageError, match="2 device programs"):
        program.simulate()


def loop_until(limit: float) -> onnx.ModelProto:
    """A product, and a loop that doubles until the sum is large: no bound on its trips."""
    body = helper.make_graph(
        [
            N("Add", ["v", "v"], ["w"]),
            N("ReduceSum", ["w"], ["s"], keepdims=0),
            N("Less", ["s", "limit"], ["again"]),
            N("Identity", ["s"], ["seen"]),
        ],
        "body",
        [I("i", INT64, []), I("on", BOOL, []), I("v", FLOAT, [1, 3])],
        [I("again", BOOL, []), I("w", FLOAT, [1, 3]), I("seen", FLOAT, [])],
    )
    nodes = [
        N("MatMul", ["x", "m"], ["p"], name="product"),
        N("Loop", ["", "", "p"], ["y", "sums"], name="until", body=body),
    ]
    return model_of(
        nodes,
        [I("x", FLOAT, [1, 3])],
        [I("y", FLOAT, [1, 3]), I("sums", FLOAT, [None])],
        m=np.eye(3, dtype=np.float32),
        limit=np.float32(limit),
    )


def test_loop_without_a_bound() -> None:
    """Its trip count is known to the host while it runs."""
    model = loop_until(100)
    program = compiled(model)
    assert [r["node"] for r in program.report["host"]["why"]] == ["until"]
    assert "trip count depends on data" in program.report["host"]["why"][0]["why"]
    lengths = set()
    for scale in (0.5, 5, 200):
        x = np.full((1, 3), scale, np.float32)
        agree(program, model, {"x": x})
        lengths.add(len(program.run({"x": x})["sums"]))
    assert len(lengths) == 3


def test_if_with_branches_of_different_shapes() -> None:
    """Captured values cross the cut as well."""
    branches: dict[str, Any] = {
        name: helper.make_graph(
            [
                N("ReduceSum", ["p"], ["r"], keepdims=0)
                if name[0] == "t"
                else N("Neg", ["p"], ["r"])
            ],
            name,
            [],
            [I("r", FLOAT, None)],
        )
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        N("MatMul", ["x", "m"], ["p"], name="product"),
        N("ReduceMax", ["p"], ["top"], name="top", keepdims=0),
        N("Greater", ["top", "one"], ["c"], name="is large"),
        N("If", ["c"], ["y"], name="choice", **branches),
    ]
    model = model_of(
        nodes,
        [I("x", FLOAT, [2, 3])],
        [I("y", FLOAT, None)],
        m=np.eye(3, dtype=np.float32),
        one=np.float32(1),
    )
    program = compiled(model)
    assert [r["node"] for r in program.report["host"]["why"]] == ["choice"]
    assert program.report["outputs"] == [{"name": "y", "dtype": "float32", "shape": None}]
    assert str(program.signature.outputs[0]) == "float32 of any shape"
    for scale, shape in ((3, ()), (0.1, (2, 3))):
        x = np.full((2, 3), scale, np.float32)
        got = program.run({"x": x})["y"]
        assert got.shape == shape
        np.testing.assert_allclose(got, x.sum() if not shape else -x, rtol=1e-6)


def test_nothing_for_the_chip_and_outputs_that_are_constants() -> None:
    """A program without a device piece, and an output that depends on nothing."""
    nodes = [
        N("Unique", ["x"], ["u", "", "", "n"], name="unique"),
        N("Add", ["k", "k"], ["twice"], name="constant"),
    ]
    model = model_of(
        nodes,
        [I("x", INT64, [6])],
        [I("u", INT64, [None]), I("n", INT64, [None]), I("twice", FLOAT, [2])],
        k=np.array([1, 2], np.float32),
    )
    program = compiled(model)
    assert program.devices == {} and program.report["operators"] == []
    assert "time_s" not in program.report
    agree(program, model, {"x": np.array([3, 1, 3, 2, 1, 1])})
    with pytest.raises(UsageError, match="0 device programs"):
        program.simulate()


def test_weights_of_the_host_are_read_from_the_model(tmp_path: Path) -> None:
    """A weight that only the host reads is no copy either, and may be made up."""
    table = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    nodes = [
        N("NonZero", ["x"], ["nz"], name="where"),
        N("Squeeze", ["nz", "zero"], ["rows"], name="rows"),
        N("Gather", ["table", "rows"], ["y"], name="lookup"),
    ]
    model = model_of(
        nodes, [I("x", FLOAT, [256])], [I("y", FLOAT, [None, 8])], table=table, zero=np.array([0])
    )
    path = tmp_path / "lookup.onnx"
    onnx.save(model, path, save_as_external_data=True, location="lookup.bin", size_threshold=1024)
    program = compiled(path)
    x = np.zeros(256, np.float32)
    x[[3, 9, 255]] = 1
    np.testing.assert_array_equal(program.run({"x": x})["y"], table[[3, 9, 255]])
    folder = program.save(tmp_path / "out")
    assert table.nbytes > (folder / "host.mlir").stat().st_size
    np.testing.assert_array_equal(elk_ir.load(folder).run({"x": x})["y"], table[[3, 9, 255]])
    (tmp_path / "lookup.bin").unlink()
    with pytest.raises(ElkError, match=r"no file 'lookup\.bin'"):
        elk_ir.load(folder).run({"x": x})
    assert program.run({"x": x}, random_weights=0)["y"].shape == (3, 8)


def test_the_backend_prefers_the_chip() -> None:
    """Values that determine shapes make a program of the chip; only what is left goes to the
    host, and is named."""
    reshape = model_of(
        [N("Reshape", ["x", "shape"], ["y"], name="reshape")],
        [I("x", FLOAT, [2, 6]), I("shape", INT64, [2])],
        [I("y", FLOAT, None)],
    )
    prepared = backend.prepare(reshape, "ELK:test-16", policy="basic")
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert prepared.run([x, np.array([3, 4])])[0].shape == (3, 4)
    assert (prepared.specialised, prepared.host_nodes) == (("shape",), [])
    prepared = backend.prepare(loop_until(50), "ELK:test-16", policy="basic")
    assert prepared.host_nodes == []
    (y, _) = prepared.run([np.ones((1, 3), np.float32)])
    np.testing.assert_array_equal(y, np.full((1, 3), 32, np.float32))
    assert [n["operator"] for n in prepared.host_nodes] == ["Loop"]


def test_errors_while_it_runs() -> None:
    """Inputs are checked, and what the host can't do on these values is one message."""
    model = model_of(
        [
            N("Range", ["a", "b", "c"], ["r"], name="range"),
            N("Gather", ["r", "i"], ["y"], name="g"),
        ],
        [I("a", INT64, []), I("b", INT64, []), I("c", INT64, []), I("i", INT64, [1])],
        [I("y", INT64, [1])],
    )
    program = compiled(model)
    feed = {"a": np.array(0), "b": np.array(5), "c": np.array(1), "i": np.array([3])}
    assert program.run(feed)["y"] == 3
    with pytest.raises(ElkError, match="the host cannot run this part"):
        program.run({**feed, "i": np.array([9])})
    with pytest.raises(ElkError, match="input 'i' is missing"):
        program.run({k: v for k, v in feed.items() if k != "i"})


def test_without_onnxruntime_the_reference_evaluator_runs_the_host(
    detection: tuple[onnx.ModelProto, HostedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers from ONNX's own evaluator."""
    from elk_ir.frontend.export import opset_of
    from elk_ir.hosted import functions_of
    from elk_ir.numerics import host_eval

    _, program = detection
    monkeypatch.setattr(host_eval, "onnxruntime_session", lambda model: None)
    module = program.module("host")
    function = HostFunction(functions_of(module)["host0"], opset_of(module))
    assert function.evaluator == "onnx.reference"
    rng = np.random.default_rng(3)
    boxes = rng.uniform(1, 9, (1, 64, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (1, 3, 64)).astype(np.float32)
    named = {n: {64 * 4: boxes, 64 * 3: scores}.get(s, boxes[0]) for n, s in _sizes(program)}
    got = function.run(named, program.weights())
    monkeypatch.undo()
    want = HostFunction(functions_of(module)["host0"], opset_of(module)).run(
        named, program.weights()
    )
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def _sizes(program: HostedProgram) -> list[tuple[str, int]]:
    """Names of the host piece's inputs, and how many elements they have."""
    (device,) = program.devices.values()
    return [
        (s.name, int(np.prod(s.shape)) if len(s.shape) == 3 else 0)
        for s in device.signature.outputs
    ]
