"""The importer: real models of every kind, bad input, weights on disk, and back to ONNX."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp, TensorType
from xdsl.dialects.func import Func, FuncOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from elk_ir.dialects.location import node_name
from elk_ir.dialects.onnx import ONNX, CustomOp, InitializerOp, OnnxOp
from elk_ir.dialects.te import TE
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ModelError
from elk_ir.frontend import protobuf_offsets as pb
from elk_ir.frontend.dims import bind_shapes, evaluate
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

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
TINY = sorted((MODELS / "tiny").glob("*.onnx"))
needs_models = pytest.mark.skipif(not TINY, reason="needs the models in ../shared")


def ids(path: Path) -> str:
    return path.stem


def arrays_of(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(inputs, expected outputs) beside a model; the first file of a model with several."""
    exact = path.with_suffix(".npz")
    file = exact if exact.exists() else min(path.parent.glob(f"{path.stem}_b*.npz"))
    with np.load(file) as data:
        inputs = {k[3:]: data[k] for k in data.files if k.startswith("in/")}
        outputs = {k[4:]: data[k] for k in data.files if k.startswith("out/")}
    return inputs, outputs


def print_module(module: ModuleOp) -> str:
    out = io.StringIO()
    Printer(out, print_debuginfo=True).print_op(module)
    return out.getvalue()


def parse_module(text: str) -> ModuleOp:
    ctx = Context()
    for dialect in (Builtin, Func, TE, ONNX):
        ctx.load_dialect(dialect)
    return Parser(ctx, text).parse_module()


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[TensorProto] | None = None,
    opset: int = 21,
    **more: object,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more
    )


def tensor(name: str, *shape: int | str | None, elem: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem, list(shape))


def ops_of(module: ModuleOp) -> list[str]:
    return [
        op.op_type.data if isinstance(op, CustomOp) else op.SIGNATURE.op_type
        for op in module.walk()
        if isinstance(op, OnnxOp | CustomOp)
    ]


# --- real models ----------------------------------------------------------------------------------


@needs_models
@pytest.mark.parametrize("path", TINY, ids=ids)
def test_tiny_models_import_with_static_types(path: Path) -> None:
    inputs, _ = arrays_of(path)
    module = import_model(path, input_shapes={k: v.shape for k, v in inputs.items()})
    module.verify()
    for op in module.walk():
        for result in op.results:
            assert isinstance(result.type, TensorType), node_name(op)
            assert result.type.has_static_shape(), node_name(op)
    again = parse_module(print_module(module))
    assert again.is_structurally_equivalent(module)
    assert print_module(again) == print_module(module)


@needs_models
@pytest.mark.parametrize(
    "path",
    [
        MODELS / "tiny" / f"{name}.onnx"
        for name in (
            "bert_sdpa_dyn_legacy",
            "dit_tiny_dyn_dynamo",
            "gemma2_decode_dyn_dynamo",
            "gemma2_decode_static_dynamo_op23",
            "granite_decode_static_legacy",
            "llama2_decode_static_dynamo",
            "llama3gqa_decode_dyn_legacy",
            "llama3gqa_prefill_static_legacy",
            "mixtral5_batched_mm_decode_static_dynamo",
            "opt_decode_static_legacy",
            "q_resnet50_w8_static_legacy_qdq",
            "resnet50_w8_static_dynamo",
            "rnn_bilstm_gru_static_dynamo",
            "statickv_scatter_dynamo",
            "train_llama-tiny_L2_b2_s16_fp32",
            "vit_static_legacy",
            "yolo_tiny_static_legacy",
        )
    ],
    ids=ids,
)
def test_exported_again_it_computes_the_same(path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    inputs, expected = arrays_of(path)
    module = import_model(path, input_shapes={k: v.shape for k, v in inputs.items()})
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model = export_model(module, path.parent).SerializeToString()
    session = ort.InferenceSession(model, options)
    names = [i.name for i in session.get_inputs()]
    found = session.run(None, {name: inputs[name] for name in names})
    for output, value in zip(session.get_outputs(), found, strict=True):
        want = expected[output.name]
        assert value.dtype == want.dtype
        assert value.shape == want.shape
        scale = max(np.abs(want.astype(np.float64)).max(initial=0.0), 1e-30)
        assert np.abs(value.astype(np.float64) - want).max(initial=0.0) <= 1e-4 * scale


FULL = MODELS / "full"
BOUND = {"batch": 32, "past_sequence_length": 2047}


@needs_models
@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("dit-xl2_L28_b8_s1_kv2048_fp16", {}),
        ("gemma2-27b_L46_dyn_fp16_op23", BOUND),
        ("llama2-13b_L40_dyn_fp16_op20", BOUND),
        ("llama2-70b_L80_b32_s1_kv2048_fp16", {}),
        ("mixtral-8x7b_L32_dyn_fp16_op23", BOUND),
        ("opt-30b_L48_dyn_fp16_op20", BOUND),
        ("train_llama2-13b_L2_b2_s2048_fp16", {}),
    ],
)
def test_full_size_graphs_import_without_their_weights(name: str, dims: dict[str, int]) -> None:
    start = time.process_time()
    module = import_model(FULL / f"{name}.onnx", dims=dims)
    assert time.process_time() - start < 10
    module.verify()
    weights = 0
    for op in module.walk():
        for result in op.results:
            assert isinstance(result.type, TensorType)
            assert result.type.has_static_shape(), node_name(op)
        if isinstance(op, InitializerOp) and isinstance(op.value, WeightAttr):
            weights += 1
    assert weights or name.startswith("train")


