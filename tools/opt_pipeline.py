"""Pipelines of `elk-opt`: named pipelines, errors that point into the text, dumps and timing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches

from xdsl.passes import ModulePass, get_pass_option_infos
from xdsl.utils.arg_spec import ArgSpec, PipelineLexer, SpecTokenKind, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from elk_ir.errors import ElkError

PassFactory = Callable[[], type[ModulePass]]


def parse_passes(
    text: str,
    passes: Mapping[str, PassFactory],
    pipelines: Mapping[str, str],
    origin: str = "pass-pipeline",
    using: tuple[str, ...] = (),
) -> tuple[ModulePass, ...]:
    """The passes that a pipeline's text names, with named pipelines replaced by their passes.

    `origin` names the text in messages; `using` is the chain of named pipelines that led here.
    Raises ElkError (with the column in the text) for a syntax error, an unknown name, a bad option
    or a pipeline that contains itself.
    """
    result: list[ModulePass] = []
    for spec, column in zip(_parse_specs(text, origin), _name_columns(text), strict=True):
        where = f"{origin}:1:{column}"
        if spec.name in passes:
            result.append(_instantiate(spec, passes[spec.name], where))
        elif spec.name in pipelines:
            if spec.parameters:
                raise ElkError(f"pipeline '{spec.name}' takes no options", where=where)
            if spec.name in using:
                chain = " -> ".join((*using, spec.name))
                raise ElkError(f"pipeline '{spec.name}' contains itself: {chain}", where=where)
            result.extend(
                parse_passes(
                    pipelines[spec.name],
                    passes,
                    pipelines,
                    f"pipeline '{spec.name}'",
                    (*using, spec.name),
                )
            )
        else:
            raise unknown_name(spec.name, (*passes, *pipelines), where)
    return tuple(result)


def unknown_name(name: str, known: tuple[str, ...], where: str) -> ElkError:
    """The error for a pass that does not exist, with names that look like it."""
    close = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else None
    return ElkError(f"unknown pass '{name}'", where=where, hint=hint)


def syntax_error(error: ArgSpecParseError) -> ElkError:
    """xDSL's own message for a malformed spec as one located message.

    Its text is a title, `origin:line:col`, the source line, the marker and the message.
    """
    lines = [line for line in str(error).split("\n")[1:] if line.strip()]
    where, message = (lines[0], lines[-1].strip()) if len(lines) > 1 else (None, str(error))
    return ElkError(message[:1].lower() + message[1:], where=where, details=lines[1:-1])


def _parse_specs(text: str, origin: str) -> list[ArgSpec]:
    try:
        return list(parse_pipeline(text))
    except ArgSpecParseError as error:
        located = syntax_error(error)
        where = (located.where or "").replace("pass-pipeline", origin)
        raise ElkError(located.what, where=where, details=located.details) from None


def _name_columns(text: str) -> Iterator[int]:
    """The column of each pass name: the identifiers outside braces."""
    lexer = PipelineLexer(text)
    depth = 0
    while (token := lexer.lex()).kind is not SpecTokenKind.EOF:
        if token.kind is SpecTokenKind.L_BRACE:
            depth += 1
        elif token.kind is SpecTokenKind.R_BRACE:
            depth -= 1
        elif token.kind is SpecTokenKind.IDENT and depth == 0:
            yield token.span.start + 1


def _instantiate(spec: ArgSpec, factory: PassFactory, where: str) -> ModulePass:
    cls = factory()
    try:
        return cls.from_pass_spec(spec)
    except (ValueError, TypeError) as error:
        options = [
            f"{info.name.replace('_', '-')}: {info.expected_type}"
            + ("" if info.default_value is None else f" = {info.default_value}")
            for info in get_pass_option_infos(cls)
        ]
        listing = ["options:", *(f"  {option}" for option in options)] if options else []
        message = re.sub(rf"^{re.escape(spec.name)} ", "", str(error))
        details = listing or ["it has no options"]
        raise ElkError(f"pass '{spec.name}': {message}", where=where, details=details) from None


@dataclass
class Timing:
    """CPU seconds by phase, in the order in which the phases first ran."""

    rows: dict[str, float] = field(default_factory=dict[str, float])
    _label: str | None = None
    _since: float = 0.0

    def switch(self, label: str | None) -> str | None:
        """Charge the time since the last switch to the running phase and run `label`.

        Returns the phase that was running.
        """
        now = time.process_time()
        previous = self._label
        if previous is not None:
            self.rows[previous] = self.rows.get(previous, 0.0) + now - self._since
        self._label, self._since = label, now
        return previous

    @contextmanager
    def phase(self, label: str) -> Iterator[None]:
        """Charge the time inside to `label`, the rest to what was running."""
        previous = self.switch(label)
        try:
            yield
        finally:
            self.switch(previous)

    def table(self) -> str:
        """The table of `--timing`, with a total."""
        total = sum(self.rows.values())
        width = max(map(len, ("total", *self.rows)))
        rule = "-" * (width + 22)
        lines = [f"{'phase':<{width}}  {'CPU s':>10}  {'%':>7}", rule]
        for label, seconds in (*self.rows.items(), ("total", total)):
            share = 100.0 * seconds / total if total else 0.0
            if label == "total":
                lines.append(rule)
            lines.append(f"{label:<{width}}  {seconds:>10.4f}  {share:>7.1f}")
        return "\n".join(lines)
