"""IR as text in files: locations are written once and named, as MLIR does it.

    #loc3 = loc("node_linear"("model.onnx":42:0))
    builtin.module { … icca.execute … loc(#loc3) … }

An operation of a rolled loop stems from one node a layer, and its location is copied to everything
it is lowered to: written out each time, locations would be nine tenths of a program's text.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import LocationAttr, ModuleOp, UnknownLoc
from xdsl.ir import Attribute
from xdsl.parser import Parser, ParserState
from xdsl.printer import Printer
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer

from elk_ir.errors import ElkError, check_file_name


class _Lexer(MLIRLexer):
    """xDSL's takes time exponential in the length of a string literal that does not end."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class ModuleParser(Parser):
    """Parses MLIR of any origin in time linear in its length."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        """Raises ParseError, for what MLIR has and xDSL's parser does not know as well."""
        try:
            return super().parse_module(allow_implicit_module)
        except NotImplementedError as error:
            self.raise_error(f"this is not supported: {error}" if str(error) else "not supported")


class _NamesLocations(Printer):
    """Prints `loc(#locN)` for every location but `loc(unknown)`."""

    def __init__(self, stream: StringIO) -> None:
        super().__init__(stream, print_debuginfo=True)
        self.aliases: dict[LocationAttr, int] = {}
        # Locations are shared between operations: most are recognised without hashing them.
        self._known: dict[int, int] = {}

    def print_attribute(self, attribute: Attribute) -> None:
        if not isinstance(attribute, LocationAttr) or isinstance(attribute, UnknownLoc):
            super().print_attribute(attribute)
            return
        number = self._known.get(id(attribute))
        if number is None:
            number = self.aliases.setdefault(attribute, len(self.aliases))
            self._known[id(attribute)] = number
        self.print_string(f"loc(#loc{number})")


def print_module(module: ModuleOp) -> str:
    """The text of a module, with locations; the same module always prints the same."""
    body = StringIO()
    printer = _NamesLocations(body)
    printer.print_op(module)
    head = StringIO()
    plain = Printer(head)
    for location, number in printer.aliases.items():
        plain.print_string(f"#loc{number} = ")
        plain.print_attribute(location)
        plain.print_string("\n")
    return f"{head.getvalue()}{body.getvalue()}\n"


def read_module(path: Path, ctx: Context) -> ModuleOp:
    """Parse and verify a module. Raises ElkError naming file, line and column."""
    text = read_text(path)
    try:
        module = ModuleParser(ctx, text, str(path)).parse_module()
        module.verify()
    except ParseError as error:
        message = error.msg.strip().split("\n")[0]
        raise ElkError(message, where=str(error.span.get_location())) from None
    except DiagnosticException as error:
        raise ElkError(str(error).split("\n")[0], where=str(path)) from None
    return module


def read_text(path: Path) -> str:
    """A file of a compiled program. Raises ElkError when it is not there or not text."""
    check_file_name(str(path))
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise no_program(path.parent, path.name) from None
    except OSError as error:
        raise ElkError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ElkError("not UTF-8 text", where=str(path)) from None


def no_program(folder: Path, missing: str) -> ElkError:
    """The error for a folder without a complete program."""
    return ElkError(
        f"no compiled program is here: {missing} is missing",
        where=str(folder),
        hint="`elk compile MODEL.onnx --chip CHIP -o DIR` makes one",
    )
