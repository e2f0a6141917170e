"""Where an operation comes from, and failures that say so. Used by passes and by the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from xdsl.dialects.builtin import (
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    LocationAttr,
    NameLoc,
    UnknownLoc,
)
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import PassFailedException


class LocatedFailure(PassFailedException):
    """A pass gives up because of one operation; the driver prints where that operation is."""

    op: Operation
    notes: tuple[str, ...]

    def __init__(self, op: Operation, message: str, notes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.op = op
        self.notes = tuple(notes)


def fail_at(op: Operation, message: str, *notes: str) -> NoReturn:
    """Raise LocatedFailure: the way a pass reports what it cannot do with `op`."""
    raise LocatedFailure(op, message, notes)


def place_of(op: Operation) -> str | None:
    """`file:line:col` of the operation or of the closest operation around it that has a place.

    Columns count from 1: column 0 marks a node of a binary model, which has no line, so that only
    its file is named.
    """
    ancestor: Operation | None = op
    while ancestor is not None:
        if (place := place_of_location(ancestor.location)) is not None:
            return place
        ancestor = ancestor.parent_op()
    return None


def place_of_location(location: LocationAttr | Attribute) -> str | None:
    """`file:line:col` of a location, following names, call sites and fusions; None if unknown."""
    match location:
        case UnknownLoc():
            return None
        case FileLineColLoc():
            if location.column.data == 0:
                return location.filename.data
            return f"{location.filename.data}:{location.line.data}:{location.column.data}"
        case NameLoc():
            return place_of_location(location.location)
        case CallSiteLoc():
            return place_of_location(location.callee) or place_of_location(location.caller)
        case FusedLoc():
            return next(filter(None, map(place_of_location, _parts(location))), None)
        case _:
            return None


def _parts(location: FusedLoc) -> Iterable[Attribute]:
    parts = location.locations
    return parts if isinstance(parts, Iterable) else ()
