"""What a model may not be: each mistake in a file is one message that names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import parse, run_passes
from importing import fails, model_of, relu, tensor
from onnx import TensorProto, helper, numpy_helper
from xdsl.utils.exceptions import PassFailedException

from elk_ir.errors import ModelError
from elk_ir.frontend.export import export_model
from elk_ir.frontend.fold import Folder, constant_of, constant_value, dense_of_sparse
from elk_ir.frontend.ir import main_function
from elk_ir.frontend.load import refuse_device
from elk_ir.frontend.protobuf_offsets import fields

X, Y = tensor("x", 4), tensor("y", 4)
OPSET = 23


def adds(initializers: list[TensorProto], name: str = "w") -> onnx.ModelProto:
    """y = x + w."""
    nodes = [helper.make_node("Add", ["x", name], ["y"], "sum")]
    return model_of(nodes, [X], [Y], initializers, OPSET)


def constant(name: str, values: Any, dtype: str = "float32") -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def external(shape: list[int], **entries: str) -> TensorProto:
    """A tensor of floats whose elements are elsewhere."""
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=shape, data_location="EXTERNAL"
    )
    for key, value in entries.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    return weight


def sparse(values: list[float], indices: list[int], dims: list[int]) -> onnx.ModelProto:
    """y = x + w with a sparse w."""
    model = adds([])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    found = model.graph.sparse_initializer.add()
    found.values.CopyFrom(constant("w", values))
    found.indices.CopyFrom(constant("", indices, "int64"))
    found.dims.extend(dims)
    return model


# ---------------------------------------------------------------------- folding


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, "the node", **attributes)


def one(*nodes: onnx.NodeProto, x: onnx.ValueInfoProto = X, **more: Any) -> onnx.ModelProto:
    """A model of x, with results y and whatever else the last node has."""
    outputs = [
        tensor(o, *[None] * len(x.type.tensor_type.shape.dim)) for o in nodes[-1].output if o
    ]
    return model_of(list(nodes), [x], outputs, opset=OPSET, **more)


def of_type(data_type: int) -> onnx.ModelProto:
    weight = constant("w", [1, 2, 3, 4])
    weight.data_type = data_type
    return adds([weight])


def mystery(attribute: onnx.AttributeProto) -> onnx.ModelProto:
    found = node("Mystery", ["x"], ["y"], domain="mine")
    found.attribute.append(attribute)
    return model_of([found], [X], [Y], opset=OPSET)


def damaged_attribute() -> onnx.ModelProto:
    value = constant("", [1.0])
    value.data_type = TensorProto.BFLOAT16
    return mystery(helper.make_attribute("fill", value))


TYPES = [helper.make_tensor_type_proto(1, [1])]
HUGE = constant("n", [1 << 50], "int64")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: one(node("Relu", ["x"], ["y"]), x=tensor("x", *[1] * 33)),
            "tensor 'x' has 33 dimensions, at most 32 are possible",
        ),
        (
            lambda: one(node("Expand", ["x", "n"], ["y"]), x=tensor("x", 1), initializers=[HUGE]),
            "f32[1125899906842624], would take 4,503,599,627,370,496 bytes",
        ),
        (lambda: of_type(99), "tensor 'w' has the element type 99, which is unknown"),
        (lambda: of_type(TensorProto.BFLOAT16), "tensor 'w' is malformed"),
        (lambda: sparse([1.0], [0], [1 << 40]), "bytes with its zeros, at most 1,073,741,824"),
        (
            lambda: one(node("Mystery", ["x"], ["z"], domain="mine"), node("Relu", ["z"], ["y"])),
            "the type of result 'z' of Mystery cannot be inferred",
        ),
        (
            lambda: one(node("Split", ["x"], ["y", "z"], num_outputs=3)),
            "the node: 3 parts for 2 results",
        ),
        (
            lambda: mystery(helper.make_attribute("types", TYPES)),
            "attribute 'types' of kind TYPE_PROTOS is not supported",
        ),
        (damaged_attribute, "attribute 'fill' is malformed"),
        (
            lambda: one(node("Constant", [], ["y"], value_int=1, value_ints=[2])),
            "constant 'y' has one attribute for its value, not value_int, value_ints",
        ),
        (
            lambda: one(node("Split", ["x"], ["y", "", "z"], num_outputs=3)),
            "onnx.Split: one of the variadic outputs is absent",
        ),
    ],
)
def test_what_cannot_be_folded(make: Callable[[], onnx.ModelProto], message: str) -> None:
    fails(make().SerializeToString(), re.escape(message))


def test_what_the_checker_of_onnx_finds_first() -> None:
    folder = Folder(OPSET, lambda ref: None, {}, dict)
    with pytest.raises(ModelError, match="'the node' read 'none', which nothing produces"):
        folder.main_graph(one(node("Relu", ["none"], ["y"])).graph, {}, {})
    (found,) = sparse([1.0], [9], [4]).graph.sparse_initializer
    with pytest.raises(ModelError, match="sparse tensor 'w' is malformed: index 9"):
        dense_of_sparse(found)
    with pytest.raises(ModelError, match="constant 'c' has an unknown attribute 'values'"):
        constant_of(helper.make_attribute("values", [1]), "c")
    short = constant("w", [1, 2, 3, 4])
    short.raw_data = short.raw_data[:7]
    with pytest.raises(ModelError, match="tensor 'w' is malformed"):
        constant_value(short, "w")


def test_an_operator_of_another_opset() -> None:
    module = parse(
        """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %y = onnx.Swish(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return %y : tensor<4xf32> }"""
    )
    with pytest.raises(PassFailedException, match="operator Swish is not part of opset 23"):
        run_passes(module, "onnx-fold-constants")


# ---------------------------------------------------------------------- reading


def without_opset() -> onnx.ModelProto:
    model = relu()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def recursive() -> onnx.ModelProto:
    """A function that calls itself."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("mine", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="mine")
    function = helper.make_function("mine", "F", ["a"], ["b"], [call], opsets)
    model = model_of([node("F", ["x"], ["y"], domain="mine")], [X], [Y], functions=[function])
    model.opset_import.append(opsets[1])
    return model