@needs_models
def test_folding_leaves_about_70_operations_a_layer() -> None:
    module = import_model(FULL / "llama2-70b_L80_b32_s1_kv2048_fp16.onnx")
    kinds = ops_of(module)
    assert len(kinds) < 80 * 72
    assert not {"Shape", "ConstantOfShape", "Range", "Identity", "Constant"} & set(kinds)


@needs_models
def test_tied_and_transposed_weights_stay_references() -> None:
    module = import_model(MODELS / "tiny" / "llama2_decode_static_dynamo.onnx")
    refs = [
        op.value.to_ref()
        for op in module.walk()
        if isinstance(op, InitializerOp) and isinstance(op.value, WeightAttr)
    ]
    assert {p.file for r in refs for p in r.parts} == {"llama2_decode_static_dynamo.onnx"}
    original = {
        t.name: numpy_helper.to_array(t)
        for t in onnx.load(MODELS / "tiny" / "llama2_decode_static_dynamo.onnx").graph.initializer
    }
    for ref in refs:
        loaded = load_weight(WeightRef(ref.parts), MODELS / "tiny")
        assert np.array_equal(loaded, original[ref.name])


@needs_models
def test_names_of_nodes_inputs_and_outputs_survive() -> None:
    path = MODELS / "tiny" / "llama2_decode_static_dynamo.onnx"
    module = import_model(path)
    original = onnx.load(path, load_external_data=False)
    known = {n.name: i for i, n in enumerate(original.graph.node)}
    for op in module.walk():
        if isinstance(op, OnnxOp):
            place = f'loc("{node_name(op)}"("{path.name}":{known[node_name(op)]}:0))'
            assert str(op.location) == place
    exported = export_model(module, path.parent)
    assert [i.name for i in exported.graph.input] == [i.name for i in original.graph.input]
    assert [o.name for o in exported.graph.output] == [o.name for o in original.graph.output]


# --- bad input ------------------------------------------------------------------------------------


def fails(source: Path | str | bytes, match: str, **options: object) -> ModelError:
    with pytest.raises(ModelError, match=match) as caught:
        import_model(source, **options)  # pyright: ignore[reportArgumentType]
    assert "Traceback" not in str(caught.value)
    return caught.value


def test_files_that_are_no_models(tmp_path: Path) -> None:
    fails(tmp_path / "none.onnx", "no such file")
    fails(tmp_path, "cannot be read")
    fails(b"", "not an ONNX model")
    fails(b"#!/bin/sh\necho hello\n" * 40, "not an ONNX model")
    fails(b"PK\x03\x04" + bytes(range(256)) * 4, "not an ONNX model")


@needs_models
def test_truncated_files_are_refused_at_any_length() -> None:
    data = TINY[0].read_bytes()
    for length in (9, 100, 1000, len(data) // 2, len(data) - 1):
        fails(data[:length], "truncated|not an ONNX model|invalid model")
    assert "truncated" in str(fails(data[: len(data) // 2], "truncated"))


@needs_models
@pytest.mark.parametrize("path", sorted((MODELS / "invalid").glob("*.onnx")), ids=ids)
def test_invalid_models_are_refused_by_node(path: Path) -> None:
    error = fails(path, "Unrecognized attribute: axes for operator ReduceMean")
    assert "input_layernorm/ReduceMean" in str(error)


def relu(**more: object) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "the relu")]
    return model_of(nodes, [tensor("x", "n", None)], [tensor("y", None, None)], **more)  # pyright: ignore[reportArgumentType]


def test_too_new_versions_are_refused() -> None:
    fails(relu(opset=999).SerializeToString(), "opset 999, newer than the newest known")
    model = relu()
    model.ir_version = 99
    fails(model.SerializeToString(), "IR version 99")


def test_unbound_dimensions_name_node_tensor_dimension_and_flag() -> None:
    data = relu().SerializeToString()
    text = str(fails(data, "2 dimensions are not bound"))
    for word in ("'the relu'", "input 'x'", "--dim n=VALUE", "--dim x.1=VALUE"):
        assert word in text
    module = import_model(data, dims={"n": 3, "x.1": 5})
    assert main_function(module).function_type.outputs.data[0].get_shape() == (3, 5)  # pyright: ignore[reportAttributeAccessIssue]
    import_model(data, input_shapes={"x": (3, 5)}).verify()
    fails(data, "no dimension of this name", dims={"n": 3, "x.1": 5, "m": 1})
    fails(data, "has rank 2", input_shapes={"x": (3,)})


def test_dimensions_are_bound_by_name_shape_and_expression() -> None:
    inputs = {"a": ["n", "n + 1"], "b": ["s1", 4], "c": ["max(n, 2) * 3"]}
    shapes = bind_shapes(inputs, {"n": 2}, {"b": (7, 4)}, {})
    assert shapes == {"a": (2, 3), "b": (7, 4), "c": (6,)}
    with pytest.raises(ModelError, match=r"'n' is 2 by .* but 3"):
        bind_shapes({"a": ["n"], "b": ["n"]}, {}, {"a": (2,), "b": (3,)}, {})
    with pytest.raises(ModelError, match="dimension 1 = 4"):
        bind_shapes({"b": ["s", 4]}, {}, {"b": (1, 5)}, {})
    assert evaluate("__import__('os')", {}) is None
    assert evaluate("n // 0", {"n": 1}) is None


def test_mismatched_operands_name_the_node() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"], "product")]
    model = model_of(nodes, [tensor("a", 2, 3), tensor("b", 4, 5)], [tensor("y", 2, 5)])
    error = fails(model.SerializeToString(), "MatMul does not fit its operands")
    assert error.where == "product"
    assert "operand 0: f32[2, 3]" in str(error)


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
