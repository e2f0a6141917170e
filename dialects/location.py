"""Locations: the name of the ONNX node an operation stems from, carried through every replacement.

xDSL keeps a location on each operation (`op.location`), copies it in `clone`, prints it with
`--print-debuginfo` and parses it back; it does not carry it over when an operation is replaced.
Passes therefore call `copy_location` (one source) or `fuse_locations` (several) on what they build.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from xdsl.dialects.builtin import (
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute, Operation


def node_location(name: str, file: str = "", index: int = 0) -> NameLoc:
    """`loc("name"("file":index:0))`; `index` is the node's position in its graph."""
    return NameLoc(StringAttr(name), _file_location(file, index) if file else NoneAttr())


@lru_cache(maxsize=1 << 14)
def _file_location(file: str, index: int) -> FileLineColLoc:
    # Cached: building an attribute costs as much as building an operation.
    return FileLineColLoc(_string(file), IntAttr(index), _ZERO)


@lru_cache(maxsize=64)
def _string(text: str) -> StringAttr:
    return StringAttr(text)


_ZERO = IntAttr(0)


def set_node_name(op: Operation, name: str, file: str = "", index: int = 0) -> None:
    """Name the ONNX node that `op` stems from."""
    op.location = node_location(name, file, index)


def location_names(location: Attribute) -> tuple[str, ...]:
    """The node names inside a location, in order, without repetition."""
    names: dict[str, None] = {}

    def visit(loc: Attribute) -> None:
        if isinstance(loc, NameLoc):
            names[loc.desc.data] = None
        elif isinstance(loc, FusedLoc):
            for part in getattr(loc.locations, "data", ()):
                visit(part)
        elif isinstance(loc, CallSiteLoc):
            visit(loc.callee)

    visit(location)
    return tuple(names)


def node_names(op: Operation) -> tuple[str, ...]:
    """All ONNX nodes `op` stems from, the leading one first; empty when there is no location."""
    return location_names(op.location)


def node_name(op: Operation) -> str:
    """The name of the (leading) ONNX node `op` stems from; the operation's own name without one."""
    names = node_names(op)
    if names:
        return names[0]
    if isinstance(op.location, FileLineColLoc):
        loc = op.location
        return f"{loc.filename.data}:{loc.line.data}:{loc.column.data}"
    return op.name


def copy_location(from_op: Operation, *to_ops: Operation) -> None:
    """Give `to_ops` the location of the operation they replace."""
    for op in to_ops:
        op.location = from_op.location


def fuse_locations(from_ops: Iterable[Operation], *to_ops: Operation) -> None:
    """Give `to_ops` the locations of all operations that they replace, the leading one first."""
    parts: dict[LocationAttr, None] = {}
    for op in from_ops:
        for loc in _flatten(op.location):
            parts[loc] = None
    if not parts:
        return
    fused: LocationAttr = (
        next(iter(parts)) if len(parts) == 1 else FusedLoc(tuple(parts), NoneAttr())
    )
    for op in to_ops:
        op.location = fused


def _flatten(location: LocationAttr) -> Iterable[LocationAttr]:
    if isinstance(location, UnknownLoc):
        return
    if isinstance(location, FusedLoc):
        for part in getattr(location.locations, "data", ()):
            yield from _flatten(part)
        return
    yield location
