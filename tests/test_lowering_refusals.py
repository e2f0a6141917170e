"""ONNX operations that are not lowered: each is one message that says what of it is missing."""

from __future__ import annotations

import re

import pytest
from helpers import context
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException

from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass

CALL = re.compile(r"(?P<head>.*?)\((?P<args>[^)]*)\)(?P<attributes>.*?)-> (?P<results>.*)", re.S)


def module_of(call: str) -> str:
    """A module of one operation, written `onnx.Op(types) {attributes} -> types`: an operand of a
    type is an argument, `none` is absent, `= value` after a type makes it a constant."""
    found = CALL.fullmatch(call)
    assert found is not None
    results = [r.strip() for r in found["results"].split(";")]
    arguments, constants, names, types = [], [], [], []
    for i, text in enumerate(a.strip() for a in found["args"].split(";") if a.strip()):
        type_, _, value = (part.strip() for part in text.partition("="))
        spelled = type_ if type_ == "none" else f"tensor<{type_}>"
        names.append("none" if type_ == "none" else f"%a{i}")
        types.append(spelled)
        if value:
            constants.append(f"%a{i} = onnx.Initializer dense<{value}> : {spelled}")
        elif type_ != "none":
            arguments.append(f"%a{i}: {spelled}")
    shown = [r if r == "none" else f"tensor<{r}>" for r in results]
    present = [r for r in shown if r != "none"]
    values = [f"%r{i}" for i in range(len(present))]
    listed = shown[0] if len(shown) == 1 else f"({', '.join(shown)})"
    return "\n".join(
        [
            f"func.func @main({', '.join(arguments)}) -> ({', '.join(present)}) {{",
            *constants,
            f"{', '.join(values)} = {found['head']}({', '.join(names)}){found['attributes']}"
            f": ({', '.join(types)}) -> {listed}",
            f"func.return {', '.join(values)} : {', '.join(present)} }}",
        ]
    )


