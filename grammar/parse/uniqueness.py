"""Searches for texts that lead to a new key of an object, or to a new item of distinct items.

If keys are free or items distinct, a token is allowed only if a new key or item can still be
reached after it. `Uniqueness` searches for a `Detour`, a text that leads there. A search that runs
out of work is kept, and continued by the same call.

A text of many items needs a detour for each of them, from one place of the grammar. So a search
continues where the last one from an equal place has stopped: what was a repetition stays one while
the array grows. Its texts are parsed anew from each place.
"""

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from sys import maxsize
from typing import NamedTuple

from dlm.grammar.errors import Unfinished
from dlm.grammar.limits import Begun, LimitedCache, Meter
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.growing_sets import SETS, holds_all
from dlm.grammar.parse.keys import Container, Keys, SeenItems
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.parse.states import State, Thread

_MOST_SITUATIONS = 4096  # situations visited in one search
_MOST_SEEN = 16_384  # situations of a search that is continued
_SEARCHES = 4  # kept searches, and as many that ran out of work
_NEAR = 32  # bytes of the shortest text in which a string is looked for
_VARIETIES = 4096  # cached numbers of strings, by terminal and by state
_SITUATION_BYTES = 600  # approximate memory of a situation that a search keeps
_NUMBER_BYTES = 250  # approximate memory of a cached number of strings
_UNITS = 3  # units of work for a situation
_EDGES = 50  # edges read for a unit of work, to count texts
_COMPARED = 64  # keys or items that a situation is compared with, for a unit of work
_NICE = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ _"
_PLAIN = bytes(byte for byte in range(256) if byte not in _NICE)
_TENS = 10  # the size up to which all bytes of a range are tried at once, such as digits


class Detour(NamedTuple):
    """A text that leads to a new key or item, and the situation after it."""

    text: bytes
    state: State
    keys: Keys


