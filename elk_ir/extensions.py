"""What other packages add to the compiler, through entry points (docs/extending.md).

| group | a name stands for | the object |
|---|---|---|
| `xdsl.universe` | anything | an xDSL `Universe`: dialects, passes, emitters, frontends |
| `elk_ir.operators` | anything | an `Operators` |
| `elk_ir.chips` | the chip `NAME` | a package that holds `NAME.toml` |
| `elk_ir.targets` | the target `NAME` | an `elk_ir.target.Target` |

Nothing is loaded before it is asked for. What is found depends on `sys.path` alone, so that a
package that is put there later is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elk_ir.errors import ElkError

if TYPE_CHECKING:
    from xdsl.universe import Universe

    from elk_ir.frontend.graph import Node as ImportedNode
    from elk_ir.frontend.graph import ValueType
    from elk_ir.numerics.kernels import Kernel
    from elk_ir.passes.onnx_lowerings.context import Lowering

OPERATORS = "elk_ir.operators"
CHIPS = "elk_ir.chips"
TARGETS = "elk_ir.targets"


@dataclass(frozen=True)
class Operators:
    """Operators from outside: how they are lowered, what their kernels compute, their shapes.

    lowerings: `domain:OpType` (`OpType` alone in ONNX's own domain) -> a function from the lowering
    context and the node to te values.
    kernels: kind of a structured operator -> its kernel, for te operations of an own dialect.
    shapes: `domain:OpType` -> the types of the results of an imported node, None for each that the
    rule does not know. Without a rule, the model must declare the types itself.
    """

    lowerings: Mapping[str, Lowering] = field(default_factory=dict)
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    shapes: Mapping[str, Callable[[ImportedNode], Sequence[ValueType | None]]] = field(
        default_factory=dict
    )


def operators() -> Operators:
    """The operators of all extensions. Raises ElkError if one can't be loaded, or if two of them
    define the same."""
    return _operators(tuple(sys.path))


def universe() -> Universe:
    """xDSL's own dialects, passes and emitters, ours, and those of every extension.

    Raises ElkError if an extension can't be loaded or takes a name that is in use.
    """
    return _universe(tuple(sys.path))


def extensions(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, unloaded. Raises ElkError for a name defined twice."""
    return _extensions(group, tuple(sys.path))


def load(entry: EntryPoint) -> Any:
    """The object that an entry point names. Raises ElkError, whatever its import raised."""
    try:
        return entry.load()
    except Exception as error:  # the code of others: anything may go wrong in it
        raise ElkError(
            f"the extension {entry.name!r}{_package(entry)} can't be loaded:"
            f" {type(error).__name__}: {error}",
            where=f"entry point {entry.group}",
            hint=f"it names {entry.value}; mend or uninstall that package",
        ) from error


def chip_file(name: str) -> Path | None:
    """The file of a chip that an extension brings; None if none does. Raises ElkError if the
    extension can't be loaded or has no such file."""
    entry = extensions(CHIPS).get(name)
    if entry is None:
        return None
    folder = files(load(entry))
    path = Path(str(folder / f"{name}.toml"))
    if not path.is_file():
        raise ElkError(
            f"the extension {name!r}{_package(entry)} has no file {path.name}",
            where=f"entry point {CHIPS}",
            hint=f"{entry.value} is to be the package that holds it (with the file in its"
            " package data)",
        )
    return path


@cache
def _extensions(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    del path  # what is found depends on it
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda e: (e.name, e.value)):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise _clash(group, entry.name, other, entry)
    return found


@cache
def _operators(path: tuple[str, ...]) -> Operators:
    merged: dict[str, dict[str, Any]] = {"lowerings": {}, "kernels": {}, "shapes": {}}
    owners: dict[tuple[str, str], EntryPoint] = {}
    for entry in _extensions(OPERATORS, path).values():
        given = load(entry)
        if not isinstance(given, Operators):
            raise ElkError(
                f"the extension {entry.name!r}{_package(entry)} is no elk_ir.extensions.Operators",
                where=f"entry point {OPERATORS}",
            )
        for table, entries in merged.items():
            for name, value in getattr(given, table).items():
                other = owners.setdefault((table, name), entry)
                if other is not entry:
                    raise _clash(OPERATORS, name, other, entry)
                entries[name] = value
    return Operators(**merged)


@cache
def _universe(path: tuple[str, ...]) -> Universe:
    from xdsl.universe import Universe

    del path
    try:
        return Universe.get_multiverse()
    except Exception as error:  # the code of others: anything may go wrong in it
        raise ElkError(
            f"an extension of xDSL can't be loaded: {type(error).__name__}: {error}",
            where="entry point xdsl.universe",
            hint="mend or uninstall the package that brings it",
        ) from error


def _clash(group: str, name: str, first: EntryPoint, second: EntryPoint) -> ElkError:
    return ElkError(
        f"two extensions define {name!r}: {first.value}{_package(first)}"
        f" and {second.value}{_package(second)}",
        where=f"entry point {group}",
        hint="uninstall one of them",
    )


def _package(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f" of package {entry.dist.name}"
