"""Where the bytes of a tensor lie inside an `.onnx` file.

A small walker over protobuf's wire format. It descends only towards the tensors that are asked for
and skips every other field by its length, so it takes time linear in the number of fields it
passes, whatever the size of the weights. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elk_ir.errors import ModelError

# A path from ModelProto to a TensorProto: (field number, index among that field's occurrences) …
Path = tuple[tuple[int, int], ...]

MODEL_GRAPH = 7
MODEL_FUNCTIONS = 25
FUNCTION_NODE = 7
GRAPH_NODE = 1
GRAPH_INITIALIZER = 5
NODE_ATTRIBUTE = 5
ATTRIBUTE_TENSOR = 5
ATTRIBUTE_GRAPH = 6
TENSOR_FLOAT_DATA = 4
TENSOR_RAW_DATA = 9
TENSOR_DOUBLE_DATA = 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class ByteRange:
    """`length` bytes from `offset` of the file."""

    offset: int
    length: int


Buffer = bytes | memoryview


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """(value, position behind it) of a varint."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, payload start, payload end) of the fields of a message.

    Raises ModelError when the bytes are no protobuf message.
    """
    at = start
    try:
        while at < end:
            key, at = _varint(data, at)
            wire = key & 7
            if wire == _BYTES:
                length, at = _varint(data, at)
                stop = at + length
            elif wire == _VARINT:
                _, stop = _varint(data, at)
            elif wire == _FIXED64:
                stop = at + 8
            elif wire == _FIXED32:
                stop = at + 4
            else:
                raise ModelError(f"malformed model: wire type {wire} at byte {at}")
            if stop > end:
                raise ModelError(
                    f"malformed model: a field at byte {at} is longer than its message"
                )
            yield key >> 3, wire, at, stop
            at = stop
    except IndexError:
        raise ModelError("malformed model: it ends inside a field") from None


_Tree = dict[int, dict[int, "_Tree"]]


def find_tensor_data(data: Buffer, wanted: Iterable[Path]) -> dict[Path, ByteRange]:
    """The stored bytes (raw_data, or packed float_data or double_data) of the wanted tensors.

    A tensor whose numbers are stored in several pieces or as varints has no byte range and is left
    out of the result.
    """
    tree: _Tree = {}
    for path in wanted:
        level = tree
        for number, index in path:
            level = level.setdefault(number, {}).setdefault(index, {})
    found: dict[Path, ByteRange] = {}
    if tree:
        _descend(data, 0, len(data), tree, (), found)
    return found


def _descend(
    data: Buffer, start: int, end: int, tree: _Tree, path: Path, found: dict[Path, ByteRange]
) -> None:
    if not tree:
        place = _tensor_bytes(data, start, end)
        if place is not None:
            found[path] = place
        return
    seen = dict.fromkeys(tree, 0)
    for number, wire, at, stop in fields(data, start, end):
        if number not in seen or wire != _BYTES:
            continue
        index = seen[number]
        seen[number] = index + 1
        below = tree[number].get(index)
        if below is not None:
            _descend(data, at, stop, below, (*path, (number, index)), found)


def _tensor_bytes(data: Buffer, start: int, end: int) -> ByteRange | None:
    places = [
        (ByteRange(at, stop - at) if wire == _BYTES else None)
        for number, wire, at, stop in fields(data, start, end)
        if number in (TENSOR_FLOAT_DATA, TENSOR_RAW_DATA, TENSOR_DOUBLE_DATA)
    ]
    return places[0] if len(places) == 1 else None