class Uniqueness:
    """Unique keys and distinct items in the texts of one grammar."""

    def __init__(self, parser: Parser, meter: Meter):
        self._parser, self._meter = parser, meter
        self.distinct = bool(parser.network.distinct)  # some arrays have distinct items
        self._searches = LimitedCache[Hashable, _DetourSearch](_SEARCHES)  # by place
        self._begun = Begun[tuple[State, Keys], _DetourSearch](_SEARCHES)  # that ran out of work
        # By terminal, its scanner's state, and the least and most characters that follow.
        self._varieties = LimitedCache[tuple[int, int, int, int | None], int](_VARIETIES)
        self._strings = LimitedCache[State, int](_VARIETIES)  # how many may be read, at least

    @property
    def nbytes(self) -> int:
        """Approximate memory of caches. Another thread may use them meanwhile."""
        searches = sum(search.nbytes for search in list(self._searches.values()))
        numbers = len(self._varieties) + len(self._strings)
        return self._begun.nbytes + searches + _NUMBER_BYTES * numbers

    def after(self, state: State, keys: Keys, piece: bytes) -> Keys | None:
        """Return `keys` after `piece`, read at `state`; None if a key or an item comes twice."""
        if not self.distinct or b"[" not in piece:
            return keys.after(piece)

        def is_distinct(place: int) -> bool:
            before = self._parser.after_text(state, piece[:place])
            return before is not None and self._opens_distinct(before)

        return keys.after(piece, is_distinct)

    def has_spare_strings(self, state: State, keys: Keys) -> bool:
        """Whether the shortest text leads to a string of which more exist than would lead to a
        repetition, so that `detour` would find a new key or item.

        True if no key and no item can be repeated; False if that takes a search.
        """
        if self._spares(state, keys):
            return True
        self._meter.add(1)
        for part in self._parser.completion(state, _NEAR):
            if isinstance(part, int):
                return False
            for byte in part[:_NEAR]:
                onward = self._parser.after_byte(state, byte)
                after = self.after(state, keys, bytes([byte]))
                if onward is None or after is None:
                    return False
                state, keys = onward, after
                if self._spares(state, keys):
                    return True
        return False

    def _spares(self, state: State, keys: Keys) -> bool:
        """Whether a string that may be read at `state` can be a new one."""
        rivals = keys.rivals
        if not rivals:
            return True
        if keys.has_new_key(self._literals_at(state)):
            return True
        strings = self._strings.get(state)
        if strings is None:
            strings = max(map(self._variety, state.threads), default=0)
            self._strings[state] = strings
        return strings > rivals

    def _literals_at(self, state: State) -> Iterator[bytes]:
        """Yield the rests of the literals that may be read at `state`."""
        for thread in state.threads:
            scanner = self._parser.scanners[thread.terminal]
            if isinstance(scanner, LiteralScanner) and self._parser.cost(thread) is not None:
                yield scanner.raw[thread.at :]

    def _variety(self, thread: Thread) -> int:
        """Return at least how many strings `thread` may read, perhaps from within one."""
        scanner = self._parser.scanners[thread.terminal]
        if not isinstance(scanner, Scanner) or not scanner.quoted:
            return 0
        if self._parser.cost(thread) is None:
            return 0
        place = thread.terminal, thread.at, thread.needed, thread.remaining
        if place not in self._varieties:
            self._meter.spend(1)
            self._varieties[place], edges = scanner.variety(*place[1:])
            self._meter.add(edges // _EDGES)
        return self._varieties[place]

    def detour(self, state: State, keys: Keys) -> Detour | None:
        """Return a detour from `state` with few bytes to the end; None if none is found.

        After it, each of `keys.at_risk` has a new key or item, or is closed. Raises `Unfinished`; a
        second call continues.
        """
        begin, place = (state, keys), _place(state, keys)
        search = self._begun.take(begin)
        if search is None:
            search = self._searches.pop(place, None)
            if search is None or not search.continues_at(keys):
                search = _DetourSearch(self, self._parser, self._meter, begin)
        try:
            detour = search.detour(state, keys)
            if detour is None and search.begin != begin:
                search = _DetourSearch(self, self._parser, self._meter, begin)
                detour = search.detour(state, keys)
        except Unfinished:
            self._begun.keep(begin, search)
            raise
        self._searches[place] = search
        return detour

    def _opens_distinct(self, state: State) -> bool:
        """Whether an array opened at `state` may be one with distinct items."""
        network, scanners = self._parser.network, self._parser.scanners
        return any(
            thread.onward.state in network.distinct
            for thread in state.threads
            for low, high, _ in scanners[thread.terminal].moves(thread.at)
            if low <= ord("[") <= high
        )


def _place(state: State, keys: Keys) -> Hashable:
    """Return what the next key or item depends on, without those so far. Rules that count have a
    state of their own after each item, so what follows the terminals is left out."""
    threads = frozenset(thread[:-1] for thread in state.threads)
    read = keys.key, keys.expected, keys.string, keys.escape, keys.text
    return threads, read, len(keys.open)


class _Reached(NamedTuple):
    """A text from a search's first state, and the situation after it."""

    cost: int  # bytes of the text, and of the shortest text from there to the end
    number: int  # breaks ties: the latest is visited first
    text: bytes
    state: State
    keys: Keys
    others: "_Others | None"  # that differ from it in the last byte


class _Others:
    """Situations one byte after another, of which one at a time is visited."""

    __slots__ = ("bytes_left", "situation")

    def __init__(self, situation: _Reached, bytes_left: bytes):
        self.situation = situation
        self.bytes_left = bytearray(reversed(bytes_left))  # the next one last


class _DetourSearch:
    """A search from one place for texts that lead to new keys or items, shortest first."""

    def __init__(
        self, uniqueness: Uniqueness, parser: Parser, meter: Meter, begin: tuple[State, Keys]
    ):
        self._uniqueness, self._parser, self._meter = uniqueness, parser, meter
        self._numbers = itertools.count(0, -1)
        self.begin, (state, self._last) = begin, begin
        self._cost = state.cost or 0
        self._open = [_Reached(self._cost, next(self._numbers), b"", *begin, None)]
        self._seen = {begin}
        self._visited = 0  # situations, in the call that is not finished
        self._elsewhere: list[_Reached] = []  # of these, those that its state does not lead to
        self._after: list[_Others] = []  # situations to push, after the last one visited

    @property
    def size(self) -> int:
        """The number of situations that it has seen and keeps."""
        return len(self._seen)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return _SITUATION_BYTES * self.size

    def continues_at(self, keys: Keys) -> bool:
        """Whether all that was a repetition is one for `keys` as well."""
        return self.size <= _MOST_SEEN and all(
            map(_holds, keys.open, self._last.open)  # `_place` compares their number
        )

    def detour(self, state: State, keys: Keys) -> Detour | None:
        """Return the detour from `state`, a place as that of the search; None if none is found, or
        if it is longer here than where the search began, so that others may be shorter.

        Raises `Unfinished`; a second call with the same arguments continues.
        """
        self._last, risks = keys, keys.at_risk
        units = _UNITS + sum(risks.values()) // _COMPARED
        detour = None
        while self._visited < _MOST_SITUATIONS:
            while self._after:
                self._push(self._after[-1])
                self._after.pop()
            if not self._open:
                break
            self._meter.spend(units)
            situation = self._open[0]
            onward, after = self._parser.after_text(state, situation.text), keys
            if onward is None or onward.cost is None:
                self._visited += 1
                self._elsewhere.append(heapq.heappop(self._open))
                continue
            if situation.text:
                after = self._uniqueness.after(state, keys, situation.text)
            if after is not None:
                now = after.at_risk
                if all(now.get(place, maxsize) > count for place, count in risks.items()):
                    added = len(situation.text) + onward.cost - (state.cost or 0)
                    if added <= situation.cost - self._cost:
                        detour = Detour(situation.text, onward, after)
                    break  # it stays open: the next search leads beyond it
                self._after = [*self._onward(situation)][::-1]
            if situation.others is not None:
                self._after.append(situation.others)
            self._visited += 1
            heapq.heappop(self._open)
        for unreachable in self._elsewhere:
            heapq.heappush(self._open, unreachable)
        self._elsewhere, self._visited = [], 0
        return detour

    def _onward(self, situation: _Reached) -> Iterator[_Others]:
        """Yield the situations one byte further, in groups from which one at a time is visited."""
        for low, high in self._parser.ranges(situation.state):
            if not situation.keys.string and high - low < _TENS:
                for byte in range(low, high + 1):
                    yield _Others(situation, bytes([byte]))
            else:
                nice = bytes(byte for byte in _NICE if low <= byte <= high)
                plain = _PLAIN[bisect_left(_PLAIN, low) : bisect_right(_PLAIN, high)]
                yield _Others(situation, nice + plain)

    def _push(self, others: _Others) -> None:
        """Push the next one of `others` that was not seen before."""
        situation, bytes_left = others.situation, others.bytes_left
        while bytes_left:
            piece, after = bytes_left[-1:], None
            onward = self._parser.after_byte(situation.state, piece[0])
            if onward is not None and onward.cost is not None:
                after = self._uniqueness.after(situation.state, situation.keys, bytes(piece))
            bytes_left.pop()
            if onward is None or after is None or (onward, after) in self._seen:
                continue
            self._seen.add((onward, after))
            text = situation.text + piece
            cost = len(text) + (onward.cost or 0)
            reached = _Reached(cost, next(self._numbers), text, onward, after, others)
            heapq.heappush(self._open, reached)
            return


def _holds(now: Container, before: Container) -> bool:
    """Whether an object or array has all keys or items that it had before."""
    if isinstance(now, SeenItems) and isinstance(before, SeenItems):
        return now.begun == before.begun and holds_all(now.values, before.values)
    if isinstance(now, SETS) and isinstance(before, SETS):
        return holds_all(now, before)
    return now is before
