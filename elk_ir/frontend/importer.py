"""`import_model`: an ONNX file as a module of the onnx dialect, shapes bound, constants folded."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.errors import ModelError
from elk_ir.frontend.dims import Dim, bind_shapes
from elk_ir.frontend.fold import Folder, declared_types
from elk_ir.frontend.graph import Graph, ValueType, type_from_proto
from elk_ir.frontend.load import LoadedModel, load_model
from elk_ir.frontend.weights import WeightRef, load_weight

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto
    from xdsl.dialects.builtin import ModuleOp


def import_model(
    source: Path | str | bytes,
    *,
    name: str | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModuleOp:
    """Import a model: a path, or the bytes of a file called `name`.

    `dims` binds symbolic dimensions by name, `input_shapes` (input -> shape) by the shapes of the
    inputs that will be given; both may be partial as long as nothing stays unbound. Weights are not
    read and need not exist. Raises ModelError, with one message, when the file is no model, is
    invalid or too new, or when a dimension is unbound.
    """
    from elk_ir.frontend.build_ir import build_module

    with _paused_collection():
        loaded = load_model(source, name=name)
        graph = fold_model(loaded, dims=dims, input_shapes=input_shapes)
        return build_module(graph, model=Path(loaded.name).name, opset=loaded.opset)


@contextmanager
def _paused_collection() -> Iterator[None]:
    """No cyclic garbage collection inside: all that is built here stays, and walking it again and
    again takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def fold_model(
    loaded: LoadedModel,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Bind the dimensions of a loaded model, infer all types and fold. Raises ModelError."""
    proto = loaded.proto.graph
    constants = {t.name for t in proto.initializer} | set(loaded.weights)
    constants |= {s.values.name for s in proto.sparse_initializer}
    inputs = {i.name: i for i in proto.input if i.name not in constants}
    tensors: dict[str, list[Dim]] = {}
    for label, info in inputs.items():
        declared: list[Dim] | None = declared_dims(info)
        if declared is None and info.type.WhichOneof("value") == "tensor_type":
            given = (input_shapes or {}).get(label)
            if given is None:
                raise ModelError(
                    f"input {label!r} has no declared rank", hint="give inputs of the wanted shapes"
                )
            declared = [int(d) for d in given]
        if declared is not None:
            tensors[label] = declared
    shapes = bind_shapes(tensors, dims or {}, input_shapes or {}, first_readers(proto))
    types = {
        label: ValueType(info.type.tensor_type.elem_type, shapes[label])
        if label in shapes
        else type_from_proto(info.type)
        for label, info in inputs.items()
    }
    bound: dict[str, int] = dict(dims or {})
    for label, declared in tensors.items():
        for dim, extent in zip(declared, shapes[label], strict=True):
            if isinstance(dim, str):
                bound.setdefault(dim, extent)

    def load(ref: WeightRef) -> np.ndarray | None:
        try:
            return load_weight(ref, loaded.base_dir, buffers=loaded.buffers)
        except ModelError:
            return None  # folding does without weights that are not there

    folder = Folder(
        loaded.opset, load, loaded.node_index, lambda: declared_types(loaded.declared, bound)
    )
    graph = folder.main_graph(proto, types, loaded.weights)
    graph.dims = {
        label: tuple(d if isinstance(d, str) else "" for d in declared)
        for label, declared in tensors.items()
        if any(isinstance(d, str) for d in declared)
    }
    return graph


def declared_dims(info: ValueInfoProto) -> list[Dim] | None:
    """The declared dimensions of a tensor input (-1 counts as unknown); None without a rank."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    return dims


def first_readers(proto: GraphProto) -> dict[str, str]:
    """Value -> the first node that reads it, by name."""
    readers: dict[str, str] = {}
    for node in proto.node:
        for value in node.input:
            if value and value not in readers:
                readers[value] = node.name or f"{node.op_type}:{node.output[0]}"
    return readers
