"""`.onnx` files as input of `elk-opt` and `xdsl-opt`: the importer behind xDSL's frontend hook."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.frontend import Frontend

from elk_ir.errors import UsageError


def parse_dims(bindings: Iterable[str]) -> dict[str, int]:
    """Read `NAME=VALUE` bindings of symbolic dimensions.

    The name may itself contain `=` (ONNX puts no rule on it): the last one separates. Raises
    UsageError for a malformed binding, a value below 1, or a name bound to two values.
    """
    dims: dict[str, int] = {}
    for binding in bindings:
        name, separator, text = binding.rpartition("=")
        name = name.strip()
        if not separator or not name:
            raise UsageError(f"--dim {binding}: expected NAME=VALUE")
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"--dim {binding}: {text.strip()!r} is not an integer") from None
        if value < 1:
            raise UsageError(f"--dim {binding}: a dimension is at least 1")
        if dims.setdefault(name, value) != value:
            raise UsageError(f"--dim {binding}: {name!r} is already bound to {dims[name]}")
    return dims


def parse_bindings(bindings: Iterable[str]) -> list[dict[str, int]]:
    """Read bindings that may hold several values, `NAME=V1,V2,…`: every combination, the last name
    changing fastest. Raises UsageError as `parse_dims` does, and for a value given twice."""
    sets: list[dict[str, int]] = [{}]
    for binding in bindings:
        name, _, text = binding.rpartition("=")
        values = text.split(",")
        parsed = [parse_dims([f"{name}={value}" if name else binding]) for value in values]
        if len({tuple(p.items()) for p in parsed}) < len(values):
            raise UsageError(f"--dim {binding}: a value is there twice")
        for key in parsed[0].keys() & sets[0].keys():
            if len(values) > 1 or len({s[key] for s in sets} | {parsed[0][key]}) > 1:
                raise UsageError(f"--dim {binding}: {key!r} is already bound to {sets[0][key]}")
        sets = [known | more for known in sets for more in parsed]
    return sets


@dataclass(frozen=True)
class OnnxFrontend(Frontend):
    """Reads an ONNX model into the onnx dialect; `dim` holds `NAME=VALUE` bindings.

    External data lie beside the model, so a file is handed to the importer by its path; a stream
    without a path (stdin) is handed over as bytes and can hold inline weights only.
    """

    name = "onnx"

    dim: tuple[str, ...] = ()

    def parse(self, ctx: Context, input: IO[bytes], input_name: str) -> ModuleOp:
        """Raises ModelError when the model is invalid, UsageError for a malformed binding."""
        from elk_ir.frontend.importer import import_model

        dims = parse_dims((self.dim,) if isinstance(self.dim, str) else self.dim)
        path = Path(input_name)
        if _same_file(path, input):
            return import_model(path, dims=dims)
        return import_model(input.read(), name=input_name, dims=dims)


def _same_file(path: Path, stream: IO[bytes]) -> bool:
    """Whether `stream` reads the file at `path` from its start."""
    try:
        return path.is_file() and os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except OSError:  # a stream in memory has no file descriptor
        return False
