"""Operands that do not fit each other, in IR written by hand and in models.

The importer's types come from ONNX's inference; those of IR that was written or edited by hand can
be anything of the right element type. Such an operation is lowered or refused with a message.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import DiagnosticException, PassFailedException, VerifyException

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes, split_at
from elk_ir.conformance import model_of, node_cases, operator_of
from elk_ir.dialects.onnx import OnnxOp
from elk_ir.errors import ElkError, ModelError
from elk_ir.frontend.importer import import_model
from elk_ir.numerics.icca_eval import evaluate_icca
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass
from elk_ir.text import ModuleParser
from elk_ir.weight_source import WeightSource

REFUSALS = (ElkError, PassFailedException, DiagnosticException)
TRIALS = 12
"""Wrong types that are tried in one model."""


def lowered(module: ModuleOp) -> str:
    """Lowers a module; the message of a refusal, or nothing."""
    try:
        ConvertOnnxToTePass().apply(context(), module)
        module.verify()
    except REFUSALS as error:
        return str(error)
    return ""


def tensors_of(module: ModuleOp) -> list[SSAValue]:
    """Tensors whose types can be changed: arguments of functions and results of operators."""
    found: list[SSAValue] = []
    for op in module.walk():
        if isinstance(op, FuncOp):
            found += op.body.block.args
        elif isinstance(op, OnnxOp):
            found += op.results
    return [v for v in found if isinstance(v.type, TensorType)]


def other_shapes(shape: Sequence[int]) -> Iterator[list[int]]:
    """Shapes of another rank, and with one extent off by one or open."""
    yield [*shape, 1]
    yield [1, *shape]
    if shape:
        yield [*shape[:-1]]
        yield [*shape[1:]]
    for i, n in enumerate(shape):
        for other in (n + 1, max(0, n - 1), -1):
            yield [*shape[:i], other, *shape[i + 1 :]]


def wrong(module: ModuleOp, number: int, trials: int) -> Iterator[tuple[ModuleOp, str]]:
    """Copies of a module, each with one type changed, and what was changed."""
    changes = [
        (i, shape)
        for i, value in enumerate(tensors_of(module))
        if isinstance(value.type, TensorType)
        for shape in other_shapes(value.type.get_shape())
    ]
    random.Random(number).shuffle(changes)
    for i, shape in changes[:trials]:
        copy = module.clone()
        value = tensors_of(copy)[i]
        assert isinstance(value.type, TensorType)
        text = f"{value.type} of value {i} made {shape}"
        type_ = TensorType(value.type.element_type, shape)
        Rewriter.replace_value_with_new_type(value, type_)
        for op in copy.body.block.ops:
            if isinstance(op, FuncOp):
                op.update_function_type()
        try:
            copy.verify()
        except VerifyException:
            continue  # the dialect refuses it itself
        yield copy, text


def check(numbers: Sequence[int], trials: int) -> int:
    """Lowers the wrong copies of ONNX's node tests; how many there were."""
    count = 0
    for number in numbers:
        case = node_cases()[number]
        try:
            module = import_model(model_of(case).SerializeToString(), name=case.name)
        except ElkError:
            continue  # dimensions that are not bound
        for copy, text in wrong(module, number, trials):
            count += 1
            try:
                lowered(copy)
            except Exception as error:
                raise AssertionError(f"{case.name}: {text}") from error
    return count


def firsts() -> list[int]:
    """One of ONNX's node tests for each operator."""
    found: dict[str, int] = {}
    for number, case in enumerate(node_cases()):
        found.setdefault(operator_of(case), number)
    return list(found.values())


def test_wrong_types_of_every_operator() -> None:
    assert check(firsts(), 3) > 300


MISFIT = re.compile(
    r"(has|of) shape \[|not positive|not fit|instead of|tuples of|beside \[|have \d, \d and"
)


