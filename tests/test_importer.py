"""The importer: real models of every kind, bad input, and back to ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from importing import (
    MODELS,
    TINY,
    arrays_of,
    fails,
    ids,
    model_of,
    needs_models,
    ops_of,
    parse_module,
    print_module,
    relu,
    tensor,
)
from onnx import helper, numpy_helper
from xdsl.dialects.builtin import TensorType

from elk_ir.dialects.location import node_name
from elk_ir.dialects.onnx import InitializerOp, OnnxOp
from elk_ir.dialects.weight import WeightAttr
from elk_ir.errors import ModelError
from elk_ir.frontend.dims import bind_shapes, evaluate
from elk_ir.frontend.export import export_model, main_function
from elk_ir.frontend.importer import import_model
from elk_ir.frontend.weights import (
    WeightRef,
    load_weight,
)

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
    module = import_model(FULL / f"{name}.onnx", dims=dims)
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
