"""A cache of functions' results within one budget of bytes, for arguments that clients choose.

`functools.lru_cache` counts entries, but one automaton may take 200 bytes or 37 MiB. Arguments
count, too, since an entry keeps them.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from sys import getsizeof
from threading import Lock
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_ENTRY = 400  # bytes of an entry itself


class SharedCache:
    """A cache of several functions' results in about `most_bytes`, least recently used first out.

    An entry of more than half of that is not kept. The cache is thread-safe, but two threads may
    compute the same result.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.nbytes = most_bytes, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def remembered(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function of hashable arguments, whose results must not be changed."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (function, args, *sorted(kwargs.items())) if kwargs else (function, args)
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    return entry[0]
            result = function(*args, **kwargs)
            self._keep(key, result, _ENTRY + size_of(args, kwargs, result))
            return result

        return call

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

    def _keep(self, key: Hashable, result: Any, size: int) -> None:
        if size > self.most_bytes // 2:
            return
        with self._lock:
            if key in self._entries:  # another thread was faster
                return
            self._entries[key] = result, size
            self.nbytes += size
            while self.nbytes > self.most_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.nbytes -= freed


def size_of(*things: Any) -> int:
    """Return the bytes of objects and of all that they refer to, without code and modules.

    For an object with an attribute `nbytes`, that is its size.
    """
    total, seen, work = 0, set[int](), [*things]
    while work:
        thing = work.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen.add(id(thing))
        known = getattr(thing, "nbytes", None)
        if known is None:
            total += getsizeof(thing)
            work += gc.get_referents(thing)
        else:
            total += known
    return total


RESULTS = SharedCache(128 << 20)  # shared by the whole process
