"""Input of `elk-opt`: text whose operations know the line they were read from."""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from io import BytesIO
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.frontend.mlir import MLIRFrontend
from xdsl.ir import Operation
from xdsl.utils.arg_spec import ArgSpec

from elk_ir.errors import ElkError, check_file_name
from elk_ir.text import ModuleParser


class LocatedParser(ModuleParser):
    """Gives every operation without a location the file, line and column of its first token.

    mlir-opt does the same; an explicit `loc(unknown)` stays unknown.
    """

    def __init__(self, ctx: Context, text: str, name: str, line_offset: int = 0) -> None:
        super().__init__(ctx, text, name)
        self._file = StringAttr(name)
        self._first_line = line_offset + 1
        self._line_starts = [0]
        position = text.find("\n")
        while position >= 0:
            self._line_starts.append(position + 1)
            position = text.find("\n", position + 1)

    def parse_operation(self) -> Operation:
        start = self.pos
        op = super().parse_operation()
        # Identity, not equality: parsing `loc(unknown)` makes another attribute.
        if op.location is UNKNOWN_LOC:
            line = bisect_right(self._line_starts, start) - 1
            op.location = FileLineColLoc(
                self._file,
                IntAttr(self._first_line + line),
                IntAttr(start - self._line_starts[line] + 1),
            )
        return op


@dataclass(frozen=True)
class LocatedMLIRFrontend(MLIRFrontend):
    """xDSL's `mlir` frontend with locations; `line_offset` lines precede the text in its file."""

    line_offset: int = 0

    def parse(self, ctx: Context, input: IO[bytes], input_name: str = "input") -> ModuleOp:
        """Raises ElkError when the input is not text, ParseError when it is not MLIR."""
        data = input.read()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = data[: error.start]
            line = before.count(b"\n") + 1 + self.line_offset
            column = error.start - (before.rfind(b"\n") + 1) + 1
            raise ElkError(
                f"not UTF-8 text (byte 0x{data[error.start]:02X})",
                where=f"{input_name}:{line}:{column}",
            ) from None
        return LocatedParser(ctx, text, input_name, self.line_offset).parse_module(
            not self.no_implicit_module
        )


def open_input(path: str) -> IO[bytes]:
    """Open the file, or read standard input for `-`. Raises ElkError when it cannot be read."""
    if path == "-":
        # A copy: the driver closes its input, and the process's stdin is not its own.
        return BytesIO(sys.stdin.buffer.read())
    check_file_name(path)
    try:
        return open(path, "rb")
    except OSError as error:
        raise ElkError((error.strerror or str(error)).lower(), where=path) from None


def quote_spec(spec: ArgSpec) -> str:
    """A spec as text, with its strings escaped (ArgSpec's own str() does not escape quotes)."""
    parameters: list[str] = []
    for key, values in spec.parameters.items():
        texts = [
            _quote(value) if isinstance(value, str) else str(value).lower() for value in values
        ]
        parameters.append(f"{key}={','.join(texts)}" if texts else key)
    return f"{spec.name}{{{' '.join(parameters)}}}" if parameters else spec.name


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for character, letter in (("\n", "n"), ("\t", "t"), ("\r", "r"), ("\f", "f"), ("\v", "v")):
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'
