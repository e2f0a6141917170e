"""The process that compiles: its garbage collector and its memory."""

from __future__ import annotations

import ctypes
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


def resident_bytes() -> int:
    """The memory that this process has resident; 0 where Linux's /proc is not there."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def release_memory(above_bytes: int) -> None:
    """Collect garbage, and give what is free back to the system, if the process has more than that
    resident. Between two pieces of work of a long run."""
    if resident_bytes() <= above_bytes:
        return
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
