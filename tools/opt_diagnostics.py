"""Exceptions of `elk-opt` as messages: `file:line:col: error: what`, details, notes."""

from __future__ import annotations

import traceback
from types import TracebackType

from xdsl.ir import Operation
from xdsl.utils.exceptions import (
    ArgSpecParseError,
    DiagnosticException,
    ParseError,
    VerifyException,
)

from elk_ir.diagnostics import LocatedFailure, place_of
from elk_ir.dialects.location import node_names
from elk_ir.errors import ElkError

from .opt_pipeline import syntax_error
from .opt_printing import one_line

USER_ERRORS = (ElkError, DiagnosticException, ParseError, ArgSpecParseError)
"""What a user can cause. Any other exception is a defect of the compiler."""

_MAX_MESSAGE_LINES = 12

# Frames in which xDSL raises on behalf of an operation: `self` is that operation.
_REPORTING_FRAMES = frozenset({"emit_error", "verify"})


def render(error: BaseException, tool: str, input_name: str, stage: str | None = None) -> str:
    """The message for one of USER_ERRORS.

    `stage` says when it happened ("after pass 'cse'"); without a place of its own the error is
    attributed to `input_name`.
    """
    match error:
        case ElkError():
            return _render_elk_error(error, tool)
        case ParseError():
            return _render_parse_error(error)
        case ArgSpecParseError():
            return _render_elk_error(syntax_error(error), tool)
        case _:
            return _render_diagnostic(error, input_name, stage)


def _render_elk_error(error: ElkError, tool: str) -> str:
    lines = [
        f"{error.where or tool}: error: {error.what}",
        *(f"  {line}" for line in error.detail_lines()),
    ]
    if error.hint is not None:
        lines.append(f"  hint: {error.hint}")
    return "\n".join(lines)


def _render_parse_error(error: ParseError) -> str:
    # xDSL's text: the place, then source lines, each with its marker, the message among them.
    message = error.msg.strip()
    context = error.span.print_with_context(None).rstrip("\n").split("\n")[1:]
    first, *rest = message.split("\n")
    lines = [f"{error.span.get_location()}: error: {_lower_first(first)}", *rest, *context]
    return "\n".join(lines)


def _lower_first(text: str) -> str:
    """mlir-opt's style; words such as `SSA` stay."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _render_diagnostic(error: BaseException, input_name: str, stage: str | None) -> str:
    op = failing_op(error)
    message = str(error) or type(error).__name__
    if isinstance(error, VerifyException):
        message = f"Operation does not verify: {message}"
    place = input_name
    if op is not None:
        place = place_of(op) or input_name
        if names := node_names(op):
            listed = ", ".join(f"'{name}'" for name in names)
            message = f"in node {listed}: {message}"
    lines = [f"{place}: error: {_shortened(message)}"]
    if op is not None:
        lines.append(f"{place}: note: see current operation: {_one_line(op)}")
    if isinstance(error, LocatedFailure):
        lines.extend(f"{place}: note: {note}" for note in error.notes)
    if stage is not None:
        lines.append(f"{place}: note: {stage}")
    return "\n".join(lines)


def _shortened(message: str) -> str:
    """Further lines indented; what is left of a long message (some quote the module) counted."""
    lines = message.expandtabs(2).split("\n")
    if len(lines) > _MAX_MESSAGE_LINES:
        lines = [*lines[:_MAX_MESSAGE_LINES], f"... ({len(lines) - _MAX_MESSAGE_LINES} more lines)"]
    return "\n  ".join(lines)


def failing_op(error: BaseException) -> Operation | None:
    """The operation that an exception is about.

    xDSL's exceptions do not carry it, but the frames that raised them do: the verifier and
    `Operation.emit_error` run as methods of the operation.
    """
    if isinstance(error, LocatedFailure):
        return error.op
    found: Operation | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name in _REPORTING_FRAMES:
            candidate = frame.f_locals.get("self")
            if isinstance(candidate, Operation):
                found = candidate
        trace = trace.tb_next
    return found


def _one_line(op: Operation) -> str:
    try:
        return one_line(op)
    except Exception:  # the operation is known to be invalid, so its printer may fail as well
        return f'"{op.name}"'


def summarize(error: BaseException) -> str:
    """`TypeError: message (file.py:12, in function)` of an unexpected exception."""
    summary = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return summary
    last = frames[-1]
    file = "/".join(last.filename.replace("\\", "/").split("/")[-2:])
    return f"{summary} ({file}:{last.lineno}, in {last.name})"
