"""Runs one malformed input through a command in this process, under limits of time and memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import traceback
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


@dataclass(frozen=True)
class Outcome:
    """How a case ended; `detail` is the message, or what is wrong.

    `kind` is "refused" (with a message), "accepted" (a file may still be valid after a byte has
    changed) or "defect".
    """

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Measured:
    """An outcome with the CPU time and the peak resident memory of the process that had it."""

    outcome: Outcome
    cpu_s: float
    peak_bytes: int


def problem_of(case: Hostile, folder: Path) -> str | None:
    """What is wrong with how a case ends in an empty folder, None if nothing is."""
    outcome = run(case, folder)
    return outcome.detail if outcome.kind == "defect" else None


def run(case: Hostile, folder: Path) -> Outcome:
    """Runs a case in an empty folder, in this process.

    Fine is an exit code of 0 to 3 with at most a clear message, and no file but those of the input
    and below OUT.
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
            return Outcome("defect", f"more than {CPU_S:g} CPU s")
        except RecursionError:
            return Outcome("defect", "RecursionError")
        except MemoryError:
            return Outcome("defect", "MemoryError")
    text = err.getvalue().strip()
    if any(d in text for d in DEFECTS):
        return Outcome("defect", text[:600])
    if code not in (0, 1, 2, 3):
        return Outcome("defect", f"exit code {code}: {text[:300]}")
    if code and not text:
        return Outcome("defect", f"exit code {code} without a message")
    if new := {f for f in _files(folder) if f.split("/")[0] != OUT} - before:
        return Outcome("defect", f"wrote {sorted(new)}")
    return Outcome("refused", text) if code else Outcome("accepted")


def run_apart(case: Hostile, folder: Path) -> Measured:
    """Runs a case in a process of its own, which may crash or be stopped by the system."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_CPU, (int(2 * CPU_S), int(2 * CPU_S) + 1))
            outcome = run(case, folder)
            os.write(write, json.dumps([outcome.kind, outcome.detail[:2000]]).encode())
            status = 0
        except BaseException:
            os.write(write, json.dumps(["defect", traceback.format_exc()[-2000:]]).encode())
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        data = stream.read()
    _, status, usage = os.wait4(pid, 0)
    if os.WIFSIGNALED(status):
        outcome = Outcome("defect", f"stopped by {signal.Signals(os.WTERMSIG(status)).name}")
    else:
        outcome = Outcome(*json.loads(data))
    return Measured(outcome, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


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
