"""The process that compiles: its garbage collector and its memory."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    """How many compilations run in this process, and whether garbage was collected before."""

    lock = threading.Lock()
    running = 0
    was_enabled = False
    let_go = 0


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No cyclic garbage collection inside but that of `let_go`: IR is full of cycles, and nearly
    all stay alive. Threads may be inside at once: the last one out restores what the first found.
    """
    with _Collector.lock:
        if _Collector.running == 0:
            _Collector.was_enabled = gc.isenabled()
            gc.disable()
        _Collector.running += 1
    try:
        yield
    finally:
        with _Collector.lock:
            _Collector.running -= 1
            if _Collector.running == 0 and _Collector.was_enabled:
                gc.enable()


LET_GO = 20_000
"""Operations of IR that are let go between collections: some 200 MB, beside a second of walking."""


def let_go(operations: int) -> None:
    """Say that IR of so many operations is needed no longer. It is full of cycles, so that only a
    collection frees it, which inside of `quiet_collector` nothing else would start."""
    with _Collector.lock:
        _Collector.let_go += operations
        if _Collector.running == 0 or _Collector.let_go < LET_GO:
            return
        _Collector.let_go = 0
    gc.collect()


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
