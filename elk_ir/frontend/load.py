"""From a file to a checked ModelProto of one opset, with its weights set apart.

Large tensors leave the protobuf at once: what is left is small, and is what ONNX's checker, inliner
and version converter see. A weight is named by a byte range of the `.onnx` itself (inline) or of a
file beside it (external data), which need not exist.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from elk_ir.errors import ModelError, check_file_name
from elk_ir.frontend import protobuf_offsets as pb
from elk_ir.frontend.element_types import BY_NAME, BY_ONNX, ElementType, stored_bytes
from elk_ir.frontend.weights import (
    WeightPart,
    WeightRef,
    content_hash,
    map_file,
    resolve_file,
)

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

# Operators are lowered from this opset; newer models keep their own.
TARGET_OPSET = 23
# A tensor with more elements is a weight, a smaller one part of the program.
INLINE_ELEMENTS = 64
INLINE_INTEGERS = 1024
# Operators of the default domain that no schema knows (SimplifiedLayerNormalization) go through
# ONNX's tools under this domain, which those leave alone.
UNKNOWN_DOMAIN = "elk.unknown"


@dataclass
class LoadedModel:
    """A checked model. `weights` are the initializers that are not in `proto`, by name;
    `node_index` the position of each named node, `declared` the stated types of foreign operators'
    results, `buffers` the bytes of a model that was not read from a file; `base_dir` its folder."""

    proto: ModelProto
    name: str
    base_dir: Path
    opset: int
    weights: dict[str, WeightRef]
    node_index: dict[str, int]
    declared: list[ValueInfoProto]
    buffers: dict[str, bytes] = field(default_factory=dict)


def load_model(source: Path | str | bytes, *, name: str | None = None) -> LoadedModel:
    """Read, check and lift a model. Raises ModelError with one clear message for each bad input."""
    if isinstance(source, bytes):
        data, file, base_dir, buffers = source, name or "model.onnx", Path(), {}
        file = Path(file).name
        buffers[file] = source
    else:
        check_file_name(str(source), ModelError)
        path = Path(source)
        try:
            refuse_device(path)
            data = path.read_bytes()
        except FileNotFoundError:
            raise ModelError("no such file", where=str(source)) from None
        except OSError as error:
            raise ModelError(f"cannot be read: {error.strerror}", where=str(source)) from None
        file, base_dir, buffers = path.name, path.parent, {}
    label = name or file
    proto = _parse(data, label)
    _check_versions(proto, label)
    _reference_inline_tensors(proto, data, file)
    del data
    proto = _inline_functions(proto, label)
    node_index = {n.name: i for i, n in enumerate(proto.graph.node) if n.name}
    weights = _extract_weights(proto.graph, _External(base_dir, buffers))
    set_apart_unknown_operators(proto.graph)
    _check(proto, label)
    declared = _foreign_results(proto.graph)
    proto, opset = _lift(proto, label)
    return LoadedModel(proto, label, base_dir, opset, weights, node_index, declared, buffers)


def _parse(data: bytes, label: str) -> ModelProto:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        if looks_like_onnx(data):
            raise ModelError(
                "the file is truncated or damaged: it starts as an ONNX model but cannot be read",
                where=label,
            ) from None
        raise ModelError("not an ONNX model", where=label) from None
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        if data[:1] == b"\x08" and proto.ir_version:
            raise ModelError("the file is truncated: it holds no graph", where=label)
        raise ModelError("not an ONNX model", where=label)
    return proto


def refuse_device(path: Path) -> None:
    """Raises OSError for a device, which may have no end."""
    if path.is_char_device() or path.is_block_device():
        raise OSError(errno.EINVAL, "it is a device", str(path))


def looks_like_onnx(data: bytes) -> bool:
    """Whether the first fields are those of a ModelProto: an IR version, then text or a graph."""
    if len(data) < 4 or data[0] != 0x08 or not 1 <= data[1] < 64:
        return False
    return data[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72)


def _check_versions(proto: ModelProto, label: str) -> None:
    from onnx import IR_VERSION, __version__
    from onnx.defs import onnx_opset_version

    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > onnx_opset_version():
            raise ModelError(
                f"the model uses opset {opset.version}, newer than the newest known "
                f"({onnx_opset_version()})",
                where=label,
                hint=f"export it with an older opset, or update the onnx package ({__version__})",
            )
        if opset.domain == "ai.onnx":
            opset.domain = ""
    if proto.ir_version > IR_VERSION:
        raise ModelError(
            f"the model uses IR version {proto.ir_version}, newer than the newest known "
            f"({IR_VERSION})",
            where=label,
            hint=f"update the onnx package ({__version__})",
        )


# --- large tensors ------------------------------------------------------------------------------


def is_small(element: ElementType, count: int) -> bool:
    """Whether a tensor is part of the program (its elements go into IR) rather than a weight."""
    return count <= INLINE_ELEMENTS or (element.is_integer and count <= INLINE_INTEGERS)


def _count(tensor: TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _tensors(proto: ModelProto) -> Iterator[tuple[pb.Path, TensorProto]]:
    yield from _graph_tensors(proto.graph, ((pb.MODEL_GRAPH, 0),))
    for i, function in enumerate(proto.functions):
        path = ((pb.MODEL_FUNCTIONS, i),)
        yield from _node_tensors(function.node, path, pb.FUNCTION_NODE)


def _graph_tensors(graph: GraphProto, path: pb.Path) -> Iterator[tuple[pb.Path, TensorProto]]:
    for i, tensor in enumerate(graph.initializer):
        yield (*path, (pb.GRAPH_INITIALIZER, i)), tensor
    yield from _node_tensors(graph.node, path, pb.GRAPH_NODE)


def _node_tensors(
    nodes: Iterable[NodeProto], path: pb.Path, number: int
) -> Iterator[tuple[pb.Path, TensorProto]]:
    for i, node in enumerate(nodes):
        for j, attribute in enumerate(node.attribute):
            below = (*path, (number, i), (pb.NODE_ATTRIBUTE, j))
            if attribute.HasField("t"):
                yield (*below, (pb.ATTRIBUTE_TENSOR, 0)), attribute.t
            elif attribute.HasField("g"):
                yield from _graph_tensors(attribute.g, (*below, (pb.ATTRIBUTE_GRAPH, 0)))


def _reference_inline_tensors(proto: ModelProto, data: bytes, file: str) -> None:
    """Replace the elements of large inline tensors by their place in the `.onnx` file.

    They become external data whose location is the file itself, which every ONNX tool hands on.
    """
    from onnx import TensorProto

    large: dict[pb.Path, TensorProto] = {}
    for path, tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type not in BY_ONNX:
            continue
        if not is_small(BY_ONNX[tensor.data_type], _count(tensor)):
            large[path] = tensor
    for path, place in pb.find_tensor_data(data, large).items():
        tensor = large[path]
        element = BY_ONNX[tensor.data_type]
        if not element.bits or place.length != stored_bytes(element.name, tuple(tensor.dims)):
            continue  # complex numbers and packed types have their own layouts outside raw_data
        view = memoryview(data)[place.offset : place.offset + place.length]
        digest = content_hash(view)
        for name in ("raw_data", "float_data", "double_data"):
            tensor.ClearField(name)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", file),
            ("offset", str(place.offset)),
            ("length", str(place.length)),
            ("checksum", digest),
        ):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value


@dataclass
class _External:
    """Turns external tensors into references; a file is looked up once."""

    base_dir: Path
    buffers: Mapping[str, bytes]
    files: dict[str, np.ndarray | None] = field(default_factory=dict)

    def open(self, file: str) -> np.ndarray | None:
        """The bytes of a file beside the model (mapped), None if there is none."""
        if file not in self.files:
            path = resolve_file(file, self.base_dir)
            self.files[file] = map_file(path) if path.is_file() else None
        return self.files[file]

    def reference(self, tensor: TensorProto, name: str) -> WeightRef:
        entries = {e.key: e.value for e in tensor.external_data}
        file = entries.get("location", "")
        if not file and tensor.data_location == 1:
            raise ModelError(f"initializer {name!r}: its external data name no file")
        if tensor.data_type not in BY_ONNX or not BY_ONNX[tensor.data_type].bits:
            raise ModelError(
                f"initializer {name!r} has a type that cannot be stored as external data"
            )
        dtype = BY_ONNX[tensor.data_type].name
        shape = tuple(tensor.dims)
        needed = stored_bytes(dtype, shape)
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", needed))
        except ValueError:
            raise ModelError(f"initializer {name!r}: malformed external data entry") from None
        if offset < 0 or length != needed:
            raise ModelError(
                f"initializer {name!r} of type {dtype} and shape {list(shape)} takes {needed} "
                f"bytes, but its external data are {length} bytes at offset {offset}"
            )
        # `_reference_inline_tensors` has hashed what it took out: 16 digits, where ONNX's own
        # checksum is a SHA-1 of 40. A weight that was left out of the model has no file.
        digest = entries.get("checksum", "")
        if len(digest) != 16:
            digest = self._hash(file, offset, length, name) if file else ""
        return WeightRef((WeightPart(file, offset, length, digest, dtype, shape, name),))

    def _hash(self, file: str, offset: int, length: int, name: str) -> str:
        data = self.open(file)
        if data is None:
            return ""
        if offset + length > data.size:
            raise ModelError(
                f"the weights of {name!r} need bytes {offset} to {offset + length} of {file!r}, "
                f"which has {data.size}",
                hint="the external data file is truncated or belongs to another model",
            )
        return content_hash(data[offset : offset + length])


def _extract_weights(graph: GraphProto, external: _External) -> dict[str, WeightRef]:
    """Move external initializers and Constant nodes to a table; they become graph inputs.

    Those of subgraphs move to the main graph, whose names subgraphs see.
    """
    from onnx.helper import make_tensor_value_info

    weights: dict[str, WeightRef] = {}

    def visit(g: GraphProto, inner: bool) -> None:
        renamed: dict[str, str] = {}

        def move(tensor: TensorProto, name: str) -> None:
            unique = name
            while inner and (unique in weights or unique in taken):
                unique += "_"  # sibling branches may use one name for different tensors
            if unique != name:
                renamed[name] = unique
            weights[unique] = external.reference(tensor, unique)

        large = [t for t in g.initializer if _is_external(t)]
        for tensor in large:
            move(tensor, tensor.name)
        if large:
            kept = [t for t in g.initializer if not _is_external(t)]
            del g.initializer[:]
            g.initializer.extend(kept)
        constants = [
            i
            for i, node in enumerate(g.node)
            if node.op_type == "Constant" and any(_is_external(a.t) for a in node.attribute)
        ]
        for i in constants:
            move(g.node[i].attribute[0].t, g.node[i].output[0])
        for i in reversed(constants):
            del g.node[i]
        _rename_reads(g, renamed)
        for node in g.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g, True)

    taken = _names(graph)
    visit(graph, False)
    declared = {i.name for i in graph.input}
    for name, ref in weights.items():
        if name not in declared:
            part = ref.parts[0]
            info = make_tensor_value_info(name, BY_NAME[part.dtype].onnx, part.shape)
            graph.input.append(info)
    return weights


def _is_external(tensor: TensorProto) -> bool:
    # 1 is TensorProto.EXTERNAL; a tensor without any elements is a weight that was left out.
    return tensor.data_location == 1 or (tensor.data_type != 0 and _is_left_out(tensor))


def _is_left_out(tensor: TensorProto) -> bool:
    return (
        tensor.data_location == 0
        and _count(tensor) > 0
        and not tensor.HasField("raw_data")
        and not any(
            len(getattr(tensor, f"{kind}_data"))
            for kind in ("float", "int32", "int64", "double", "uint64", "string")
        )
    )


def _names(graph: GraphProto) -> set[str]:
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def _rename_reads(graph: GraphProto, renamed: Mapping[str, str]) -> None:
    """Rename what nodes read, in this graph and in those inside it."""
    if not renamed:
        return
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in renamed:
                node.input[i] = renamed[name]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_reads(attribute.g, renamed)
    for output in graph.output:
        output.name = renamed.get(output.name, output.name)


# --- functions, checks, opset ---------------------------------------------------------------------


def _inline_functions(proto: ModelProto, label: str) -> ModelProto:
    if not proto.functions:
        return proto
    from onnx.checker import ValidationError
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(proto, convert_version=True)
    except (RuntimeError, ValueError, ValidationError) as error:
        raise ModelError(
            f"its functions cannot be inlined: {_first_line(error)}", where=label
        ) from None


def set_apart_unknown_operators(graph: GraphProto) -> None:
    """Give operators of the default domain that no opset defines a domain of their own."""
    known = known_operators()
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
        if not node.domain and node.op_type not in known:
            node.domain = UNKNOWN_DOMAIN
        for attribute in node.attribute:
            if attribute.HasField("g"):
                set_apart_unknown_operators(attribute.g)


@cache
def known_operators() -> frozenset[str]:
    """Names that any opset of the default domain defines."""
    from onnx.defs import get_all_schemas_with_history

    return frozenset(s.name for s in get_all_schemas_with_history() if s.domain == "")


def _check(proto: ModelProto, label: str) -> None:
    from onnx import checker

    imported = {o.domain for o in proto.opset_import}
    used = _domains(proto.graph)
    if "" not in imported and "" in used:
        raise ModelError("the model names no opset of ONNX's default domain", where=label)
    for domain in sorted(used - imported):
        entry = proto.opset_import.add()
        entry.domain, entry.version = domain, 1
    # The checker wants a shape on every input and output; runtimes do not, and inference finds it.
    shapeless = [
        info.type.tensor_type
        for info in (*proto.graph.input, *proto.graph.output)
        if info.type.WhichOneof("value") == "tensor_type"
        and not info.type.tensor_type.HasField("shape")
    ]
    for type_ in shapeless:
        type_.shape.SetInParent()
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        named = re.search(r"Name: (.*?) OpType:", str(error))
        raise ModelError(
            f"invalid model: {_first_line(error)}",
            where=label,
            details=[f"at node {named[1]!r}"] if named else [],
        ) from None
    for type_ in shapeless:
        type_.ClearField("shape")


def _domains(graph: GraphProto) -> set[str]:
    found: set[str] = set()
    for node in graph.node:
        found.add(node.domain)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _domains(attribute.g)
    return found


def _foreign_results(graph: GraphProto) -> list[ValueInfoProto]:
    """What the model states of the results of operators that ONNX cannot infer.

    All other stated types are ignored: exporters leave stale ones behind.
    """
    wanted = {o for node in graph.node if node.domain for o in node.output}
    infos = [i for i in (*graph.value_info, *graph.output) if i.name in wanted]
    del graph.value_info[:]
    return infos


def _lift(proto: ModelProto, label: str) -> tuple[ModelProto, int]:
    from onnx import version_converter

    # A model without operators of the default domain may leave its opset out.
    opset = next((o.version for o in proto.opset_import if o.domain == ""), TARGET_OPSET)
    if opset >= TARGET_OPSET:
        return proto, opset
    problem = f"opset {opset} cannot be lifted to {TARGET_OPSET}"
    try:
        lifted = version_converter.convert_version(proto, TARGET_OPSET)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise ModelError(f"{problem}: {_first_line(error)}", where=label) from None
    # The converter of Scan before opset 9 drops the batch from the model's inputs.
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in proto.graph.input}
    for info in lifted.graph.input:
        if len(info.type.tensor_type.shape.dim) != ranks.get(info.name):
            raise ModelError(f"{problem}: it would change input {info.name!r}", where=label)
    return lifted, TARGET_OPSET


def _first_line(error: BaseException) -> str:
    """The first line of ONNX's message, without the place and the text of an assertion."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return re.sub(r"^\S+:\d+: \w+: Assertion `.*` failed: ", "", lines[0])
