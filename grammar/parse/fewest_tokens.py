"""A search for the text of the fewest tokens, breadth first by tokens.

The shortest text in bytes may not be the shortest in tokens: "ought" may be one token, and "zqj"
three. The search gives up after a limit, for example inside a free string. It may leave out
texts with a given beginning.
"""

from collections import deque
from collections.abc import Sequence

from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.markers import CONTROL
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_MOST_BYTES = 50_000  # read in one search
_BYTES = 12  # read for a unit of work
_SEVERAL = 64  # children of a node, beyond which only likely bytes are looked up
_APART = -1  # the text has left the beginning to avoid, or there is none
TokenPath = list[tuple[State, int]]  # tokens, each with the state before it
Place = tuple[State, int]  # a state, with the symbols so far of the beginning to avoid


class FewestTokens:
    """A search for a text of the fewest tokens, from the first state of a grammar to an end."""

    def __init__(
        self,
        parser: Parser,
        vocabulary: Vocabulary,
        meter: Meter,
        most: int,
        avoided: Sequence[int] = (),
    ):
        """`most` is the largest number of tokens to try. No text begins with all of `avoided`:
        symbols as in `Marker.symbols`."""
        self._parser, self._meter, self._avoided = parser, meter, avoided
        self._trie, self._longest = vocabulary.trie, vocabulary.longest
        self._tokens_left, self._bytes_read = most, 0
        start: Place = parser.start, 0 if avoided else _APART
        self._seen = set[Place]([start])
        self._level: deque[tuple[Place, TokenPath]] = deque()  # places to visit, with their paths
        self._next: list[tuple[Place, TokenPath]] = [(start, [])]  # one token further
        self._reached: dict[Place, int] = {}  # places after the visited one, with their tokens
        self._todo: list[tuple[Place, int]] = []  # places within tokens, with their trie nodes
        self._leaving: list[tuple[Place, int]] = []  # the rest of `_reached`, the last one first
        self._path: TokenPath | None = None

    def path(self) -> TokenPath:
        """Return the tokens of the text; empty if none was found within the limits.

        Raises `Unfinished`; a second call continues the search.
        """
        while self._path is None:
            if self._todo:
                self._read()
                self._leaving = [*self._reached.items()][::-1]
            elif self._level:
                self._leave()
            elif self._tokens_left and self._next:
                self._level, self._next = deque(self._next), []
                self._tokens_left -= 1
                self._todo = [(self._level[0][0], 0)]
            else:
                self._path = []
        return self._path

    def _read(self) -> None:
        """Read the tokens from the first state of the level, byte by byte."""
        trie, meter, todo = self._trie, self._meter, self._todo
        token_counts = trie.token_count.data
        while todo:
            at, node = todo[-1]
            if not node:
                self._reached = self._named(at)
            if self._bytes_read >= _MOST_BYTES:
                todo.clear()
                return
            onward: list[tuple[Place, int]] = []
            if count := trie.child_count(node):
                meter.spend(0)
                onward = self._onward(at, node)
                # Charged at the end: a search that runs out of work keeps what it has found.
                meter.add(1 + count // _BYTES)
                self._bytes_read += count
            if token_counts[node]:
                self._reached.setdefault(at, int(trie.tokens[trie.token_first[node]]))
            todo.pop()
            todo += onward

    def _named(self, at: Place) -> dict[Place, int]:
        """Return the places after each control token that rules allow."""
        (state, matched), reached = at, dict[Place, int]()
        for token in sorted(self._parser.named(state)):
            after = self._parser.after(state, token, b"")
            then = self._matched(matched, CONTROL + token)
            if after is not None and then is not None:
                reached[after, then] = token
        return reached

    def _matched(self, matched: int, symbol: int) -> int | None:
        """Return the symbols so far of the beginning to avoid; None if that would be complete."""
        if matched == _APART or self._avoided[matched] != symbol:
            return _APART
        return matched + 1 if matched + 1 < len(self._avoided) else None

    def _onward(self, at: Place, node: int) -> list[tuple[Place, int]]:
        """Return the places after each next byte, with the trie nodes there."""
        trie, parser, (state, matched) = self._trie, self._parser, at
        children = trie.each_child(node)
        if trie.child_count(node) > _SEVERAL:
            scanners, likely = parser.scanners, set[int]()
            for thread in state.threads:
                for low, high, _ in scanners[thread.terminal].moves(thread.at):
                    likely.update(range(low, high + 1))
            if len(likely) <= _SEVERAL:
                children = trie.children_by(node, sorted(likely))
        onward: list[tuple[Place, int]] = []
        for byte, child in children:
            after = parser.after_byte(state, byte)
            then = _APART if matched == _APART else self._matched(matched, byte)
            if after is not None and then is not None:
                onward.append(((after, then), child))
        return onward

    def _leave(self) -> None:
        """Record the places that tokens lead to, and turn to the next one of the level."""
        (visited, _), path = self._level[0]
        while self._leaving:
            self._meter.spend(0)  # costs are counted as they are computed
            at, token = self._leaving.pop()
            cost = at[0].cost
            if cost == 0:
                self._path = [*path, (visited, token)]
                return
            if at in self._seen or cost is None or cost > self._tokens_left * self._longest:
                continue
            self._seen.add(at)
            self._next.append((at, [*path, (visited, token)]))
        self._level.popleft()
        if self._level:
            self._todo = [(self._level[0][0], 0)]
