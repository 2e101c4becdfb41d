"""Results of functions whose arguments clients choose, remembered within one budget of bytes.

`functools.lru_cache` counts entries, and one automaton takes 200 bytes or 37 MiB. Arguments are
counted with the result, since an entry keeps both.
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
    """Remembers results of several functions in about `most_bytes`; the least recently used go.

    An entry of more than half of that is not kept. Safe for several threads; two that call a
    function with the same new arguments both compute the result.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.nbytes = most_bytes, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def remembered(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function of hashable arguments whose results nobody changes."""

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
        """Forget everything."""
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
    """Return the bytes of objects and of all that they refer to but code and modules.

    An object with an attribute `nbytes` says itself how many it takes.
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


RESULTS = SharedCache(128 << 20)  # of this process, for all that clients make
