"""A search for the text of the fewest tokens, breadth first by tokens.

The shortest text in bytes may not be the shortest in tokens: "ought" may be one token, and "zqj"
three. The search gives up after a limit, for example inside a free string.
"""

from collections import deque

from dlm.grammar.limits import Meter
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.states import UNREAD, State
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_MOST_BYTES = 50_000  # read in one search
_BYTES = 12  # read for a unit of work
_SEVERAL = 64  # children of a node, beyond which only likely bytes are looked up
TokenPath = list[tuple[State, int]]  # tokens, each with the state before it


class FewestTokens:
    """A search for a text of the fewest tokens, from the first state of a grammar to an end."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter, most: int):
        """`most` is the largest number of tokens to try."""
        self._parser, self._meter = parser, meter
        self._trie, self._longest = vocabulary.trie, vocabulary.longest
        self._tokens_left, self._bytes_read = most, 0
        self._seen = {parser.start}
        self._level: deque[tuple[State, TokenPath]] = deque()  # states to visit, with their paths
        self._next: list[tuple[State, TokenPath]] = [(parser.start, [])]  # one token further
        self._reached: dict[State, int] = {}  # states after the visited one, with their tokens
        self._todo: list[tuple[State, int]] = []  # states within tokens, with their trie nodes
        self._path: TokenPath | None = None

    def path(self) -> TokenPath:
        """Return the tokens of the text; empty if none was found within the limits.

        Raises `Unfinished`; a second call continues the search.
        """
        while self._path is None:
            if self._todo:
                self._read()
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
                named = sorted(self._parser.named(at))
                after = {self._parser.after(at, token, b""): token for token in named}
                self._reached = {
                    state: token for state, token in after.items() if state is not None
                }
            if self._bytes_read >= _MOST_BYTES:
                todo.clear()
                return
            onward: list[tuple[State, int]] = []
            if count := trie.child_count(node):
                meter.spend(1)
                onward = self._onward(at, node)
                # Charged at the end: a search that runs out of work keeps what it has found.
                meter.add(count // _BYTES)
                self._bytes_read += count
            if token_counts[node]:
                self._reached.setdefault(at, int(trie.tokens[trie.token_first[node]]))
            todo.pop()
            todo += onward

    def _onward(self, at: State, node: int) -> list[tuple[State, int]]:
        """Return the states after each next byte, with the trie nodes there."""
        trie, parser = self._trie, self._parser
        children = trie.each_child(node)
        if trie.child_count(node) > _SEVERAL:
            scanners, likely = parser.scanners, set[int]()
            for thread in at.threads:
                for low, high, _ in scanners[thread.terminal].moves(thread.at):
                    likely.update(range(low, high + 1))
            if len(likely) <= _SEVERAL:
                children = trie.children_by(node, sorted(likely))
        onward: list[tuple[State, int]] = []
        for byte, child in children:
            after = at.next[byte]
            if after is UNREAD:
                after = parser.after_byte(at, byte)
            if after is not None:
                onward.append((after, child))
        return onward

    def _leave(self) -> None:
        """Record the states that tokens lead to, and turn to the next state of the level."""
        visited, path = self._level.popleft()
        for at, token in self._reached.items():
            if at.cost == 0:
                self._path = [*path, (visited, token)]
                return
            if at in self._seen or at.cost is None or at.cost > self._tokens_left * self._longest:
                continue
            self._seen.add(at)
            self._next.append((at, [*path, (visited, token)]))
        if self._level:
            self._todo = [(self._level[0][0], 0)]
