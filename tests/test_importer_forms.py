"""The importer: the forms that exporters use, and weights on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from importing import (
    fails,
    model_of,
    ops_of,
    parse_module,
    print_module,
    relu,
    tensor,
)
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from elk_ir.dialects.location import node_name
from elk_ir.dialects.onnx import CustomOp, InitializerOp, OnnxOp
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ModelError
from elk_ir.frontend import protobuf_offsets as pb
from elk_ir.frontend.export import export_model, main_function
from elk_ir.frontend.importer import import_model
from elk_ir.frontend.weights import (
    WeightPart,
    WeightRef,
    apply_recipe,
    infer_recipe,
    load_weight,
    random_weight,
)

# --- what exporters do ----------------------------------------------------------------------------


def test_external_data_is_resolved_beside_the_model(tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32).reshape(64, 64)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(
        nodes, [tensor("x", 1, 64)], [tensor("y", 1, 64)], [numpy_helper.from_array(weight, "w")]
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (ref,) = weights_of(import_model(path))
    assert np.array_equal(load_weight(ref, tmp_path), weight)
    assert len(ref.parts[0].hash) == 16

    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[5] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    with pytest.raises(ModelError, match="not those that were imported"):
        load_weight(ref, tmp_path)
    (tmp_path / "w.bin").write_bytes(data[:100])
    with pytest.raises(ModelError, match="which has 100"):
        load_weight(ref, tmp_path)
    fails(path, "truncated or belongs")
    (tmp_path / "w.bin").unlink()
    (missing,) = weights_of(import_model(path))
    assert missing.parts[0].hash == ""
    with pytest.raises(ModelError, match=r"no file 'w\.bin'"):
        load_weight(missing, tmp_path)
    with pytest.raises(ModelError, match=r"no file 'w\.bin'"):
        export_model(import_model(path), tmp_path)
    export_model(import_model(path), tmp_path, random_weights=0)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin"])
def test_external_data_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    large = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[128])
    large.data_location = TensorProto.EXTERNAL
    large.external_data.add(key="location", value=location)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = model_of(nodes, [tensor("x", 128)], [tensor("y", 128)], [large])
    fails(model.SerializeToString(), "outside of the model's folder")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(512))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").symlink_to(tmp_path / "secret.bin")
    part = WeightPart("w.bin", 0, 512, "", "f32", (128,), "w")
    with pytest.raises(ModelError, match="outside"):
        load_weight(WeightRef((part,)), tmp_path / "model")


def weights_of(module: ModuleOp) -> list[WeightRef]:
    return [
        op.value.to_ref()
        for op in module.walk()
        if isinstance(op, InitializerOp) and isinstance(op.value, WeightAttr)
    ]


def test_views_of_weights_become_recipes() -> None:
    weight = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    ints = {"start": [16], "end": [2**63 - 1], "axes": [-1], "shape": [4, -1, 32]}
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("Slice", ["w", "start", "end", "axes"], ["s"]),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.FLOAT16),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Identity", ["r"], ["y"]),
        helper.make_node("Mul", ["s", "x"], ["z"]),
    ]
    model = model_of(
        nodes,
        [tensor("x", 1)],
        [tensor("y", 4, 12, 32, elem=TensorProto.FLOAT16), tensor("z", 32, 32)],
        [numpy_helper.from_array(weight, "w")]
        + [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in ints.items()],
    )
    data = model.SerializeToString()
    module = import_model(data)
    assert ops_of(module) == ["Mul"]
    found = sorted(weights_of(module), key=lambda r: r.dtype)
    assert [r.recipe for r in found] == [
        ("transpose 1 0", "cast f16", "reshape 4 12 32"),
        ("slice 1 16 48 1",),
    ]
    buffers = {"model.onnx": data}
    assert np.array_equal(load_weight(found[1], ".", buffers=buffers), weight[:, 16:])
    half = weight.T.astype(np.float16).reshape(4, 12, 32)
    assert np.array_equal(load_weight(found[0], ".", buffers=buffers), half)


@pytest.mark.parametrize(
    "storage", ["raw", "float_data", "double_data", "int32_data", "int64_data"]
)
def test_every_storage_of_elements(storage: str) -> None:
    if storage in ("raw", "float_data"):
        array = np.linspace(-1, 1, 500, dtype=np.float32)
    elif storage == "double_data":
        array = np.linspace(-1, 1, 500)
    elif storage == "int32_data":
        array = np.linspace(-1, 1, 500).astype(np.float16)
    else:
        array = np.arange(2000)
    elem = helper.np_dtype_to_tensor_dtype(array.dtype)
    if storage == "raw":
        stored = numpy_helper.from_array(array, "w")
    else:
        stored = helper.make_tensor("w", elem, array.shape, array)
    nodes = [helper.make_node("Sub", ["x", "w"], ["y"])]
    model = model_of(
        nodes, [tensor("x", 1, elem=elem)], [tensor("y", array.size, elem=elem)], [stored]
    )
    data = model.SerializeToString()
    module = import_model(data)
    module.verify()
    assert bool(weights_of(module)) == (storage in ("raw", "float_data", "double_data"))
    (exported,) = export_model(module, ".", buffers={"model.onnx": data}).graph.initializer
    assert np.array_equal(numpy_helper.to_array(exported), array)


def test_weights_as_constants_inputs_and_in_branches() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(3))

    def branch(name: str, value: np.ndarray) -> onnx.GraphProto:
        # Both branches call their weight alike.
        nodes = [helper.make_node("MatMul", ["h", "k"], [name])]
        out = [tensor(name, 16, 16)]
        return helper.make_graph(nodes, name, [], out, [numpy_helper.from_array(value, "k")])

    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(a)),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(
            "If", ["cond"], ["y"], then_branch=branch("p", b), else_branch=branch("q", c)
        ),
    ]
    model = model_of(
        nodes,
        [tensor("x", 16, 16), tensor("cond", elem=TensorProto.BOOL)],
        [tensor("y", 16, 16)],
    )
    data = model.SerializeToString()
    module = import_model(data)
    module.verify()
    assert parse_module(print_module(module)).is_structurally_equivalent(module)
    assert len(weights_of(module)) == 3
    exported = export_model(module, ".", buffers={"model.onnx": data})
    onnx.checker.check_model(exported)
    x = rng.standard_normal((16, 16)).astype(np.float32)
    run = onnx.reference.ReferenceEvaluator(exported).run
    for cond, last in ((True, b), (False, c)):
        (found,) = run(None, {"x": x, "cond": np.array(cond)})
        assert np.allclose(found, x @ a @ last, atol=1e-4)


def test_loops_carry_types_and_stack_results() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "one"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Mul", ["s2", "s2"], ["row"]),
        ],
        "body",
        [
            tensor("i", elem=TensorProto.INT64),
            tensor("go", elem=TensorProto.BOOL),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, None),
        ],
        [
            tensor("go2", elem=TensorProto.BOOL),
            helper.make_tensor_value_info("s2", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, None),
        ],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last", "rows"], body=body)]
    model = model_of(
        nodes,
        [tensor("x", 3)],
        [tensor("last", 3), tensor("rows", None, 3)],
        [
            numpy_helper.from_array(np.array(5), "count"),
            numpy_helper.from_array(np.array([1], np.float32), "one"),
        ],
    )
    module = import_model(model.SerializeToString())
    module.verify()
    function = main_function(module)
    assert [t.get_shape() for t in function.function_type.outputs.data] == [(3,), (5, 3)]  # pyright: ignore[reportAttributeAccessIssue]
    assert parse_module(print_module(module)).is_structurally_equivalent(module)


def test_functions_are_inlined() -> None:
    function = helper.make_function(
        "local",
        "Swish",
        ["v"],
        ["r"],
        [helper.make_node("Sigmoid", ["v"], ["g"]), helper.make_node("Mul", ["v", "g"], ["r"])],
        [helper.make_opsetid("", 21)],
    )
    model = model_of(
        [helper.make_node("Swish", ["x"], ["y"], "act", domain="local")],
        [tensor("x", 4)],
        [tensor("y", 4)],
        functions=[function],
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert ops_of(import_model(model.SerializeToString())) == ["Sigmoid", "Mul"]


def test_foreign_operators_stay_as_they_are() -> None:
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["n"], "norm", epsilon=1e-5),
        helper.make_node(
            "SkipSimplifiedLayerNormalization",
            ["n", "x", "s"],
            ["m", "", "", "sum"],
            "skip",
            domain="com.microsoft",
        ),
        helper.make_node("Mystery", ["m", "", "sum"], ["y"], "?", domain="my.own", kind="a"),
    ]
    model = model_of(nodes, [tensor("x", "b", 8), tensor("s", 8)], [tensor("y", "b", 3)])
    module = import_model(model.SerializeToString(), dims={"b": 2})
    module.verify()
    customs = [op for op in module.walk() if isinstance(op, CustomOp)]
    assert [op.domain.data for op in customs] == ["", "com.microsoft", "my.own"]
    assert [v is None for v in customs[1].onnx_results] == [False, True, True, False]
    assert [v is None for v in customs[2].onnx_operands] == [False, True, False]
    assert customs[2].outputs[0].type.get_shape() == (2, 3)  # pyright: ignore[reportAttributeAccessIssue]
    assert customs[0].attr("epsilon") == pytest.approx(1e-5)
    assert parse_module(print_module(module)).is_structurally_equivalent(module)
    exported = export_model(module, ".").graph.node
    assert [n.op_type for n in exported] == [n.op_type for n in nodes]
    assert list(exported[2].input)[1] == ""
    del model.graph.output[:]
    model.graph.output.append(tensor("y", "c"))
    model.graph.output[0].type.ClearField("tensor_type")
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    import_model(model.SerializeToString(), dims={"b": 2}).verify()  # a result of unknown rank


def test_old_opsets_and_initializers_as_inputs() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["u"], "expand", axes=[0]),
        helper.make_node("Dropout", ["u"], ["d"], "drop", ratio=0.5),
        helper.make_node("ReduceSum", ["d"], ["r"], "sum", axes=[1], keepdims=0),
        helper.make_node("Add", ["r", "w"], ["y"], "add"),
    ]
    model = model_of(
        nodes,
        [tensor("x", 4, 8), tensor("w", 8)],
        [tensor("y", 1, 8)],
        [numpy_helper.from_array(np.ones(8, np.float32), "w")],
        opset=9,
    )
    module = import_model(model.SerializeToString())
    assert ops_of(module) == ["Unsqueeze", "ReduceSum", "Add"]
    names = [node_name(op) for op in module.walk() if isinstance(op, OnnxOp)]
    assert names == ["expand", "sum", "add"]
    assert len(main_function(module).args) == 1


def test_inputs_and_outputs_without_a_declared_shape() -> None:
    model = relu(opset=13)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.ClearField("shape")
    data = model.SerializeToString()
    fails(data, "no declared rank")
    module = import_model(data, input_shapes={"x": (2, 3)})
    assert str(main_function(module).function_type.outputs.data[0]) == "tensor<2x3xf32>"


def test_data_dependent_shapes_import() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("StringNormalizer", ["words"], ["y"], case_change_action="LOWER"),
    ]
    model = model_of(
        nodes,
        [tensor("x", 4, 4), tensor("words", 3, elem=TensorProto.STRING)],
        [tensor("i", 2, None, elem=TensorProto.INT64), tensor("y", None, elem=TensorProto.STRING)],
    )
    module = import_model(model.SerializeToString())
    module.verify()
    outputs = main_function(module).function_type.outputs.data
    assert str(outputs[0]) == "tensor<2x?xi64>"
    assert "!onnx.string" in str(outputs[1])
    assert parse_module(print_module(module)).is_structurally_equivalent(module)


def test_outputs_that_are_inputs_constants_or_twice_the_same() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Neg", ["x"], ["n"])]
    nodes.append(helper.make_node("Identity", ["n"], ["n2"]))
    model = model_of(
        nodes,
        [tensor("x", 2)],
        [tensor("same", 2), tensor("n", 2), tensor("n2", 2), tensor("c", 2)],
        [numpy_helper.from_array(np.array([1, 2], np.float32), "c")],
    )
    module = import_model(model.SerializeToString())
    assert ops_of(module) == ["Neg"]
    exported = export_model(module, ".")
    onnx.checker.check_model(exported)
    x = np.array([3, -4], np.float32)
    found = onnx.reference.ReferenceEvaluator(exported).run(None, {"x": x})
    assert [np.asarray(f).tolist() for f in found] == [[3, -4], [-3, 4], [-3, 4], [1, 2]]


def test_large_fills_take_no_memory() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"]),
        helper.make_node("Expand", ["one", "shape"], ["v"]),
        helper.make_node("Add", ["x", "w"], ["y"]),
        helper.make_node("Add", ["y", "v"], ["z"]),
    ]
    model = model_of(
        nodes,
        [tensor("x", 1)],
        [tensor("z", 100000, 100000)],
        [
            numpy_helper.from_array(np.array([100000, 100000]), "shape"),
            numpy_helper.from_array(np.array([1], np.float32), "one"),
        ],
    )
    module = import_model(model.SerializeToString())
    assert ops_of(module) == ["Add", "Add"]
    assert len(print_module(module)) < 4000


# --- weights --------------------------------------------------------------------------------------


def test_recipes_agree_with_their_inferred_types() -> None:
    rng = np.random.default_rng(2)
    parts = [rng.standard_normal((4, 6)).astype(np.float32) for _ in range(6)]
    for recipe in (
        ("transpose 1 0", "concat 1 3", "stack"),
        ("stack 2", "concat 0", "reshape 4 36", "slice 1 3 30 3"),
        ("cast f16", "stack", "mul 0.125", "add 1.0"),
        ("merge 0",),
    ):
        result = apply_recipe(parts, recipe)
        dtype, shape = infer_recipe([("f32", (4, 6))] * 6, recipe)
        assert result.shape == shape
        assert result.dtype == (np.float16 if dtype == "f16" else np.float32)
    merged = apply_recipe(parts, ("concat 1 3", "stack"))
    assert np.array_equal(merged[1], np.concatenate(parts[3:], axis=1))
    for bad in ("reshape 5", "concat 2", "stack 4", "slice 3 0 1 1", "twist", "cast f7"):
        with pytest.raises(ModelError, match="does not apply"):
            infer_recipe([("f32", (4, 6))] * 6, (bad,))


def test_packed_weights_unpack(tmp_path: Path) -> None:
    values = [-8, -1, 0, 7, 3]
    stored = helper.make_tensor("w", TensorProto.INT4, [5], values)
    raw = bytes([0xF8, 0x70, 0x03])
    (tmp_path / "w.bin").write_bytes(raw)
    part = WeightPart("w.bin", 0, 3, "", "i4", (5,), "w")
    loaded = load_weight(WeightRef((part,)), tmp_path)
    assert loaded.astype(int).tolist() == values
    assert np.array_equal(loaded.astype(int), numpy_helper.to_array(stored).astype(int))


def test_weights_are_mapped_not_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(1 << 16))
    part = WeightPart("w.bin", 256, 1024, "", "f32", (16, 16), "w")
    loaded = load_weight(WeightRef((part,)), tmp_path)
    base = loaded
    while not isinstance(base, np.memmap):
        assert base.base is not None
        base = base.base
    with pytest.raises(ModelError, match="takes 2048"):
        load_weight(WeightRef((WeightPart("w.bin", 0, 1024, "", "f32", (512,), "w"),)), tmp_path)


def test_random_weights_depend_on_seed_and_name_only() -> None:
    part = WeightPart("none.bin", 0, 4 * 256 * 512, "", "f32", (256, 512), "layer.0.w")
    ref = WeightRef((part,))
    first = random_weight(ref, 7)
    assert np.array_equal(first, random_weight(ref, 7))
    assert not np.array_equal(first, random_weight(ref, 8))
    assert first.std() == pytest.approx(256**-0.5, rel=0.05)
    swapped = random_weight(ref.then("transpose 1 0"), 7)
    assert swapped.shape == (512, 256)
    assert swapped.std() == pytest.approx(512**-0.5, rel=0.05)
    norm = WeightPart("none.bin", 0, 256, "", "f16", (128,), "norm.weight")
    assert random_weight(WeightRef((norm,)), 0).mean() == pytest.approx(1, abs=0.1)


def test_offsets_come_from_the_wire_format() -> None:
    array = np.arange(300, dtype=np.float32)
    # The same bytes earlier in the file must not be taken for the tensor's.
    model = relu(doc_string=array.tobytes().decode("latin-1"))
    model.graph.initializer.append(numpy_helper.from_array(array[:10], "first"))
    model.graph.initializer.append(numpy_helper.from_array(array, "second"))
    data = model.SerializeToString()
    path: pb.Path = ((pb.MODEL_GRAPH, 0), (pb.GRAPH_INITIALIZER, 1))
    place = pb.find_tensor_data(data, [path])[path]
    found = np.frombuffer(data, np.float32, 300, place.offset)
    assert np.array_equal(found, array)
    with pytest.raises(ModelError, match="malformed"):
        pb.find_tensor_data(data[: place.offset + 100], [path])


def test_module_records_where_it_came_from() -> None:
    module = import_model(relu().SerializeToString(), name="dir/a.onnx", dims={"n": 1, "x.1": 1})
    assert str(module.attributes["onnx.model"]) == '"a.onnx"'
    assert str(module.attributes["onnx.opset"]) == "23 : i64"
    function = main_function(module)
    assert isinstance(function, FuncOp)
    assert function.arg_attrs is not None
    assert '"onnx.dims"' in str(function.arg_attrs) or "onnx.dims" in str(function.arg_attrs)