def old_scan() -> onnx.ModelProto:
    """A Scan with a batch, which ONNX's converter drops from the inputs."""
    pairs = [("s", "t"), ("i", "o")]
    body = helper.make_graph(
        [node("Add", ["s", "i"], ["t"]), node("Identity", ["t"], ["o"])],
        "body",
        [tensor(i, 2) for i, _ in pairs],
        [tensor(o, 2) for _, o in pairs],
    )
    scan = node("Scan", ["", "init", "xs"], ["last", "ys"], body=body, num_scan_inputs=1)
    inputs = [tensor("init", 1, 2), tensor("xs", 1, 3, 2)]
    return model_of([scan], inputs, [tensor("last", 1, 2), tensor("ys", 1, 3, 2)], opset=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_opset, "the model names no opset of ONNX's default domain"),
        (recursive, "its functions cannot be inlined: Cycle detected"),
        (old_scan, "opset 8 cannot be lifted to 23: it would change input 'init'"),
        (lambda: one(node("Relu", ["z"], ["y"])), "invalid model: Nodes in a graph must be"),
        (lambda: adds([external([4])]), "'w': its external data name no file"),
        (
            lambda: adds([external([4], location="w", length="12")]),
            "'w' of type f32 and shape [4] takes 16 bytes, but its external data are 12 bytes",
        ),
        (
            lambda: adds([external([4], location="w", offset="-4")]),
            "bytes, but its external data are 16 bytes at offset -4",
        ),
        (
            lambda: adds([external([4], location="w", offset="four")]),
            "'w': malformed external data entry",
        ),
    ],
)
def test_what_cannot_be_read(make: Callable[[], onnx.ModelProto], message: str) -> None:
    fails(make().SerializeToString(), re.escape(message))


def test_devices_are_not_read() -> None:
    fails(Path("/dev/zero"), "/dev/zero: cannot be read: it is a device")
    with pytest.raises(OSError, match="it is a device"):
        refuse_device(Path("/dev/null"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0b\x01", "malformed model: wire type 3 at byte 1"),
        (b"\x0a\x09a", "malformed model: a field at byte 2 is longer than its message"),
        (b"\x08\x80", "malformed model: it ends inside a field"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        list(fields(data, 0, len(data)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"n": -3}}, "dimension 0 (n) of input 'x' is -3"),
        ({"input_shapes": {"x": (3,)}}, "has rank 2, but a tensor of shape [3] is given"),
        (
            {"input_shapes": {"x": (3, 5)}},
            "has dimension 1 = 4, but the tensor given has shape [3, 5]",
        ),
    ],
)
def test_shapes_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    model = one(node("Relu", ["x"], ["y"]), x=tensor("x", "n", 4))
    fails(model.SerializeToString(), re.escape(message), **options)


# ---------------------------------------------------------------------- from IR


@pytest.mark.parametrize(
    ("arguments", "result", "body", "message"),
    [
        ("%x: T", "T", '"test.termop"(%x) : (T) -> ()', "'main' does not end in func.return"),
        (
            "%x: T, %y: T",
            '(T {onnx.name = "y"})',
            "func.return %x : T",
            "output 'y' has the name of another value",
        ),
        (
            "%x: T",
            "T",
            '%y = onnx.Custom "mine" "M"(%x) {a = unit} : (T) -> T\n func.return %y : T',
            "attribute 'a' = unit has no ONNX form",
        ),
        (
            "%x: tensor<4xindex>",
            "tensor<4xindex>",
            "func.return %x : tensor<4xindex>",
            "ONNX has no element type index",
        ),
        ("%x: index", "index", "func.return %x : index", "ONNX has no type index"),
    ],
)
def test_what_onnx_cannot_say(arguments: str, result: str, body: str, message: str) -> None:
    text = f"func.func @main({arguments}) -> {result} {{ {body} }}".replace("T", "tensor<4xf32>")
    with pytest.raises(ModelError, match=message):
        export_model(parse(text), ".")


def test_a_module_without_a_main_function() -> None:
    text = "".join(f"func.func @{n}() {{ func.return }}\n" for n in "ab")
    with pytest.raises(
        ModelError, match=r"m\.mlir: the module has 2 functions, and none is called"
    ):
        main_function(parse(text), "m.mlir")
