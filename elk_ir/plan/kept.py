"""A cache that is bounded by the bytes of what it keeps, not by their number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


def kept(
    limit_bytes: int, size_of: Callable[[T], int], *, shared: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the values of a function of hashable positional arguments, the last used ones, as
    long as they have at most `limit_bytes` together; the last one in any case, and if `shared`
    those that somebody else holds. size_of: the bytes of a value."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        found: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        alive: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        lock = threading.Lock()
        total = 0

        @wraps(make)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal total
            assert not kwargs, "arguments are given by position"
            with lock:
                entry = found.get(args)
                if entry is not None:
                    found.move_to_end(args)
                    return entry[0]
                value = alive.get(args)
            if value is None:
                value = make(*args, **kwargs)
            size = size_of(value)
            with lock:
                if shared:
                    alive[args] = value
                if args not in found:
                    found[args] = value, size
                    total += size
                while total > limit_bytes and len(found) > 1:
                    total -= found.popitem(last=False)[1][1]
            return value

        return call

    return decorate
