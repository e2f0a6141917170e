"""The memory of the process that compiles."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from elk_ir.process import peak_rss_bytes, quiet_collector, release_memory, resident_bytes


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def garbage() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


def test_what_is_resident() -> None:
    before = resident_bytes()
    if not before:
        pytest.skip("/proc/self/statm is Linux's")
    held = np.ones(4_000_000)
    assert resident_bytes() > before + 0.9 * held.nbytes
    assert peak_rss_bytes() >= resident_bytes() // 2


def test_memory_is_released_above_a_limit() -> None:
    if not resident_bytes():
        pytest.skip("/proc/self/statm is Linux's")
    gc.disable()
    try:
        found = garbage()
        release_memory(1 << 60)
        assert found() is not None
        release_memory(0)
        assert found() is None
    finally:
        gc.enable()


def test_the_collector_is_quiet_inside_only() -> None:
    assert gc.isenabled()
    with quiet_collector(), quiet_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
