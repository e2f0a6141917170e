"""The smallest change with which something fits, found with few trials. Nothing here knows IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

DOUBLINGS = 4
"""How often a number of cores is doubled before giving up."""

QUARTERS = 4
"""A number of cores is known to this part of what there is."""


@dataclass(frozen=True)
class Found:
    """A value with which it fits. tried: it was seen to; else it is estimated."""

    value: int
    tried: bool


def least_count(
    now: int,
    fits_alone: Callable[[int], bool],
    fits: Callable[[int], bool],
    may_go_on: Callable[[], bool],
) -> Found | None:
    """The least count above `now`, to a quarter of it, that fits; None if 2 ** DOUBLINGS times as
    many do not.

    fits_alone: a cheap test that all counts pass that fit; the answer is estimated by it where
    `may_go_on` ends before `fits` has held. More may take more room than fewer, so what is found
    is a count that fits and, one step below it, a count that does not.
    """
    low = now
    high: int | None = None
    for count in (now << k for k in range(1, DOUBLINGS + 1)):
        if not fits_alone(count):
            continue
        if not may_go_on():
            return Found(count, False)
        if fits(count):
            high = count
            break
        low = count
    if high is None:
        return None
    low, step = max(low, high // 2), max(1, now // QUARTERS)
    while high - low > step and may_go_on():
        middle = low + max(1, (high - low) // (2 * step)) * step
        if fits_alone(middle) and fits(middle):
            high = middle
        else:
            low = middle
    return Found(high, True)


def largest_value(
    now: int,
    needed_bytes: int,
    capacity_bytes: int,
    needs: Callable[[int], int | None],
    may_go_on: Callable[[], bool],
) -> Found | None:
    """The largest value below `now` with which `needs` (bytes, None: that value is impossible) is
    at most the capacity, or an estimate of it; None if no value seems to be.

    needed_bytes: with `now`. Bytes are taken to grow in straight lines between the values tried; at
    least one is tried, others as long as `may_go_on`. Steps that rounding makes may hide a value
    that is a little larger.
    """
    known = {now: needed_bytes}
    fits, fails = 0, now
    guess = now // 2
    while fits < guess < fails:
        found = needs(guess)
        if found is None:
            fails = guess
        else:
            known[guess] = found
            fits, fails = (guess, fails) if found <= capacity_bytes else (fits, guess)
        guess = _between(known, fits, fails, capacity_bytes)
        if not may_go_on():
            break
    if fits:
        return Found(fits, True)
    return Found(guess, False) if 0 < guess < fails else None


def _between(known: dict[int, int], fits: int, fails: int, capacity_bytes: int) -> int:
    """A value between one that fits (0: none known) and one that does not; 0 if there is none."""
    if fails - fits <= 1:
        return 0
    points = sorted(known)
    pairs = [(a, b) for a, b in pairwise(points) if known[b] > known[a]]
    guess = (fits + fails) // 2
    if pairs:
        low, high = next(((a, b) for a, b in pairs if b >= fails), pairs[0])
        slope = (known[high] - known[low]) / (high - low)
        guess = int(low + (capacity_bytes - known[low]) / slope)
    elif not fits:
        return 0
    if not fits and guess < 1:
        return 0
    return min(max(guess, fits + 1), fails - 1)
