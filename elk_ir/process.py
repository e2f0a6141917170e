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


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No cyclic garbage collection inside: IR is full of cycles that all stay alive. Threads may
    be inside at once: the last one out restores what the first one found."""
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


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
