"""A grammar's shortest text to the end, with a detour in place of each repetition."""

from collections.abc import Callable, Iterator

from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.states import State
from dlm.grammar.parse.uniqueness import Detour, Uniqueness

_MOST_REPEATED = 2048  # detours in one text
_AT_ONCE = 256  # bytes read before the shortest text is computed anew
_AT_FIRST = 16  # as many after a detour, since another repetition may follow; then twice as many
TextParts = list[bytes | int]  # bytes, and control tokens by their ids


class UniqueText:
    """A short text from one state to the end, without repeated keys and distinct items."""

    def __init__(
        self,
        parser: Parser,
        uniqueness: Uniqueness,
        detour: Callable[[State, Keys], Detour | None],
        meter: Meter,
        begin: tuple[State, Keys],
    ):
        """`detour` is `Uniqueness.detour`, or a cache of it."""
        self._parser, self._uniqueness, self._meter = parser, uniqueness, meter
        self._detour = detour
        self._parts, self._text = TextParts(), bytearray()  # `_text` comes after `_parts`
        self._state, self._keys = begin
        # The start of a key or an item that may be a repetition: its place in `_text`.
        self._begun: tuple[int, State, Keys] = (0, *begin)
        self.detours, self._impossible = 0, False
        self._repeats = False  # a detour comes next
        self._ahead: TextParts = []  # symbols of the shortest text, the next one last
        self._at_once = _AT_FIRST

    def written(self, most: int) -> TextParts | None:
        """Return the text, or at least its first `most` bytes; None if no text is found.

        Raises `Unfinished`; a second call continues the work.
        """
        while self._state.cost and len(self._text) < most and not self._impossible:
            if self._repeats:
                self._take_detour()
                continue
            if not self._ahead:
                self._meter.spend(1 + min(most, self._state.cost, self._at_once) // 4)
                ahead = self._parser.completion(self._state, self._at_once)
                self._ahead = [*_symbols(ahead)][::-1]
                self._at_once = min(_AT_ONCE, 2 * self._at_once)
            while self._ahead:
                goes_on = self._read(self._ahead[-1])
                self._ahead.pop()
                if not goes_on:
                    self._ahead.clear()
        return None if self._impossible else [*self._parts, bytes(self._text)]

    def _read(self, symbol: bytes | int) -> bool:
        """Write a byte or a control token. False if the rest has to be computed anew."""
        if isinstance(symbol, int):
            onward, after = self._parser.after(self._state, symbol, b""), self._keys
        else:
            onward = self._parser.after_byte(self._state, symbol[0])
            after = self._uniqueness.after(self._state, self._keys, symbol)
        if onward is None or onward.cost is None:
            self._impossible = True
            return False
        if after is None:
            self._repeats = True
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

    def _take_detour(self) -> None:
        """Replace the repeated key or item by a detour from its start."""
        place, state, keys = self._begun
        detour = self._detour(state, keys)
        self.detours, self._at_once, self._repeats = self.detours + 1, _AT_FIRST, False
        if detour is None or self.detours > _MOST_REPEATED:
            self._impossible = True
            return
        self._text[place:], self._state, self._keys = detour
        self._begun = len(self._text), detour.state, detour.keys


def _symbols(parts: TextParts) -> Iterator[bytes | int]:
    """Yield the bytes of a text, one by one, and its control tokens."""
    for part in parts:
        yield from (part,) if isinstance(part, int) else (bytes([byte]) for byte in part)
