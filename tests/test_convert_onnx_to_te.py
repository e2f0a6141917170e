"""Every lowering against onnxruntime or ONNX's own evaluator, whole models against their
exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import node_names
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.frontend.importer import import_model
from elk_ir.frontend.weights import load_weight
from elk_ir.numerics.te_eval import evaluate_te
from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass

SHARED = Path(__file__).parent.parent.parent / "shared"
OPSET = 23


@dataclass(frozen=True)
class Case:
    """One node. Each input is a graph input (shape, type), a constant (an array) or absent."""

    op: str
    inputs: Sequence[tuple[tuple[int, ...], str] | np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = OPSET

    def __str__(self) -> str:
        return self.op


def f(*shape: int) -> tuple[tuple[int, ...], str]:
    """A float32 input."""
    return shape, "float32"


def i(*shape: int) -> tuple[tuple[int, ...], str]:
    """An int64 input of small numbers."""
    return shape, "int64"


def ints(*values: int) -> np.ndarray:
    """A constant list of integers."""
    return np.asarray(values, dtype=np.int64)


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    """A constant of rank 0."""
    return np.asarray(value, dtype=dtype)


def floats(*shape: int) -> np.ndarray:
    """Constant numbers."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


UNARY = [
    "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "IsNaN", "LeakyRelu", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Celu",
]  # fmt: skip
BINARY = ["Add", "Div", "Equal", "Greater", "LessOrEqual", "Max", "Mean", "Mul", "Sub", "Sum"]
BROADCASTS = [
    (f(3, 4), f(4)),
    (f(2, 1, 5), f(3, 1)),
    (f(1), f(2, 3)),
    (f(), f(4)),
    (f(4, 3), scalar(0.5)),
    (f(2, 3), floats(2, 3)),
]

ELEMENTWISE = [
    *(Case(op, [f(3, 5)]) for op in UNARY),
    *(Case(op, pair) for op in BINARY for pair in BROADCASTS),
    *(Case("Pow", [f(3), scalar(e)]) for e in (0, 1, 2, 3, -1)),
    Case("Pow", [i(3), ints(2, 3, 1)]),
    Case("Gelu", [f(9)], {"approximate": "tanh"}),
    Case("Clip", [f(3, 4), scalar(-0.5), None]),
    Case("Clip", [f(3, 4), None, scalar(0.5)]),
    Case("Clip", [f(3, 4), scalar(-0.5), f()]),
    Case("Where", [((3, 1), "bool"), f(3, 4), scalar(0)]),
    Case("Cast", [f(3)], {"to": 7}),
    Case("Cast", [i(3)], {"to": 1}),
    Case("Cast", [f(3)], {"to": 9}),
    Case("Mod", [i(7), scalar(3, "int64")]),
    Case("Mod", [f(7), f(7)], {"fmod": 1}),
    Case("Div", [i(7), scalar(3, "int64")]),
    Case("PRelu", [f(2, 3), f(3)]),
    Case("IsInf", [f(4)]),
    Case("Dropout", [f(4)], outputs=2),
    Case("Not", [((3,), "bool")]),
    Case("Xor", [((3,), "bool"), ((2, 3), "bool")]),
    Case("Shrink", [f(9)], {"lambd": 0.5, "bias": 0.25}),
]

RESHAPES = [
    ((4, 6), (24,)),
    ((24,), (2, 3, 4)),
    ((4, 6), (6, 4)),
    ((2, 3, 4), (3, 2, 4)),
    ((1, 4, 1, 6), (4, 6)),
    ((4, 6), (1, 2, 1, 12, 1)),
    ((2, 12, 5), (2, 3, 4, 5)),
    ((6, 35), (2, 15, 7)),
    ((1, 1), ()),
    ((), (1, 1)),
]

MOVEMENT = [
    *(Case("Reshape", [f(*a), ints(*b)]) for a, b in RESHAPES),
    Case("Transpose", [f(2, 3, 4)], {"perm": [2, 0, 1]}),
    Case("Transpose", [f(2, 3)]),
    Case("Flatten", [f(2, 3, 4)], {"axis": 2}),
    Case("Flatten", [f(2, 3)], {"axis": 0}),
    Case("Squeeze", [f(1, 3, 1), ints(0)]),
    Case("Unsqueeze", [f(3, 4), ints(0, 3)]),
    Case("Expand", [f(3, 1), ints(2, 1, 4)]),
    Case("Tile", [f(2, 1, 3), ints(2, 3, 1)]),
    Case("Concat", [f(2, 3), f(2, 1), f(2, 4)], {"axis": -1}),
    Case("Concat", [f(2, 3), f(0, 3)], {"axis": 0}),
    Case("Split", [f(2, 7), ints(2, 5)], {"axis": 1}, outputs=2),
    Case("Split", [f(7)], {"num_outputs": 3}, outputs=3),
    Case("Slice", [f(5, 6), ints(1, -4), ints(4, 2**62), ints(0, 1)]),
    Case("Slice", [f(5, 6), ints(-1, 5), ints(-(2**62), 0), ints(0, 1), ints(-2, -1)]),
    Case("Slice", [f(5, 6), ints(3), ints(3), ints(0)]),
    Case("Pad", [f(3, 4), ints(1, 0, 2, 3)]),
    Case("Pad", [f(3, 4), ints(1, 2, 0, 1), scalar(2.5)]),
    Case("Pad", [f(3, 4), ints(-1, 2, 1, -2), scalar(-1)]),
    Case("Pad", [f(3, 4), ints(2, 1, 1, 3)], {"mode": "reflect"}),
    Case("Pad", [f(3, 4), ints(2, 1, 1, 5)], {"mode": "edge"}),
    Case("Pad", [f(3, 4), ints(1, 2, 2, 4)], {"mode": "wrap"}),
    Case("Pad", [f(3, 4), ints(2, 5), None, ints(-1)], {"mode": "edge"}),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2}),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", [f(2, 3, 4, 6)], {"blocksize": 2}),
    Case("Trilu", [f(2, 4, 5)], {"upper": 1}),
    Case("Trilu", [f(4, 4), scalar(-1, "int64")], {"upper": 0}),
    Case("Shape", [f(2, 3)], {"start": 1}),
    Case("Size", [f(2, 3)]),
]

PRODUCTS = [
    Case("MatMul", [f(3, 4), f(4, 5)]),
    Case("MatMul", [f(4), f(4, 5)]),
    Case("MatMul", [f(3, 4), f(4)]),
    Case("MatMul", [f(4), f(4)]),
    Case("MatMul", [f(2, 1, 3, 4), f(5, 4, 2)]),
    Case("MatMul", [i(3, 4), i(4, 1)]),
    Case("Gemm", [f(3, 4), f(4, 5)]),
    Case("Gemm", [f(4, 3), f(5, 4), f(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [f(3, 4), f(4, 5), f(3, 1)], {"alpha": 2.0}),
    Case("Gemm", [f(1, 4), f(4, 1), scalar(3)], {"beta": 0.25}),
    Case("Einsum", [f(2, 3), f(3, 4)], {"equation": "ij,jk->ki"}),
    Case("Einsum", [f(2, 3, 4), f(4, 5)], {"equation": "...j,jk"}),
    Case("Einsum", [f(3, 3)], {"equation": "ii->i"}),
    Case("Einsum", [f(2, 3)], {"equation": "ij->"}),
    Case("Einsum", [f(2, 3), f(3), f(2)], {"equation": "ij,j,i->ij"}),
    Case("Einsum", [f(2, 3, 4, 5), f(2, 6, 4, 5)], {"equation": "bhqd,bkqd->bhkq"}),
]

REDUCTIONS = [
    *(
        Case(f"Reduce{op}", [f(2, 3, 4), axes], {"keepdims": keep})
        for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
        for axes, keep in ((ints(1), 1), (ints(0, -1), 0), (None, 0))
    ),
    Case("ReduceSum", [i(2, 3), ints(1)]),
    Case("ReduceSum", [f(2, 3)], {"noop_with_empty_axes": 1}),
    Case("ReduceMax", [((2, 3), "bool"), ints(1)]),
    Case("Softmax", [f(2, 3, 4)], {"axis": 1}),
    Case("Softmax", [f(5, 1)]),
    Case("LogSoftmax", [f(2, 3)]),
    Case("Hardmax", [f(3, 4)]),
    Case("ArgMax", [f(3, 4)], {"axis": 1}),
    Case("ArgMin", [i(3, 4)], {"axis": 0, "keepdims": 0, "select_last_index": 1}),
    Case("CumSum", [f(3, 4), scalar(1, "int64")]),
    Case("CumSum", [f(3, 4), scalar(-2, "int64")], {"reverse": 1, "exclusive": 1}),
]

NORMS = [
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)]),
    Case("LayerNormalization", [f(2, 3, 4), f(3, 4)], {"axis": 1, "epsilon": 0.1}),
    Case("LayerNormalization", [f(2, 5), f(5), f(5)], {"axis": -1}, outputs=3),
    Case("RMSNormalization", [f(2, 3, 4), f(4)]),
    Case("InstanceNormalization", [f(2, 3, 4, 5), f(3), f(3)]),
    Case("GroupNormalization", [f(2, 6, 4), f(6), f(6)], {"num_groups": 2}),
    Case("GroupNormalization", [f(2, 6, 4), f(6), f(6)], {"num_groups": 6}),
    Case(
        "BatchNormalization",
        [f(2, 3, 4), floats(3), floats(3), floats(3), np.abs(floats(3))],
    ),
    Case("BatchNormalization", [f(2, 3), floats(3), floats(3), f(3), np.abs(floats(3))]),
    Case("LpNormalization", [f(2, 3)], {"axis": 1, "p": 1}),
    Case("LRN", [f(1, 5, 2, 2)], {"size": 3}),
    Case("MeanVarianceNormalization", [f(2, 3, 2, 2)]),
]

WINDOWS = [
    Case("Conv", [f(1, 3, 6, 5), f(4, 3, 3, 2), f(4)]),
    Case("Conv", [f(2, 4, 9), f(6, 2, 3)], {"group": 2, "strides": [2], "pads": [1, 2]}),
    Case("Conv", [f(1, 4, 7, 7), f(4, 1, 3, 3)], {"group": 4, "dilations": [2, 1]}),
    Case("Conv", [f(1, 2, 7, 6), f(3, 2, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", [f(1, 2, 7, 6), f(3, 2, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    Case("Conv", [f(1, 3, 4, 4), f(5, 3, 1, 1)]),
    Case("ConvTranspose", [f(1, 3, 4, 3), f(3, 2, 2, 2), f(2)], {"strides": [2, 2]}),
    Case("ConvTranspose", [f(1, 2, 5), f(2, 3, 3)], {"strides": [2], "pads": [1, 0]}),
    Case("ConvTranspose", [f(1, 4, 3, 3), f(4, 1, 3, 3)], {"group": 2, "dilations": [2, 1]}),
    Case("ConvTranspose", [f(1, 1, 4), f(1, 1, 3)], {"strides": [3], "output_padding": [1]}),
    Case(
        "MaxPool",
        [f(1, 2, 7, 6)],
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    Case("MaxPool", [f(1, 2, 8)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    Case("AveragePool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0]}),
    Case(
        "AveragePool", [f(1, 2, 7)], {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}
    ),
    Case("AveragePool", [f(1, 2, 7)], {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    Case("LpPool", [f(1, 2, 6)], {"kernel_shape": [3], "p": 2}),
    Case("GlobalAveragePool", [f(2, 3, 4, 5)]),
    Case("GlobalMaxPool", [f(2, 3, 4)]),
]

HALF = np.asarray([1, 1, 2.5, 1.6], dtype=np.float32)
RESIZES = [
    Case("Resize", [f(1, 1, 3, 4), None, np.asarray([1, 1, 2, 3], np.float32)], attributes)
    for attributes in (
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        {"mode": "nearest"},
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    )
] + [
    Case("Resize", [f(1, 1, 3, 4), None, HALF], {"mode": "nearest"}),
    Case("Resize", [f(1, 1, 3, 4), None, HALF], {"mode": "cubic", "exclude_outside": 1}),
    Case("Resize", [f(1, 1, 8, 6), None, None, ints(1, 1, 3, 4)], {"mode": "linear"}),
    Case(
        "Resize", [f(1, 1, 8, 6), None, None, ints(1, 1, 3, 4)], {"mode": "linear", "antialias": 1}
    ),
    Case(
        "Resize", [f(1, 1, 8, 6), None, None, ints(1, 1, 3, 4)], {"mode": "cubic", "antialias": 1}
    ),
]

RECURRENT = [
    Case("LSTM", [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5), f(1, 40), None, f(1, 2, 5), f(1, 2, 5)]),
    Case(
        "LSTM",
        [f(4, 2, 3), f(2, 20, 3), f(2, 20, 5), None, np.array([2, 4], np.int32)],
        {"direction": "bidirectional", "hidden_size": 5},
        outputs=3,
    ),
    Case(
        "GRU",
        [f(3, 2, 4), f(1, 15, 4), f(1, 15, 5), f(1, 30)],
        {"linear_before_reset": 1, "direction": "reverse", "hidden_size": 5},
        outputs=2,
    ),
    Case("GRU", [f(3, 2, 4), f(1, 15, 4), f(1, 15, 5)], {"hidden_size": 5, "clip": 0.5}),
    Case(
        "RNN",
        [f(3, 2, 4), f(1, 5, 4), f(1, 5, 5), f(1, 10)],
        {"activations": ["LeakyRelu"], "activation_alpha": [0.2], "hidden_size": 5},
    ),
]

INDEXING = [
    Case("MaxPool", [f(1, 2, 6, 5)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, outputs=2),
    Case(
        "MaxPool",
        [f(2, 1, 6, 5)],
        {"kernel_shape": [2, 2], "strides": [2, 1], "storage_order": 1},
        outputs=2,
    ),
    Case("Gather", [f(5, 4), ints(3, -1, 0)]),
    Case("Gather", [f(3, 5), ints(4, 0).reshape(1, 2)], {"axis": 1}),
    Case("Gather", [f(5, 4), scalar(-2, "int64")]),
    Case("Gather", [f(5, 3), i(2, 2)]),
    Case("GatherElements", [f(3, 4), i(2, 4)]),
    Case("GatherElements", [f(3, 4), i(3, 2)], {"axis": 1}),
    Case("GatherND", [f(4, 3, 2), i(5, 2)]),
    Case("GatherND", [f(2, 4, 3), i(2, 1)], {"batch_dims": 1}),
    Case("ScatterND", [f(5, 3), ints(4, 1).reshape(2, 1), f(2, 3)]),
    Case("ScatterND", [f(4, 3), i(6, 2), f(6)], {"reduction": "add"}),
    Case("ScatterElements", [f(3, 4), ints(2, 0, 1).reshape(1, 3), f(1, 3)]),
    Case("ScatterElements", [f(3, 4), i(2, 4), f(2, 4)], {"reduction": "max"}),
    Case("ScatterElements", [f(3, 5), i(3, 2), f(3, 2)], {"axis": 1, "reduction": "mul"}),
    Case("TopK", [f(3, 6), ints(2)], {"axis": 1}, outputs=2),
    Case("TopK", [f(6, 2), ints(6)], {"axis": 0, "largest": 0}, outputs=2),
    Case("OneHot", [i(3), scalar(4, "int64"), np.asarray([0, 5], np.float32)], {"axis": 0}),
    Case("OneHot", [i(2, 3), scalar(5, "int64"), f(2)]),
    Case("EyeLike", [f(3, 4)], {"k": 1}),
    Case("ReverseSequence", [f(4, 2, 3), ints(2, 4)], {"time_axis": 0, "batch_axis": 1}),
]

ATTENTION = [
    Case("Attention", [f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 5)]),
    Case("Attention", [f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 8), f(3, 5)], {"softcap": 2.0}),
    Case("Attention", [f(2, 3, 4, 8)] * 3, {"is_causal": 1, "scale": 0.5}),
    Case(
        "Attention",
        [f(2, 3, 32), f(2, 1, 16), f(2, 1, 16), None, f(2, 2, 4, 8), f(2, 2, 4, 8)],
        {"q_num_heads": 4, "kv_num_heads": 2},
        outputs=3,
    ),
    Case("Attention", [f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), ((3, 5), "bool")]),
    Case(
        "Attention",
        [f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), f(1, 1, 3, 5)],
        {"qk_matmul_output_mode": 3},
        outputs=4,
    ),
    Case("RotaryEmbedding", [f(2, 3, 4, 8), f(9, 4), f(9, 4), i(2, 4)]),
    Case("RotaryEmbedding", [f(2, 3, 4, 8), f(2, 4, 4), f(2, 4, 4)], {"interleaved": 1}),
    Case(
        "RotaryEmbedding",
        [f(2, 4, 24), f(9, 2), f(9, 2), i(2, 4)],
        {"num_heads": 3, "rotary_embedding_dim": 4},
    ),
]

FUNCTIONS = [
    Case("SoftmaxCrossEntropyLoss", [f(3, 5), ints(0, 4, 2)]),
    Case("NegativeLogLikelihoodLoss", [f(3, 5), ints(0, 4, 2)]),
    Case("CenterCropPad", [f(5, 4), ints(3, 6)]),
]

CASES = [
    *ELEMENTWISE,
    *MOVEMENT,
    *PRODUCTS,
    *REDUCTIONS,
    *NORMS,
    *WINDOWS,
    *RESIZES,
    *RECURRENT,
    *INDEXING,
    *ATTENTION,
    *FUNCTIONS,
]


def model_of(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    """The model of one node and random inputs for it."""
    from onnx import TensorProto, helper, numpy_helper
    from onnx.shape_inference import infer_shapes

    rng = np.random.default_rng(3)
    inputs, initializers, names = [], [], []
    feed: dict[str, np.ndarray] = {}
    for n, given in enumerate(case.inputs):
        if given is None:
            names.append("")
            continue
        name = f"x{n}"
        names.append(name)
        if isinstance(given, np.ndarray):
            initializers.append(numpy_helper.from_array(given, name))
            continue
        shape, dtype = given
        if dtype == "float32":
            array = rng.standard_normal(shape).astype(np.float32)
        elif dtype == "bool":
            array = rng.integers(0, 2, shape).astype(np.bool_)
        else:
            array = rng.integers(-2, 2, shape).astype(dtype)
            if case.op in ("RotaryEmbedding", "GatherElements", "GatherND", "OneHot"):
                array = np.abs(array)
        array = np.asarray(array)
        feed[name] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
    outputs = [f"y{n}" for n in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="the node", **case.attributes)
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    graph = helper.make_graph([node], "g", inputs, results, initializers)
    opsets = [helper.make_opsetid("", case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = infer_shapes(model, data_prop=True)
    for info in model.graph.output:
        if not info.type.WhichOneof("value"):
            # Inference of whole models does not reach through function bodies.
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    return model.SerializeToString(), feed


def oracle(data: bytes, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results of onnxruntime; of ONNX's evaluator for what onnxruntime does not have."""
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return session.run(None, feed)
    except Exception:  # its own exceptions have no common base
        return [np.asarray(a) for a in ReferenceEvaluator(data).run(None, feed)]


def converted(data: bytes) -> ModuleOp:
    """The model in te, verified."""
    module = import_model(data, name="test.onnx")
    ConvertOnnxToTePass().apply(Context(), module)
    module.verify()
    return module


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowering(case: Case) -> None:
    """The right numbers, and the node's name on everything emitted."""
    data, feed = model_of(case)
    module = converted(data)
    for op in module.walk():
        if isinstance(op, StructuredOp):
            assert node_names(op) == ("the node",)
    got = evaluate_te(
        module,
        feed,
        load_weight=lambda a: load_weight(a.to_ref(), ".", buffers={"test.onnx": data}),
    )
    wanted = oracle(data, feed)
    for name, expected in zip(got, wanted, strict=True):
        assert got[name].shape == expected.shape
        assert got[name].dtype == expected.dtype
        if expected.dtype.kind in "iub":
            np.testing.assert_array_equal(got[name], expected)
        else:
            scale = max(float(np.nanmax(np.abs(expected), initial=0)), 1e-3)
            if not np.isfinite(scale):
                scale = 1.0
            np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5 * scale)


def test_all_unsupported_nodes_are_reported() -> None:
    """One error lists them all, by name, and the module stays as it was."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Abs", ["x"], ["b"], name="fine"),
        helper.make_node("Det", ["b"], ["c"], name="second"),
        helper.make_node("Neg", ["c"], ["d"], name="behind"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])],
        [
            helper.make_tensor_value_info("a", TensorProto.INT64, [2, None]),
            helper.make_tensor_value_info("d", TensorProto.FLOAT, []),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    module = import_model(model.SerializeToString(), name="test.onnx")
    before = str(module)
    with pytest.raises(PassFailedException) as raised:
        ConvertOnnxToTePass().apply(Context(), module)
    message = str(raised.value)
    assert "2 nodes can't be lowered to te" in message
    assert "first: NonZero" in message
    assert "second: Det" in message
    assert "fine" not in message and "behind" not in message
    assert str(module) == before


TINY = [
    *(
        f"{name}_{phase}_static_{exporter}"
        for name in ("llama2", "llama3gqa", "gemma2", "opt", "granite")
        for phase in ("decode", "prefill")
        for exporter in ("dynamo", "legacy")
    ),
    *(f"{name}_decode_dyn_dynamo" for name in ("llama2", "gemma2", "opt")),
    "opt_decode_dyn_legacy",
    "gemma2_decode_static_dynamo_op23",
    "llama3gqa_decode_static_dynamo_op23",
    "llama3gqa_decode_static_dynamo_fp16",
    "llama3gqa_decode_static_dynamo_bf16",
    "bert_sdpa_static_dynamo",
    "dit_tiny_static_dynamo",
    "moe_dense_dispatch_static_dynamo",
    "resnet50_w8_static_dynamo",
    "statickv_index_copy_dynamo",
    "statickv_scatter_dynamo",
    "train_llama-tiny_L2_b2_s16_fp32",
    "vit_static_legacy",
    "yolo_tiny_static_dynamo",
]


@pytest.mark.parametrize("name", TINY)
def test_tiny_model(name: str) -> None:
    """Real exports, to the tolerance of their type."""
    import ml_dtypes

    folder = SHARED / "models" / "tiny"
    if not folder.is_dir():
        pytest.skip("the folder of real models is not there")
    tensors = dict(np.load(folder / f"{name}.npz"))
    feed = {k[3:]: v for k, v in tensors.items() if k.startswith("in/")}
    module = import_model(
        folder / f"{name}.onnx", input_shapes={k: v.shape for k, v in feed.items()}
    )
    ConvertOnnxToTePass().apply(Context(), module)
    module.verify()
    if name.endswith("bf16"):
        wide = {k for k, v in feed.items() if v.dtype == np.float32}
        feed |= {k: feed[k].astype(ml_dtypes.bfloat16) for k in wide}
    got = evaluate_te(module, feed, load_weight=lambda a: load_weight(a.to_ref(), folder))
    tolerance = 2e-3 if name.endswith("_fp16") else 2e-2 if name.endswith("bf16") else 1e-4
    for key, expected in tensors.items():
        if not key.startswith("out/"):
            continue
        actual = got[key[4:]]
        assert actual.shape == expected.shape
        if expected.dtype.kind in "iub":
            np.testing.assert_array_equal(actual, expected)
            continue
        expected = expected.astype(np.float64)
        error = np.abs(actual.astype(np.float64) - expected).max(initial=0)
        assert error <= tolerance * np.abs(expected).max(initial=0), key
