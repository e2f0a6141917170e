"""How a tool ends where neither its input nor its code is at fault: one line and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from elk_ir.errors import TOO_DEEP
from elk_ir.output import failed_output

STOPPED = (BrokenPipeError, KeyboardInterrupt, OSError, MemoryError, RecursionError)
"""What `stopped` takes. An OSError is one of the output: files that a command reads or writes
report their own errors, as ElkError."""


def stopped(error: BaseException, tool: str, output: str | None = None) -> int:
    """Say why `tool` ends, writing to `output` (None or "-": stdout); its exit code."""
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone; Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    if isinstance(error, KeyboardInterrupt):
        say(f"{tool}: interrupted")
        return 130
    if isinstance(error, OSError):
        what = failed_output(error, output)
    else:
        what = "out of memory" if isinstance(error, MemoryError) else TOO_DEEP
    say(f"{tool}: error: {what}")
    return 1


def say(message: str) -> None:
    """A message on stderr, behind what was printed before."""
    with suppress(OSError):
        sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)