@pytest.mark.parametrize("part", range(2))
def test_no_node_test_is_refused_for_its_shapes(part: int) -> None:
    count = 0
    for case in node_cases()[part::2]:
        try:
            module = import_model(model_of(case).SerializeToString(), name=case.name)
        except ElkError:
            continue
        message = lowered(module)
        count += not message
        assert not MISFIT.search(message), f"{case.name}: {message}"
    assert count > 500


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_wrong_types_of_all_node_tests(part: int) -> None:
    assert check(range(part, len(node_cases()), 8), TRIALS) > 2000


@pytest.mark.parametrize(
    ("operation", "types", "message"),
    [
        (
            'onnx.Einsum(%a) {"equation" = "i...->jj..."}',
            "2x3 -> 2x3",
            "Einsum: does not fit its operands: Equation output contains a label missing from the",
        ),
        (
            'onnx.Einsum(%a) {"equation" = "ij->ji"}',
            "2x3x1 -> 2x3",
            "equation 'ij->ji' for an operand [2, 3, 1]",
        ),
        (
            "onnx.Conv(%a, %b)",
            "1x1x8x8, 1x1x3x3 -> 1x1x6",
            "2 spatial axes with a kernel of 2, a result of 1",
        ),
        (
            'onnx.Transpose(%a) {"perm" = array<i64: 1, 0>}',
            "2x3x4 -> 3x2",
            "[1, 0] is no permutation of the 3 axes of an operand",
        ),
        (
            "onnx.GatherND(%a, %i)",
            "4x4, 2x0 -> 2x4x4",
            "index tuples of 0 numbers for 0 axes",
        ),
        (
            'onnx.GatherElements(%a, %i) {"axis" = 0 : i64}',
            "4x4, 2x2x2 -> 2x2x2",
            "an index with 3 axes for data with 2",
        ),
        (
            'onnx.ScatterElements(%a, %i, %b) {"axis" = 0 : i64}',
            "4x4, 2, 2x2 -> 4x4",
            "an index with 1 axes for data with 2",
        ),
        (
            'onnx.GRU(%a, %b, %c) {"hidden_size" = 5 : i64}',
            "2x3x4, 1x15x3, 1x15x5 -> 2x1x3x5",
            "its operand 1 has shape [1, 15, 3], not [1, 15, 4]",
        ),
        (
            'onnx.RNN(%a, %b, %c) {"hidden_size" = 5 : i64}',
            "2x3x4, 1x5x4, 5x5 -> 2x1x3x5",
            "operand 2 has not 3 axes",
        ),
        (
            "onnx.Attention(%a, %b, %c)",
            "1x2x3x4, 1x2x3x4, 2x3x4 -> 1x2x3x4",
            "query, key and value have 4, 4 and 3 axes",
        ),
        (
            "onnx.Attention(%a, %b, %c)",
            "1x2x3x4, 1x2x3x5, 1x2x3x4 -> 1x2x3x4",
            "query [1, 2, 3, 4], key [1, 2, 3, 5] and value [1, 2, 3, 4] do not fit",
        ),
        (
            "onnx.Attention(%a, %b, %c)",
            "1x3x3x4, 1x2x3x4, 1x2x3x4 -> 1x3x3x4",
            "3 query heads in [1, 3, 3, 4], 2 of size 4",
        ),
        (
            "onnx.Attention(%a, %b, %c, %d)",
            "1x2x3x4, 1x2x3x4, 1x2x3x4, 5x3 -> 1x2x3x4",
            "a mask of shape [5, 3] for scores of shape [1, 2, 3, 3]",
        ),
        (
            "onnx.Attention(%a, %b, %c, %d)",
            "1x2x3x4, 1x2x3x4, 1x2x3x4, 1x1x1x3x3 -> 1x2x3x4",
            "a mask with 5 axes",
        ),
    ],
)
def test_messages(operation: str, types: str, message: str) -> None:
    names = re.findall(r"%(\w)", operation)
    shapes, result = types.split(" -> ")
    given = [
        f"tensor<{shape}x{'i64' if name == 'i' else 'f32'}>"
        for name, shape in zip(names, shapes.split(", "), strict=True)
    ]
    arguments = ", ".join(f"%{n}: {t}" for n, t in zip(names, given, strict=True))
    text = (
        f"func.func @main({arguments}) -> tensor<{result}xf32> {{\n"
        f"  %r = {operation} : ({', '.join(given)}) -> tensor<{result}xf32>\n"
        f"  func.return %r : tensor<{result}xf32>\n}}"
    )
    module = ModuleParser(context(), text, "by_hand").parse_module()
    module.verify()
    assert message in lowered(module)


