"""How a key or an item that is begun can become one that is not there yet.

A key or an item that is there already is refused where it ends. Where nothing but its end could
follow, that is too late: of keys of three letters, or items of ten values, there may be no other.
So no token is allowed after which there is no way to something new; and a completion that would
repeat something goes this way instead.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from sys import maxsize
from typing import NamedTuple

from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State

_MOST = 4096  # places that are looked at
_UNITS = 3  # of work for one
_NICE = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ _"
_TENS = 10  # bytes of a range that are all tried: digits may spell one number in many ways


class Way(NamedTuple):
    """A text that makes the difference, and where it leads."""

    text: bytes
    state: State
    keys: Keys


class Apart:
    """Ways to what is not there yet, in one grammar."""

    def __init__(self, parser: Parser, meter: Meter):
        self._parser, self._meter = parser, meter
        self.distinct = bool(parser.network.distinct)

    def after(self, state: State, keys: Keys, piece: bytes) -> Keys | None:
        """`keys` after `piece`, which is read at `state`; None where something comes twice."""
        if not self.distinct or b"[" not in piece:
            return keys.after(piece)

        def is_distinct(place: int) -> bool:
            before = self._parser.after(state, 0, piece[:place]) if place else state
            return before is not None and self._opens_distinct(before)

        return keys.after(piece, is_distinct)

    def way(self, state: State, keys: Keys) -> Way | None:
        """A way from `state` to where what is at risk is new; None: none is found.

        It is of the fewest bytes to the end of the text.
        """
        risks = keys.at_risk
        numbers = count(0, -1)  # of those that are as far, the last one is followed
        heap = [(state.cost or 0, next(numbers), b"", state, keys)]
        seen = {(state, keys)}
        for _ in range(_MOST):
            if not heap:
                return None
            _, _, text, at, known = heapq.heappop(heap)
            self._meter.add(_UNITS)
            now = known.at_risk
            if all(now.get(place, maxsize) > held for place, held in risks.items()):
                return Way(text, at, known)
            taken = {rest[:1] for rest in known.taken}
            for byte in self._bytes(at, known, taken):
                onward = self._parser.behind(at, byte)
                if onward is None or onward.cost is None:
                    continue
                piece = bytes([byte])
                after = self.after(at, known, piece)
                if after is not None and (onward, after) not in seen:
                    seen.add((onward, after))
                    cost = len(text) + 1 + onward.cost
                    heapq.heappush(heap, (cost, next(numbers), text + piece, onward, after))
        return None

    def _opens_distinct(self, state: State) -> bool:
        """An array that is opened at `state` is, or may be, one of distinct items."""
        network, scanners = self._parser.network, self._parser.scanners
        return any(
            thread.behind.state in network.distinct
            for thread in state.threads
            for low, high, _ in scanners[thread.terminal].moves(thread.at)
            if low <= ord("[") <= high
        )

    def _bytes(self, state: State, keys: Keys, taken: set[bytes]) -> Iterator[int]:
        """Bytes that may follow: of each range, those of `taken` and another one."""
        for low, high in self._parser.ranges(state):
            if not keys.string and high - low < _TENS:
                yield from range(low, high + 1)
                continue
            yield from (rest[0] for rest in taken if rest and low <= rest[0] <= high)
            others = (byte for byte in (*_NICE, *range(low, high + 1)) if low <= byte <= high)
            other = next((byte for byte in others if bytes([byte]) not in taken), None)
            if other is not None:
                yield other
