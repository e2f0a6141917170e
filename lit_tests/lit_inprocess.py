"""Runs a lit test's RUN lines in this process: the tools are functions, not programs.

A process per command costs 0.7 s of CPU, a call 0.04 s. What is understood is the part of lit's
shell that these tests use; anything else is an error, never silently something different:

- substitutions `%s` (the test), `%S` (its folder), `%t` (a temporary name), `%{shared}` (the
  folder with models, beside the checkout), `%%`;
- one command line per `RUN:` line, continued by a final backslash; all must succeed;
- pipes (each stage must succeed), `not`, `>`, `>>`, `2>`, `2>&1`, `<`;
- `REQUIRES:` of the features in FEATURES.

`elk-opt`, `elk` and `filecheck` run as functions, with stdin, stdout and stderr redirected at the
level of file descriptors so that output of native code is captured too; other programs run as they
are. tests/test_lit_agreement.py checks that lit itself sees the same results.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

SUFFIXES = (".mlir", ".test")
EXCLUDED_DIRS = frozenset({"Inputs", "Output"})
SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
FEATURES: dict[str, str] = {
    "shared": "needs the models in ../shared",
    "slow": "takes long",
}

_KEYWORD = re.compile(r"\b(RUN|REQUIRES|UNSUPPORTED|XFAIL|ALLOW_RETRIES|DEFINE|REDEFINE|END):(.*)")
_TOKEN = re.compile(
    r"""\s*(?:(?P<op>2>&1|2>|>>|>|<|\|\||&&|;|&|\|)
          |(?P<word>(?:[^\s|<>&;'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+))""",
    re.VERBOSE,
)


class LitSyntaxError(Exception):
    """The test uses something that this runner does not understand."""


@dataclass(frozen=True)
class Script:
    """The RUN lines of a test, and the features that it requires."""

    path: Path
    lines: tuple[str, ...]
    requires: tuple[str, ...]


@dataclass
class Command:
    """One stage of a pipeline."""

    words: list[str]
    negated: bool = False
    stdin: str | None = None
    stdout: tuple[str, str] | None = None
    """File and mode."""
    stderr: str | None = None
    """File, or `&1`."""


@dataclass
class Outcome:
    """Whether a test passed, and a log to show when it did not."""

    passed: bool
    log: str = field(default="")


def read_script(path: Path) -> Script:
    """Find the RUN and REQUIRES lines. Raises LitSyntaxError."""
    lines: list[str] = []
    requires: list[str] = []
    continued = False
    for text in path.read_text(encoding="utf-8").splitlines():
        if (match := _KEYWORD.search(text)) is None:
            continue
        keyword, value = match.group(1), match.group(2).strip()
        if keyword == "RUN":
            body = value.removesuffix("\\").rstrip()
            if continued:
                lines[-1] += f" {body}"
            else:
                lines.append(body)
            continued = value.endswith("\\")
        elif keyword == "REQUIRES":
            requires.extend(part.strip() for part in value.split(","))
        elif keyword == "END":
            break
        else:
            raise LitSyntaxError(f"{keyword}: is not supported here")
    if not lines:
        raise LitSyntaxError("the test has no RUN line")
    if continued:
        raise LitSyntaxError("the last RUN line is continued")
    if unknown := sorted(set(requires) - FEATURES.keys()):
        raise LitSyntaxError(f"unknown feature {', '.join(unknown)}")
    return Script(path, tuple(lines), tuple(requires))


def substitute(line: str, path: Path, temporary: Path) -> str:
    """Replace lit's substitutions in a RUN line; `temporary` is what `%t` stands for."""
    values = {
        "%%": "%",
        "%s": str(path),
        "%S": str(path.parent),
        "%t": str(temporary),
        "%{shared}": str(SHARED),
    }
    return re.sub(r"%%|%[sSt]|%\{shared\}", lambda match: values[match.group()], line)


def parse_pipeline(line: str) -> list[Command]:
    """Read a command line. Raises LitSyntaxError for what the runner does not understand."""
    commands = [Command([])]
    tokens = _tokens(line)
    for kind, text in tokens:
        command = commands[-1]
        if kind == "word":
            command.words.extend(shlex.split(text))
            continue
        match text:
            case "|":
                commands.append(Command([]))
            case "2>&1":
                command.stderr = "&1"
            case ">" | ">>" if command.stderr == "&1":
                raise LitSyntaxError(f"2>&1 belongs after {text}: {line}")
            case ">" | ">>" | "<" | "2>":
                kind, target = next(tokens, ("", ""))
                if kind != "word":
                    raise LitSyntaxError(f"{text} needs a file: {line}")
                (target,) = shlex.split(target)
                if text == "<":
                    command.stdin = target
                elif text == "2>":
                    command.stderr = target
                else:
                    command.stdout = (target, "ab" if text == ">>" else "wb")
            case _:
                raise LitSyntaxError(f"'{text}' is not supported, use another RUN line: {line}")
    for command in commands:
        while command.words[:1] == ["not"]:
            command.negated = not command.negated
            del command.words[0]
        if not command.words:
            raise LitSyntaxError(f"a command is missing: {line}")
    return commands


def _tokens(line: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(line.rstrip())
    while position < end:
        if (match := _TOKEN.match(line, position)) is None:
            raise LitSyntaxError(f"cannot read from column {position + 1}: {line}")
        position = match.end()
        yield ("op", match.group("op")) if match.group("op") else ("word", match.group("word"))


def run_script(script: Script, scratch: Path) -> Outcome:
    """Run all lines of a test; temporary files go to `scratch`."""
    temporary = scratch / f"{script.path.name}.tmp"
    log: list[str] = []
    for number, line in enumerate(script.lines, 1):
        text = substitute(line, script.path, temporary)
        log.append(f"RUN {number}: {text}")
        with _working_directory(script.path.parent):
            passed, messages = _run_pipeline(parse_pipeline(text))
        log.extend(messages)
        if not passed:
            return Outcome(False, "\n".join(log))
    return Outcome(True)


def _run_pipeline(commands: Sequence[Command]) -> tuple[bool, list[str]]:
    passed = True
    messages: list[str] = []
    piped = b""
    for command in commands:
        with ExitStack() as stack:

            def file(command_file: str, mode: str, stack: ExitStack = stack) -> IO[bytes]:
                return stack.enter_context(open(command_file, mode))

            stdin = stack.enter_context(tempfile.TemporaryFile())
            if command.stdin is not None:
                stdin.write(Path(command.stdin).read_bytes())
            else:
                stdin.write(piped)
            stdin.flush()
            stdin.seek(0)
            to_file = command.stdout is not None
            stdout = (
                file(*command.stdout)
                if command.stdout is not None
                else stack.enter_context(tempfile.TemporaryFile())
            )
            if command.stderr == "&1":
                stderr = stdout
            elif command.stderr is not None:
                stderr = file(command.stderr, "wb")
            else:
                stderr = stack.enter_context(tempfile.TemporaryFile())
            code = _run_command(command.words, stdin, stdout, stderr)
            piped = b"" if to_file else _contents(stdout)
            reported = b"" if command.stderr is not None else _contents(stderr)
        succeeded = (code != 0) == command.negated
        passed = passed and succeeded
        prefix = "not " if command.negated else ""
        messages.append(f"{prefix}{shlex.join(command.words)}: exit code {code}")
        if reported:
            messages.append(reported.decode("utf-8", "replace").rstrip("\n"))
    if piped and not passed:
        messages.append("stdout:\n" + piped.decode("utf-8", "replace").rstrip("\n"))
    return passed, messages


def _contents(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _elk_opt(arguments: Sequence[str]) -> int:
    from elk_ir.tools.elk_opt import main

    return main(arguments)


def _elk(arguments: Sequence[str]) -> int:
    from elk_ir.tools.elk import main

    return main(list(arguments))


def _filecheck(arguments: Sequence[str]) -> int:
    from filecheck.matcher import Matcher
    from filecheck.options import parse_argv_options

    try:
        matcher = Matcher.from_opts(parse_argv_options(["filecheck", *arguments]))
        return matcher.run()
    except (RuntimeError, OSError) as error:
        print(f"filecheck: {error}", file=sys.stderr)
        return 2


FUNCTIONS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "elk": _elk,
    "elk-opt": _elk_opt,
    "filecheck": _filecheck,
}


def _run_command(
    words: Sequence[str], stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
) -> int:
    if (function := FUNCTIONS.get(words[0])) is None:
        if shutil.which(words[0]) is None:
            raise LitSyntaxError(f"no program called {words[0]}")
        return subprocess.run(
            words, stdin=stdin, stdout=stdout, stderr=stderr, check=False
        ).returncode
    with _redirected(stdin, stdout, stderr):
        try:
            return function(words[1:])
        except SystemExit as request:
            return request.code if isinstance(request.code, int) else int(bool(request.code))
        except Exception:
            # What the program would do: a traceback on its stderr and exit code 1.
            import traceback

            traceback.print_exc()
            return 1


@contextmanager
def _redirected(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> Iterator[None]:
    """Make the files the process's standard streams, for Python and for native code."""
    saved_streams = (sys.stdin, sys.stdout, sys.stderr)
    for stream in saved_streams[1:]:
        stream.flush()
    with ExitStack() as stack:
        for descriptor, target in ((0, stdin), (1, stdout), (2, stderr)):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(target.fileno(), descriptor)
        sys.stdin = stack.enter_context(open(0, encoding="utf-8", closefd=False))
        # Line buffered, so that stdout and stderr interleave in one file as they were written.
        sys.stdout = stack.enter_context(open(1, "w", encoding="utf-8", buffering=1, closefd=False))
        sys.stderr = stack.enter_context(open(2, "w", encoding="utf-8", buffering=1, closefd=False))
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdin, sys.stdout, sys.stderr = saved_streams


@contextmanager
def _working_directory(path: Path) -> Iterator[None]:
    previous = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(previous)