MS = 'onnx.Custom "com.microsoft"'
REFUSED = [
    (
        f'{MS} "SkipLayerNormalization"(2x8xf32; 2x8xf32; 8xf32) -> 2x8xf32; 2x1xf32',
        "the mean and the inverse deviation as results",
    ),
    (
        f'{MS} "MatMulNBits"(3x64xf32; 8x2x16xui8; 16xf32; none; 64xi32) '
        "{K = 64 : i64, N = 8 : i64} -> 3x8xf32",
        "the order of groups (g_idx)",
    ),
    (
        f'{MS} "MatMulNBits"(3x64xf32; 8x2x16xui8; 16xf32) '
        "{K = 64 : i64, N = 8 : i64, bits = 5 : i64} -> 3x8xf32",
        "5 bits",
    ),
    (
        f'{MS} "RotaryEmbedding"(1x2x3x8xf32; 1x3xi64; 9x4xf32; 9x4xf32) '
        "{is_packed_batching = 1 : i64} -> 1x2x3x8xf32",
        "packed batches",
    ),
    (
        f'{MS} "MultiHeadAttention"(1x3x8xf32; 1x3x8xf32; 1x3x8xf32; none; 7xi32) '
        "{num_heads = 2 : i64} -> 1x3x8xf32",
        "a key padding mask of shape [7]",
    ),
    (
        f'{MS} "MultiHeadAttention"(1x3x8xf32; 1x3xf32; 1x3x8xf32) '
        "{num_heads = 2 : i64} -> 1x3x8xf32",
        "keys of shape [1, 3]",
    ),
    (
        f'{MS} "GroupQueryAttention"(1x1x16xf32; none; none; none; none; 1xi32; i32) '
        "{num_heads = 2 : i64, kv_num_heads = 1 : i64, smooth_softmax = 1 : i64} -> 1x1x8xf32",
        "a sink in the softmax",
    ),
    (
        f'{MS} "MatMulIntegerToFloat"(3x4xi8; 4x2xi8; 3xf32; f32) -> 3x2xf32',
        "a scale for each row",
    ),
    (
        f'{MS} "DynamicQuantizeLSTM"(1x1x1xf32; 1x1x4xi8; 1x1x4xi8) {{hidden_size = 1 : i64}}'
        " -> 1x1x1x1xf32",
        "a scale is absent",
    ),
    (f'{MS} "BiasGelu"(3xf32; 3xf32) -> 3xf32; 3xf32', "result 1 is not available"),
    (f'{MS} "Unheard"(3xf32) -> 3xf32', "no lowering for this operator"),
    ('"test.op"(3xf32) -> 3xf32', "not an ONNX operation"),
    (
        "onnx.CenterCropPad(4x4xf32; 2xi64) -> 2x2xf32",
        "its function body has onnx.Pad: Pad: pads is not a constant",
    ),
    ("onnx.DynamicQuantizeLinear(3xf32) -> 4xui8; f32; ui8", "its function body yields"),
    ("onnx.Cast(3xf32) {to = 24 : i64} -> 3xf8E8M0FNU", "conversion to float8e8m0"),
    ("onnx.Dropout(3xf32; f32; i1 = true) -> 3xf32", "random dropout (training_mode)"),
    ("onnx.Softmax(3x4xf32) {axis = 5 : i64} -> 3x4xf32", "axis 5 of a tensor of rank 2"),
    ("onnx.Reshape(4xf32; 1xi64) -> 5xf32", "4 elements can't have shape [5]"),
    (
        "onnx.ReverseSequence(2x3x4xf32; 3xi64) {time_axis = 2 : i64, batch_axis = 1 : i64}"
        " -> 2x3x4xf32",
        "time axis 2 and batch axis 1",
    ),
    ("onnx.EyeLike(20000x20000xi8) -> 20000x20000xi8", "stands for a constant of 400,000,000"),
    (
        'onnx.Resize(1x1x4xf32; none; none; 4xi64) {mode = "nearest", nearest_mode = "odd"}'
        " -> 1x1x8xf32",
        "nearest mode 'odd'",
    ),
    ("onnx.Resize(1x1x4xf32) -> 1x1x8xf32", "neither scales nor sizes"),
    (
        "onnx.RNN(5000x1x1xf32; 1x1x1xf32; 1x1x1xf32) {hidden_size = 1 : i64} -> 5000x1x1x1xf32",
        "steps are more than are unrolled (",
    ),
    (
        "onnx.RNN(2x1x1xf32; 2x1x1xf32; 2x1x1xf32) "
        '{hidden_size = 1 : i64, direction = "bidirectional", activations = ["Tanh"]}'
        " -> 2x2x1x1xf32",
        "1 activations for 2 directions",
    ),
    ("onnx.QuantizeLinear(3xf32; f32) -> 3xf16", "quantisation to float16"),
    (
        "onnx.QLinearMatMul(2x2xf8E4M3FN; f32; f8E4M3FN; 2x2xf8E4M3FN; f32; f8E4M3FN; f32;"
        " f8E4M3FN) -> 2x2xf8E4M3FN",
        "quantisation to float8_e4m3fn",
    ),
    ('onnx.Einsum(3xf32) {equation = "i,j->ij"} -> 3x3xf32', "equation 'i,j->ij' for 1 operands"),
    (
        "onnx.RNN(2x1x1xf32; 1x1x1xf32; 1x1x1xf32) "
        '{hidden_size = 1 : i64, activations = ["Odd"]} -> 2x1x1x1xf32',
        "activation 'Odd'",
    ),
    (
        "onnx.RNN(2x1x1xf32; 1x1x1xf32; 1x1x1xf32) "
        '{hidden_size = 1 : i64, direction = "sideways"} -> 2x1x1x1xf32',
        "direction 'sideways'",
    ),
    (
        "onnx.Resize(1x1x4xf32; none; none; 3xi64 = [1, 1, 8]) "
        '{mode = "linear", coordinate_transformation_mode = "odd"} -> 1x1x8xf32',
        "coordinate transformation mode 'odd'",
    ),
    (
        "onnx.Resize(1x1x4xf32; 6xf32; none; 3xi64 = [1, 1, 8]) "
        '{mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"} -> 1x1x8xf32',
        "a region of interest that is not constant",
    ),
    (
        'onnx.Upsample(1x1x4xf32; 3xf32 = [1.0, 1.0, 2.0]) {mode = "linear"} -> 1x1x8xf32',
        "mode 'linear'",
    ),
    (
        f'{MS} "Attention"(1x2x4xf32; 4x12xf32; 12xf32) '
        "{num_heads = 2 : i64, do_rotary = 1 : i64} -> 1x2x4xf32",
        "rotary embedding, and a past that shares its buffer with the result",
    ),
    ("onnx.TopK(3xf32; 1xi64 = 5) -> 5xf32; 5xi64", "the top 5 of 3 elements"),
    (
        "onnx.CenterCropPad(4x4xf32; 3xi64 = [1, 2, 3]) -> 2x2xf32",
        "its function body can't be imported",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(call: str, message: str) -> None:
    module = Parser(context(), module_of(call)).parse_module()
    with pytest.raises(PassFailedException, match=re.escape(message)):
        ConvertOnnxToTePass().apply(context(), module)
