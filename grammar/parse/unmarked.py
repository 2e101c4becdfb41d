"""The answers of a grammar that do not begin with the marker that opens reasoning.

A text that begins both as an answer and as the marker may still become such an answer: where the
answer ends before the marker is complete, or goes on otherwise. The module knows no budget.
"""

from collections.abc import Iterator, Sequence

from dlm.grammar.limits import LimitedCache, Meter
from dlm.grammar.parse.closing import COUNTED, ENDLESS, Closing
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.fewest_tokens import FewestTokens
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.remainders import NEVER
from dlm.grammar.parse.states import State
from dlm.grammar.parse.steps import Steps
from dlm.grammar.vocabulary.markers import CONTROL, Marker
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_SEARCHES = 4  # markers with a cached search for the fewest tokens
_FEW = 32  # tokens of an answer to search for if none is known
_BYTES = 10  # units of work for a state's next bytes

Beginning = tuple[list[int], State, Keys | None]  # tokens, and what holds after them


class Unmarked:
    """The answers of one grammar that do not begin with a marker."""

    def __init__(
        self, parser: Parser, steps: Steps, closing: Closing, vocabulary: Vocabulary, meter: Meter
    ):
        self._parser, self._steps, self._closing = parser, steps, closing
        self._vocabulary, self._meter = vocabulary, meter
        self._searches = LimitedCache[tuple[int, ...], FewestTokens](_SEARCHES)  # by marker

    def beginnings(
        self, marker: Marker, matched: int, state: State, keys: Keys | None
    ) -> Iterator[Beginning]:
        """Yield ways in which an answer goes on that does not begin with `marker`.

        The text so far is the first `matched` symbols of the marker. However a way is completed,
        the text does not begin with the marker. Each way has the shortest of its completions, and
        the shortest of them all is in one of the ways: in bytes, and in tokens within the limits
        of a search.
        """
        states = self._states(marker.symbols[matched:], state)
        if len(states) <= len(marker.symbols) - matched:  # no answer begins with the marker
            yield [], state, keys
            return
        for tokens in self._ways(marker, matched, states, keys):
            read = self._read(tokens, state, keys)
            if read is not None:
                yield tokens, *read

    def _ways(
        self, marker: Marker, matched: int, states: list[State], keys: Keys | None
    ) -> Iterator[list[int]]:
        """Yield tokens through the first that differs from the marker, or to the answer's end."""
        if states[0].cost == 0:
            yield []
            return
        shortest = self._closing.beginning(states[0], keys, ENDLESS)[0] or []
        count, symbols = marker.leading(shortest, matched)
        differs = count < len(shortest) and not marker.complete(symbols)
        if differs and not marker.ends_within(symbols, shortest[count]):
            yield shortest[: count + 1]
        yield from self._departures(marker, matched, states)
        if (fewest := self._fewest(marker, matched)) is not None:
            yield fewest

    def _states(self, symbols: Sequence[int], state: State) -> list[State]:
        """Return `state` and those after each of `symbols`, up to one that is not allowed."""
        states = [state]
        for symbol in symbols:
            after = self._after(states[-1], symbol)
            if after is None:
                break
            states.append(after)
        return states

    def _after(self, state: State, symbol: int) -> State | None:
        if symbol < CONTROL:
            return self._parser.after_byte(state, symbol)
        return self._parser.after(state, symbol - CONTROL, b"")

    def _departures(self, marker: Marker, matched: int, states: list[State]) -> Iterator[list[int]]:
        """Yield tokens through the first byte that differs from the marker, or to the answer's end:
        those of the shortest text for each state that these bytes lead to, the shortest first."""
        texts: dict[State, tuple[int, list[int]]] = {}  # bytes to the end, and symbols
        for number, state in enumerate(states[:-1], matched):
            begun = marker.symbols[matched:number]
            onward = [(state, begun)] if state.cost == 0 else []
            for symbol in (*range(CONTROL), *(CONTROL + t for t in self._parser.named(state))):
                after = self._after(state, symbol) if symbol != marker.symbols[number] else None
                if after is not None:
                    onward.append((after, [*begun, symbol]))
            for after, symbols in onward:
                size = NEVER if after.cost is None else len(symbols) + after.cost
                if size < texts.get(after, (NEVER, []))[0]:
                    texts[after] = size, symbols
        self._meter.add(len(states) * _BYTES)
        least = min((size for size, _ in texts.values()), default=0)
        for size, symbols in sorted(texts.values()):
            tokens = marker.spell(symbols)
            if size <= max(COUNTED, least) and (tokens or not symbols):
                yield tokens

    def _fewest(self, marker: Marker, matched: int) -> list[int] | None:
        """Return the rest of an answer of the fewest tokens, if it begins with the first `matched`
        symbols of the marker; None if it does not, or if none was found."""
        tokens = [token for _, token in self._search(marker).path()]
        for count in range(len(tokens)):
            begun, symbols = marker.leading(tokens[:count])
            if begun < count or symbols > matched:
                return None
            if symbols == matched:
                return tokens[count:]
        return None

    def _search(self, marker: Marker) -> FewestTokens:
        """Return the search for that answer, which may take several calls."""
        key = tuple(marker.symbols)
        if key not in self._searches:
            start = self._parser.start
            states = self._states(marker.symbols, start)
            departures = self._departures(marker, 0, states)
            reads = [(t, self._read(t, start, self._steps.first_keys())) for t in departures]
            counted = min(
                (
                    len(tokens) + self._closing.remainders.tokens(read[0])
                    for tokens, read in reads
                    if read is not None and (read[0].cost or 0) <= COUNTED
                ),
                default=NEVER,
            )
            most = _FEW if counted >= NEVER else max(0, counted - 1)
            search = FewestTokens(self._parser, self._vocabulary, self._meter, most, key)
            self._searches[key] = search
        return self._searches[key]

    def _read(
        self, tokens: Sequence[int], state: State, keys: Keys | None
    ) -> tuple[State, Keys | None] | None:
        """Return state and keys after `tokens`; None if they are not allowed."""
        for token in tokens:
            read = self._steps.read(state, keys, token)
            if read is None:
                return None
            state, keys = read
        return state, keys