def test_upsample_to_another_rank() -> None:
    text = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3x4xf32> {
      %s = onnx.Initializer dense<[1.0, 2.0]> : tensor<2xf32>
      %y = onnx.Upsample(%x, %s) : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3x4xf32>
      func.return %y : tensor<2x3x4xf32> }"""
    module = ModuleParser(context(), text, "by_hand").parse_module()
    message = "result 0 is f32[2, 3, 4], but the operands make it f32[2, 6]"
    assert message in lowered(module)


def gathering(*, computed: bool) -> onnx.ModelProto:
    """A pick from a table, both of which are inputs or made on chip."""
    nodes = []
    if computed:
        nodes = [helper.make_node("Add", ["t", "t"], ["u"]), helper.make_node("Neg", ["i"], ["j"])]
    pick = ["u", "j"] if computed else ["t", "i"]
    nodes.append(helper.make_node("Gather", pick, ["y"], "pick"))
    edges = [
        helper.make_tensor_value_info(name, kind, [size])
        for name, kind, size in (
            ("t", TensorProto.FLOAT, 4),
            ("i", TensorProto.INT64, 2),
            ("y", TensorProto.FLOAT, 2),
        )
    ]
    return helper.make_model(helper.make_graph(nodes, "g", edges[:2], edges[2:]))


@pytest.mark.parametrize("row", [4, -5])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("level", ["te", "icca", "machine"])
def test_index_out_of_range_is_an_error_at_every_level(
    level: str, computed: bool, row: int
) -> None:
    chip = load_chip("test-16")
    inputs = {"t": np.ones(4, np.float32), "i": np.array([0, -row if computed else row])}
    front, icca = split_at(pipeline(chip, policy="basic"), "convert-te-to-icca")
    module, source = import_source(gathering(computed=computed), chip)
    run_passes(context(), module, front, model=source.name)
    with pytest.raises(ElkError, match=rf"row {row}\b"):
        if level == "te":
            evaluate_te(module, inputs, load_weight=WeightSource(None).load)
        elif level == "icca":
            scheduled, _ = split_at(icca, "convert-icca-to-ipu")
            run_passes(context(), module, scheduled, model=source.name)
            evaluate_icca(module, inputs, load_weight=WeightSource(None).load)
        else:
            elk_ir.compile(gathering(computed=computed), chip=chip, policy="basic").run(inputs)


@pytest.mark.parametrize(
    ("nodes", "shapes", "message"),
    [
        ("Conv x w", "1x3x4x4, 2x2x1x1", "its filter has shape [2, 2, 1, 1], not [2, 3, 1, 1]"),
        ("Conv x w group=2", "1x4x4x4, 3x2x1x1", "its filter has shape [3, 2, 1, 1], not [2, 2"),
        ("Conv x w group=0", "1x4x4x4, 3x4x1x1", "group = 0 is not positive"),
        ("Conv x w b", "1x4x4x4, 3x4x1x1, 2", "its bias has shape [2], not [3]"),
        ("ConvTranspose x w", "1x3x4x4, 2x2x1x1", "its filter has shape [2, 2, 1, 1], not [3, 2"),
        ("Gemm x w b", "2x4, 4x3, 4", "an operand of shape [4] beside [2, 3]"),
        ("PRelu x w", "3x4x5, 2x4x5", "an operand of shape [2, 4, 5] beside [3, 4, 5]"),
        ("Einsum x equation=ii->i", "3x4", "i is 3 and 4 in one operand"),
        ("Einsum x w equation=ij,jk->ik", "2x4, 5x3", "an operand of shape [5, 3] beside [4, 3]"),
        ("InstanceNormalization x s b", "1x2x4, 3, 2", "its scale has shape [3], not [2]"),
        ("GroupNormalization x s b num_groups=3", "1x4x4, 4, 4", "4 channels in 3 groups"),
        ("GroupNormalization x s b num_groups=0", "1x4x4, 4, 4", "num_groups = 0 is not positive"),
        ("LayerNormalization x s", "2x4, 5", "an operand of shape [5] beside [2, 4]"),
        ("LRN x size=0", "1x4x2x2", "size = 0 is not positive"),
        ("LpPool x kernel_shape=2 p=0", "1x1x4", "p = 0 is not positive"),
        ("DepthToSpace x blocksize=2", "1x7x2x2", "7 channels for blocks of 2 x 2"),
        ("SpaceToDepth x blocksize=2", "1x1x3x2", "blocks of 2 x 2 in 3 x 2 pixels"),
        ("DequantizeLinear q s axis=1", "2x3, 4", "its scale has shape [4], not [3]"),
        ("QuantizeLinear x s z axis=1", "2x3, 3, 2", "its zero point has shape [2], not [3]"),
        ("ReverseSequence x l", "4x3, 4", "its lengths has shape [4], not [3]"),
        ("GatherElements x i axis=0", "2x1, 2x2", "an index of shape [2, 2] for data of shape [2"),
        ("ScatterElements x i w axis=0", "3x3, 2x2, 2x3", "its updates has shape [2, 3], not [2"),
        ("ScatterElements x i w axis=0", "3x1, 2x2, 2x2", "an index of shape [2, 2] for data of"),
        ("ScatterElements x i w reduction=mean", "3x3, 2x2, 2x2", "reduction 'mean'"),
        ("ScatterND x i w", "4x4, 2x1, 3x4", "its updates has shape [3, 4], not [2, 4]"),
        ("RotaryEmbedding x c s", "1x2x3x4, 1x3x3, 1x3x2", "its cosines has shape [1, 3, 3], not"),
    ],
)
def test_shapes_that_inference_lets_pass(nodes: str, shapes: str, message: str) -> None:
    """Models that onnxruntime refuses when it runs them, if not before."""
    kinds = {"q": TensorProto.INT8, "z": TensorProto.UINT8, "i": TensorProto.INT64}
    kinds["l"] = TensorProto.INT64
    op_type, *rest = nodes.split()
    names = [word for word in rest if "=" not in word]
    node = helper.make_node(op_type, names, ["y"], "n", **_attributes(rest))
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), _extents(shape))
        for name, shape in zip(names, shapes.split(", "), strict=True)
    ]
    result = TensorProto.UINT8 if op_type == "QuantizeLinear" else TensorProto.FLOAT
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = result
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    assert message in lowered(import_model(model.SerializeToString(), name="g"))


def _extents(text: str) -> list[int]:
    return [int(n) for n in text.split("x")]


def _attributes(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals:
            found[name] = int(text) if text.isdigit() else text
    if "kernel_shape" in found:
        found["kernel_shape"] = [found["kernel_shape"]]
    return found


def test_scan_whose_state_changes() -> None:
    body = helper.make_graph(
        [helper.make_node("Concat", ["s", "x"], ["t"], axis=0)],
        "b",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "sx"],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("Scan", ["s0", "xs"], ["y"], "scan", num_scan_inputs=1, body=body)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("s0", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("xs", TensorProto.FLOAT, [3, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    with pytest.raises(
        ModelError, match=r"its state 0 is f32\[2\] before an iteration and f32\[3\]"
    ):
        import_model(model.SerializeToString(), name="g")
