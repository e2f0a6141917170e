"""Models that fuzzing found to be compiled wrongly, as small as they get: one test a defect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from elk_ir.chips import Chip, load_chip
from elk_ir.errors import CapacityError, ModelError
from elk_ir.tools.elk import main
from elk_ir.verify import verify_levels
from fuzz.builder import OPSET
from fuzz.reference import Reference
from fuzz.runner import Case, Tally, run_case

Arrays = Mapping[str, np.ndarray]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Mapping[str, str],
    weights: Arrays | None = None,
) -> onnx.ModelProto:
    """A model whose outputs are named with their element types; shapes are inferred."""
    graph = helper.make_graph(
        list(nodes),
        "found",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), None)
            for n, t in outputs.items()
        ],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def agrees(
    model: onnx.ModelProto,
    inputs: Arrays,
    *,
    chip: Chip | str = "test-16",
    policy: str | None = "basic",
    report: bool = False,
) -> None:
    """Every level computes what ONNX's evaluators do."""
    machine = load_chip(chip) if isinstance(chip, str) else chip
    case = Case(model, dict(inputs), machine, policy, Counter())
    reference = Reference.of(model, inputs)
    assert run_case(case, reference.problems, Tally(), report=report) == "agrees"


def normal(*shape: int) -> np.ndarray:
    """Standard normal float32, always the same."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_scalar_outputs_can_be_stored() -> None:
    """The icca level took a stored scalar for a number that cannot be changed."""
    inputs = {"x": np.array(1.5, np.float32)}
    agrees(model_of([helper.make_node("Abs", ["x"], ["y"])], inputs, {"y": "float32"}), inputs)


def test_scalars_on_a_chip_without_hbm() -> None:
    """The plan of an operator without dimensions has no largest ring."""
    inputs = {"x": np.array(1.5, np.float32)}
    model = model_of([helper.make_node("Exp", ["x"], ["y"])], inputs, {"y": "float32"})
    agrees(model, inputs, chip="ipu-mk2", policy=None)


def test_a_map_behind_a_norm_over_one_element() -> None:
    """A map without dimensions was fused into the norm, whose result then lacked the dimension
    that the norm runs over."""
    inputs = {"x": normal(1, 1), "g": normal(1), "z": normal(1, 1)}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["n"], epsilon=0.01),
        helper.make_node("Add", ["n", "z"], ["y"]),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


def test_concat_of_a_tensor_and_its_square() -> None:
    """The square has the tensor as its first factor, and was taken for the tensor."""
    inputs = {"x": normal(2, 1)}
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Concat", ["x", "s"], ["y"], axis=0),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


def test_resize_to_nothing() -> None:
    """Half of an extent of one is none."""
    inputs = {"x": normal(1, 1, 2, 1)}
    scales = {"s": np.array([1, 1, 1, 0.5], np.float32)}
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["y"], keepdims=0),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}, scales), inputs)


def test_softmax_over_a_repeated_tensor() -> None:
    """The repetition was folded into the softmax, which then counted one of the copies."""
    inputs = {"x": normal(2, 1)}
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["c"], axis=0),
        helper.make_node("Softmax", ["c"], ["y"], axis=0),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


def test_norm_over_a_moved_axis_of_one() -> None:
    """The view was folded into the norm, whose operand then lacked the dimension it runs over."""
    inputs = {"x": normal(1, 1, 2, 2), "g": normal(1)}
    nodes = [
        helper.make_node("SpaceToDepth", ["x"], ["s"], blocksize=2),
        helper.make_node("LayerNormalization", ["s", "g"], ["y"], axis=-1, epsilon=0.01),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


def test_the_smallest_of_one_int64() -> None:
    """The neutral value of a minimum, 2^63 - 1, is no float64: what was filled in was -2^63."""
    node = helper.make_node("ReduceMin", ["x", ""], ["y"], keepdims=0)
    agrees(model_of([node], {"x": np.asarray([4])}, {"y": "int64"}), {"x": np.asarray([4])})
    top = np.full(5, 2**63 - 1)
    agrees(model_of([node], {"x": top}, {"y": "int64"}), {"x": top})


ROWS = """
func.func @main(%a: tensor<4x4xf32> {onnx.name = "a"}, %i: tensor<5xi64> {onnx.name = "i"},
                %u: tensor<5x4xf32> {onnx.name = "u"}) -> (tensor<4x4xf32> {onnx.name = "r"}) {
  %r = te.scatter(%a, %i, %u) <(r = 4, d = 4, u = 5 reduce), [(r, d), (u), (u, d)] -> [(r, d)]>
    {rows = 0 : i64, update = #te<update set>}
    : (tensor<4x4xf32>, tensor<5xi64>, tensor<5x4xf32>) -> tensor<4x4xf32> loc("op")
  func.return %r : tensor<4x4xf32>
}
"""


def test_more_rows_are_written_than_a_state_has(tmp_path: Path) -> None:
    """Five rows into a state of four, one of them twice: the verifier refused the store."""
    (tmp_path / "rows.mlir").write_text(ROWS, encoding="utf-8")
    rows = {"a": normal(4, 4), "i": np.asarray([3, 0, 1, 3, 2]), "u": normal(5, 4)}
    np.savez(tmp_path / "rows.npz", **rows)
    command = ["verify", str(tmp_path / "rows.mlir"), "--chip", "test-16", "--policy", "basic"]
    assert main([*command, "--inputs", str(tmp_path / "rows.npz")]) == 0


def test_moved_result_of_a_softmax_over_one_element() -> None:
    """The transpose was folded into the softmax, whose result then lacked the dimension that it
    runs over."""
    inputs = {"x": normal(1, 1, 2)}
    nodes = [
        helper.make_node("LogSoftmax", ["x"], ["s"], axis=0),
        helper.make_node("Transpose", ["s"], ["y"]),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_window_larger_than_the_data(op: str) -> None:
    """No window has room, so the result is empty."""
    inputs = {"x": normal(1, 2, 1)}
    node = helper.make_node(op, ["x"], ["y"], kernel_shape=[3], strides=[2])
    agrees(model_of([node], inputs, {"y": "float32"}), inputs)


def test_window_that_only_shape_inference_has_room_for() -> None:
    """ONNX's shape inference rounds towards zero and gives one window, its evaluators give none:
    the result was one infinity."""
    inputs = {"x": normal(1, 2, 1)}
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3], strides=[2], ceil_mode=1)
    model = model_of([node], inputs, {"y": "float32"})
    with pytest.raises(ModelError, match="its window is larger than spatial axis 0"):
        verify_levels(model, chip="test-16", inputs=inputs)


def test_kernel_larger_than_the_data() -> None:
    """The same of a convolution: what was one infinity is refused, as onnxruntime does."""
    inputs = {"x": normal(1, 1, 2, 1), "w": normal(1, 1, 3, 1)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 1])
    model = model_of([node], inputs, {"y": "float32"})
    with pytest.raises(ModelError, match="its window is larger than spatial axis 0"):
        verify_levels(model, chip="test-16", inputs=inputs)


def test_constant_folding_of_an_empty_weight() -> None:
    """An empty tensor counted as one that is not known: a ValueError of te-canonicalize."""
    weights = {
        "w": np.zeros((3, 2, 0), np.float32),
        "scale": np.full(3, 0.5, np.float32),
        "zero": np.zeros(3, np.uint8),
    }
    inputs = {"x": normal(2)}
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["q"], axis=0),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32", "q": "uint8"}, weights), inputs)


def test_constant_operand_without_dimensions() -> None:
    """Worked out once, it had an axis too many: numpy gives what is contiguous at least one."""
    weights = {"x": np.full((1, 1, 1), 0.5, np.float32), "w": np.full((1, 1, 1), 0.25, np.float32)}
    inputs = {"r": normal(1, 1, 1)}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=1)
    agrees(model_of([node], inputs, {"y": "float32"}, weights), inputs)


def test_integers_that_are_spilled() -> None:
    """The tensor in HBM had integers of eight bytes, of which a preload took every half."""
    inputs = {"x": np.arange(60, dtype=np.int32).reshape(1, 3, 4, 5)}
    weights = {"pads": np.asarray([0, 0, 1, 1, 0, 0, 1, 1])}
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="edge")
    small = {"cores_per_chip": 2, "sram_per_core_bytes": 2048, "reserved_per_core_bytes": 1024}
    chip = load_chip("test-16").with_fields(small)
    agrees(model_of([node], inputs, {"y": "int32"}, weights), inputs, chip=chip)


def test_gather_from_a_number() -> None:
    """A table without axes has no rows to fetch: an IndexError of convert-te-to-icca."""
    inputs = {"x": normal(), "i": np.zeros(1, np.int64)}
    nodes = [
        helper.make_node("Reshape", ["x", "one"], ["r"]),
        helper.make_node("GatherElements", ["r", "i"], ["y"], axis=0),
    ]
    weights = {"one": np.ones(1, np.int64)}
    agrees(model_of(nodes, inputs, {"y": "float32"}, weights), inputs)


def test_plan_by_hand_of_what_enters_a_loop() -> None:
    """What the loop yields takes it over; it had one of its own, and the loop two layouts."""
    inputs = {"x": normal(2)}
    weights = {"a": normal(2), "b": normal(2) + 1}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "a"], ["h"], axis=-1),
        helper.make_node("LayerNormalization", ["h", "b"], ["n"], axis=-1),
        helper.make_node("Abs", ["n"], ["y"]),
    ]
    model = model_of(nodes, inputs, {"y": "float32"}, weights)
    by_hand = 'icca-set-plan{op="a" grid=""}'
    checked = verify_levels(model, chip="test-16", inputs=inputs, before_schedule=by_hand)
    assert checked.checks[-1].level == "ipu" and checked.culprit is None


def test_attention_over_one_key() -> None:
    """A view was folded into the attention, whose key then lacked the dimension it runs over."""
    inputs = {name: normal(1, 1, 4) for name in "qkv"}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=1, kv_num_heads=1)
    agrees(model_of([node], inputs, {"y": "float32"}), inputs)


def test_softmax_over_copies() -> None:
    """The copies became a view, folded into a softmax that then had more points than operands."""
    inputs = {"x": normal(2, 4)}
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["c"], axis=0),
        helper.make_node("Softmax", ["c"], ["y"], axis=-1),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}), inputs)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1)])
def test_norm_over_copies(shape: tuple[int, ...]) -> None:
    """An RMS norm written out was recognised though its operand is repeated."""
    inputs = {"x": normal(*shape)}
    weights = {"to": np.asarray([3, 4]), "axes": np.asarray([1])}
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["p"]),
        helper.make_node("ReduceMean", ["p", "axes"], ["m"]),
        helper.make_node("Sqrt", ["m"], ["s"]),
        helper.make_node("Div", ["c", "s"], ["y"]),
    ]
    agrees(model_of(nodes, inputs, {"y": "float32"}, weights), inputs)


def test_one_value_is_two_outputs() -> None:
    """Both stores had landed before the first wait, and the simulation knew of one of them."""
    inputs = {"x": normal(0), "z": normal(4)}
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"]),
        helper.make_node("Concat", ["a", "z"], ["c"], axis=0),
    ]
    outputs = {name: "float32" for name in "abc"}
    agrees(model_of(nodes, inputs, outputs), inputs, report=True)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "uint32"])
def test_time_of_a_product_that_no_matrix_unit_has(dtype: str) -> None:
    """The bound and the energy of its multiply-adds are those of fp32."""
    inputs = {n: np.arange(16).reshape(4, 4).astype(dtype) for n in "ab"}
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    agrees(model_of([node], inputs, {"y": dtype}), inputs, report=True)


def test_bytes_of_what_must_not_rotate() -> None:
    """Without HBM no plan with rings is possible; the message said what the smallest of them needs,
    which the chip had."""
    inputs, weights = {"x": normal(64, 64)}, {"w": normal(64, 64)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], inputs, {"y": "float32"}, weights)
    sizes = {"sram_per_core_bytes": 4096, "reserved_per_core_bytes": 0}
    chip = replace(load_chip("test-16"), hbm=None, **sizes)
    with pytest.raises(CapacityError) as caught:
        verify_levels(model, chip=chip, inputs=inputs, policy=None)
    assert caught.value.needed_bytes > 4096


def test_concatenation_of_nothing() -> None:
    """Empty parts along an axis that is not: the result was the first of them."""
    inputs = {"x": normal(0, 1, 1), "z": normal(0, 1, 2)}
    node = helper.make_node("Concat", ["x", "z"], ["y"], axis=2)
    agrees(model_of([node], inputs, {"y": "float32"}), inputs)


@pytest.mark.parametrize("bias", [(), (4,)])
def test_product_over_no_elements(bias: tuple[int, ...]) -> None:
    """Refused, where an epilogue had a bias or a factor for the sum of nothing."""
    inputs = {"x": normal(2, 0), "z": normal(0, 4), "c": normal(*bias)}
    node = helper.make_node("Gemm", ["x", "z", "c"], ["y"], alpha=0.5, beta=2.0)
    agrees(model_of([node], inputs, {"y": "float32"}), inputs)
