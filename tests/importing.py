"""Small ONNX models, and IR as text, for the tests of the importer."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.printer import Printer

from elk_ir.dialects.onnx import ONNX, CustomOp, OnnxOp
from elk_ir.dialects.te import TE
from elk_ir.errors import ModelError
from elk_ir.frontend.importer import import_model

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


def fails(source: Path | str | bytes, match: str, **options: object) -> ModelError:
    with pytest.raises(ModelError, match=match) as caught:
        import_model(source, **options)  # pyright: ignore[reportArgumentType]
    assert "Traceback" not in str(caught.value)
    return caught.value


def relu(**more: object) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "the relu")]
    return model_of(nodes, [tensor("x", "n", None)], [tensor("y", None, None)], **more)  # pyright: ignore[reportArgumentType]
