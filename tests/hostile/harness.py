"""Runs one malformed input through a command in this process, under limits of time and memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elk_ir.tools import elk, elk_opt

CPU_S = 20.0
"""More than any of these inputs may take: what takes longer hangs."""
MEMORY_BYTES = 1 << 31
"""What may be allocated beside what the process has at the start."""
OUT = "out"
"""Where commands write; nothing else may appear."""
DEFECTS = ("Traceback", "internal error", "left an invalid program", "out of memory")


@dataclass(frozen=True)
class Hostile:
    """A malformed input: files to write (by relative name), and a command line.

    `prepare` makes what bytes cannot say (links, named pipes). `tool` is elk or elk-opt.
    """

    name: str
    files: Mapping[str, bytes]
    argv: tuple[str, ...]
    tool: str = "elk"
    prepare: Callable[[Path], None] | None = field(default=None, compare=False)


class Hang(BaseException):
    """No Exception: nothing in the compiler may catch it."""


def problem_of(case: Hostile, folder: Path) -> str | None:
    """Runs a case in an empty folder; what is wrong with how it ended, None if nothing is.

    Fine is an exit code of 0 to 3 (a file may still be valid after a byte has changed) with at most
    a clear message, and no file but those of the input and below OUT.
    """
    for name, data in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if case.prepare is not None:
        case.prepare(folder)
    before = set(_files(folder))
    out, err = io.StringIO(), io.StringIO()
    main = elk_opt.main if case.tool == "elk-opt" else elk.main
    with _inside(folder), _limits(), _streams(out, err):
        try:
            code = main(list(case.argv))
        except Hang:
            return f"more than {CPU_S:g} CPU s"
        except RecursionError:
            return "RecursionError"
    text = err.getvalue()
    found = next((d for d in DEFECTS if d in text), None)
    if found is not None:
        return text.strip()[:600]
    if code not in (0, 1, 2, 3):
        return f"exit code {code}: {text[:300]}"
    if code and not text.strip():
        return f"exit code {code} without a message"
    new = {f for f in _files(folder) if f.split("/")[0] != OUT} - before
    return f"wrote {sorted(new)}" if new else None


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if not path.is_dir():
            yield str(path.relative_to(folder))


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _streams(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """CPU time and address space; both as they were afterwards."""

    def stop(_signal: int, _frame: object) -> None:
        raise Hang

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, memory[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, memory)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
