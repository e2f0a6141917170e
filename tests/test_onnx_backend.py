"""The ONNX backend, control flow, and ONNX's own node tests on the virtual machine."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from elk_ir import backend
from elk_ir.conformance import (
    PASSES,
    Outcome,
    Result,
    difference,
    is_core,
    model_of,
    node_cases,
    run_case,
)
from elk_ir.errors import ElkError, UsageError
from elk_ir.frontend.specialise import candidates, needed_values, specialise
from elk_ir.operator_page import operator_page

DEVICE = "ELK:test-16"

# One quick case a kind, under the module of onnx.backend.test.case.node that makes it.
SAMPLE = {
    "add": ["add_bcast"],
    "argmax": ["argmax_default_axis_random_select_last_index"],
    "cast": ["cast_FLOAT_to_FLOAT8E5M2", "cast_FLOAT_to_UINT4"],
    "convinteger": ["convinteger_with_padding"],
    "dequantizelinear": ["dequantizelinear_axis"],
    "gatherelements": ["gather_elements_0"],
    "gru": ["gru_seq_length"],
    "if_": ["if"],
    "logsoftmax": ["logsoftmax_axis_1"],
    "loop": ["loop11"],
    "matmul": ["matmul_2d"],
    "qlinearmatmul": ["qlinearmatmul_2D_int8_float32"],
    "rangeop": ["range_int32_type_negative_delta"],
    "reducesum": ["reduce_sum_keepdims_example"],
    "reshape": ["reshape_zero_dim"],
    "rmsnormalization": ["rms_normalization_2d_axis1"],
    "scan": ["scan9_sum"],
    "scatternd": ["scatternd_add"],
    "split": ["split_zero_size_splits_opset18"],
    "topk": ["top_k"],
    "trilu": ["triu_zero"],
    "where": ["where_example"],
}
SPECIALISED = {
    "loop11", "range_int32_type_negative_delta", "reduce_sum_keepdims_example", "reshape_zero_dim",
    "split_zero_size_splits_opset18", "top_k",
}  # fmt: skip


def sample_case(module: str, name: str) -> Any:
    """One of ONNX's node tests, without making all of them (which takes long)."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        import_module(f"onnx.backend.test.case.node.{module}")
    return next(c for c in node._NodeTestCases if c.name == f"test_{name}")


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, ns in SAMPLE.items() for n in ns])
def test_node_case(module: str, name: str) -> None:
    """A sample of ONNX's node tests, compiled for 16 cores and run on their machine."""
    result = run_case(sample_case(module, name))
    assert result.outcome in PASSES, result.detail
    assert (result.outcome is Outcome.SPECIALISED) == (name in SPECIALISED), result.detail


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_every_core_case(part: int) -> None:
    """At least 690 of the 724 core cases pass, none is wrong, crashes or hangs: here a sixteenth
    of them, of which no more than five do not pass."""
    core = [c for c in node_cases() if is_core(model_of(c))]
    results = [run_case(c) for c in core[part::16]]
    defects = [r for r in results if r.outcome in (Outcome.WRONG, Outcome.CRASH, Outcome.TIMEOUT)]
    assert not defects
    assert sum(r.outcome not in PASSES for r in results) <= 2


def node_model(
    op: str,
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, Any],
    kinds: dict[str, int] | None = None,
    **attributes: Any,
) -> Any:
    """A model of one node with float inputs, but for those in `kinds`."""
    kinds = kinds or {}
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), list(outputs), name="the node", **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kinds.get(n, 1), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, 1, s) for n, s in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_run_model_takes_lists_and_names() -> None:
    """Outputs come in order and by name; programs are reused while shapes stay."""
    model = node_model("Sub", {"x": (2, 3), "y": (3,)}, {"z": (2, 3)})
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    prepared = backend.prepare(model, DEVICE, policy="basic")
    np.testing.assert_array_equal(prepared.run([x, y])[0], x - y)
    first = prepared.program
    np.testing.assert_array_equal(prepared.run({"y": y, "x": x})["z"], x - y)  # pyright: ignore
    assert prepared.program is first
    assert prepared.specialised == ()


def test_run_node() -> None:
    """A node without a model around it."""
    node = helper.make_node("Mul", ["a", "b"], ["c"])
    a = np.array([1, 2, 3], np.float32)
    (result,) = backend.run_node(node, [a, a], DEVICE, policy="basic")
    np.testing.assert_array_equal(result, a * a)


