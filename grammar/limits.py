"""Limits on memory and on work: caches within bounds, and meters.

`SharedCache` keeps functions' results within one budget of bytes, for arguments that clients
choose. `functools.lru_cache` counts entries, but one automaton may take 200 bytes or 37 MiB.
Arguments count, too, since an entry keeps them.

`at_most` limits all constructions of automata in a block of the program together, for a caller that
cannot wait. A `Meter` bounds the work that one step may spend on a grammar.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from sys import getsizeof, maxsize
from threading import Lock
from types import FunctionType, ModuleType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from dlm.grammar.errors import Unfinished

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

_ENTRY = 400  # bytes of an entry itself
_UNCOUNTED = (type, ModuleType, FunctionType)
_SIMPLE = frozenset((int, str, bytes, bool, float, type(None)))  # they refer to nothing
_TURNS = 16  # calls for each piece of begun work, after which one that none was for is forgotten


class SharedCache:
    """A cache of several functions' results in about `most_bytes`, least recently used first out.

    An entry of more than half of that is not kept. The cache is thread-safe, but two threads may
    compute the same result.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.nbytes = most_bytes, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int, Sequence[Any]]] = OrderedDict()
        self._shares: dict[int, list[int]] = {}  # entries with a part, and its bytes, by its id
        self._lock = Lock()

    def remembered(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function of hashable arguments, whose results must not be changed."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (function, args, *sorted(kwargs.items())) if kwargs else (function, args)
            kept = self.get(key)
            if kept is not None:
                return kept[0]
            result = function(*args, **kwargs)
            self.keep(key, (result,), size_of(args, kwargs, result))
            return result

        return call

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._shares.clear()
            self.nbytes = 0

    def get(self, key: Hashable) -> Any:
        """Return what is kept for `key`; None: nothing."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def keep(self, key: Hashable, result: Any, size: int, shared: Sequence[Any] = ()) -> None:
        """Keep a result of `size` bytes, its key included. `shared` are further parts of it, no two
        the same, with sizes `nbytes`; a part of several entries counts once."""
        size += _ENTRY
        if size + sum(part.nbytes for part in shared) > self.most_bytes // 2:
            return
        with self._lock:
            if key in self._entries:  # another thread was faster
                return
            self._entries[key] = result, size, shared
            self.nbytes += size
            for part in shared:
                share = self._shares.setdefault(id(part), [0, part.nbytes])
                if not share[0]:
                    self.nbytes += share[1]
                share[0] += 1
            while self.nbytes > self.most_bytes:
                _, (_, freed, parts) = self._entries.popitem(last=False)
                self.nbytes -= freed
                for part in parts:
                    share = self._shares[id(part)]
                    share[0] -= 1
                    if not share[0]:
                        self.nbytes -= self._shares.pop(id(part))[1]


def size_of(*things: Any) -> int:
    """Return the bytes of objects and of all that they refer to, without code and modules.

    For an object with an attribute `nbytes`, that is its size.
    """
    total, seen, work = 0, set[int](), [*things]
    while work:
        thing = work.pop()
        if id(thing) in seen or isinstance(thing, _UNCOUNTED):
            continue
        seen.add(id(thing))
        if type(thing) in _SIMPLE:
            total += getsizeof(thing)
            continue
        known = getattr(thing, "nbytes", None)
        if known is None:
            total += getsizeof(thing)
            work += gc.get_referents(thing)
        else:
            total += known
    return total


RESULTS = SharedCache(128 << 20)  # shared by the whole process


class LazyDict(dict[int, T]):
    """A dictionary that makes each value at its first look-up."""

    def __init__(self, make: Callable[[int], T]):
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        value = self[number] = self._make(number)
        return value


class LimitedCache(dict[K, V]):
    """A dictionary that is emptied before it would hold more than `most` entries."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)


class Sized(Protocol):
    """A piece of work with approximate memory in bytes."""

    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=Sized)


class Begun(Generic[K, S]):
    """Work that was begun, to be continued by a later call: at most `most` pieces of it.

    If there are as many, a new one is kept only in place of one that nobody continues any more. So
    some are finished, however many callers take turns.
    """

    def __init__(self, most: int):
        self._most, self._clock = most, 0
        self._pieces: dict[K, tuple[S, int]] = {}  # with the time of the last call, oldest first

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece, _ in list(self._pieces.values()))

    def clear(self) -> None:
        self._pieces.clear()

    def take(self, key: K) -> S | None:
        """Take a piece out, so that no other thread continues it meanwhile."""
        piece = self._pieces.pop(key, None)
        return None if piece is None else piece[0]

    def keep(self, key: K, value: S) -> None:
        """Keep a piece that was not finished."""
        self._clock += 1
        if len(self._pieces) >= self._most:
            oldest = next(iter(self._pieces))
            if self._clock - self._pieces[oldest][1] < _TURNS * self._most:
                return
            del self._pieces[oldest]
        self._pieces[key] = value, self._clock


class Meter:
    """A counter of work units, about 10 us each. It has no limit outside of `limited`."""

    def __init__(self):
        self.spent = 0  # units since it was made
        self.limit = maxsize  # of `spent`

    @contextmanager
    def limited(self, units: int) -> Iterator[None]:
        """Allow `units` more units to be spent in a block of the program."""
        outer, self.limit = self.limit, self.spent + units
        try:
            yield
        finally:
            self.limit = outer

    def spend(self, units: int) -> None:
        """Count work that is about to be done. Raises `Unfinished` if the limit is reached."""
        if self.spent >= self.limit:
            raise Unfinished("a query of the grammar takes more than its share of a step")
        self.spent += units

    def add(self, units: int) -> None:
        """Count work that is done. Only the next `spend` raises `Unfinished`."""
        self.spent += units


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuchEffortError(Exception):
    """Effort beyond the limit of `at_most`; the pattern itself may be valid."""


@contextmanager
def at_most(steps: int) -> Iterator[None]:
    """Limit the construction of automata in this thread to `steps` steps of about 3 us.

    Beyond, a construction raises `TooMuchEffortError`. Cached automata take no steps.
    """
    token = _left.set([steps])
    try:
        yield
    finally:
        _left.reset(token)


def spend(steps: int) -> None:
    """Count steps of a construction."""
    left = _left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooMuchEffortError
