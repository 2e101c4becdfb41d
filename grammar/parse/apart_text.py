"""A short text to the end in which no key and no distinct item comes twice.

It is the grammar's shortest. Where that repeats a key or an item, the text goes back to where this
was begun, and takes a way to another one (`apart.py`).
"""

from collections.abc import Callable, Iterator

from dlm.grammar.parse.apart import Apart, Way
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State

_MOST_REPEATED = 512  # keys and items of one text that have to become others
_AT_ONCE = 256  # bytes that are read before the shortest text from there is asked for again

Text = list[bytes | int]  # bytes, and control tokens by their ids


class ApartText:
    """The text from one state on, written as far as it is asked for.

    Where work runs out in the middle, `Unfinished` is raised, and asking again goes on.
    """

    def __init__(
        self,
        parser: Parser,
        apart: Apart,
        way: Callable[[State, Keys], Way | None],
        meter: Meter,
        begin: tuple[State, Keys],
    ):
        """`way` is `Apart.way`, remembered."""
        self._parser, self._apart, self._way, self._meter = parser, apart, way, meter
        self._parts, self._text = Text(), bytearray()  # what is written: the text comes last
        self._state, self._keys = begin
        # Where a key or an item was begun that may be there already: a place in the text.
        self._begun: tuple[int, State, Keys] = (0, *begin)
        self._repeated, self._impossible = 0, False

    def written(self, most: int) -> Text | None:
        """At least the first `most` bytes, or all of it; None: there is none, or none is found."""
        while self._state.cost and len(self._text) < most and not self._impossible:
            self._meter.spend(1 + min(most, self._state.cost, _AT_ONCE) // 4)
            for symbol in _symbols(self._parser.completion(self._state, _AT_ONCE)):
                if not self._read(symbol):
                    break
        return None if self._impossible else [*self._parts, bytes(self._text)]

    def _read(self, symbol: bytes | int) -> bool:
        """Write a byte or a control token; False: the shortest text from here is another now."""
        if isinstance(symbol, int):
            onward, after = self._parser.after(self._state, symbol, b""), self._keys
        else:
            onward = self._parser.behind(self._state, symbol[0])
            after = self._apart.after(self._state, self._keys, symbol)
        if onward is None or onward.cost is None:
            self._impossible = True
            return False
        if after is None:
            self._become_another()
            return False
        if isinstance(symbol, int):
            self._parts += [bytes(self._text), symbol]
            self._text.clear()
        else:
            self._text += symbol
        if not self._keys.at_risk or not self._text:
            self._begun = len(self._text), onward, after
        self._state, self._keys = onward, after
        return True

    def _become_another(self) -> None:
        place, before, held = self._begun
        way = self._way(before, held)
        self._repeated += 1
        if way is None or self._repeated > _MOST_REPEATED:
            self._impossible = True
            return
        self._text[place:] = way.text
        self._state, self._keys = way.state, way.keys
        self._begun = len(self._text), way.state, way.keys


def _symbols(parts: Text) -> Iterator[bytes | int]:
    """The bytes of a text, one by one, and its control tokens."""
    for part in parts:
        yield from (part,) if isinstance(part, int) else (bytes([byte]) for byte in part)