def test_values_that_determine_shapes() -> None:
    """Only those inputs become constants; other values of them are another program."""
    model = node_model("Reshape", {"x": (2, 6), "shape": (2,)}, {"y": None}, {"shape": 7})
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    prepared = backend.prepare(model, DEVICE, policy="basic")
    for shape in ([3, 4], [12, 1], [3, 4]):
        (y,) = prepared.run([x, np.array(shape)])
        np.testing.assert_array_equal(y, x.reshape(shape))
        assert prepared.specialised == ("shape",)
    assert len(prepared._programs) == 2


def test_devices() -> None:
    """Chips that exist are devices."""
    assert backend.supports_device("CPU")
    assert backend.supports_device("ELK:test-16")
    assert not backend.supports_device("ELK:no-such-chip")
    assert not backend.supports_device("CUDA")
    with pytest.raises(UsageError, match="unknown device 'CUDA"):
        backend.prepare(node_model("Abs", {"x": (1,)}, {"y": (1,)}), "CUDA")


def test_clean_errors() -> None:
    """Too many inputs, inputs that are no tensors, and nodes that can't be lowered."""
    model = node_model("NonZero", {"x": (2, 3)}, {"y": None})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert not backend.is_compatible(model)
    prepared = backend.prepare(model, DEVICE, host=False)
    with pytest.raises(ElkError, match="static shape"):
        prepared.run([np.ones((2, 3), np.float32)])
    with pytest.raises(UsageError, match="2 inputs"):
        prepared.run([np.ones((2, 3), np.float32)] * 2)
    with pytest.raises(ElkError, match="is no tensor"):
        prepared.run([[np.ones(3)]])


def test_needed_values_are_as_few_as_possible() -> None:
    """Single inputs are tried before pairs; what never helps is the first error."""
    values = {"a": np.zeros(1), "b": np.zeros(2, np.int64), "big": np.zeros((2, 2), np.int64)}
    model = node_model("Sum", {"a": (1,), "b": (2,), "big": (2, 2)}, {"y": None})
    assert candidates(values) == ["b", "a"]
    tried: list[int] = []

    def wants(names: set[str]):
        def compiles(candidate: Any) -> None:
            tried.append(len(candidate.graph.initializer))
            if not names <= {t.name for t in candidate.graph.initializer}:
                raise ElkError(f"attempt {len(tried)}")

        return compiles

    assert needed_values(model, values, wants(set())) == {}
    assert list(needed_values(model, values, wants({"a"}))) == ["a"]
    assert sorted(needed_values(model, values, wants({"a", "b"}))) == ["a", "b"]
    tried.clear()
    with pytest.raises(ElkError, match="attempt 1"):
        needed_values(model, values, wants({"big"}))
    assert [i.name for i in specialise(model, {"a": values["a"]}).graph.input] == ["b", "big"]


def body(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], name: str = "b") -> Any:
    """A subgraph; types are (element type, shape)."""
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, *t) for n, t in outputs.items()],
    )


def control_model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **fixed: Any):
    """A model around control flow, with constants `fixed`."""
    graph = body(nodes, inputs, outputs)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in fixed.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


F3, BOOL, INT = (1, (3,)), (9, ()), (7, ())
X = np.array([1.5, -2.0, 0.5], np.float32)


def reference(model: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feed)]


def test_if_on_a_computed_condition_is_a_selection() -> None:
    """Both branches are computed; the condition stays an input."""
    node = helper.make_node("If", ["c"], ["y"], name="the node")
    for name, op in (("then_branch", "Neg"), ("else_branch", "Exp")):
        branch = body([helper.make_node(op, ["x"], ["r"])], {}, {"r": F3}, name)
        node.attribute.append(helper.make_attribute(name, branch))
    model = control_model([node], {"c": BOOL, "x": F3}, {"y": F3})
    prepared = backend.prepare(model, DEVICE, policy="basic")
    for c in (True, False):
        feed = {"c": np.array(c), "x": X}
        np.testing.assert_allclose(prepared.run(feed)[0], reference(model, feed)[0], rtol=1e-6)
        assert prepared.specialised == ()


def loop_body(limit: float) -> Any:
    """v doubles while its sum is below `limit`."""
    nodes = [
        helper.make_node("Add", ["v", "v"], ["w"]),
        helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
        helper.make_node("Less", ["s", "limit"], ["again"]),
    ]
    graph = body(nodes, {"i": INT, "on": BOOL, "v": F3}, {"again": BOOL, "w": F3})
    graph.initializer.append(numpy_helper.from_array(np.array(limit, np.float32), "limit"))
    return graph


def test_loop_with_a_computed_end_is_selected() -> None:
    """A bounded loop that may end early, at once, or at its bound."""
    node = helper.make_node("Loop", ["n", "on", "x"], ["y"], name="the node", body=loop_body(100))
    model = control_model([node], {"x": F3}, {"y": F3}, n=np.int64(4), on=np.bool_(True))
    prepared = backend.prepare(model, DEVICE, policy="basic")
    for scale in (5, 30, 0.001):
        x = np.abs(X) * np.float32(scale)
        (y,) = prepared.run([x])
        np.testing.assert_allclose(y, reference(model, {"x": x})[0], rtol=1e-6)


def test_loop_without_a_bound_is_refused() -> None:
    """The message names the node and says why."""
    node = helper.make_node("Loop", ["", "on", "x"], ["y"], name="the node", body=loop_body(100))
    model = control_model([node], {"x": F3}, {"y": F3}, on=np.bool_(True))
    with pytest.raises(ElkError, match="trip count depends on data") as raised:
        backend.check_lowers(model, {})
    assert "the node" in str(raised.value)


def test_scan_backwards() -> None:
    """Directions and axes of a Scan."""
    inner = body(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        {"s": F3, "e": F3},
        {"t": F3, "o": F3},
    )
    node = helper.make_node(
        "Scan", ["x", "xs"], ["y", "ys"], name="the node", body=inner, num_scan_inputs=1,
        scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
        scan_output_directions=[1],
    )  # fmt: skip
    model = control_model([node], {"x": F3, "xs": (1, (3, 4))}, {"y": F3, "ys": (1, (3, 4))})
    xs = np.arange(12, dtype=np.float32).reshape(3, 4)
    y, ys = backend.run_model(model, [X, xs], DEVICE, policy="basic")
    np.testing.assert_allclose(y, X + xs.sum(1), rtol=1e-6)
    np.testing.assert_allclose(ys, X[:, None] + np.cumsum(xs[:, ::-1], 1)[:, ::-1], rtol=1e-6)


def test_difference() -> None:
    """Shapes, types, numbers and what is not finite."""
    one = np.array([1.0, np.nan, np.inf], np.float32)
    assert difference([one], [one.copy()], 1e-3, 1e-7) == ""
    assert "1 of 3" in difference([one], [np.array([1.1, np.nan, np.inf], np.float32)], 1e-3, 0)
    assert "2 outputs" in difference([one, one], [one], 1e-3, 1e-7)
    assert "float32[3]" in difference([one], [one.astype(np.float64)], 1e-3, 1e-7)
    assert "2 instead of 3" in difference([np.array(2)], [np.array(3)], 1e-3, 10)


def test_operator_page() -> None:
    """Counts, reasons and what they are grouped by."""
    detail = "model.onnx: 1 node can't be lowered to te: Det:y: Det: no lowering for this operator"
    page = operator_page(
        [
            Result("test_a", "Add", Outcome.PASS, core=True),
            Result("test_b", "Add", Outcome.SPECIALISED, core=True, large=True),
            Result("test_c", "Det", Outcome.UNSUPPORTED, f"{detail} (in pass convert-onnx-to-te)"),
            Result("test_d", "Unique", Outcome.HOST, "Unique: the shape of its result"),
        ]
    )
    assert "| core | 2 | 1 | 1 |  |  |" in page
    assert "| all | 4 | 1 | 1 | 1 | 1 |" in page
    assert "| **Add** | 2 | 1 | 1 |  |  |" in page
    on_host, refused = page.split("## What is not supported")
    assert "| Unique | 1 | Unique: the shape of its result |" in on_host
    assert "| Det | 1 | no lowering for this operator |" in refused
    assert "- `test_b`" in page
    assert (Path(__file__).parent.parent / "docs" / "operators.md").is_file()
