"""Nodes that ONNX's checker accepts and whose attributes, graphs or constants make no sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from importing import fails
from onnx import TensorProto, helper, numpy_helper

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes, split_at
from elk_ir.errors import ChipError, ElkError, ModelError
from elk_ir.explore.sweep import load_sweep
from elk_ir.explore.task import tasks_of

OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]


def value(name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    arrays = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    return helper.make_graph(list(nodes), "g", list(inputs), list(outputs), arrays)


def refused(model: onnx.GraphProto, message: str) -> None:
    whole = helper.make_model(model, opset_imports=OPSETS, ir_version=10)
    fails(whole.SerializeToString(), message)


def body(takes: int, yields: int) -> onnx.GraphProto:
    nodes = [helper.make_node("Relu", ["i0"], [f"o{k}"]) for k in range(yields)]
    return graph(
        nodes, [value(f"i{k}") for k in range(takes)], [value(f"o{k}") for k in range(yields)]
    )


@pytest.mark.parametrize(
    ("takes", "yields", "message"),
    [
        (2, 1, "its body takes 2 values, 1 are given"),
        (1, 2, "its body yields 2 values, 1 are taken"),
    ],
)
def test_scan_that_does_not_fit_its_body(takes: int, yields: int, message: str) -> None:
    node = helper.make_node(
        "Scan", ["x"], ["y"], "scan", num_scan_inputs=1, body=body(takes, yields)
    )
    refused(graph([node], [value("x", 4)], [value("y", 4)]), message)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_scan_inputs": 2}, "num_scan_inputs = 2 of 1"),
        ({"num_scan_inputs": 1, "scan_input_axes": [0, 0]}, "its scan_input_axes are not 1"),
        (
            {"num_scan_inputs": 1, "scan_output_directions": [0, 0]},
            "its scan_output_directions are not 1",
        ),
    ],
)
def test_attributes_of_scan(attributes: Mapping[str, object], message: str) -> None:
    node = helper.make_node("Scan", ["x"], ["y"], "scan", body=body(1, 1), **attributes)
    refused(graph([node], [value("x", 4)], [value("y", 4)]), message)


def test_scan_over_a_number() -> None:
    node = helper.make_node("Scan", ["x"], ["y"], "scan", num_scan_inputs=1, body=body(1, 1))
    refused(graph([node], [value("x")], [value("y", 4)]), "it scans a value without axes")


def test_branches_of_different_numbers() -> None:
    branches = {"then_branch": 2, "else_branch": 1}
    graphs = {
        name: graph(
            [helper.make_node("Relu", ["x"], [f"{name}{k}"]) for k in range(n)],
            [],
            [value(f"{name}{k}", 4) for k in range(n)],
        )
        for name, n in branches.items()
    }
    node = helper.make_node("If", ["c"], ["y"], "if", **graphs)
    inputs = [value("c", dtype=TensorProto.BOOL), value("x", 4)]
    message = "its then_branch yields 2 values, 1 are taken"
    refused(graph([node], inputs, [value("y", 4)]), message)


def test_constant_index_out_of_range() -> None:
    """Of constants the elements were fetched at once: an IndexError."""
    weights = {"i": np.asarray(7), "t": np.ones(4, np.float32)}
    nodes = [helper.make_node("Gather", ["t", "i"], ["g"]), helper.make_node("Add", "xg", ["y"])]
    model = helper.make_model(
        graph(nodes, [value("x", 4)], [value("y", 4)], weights), opset_imports=OPSETS
    )
    chip = load_chip("test-16")
    module, source = import_source(model, chip)
    front, _ = split_at(pipeline(chip, policy="basic", source="onnx"), "convert-te-to-icca")
    with pytest.raises(ElkError, match="index 7 of 4 elements"):
        run_passes(context(), module, front, model=source.name)


@pytest.mark.parametrize("rows", [7, [0, 7]])
def test_constant_row_of_a_table_that_is_not_there(rows: object) -> None:
    """A position behind the table of positions (OPT with more than 2,048 tokens): how long it would
    take can be asked, and the run is an error."""
    nodes = [helper.make_node("Gather", ["t", "i"], ["g"]), helper.make_node("Add", "xg", ["y"])]
    weights = {"i": np.asarray(rows)}
    model = helper.make_model(
        graph(nodes, [value("x", 2, 4), value("t", 4, 4)], [value("y", 2, 4)], weights),
        opset_imports=OPSETS,
        ir_version=10,
    )
    program = elk_ir.compile(model, chip="test-16", policy="basic")
    assert program.report["time_s"] > 0
    with pytest.raises(ElkError, match=r"row 7, outside of 0\.\.3"):
        program.run({"x": np.ones((2, 4), np.float32), "t": np.ones((4, 4), np.float32)})


def test_version_that_cannot_be_lifted() -> None:
    """ONNX's converter names the line of its source and the assertion."""
    node = helper.make_node("Add", ["x", "z"], ["y"], "add", broadcast=1, axis=5)
    model = helper.make_model(
        graph([node], [value("x", 2, 3), value("z", 3)], [value("y", 2, 3)]),
        opset_imports=[helper.make_opsetid("", 6)],
        ir_version=10,
    )
    message = "opset 6 cannot be lifted to 23: Dimension 0 of input 2 does not match dimension 0"
    fails(model.SerializeToString(), message)


def test_attention_without_heads() -> None:
    node = helper.make_node("Attention", ["x", "w"], ["y"], "att", domain="com.microsoft")
    inputs, weights = [value("x", 1, 2, 4)], {"w": np.ones((4, 12), np.float32)}
    message = "num_heads = None: an attention has one or more"
    refused(graph([node], inputs, [value("y", 1, 2, 4)], weights), message)


def test_map_of_unknown_keys() -> None:
    model = graph([], [value("x", 4)], [value("x", 4)])
    found = model.input.add()
    found.name = "m"
    found.type.map_type.key_type = 99
    found.type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    refused(model, "key type 99 of a map is unknown")


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file can have this name"):
        elk_ir.compile("a\0.onnx", chip="test-16")
    with pytest.raises(ElkError, match="no file can have this name"):
        elk_ir.load("a\0")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'name = "s"\n[base]\nmodel = "m\\u0000.onnx"\nchip = "test-16"\n'
        '[axes]\npolicy = ["basic"]\n'
    )
    with pytest.raises(ElkError, match="no file can have this name"):
        tasks_of(load_sweep(sweep))
    chip = tmp_path / "chip.toml"
    chip.write_text('extends = "test-16"\ncost_model = "f\\u0000.txt"\n')
    with pytest.raises(ChipError, match="no file can have this name"):
        load_chip(str(chip))
